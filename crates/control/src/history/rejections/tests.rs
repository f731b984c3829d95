//! Rejections derived from the reports of clients' and servers' sidecars: shares, sides and deciding policies.

use leno_discovery::traffic::STATUS_CLASSES;
use leno_model::{Change, Gateway, Object, ServiceAccount};

use super::super::History;
use super::*;
use crate::fixture::{BOOKINFO, mesh_with_sidecars, service_name, workload_name};

fn traffic_series(direction: Direction, requests: u64, reasons: &[(Reason, u64)]) -> TrafficSeries {
    let mut classes = [0; STATUS_CLASSES];
    classes[2] = requests;
    TrafficSeries {
        direction,
        service: Some(service_name("details")),
        port: 9080,
        route: None,
        peer: ServiceAccount::new("bookinfo", "productpage").ok(),
        opened: None,
        classes,
        failed: reasons.iter().map(|(_, count)| count).sum(),
        reasons: reasons.iter().map(|(reason, count)| (Some(*reason), *count)).collect(),
        bytes_in: 0,
        bytes_out: 0,
        durations: Vec::new(),
    }
}

fn traffic_report(series: Vec<TrafficSeries>, rules: Vec<RuleMatches>) -> TrafficReport {
    TrafficReport { series, rules, ..TrafficReport::default() }
}

fn at_second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const RATE_LIMIT: &str = "
apiVersion: leno.dev/v1alpha1
kind: RateLimit
metadata: {name: few, namespace: bookinfo}
spec:
  targetRefs: [{kind: Service, name: details}]
  concurrency: {requests: 5}
";

fn rule_matches() -> RuleMatches {
    RuleMatches {
        kind: RuleKind::ServicePolicy(ServicePolicyKind::RateLimit),
        namespace: Name::new("bookinfo").unwrap(),
        name: Name::new("few").unwrap(),
        rule: String::new(),
        matches: 30,
    }
}

