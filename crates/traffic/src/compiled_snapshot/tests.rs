//! Tests of recompilation and reuse between snapshots.

use std::time::Duration;

use leno_model::{
    Access, BalanceAlgorithm, ClientAuthorization, EndpointId, HashKey, LoadBalancing, PathMatch,
    PolicyName, PortLoadBalancing, RequestMatch, RetryRule, RouteName, RouteRule, RuleActions,
    ServiceAccount, ServicePolicyKind, ServicePolicyName, ServiceRetry, TrustDomain, Weight,
    WorkloadConfig, WorkloadName,
};

use super::*;

fn service_name(name: &str) -> ServiceName {
    ServiceName::new("shop", name).unwrap()
}

fn test_endpoint(port: u16) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        id: EndpointId {
            service: service_name("stock"),
            port: 80,
            workload: WorkloadName::new("shop", "stock-1").unwrap(),
        },
        address: ([127, 0, 0, 1], port).into(),
        account: ServiceAccount::new("shop", "stock").ok(),
        tags: BTreeMap::new(),
        weight: None,
    })
}

fn service_config(name: &str, path: &str, endpoints: Vec<Arc<Endpoint>>) -> Arc<ServiceConfig> {
    let request = RequestMatch { path: PathMatch::Regex(path.into()), ..RequestMatch::default() };
    let rule = RouteRule {
        route: RouteName::new("shop", "r").unwrap(),
        matches: vec![request],
        backends: Vec::new(),
        request_timeout: None,
        actions: RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    };
    let port = PortConfig {
        name: None,
        protocol: Protocol::Http,
        routed: true,
        rules: vec![rule],
        endpoints,
        tls_rules: Vec::new(),
        traffic_policy: leno_model::TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    Arc::new(ServiceConfig {
        name: service_name(name),
        client_authorization: ClientAuthorization::Allowed,
        ports: BTreeMap::from([(80, port)]),
        awaited: false,
    })
}

fn config_snapshot(access: Access, views: Vec<Arc<ServiceConfig>>) -> Arc<Snapshot> {
    let plan = workload_plan(access);
    let services = views.into_iter().map(|view| (view.name.clone(), view)).collect();
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    Arc::new(Snapshot { config: Arc::new(plan), services, addresses, names })
}

/// A workload without configuration.
pub(crate) fn workload_plan(access: Access) -> WorkloadConfig {
    WorkloadConfig::identity_only(
        WorkloadName::new("shop", "web-1").unwrap(),
        ServiceAccount::new("shop", "web").unwrap(),
        TrustDomain::new("cluster.local").unwrap(),
        [127, 0, 0, 1].into(),
        access,
    )
}

#[test]
fn what_did_not_change_is_taken_over() {
    let stay = service_config("stay", "/a+", Vec::new());
    let equal = || service_config("equal", "/b+", Vec::new());
    let first = config_snapshot(
        Access::AllowAll,
        vec![stay.clone(), equal(), service_config("gone", "/", vec![])],
    );
    let before = CompiledSnapshot::build(first, None).unwrap();
    let second =
        config_snapshot(Access::AllowAll, vec![stay, equal(), service_config("new", "/", vec![])]);
    let after = CompiledSnapshot::build(second, Some(&before)).unwrap();

    for name in ["stay", "equal"] {
        let plan =
            |plans: &CompiledSnapshot| Arc::clone(plans.service(&service_name(name)).unwrap());
        assert!(Arc::ptr_eq(&plan(&before), &plan(&after)), "{name}");
    }
    assert!(Arc::ptr_eq(&before.access, &after.access));
    assert!(after.service(&service_name("gone")).is_none());
    assert!(after.service(&service_name("new")).is_some());
}

#[test]
fn new_endpoints_need_no_new_routes_but_new_rules_do() {
    let plans = |path: &str, endpoints, previous: Option<&CompiledSnapshot>| {
        let views = vec![service_config("stock", path, endpoints)];
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, views), previous).unwrap()
    };
    let port = |plans: &CompiledSnapshot| {
        let plan = &plans.service(&service_name("stock")).unwrap().ports[&80];
        (Arc::clone(&plan.routes), plan.endpoints.len())
    };
    let first = plans("/a+", vec![test_endpoint(1)], None);
    let moved = plans("/a+", vec![test_endpoint(1), test_endpoint(2)], Some(&first));
    let ruled = plans("/b+", vec![test_endpoint(1)], Some(&moved));
    let ((first, one), (moved, two), (ruled, _)) = (port(&first), port(&moved), port(&ruled));
    assert!(Arc::ptr_eq(&first, &moved));
    assert_eq!((one, two), (1, 2));
    assert!(!Arc::ptr_eq(&moved, &ruled));
}

