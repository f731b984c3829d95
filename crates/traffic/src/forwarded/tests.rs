//! Tests of forwarded policies across successive snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    Access, BalanceAlgorithm, CircuitBreaker, ClientAuthorization, Endpoint, EndpointId, HashKey,
    LoadBalancing, PortCircuitBreaker, PortConfig, PortLoadBalancing, Protocol, RequestMatch,
    RouteKind, RouteName, RouteRule, RuleActions, ServiceConfig, ServiceName, ServicePolicyKind,
    ServicePolicyName, Snapshot, TrafficPolicy, WeightedBackend, WorkloadName,
};

use crate::compiled_snapshot::tests::workload_plan;
use crate::traffic_policy::PortTrafficPolicy;
use crate::{CompiledSnapshot, ForwardedPort};

fn service_name(name: &str) -> ServiceName {
    ServiceName::new("shop", name).unwrap()
}

fn policy_name(kind: ServicePolicyKind, name: &str) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", name).unwrap()
}

fn breaker_policy(name: &str) -> TrafficPolicy {
    let policy = policy_name(ServicePolicyKind::CircuitBreaker, name);
    let breaker = PortCircuitBreaker { policy, rule: CircuitBreaker::default() };
    TrafficPolicy { breaker: Some(breaker), ..TrafficPolicy::default() }
}

fn balancing_policy(name: &str, algorithm: BalanceAlgorithm) -> TrafficPolicy {
    let policy = policy_name(ServicePolicyKind::LoadBalancing, name);
    let rule = LoadBalancing { algorithm, slow_start: None };
    TrafficPolicy {
        balancing: Some(PortLoadBalancing { policy, rule }),
        ..TrafficPolicy::default()
    }
}

fn service_config(
    name: &str,
    traffic_policy: TrafficPolicy,
    backends: &[&str],
    endpoints: u16,
) -> ServiceConfig {
    let endpoint = |number: u16| {
        let workload = WorkloadName::new("shop", &format!("{name}-{number}")).unwrap();
        let id = EndpointId { service: service_name(name), port: 80, workload };
        let address = ([127, 0, 0, 1], number).into();
        Arc::new(Endpoint { id, address, account: None, tags: BTreeMap::new(), weight: None })
    };
    let rule = RouteRule {
        route: RouteName::new("shop", "r").unwrap(),
        matches: vec![RequestMatch::default()],
        backends: backends.iter().map(|it| WeightedBackend::new(service_name(it), 80, 1)).collect(),
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::default(),
    };
    let port = PortConfig {
        name: None,
        protocol: Protocol::Http,
        routed: !backends.is_empty(),
        rules: if backends.is_empty() { Vec::new() } else { vec![rule] },
        endpoints: (1..=endpoints).map(endpoint).collect(),
        tls_rules: Vec::new(),
        traffic_policy,
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(80, port)]);
    ServiceConfig {
        name: service_name(name),
        client_authorization: ClientAuthorization::Allowed,
        ports,
        awaited: false,
    }
}

fn compile_config(
    views: Vec<ServiceConfig>,
    before: Option<&CompiledSnapshot>,
) -> CompiledSnapshot {
    let services = views.into_iter().map(|view| (view.name.clone(), Arc::new(view))).collect();
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    let plan = Arc::new(workload_plan(Access::AllowAll));
    let snapshot = Arc::new(Snapshot { config: plan, services, addresses, names });
    CompiledSnapshot::build(snapshot, before).unwrap()
}

/// The names of the policies for a request to one service that is forwarded to another.
fn applied_policies(plans: &CompiledSnapshot, to: &str) -> String {
    let called = &plans.service(&service_name("api")).unwrap().ports[&80];
    let behind = &plans.service(&service_name(to)).unwrap().ports[&80];
    let (traffic_policy, _) = called.policies_to(&service_name(to), 80, behind);
    let names = traffic_policy.into_iter().flat_map(|it| it.policy_names());
    names.map(|it| it.name.to_string()).collect::<Vec<_>>().join(" ")
}

fn forwarded_port<'a>(plans: &'a CompiledSnapshot, to: &str) -> &'a ForwardedPort {
    let called = &plans.service(&service_name("api")).unwrap().ports[&80];
    let mut ports = called.forwarded.as_ref().unwrap().ports().iter();
    ports.find(|it| it.service == service_name(to)).unwrap()
}

