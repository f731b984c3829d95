//! Two meshes in one cluster: while namespaces move from one to the other, every workload is reachable;
//! afterwards, workloads left in the old mesh are rejected.

use leno_tests::cluster::{
    SidecarInjection, TestNamespace, apply_globally, expect_stdout, kubectl, kubectl_with,
};

/// OSM's labels and annotations of a namespace in its mesh; Leno supports them as well.
const OTHER_MESH_METADATA: &str = "labels: {openservicemesh.io/monitored-by: foreign}, \
                            annotations: {openservicemesh.io/sidecar-injection: enabled}";

/// The webhook of the other mesh, called for the same Pods as Leno's.
struct OtherMesh {
    /// The namespace in which it runs, deleted with it.
    _mesh_namespace: TestNamespace,
}

impl OtherMesh {
    fn new() -> Self {
        let mesh_namespace = TestNamespace::new("other-mesh", SidecarInjection::Disabled);
        let name = format!("injector.{}.svc", mesh_namespace.name());
        let certified_key = rcgen::generate_simple_self_signed(vec![name]).expect("a certificate");
        let (certificate, key) =
            (certified_key.cert.pem(), certified_key.signing_key.serialize_pem());
        let secret = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "injector"},
            "stringData": {"tls.crt": certificate, "tls.key": key},
        });
        mesh_namespace.apply_manifests(&secret.to_string());
        mesh_namespace.apply_manifests(
            "{apiVersion: v1, kind: Pod, metadata: {name: injector, labels: {app: injector}}, spec: {
  volumes: [{name: keys, secret: {secretName: injector}}], containers: [{name: injector, image: 'kc.local/testapp:1',
  imagePullPolicy: Never, args: [webhook, -certificate, /keys/tls.crt, -key, /keys/tls.key],
  readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}, volumeMounts: [{name: keys, mountPath: /keys}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: injector}, spec: {selector: {app: injector}, ports: [{port: 8443}]}}
",
        );
        mesh_namespace.wait_ready();
        let bundle = expect_stdout(&kubectl_with(
            &[
                "create",
                "secret",
                "generic",
                "bundle",
                "--dry-run=client",
                "--from-file=bundle=/dev/stdin",
                "-o",
                "jsonpath={.data.bundle}",
            ],
            &certificate,
        ));
        apply_globally(&format!(
            "{{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {{name: osm-webhook-foreign}},
webhooks: [{{name: osm-inject.k8s.io, sideEffects: None, admissionReviewVersions: [v1], failurePolicy: Fail,
  clientConfig: {{caBundle: {bundle}, service: {{namespace: {}, name: injector, port: 8443, path: /mutate-pod-creation}}}},
  rules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}}],
  namespaceSelector: {{matchLabels: {{openservicemesh.io/monitored-by: foreign}}}}}}]}}",
            mesh_namespace.name()
        ));
        Self { _mesh_namespace: mesh_namespace }
    }
}

impl Drop for OtherMesh {
    fn drop(&mut self) {
        let configuration = ["delete", "mutatingwebhookconfiguration", "osm-webhook-foreign"];
        drop(kubectl(&configuration));
    }
}

/// Returns two flags about the Pods of an application: true if they have a sidecar of Leno, and true if they have a
/// sidecar of the other mesh.
fn sidecars_present(namespace: &TestNamespace, app: &str) -> (bool, bool) {
    let containers = namespace.list_containers(app);
    (containers.contains("leno-proxy"), containers.split(' ').any(|name| name == "envoy"))
}

fn annotate_namespace(namespace: &TestNamespace, annotation: &str) {
    expect_stdout(&kubectl(&[
        "annotate",
        "--overwrite",
        "namespace",
        namespace.name(),
        annotation,
    ]));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn namespaces_move_from_another_mesh_one_by_one() {
    let other_mesh = OtherMesh::new();
    let moving_namespace = TestNamespace::with_metadata("moving", OTHER_MESH_METADATA);
    let moved_namespace = TestNamespace::with_metadata(
        "moved",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/mtls: permissive}",
    );
    for namespace in [&moving_namespace, &moved_namespace] {
        namespace.create_http_server("server", 2);
        namespace.create_client("client");
    }
    moving_namespace.create_client("straggler");
    moving_namespace.wait_ready();
    moved_namespace.wait_ready();
    // Each Pod has one sidecar, although both meshes support the label.
    for app in ["server", "client", "straggler"] {
        assert_eq!(sidecars_present(&moving_namespace, app), (false, true), "{app}");
    }
    assert_eq!(sidecars_present(&moved_namespace, "server"), (true, false));
    let server_url = |namespace: &TestNamespace| format!("http://server.{}/", namespace.name());
    let (moving_url, moved_url) = (server_url(&moving_namespace), server_url(&moved_namespace));
    moving_namespace.expect_curl("client", &[&moved_url], 0, 200);
    moved_namespace.expect_curl("client", &[&moving_url], 0, 200);

    // The namespace leaves the other mesh, and all but one of its workloads restart.
    let name = moving_namespace.name();
    let labels = [
        "label",
        "namespace",
        name,
        "openservicemesh.io/monitored-by-",
        "leno.dev/injection=enabled",
    ];
    expect_stdout(&kubectl(&labels));
    annotate_namespace(&moving_namespace, "openservicemesh.io/sidecar-injection-");
    annotate_namespace(&moving_namespace, "leno.dev/mtls=permissive");
    expect_stdout(&moving_namespace.kubectl(&["rollout", "restart", "deployment/server"]));
    expect_stdout(&moving_namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    expect_stdout(&moving_namespace.kubectl(&["delete", "pod", "client"]));
    moving_namespace.create_client("client");
    moving_namespace.wait_ready();
    assert_eq!(sidecars_present(&moving_namespace, "client"), (true, false));
    assert_eq!(sidecars_present(&moving_namespace, "straggler"), (false, true));
    for url in [&moved_url, &moving_url] {
        for client in [
            (&moving_namespace, "client"),
            (&moved_namespace, "client"),
            (&moving_namespace, "straggler"),
        ] {
            client.0.expect_curl(client.1, &[url], 0, 200);
        }
    }

    // The migration is complete: a workload left behind is reset from now on.
    for namespace in [&moving_namespace, &moved_namespace] {
        annotate_namespace(namespace, "leno.dev/mtls-");
    }
    for url in [&moved_url, &moving_url] {
        moving_namespace.expect_curl("straggler", &[url], 56, 0);
        for namespace in [&moving_namespace, &moved_namespace] {
            namespace.expect_curl("client", &[url], 0, 200);
        }
    }
    drop(other_mesh);
}