#[test]
fn places_of_keys_follow_weights_and_stay_while_nothing_moves() {
    let algorithms: [fn(HashKey) -> BalanceAlgorithm; 2] =
        [BalanceAlgorithm::RingHash, BalanceAlgorithm::Maglev];
    for algorithm in algorithms {
        let kind = ServicePolicyKind::LoadBalancing;
        let policy = ServicePolicyName::new(kind, "shop", "keys").unwrap();
        let rule = LoadBalancing { algorithm: algorithm(HashKey::Source), slow_start: None };
        let balancing = PortLoadBalancing { policy, rule };
        let plans = |(path, weights): (&str, [Option<u16>; 2]),
                     previous: Option<&CompiledSnapshot>| {
            let of = |(n, weight): (u16, Option<u16>)| {
                let mut endpoint = Endpoint::clone(&test_endpoint(n));
                endpoint.id.workload = WorkloadName::new("shop", &format!("stock-{n}")).unwrap();
                Arc::new(Endpoint { weight: weight.and_then(Weight::new), ..endpoint })
            };
            let endpoints = (1..).zip(weights).map(of).collect();
            let mut view = ServiceConfig::clone(&service_config("stock", path, endpoints));
            let port = view.ports.get_mut(&80).unwrap();
            port.traffic_policy.balancing = Some(balancing.clone());
            let views = vec![Arc::new(view)];
            CompiledSnapshot::build(config_snapshot(Access::AllowAll, views), previous).unwrap()
        };
        let places = |plans: &CompiledSnapshot| {
            plans.service(&service_name("stock")).unwrap().ports[&80].hash_table.clone().unwrap()
        };
        let first = |places: &EndpointHashTable| {
            let keys = (0..1000).map(|n| crate::balance::hashing::hash_key(&format!("user-{n}")));
            keys.filter(|key| places.find_endpoint(*key, |_| true) == Some(0)).count()
        };
        let before = plans(("/a+", [None, None]), None);
        let weighted = plans(("/a+", [Some(100), Some(900)]), Some(&before));
        let ruled = plans(("/b+", [Some(100), Some(900)]), Some(&weighted));
        let (before, weighted, ruled) = (places(&before), places(&weighted), places(&ruled));
        assert!((400..600).contains(&first(&before)), "{}", first(&before));
        assert!((50..200).contains(&first(&weighted)), "{}", first(&weighted));
        assert!(Arc::ptr_eq(&weighted, &ruled), "rules of routes move nobody");
    }
}

#[test]
fn a_policy_about_retries_decides_where_no_rule_does_and_is_compiled_when_it_changes() {
    let retry = |attempts| ServiceRetry {
        policy: PolicyName::new("shop", "again").unwrap(),
        rule: RetryRule { codes: vec![503], attempts, backoff: Duration::from_millis(25) },
        response_timeout: Some(Duration::from_secs(1)),
    };
    let own = RetryRule { codes: vec![502], attempts: 7, backoff: Duration::ZERO };
    let mut ruled = ServiceConfig::clone(&service_config("ruled", "/a+", vec![]));
    let rules = &mut ruled.ports.get_mut(&80).unwrap().rules;
    rules.push(RouteRule {
        actions: RuleActions { retry: Some(own), ..RuleActions::default() },
        ..rules[0].clone()
    });
    let (ruled, other) = (Arc::new(ruled), service_config("other", "/b+", vec![]));
    let plans = |attempts: Option<u8>, previous: Option<&CompiledSnapshot>| {
        let mut snapshot =
            Snapshot::clone(&config_snapshot(Access::AllowAll, vec![ruled.clone(), other.clone()]));
        let retries = attempts.map(|attempts| (service_name("ruled"), retry(attempts)));
        let plan = workload_plan(Access::AllowAll);
        snapshot.config =
            Arc::new(WorkloadConfig { retries: retries.into_iter().collect(), ..plan });
        CompiledSnapshot::build(Arc::new(snapshot), previous).unwrap()
    };
    let attempts = |plans: &CompiledSnapshot| {
        let routes = &plans.service(&service_name("ruled")).unwrap().ports[&80].routes;
        let ruled = routes.rules().iter().map(|rule| rule.actions.as_deref());
        let all = ruled.chain([routes.direct_actions().map(|it| &**it)]);
        let reported = all.map(|actions| {
            let actions = actions?;
            let attempts = actions.retry.as_ref()?.attempts;
            assert_eq!(actions.retried_by.is_some(), actions.attempt_limit.is_some());
            Some((attempts, actions.retried_by.is_some()))
        });
        reported.collect::<Vec<_>>()
    };
    let before = plans(None, None);
    assert_eq!(attempts(&before), [None, Some((7, false)), None]);
    let two = plans(Some(2), Some(&before));
    assert_eq!(attempts(&two), [Some((2, true)), Some((7, false)), Some((2, true))]);
    let three = plans(Some(3), Some(&two));
    assert_eq!(attempts(&three), [Some((3, true)), Some((7, false)), Some((3, true))]);
    let same = plans(Some(3), Some(&three));
    let gone = plans(None, Some(&same));
    assert_eq!(attempts(&gone), attempts(&before));
    let plan =
        |plans: &CompiledSnapshot, name| Arc::clone(plans.service(&service_name(name)).unwrap());
    assert!(Arc::ptr_eq(&plan(&three, "ruled"), &plan(&same, "ruled")));
    assert!(Arc::ptr_eq(&plan(&before, "other"), &plan(&gone, "other")));
}

#[test]
fn changed_access_is_compiled_again() {
    let permissive =
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, vec![]), None).unwrap();
    let strict = config_snapshot(Access::AllowListed(vec![]), vec![]);
    let strict = CompiledSnapshot::build(strict, Some(&permissive)).unwrap();
    assert!(!Arc::ptr_eq(&permissive.access, &strict.access));
}

#[test]
fn one_bad_pattern_refuses_the_snapshot() {
    let views = vec![service_config("good", "/a+", vec![]), service_config("stock", "(", vec![])];
    let error =
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, views), None).unwrap_err();
    assert!(error.to_string().contains("HTTPRoute shop/r"), "{error}");
}
