//! Tests of session affinity, independent of weights.

use std::collections::BTreeMap;

use leno_model::{
    Access, ClientAuthorization, PersistenceType, PortConfig, Protocol, RequestMatch, RouteName,
    RouteRule, RuleActions, ServiceAccount, ServiceConfig, ServiceName, SessionPersistence,
    Snapshot, TrafficPolicy, WeightedBackend, WorkloadName,
};

use super::*;
use crate::compiled_snapshot::tests::minimal_workload_config;

fn service_name(name: &str) -> ServiceName {
    ServiceName::new("shop", name).unwrap()
}

fn test_endpoint(service: &str, number: usize) -> Arc<Endpoint> {
    let workload = WorkloadName::new("shop", &format!("{service}-{number}")).unwrap();
    Arc::new(Endpoint {
        id: EndpointId { service: service_name(service), port: 80, workload },
        address: ([127, 0, 0, 1], 80).into(),
        account: ServiceAccount::new("shop", service).ok(),
        tags: BTreeMap::new(),
        weight: None,
    })
}

fn service_config(
    name: &str,
    rules: Vec<RouteRule>,
    endpoints: usize,
) -> (ServiceName, Arc<ServiceConfig>) {
    let port = PortConfig {
        name: None,
        protocol: Protocol::Http,
        has_attached_routes: !rules.is_empty(),
        rules,
        endpoints: (0..endpoints).map(|number| test_endpoint(name, number)).collect(),
        tls_rules: Vec::new(),
        traffic_policy: TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(80, port)]);
    let config = ServiceConfig {
        name: service_name(name),
        client_authorization: ClientAuthorization::Allowed,
        ports,
        waits_for_endpoint: false,
    };
    (service_name(name), Arc::new(config))
}

/// Returns a service with a rule for two others, with these weights and this number of endpoints each.
fn compile_config(weights: [u32; 2], ungranted_weight: u32, endpoints: usize) -> CompiledSnapshot {
    let persistence = SessionPersistence {
        name: Some("x-cart".into()),
        kind: PersistenceType::Header,
        absolute_timeout: None,
        idle_timeout: None,
        path: None,
    };
    let backends = ["blue", "green"].into_iter().zip(weights);
    let rule = RouteRule {
        route: RouteName::new("shop", "cart").unwrap(),
        matches: vec![RequestMatch::default()],
        backends: backends
            .map(|(name, weight)| WeightedBackend::new(service_name(name), 80, weight))
            .collect(),
        request_timeout: None,
        actions: RuleActions {
            persistence: Some(persistence),
            ungranted_weight,
            ..RuleActions::default()
        },
        kind: leno_model::RouteKind::Http,
    };
    let services = [
        service_config("cart", vec![rule], 0),
        service_config("blue", vec![], endpoints),
        service_config("green", vec![], endpoints),
    ];
    let config = Arc::new(minimal_workload_config(Access::AllowAll));
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    let snapshot = Snapshot { config, services: services.into_iter().collect(), addresses, names };
    CompiledSnapshot::build(Arc::new(snapshot), None).unwrap()
}

/// Returns the backend and the session of a request with this value, for this random number.
fn choose_backend(
    snapshot: &CompiledSnapshot,
    value: Option<&str>,
    random: u64,
) -> (Option<String>, Option<Box<SessionAffinity>>) {
    choose_with_health(|_| true, snapshot, value, random)
}

/// Returns the backend and the session of a request if only some endpoints are healthy.
fn choose_with_health(
    is_healthy: impl Fn(&Endpoint) -> bool,
    snapshot: &CompiledSnapshot,
    value: Option<&str>,
    random: u64,
) -> (Option<String>, Option<Box<SessionAffinity>>) {
    let fields: Vec<(String, String)> =
        value.into_iter().map(|value| ("x-cart".to_owned(), value.to_owned())).collect();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "cart", fields: &fields };
    let port = &snapshot.service(&service_name("cart")).unwrap().ports[&80];
    let mut choice = port.routes.choose_backend(&request, random);
    let is_healthy = |_: &CompiledPort, endpoint: &Arc<Endpoint>| is_healthy(endpoint);
    let session = SessionAffinity::for_request(&mut choice, snapshot, is_healthy, &request, || {
        Duration::from_secs(1)
    });
    let backend = match choice {
        RouteChoice::To { backend, .. } => Some(backend.service.name.to_string()),
        _ => None,
    };
    (backend, session)
}

