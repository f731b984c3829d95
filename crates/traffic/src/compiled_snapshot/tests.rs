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
        has_attached_routes: true,
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
        waits_for_endpoint: false,
    })
}

fn config_snapshot(access: Access, services: Vec<Arc<ServiceConfig>>) -> Arc<Snapshot> {
    let config = minimal_workload_config(access);
    let services = services.into_iter().map(|service| (service.name.clone(), service)).collect();
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    Arc::new(Snapshot { config: Arc::new(config), services, addresses, names })
}

/// Returns a workload without configuration.
pub(crate) fn minimal_workload_config(access: Access) -> WorkloadConfig {
    WorkloadConfig::identity_only(
        WorkloadName::new("shop", "web-1").unwrap(),
        ServiceAccount::new("shop", "web").unwrap(),
        TrustDomain::new("cluster.local").unwrap(),
        [127, 0, 0, 1].into(),
        access,
    )
}

#[test]
fn unchanged_parts_are_reused() {
    let retained = service_config("stay", "/a+", Vec::new());
    let equal = || service_config("equal", "/b+", Vec::new());
    let first_snapshot = config_snapshot(
        Access::AllowAll,
        vec![retained.clone(), equal(), service_config("gone", "/", vec![])],
    );
    let previous_compilation = CompiledSnapshot::build(first_snapshot, None).unwrap();
    let second_snapshot = config_snapshot(
        Access::AllowAll,
        vec![retained, equal(), service_config("new", "/", vec![])],
    );
    let current_compilation =
        CompiledSnapshot::build(second_snapshot, Some(&previous_compilation)).unwrap();

    for name in ["stay", "equal"] {
        let service_of = |snapshot: &CompiledSnapshot| {
            Arc::clone(snapshot.service(&service_name(name)).unwrap())
        };
        assert!(
            Arc::ptr_eq(&service_of(&previous_compilation), &service_of(&current_compilation)),
            "{name}"
        );
    }
    assert!(Arc::ptr_eq(&previous_compilation.access, &current_compilation.access));
    assert!(current_compilation.service(&service_name("gone")).is_none());
    assert!(current_compilation.service(&service_name("new")).is_some());
}

#[test]
fn endpoint_changes_retain_routes_and_rule_changes_replace_them() {
    let compile = |path: &str, endpoints, previous: Option<&CompiledSnapshot>| {
        let services = vec![service_config("stock", path, endpoints)];
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, services), previous).unwrap()
    };
    let port = |snapshot: &CompiledSnapshot| {
        let port = &snapshot.service(&service_name("stock")).unwrap().ports[&80];
        (Arc::clone(&port.routes), port.endpoints.len())
    };
    let first_compilation = compile("/a+", vec![test_endpoint(1)], None);
    let moved = compile("/a+", vec![test_endpoint(1), test_endpoint(2)], Some(&first_compilation));
    let changed_rules = compile("/b+", vec![test_endpoint(1)], Some(&moved));
    let ((first_routes, first_count), (moved, moved_count), (changed_rules, _)) =
        (port(&first_compilation), port(&moved), port(&changed_rules));
    assert!(Arc::ptr_eq(&first_routes, &moved));
    assert_eq!((first_count, moved_count), (1, 2));
    assert!(!Arc::ptr_eq(&moved, &changed_rules));
}

#[test]
fn the_hash_table_changes_only_with_endpoints_and_weights() {
    let algorithms: [fn(HashKey) -> BalanceAlgorithm; 2] =
        [BalanceAlgorithm::RingHash, BalanceAlgorithm::Maglev];
    for algorithm in algorithms {
        let kind = ServicePolicyKind::LoadBalancing;
        let policy = ServicePolicyName::new(kind, "shop", "keys").unwrap();
        let rule = LoadBalancing { algorithm: algorithm(HashKey::Source), slow_start: None };
        let balancing = PortLoadBalancing { policy, rule };
        let compile = |(path, weights): (&str, [Option<u16>; 2]),
                       previous: Option<&CompiledSnapshot>| {
            let weighted_endpoint = |(n, weight): (u16, Option<u16>)| {
                let mut endpoint = Endpoint::clone(&test_endpoint(n));
                endpoint.id.workload = WorkloadName::new("shop", &format!("stock-{n}")).unwrap();
                Arc::new(Endpoint { weight: weight.and_then(Weight::new), ..endpoint })
            };
            let endpoints = (1..).zip(weights).map(weighted_endpoint).collect();
            let mut service = ServiceConfig::clone(&service_config("stock", path, endpoints));
            let port = service.ports.get_mut(&80).unwrap();
            port.traffic_policy.balancing = Some(balancing.clone());
            let services = vec![Arc::new(service)];
            CompiledSnapshot::build(config_snapshot(Access::AllowAll, services), previous).unwrap()
        };
        let hash_table = |snapshot: &CompiledSnapshot| {
            snapshot.service(&service_name("stock")).unwrap().ports[&80].hash_table.clone().unwrap()
        };
        let first_endpoint_share = |hash_table: &EndpointHashTable| {
            let keys = (0..1000).map(|n| crate::balance::hashing::hash_key(&format!("user-{n}")));
            keys.filter(|key| hash_table.find_endpoint(*key, |_| true) == Some(0)).count()
        };
        let previous_compilation = compile(("/a+", [None, None]), None);
        let weighted = compile(("/a+", [Some(100), Some(900)]), Some(&previous_compilation));
        let changed_rules = compile(("/b+", [Some(100), Some(900)]), Some(&weighted));
        let (previous_table, weighted, changed_rules) =
            (hash_table(&previous_compilation), hash_table(&weighted), hash_table(&changed_rules));
        assert!(
            (400..600).contains(&first_endpoint_share(&previous_table)),
            "{}",
            first_endpoint_share(&previous_table)
        );
        assert!(
            (50..200).contains(&first_endpoint_share(&weighted)),
            "{}",
            first_endpoint_share(&weighted)
        );
        assert!(Arc::ptr_eq(&weighted, &changed_rules), "route rules do not change the hash table");
    }
}

