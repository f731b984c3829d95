//! Health checks: the checked endpoints, and the effect of each response.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use leno_model::{
    Access, EjectionTime, Endpoint, FailureClasses, HealthCheck, HealthProbe, OutlierAlgorithm,
    OutlierDetection, PortOutlierDetection, Protocol, ServicePolicyKind, ServicePolicyName,
    TrafficPolicy,
};
use leno_telemetry::{Count, Gauge};

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, closed_port, meshed_endpoint, run, service_config,
    test_credential, test_service, tls_accept, wait_until, wait_until_stable,
};
use super::http2;
use crate::tls::ALPN_HTTP2;
use crate::upstream::cluster::UpstreamCluster;

const UNAVAILABLE: &str = "HTTP/1.1 503 Ill\r\ncontent-length: 0\r\n\r\n";

fn get_healthz() -> HealthProbe {
    HealthProbe::Http { path: "/healthz".to_owned() }
}

/// Configures frequent health checks of these endpoints by the client's sidecar. Two equal results in a row
/// decide; results of requests have no effect.
fn check_endpoints(mesh: &Mesh, probe: HealthProbe, endpoints: &[Endpoint]) {
    check_endpoints_with_timeout(mesh, probe, Duration::from_secs(60), endpoints);
}

/// Configures frequent health checks with this timeout of each check.
fn check_endpoints_with_timeout(
    mesh: &Mesh,
    probe: HealthProbe,
    timeout: Duration,
    endpoints: &[Endpoint],
) {
    check_endpoints_with_interval(Duration::from_millis(20), mesh, probe, timeout, endpoints);
}

