//! The findings of healthy and degraded meshes, with one fault at a time.

use serde_json::json;

use super::*;
use crate::status::{NamedRateStatus, RejectionStatus};

pub(super) fn healthy_inputs() -> FindingInputs {
    FindingInputs {
        status: Status { certificate_lifetime_seconds: 86_400, ..Status::default() },
        workloads: vec![workload_status("connected")],
        proxies: vec![proxy_status()],
        certificates: vec![certificate_status(50_000)],
        services: Vec::new(),
        rejected_joins: Vec::new(),
        directory: None,
        routes: Vec::new(),
        policies: Vec::new(),
        rejected: json!({"rejected": [], "warnings": [], "trust_domain": null}),
        traffic: TrafficStatus { report_interval_ms: Some(5_000), ..TrafficStatus::default() },
        reasons: BTreeMap::new(),
    }
}

pub(super) fn workload_status(sidecar: &str) -> WorkloadStatus {
    let value = json!({
        "name": "shop/cart-1", "account": "shop/cart", "address": "127.0.0.1", "ports": [],
        "labels": {}, "services": [], "outbound_listeners": [], "sidecar": sidecar, "listeners": {},
    });
    serde_json::from_value(value).unwrap()
}

pub(super) fn proxy_status() -> ProxyStatus {
    let value = json!({
        "workload": "shop/cart-1", "connection": 1, "connected_seconds": 1.0, "pid": 1,
        "version": "0", "admin": null, "subscriptions": [], "services": 1,
        "config_age_seconds": 1.0, "out_of_sync_seconds": null, "sent": 1, "applied": 1, "rejected": 0,
        "rejections": [],
    });
    serde_json::from_value(value).unwrap()
}

fn certificate_status(valid_for_seconds: u64) -> CertificateStatus {
    CertificateStatus {
        workload: "shop/cart-1".to_owned(),
        identity: "spiffe://x/ns/shop/sa/cart".to_owned(),
        issued: 0,
        age_seconds: 0,
        not_after: 0,
        valid_for_seconds,
    }
}

fn service_rates(success: f64, requests: u32) -> NamedRateStatus {
    let rates = RateStatus {
        per_second: 2.0,
        success: Some(success),
        recent: vec![0, requests],
        ..RateStatus::default()
    };
    NamedRateStatus { name: "shop/cart".to_owned(), rates }
}

#[test]
fn a_healthy_mesh_has_no_findings() {
    assert_eq!(collect_findings(&healthy_inputs()), []);
}

fn without_keys(in_force: bool) -> PolicyStatus {
    let issuers = vec!["https://a.example (/keys.json is absent)".to_owned()];
    let missing_keys = MissingKeysStatus { requests: "every request".to_owned(), issuers };
    PolicyStatus {
        kind: "JwtValidation".to_owned(),
        name: "shop/tokens".to_owned(),
        in_force,
        missing_keys: Some(missing_keys),
        ..PolicyStatus::default()
    }
}

#[test]
fn missing_keys_of_a_policy_without_effect_are_not_a_finding() {
    let mut inputs = healthy_inputs();
    inputs.policies = vec![without_keys(false)];
    assert_eq!(collect_findings(&inputs), []);
}

type Fault = fn(&mut FindingInputs);

/// Asserts that each case produces one finding in a healthy mesh, with this text and hint.
fn assert_found(severity: Severity, cases: &[(Fault, &str, &str)]) {
    for (introduce, message, hint) in cases {
        let mut inputs = healthy_inputs();
        introduce(&mut inputs);
        let findings = collect_findings(&inputs);
        let [finding] = &findings[..] else { panic!("{message}: {findings:?}") };
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.message.contains(message), "{finding:?}");
        assert!(finding.hint.contains(hint), "{finding:?}");
    }
}

