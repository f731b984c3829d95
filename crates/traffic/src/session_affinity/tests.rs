//! Tests of session affinity, independent of weights.

use std::collections::BTreeMap;

use leno_model::{
    Access, ClientAuthorization, PersistenceType, PortConfig, Protocol, RequestMatch, RouteName,
    RouteRule, RuleActions, ServiceAccount, ServiceConfig, ServiceName, SessionPersistence,
    Snapshot, TrafficPolicy, WeightedBackend, WorkloadName,
};

use super::*;
use crate::compiled_snapshot::tests::workload_plan;

fn service_name(name: &str) -> ServiceName {
    ServiceName::new("shop", name).unwrap()
}

fn test_endpoint(of: &str, number: usize) -> Arc<Endpoint> {
    let workload = WorkloadName::new("shop", &format!("{of}-{number}")).unwrap();
    Arc::new(Endpoint {
        id: EndpointId { service: service_name(of), port: 80, workload },
        address: ([127, 0, 0, 1], 80).into(),
        account: ServiceAccount::new("shop", of).ok(),
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
        routed: !rules.is_empty(),
        rules,
        endpoints: (0..endpoints).map(|number| test_endpoint(name, number)).collect(),
        tls_rules: Vec::new(),
        traffic_policy: TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(80, port)]);
    let view = ServiceConfig {
        name: service_name(name),
        client_authorization: ClientAuthorization::Allowed,
        ports,
        awaited: false,
    };
    (service_name(name), Arc::new(view))
}

/// A service with a rule for two others, with these weights and this number of endpoints each.
fn compile_config(weights: [u32; 2], ungranted_weight: u32, endpoints: usize) -> CompiledSnapshot {
    let persistence = SessionPersistence {
        name: Some("x-cart".into()),
        kind: PersistenceType::Header,
        absolute: None,
        idle: None,
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
    let views = [
        service_config("cart", vec![rule], 0),
        service_config("blue", vec![], endpoints),
        service_config("green", vec![], endpoints),
    ];
    let plan = Arc::new(workload_plan(Access::AllowAll));
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    let snapshot =
        Snapshot { config: plan, services: views.into_iter().collect(), addresses, names };
    CompiledSnapshot::build(Arc::new(snapshot), None).unwrap()
}

/// The backend and the session of a request with this value, by this draw.
fn choose_backend(
    plans: &CompiledSnapshot,
    value: Option<&str>,
    draw: u64,
) -> (Option<String>, Option<Box<SessionAffinity>>) {
    ask_where(|_| true, plans, value, draw)
}

/// The same with only some endpoints healthy.
fn ask_where(
    is_well: impl Fn(&Endpoint) -> bool,
    plans: &CompiledSnapshot,
    value: Option<&str>,
    draw: u64,
) -> (Option<String>, Option<Box<SessionAffinity>>) {
    let fields: Vec<(String, String)> =
        value.into_iter().map(|value| ("x-cart".to_owned(), value.to_owned())).collect();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "cart", fields: &fields };
    let port = &plans.service(&service_name("cart")).unwrap().ports[&80];
    let mut choice = port.routes.choose_backend(&request, draw);
    let is_well = |_: &CompiledPort, endpoint: &Arc<Endpoint>| is_well(endpoint);
    let stay = SessionAffinity::for_request(&mut choice, plans, is_well, &request, || {
        Duration::from_secs(1)
    });
    let backend = match choice {
        RouteChoice::To { backend, .. } => Some(backend.service.name.to_string()),
        _ => None,
    };
    (backend, stay)
}

fn cookie_value(stay: &SessionAffinity, id: &EndpointId) -> String {
    stay.response_field(id, Duration::from_secs(1), false).unwrap().1
}

fn service_endpoints(plans: &CompiledSnapshot, name: &str) -> Arc<[Arc<Endpoint>]> {
    plans.service(&service_name(name)).unwrap().ports[&80].endpoints.clone()
}

#[test]
fn a_request_goes_to_the_backend_and_endpoint_that_its_value_names() {
    let both = compile_config([1, 1], 0, 5);
    for name in ["blue", "green"] {
        for endpoint in &*service_endpoints(&both, name) {
            let value = cookie_value(&choose_backend(&both, None, 0).1.unwrap(), &endpoint.id);
            // With any current weights, also if a share of requests is answered with 500.
            for plans in [
                compile_config([1, 1], 0, 5),
                compile_config([0, 0], 0, 5),
                compile_config([1, 0], 1, 5),
                compile_config([0, 1], 9, 5),
            ] {
                for draw in 0..10 {
                    let (backend, stay) = choose_backend(&plans, Some(&value), draw);
                    assert_eq!(backend.as_deref(), Some(name));
                    let among = service_endpoints(&plans, name);
                    let kept = stay.as_ref().unwrap().find_endpoint(&among).unwrap();
                    assert_eq!(kept.id, endpoint.id);
                    // The value is unchanged.
                    assert_eq!(cookie_value(&stay.unwrap(), &endpoint.id), value);
                }
            }
        }
    }
}

#[test]
fn an_endpoint_that_is_not_well_keeps_nobody_at_its_backend() {
    let plans = compile_config([1, 0], 0, 2);
    let ill = test_endpoint("green", 0);
    let value = cookie_value(&choose_backend(&plans, None, 0).1.unwrap(), &ill.id);
    assert_eq!(choose_backend(&plans, Some(&value), 0).0.as_deref(), Some("green"));
    let (backend, stay) = ask_where(|it| it.id != ill.id, &plans, Some(&value), 0);
    assert_eq!((backend.as_deref(), stay.unwrap().session_endpoint()), (Some("blue"), None));
}

#[test]
fn without_a_value_that_counts_the_weights_decide() {
    let plans = compile_config([3, 1], 0, 2);
    let gone =
        cookie_value(&choose_backend(&plans, None, 0).1.unwrap(), &test_endpoint("blue", 7).id);
    let other =
        cookie_value(&choose_backend(&plans, None, 0).1.unwrap(), &test_endpoint("cart", 0).id);
    for value in [None, Some("x"), Some("0000000000000000"), Some(&*gone), Some(&*other)] {
        let blue = (0..400).filter(|draw| {
            let (backend, stay) = choose_backend(&plans, value, *draw);
            let among = service_endpoints(&plans, backend.as_ref().unwrap());
            assert!(stay.unwrap().find_endpoint(&among).is_none());
            backend.as_deref() == Some("blue")
        });
        assert_eq!(blue.count(), 300, "{value:?}");
    }
}

#[test]
fn an_endpoint_that_may_not_take_a_request_is_not_kept_to() {
    let plans = compile_config([1, 1], 0, 3);
    let value =
        cookie_value(&choose_backend(&plans, None, 0).1.unwrap(), &test_endpoint("blue", 1).id);
    let (_, stay) = choose_backend(&plans, Some(&value), 0);
    let stay = stay.unwrap();
    let all = service_endpoints(&plans, "blue");
    assert!(stay.find_endpoint(&all).is_some());
    assert!(stay.find_endpoint(&all[..1]).is_none());
    assert!(stay.find_endpoint(&[]).is_none());
}

#[test]
fn what_the_application_says_under_the_name_of_the_header_goes_no_further() {
    let plans = compile_config([1, 1], 0, 1);
    let rule = &plans.service(&service_name("cart")).unwrap().ports[&80].routes.rules()[0];
    let actions = rule.actions_at(0).unwrap();
    assert_eq!(*actions.response.remove, ["x-cart".into()]);
}