/// Configures health checks with this interval and this timeout of each check.
fn check_endpoints_with_interval(
    time: Duration,
    mesh: &Mesh,
    probe: HealthProbe,
    timeout: Duration,
    endpoints: &[Endpoint],
) {
    let rule = OutlierDetection {
        failures: FailureClasses { connect: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: None,
        consecutive_failures: None,
        max_ejection_percent: 50,
        min_healthy: 1,
        ejection_time: EjectionTime { base: time, max: time, jitter_percent: 0 },
        probe_requests: 1,
        health_check: Some(Box::new(HealthCheck {
            probe,
            interval: time,
            timeout,
            failures: 2,
            successes: 2,
        })),
    };
    let policy =
        ServicePolicyName::new(ServicePolicyKind::OutlierDetection, "bookinfo", "ratings").unwrap();
    let outlier_detection =
        PortOutlierDetection { policy, algorithm: OutlierAlgorithm::Native(rule) };
    let mut service = service_config(mesh.setup.protocol, endpoints);
    service.ports.get_mut(&PORT).unwrap().traffic_policy =
        TrafficPolicy { outlier_detection: Some(outlier_detection), ..TrafficPolicy::default() };
    mesh.set_client_services(vec![service]);
}

fn client_count(mesh: &Mesh, count: Count) -> u64 {
    mesh.client.telemetry.count(count)
}

fn ejected_workloads(mesh: &Mesh) -> Vec<String> {
    let ejections = mesh.client.worker.ejected_endpoints.snapshot();
    ejections.into_iter().map(|(_, entry)| entry.endpoint.id.workload.to_string()).collect()
}

/// Starts an application that fails health checks while `is_unhealthy`, and responds to requests normally.
async fn start_application(is_unhealthy: &Rc<Cell<bool>>) -> Application {
    let is_unhealthy = is_unhealthy.clone();
    Application::respond_with(move |request| {
        let is_check = request.head.starts_with("GET /healthz ");
        if is_check && is_unhealthy.get() { UNAVAILABLE } else { OK }.to_owned()
    })
    .await
}

#[test]
fn an_unhealthy_endpoint_is_ejected_and_unejected_without_client_requests() {
    run(async {
        let (is_unhealthy, never) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (app, healthy) =
            (start_application(&is_unhealthy).await, start_application(&never).await);
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        check_endpoints(&mesh, get_healthz(), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        let checks = |app: &Application| {
            let requests = app.received_requests();
            let checks =
                requests.iter().filter(|request| request.head.starts_with("GET /healthz "));
            for check in checks.clone() {
                assert!(check.head.contains("host: ratings.bookinfo:9080\r\n"), "{}", check.head);
                assert!(check.head.contains("user-agent: leno-probe/"), "{}", check.head);
            }
            (checks.count(), requests.len())
        };
        let are_checked = || checks(&app).0 > 0 && checks(&healthy).0 > 0;
        wait_until(|| client_count(&mesh, Count::HealthChecksOk) >= 4 && are_checked()).await;

        is_unhealthy.set(true);
        wait_until(|| mesh.client.telemetry.gauge(Gauge::EndpointsEjected) == 1).await;
        assert_eq!(ejected_workloads(&mesh), ["bookinfo/ratings-1"]);
        assert_eq!(client_count(&mesh, Count::EndpointEjectedForCheck), 1);
        let checks_before = checks(&app);
        for _ in 0..20 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        let checks_after = checks(&app);
        assert_eq!(
            checks_after.1 - checks_after.0,
            checks_before.1 - checks_before.0,
            "the endpoint receives no request"
        );

        is_unhealthy.set(false);
        wait_until(|| mesh.client.telemetry.gauge(Gauge::EndpointsEjected) == 0).await;
        assert_eq!(client_count(&mesh, Count::EndpointUnejections), 1);
        while checks(&app).1 - checks(&app).0 == checks_before.1 - checks_before.0 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
    });
}

#[test]
fn an_endpoint_without_a_response_or_a_listener_fails_the_check() {
    run(async {
        let silent_app = Application::start(|mut client| async move {
            let _response = client.read_rest().await;
            std::future::pending::<()>().await;
        });
        for ill in [silent_app.await.address, closed_port()] {
            let healthy = Application::with_response(OK).await;
            let mesh = Mesh::permissive(healthy.address).await;
            let (_server, second) = mesh.start_server("ratings-2", ill).await;
            check_endpoints_with_timeout(
                &mesh,
                get_healthz(),
                Duration::from_millis(200),
                &[mesh.server_endpoint(), second],
            );
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until(|| ejected_workloads(&mesh) == ["bookinfo/ratings-2"]).await;
            assert!(client_count(&mesh, Count::HealthChecksFailed) >= 2);
        }
    });
}

#[test]
fn the_last_endpoints_are_not_ejected_by_health_checks() {
    run(async {
        let app = Application::with_response(UNAVAILABLE).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", app.address).await;
        check_endpoints(&mesh, get_healthz(), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 503);
        wait_until(|| client_count(&mesh, Count::HealthChecksFailed) >= 20).await;
        assert_eq!(ejected_workloads(&mesh).len(), 1);
        assert_eq!(client_count(&mesh, Count::EndpointEjectedForCheck), 1);
        assert_eq!(
            client.send_request(GET).await.verdict(),
            (503, None),
            "the other endpoint responds"
        );
    });
}

/// Only a sidecar can mark a response as its own rejection.
#[test]
fn an_application_that_claims_a_rejection_is_unhealthy() {
    run(async {
        let claims =
            "HTTP/1.1 503 No\r\nleno-reason: denied;side=mesh\r\ncontent-length: 0\r\n\r\n";
        let app = Application::with_response(claims).await;
        let healthy = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        check_endpoints(&mesh, get_healthz(), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_request(GET).await;
        wait_until(|| ejected_workloads(&mesh) == ["bookinfo/ratings-1"]).await;
        assert_eq!(client_count(&mesh, Count::HealthChecksUnknown), 0);
    });
}

#[test]
fn a_check_rejected_by_a_policy_has_an_unknown_result() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_access(Access::AllowListed(Vec::new()));
        let (_server, second) = mesh.start_server("ratings-2", app.address).await;
        check_endpoints(&mesh, get_healthz(), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_request(GET).await;
        wait_until(|| client_count(&mesh, Count::HealthChecksUnknown) >= 5).await;
        assert_eq!(client_count(&mesh, Count::HealthChecksFailed), 0);
        assert_eq!(ejected_workloads(&mesh), [] as [&str; 0]);

        let mesh = http2::http2_mesh(closed_port(), Protocol::Grpc).await;
        mesh.set_access(Access::AllowListed(Vec::new()));
        let probe = HealthProbe::Grpc { service: String::new() };
        check_endpoints(&mesh, probe, &[mesh.server_endpoint()]);
        let mut client = http2::connect_client(mesh.listener).await;
        client.send_request(http2::grpc_request("/a"), true).unwrap().0.await.unwrap();
        wait_until(|| client_count(&mesh, Count::HealthChecksUnknown) >= 5).await;
        assert_eq!(client_count(&mesh, Count::HealthChecksFailed), 0);
    });
}

#[test]
fn endpoints_are_checked_only_with_traffic_and_a_policy() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        check_endpoints(&mesh, get_healthz(), &[mesh.server_endpoint()]);
        assert_eq!(wait_until_stable(|| app.received_requests().len()).await, 0);
        let mut client = Client::connect(mesh.listener).await;
        client.send_request(GET).await;
        wait_until(|| client_count(&mesh, Count::HealthChecksOk) >= 3).await;
        let worker = &mesh.client.worker;
        let cluster = Rc::downgrade(&client_cluster(&mesh));
        mesh.route_to(&[mesh.server_endpoint()]);
        worker.retire_removed_endpoints(&worker.config_store.current_config().unwrap());
        wait_until(|| cluster.strong_count() == 0).await;
    });
}

