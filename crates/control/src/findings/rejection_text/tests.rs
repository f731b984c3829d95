//! Sentences about rejections, by reason and by the existing objects.

use serde_json::{from_value, json};

use super::*;

fn rejection_status(reason: &str, side: &str, policies: &[&str]) -> RejectionStatus {
    RejectionStatus {
        service: "shop/api".to_owned(),
        reason: reason.to_owned(),
        requests: 30,
        share: 0.75,
        side: side.to_owned(),
        sidecars: vec!["shop/api-1".to_owned()],
        clients: vec!["shop/web-1".to_owned()],
        policies: policies.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn policy_status(kind: &str, destination: &str) -> PolicyStatus {
    PolicyStatus {
        kind: kind.to_owned(),
        name: format!("shop/{}", kind.to_lowercase()),
        destinations: destination.split(", ").map(str::to_owned).collect(),
        ..PolicyStatus::default()
    }
}

#[test]
fn a_sentence_names_the_reason_the_sidecar_and_the_deciding_policy() {
    let workload = json!({
        "name": "shop/api-1", "account": "shop/api-account", "address": "127.0.0.1", "ports": [], "labels": {},
        "services": ["shop/api"], "outbound_listeners": [], "sidecar": "connected", "listeners": {},
    });
    let workloads: [WorkloadStatus; 1] = [from_value(workload).unwrap()];
    let route = json!({
        "kind": "HTTPRoute", "name": "shop/canary", "parents": ["shop/api"], "rules": 1,
        "backends": [], "problems": [],
    });
    let routes: [RouteStatus; 1] = [from_value(route).unwrap()];
    let policies = [
        policy_status("TrafficTarget", "shop/api-account"),
        policy_status("AccessPolicy", "shop/other"),
        policy_status("RateLimit", "shop/api"),
        policy_status("CircuitBreaker", "shop/apiary"),
        policy_status("JwtValidation", "shop/*"),
        policy_status("FaultInjection", "shop/other, shop/api:80"),
    ];
    let objects = MeshObjects { workloads: &workloads, routes: &routes, policies: &policies };
    for (reason, expected) in [
        ("no-policy-route", "; decided by TrafficTarget shop/traffictarget"),
        ("rate-limited", "; decided by RateLimit shop/ratelimit"),
        ("token-missing", "; decided by JwtValidation shop/jwtvalidation"),
        ("fault-injected", "; decided by FaultInjection shop/faultinjection"),
        ("circuit-open", ""),
        ("denied-by-policy", ""),
        ("no-route", "; decided by HTTPRoute shop/canary"),
        ("no-endpoint", ""),
    ] {
        let sentence = describe_rejection(&rejection_status(reason, "server", &[]), objects);
        let expected_start = format!(
            "shop/api: the mesh rejects 75.00 % of the requests with {reason} at the sidecar shop/api-1"
        );
        assert_eq!(sentence, format!("{expected_start}{expected}"));
    }
    let reported =
        rejection_status("rate-limited", "server", &["RateLimit shop/a", "RateLimit shop/b"]);
    let sentence = describe_rejection(&reported, objects);
    assert!(
        sentence.ends_with("; decided by one of RateLimit shop/a, RateLimit shop/b"),
        "{sentence}"
    );
}

#[test]
fn an_account_and_a_service_with_the_same_name_are_different_destinations() {
    let workload = json!({
        "name": "shop/api-1", "account": "shop/acct", "address": "127.0.0.1", "ports": [], "labels": {},
        "services": ["shop/api"], "outbound_listeners": [], "sidecar": "connected", "listeners": {},
    });
    let workloads: [WorkloadStatus; 1] = [from_value(workload).unwrap()];
    // A service has the name of the account, and an account that of the service.
    let policies =
        [policy_status("RateLimit", "shop/acct"), policy_status("TrafficTarget", "shop/api")];
    let objects = MeshObjects { workloads: &workloads, routes: &[], policies: &policies };
    for reason in ["rate-limited", "no-policy-route"] {
        let sentence = describe_rejection(&rejection_status(reason, "server", &[]), objects);
        assert!(!sentence.contains("decided by"), "{sentence}");
    }
}

#[test]
fn a_rejection_without_policies_states_that_no_policy_allows_the_request() {
    let no_objects = MeshObjects { workloads: &[], routes: &[], policies: &[] };
    let sentence =
        describe_rejection(&rejection_status("denied-outbound", "client", &[]), no_objects);
    let expected_end = "at the sidecar of its clients shop/api-1; no policy allows it";
    assert!(sentence.ends_with(expected_end), "{sentence}");
    let sentence = rejection_hint(&rejection_status("denied-outbound", "client", &[]));
    assert_eq!(
        sentence,
        "leno explain denied-outbound shows its meaning and hint; leno diagnose shop/web-1 --to shop/api"
    );
}

/// Only the server's sidecar knows that it rejected them, and it has not reported yet.
#[test]
fn a_rejection_counted_only_by_the_client_is_not_attributed_to_its_sidecar() {
    let no_objects = MeshObjects { workloads: &[], routes: &[], policies: &[] };
    let sentence =
        describe_rejection(&rejection_status("denied-by-policy", "client", &[]), no_objects);
    let expected_end = "with denied-by-policy, counted by the sidecar of its clients shop/api-1";
    assert!(sentence.ends_with(expected_end), "{sentence}");
}

#[test]
fn a_rejection_names_no_policy_if_none_allowed_the_request() {
    // It may be newer than the rejections.
    let policies =
        [policy_status("AccessPolicy", "shop/api"), policy_status("TrafficTarget", "shop/api")];
    let objects = MeshObjects { workloads: &[], routes: &[], policies: &policies };
    for reason in ["denied", "denied-outbound"] {
        let sentence = describe_rejection(&rejection_status(reason, "client", &[]), objects);
        assert!(sentence.ends_with("; no policy allows it"), "{sentence}");
        let sentence = describe_rejection(
            &rejection_status(reason, "server", &["AccessPolicy shop/audit"]),
            objects,
        );
        assert!(sentence.ends_with("; decided by AccessPolicy shop/audit"), "{sentence}");
    }
}

#[test]
fn a_few_rejections_are_not_reported() {
    for (requests, share, expected) in
        [(30, 0.75, true), (4, 1.0, false), (5, 1.0, true), (1000, 0.005, false)]
    {
        let rejection =
            RejectionStatus { requests, share, ..rejection_status("denied", "server", &[]) };
        assert_eq!(is_notable(&rejection), expected, "{requests} {share}");
    }
}

#[test]
fn requests_to_no_service_are_reported_for_their_client() {
    let no_objects = MeshObjects { workloads: &[], routes: &[], policies: &[] };
    let external_rejection = |reason| RejectionStatus {
        service: String::new(),
        sidecars: vec!["shop/web-1".to_owned()],
        ..rejection_status(reason, "client", &[])
    };
    let expected_start = "shop/web-1: the mesh rejects 75.00 % of its requests to destinations that are not services with";
    let unknown_service = external_rejection("unknown-service");
    assert_eq!(
        describe_rejection(&unknown_service, no_objects),
        format!("{expected_start} unknown-service")
    );
    assert!(
        rejection_hint(&unknown_service).ends_with("; leno diagnose shop/web-1"),
        "{}",
        rejection_hint(&unknown_service)
    );
    let unknown_head = describe_rejection(&external_rejection("head-too-large"), no_objects);
    let start_unknown =
        "shop/web-1: the mesh rejects 75.00 % of its requests without a known service with";
    assert_eq!(unknown_head, format!("{start_unknown} head-too-large"));
    let denied = describe_rejection(&external_rejection("egress-denied"), no_objects);
    let expected_end =
        "egress-denied; no policy allows it, and spec.egress of the MeshConfig is deny";
    assert_eq!(denied, format!("{expected_start} {expected_end}"));
}
