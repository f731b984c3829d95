//! Unprivileged Pods in a cluster with the CNI plugin (`leno install --cni`).

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, http_server};

/// The metadata of a meshed namespace whose Pods must run as an unprivileged user without capabilities.
const RESTRICTED: &str =
    "labels: {leno.dev/injection: enabled, pod-security.kubernetes.io/enforce: restricted}";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_pod_of_a_restricted_namespace_is_meshed() {
    let namespace = TestNamespace::with_metadata("restricted", RESTRICTED);
    let unmeshed = TestNamespace::new("strange", SidecarInjection::Disabled);
    let security = "runAsNonRoot: true, runAsUser: 2000, seccompProfile: {type: RuntimeDefault}";
    let container = "allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}";
    let server = http_server("server", 1, "")
        .replace(
            "      containers:\n",
            &format!("      securityContext: {{{security}}}\n      containers:\n"),
        )
        .replace(
            "args: [http, -linger, 8s]",
            &format!("args: [http, -linger, 8s]\n        securityContext: {{{container}}}"),
        );
    namespace.apply_manifests(&server);
    namespace.apply_manifests(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: client}}, spec: {{securityContext: {{{security}}}, \
         terminationGracePeriodSeconds: 1, containers: [{{name: client, image: 'kc.local/toolbox:1', \
         imagePullPolicy: Never, securityContext: {{{container}}}, command: [sh, -c, 'sleep infinity']}}]}}}}"
    ));
    unmeshed.create_client("client");
    namespace.wait_ready();
    unmeshed.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let url = format!("http://server.{}/", namespace.name());
    unmeshed.expect_curl("client", &[&url], 56, 0);
    let capabilities =
        "jsonpath={.items[*].spec.initContainers[*].securityContext.capabilities.add}";
    let added_capabilities =
        expect_stdout(&namespace.kubectl(&["get", "pods", "-o", capabilities]));
    assert_eq!(added_capabilities, "");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_plugin_applies_exclusions() {
    let namespace = TestNamespace::new("excluded", SidecarInjection::Enabled);
    let unmeshed = TestNamespace::new("outside", SidecarInjection::Disabled);
    namespace.apply_manifests(&http_server(
        "server",
        1,
        "annotations: {leno.dev/inbound-port-exclusion-list: '8080'}",
    ));
    unmeshed.create_client("client");
    namespace.wait_ready();
    unmeshed.wait_ready();
    unmeshed.expect_curl("client", &[&format!("http://server.{}/", namespace.name())], 0, 200);
}
