//! SMI policies as used with OSM: the same objects lead to the same decisions.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl};
use leno_tests::eventually;

/// The account `one` may send any request, the account `two` only requests for `/foo`.
const TRAFFIC_TARGETS: &str = "
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: routes}
spec:
  matches:
  - {name: all, pathRegex: '.*', methods: ['*']}
  - {name: foo, pathRegex: '/foo', methods: [GET]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: one}
spec:
  destination: {kind: ServiceAccount, name: server, namespace: NAMESPACE}
  rules: [{kind: HTTPRouteGroup, name: routes, matches: [all]}]
  sources: [{kind: ServiceAccount, name: one, namespace: NAMESPACE}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: two}
spec:
  destination: {kind: ServiceAccount, name: server, namespace: NAMESPACE}
  rules: [{kind: HTTPRouteGroup, name: routes, matches: [foo]}]
  sources: [{kind: ServiceAccount, name: two, namespace: NAMESPACE}]
";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn traffic_targets_permit_requests_in_a_strict_namespace() {
    let namespace = TestNamespace::with_metadata(
        "targets",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}",
    );
    namespace.create_http_server("server", 1);
    namespace.create_client("one");
    namespace.create_client("two");
    namespace.create_client("three");
    namespace.wait_ready();
    namespace.apply_manifests(&TRAFFIC_TARGETS.replace("NAMESPACE", namespace.name()));
    namespace.expect_curl("one", &["http://server/anything"], 0, 200);
    namespace.expect_curl("two", &["http://server/foo"], 0, 200);
    namespace.expect_curl("two", &["http://server/anything"], 0, 403);
    namespace.expect_curl("three", &["http://server/foo"], 0, 403);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_split_distributes_the_requests_for_its_root() {
    let namespace = TestNamespace::new("split", SidecarInjection::Enabled);
    namespace.create_http_server("v1", 1);
    namespace.create_http_server("v2", 1);
    namespace.create_client("client");
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: root}, spec: {selector: {app: v1}, ports: [
  {name: http, port: 80, targetPort: http}]}}
---
{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {name: split}, spec: {service: root, backends: [
  {service: v1, weight: 0}, {service: v2, weight: 100}]}}
