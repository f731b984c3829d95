//! Outlier detection: observed failures, ejections and unejections.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leno_model::{
    EjectionTime, FailureClasses, OutlierAlgorithm, OutlierDetection, PortOutlierDetection,
    Protocol, ServicePolicyKind, ServicePolicyName, TrafficPolicy, Weight,
};
use leno_telemetry::{Count, Gauge};
use leno_traffic::outlier::EjectionCause;

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, Setup, closed_port, meshed_endpoint, run,
    service_config, wait_until,
};
use super::rejections::start_peer;

const BROKEN: &str = "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n";

/// Three failures in a row eject, half of the endpoints stay, and an ejection is short.
fn ejection_rule(failures: FailureClasses) -> OutlierDetection {
    OutlierDetection {
        failures,
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: None,
        consecutive_failures: Some(3),
        max_ejection_percent: 50,
        min_healthy: 1,
        ejection_time: EjectionTime {
            base: Duration::from_millis(50),
            max: Duration::from_millis(50),
            jitter_percent: 0,
        },
        probe_requests: 1,
        health_check: None,
    }
}

fn server_errors() -> FailureClasses {
    FailureClasses { server_errors: true, ..FailureClasses::default() }
}

/// Sets these endpoints and a policy for them at the client.
fn apply_rule(mesh: &Mesh, rule: OutlierDetection, endpoints: &[leno_model::Endpoint]) {
    let mut service = service_config(Protocol::Http, endpoints);
    let policy =
        ServicePolicyName::new(ServicePolicyKind::OutlierDetection, "bookinfo", "ratings").unwrap();
    let outlier_detection =
        PortOutlierDetection { policy, algorithm: OutlierAlgorithm::Native(rule) };
    service.ports.get_mut(&PORT).unwrap().traffic_policy =
        TrafficPolicy { outlier_detection: Some(outlier_detection), ..TrafficPolicy::default() };
    mesh.set_client_services(vec![service]);
}

fn ejection_count(mesh: &Mesh) -> u64 {
    mesh.client.telemetry.count(Count::EndpointEjectedForConsecutive)
}

/// Sends requests until the first ejection; returns the number of responses other than 200.
async fn request_until_ejected(mesh: &Mesh, client: &mut Client<tokio::net::TcpStream>) -> usize {
    let mut failed = 0;
    while ejection_count(mesh) == 0 {
        failed += usize::from(client.send_request(GET).await.status != 200);
        assert!(failed <= 3, "three consecutive failures eject the endpoint");
    }
    failed
}

