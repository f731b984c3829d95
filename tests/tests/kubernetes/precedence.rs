//! Precedence of the oldest object among several for the same traffic.

use std::time::{Duration, Instant};

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout};
use leno_tests::eventually;

/// Returns the reasons of the events about a split, separated by spaces.
fn event_reasons(namespace: &TestNamespace, split: &str) -> String {
    let selector = format!("--field-selector=involvedObject.name={split}");
    expect_stdout(&namespace.kubectl(&[
        "get",
        "events",
        &selector,
        "-o",
        "jsonpath={.items[*].reason}",
    ]))
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_older_split_takes_precedence_whatever_its_name() {
    let namespace = TestNamespace::new("older", SidecarInjection::Enabled);
    namespace.create_http_server("v1", 1);
    namespace.create_http_server("v2", 1);
    namespace.create_client("client");
    let split_manifest = |name: &str, backend: &str| {
        format!(
            "{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: {name}}}, \
             spec: {{service: v1, backends: [{{service: {backend}, weight: 100}}]}}}}"
        )
    };
    namespace.apply_manifests(&split_manifest("z-split", "v2"));
    namespace.wait_ready();
    let fetch_body = || namespace.curl("client", &["http://v1/"]).body;
    eventually("the split is in force", Duration::from_secs(60), || {
        fetch_body().starts_with("pod=v2-").then_some(())
    });
    // Creation timestamps have a resolution of one second.
    let created = Instant::now();
    eventually("the next object has a later timestamp", Duration::from_secs(60), || {
        (created.elapsed() > Duration::from_secs(2)).then_some(())
    });
    namespace.apply_manifests(&split_manifest("a-split", "v9"));
    eventually("the newer split has events", Duration::from_secs(60), || {
        let reasons = event_reasons(&namespace, "a-split");
        (reasons.contains("Conflicted") && reasons.contains("RefNotFound")).then_some(())
    });
    for _ in 0..20 {
        let body = fetch_body();
        assert!(body.starts_with("pod=v2-"), "{body}");
    }
    assert_eq!(event_reasons(&namespace, "z-split"), "");
    // The newer split applies once it is the only one.
    expect_stdout(&namespace.kubectl(&["delete", "trafficsplit", "z-split"]));
    namespace.expect_curl("client", &["http://v1/"], 0, 500);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_older_split_with_a_deleted_backend_takes_precedence() {
    let namespace = TestNamespace::new("older-dangling", SidecarInjection::Enabled);
    namespace.create_http_server("root", 1);
    namespace.create_http_server("v1", 1);
    namespace.create_http_server("v2", 1);
    namespace.create_client("client");
    let split_manifest = |name: &str, backend: &str| {
        format!(
            "{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: {name}}}, \
             spec: {{service: root, backends: [{{service: {backend}, weight: 100}}]}}}}"
        )
    };
    namespace.apply_manifests(&split_manifest("z-split", "v1"));
    namespace.wait_ready();
    let fetch = || namespace.curl("client", &["http://root/"]);
    eventually("the older split is in force", Duration::from_secs(60), || {
        fetch().body.starts_with("pod=v1-").then_some(())
    });
    // Creation timestamps have a resolution of one second.
    let created = Instant::now();
    eventually("the next object has a later timestamp", Duration::from_secs(60), || {
        (created.elapsed() > Duration::from_secs(2)).then_some(())
    });
    namespace.apply_manifests(&split_manifest("a-split", "v2"));
    expect_stdout(&namespace.kubectl(&["delete", "service", "v1"]));
    eventually("the backend is missing", Duration::from_secs(60), || {
        (fetch().status == 500).then_some(())
    });
    eventually("both have events", Duration::from_secs(60), || {
        let (old, new) =
            (event_reasons(&namespace, "z-split"), event_reasons(&namespace, "a-split"));
        (old.contains("RefNotFound") && new.contains("Conflicted")).then_some(())
    });
    expect_stdout(&namespace.kubectl(&["delete", "trafficsplit", "z-split"]));
    eventually("the newer split applies", Duration::from_secs(60), || {
        fetch().body.starts_with("pod=v2-").then_some(())
    });
}