#[test]
fn a_retry_policy_is_the_default_of_rules_and_is_recompiled_when_it_changes() {
    let retry = |attempts| ServiceRetry {
        policy: PolicyName::new("shop", "again").unwrap(),
        rule: RetryRule { codes: vec![503], attempts, backoff: Duration::from_millis(25) },
        response_timeout: Some(Duration::from_secs(1)),
    };
    let rule_retry = RetryRule { codes: vec![502], attempts: 7, backoff: Duration::ZERO };
    let mut with_policy = ServiceConfig::clone(&service_config("ruled", "/a+", vec![]));
    let rules = &mut with_policy.ports.get_mut(&80).unwrap().rules;
    rules.push(RouteRule {
        actions: RuleActions { retry: Some(rule_retry), ..RuleActions::default() },
        ..rules[0].clone()
    });
    let (with_policy, other) = (Arc::new(with_policy), service_config("other", "/b+", vec![]));
    let compile = |attempts: Option<u8>, previous: Option<&CompiledSnapshot>| {
        let mut snapshot = Snapshot::clone(&config_snapshot(
            Access::AllowAll,
            vec![with_policy.clone(), other.clone()],
        ));
        let retries = attempts.map(|attempts| (service_name("ruled"), retry(attempts)));
        let config = minimal_workload_config(Access::AllowAll);
        snapshot.config =
            Arc::new(WorkloadConfig { retries: retries.into_iter().collect(), ..config });
        CompiledSnapshot::build(Arc::new(snapshot), previous).unwrap()
    };
    let attempts = |snapshot: &CompiledSnapshot| {
        let routes = &snapshot.service(&service_name("ruled")).unwrap().ports[&80].routes;
        let with_policy = routes.rules().iter().map(|rule| rule.actions.as_deref());
        let actions_of_rules =
            with_policy.chain([routes.direct_actions().map(|actions| &**actions)]);
        let attempts_of_rules = actions_of_rules.map(|actions| {
            let actions = actions?;
            let attempts = actions.retry.as_ref()?.attempts;
            assert_eq!(actions.retry_policy.is_some(), actions.attempt_limit.is_some());
            Some((attempts, actions.retry_policy.is_some()))
        });
        attempts_of_rules.collect::<Vec<_>>()
    };
    let previous_compilation = compile(None, None);
    assert_eq!(attempts(&previous_compilation), [None, Some((7, false)), None]);
    let two_attempts = compile(Some(2), Some(&previous_compilation));
    assert_eq!(attempts(&two_attempts), [Some((2, true)), Some((7, false)), Some((2, true))]);
    let three_attempts = compile(Some(3), Some(&two_attempts));
    assert_eq!(attempts(&three_attempts), [Some((3, true)), Some((7, false)), Some((3, true))]);
    let unchanged = compile(Some(3), Some(&three_attempts));
    let without_policy = compile(None, Some(&unchanged));
    assert_eq!(attempts(&without_policy), attempts(&previous_compilation));
    let service_of = |snapshot: &CompiledSnapshot, name| {
        Arc::clone(snapshot.service(&service_name(name)).unwrap())
    };
    assert!(Arc::ptr_eq(&service_of(&three_attempts, "ruled"), &service_of(&unchanged, "ruled")));
    assert!(Arc::ptr_eq(
        &service_of(&previous_compilation, "other"),
        &service_of(&without_policy, "other")
    ));
}

#[test]
fn changed_access_rules_are_recompiled() {
    let permissive =
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, vec![]), None).unwrap();
    let strict = config_snapshot(Access::AllowListed(vec![]), vec![]);
    let strict = CompiledSnapshot::build(strict, Some(&permissive)).unwrap();
    assert!(!Arc::ptr_eq(&permissive.access, &strict.access));
}

#[test]
fn an_invalid_pattern_rejects_the_snapshot() {
    let services =
        vec![service_config("good", "/a+", vec![]), service_config("stock", "(", vec![])];
    let error =
        CompiledSnapshot::build(config_snapshot(Access::AllowAll, services), None).unwrap_err();
    assert!(error.to_string().contains("HTTPRoute shop/r"), "{error}");
}
