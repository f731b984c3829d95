//! Precedence of the oldest object among several for the same traffic.

use std::time::{Duration, Instant};

use leno_tests::cluster::{SidecarInjection, TestNamespace, stdout_of};
use leno_tests::eventually;

/// Returns the reasons of the events about a split.
fn event_reasons(namespace: &TestNamespace, split: &str) -> String {
    let field = format!("--field-selector=involvedObject.name={split}");
    stdout_of(&namespace.kubectl(&["get", "events", &field, "-o", "jsonpath={.items[*].reason}"]))
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_newer_split_displaces_no_older_one_whatever_its_name() {
    let namespace = TestNamespace::new("older", SidecarInjection::Enabled);
    namespace.http_server("v1", 1);
    namespace.http_server("v2", 1);
    namespace.create_client("client");
    let split = |name: &str, to: &str| {
        format!(
            "{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: {name}}}, \
             spec: {{service: v1, backends: [{{service: {to}, weight: 100}}]}}}}"
        )
    };
    namespace.apply_manifests(&split("z-split", "v2"));
    namespace.wait_ready();
    let reached = || namespace.curl("client", &["http://v1/"]).body;
    eventually("the split is in force", Duration::from_secs(60), || {
        reached().starts_with("pod=v2-").then_some(())
    });
    // Creation timestamps have a resolution of one second.
    let made = Instant::now();
    eventually("the next object is younger", Duration::from_secs(60), || {
        (made.elapsed() > Duration::from_secs(2)).then_some(())
    });
    namespace.apply_manifests(&split("a-split", "v9"));
    eventually("the newer one has events", Duration::from_secs(60), || {
        let reasons = event_reasons(&namespace, "a-split");
        (reasons.contains("Conflicted") && reasons.contains("RefNotFound")).then_some(())
    });
    for _ in 0..20 {
        let body = reached();
        assert!(body.starts_with("pod=v2-"), "{body}");
    }
    assert_eq!(event_reasons(&namespace, "z-split"), "");
    // The newer one decides once it is the only one.
    stdout_of(&namespace.kubectl(&["delete", "trafficsplit", "z-split"]));
    namespace.expect_curl("client", &["http://v1/"], 0, 500);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_older_split_whose_backend_is_deleted_still_decides() {
    let namespace = TestNamespace::new("older-dangling", SidecarInjection::Enabled);
    namespace.http_server("root", 1);
    namespace.http_server("v1", 1);
    namespace.http_server("v2", 1);
    namespace.create_client("client");
    let split = |name: &str, to: &str| {
        format!(
            "{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: {name}}}, \
             spec: {{service: root, backends: [{{service: {to}, weight: 100}}]}}}}"
        )
    };
    namespace.apply_manifests(&split("z-split", "v1"));
    namespace.wait_ready();
    let answer = || namespace.curl("client", &["http://root/"]);
    eventually("the older split is in force", Duration::from_secs(60), || {
        answer().body.starts_with("pod=v1-").then_some(())
    });
    // Creation timestamps have a resolution of one second.
    let made = Instant::now();
    eventually("the next object is younger", Duration::from_secs(60), || {
        (made.elapsed() > Duration::from_secs(2)).then_some(())
    });
    namespace.apply_manifests(&split("a-split", "v2"));
    stdout_of(&namespace.kubectl(&["delete", "service", "v1"]));
    eventually("the backend is missing", Duration::from_secs(60), || {
        (answer().status == 500).then_some(())
    });
    eventually("both have events", Duration::from_secs(60), || {
        let (old, new) =
            (event_reasons(&namespace, "z-split"), event_reasons(&namespace, "a-split"));
        (old.contains("RefNotFound") && new.contains("Conflicted")).then_some(())
    });
    stdout_of(&namespace.kubectl(&["delete", "trafficsplit", "z-split"]));
    eventually("the younger split decides alone", Duration::from_secs(60), || {
        answer().body.starts_with("pod=v2-").then_some(())
    });
}
