//! Which pods get a sidecar, by whose labels and annotations.

use leno_tests::cluster::{Namespace, http_server};

fn has_sidecar(metadata: &str, pod: &str) -> bool {
    let namespace = Namespace::with_metadata("injected", metadata);
    namespace.apply(&http_server("server", 1, pod));
    namespace.wait_ready();
    namespace.containers("server").contains("leno-proxy")
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn namespaces_of_osm_and_fsm_are_meshed_as_they_are() {
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
fn a_pod_decides_against_its_namespace_and_ignore_against_all() {
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
fn an_annotation_that_means_nothing_is_refused() {
    let namespace = Namespace::with_metadata("odd", "labels: {leno.dev/injection: enabled}");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {leno.dev/injection: perhaps}}, \
               spec: {containers: [{name: a, image: 'kc.local/pause:1'}]}}";
    let refused = namespace.try_apply(pod);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("perhaps"), "{said}");
}
