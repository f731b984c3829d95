//! Tests of forwarded policies across successive snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    Access, BalanceAlgorithm, CircuitBreaker, ClientAuthorization, Endpoint, EndpointId, HashKey,
    LoadBalancing, PortCircuitBreaker, PortConfig, PortLoadBalancing, Protocol, RequestMatch,
    RouteKind, RouteName, RouteRule, RuleActions, ServiceConfig, ServiceName, ServicePolicyKind,
    ServicePolicyName, Snapshot, TrafficPolicy, WeightedBackend, WorkloadName,
};

use crate::compiled_snapshot::tests::minimal_workload_config;
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
        backends: backends
            .iter()
            .map(|backend| WeightedBackend::new(service_name(backend), 80, 1))
            .collect(),
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::default(),
    };
    let port = PortConfig {
        name: None,
        protocol: Protocol::Http,
        has_attached_routes: !backends.is_empty(),
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
        waits_for_endpoint: false,
    }
}

fn compile_config(
    services: Vec<ServiceConfig>,
    before: Option<&CompiledSnapshot>,
) -> CompiledSnapshot {
    let services =
        services.into_iter().map(|service| (service.name.clone(), Arc::new(service))).collect();
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    let config = Arc::new(minimal_workload_config(Access::AllowAll));
    let snapshot = Arc::new(Snapshot { config, services, addresses, names });
    CompiledSnapshot::build(snapshot, before).unwrap()
}

/// Returns the names of the policies for a request to one service that is forwarded to another.
fn applied_policies(snapshot: &CompiledSnapshot, to: &str) -> String {
    let service_port = &snapshot.service(&service_name("api")).unwrap().ports[&80];
    let backend_port = &snapshot.service(&service_name(to)).unwrap().ports[&80];
    let policies = service_port.policies_to(&service_name(to), 80, backend_port);
    let names = policies.traffic_policy.into_iter().flat_map(|policy| policy.policy_names());
    names.map(|name| name.name.to_string()).collect::<Vec<_>>().join(" ")
}

fn forwarded_port<'a>(snapshot: &'a CompiledSnapshot, to: &str) -> &'a ForwardedPort {
    let service_port = &snapshot.service(&service_name("api")).unwrap().ports[&80];
    let mut ports = service_port.forwarded.as_ref().unwrap().ports().iter();
    ports.find(|port| port.service == service_name(to)).unwrap()
}

#[test]
fn policies_of_both_services_are_combined_by_kind() {
    let random = || balancing_policy("random", BalanceAlgorithm::Random);
    let two_policies = TrafficPolicy { balancing: random().balancing, ..breaker_policy("called") };
    for (service_policy, backend_policy, expected) in [
        (TrafficPolicy::default(), TrafficPolicy::default(), ""),
        (TrafficPolicy::default(), breaker_policy("own"), "own"),
        (breaker_policy("called"), TrafficPolicy::default(), "called"),
        (breaker_policy("called"), breaker_policy("own"), "own called"),
        (random(), TrafficPolicy::default(), "random"),
        (random(), balancing_policy("own", BalanceAlgorithm::RoundRobin), "own"),
        (two_policies.clone(), breaker_policy("own"), "own called random"),
    ] {
        let services = || {
            vec![
                service_config("api", service_policy.clone(), &["v1", "api", "gone"], 1),
                service_config("v1", backend_policy.clone(), &[], 1),
            ]
        };
        assert_eq!(applied_policies(&compile_config(services(), None), "v1"), expected);
    }
}

#[test]
fn policies_are_found_by_rule_and_a_route_to_itself_has_none() {
    let services = vec![
        service_config("api", breaker_policy("called"), &["gone", "api", "v1"], 1),
        service_config("v1", TrafficPolicy::default(), &[], 1),
    ];
    let snapshot = compile_config(services, None);
    let api = &snapshot.service(&service_name("api")).unwrap().ports[&80];
    let v1 = &snapshot.service(&service_name("v1")).unwrap().ports[&80];
    let has_breakers = |policies: super::EffectivePolicies<'_>| {
        let policy: &PortTrafficPolicy = policies.traffic_policy.unwrap();
        (policy.breaker.is_some(), policy.called_breaker.is_some())
    };
    assert_eq!(has_breakers(api.policies_of_rule(0, 1, api)), (true, false));
    assert_eq!(has_breakers(api.policies_of_rule(0, 2, v1)), (false, true));
    assert!(v1.own_policies().traffic_policy.is_none());
}