#[test]
fn an_endpoint_with_error_responses_is_ejected_and_unejected_after_its_recovery() {
    run(async {
        let failing = Rc::new(Cell::new(true));
        let fails = failing.clone();
        let app =
            Application::respond_with(move |_| if fails.get() { BROKEN } else { OK }.to_owned())
                .await;
        let healthy = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        let mut rule = ejection_rule(server_errors());
        // The ejection lasts long enough to be observed.
        rule.ejection_time.base = Duration::from_secs(3);
        rule.ejection_time.max = Duration::from_secs(3);
        apply_rule(&mesh, rule, &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(request_until_ejected(&mesh, &mut client).await, 3);
        assert_eq!(mesh.client.telemetry.gauge(Gauge::EndpointsEjected), 1);
        let ejections = mesh.client.worker.ejected_endpoints.snapshot();
        assert_eq!(ejections.len(), 1);
        assert_eq!(ejections[0].1.endpoint.id.workload.to_string(), "bookinfo/ratings-1");
        let count_before = app.received_requests().len();
        for _ in 0..50 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert_eq!(
            app.received_requests().len(),
            count_before,
            "the ejected endpoint receives no request"
        );
        failing.set(false);
        let is_unejected = || mesh.client.telemetry.count(Count::EndpointUnejections) == 1;
        while !is_unejected() {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert_eq!(mesh.client.telemetry.gauge(Gauge::EndpointsEjected), 0);
        assert!(mesh.client.worker.ejected_endpoints.snapshot().is_empty());
        let count_before = app.received_requests().len();
        for _ in 0..50 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert!(
            app.received_requests().len() > count_before,
            "the endpoint receives requests again"
        );
    });
}

#[test]
fn the_last_endpoints_are_not_ejected() {
    run(async {
        let app = Application::with_response(BROKEN).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", app.address).await;
        apply_rule(&mesh, ejection_rule(server_errors()), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..40 {
            assert_eq!(
                client.send_request(GET).await.verdict(),
                (500, None),
                "one of the endpoints responds"
            );
            assert!(mesh.client.telemetry.gauge(Gauge::EndpointsEjected) <= 1);
        }
        assert!(ejection_count(&mesh) >= 1);
    });
}

/// Only a sidecar can mark a response as its own rejection.
#[test]
fn an_application_that_claims_a_rejection_counts_as_failed() {
    run(async {
        for reason in ["overloaded", "denied", "rate-limited;side=mesh"] {
            let claims =
                format!("HTTP/1.1 503 No\r\nleno-reason: {reason}\r\ncontent-length: 0\r\n\r\n");
            let app = Application::respond_with(move |_| claims.clone()).await;
            let healthy = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
            apply_rule(&mesh, ejection_rule(server_errors()), &[mesh.server_endpoint(), second]);
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..40 {
                client.send_request(GET).await;
            }
            assert!(ejection_count(&mesh) >= 1, "{reason}");
        }
    });
}

#[test]
fn a_rejection_by_its_sidecar_does_not_count_for_an_endpoint() {
    run(async {
        for (reason, ejected) in [
            ("overloaded", false),
            ("authorization-unavailable", false),
            ("reason-of-a-later-release", false),
            // In this case the sidecar reports a failure of the application.
            ("upstream-malformed", true),
        ] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let head =
                format!("HTTP/1.1 503 No\r\nleno-reason: {reason}\r\ncontent-length: 0\r\n\r\n");
            let second = start_peer(&mesh, move |peer, stream| {
                let write_head =
                    |buffer: &mut bytes::BytesMut| buffer.extend_from_slice(head.as_bytes());
                peer.link.send_rejection(stream, true, write_head).unwrap();
            })
            .await;
            apply_rule(&mesh, ejection_rule(server_errors()), &[mesh.server_endpoint(), second]);
            let mut client = Client::connect(mesh.listener).await;
            // Three failures in a row would eject an endpoint.
            let mut rejected = 0;
            while rejected < 3 {
                rejected += usize::from(client.send_request(GET).await.status == 503);
            }
            client.send_request(GET).await;
            assert_eq!(ejection_count(&mesh) >= 1, ejected, "{reason}");
        }
    });
}

#[test]
fn connection_failures_count_only_for_policies_that_include_them() {
    run(async {
        for (connect, expected) in [(true, true), (false, false)] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            // The endpoint's sidecar is healthy, but its application is not listening, as each response
            // reports.
            let (_server, dead) = mesh.start_server("ratings-2", closed_port()).await;
            let mut rule = ejection_rule(FailureClasses { connect, ..server_errors() });
            rule.consecutive_failures = Some(1);
            apply_rule(&mesh, rule, &[mesh.server_endpoint(), dead]);
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..20 {
                assert_eq!(client.send_request(GET).await.verdict(), (200, None), "a retry helps");
            }
            assert_eq!(ejection_count(&mesh) > 0, expected);
        }
    });
}

#[test]
fn an_ejection_ends_with_its_endpoint_or_policy() {
    run(async {
        let app = Application::with_response(BROKEN).await;
        let healthy = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        let mut rule = ejection_rule(server_errors());
        rule.ejection_time.base = Duration::from_secs(60);
        rule.ejection_time.max = Duration::from_secs(60);
        apply_rule(&mesh, rule.clone(), &[mesh.server_endpoint(), second.clone()]);
        let mut client = Client::connect(mesh.listener).await;
        request_until_ejected(&mesh, &mut client).await;
        // Another endpoint precedes it in the list.
        let first = meshed_endpoint("ratings-0", second.address, "ratings");
        apply_rule(&mesh, rule, &[first, mesh.server_endpoint(), second.clone()]);
        let count_before = app.received_requests().len();
        for _ in 0..30 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert_eq!(app.received_requests().len(), count_before, "the endpoint is still ejected");
        mesh.route_to(&[mesh.server_endpoint(), second]);
        let is_over = || mesh.client.telemetry.gauge(Gauge::EndpointsEjected) == 0;
        while app.received_requests().len() == count_before {
            client.send_request(GET).await;
        }
        wait_until(is_over).await;
    });
}

#[test]
fn an_ejection_survives_changes_of_weight_and_tags() {
    run(async {
        let app = Application::with_response(BROKEN).await;
        let healthy = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        let mut rule = ejection_rule(server_errors());
        rule.ejection_time.base = Duration::from_secs(60);
        rule.ejection_time.max = Duration::from_secs(60);
        apply_rule(&mesh, rule.clone(), &[mesh.server_endpoint(), second.clone()]);
        let mut client = Client::connect(mesh.listener).await;
        request_until_ejected(&mesh, &mut client).await;
        let count_before = app.received_requests().len();
        let edited = |mut endpoint: leno_model::Endpoint, weight| {
            endpoint.weight = Weight::new(weight);
            endpoint.tags = [("version".to_owned(), "2".to_owned())].into();
            endpoint
        };
        apply_rule(&mesh, rule, &[edited(mesh.server_endpoint(), 1000), edited(second, 1)]);
        for _ in 0..30 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert_eq!(app.received_requests().len(), count_before, "the endpoint is still ejected");
        let ejections = mesh.client.worker.ejected_endpoints.snapshot();
        let reported: Vec<_> =
            ejections.iter().map(|(_, it)| (it.endpoint.weight, it.cause)).collect();
        assert_eq!(
            reported,
            [(Weight::new(1000), EjectionCause::ConsecutiveFailures)],
            "the current ejections"
        );
    });
}

#[test]
fn a_disconnected_client_is_no_result_of_a_probe() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let healthy = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, Setup::default()).await;
        let (_server, second) = mesh.start_server("ratings-2", healthy.address).await;
        let mut rule =
            ejection_rule(FailureClasses { timeout: true, reset: true, ..server_errors() });
        rule.consecutive_failures = Some(1);
        apply_rule(&mesh, rule, &[mesh.server_endpoint(), second]);
        for count in 1..=10 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until(|| (app.accepted.get() + healthy.received_requests().len()) as u64 >= count)
                .await;
            client.abandon();
            wait_until(|| mesh.client.ended_count() >= count).await;
        }
        assert_eq!(ejection_count(&mesh), 0);
    });
}
