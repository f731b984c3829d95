//! Sidecar injection by labels and annotations.

use leno_tests::cluster::{
    SidecarInjection, TestNamespace, expect_stdout, http_server, program_image,
};

/// Returns true if a Pod gets a sidecar in a namespace with this metadata. `pod_metadata` is added to the metadata of
/// the Pod.
fn has_sidecar(metadata: &str, pod_metadata: &str) -> bool {
    let namespace = TestNamespace::with_metadata("injected", metadata);
    namespace.apply_manifests(&http_server("server", 1, pod_metadata));
    namespace.wait_ready();
    namespace.list_containers("server").contains("leno-proxy")
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn namespaces_with_annotations_of_osm_and_fsm_are_meshed() {
    assert!(has_sidecar(
        "labels: {openservicemesh.io/monitored-by: osm}, \
         annotations: {openservicemesh.io/sidecar-injection: enabled}",
        "",
    ));
    assert!(has_sidecar(
        "labels: {flomesh.io/monitored-by: fsm}, annotations: {flomesh.io/sidecar-injection: 'yes'}",
        "",
    ));
    assert!(!has_sidecar("labels: {openservicemesh.io/monitored-by: osm}", ""));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_annotation_of_a_pod_overrides_its_namespace_and_ignore_overrides_both() {
    assert!(!has_sidecar(
        "labels: {leno.dev/injection: enabled}",
        "annotations: {openservicemesh.io/sidecar-injection: disabled}",
    ));
    assert!(!has_sidecar(
        "labels: {openservicemesh.io/monitored-by: osm, openservicemesh.io/ignore: 'true'}, \
         annotations: {openservicemesh.io/sidecar-injection: enabled}",
        "",
    ));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_pod_with_an_invalid_annotation_is_rejected() {
    let namespace = TestNamespace::with_metadata("odd", "labels: {leno.dev/injection: enabled}");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {leno.dev/injection: perhaps}}, \
               spec: {containers: [{name: a, image: 'kc.local/pause:1'}]}}";
    let rejected = namespace.try_apply(pod);
    let stderr = String::from_utf8_lossy(&rejected.stderr);
    assert!(!rejected.status.success() && stderr.contains("perhaps"), "{stderr}");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_pod_with_an_unknown_annotation_or_without_cluster_dns_is_created_with_a_warning() {
    let namespace = TestNamespace::new("warned", SidecarInjection::Enabled);
    let create_pod = |name: &str, annotations: &str, spec: &str| {
        let image = program_image();
        namespace.try_apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, annotations: {{{annotations}}}}}, spec: {{{spec} \
             containers: [{{name: app, image: '{image}', imagePullPolicy: Never, args: [help]}}]}}}}"
        ))
    };
    let misspelled = create_pod("marked", "leno.dev/outbound-port-exclusion: '80'", "");
    let warnings = String::from_utf8_lossy(&misspelled.stderr).into_owned();
    assert!(misspelled.status.success(), "{warnings}");
    assert!(
        warnings.contains("did you mean `leno.dev/outbound-port-exclusion-list`?"),
        "{warnings}"
    );
    let no_dns = create_pod("nameless", "", "dnsPolicy: Default,");
    let warnings = String::from_utf8_lossy(&no_dns.stderr).into_owned();
    assert!(no_dns.status.success(), "{warnings}");
    assert!(warnings.contains("spec.dnsPolicy is Default"), "{warnings}");
    let default_container =
        "jsonpath={.metadata.annotations.kubectl\\.kubernetes\\.io/default-container}";
    assert_eq!(
        expect_stdout(&namespace.kubectl(&["get", "pod", "marked", "-o", default_container])),
        "app"
    );
}