#[test]
fn policies_are_combined_by_kind() {
    let random = || balancing_policy("random", BalanceAlgorithm::Random);
    let both = TrafficPolicy { balancing: random().balancing, ..breaker_policy("called") };
    for (called, own, expected) in [
        (TrafficPolicy::default(), TrafficPolicy::default(), ""),
        (TrafficPolicy::default(), breaker_policy("own"), "own"),
        (breaker_policy("called"), TrafficPolicy::default(), "called"),
        (breaker_policy("called"), breaker_policy("own"), "own called"),
        (random(), TrafficPolicy::default(), "random"),
        (random(), balancing_policy("own", BalanceAlgorithm::RoundRobin), "own"),
        (both.clone(), breaker_policy("own"), "own called random"),
    ] {
        let views = || {
            vec![
                service_config("api", called.clone(), &["v1", "api", "gone"], 1),
                service_config("v1", own.clone(), &[], 1),
            ]
        };
        assert_eq!(applied_policies(&compile_config(views(), None), "v1"), expected);
    }
}

#[test]
fn a_rule_is_looked_up_by_its_place_and_leads_back_without_counting_twice() {
    let views = vec![
        service_config("api", breaker_policy("called"), &["gone", "api", "v1"], 1),
        service_config("v1", TrafficPolicy::default(), &[], 1),
    ];
    let plans = compile_config(views, None);
    let api = &plans.service(&service_name("api")).unwrap().ports[&80];
    let v1 = &plans.service(&service_name("v1")).unwrap().ports[&80];
    let breakers = |(traffic_policy, _): super::EffectivePolicies<'_>| {
        let it: &PortTrafficPolicy = traffic_policy.unwrap();
        (it.breaker.is_some(), it.called.is_some())
    };
    assert_eq!(breakers(api.policies_of_rule(0, 1, api)), (true, false));
    assert_eq!(breakers(api.policies_of_rule(0, 2, v1)), (false, true));
    assert!(v1.own_policies().0.is_none());
}

#[test]
fn what_threads_count_is_kept_while_policies_stay_and_is_one_for_all_ways() {
    let views = |own: &str, endpoints| {
        vec![
            service_config("api", breaker_policy("called"), &["v1", "v2"], 1),
            service_config("v1", breaker_policy(own), &[], endpoints),
            service_config("v2", TrafficPolicy::default(), &[], 1),
        ]
    };
    let first = compile_config(views("own", 1), None);
    let grown = compile_config(views("own", 2), Some(&first));
    let edited = compile_config(views("other", 2), Some(&grown));
    let traffic_policy =
        |plans: &CompiledSnapshot, to| Arc::clone(&forwarded_port(plans, to).traffic_policy);
    assert!(Arc::ptr_eq(&traffic_policy(&first, "v1"), &traffic_policy(&grown, "v1")));
    assert!(!Arc::ptr_eq(&traffic_policy(&grown, "v1"), &traffic_policy(&edited, "v1")));
    assert!(Arc::ptr_eq(&traffic_policy(&first, "v2"), &traffic_policy(&edited, "v2")));
    // One breaker of the called service for all backends, and one of the backend for all callers.
    let called = |to| traffic_policy(&edited, to).called.clone().unwrap();
    assert!(Arc::ptr_eq(&called("v1"), &called("v2")));
    let own =
        edited.service(&service_name("v1")).unwrap().ports[&80].traffic_policy.clone().unwrap();
    let forwarded = traffic_policy(&edited, "v1").breaker.clone().unwrap();
    assert!(Arc::ptr_eq(&own.breaker.clone().unwrap(), &forwarded));
}

#[test]
fn places_of_keys_follow_the_endpoints_of_the_backend() {
    let maglev = || balancing_policy("keys", BalanceAlgorithm::Maglev(HashKey::Source));
    let views = |endpoints| {
        vec![
            service_config("api", maglev(), &["v1"], 1),
            service_config("v1", TrafficPolicy::default(), &[], endpoints),
        ]
    };
    let first = compile_config(views(1), None);
    let same = compile_config(views(1), Some(&first));
    let grown = compile_config(views(2), Some(&same));
    let places = |plans: &CompiledSnapshot| forwarded_port(plans, "v1").hash_table.clone().unwrap();
    assert!(Arc::ptr_eq(&places(&first), &places(&same)));
    let taken = |plans: &CompiledSnapshot| {
        let places = places(plans);
        let keys = (0..1000).map(|n| crate::balance::hashing::hash_key(&format!("user-{n}")));
        keys.filter(|key| places.find_endpoint(*key, |_| true) == Some(1)).count()
    };
    assert_eq!(taken(&same), 0);
    assert!((400..600).contains(&taken(&grown)), "{}", taken(&grown));
}

#[test]
fn a_policy_that_ends_takes_its_ways_with_it() {
    let views = |traffic_policy| {
        vec![
            service_config("api", traffic_policy, &["v1"], 1),
            service_config("v1", TrafficPolicy::default(), &[], 1),
        ]
    };
    let first = compile_config(views(breaker_policy("called")), None);
    assert_eq!(first.traffic_policies().count(), 2);
    let after = compile_config(views(TrafficPolicy::default()), Some(&first));
    assert_eq!((after.traffic_policies().count(), after.forwarded_ports().count()), (0, 0));
    assert_eq!(applied_policies(&after, "v1"), "");
}