#[test]
fn shared_counters_survive_while_policies_are_unchanged() {
    let services = |backend_policy: &str, endpoints| {
        vec![
            service_config("api", breaker_policy("called"), &["v1", "v2"], 1),
            service_config("v1", breaker_policy(backend_policy), &[], endpoints),
            service_config("v2", TrafficPolicy::default(), &[], 1),
        ]
    };
    let first_snapshot = compile_config(services("own", 1), None);
    let grown = compile_config(services("own", 2), Some(&first_snapshot));
    let edited = compile_config(services("other", 2), Some(&grown));
    let traffic_policy =
        |snapshot: &CompiledSnapshot, to| Arc::clone(&forwarded_port(snapshot, to).traffic_policy);
    assert!(Arc::ptr_eq(&traffic_policy(&first_snapshot, "v1"), &traffic_policy(&grown, "v1")));
    assert!(!Arc::ptr_eq(&traffic_policy(&grown, "v1"), &traffic_policy(&edited, "v1")));
    assert!(Arc::ptr_eq(&traffic_policy(&first_snapshot, "v2"), &traffic_policy(&edited, "v2")));
    // All backends share the circuit breaker of the called service, and all callers share that of the backend.
    let service_breaker = |to| traffic_policy(&edited, to).called_breaker.clone().unwrap();
    assert!(Arc::ptr_eq(&service_breaker("v1"), &service_breaker("v2")));
    let backend_policy =
        edited.service(&service_name("v1")).unwrap().ports[&80].traffic_policy.clone().unwrap();
    let forwarded = traffic_policy(&edited, "v1").breaker.clone().unwrap();
    assert!(Arc::ptr_eq(&backend_policy.breaker.clone().unwrap(), &forwarded));
}

#[test]
fn the_hash_table_follows_the_endpoints_of_the_backend() {
    let maglev = || balancing_policy("keys", BalanceAlgorithm::Maglev(HashKey::Source));
    let services = |endpoints| {
        vec![
            service_config("api", maglev(), &["v1"], 1),
            service_config("v1", TrafficPolicy::default(), &[], endpoints),
        ]
    };
    let first_snapshot = compile_config(services(1), None);
    let same = compile_config(services(1), Some(&first_snapshot));
    let grown = compile_config(services(2), Some(&same));
    let hash_table =
        |snapshot: &CompiledSnapshot| forwarded_port(snapshot, "v1").hash_table.clone().unwrap();
    assert!(Arc::ptr_eq(&hash_table(&first_snapshot), &hash_table(&same)));
    let second_endpoint_share = |snapshot: &CompiledSnapshot| {
        let hash_table = hash_table(snapshot);
        let keys = (0..1000).map(|n| crate::balance::hashing::hash_key(&format!("user-{n}")));
        keys.filter(|key| hash_table.find_endpoint(*key, |_| true) == Some(1)).count()
    };
    assert_eq!(second_endpoint_share(&same), 0);
    assert!(
        (400..600).contains(&second_endpoint_share(&grown)),
        "{}",
        second_endpoint_share(&grown)
    );
}

#[test]
fn a_removed_policy_removes_its_forwarded_ports() {
    let services = |traffic_policy| {
        vec![
            service_config("api", traffic_policy, &["v1"], 1),
            service_config("v1", TrafficPolicy::default(), &[], 1),
        ]
    };
    let first_snapshot = compile_config(services(breaker_policy("called")), None);
    assert_eq!(first_snapshot.traffic_policies().count(), 2);
    let changed_snapshot =
        compile_config(services(TrafficPolicy::default()), Some(&first_snapshot));
    assert_eq!(
        (changed_snapshot.traffic_policies().count(), changed_snapshot.forwarded_ports().count()),
        (0, 0)
    );
    assert_eq!(applied_policies(&changed_snapshot, "v1"), "");
}