#[test]
fn each_fault_is_a_problem_with_a_hint() {
    assert_found(
        Severity::Problem,
        &[
            (
                |inputs| inputs.workloads = vec![workload_status("absent")],
                "1 workload without a connected sidecar: shop/cart-1",
                "leno token",
            ),
            (
                |inputs| inputs.proxies[0].out_of_sync_seconds = Some(70.0),
                "out of sync for 1m10s",
                "log",
            ),
            (
                |inputs| {
                    (inputs.proxies[0].rejected, inputs.proxies[0].rejections) =
                        (1, vec!["a bad pattern".into()])
                },
                "rejects its configuration: a bad pattern",
                "stays in use",
            ),
            (
                |inputs| inputs.certificates = vec![certificate_status(0)],
                "has expired",
                "leno token shop/cart-1",
            ),
            (
                |inputs| inputs.certificates = vec![certificate_status(3_600)],
                "expires in 1h",
                "renewed",
            ),
            (
                |inputs| {
                    // Two problems of one document.
                    inputs.status.rejected = 1;
                    inputs.rejected = json!({"rejected": [{"file": "a.yaml", "line": 1}, {"file": "a.yaml", "kind": "Service"}]});
                },
                "1 document rejected: a.yaml",
                "leno get rejected",
            ),
            (
                |inputs| {
                    inputs.status.rejected = 1;
                    inputs.rejected = json!({"rejected": [{"file": "mesh"}]});
                },
                "1 path not read: mesh",
                "leno get rejected",
            ),
            (
                |inputs| inputs.policies = vec![without_keys(true)],
                "JwtValidation shop/tokens: every request fails: no keys for https://a.example (/keys.json is absent)",
                "JWK set",
            ),
            (
                |inputs| inputs.rejected = json!({"trust_domain": "another"}),
                "MeshConfig: another",
                "data directory",
            ),
            (
                |inputs| inputs.traffic.services = vec![service_rates(0.5, 10)],
                "shop/cart: 50.00 % of 2.0/s succeed",
                "application",
            ),
        ],
    );
}

#[test]
fn temporary_and_intended_states_are_notices() {
    assert_found(
        Severity::Notice,
        &[
            (
                |inputs| inputs.rejected = json!({"warnings": [{}, {}]}),
                "2 warnings",
                "leno get rejected",
            ),
            (
                |inputs| inputs.traffic.services = vec![service_rates(0.97, 100)],
                "97.00 %",
                "application",
            ),
            (|inputs| inputs.status.starting = true, "just started", "repeat"),
            (|inputs| inputs.status.outdated = 2, "2 sidecars must still renew", "leno ca status"),
            (|inputs| inputs.traffic.report_interval_ms = None, "unknown", "--report-interval"),
        ],
    );
}

#[test]
fn the_reason_of_a_failing_service_has_a_hint_to_its_explanation() {
    let mut inputs = healthy_inputs();
    inputs.traffic.services = vec![service_rates(0.5, 10)];
    inputs.reasons.insert("shop/cart".to_owned(), Some("no-endpoint".to_owned()));
    let finding = collect_findings(&inputs).remove(0);
    assert!(finding.message.ends_with("most often with no-endpoint"), "{finding:?}");
    assert!(finding.hint.starts_with("leno explain no-endpoint"), "{finding:?}");
}

#[test]
fn rejections_of_the_mesh_are_one_finding_with_reason_policy_and_command() {
    let rejection = |share: f64| RejectionStatus {
        service: "shop/cart".to_owned(),
        reason: "rate-limited".to_owned(),
        requests: 30,
        share,
        side: "server".to_owned(),
        sidecars: vec!["shop/cart-1".to_owned()],
        clients: vec!["shop/web-1".to_owned()],
        policies: vec!["RateLimit shop/few".to_owned()],
    };
    let mut inputs = healthy_inputs();
    inputs.reasons.insert("shop/cart".to_owned(), Some("rate-limited".to_owned()));
    for (success, share, severities) in [
        (0.25, 0.75, &[Severity::Problem][..]),
        (0.97, 0.03, &[Severity::Notice]),
        // A few other failures are not a second problem of the same service.
        (0.0, 0.96, &[Severity::Problem]),
        // The application fails as well.
        (0.10, 0.75, &[Severity::Problem, Severity::Problem]),
    ] {
        inputs.traffic.services = vec![service_rates(success, 100)];
        inputs.traffic.rejections = vec![rejection(share)];
        let findings = collect_findings(&inputs);
        let actual: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(actual, severities, "{findings:?}");
        let text = format!("{} {}", findings[0].message, findings[0].hint);
        for part in ["shop/cart", "rate-limited", "shop/cart-1", "RateLimit shop/few"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("leno diagnose shop/web-1 --to shop/cart"), "{text}");
    }
}