#[test]
fn a_rejection_by_the_server_names_its_sidecar_its_policy_and_its_share() {
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{RATE_LIMIT}"));
    let mut history = History::default();
    let limited = [(Reason::RateLimited, 30)];
    let client =
        traffic_report(vec![traffic_series(Direction::Outbound, 40, &limited)], Vec::new());
    history.record_report(&mesh, &workload_name("productpage-1"), &client, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    assert_eq!(
        (&*statuses[0].side, &statuses[0].sidecars[..]),
        ("client", &["bookinfo/productpage-1".to_owned()][..])
    );
    let server = traffic_report(
        vec![traffic_series(Direction::Inbound, 40, &limited)],
        vec![rule_matches()],
    );
    history.record_report(&mesh, &workload_name("details-1"), &server, at_second(6));
    let expected = RejectionStatus {
        service: "bookinfo/details".to_owned(),
        reason: "rate-limited".to_owned(),
        requests: 30,
        share: 0.75,
        side: "server".to_owned(),
        sidecars: vec!["bookinfo/details-1".to_owned()],
        clients: vec!["bookinfo/productpage-1".to_owned()],
        policies: vec!["RateLimit bookinfo/few".to_owned()],
    };
    assert_eq!(history.traffic_status(&mesh, at_second(30), None).rejections, [expected]);
    assert_eq!(
        history.traffic_status(&mesh, at_second(60), None).rejections,
        [],
        "the rejections are too old"
    );
    history.evict_expired(&mesh, at_second(4000));
    assert!(
        history.rejections.server_rejections.is_empty()
            && history.rejections.client_rejections.is_empty()
    );
}

/// Another service with the same port of details-1, and one with another port.
const SHARED_PORTS: &str = "
---
{apiVersion: v1, kind: Service, metadata: {name: details-v1, namespace: bookinfo},
 spec: {selector: {app: details}, ports: [{name: http, port: 9080, targetPort: 9081}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: metrics, namespace: bookinfo},
 spec: {selector: {app: details}, ports: [{name: http, port: 9080, targetPort: 9090}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: RateLimit, metadata: {name: of-metrics, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: metrics}], concurrency: {requests: 5}}}
";

/// A route forwards requests for details to details-v1, or a client calls details-v1 itself.
#[test]
fn a_rejection_names_policy_and_server_where_the_client_reports_another_service() {
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{RATE_LIMIT}{SHARED_PORTS}"));
    let limited = [(Reason::RateLimited, 30)];
    let metrics_matches = RuleMatches { name: Name::new("of-metrics").unwrap(), ..rule_matches() };
    let mut history = History::default();
    for name in ["details-v1", "metrics"] {
        let service = Some(service_name(name));
        let client_series =
            TrafficSeries { service, ..traffic_series(Direction::Outbound, 40, &limited) };
        history.record_report(
            &mesh,
            &workload_name("productpage-1"),
            &traffic_report(vec![client_series], vec![]),
            at_second(5),
        );
    }
    let series_of_port = |port, name| TrafficSeries {
        port,
        service: Some(service_name(name)),
        ..traffic_series(Direction::Inbound, 40, &limited)
    };
    for (series, rule_match) in [
        (series_of_port(9081, "details"), rule_matches()),
        (series_of_port(9090, "metrics"), metrics_matches),
    ] {
        history.record_report(
            &mesh,
            &workload_name("details-1"),
            &traffic_report(vec![series], vec![rule_match]),
            at_second(6),
        );
    }
    let statuses = history.traffic_status(&mesh, at_second(6), None).rejections;
    let statuses: Vec<_> = statuses
        .iter()
        .map(|rejection| {
            (
                &*rejection.service,
                rejection.requests,
                &*rejection.side,
                rejection.sidecars.clone(),
                rejection.policies.clone(),
            )
        })
        .collect();
    let server = || vec!["bookinfo/details-1".to_owned()];
    let policy = |name: &str| vec![format!("RateLimit bookinfo/{name}")];
    let expected = [
        ("bookinfo/details-v1", 30, "server", server(), policy("few")),
        ("bookinfo/metrics", 30, "server", server(), policy("of-metrics")),
    ];
    assert_eq!(statuses, expected);
}

#[test]
fn a_rejection_of_a_routed_request_names_the_policy_of_the_called_service() {
    let breakers = "
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: reviews}], limits: {requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: other, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], limits: {requests: 2}}}
";
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{breakers}"));
    let series = TrafficSeries {
        service: Some(service_name("reviews-v1")),
        route: "bookinfo/reviews".parse().ok(),
        ..traffic_series(Direction::Outbound, 40, &[(Reason::CircuitFull, 30)])
    };
    let kind = RuleKind::ServicePolicy(ServicePolicyKind::CircuitBreaker);
    let rule_match = |name| RuleMatches { kind, name: Name::new(name).unwrap(), ..rule_matches() };
    let mut history = History::default();
    let report = traffic_report(vec![series], vec![rule_match("own"), rule_match("other")]);
    history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    assert_eq!(statuses[0].policies, ["CircuitBreaker bookinfo/own"]);
}

#[test]
fn a_rejection_with_a_successful_retry_is_not_reported() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let client = traffic_report(vec![traffic_series(Direction::Outbound, 40, &[])], Vec::new());
    history.record_report(&mesh, &workload_name("productpage-1"), &client, at_second(5));
    let limited = [(Reason::RateLimited, 30)];
    let server = traffic_report(vec![traffic_series(Direction::Inbound, 70, &limited)], Vec::new());
    history.record_report(&mesh, &workload_name("details-1"), &server, at_second(5));
    assert_eq!(history.traffic_status(&mesh, at_second(5), None).rejections, []);
}

#[test]
fn rejections_of_clients_without_a_sidecar_count_for_the_server() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let denied = [(Reason::NoPolicyRoute, 10)];
    let unmeshed = TrafficSeries { peer: None, ..traffic_series(Direction::Inbound, 20, &denied) };
    let client = traffic_report(vec![traffic_series(Direction::Outbound, 20, &[])], Vec::new());
    history.record_report(&mesh, &workload_name("productpage-1"), &client, at_second(5));
    let server =
        traffic_report(vec![unmeshed, traffic_series(Direction::Inbound, 20, &[])], Vec::new());
    history.record_report(&mesh, &workload_name("details-1"), &server, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    assert_eq!((statuses[0].requests, statuses[0].share, &*statuses[0].side), (10, 0.25, "server"));
}

