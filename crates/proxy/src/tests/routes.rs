//! Effects of routes on clients: no match, invalid backends, timeouts, client authorization, discovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    ClientAuthorization, PathMatch, PortConfig, Protocol, RequestMatch, RouteName, RouteRule,
    ServiceConfig, ServiceName, WeightedBackend,
};

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, meshed_endpoint, run, service_config,
    test_service, wait_until,
};

pub(crate) fn path_rule(path: &str, backends: &[(&str, u32)]) -> RouteRule {
    let backend = |(name, weight): &(&str, u32)| {
        WeightedBackend::new(ServiceName::new("bookinfo", name).unwrap(), PORT, *weight)
    };
    RouteRule {
        route: RouteName::new("bookinfo", "ratings-route").unwrap(),
        matches: vec![RequestMatch {
            path: PathMatch::Prefix(path.to_owned()),
            ..RequestMatch::default()
        }],
        backends: backends.iter().map(backend).collect(),
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    }
}

/// Returns the service with these routes, and the backend `ratings-v2` at the mesh's server.
pub(crate) fn routed_services(mesh: &Mesh, rules: Vec<RouteRule>) -> Vec<ServiceConfig> {
    let name = ServiceName::new("bookinfo", "ratings-v2").unwrap();
    let backend =
        ServiceConfig { name, ..service_config(mesh.setup.protocol, &[mesh.server_endpoint()]) };
    let port = PortConfig {
        name: None,
        protocol: mesh.setup.protocol,
        has_attached_routes: true,
        rules,
        endpoints: vec![Arc::new(meshed_endpoint(
            "nobody",
            super::fixture::closed_port(),
            "ratings",
        ))],
        tls_rules: Vec::new(),
        traffic_policy: leno_model::TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(PORT, port)]);
    vec![
        ServiceConfig {
            name: test_service(),
            client_authorization: ClientAuthorization::Allowed,
            ports,
            waits_for_endpoint: false,
        },
        backend,
    ]
}

#[test]
fn a_route_selects_a_backend_or_gives_the_reason() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for (rules, verdict) in [
            (vec![path_rule("/ratings", &[("ratings-v2", 1)])], (200, None)),
            (vec![path_rule("/other", &[("ratings-v2", 1)])], (404, Some("no-route"))),
            (vec![], (404, Some("no-route"))),
            (vec![path_rule("/ratings", &[])], (500, Some("invalid-backend"))),
            (vec![path_rule("/ratings", &[("ratings-v2", 0)])], (500, Some("invalid-backend"))),
            (vec![path_rule("/ratings", &[("ratings-v9", 1)])], (500, Some("invalid-backend"))),
        ] {
            mesh.set_client_services(routed_services(&mesh, rules.clone()));
            assert_eq!(client.send_request(GET).await.verdict(), verdict, "{rules:?}");
        }
        assert_eq!(app.received_requests().len(), 1);
        let series = mesh.client.series_summaries();
        let routed = series.iter().find(|series| !series.labels.route.is_empty()).unwrap();
        assert_eq!(routed.labels.route, "bookinfo/ratings-route");
    });
}

#[test]
fn a_route_may_set_a_request_timeout() {
    run(async {
        let app = Application::start(|mut client| async move {
            while let Some(request) = client.read_head().await {
                if request.head.contains("/half") {
                    client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
                }
                // The application never sends a complete response.
            }
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let limited = RouteRule {
            request_timeout: Some(Duration::from_secs(1)),
            ..path_rule("/", &[("ratings-v2", 1)])
        };
        mesh.set_client_services(routed_services(&mesh, vec![limited]));
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            assert_eq!(client.send_request(GET).await.verdict(), (504, Some("request-timeout")));
        }
        client.send_bytes("GET /half HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(client.read_rest().await.1, End::Reset);
        assert_eq!(mesh.client.failure_counts(), [("request-timeout", 3)].into());
        wait_until(|| mesh.server.ended_count() == 3).await;
        // The client still waits: its sidecar abandoned the attempts.
        assert_eq!(mesh.server.failure_counts(), [("attempt-abandoned", 3)].into());
    });
}

#[test]
fn a_service_that_policies_deny_is_not_called() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let denied_service = ServiceConfig {
            client_authorization: ClientAuthorization::Denied,
            ports: BTreeMap::new(),
            ..service_config(Protocol::Http, &[])
        };
        mesh.set_client_services(vec![denied_service]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.verdict(), (403, Some("denied-outbound")));
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn an_undiscovered_service_is_503_until_its_configuration_arrives() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_client_services(Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("discovery-timeout")));
        client.send_bytes(GET).await;
        tokio::task::yield_now().await;
        mesh.route_to(&[mesh.server_endpoint()]);
        assert_eq!(client.read_response().await.status, 200);
    });
}
