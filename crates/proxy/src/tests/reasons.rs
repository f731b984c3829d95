//! One reason for one failure: in the response, the access log, the metrics, the span and the gRPC status.

use std::time::Duration;

use http::Response;
use leno_model::{
    Access, AccessLog, CircuitBreaker, CircuitLimits, ClientAuthorization, FixedResponse,
    LogFormat, Observability, Protocol, Rate, RateLimitKey, RateRule, ServiceConfig,
};
use leno_outside::AttributeValue as Attribute;
use serde_json::Value;

use super::circuit::apply_breaker;
use super::fixture::{
    Application, Client, GET, Mesh, OK, Setup, Sidecar, closed_port, concurrency_limit,
    meshed_endpoint, run, service_config, wait_until,
};
use super::http2::{connect_client, grpc_request, read_body, start_application};
use super::routes::{path_rule, routed_services};
use super::tracing::tracing_settings;
use crate::access_log;
use crate::export::source;

/// A failure, its setup, and the sidecar that responds.
struct Case {
    reason: &'static str,
    arrange: fn(&Mesh),
    reporter: Reporter,
}

/// The sidecar that reports the failure.
#[derive(Debug, Clone, Copy)]
enum Reporter {
    /// The client's sidecar; no request reaches the server's.
    Client,
    /// The server's sidecar; the client's handles its response like one of the application.
    Server,
}

const CASES: [Case; 7] = [
    Case {
        reason: "denied",
        arrange: |mesh| mesh.set_access(Access::AllowListed(Vec::new())),
        reporter: Reporter::Server,
    },
    Case {
        reason: "denied-outbound",
        arrange: |mesh| {
            let known = service_config(mesh.setup.protocol, &[mesh.server_endpoint()]);
            mesh.set_client_services(vec![ServiceConfig {
                client_authorization: ClientAuthorization::Denied,
                ..known
            }]);
        },
        reporter: Reporter::Client,
    },
    Case {
        reason: "no-route",
        arrange: |mesh| {
            mesh.set_client_services(routed_services(
                mesh,
                vec![path_rule("/other", &[("ratings-v2", 1)])],
            ));
        },
        reporter: Reporter::Client,
    },
    Case { reason: "no-endpoint", arrange: |mesh| mesh.route_to(&[]), reporter: Reporter::Client },
    Case {
        reason: "connect-failed",
        arrange: |mesh| mesh.route_to(&[meshed_endpoint("ratings-9", closed_port(), "ratings")]),
        reporter: Reporter::Client,
    },
    Case { reason: "rate-limited", arrange: limit_to_one_per_hour, reporter: Reporter::Server },
    Case {
        reason: "circuit-full",
        arrange: |mesh| {
            let limits = CircuitLimits { requests: Some(0), ..CircuitLimits::default() };
            apply_breaker(mesh, CircuitBreaker { limits, ..CircuitBreaker::default() });
        },
        reporter: Reporter::Client,
    },
];

fn limit_to_one_per_hour(mesh: &Mesh) {
    let mut limits = concurrency_limit("x", 9);
    limits.limits.rules.push(RateRule {
        name: "few".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        rate: Rate { count: 1, period: Duration::from_secs(3600), burst: 1 },
        key: RateLimitKey::None,
        stop: false,
        response: FixedResponse::default(),
    });
    mesh.set_checks(Vec::new(), vec![limits]);
}

fn logging_setup(protocol: Protocol) -> Setup {
    let access_log = Some(AccessLog::json());
    let observability =
        Observability { access_log, tracing: Some(tracing_settings("0%")), metrics: None };
    Setup { protocol, observability, ..Setup::default() }
}

/// Asserts that the log entry, the count and the span of a sidecar have this reason.
async fn expect_recorded_reason(sidecar: &mut Sidecar, reason: &str) {
    wait_until(|| sidecar.failure_counts().contains_key(reason)).await;
    let mut page = String::new();
    sidecar.telemetry.expose(leno_telemetry::ExpositionFormat::Prometheus, &mut page);
    let label = format!("reason=\"{reason}\"");
    let is_counted = |line: &str| line.starts_with("leno_requests_total{") && line.contains(&label);
    assert!(page.lines().any(is_counted), "{reason}: {page}");
    let mut lines = Vec::new();
    while let Ok(entry) = sidecar.log.try_recv() {
        let mut text = String::new();
        access_log::append_log_line(&entry, &LogFormat::Json, &mut text);
        let line: Value = serde_json::from_str(&text).unwrap();
        lines.push(line["response_code_details"].clone());
    }
    assert_eq!(lines.last(), Some(&Value::from(reason)), "the access log");
    // Only failures have a span in this setup.
    let entry = sidecar.spans.try_recv().expect("a span");
    let attributes = source::span_attributes(&entry);
    let reason_attribute = attributes.iter().find(|(name, _)| *name == "leno.reason");
    assert!(
        matches!(reason_attribute, Some((_, Attribute::Text(text))) if text == reason),
        "{reason}"
    );
}

async fn expect_reason(mesh: &mut Mesh, case: &Case) {
    match case.reporter {
        Reporter::Client => expect_recorded_reason(&mut mesh.client, case.reason).await,
        Reporter::Server => expect_recorded_reason(&mut mesh.server, case.reason).await,
    }
}

#[test]
fn all_reports_of_a_failure_use_the_same_reason() {
    run(async {
        for case in &CASES {
            let app = Application::with_response(OK).await;
            let mut mesh = Mesh::new(app.address, logging_setup(Protocol::Http)).await;
            (case.arrange)(&mesh);
            let mut client = Client::connect(mesh.listener).await;
            let mut response = client.send_request(GET).await;
            if response.status == 200 {
                // The rate limit permits the first request.
                response = client.send_request(GET).await;
            }
            assert_eq!(response.reason_code(), Some(case.reason));
            expect_reason(&mut mesh, case).await;
        }
    });
}

#[test]
fn grpc_calls_are_reported_with_the_same_reason() {
    run(async {
        for case in &CASES {
            let app = start_application(|request, mut respond| async move {
                read_body(request.into_body()).await;
                let head = Response::builder().header("grpc-status", "0").body(()).unwrap();
                respond.send_response(head, true).unwrap();
            });
            let mut mesh = Mesh::new(app.await.address, logging_setup(Protocol::Grpc)).await;
            (case.arrange)(&mesh);
            let mut reported_to = None;
            for _ in 0..2 {
                let mut client = connect_client(mesh.listener).await;
                let (response, _) = client.send_request(grpc_request("/a/B"), true).unwrap();
                let fields = response.await.unwrap().headers().clone();
                reported_to = fields.contains_key("leno-reason").then_some(fields);
                if reported_to.is_some() {
                    break;
                }
            }
            let fields = reported_to.expect("it fails");
            let field = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
            let reason = field("leno-reason").and_then(|value| value.split(';').next());
            assert_eq!(reason, Some(case.reason));
            let message = field("grpc-message").and_then(|message| message.split(':').next());
            assert_eq!(message, Some(case.reason));
            expect_reason(&mut mesh, case).await;
        }
    });
}