#[test]
fn failures_of_peers_and_applications_are_not_rejections() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let failures = [(Reason::ConnectFailed, 5), (Reason::DownstreamClosed, 5)];
    let mut client = traffic_series(Direction::Outbound, 40, &failures);
    client.failed = 40;
    client.reasons.push((None, 30));
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(vec![client], Vec::new()),
        at_second(5),
    );
    assert_eq!(history.traffic_status(&mesh, at_second(5), None).rejections, []);
}

#[test]
fn rejections_for_missing_services_are_not_recorded() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let denied = [(Reason::Denied, 1)];
    let invented = TrafficSeries {
        service: Some(service_name("invented")),
        ..traffic_series(Direction::Inbound, 1, &denied)
    };
    let report = traffic_report(vec![invented], vec![rule_matches()]);
    history.record_report(&mesh, &workload_name("details-1"), &report, at_second(5));
    assert!(history.rejections.server_rejections.is_empty());
    let limited = [(Reason::RateLimited, 1)];
    let report = traffic_report(
        vec![traffic_series(Direction::Outbound, 1, &limited)],
        vec![rule_matches()],
    );
    history.record_report(&mesh, &workload_name("details-1"), &report, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    assert!(statuses[0].policies.is_empty(), "there is no such RateLimit");
}

#[test]
fn rejections_of_requests_to_no_service_count_for_their_client() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let series_to = |service, requests, reasons: &[(Reason, u64)]| TrafficSeries {
        service,
        ..traffic_series(Direction::Outbound, requests, reasons)
    };
    let missing = Some(service_name("missing"));
    let client = traffic_report(
        vec![
            series_to(missing, 30, &[(Reason::UnknownService, 30)]),
            series_to(
                None,
                10,
                &[(Reason::EgressDenied, 6), (Reason::NoRoute, 2), (Reason::BadRequest, 2)],
            ),
            traffic_series(Direction::Outbound, 100, &[]),
        ],
        Vec::new(),
    );
    history.record_report(&mesh, &workload_name("productpage-1"), &client, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    let statuses: Vec<_> = statuses
        .iter()
        .map(|rejection| {
            (
                &*rejection.service,
                &*rejection.reason,
                rejection.requests,
                rejection.share,
                &*rejection.side,
                &rejection.clients,
            )
        })
        .collect();
    let client = vec!["bookinfo/productpage-1".to_owned()];
    let expected = [
        ("", "egress-denied", 6, 0.15, "client", &client),
        ("", "unknown-service", 30, 0.75, "client", &client),
    ];
    assert_eq!(statuses, expected);
    history.evict_expired(&mesh, at_second(4000));
    assert!(
        history.rejections.client_rejections.is_empty()
            && history.rejections.external_requests.is_empty()
    );
}

#[test]
fn requests_with_an_unreadable_head_count_for_their_client() {
    let edge = "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: edge-1, namespace: bookinfo, \
                labels: {gateway.networking.k8s.io/gateway-name: edge}}\nspec: {serviceAccount: leno-gateway-edge}\n";
    let mut mesh = mesh_with_sidecars(&format!("{BOOKINFO}{edge}"));
    let gateway = Gateway { name: "bookinfo/edge".parse().unwrap(), ports: Vec::new() };
    mesh.apply(Change::Upsert(Object::Gateway(gateway)));
    let failures = [
        (Reason::HeadTooLarge, 30),
        (Reason::BadRequest, 6),
        (Reason::HeadTimeout, 3),
        (Reason::Unsupported, 1),
        (Reason::ConnectFailed, 5),
    ];
    let series = TrafficSeries {
        service: None,
        port: 0,
        ..traffic_series(Direction::Outbound, 60, &failures)
    };
    let mut history = History::default();
    // At a gateway these are requests of external clients, and at a server those of its clients.
    history.record_report(
        &mesh,
        &workload_name("edge-1"),
        &traffic_report(vec![series.clone()], Vec::new()),
        at_second(5),
    );
    assert_eq!(history.traffic_status(&mesh, at_second(5), None).rejections, []);
    let report = traffic_report(vec![series], Vec::new());
    history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
    let statuses: Vec<_> = statuses
        .iter()
        .map(|rejection| {
            (
                &*rejection.service,
                &*rejection.reason,
                rejection.requests,
                rejection.share,
                &*rejection.clients[0],
            )
        })
        .collect();
    let client = "bookinfo/productpage-1";
    let expected = [
        ("", "bad-request", 6, 0.1, client),
        ("", "head-timeout", 3, 0.05, client),
        ("", "head-too-large", 30, 0.5, client),
        ("", "unsupported", 1, 1.0 / 60.0, client),
    ];
    assert_eq!(statuses, expected);
}