",
    );
    namespace.wait_ready();
    let replying_pod = |url: &str| {
        let body = namespace.curl("client", &[url]).body;
        body.split_whitespace().next().unwrap_or_default().to_owned()
    };
    namespace.expect_curl("client", &["http://root/"], 0, 200);
    namespace.expect_curl("client", &["http://v1/"], 0, 200);
    for _ in 0..10 {
        assert!(replying_pod("http://root/").starts_with("pod=v2-"));
        assert!(replying_pod("http://v1/").starts_with("pod=v1-"));
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_changed_default_policy_of_a_namespace_applies_to_running_pods() {
    let namespace = TestNamespace::new("modes", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("one");
    namespace.create_client("three");
    namespace.wait_ready();
    namespace.expect_curl("three", &["http://server/foo"], 0, 200);
    let annotate = |suffix: &str| {
        let annotation = format!("leno.dev/default-policy{suffix}");
        expect_stdout(&kubectl(&[
            "annotate",
            "--overwrite",
            "namespace",
            namespace.name(),
            &annotation,
        ]));
    };
    annotate("=deny");
    namespace.expect_curl("three", &["http://server/foo"], 0, 403);
    namespace.apply_manifests(&TRAFFIC_TARGETS.replace("NAMESPACE", namespace.name()));
    namespace.expect_curl("one", &["http://server/foo"], 0, 200);
    namespace.expect_curl("three", &["http://server/foo"], 0, 403);
    annotate("-");
    namespace.expect_curl("three", &["http://server/foo"], 0, 200);
    annotate("=deny");
    expect_stdout(&namespace.kubectl(&["delete", "traffictarget", "one", "two"]));
    namespace.expect_curl("one", &["http://server/foo"], 0, 403);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_traffic_target_of_another_namespace_allows_nothing() {
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}";
    let namespace = TestNamespace::with_metadata("astray", metadata);
    let unmeshed_namespace = TestNamespace::new("another", SidecarInjection::Disabled);
    let member_namespace = TestNamespace::new("member", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("one");
    namespace.create_client("two");
    namespace.wait_ready();
    let targets = TRAFFIC_TARGETS.replace("NAMESPACE", namespace.name());
    // The same objects allow it in their own namespace.
    namespace.apply_manifests(&targets);
    namespace.expect_curl("one", &["http://server/foo"], 0, 200);
    expect_stdout(&namespace.kubectl(&["delete", "traffictarget", "one", "two"]));
    namespace.expect_curl("one", &["http://server/foo"], 0, 403);
    // In another namespace of the mesh they are rejected at admission.
    let rejection = member_namespace.try_apply(&targets);
    let stderr = String::from_utf8_lossy(&rejection.stderr);
    assert!(!rejection.status.success(), "{stderr}");
    assert!(stderr.contains("is not the namespace of the TrafficTarget"), "{stderr}");
    assert_eq!(
        expect_stdout(&member_namespace.kubectl(&["get", "traffictargets", "-o", "name"])),
        ""
    );
    // Outside the mesh they are accepted without effect, as in OSM with its webhook disabled.
    unmeshed_namespace.apply_manifests(&targets);
    // An object applied after them is in force, so they have been read.
    let (_, last_target) = targets.rsplit_once("---\n").expect("the last one is that of `two`");
    namespace.apply_manifests(last_target);
    namespace.expect_curl("two", &["http://server/foo"], 0, 200);
    namespace.expect_curl("one", &["http://server/foo"], 0, 403);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_root_of_a_split_may_be_a_backend() {
    let namespace = TestNamespace::new("recursive", SidecarInjection::Enabled);
    namespace.create_http_server("v1", 1);
    namespace.create_http_server("v2", 1);
    namespace.create_client("client");
    namespace.apply_manifests(
        "{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {name: split}, spec: {service: v1, backends: [
  {service: v1, weight: 50}, {service: v2, weight: 50}]}}",
    );
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://v1/"], 0, 200);
    for version in ["pod=v1-", "pod=v2-"] {
        eventually("each version gets requests", Duration::from_secs(60), || {
            namespace.curl("client", &["http://v1/"]).body.starts_with(version).then_some(())
        });
    }
}

/// Opens the server's port to the Pods behind a Service of another namespace, as an IngressBackend or an
/// AccessControl.
const INGRESS_BACKEND: &str = "
apiVersion: policy.openservicemesh.io/v1alpha1
kind: KIND
metadata: {name: opening}
spec:
  backends: [{name: server, port: {number: 8080, protocol: http}}]
  sources: [{kind: Service, name: ingress, namespace: OUTSIDE}]
";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_ingress_backend_admits_the_pods_of_a_service() {
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}";
    let namespace = TestNamespace::with_metadata("opened", metadata);
    let external_namespace = TestNamespace::new("outside", SidecarInjection::Disabled);
    namespace.create_http_server("server", 1);
    external_namespace.create_client("ingress");
    external_namespace.create_client("other");
    external_namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: ingress}, \
         spec: {selector: {app: ingress}, ports: [{port: 80}]}}",
    );
    namespace.wait_ready();
    external_namespace.wait_ready();
    let url = format!("http://server.{}/", namespace.name());
    external_namespace.expect_curl("ingress", &[&url], 56, 0);
    let ingress_backend = |kind: &str| {
        INGRESS_BACKEND.replace("KIND", kind).replace("OUTSIDE", external_namespace.name())
    };
    namespace.apply_manifests(&ingress_backend("IngressBackend"));
    external_namespace.expect_curl("ingress", &[&url], 0, 200);
    external_namespace.expect_curl("other", &[&url], 56, 0);
    // Another object for the same port reports in its status that it has no effect.
    namespace.apply_manifests(&ingress_backend("AccessControl"));
    let expect_status = |kind: &str, expected: &str| {
        let path = "jsonpath={.status.currentStatus}";
        eventually(&format!("{kind} is {expected}"), Duration::from_secs(60), || {
            let status = expect_stdout(&namespace.kubectl(&["get", kind, "opening", "-o", path]));
            (status.trim() == expected).then_some(())
        });
    };
    expect_status("ingressbackends.policy.openservicemesh.io", "committed");
    expect_status("accesscontrols.policy.openservicemesh.io", "error");
    expect_stdout(&namespace.kubectl(&[
        "delete",
        "ingressbackends.policy.openservicemesh.io",
        "opening",
    ]));
    expect_status("accesscontrols.policy.openservicemesh.io", "committed");
    external_namespace.expect_curl("ingress", &[&url], 0, 200);
    expect_stdout(&namespace.kubectl(&[
        "delete",
        "accesscontrols.policy.openservicemesh.io",
        "opening",
    ]));
    external_namespace.expect_curl("ingress", &[&url], 56, 0);
}