#[test]
fn too_few_requests_are_not_a_finding() {
    let mut inputs = healthy_inputs();
    inputs.traffic.services = vec![service_rates(0.5, 9)];
    inputs.workloads = vec![workload_status("other-replica")];
    assert_eq!(collect_findings(&inputs), []);
}

#[test]
fn many_faults_of_one_kind_are_summarized_and_problems_come_first() {
    let mut inputs = healthy_inputs();
    inputs.status.outdated = 1;
    inputs.certificates = vec![certificate_status(0); 9];
    let findings = collect_findings(&inputs);
    assert_eq!(findings.len(), MAX_FINDINGS + 2);
    assert_eq!(findings[MAX_FINDINGS].message, "and 4 more of this kind");
    assert_eq!(findings.last().unwrap().severity, Severity::Notice);
}

/// In Kubernetes, hints use Pods and kubectl, not `leno proxy` and tokens.
#[test]
fn hints_in_a_cluster_use_the_terms_of_kubernetes() {
    let finding_for = |change: fn(&mut FindingInputs)| {
        let mut inputs = healthy_inputs();
        inputs.status.kubernetes = true;
        change(&mut inputs);
        let findings = collect_findings(&inputs);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert!(!finding.hint.contains("leno token"), "{finding:?}");
        assert!(!finding.hint.contains("`leno proxy`"), "{finding:?}");
        (finding.message.clone(), finding.hint.clone())
    };
    let (_, hint) = finding_for(|inputs| inputs.workloads = vec![workload_status("absent")]);
    assert!(hint.contains("kubectl -n NAMESPACE describe pod NAME"), "{hint}");
    assert!(hint.contains("dnsPolicy"), "{hint}");
    let (_, hint) = finding_for(|inputs| inputs.certificates = vec![certificate_status(0)]);
    assert!(hint.contains("kubectl -n shop delete pod cart-1"), "{hint}");
    for exists in [true, false] {
        let mut inputs = healthy_inputs();
        inputs.status.kubernetes = true;
        inputs.rejected_joins = vec![RejectedJoinStatus {
            workload: "shop/cart-1".to_owned(),
            exists,
            count: 1,
            age_seconds: 1,
            reason: "the join token was used already".to_owned(),
        }];
        let finding = collect_findings(&inputs);
        assert!(finding[0].hint.contains("kubectl -n shop logs cart-1"), "{finding:?}");
        assert!(!finding[0].hint.contains("leno token"), "{finding:?}");
    }
    let (message, _) = finding_for(|inputs| {
        inputs.status.rejected = 2;
        inputs.rejected = json!({"rejected": [
            {"kind": "Namespace", "name": "wv", "field": "metadata.annotations"},
            {"kind": "HTTPRoute", "namespace": "shop", "name": "web"},
        ]});
    });
    assert_eq!(message, "2 objects rejected: HTTPRoute shop/web, Namespace wv");
}

#[test]
fn a_revoked_workload_is_a_notice_that_names_the_revocation() {
    let findings_with_revocation = |supervised: bool| {
        let mut inputs = healthy_inputs();
        inputs.status.supervised = supervised;
        inputs.workloads = vec![WorkloadStatus { revoked: true, ..workload_status("absent") }];
        inputs.rejected_joins = vec![RejectedJoinStatus {
            workload: "shop/cart-1".to_owned(),
            exists: true,
            count: 3,
            age_seconds: 1,
            reason: "workload shop/cart-1 is revoked".to_owned(),
        }];
        collect_findings(&inputs)
    };
    for findings in [findings_with_revocation(true), findings_with_revocation(false)] {
        let [first, second] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(first.message, "1 workload is revoked: shop/cart-1");
        assert!(second.message.ends_with("workload shop/cart-1 is revoked"), "{second:?}");
        for actual in [first, second] {
            assert_eq!(actual.severity, Severity::Notice, "{actual:?}");
            assert!(actual.hint.contains("--undo"), "{actual:?}");
        }
    }
}