const DECIDING_OBJECTS: &str = "
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], limits: {requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: other, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: ratings}], limits: {requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: RateLimit, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], concurrency: {requests: 5}}}
---
{apiVersion: leno.dev/v1alpha1, kind: FaultInjection, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], rules: [{abort: {httpStatus: 503}}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: JwtValidation, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], issuers: [{issuer: i, jwks: {url: 'https://a.example/jwks'}}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: ExternalAuthorization, metadata: {name: own, namespace: bookinfo},
 spec: {targetRefs: [{kind: Service, name: details}], service: {name: ratings, port: 9080}}}
---
{apiVersion: leno.dev/v1alpha1, kind: AccessPolicy, metadata: {name: own, namespace: bookinfo},
 spec: {deny: [{requests: [{methods: [DELETE]}]}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: TagRoute, metadata: {name: own, namespace: bookinfo},
 spec: {service: details, fallbackPolicy: any, rules: [{split: [{tags: {version: v9}}], fallbackPolicy: any}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: own, namespace: bookinfo},
 spec: {parentRefs: [{group: '', kind: Service, name: details}],
        rules: [{matches: [{path: {value: /only}}], backendRefs: [{name: gone, port: 1}]}]}}
";

#[test]
fn each_reason_with_a_deciding_policy_names_it() {
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{DECIDING_OBJECTS}"));
    let matches_of = |kind: &str, name: &str| RuleMatches {
        kind: RuleKind::from_word(kind).unwrap(),
        name: Name::new(name).unwrap(),
        ..rule_matches()
    };
    let kinds = [
        "CircuitBreaker",
        "RateLimit",
        "FaultInjection",
        "JwtValidation",
        "ExternalAuthorization",
        "AccessPolicy",
        "TagRoute",
        "HTTPRoute",
    ];
    let mut rules: Vec<RuleMatches> = kinds.map(|kind| matches_of(kind, "own")).to_vec();
    rules.push(matches_of("CircuitBreaker", "other"));
    for (reason, kind) in [
        (Reason::CircuitOpen, "CircuitBreaker"),
        (Reason::CircuitFull, "CircuitBreaker"),
        (Reason::RateLimited, "RateLimit"),
        (Reason::Overloaded, "RateLimit"),
        (Reason::RateLimitUnavailable, "RateLimit"),
        (Reason::FaultInjected, "FaultInjection"),
        (Reason::TokenMissing, "JwtValidation"),
        (Reason::TokenInvalid, "JwtValidation"),
        (Reason::DeniedByService, "ExternalAuthorization"),
        (Reason::AuthorizationUnavailable, "ExternalAuthorization"),
        (Reason::BodyTooLarge, "ExternalAuthorization"),
        (Reason::DeniedByPolicy, "AccessPolicy"),
        (Reason::NoTaggedEndpoint, "TagRoute"),
        (Reason::InvalidBackend, "HTTPRoute"),
        (Reason::NoRoute, "HTTPRoute"),
    ] {
        let mut history = History::default();
        let series = traffic_series(Direction::Outbound, 40, &[(reason, 30)]);
        let report = traffic_report(vec![series], rules.clone());
        history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
        let statuses = history.traffic_status(&mesh, at_second(5), None).rejections;
        assert_eq!(statuses[0].policies, [format!("{kind} bookinfo/own")], "{}", reason.label());
    }
}