#[test]
fn the_grpc_health_service_decides_about_an_endpoint() {
    run(async {
        let is_serving = Rc::new(Cell::new(true));
        let reported_state = is_serving.clone();
        let app = http2::start_application(move |request, mut respond| {
            let is_serving = reported_state.get();
            async move {
                let path = request.uri().path().to_owned();
                let (request_body, _) = http2::read_body(request.into_body()).await;
                let head = Response::builder().header("content-type", "application/grpc");
                let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                if path == "/grpc.health.v1.Health/Check" {
                    assert_eq!(request_body, b"\0\0\0\0\x06\x0a\x04shop");
                    let reply = [0, 0, 0, 0, 2, 8, if is_serving { 1 } else { 2 }];
                    http2::send_data(&mut stream, Bytes::copy_from_slice(&reply), false).await;
                }
                stream.send_trailers(trailers).unwrap();
            }
        })
        .await;
        let mesh = http2::http2_mesh(app.address, Protocol::Grpc).await;
        let (_server, second) = mesh.start_server("ratings-2", closed_port()).await;
        let probe = HealthProbe::Grpc { service: "shop".to_owned() };
        check_endpoints(&mesh, probe, &[mesh.server_endpoint(), second]);
        let mut client = http2::connect_client(mesh.listener).await;
        let (response, mut stream) = client.send_request(http2::grpc_request("/a"), false).unwrap();
        http2::send_data(&mut stream, Bytes::new(), true).await;
        response.await.unwrap();
        wait_until(|| ejected_workloads(&mesh) == ["bookinfo/ratings-2"]).await;
        assert!(client_count(&mesh, Count::HealthChecksOk) > 0);
        is_serving.set(false);
        let failed = client_count(&mesh, Count::HealthChecksFailed);
        let healthy = client_count(&mesh, Count::HealthChecksOk);
        wait_until(|| client_count(&mesh, Count::HealthChecksFailed) >= failed + 10).await;
        assert!(
            client_count(&mesh, Count::HealthChecksOk) <= healthy + 2,
            "the health checks fail"
        );
        assert_eq!(
            ejected_workloads(&mesh),
            ["bookinfo/ratings-2"],
            "the last endpoint is not ejected"
        );
    });
}

#[test]
fn endpoints_without_a_sidecar_are_checked_over_kept_connections() {
    run(async {
        let plain = Application::with_response(OK).await;
        let mesh = Mesh::permissive(closed_port()).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let foreign_app = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let tls = tls_accept(client.stream, &identity, &[ALPN_HTTP2]).await.unwrap();
                let mut connection = h2::server::handshake(tls).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    assert_eq!(request.uri().to_string(), "https://ratings.bookinfo:9080/healthz");
                    respond.send_response(Response::new(()), true).unwrap();
                }
            }
        });
        let foreign_app = foreign_app.await;
        let single_endpoint =
            Endpoint { account: None, ..meshed_endpoint("ratings-2", plain.address, "ratings") };
        let external_client = meshed_endpoint("ratings-3", foreign_app.address, "ratings");
        // Each check completes before the next, even on a busy machine.
        let (often, limit) = (Duration::from_millis(500), Duration::from_secs(60));
        check_endpoints_with_interval(
            often,
            &mesh,
            get_healthz(),
            limit,
            &[single_endpoint, external_client],
        );
        client_cluster(&mesh);
        wait_until(|| client_count(&mesh, Count::HealthChecksOk) >= 10).await;
        assert_eq!(client_count(&mesh, Count::HealthChecksFailed), 0);
        assert_eq!((plain.accepted.get(), foreign_app.accepted.get()), (1, 1));
    });
}

/// Returns the cluster state of the endpoints that the client's sidecar currently has.
fn client_cluster(mesh: &Mesh) -> Rc<UpstreamCluster> {
    let worker = &mesh.client.worker;
    let config = worker.config_store.current_config().unwrap();
    let port = &config.compiled.service(&test_service()).unwrap().ports[&PORT];
    worker.cluster_for(port.traffic_policy.as_ref(), port, config.version).unwrap()
}