fn cookie_value(session: &SessionAffinity, id: &EndpointId) -> String {
    session.response_field(id, Duration::from_secs(1), false).unwrap().1
}

fn service_endpoints(snapshot: &CompiledSnapshot, name: &str) -> Arc<[Arc<Endpoint>]> {
    snapshot.service(&service_name(name)).unwrap().ports[&80].endpoints.clone()
}

#[test]
fn a_value_selects_its_backend_and_endpoint() {
    let two_backends = compile_config([1, 1], 0, 5);
    for name in ["blue", "green"] {
        for endpoint in &*service_endpoints(&two_backends, name) {
            let value =
                cookie_value(&choose_backend(&two_backends, None, 0).1.unwrap(), &endpoint.id);
            // With any current weights, also if a share of requests gets a 500.
            for snapshot in [
                compile_config([1, 1], 0, 5),
                compile_config([0, 0], 0, 5),
                compile_config([1, 0], 1, 5),
                compile_config([0, 1], 9, 5),
            ] {
                for random in 0..10 {
                    let (backend, session) = choose_backend(&snapshot, Some(&value), random);
                    assert_eq!(backend.as_deref(), Some(name));
                    let endpoints = service_endpoints(&snapshot, name);
                    let selected_endpoint =
                        session.as_ref().unwrap().find_endpoint(&endpoints).unwrap();
                    assert_eq!(selected_endpoint.id, endpoint.id);
                    // The value is unchanged.
                    assert_eq!(cookie_value(&session.unwrap(), &endpoint.id), value);
                }
            }
        }
    }
}

#[test]
fn an_unhealthy_endpoint_ends_its_sessions() {
    let snapshot = compile_config([1, 0], 0, 2);
    let unhealthy = test_endpoint("green", 0);
    let value = cookie_value(&choose_backend(&snapshot, None, 0).1.unwrap(), &unhealthy.id);
    assert_eq!(choose_backend(&snapshot, Some(&value), 0).0.as_deref(), Some("green"));
    let (backend, session) =
        choose_with_health(|endpoint| endpoint.id != unhealthy.id, &snapshot, Some(&value), 0);
    assert_eq!((backend.as_deref(), session.unwrap().session_endpoint()), (Some("blue"), None));
}

#[test]
fn without_a_valid_value_the_backend_is_chosen_by_weight() {
    let snapshot = compile_config([3, 1], 0, 2);
    let removed_endpoint_value =
        cookie_value(&choose_backend(&snapshot, None, 0).1.unwrap(), &test_endpoint("blue", 7).id);
    let other_service_value =
        cookie_value(&choose_backend(&snapshot, None, 0).1.unwrap(), &test_endpoint("cart", 0).id);
    for value in [
        None,
        Some("x"),
        Some("0000000000000000"),
        Some(&*removed_endpoint_value),
        Some(&*other_service_value),
    ] {
        let blue_requests = (0..400).filter(|random| {
            let (backend, session) = choose_backend(&snapshot, value, *random);
            let endpoints = service_endpoints(&snapshot, backend.as_ref().unwrap());
            assert!(session.unwrap().find_endpoint(&endpoints).is_none());
            backend.as_deref() == Some("blue")
        });
        assert_eq!(blue_requests.count(), 300, "{value:?}");
    }
}

#[test]
fn an_ineligible_endpoint_is_not_selected() {
    let snapshot = compile_config([1, 1], 0, 3);
    let value =
        cookie_value(&choose_backend(&snapshot, None, 0).1.unwrap(), &test_endpoint("blue", 1).id);
    let (_, session) = choose_backend(&snapshot, Some(&value), 0);
    let session = session.unwrap();
    let endpoints = service_endpoints(&snapshot, "blue");
    assert!(session.find_endpoint(&endpoints).is_some());
    assert!(session.find_endpoint(&endpoints[..1]).is_none());
    assert!(session.find_endpoint(&[]).is_none());
}

#[test]
fn a_persistence_header_of_the_application_is_removed() {
    let snapshot = compile_config([1, 1], 0, 1);
    let rule = &snapshot.service(&service_name("cart")).unwrap().ports[&80].routes.rules()[0];
    let actions = rule.actions_at(0).unwrap();
    assert_eq!(*actions.response.remove, ["x-cart".into()]);
}
