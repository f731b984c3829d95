//! IngressBackends with TLS: external clients by certificate.

use std::time::Duration;

use leno_tests::cluster::{CurlResult, SidecarInjection, TestNamespace, expect_stdout, kubectl};
use leno_tests::eventually;
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// Opens the server's port to external clients, with TLS terminated by the sidecar.
const INGRESS_BACKEND: &str = "
apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: opening}
spec:
  backends: [{name: server, port: {number: 8080, protocol: https}, tls: {skipClientCertValidation: SKIPPED}}]
  sources: [SOURCES]
";

/// Returns the value of a key of the Secret of the mesh's authority.
fn read_authority_value(key: &str) -> String {
    let template = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
    expect_stdout(&kubectl(&[
        "-n",
        "leno-system",
        "get",
        "secret",
        "leno-authority",
        "-o",
        &template,
    ]))
}

/// Returns the certificate and the key of an account of this mesh, for an ingress controller outside it.
fn issue_certificate(account: &str, namespace: &TestNamespace) -> String {
    let signing_key =
        KeyPair::from_pem(&read_authority_value("ca.key")).expect("the key of the root");
    let root_pem = read_authority_value("ca.pem");
    let issuer = Issuer::from_ca_cert_pem(&root_pem, signing_key).expect("the root");
    let leaf_key = KeyPair::generate().expect("a key");
    let id = format!("spiffe://cluster.local/ns/{}/sa/{account}", namespace.name());
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![SanType::URI(id.try_into().expect("ASCII"))];
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.use_authority_key_identifier_extension = true;
    parameters.signed_by(&leaf_key, &issuer).expect("a certificate").pem()
        + &leaf_key.serialize_pem()
}

/// Waits until requests without a certificate are reset five times in a row. TLS 1.3 reports the missing certificate
/// after the handshake, while the client sends its request (55) or waits for the response (56).
fn wait_until_rejected(external_namespace: &TestNamespace, url: &str) {
    eventually("requests without a certificate are reset", Duration::from_secs(90), || {
        let results =
            external_namespace.curl_repeatedly("controller", 5, &["-k", "--http1.1", url]);
        let is_reset = |result: &CurlResult| matches!(result.exit, 55 | 56) && result.status == 0;
        (results.len() == 5 && results.iter().all(is_reset)).then_some(())
    });
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_ingress_backend_with_tls_admits_a_principal_by_its_certificate() {
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}";
    let namespace = TestNamespace::with_metadata("entered", metadata);
    let external_namespace = TestNamespace::new("ingress", SidecarInjection::Disabled);
    namespace.create_http_server("server", 1);
    external_namespace.create_client("controller");
    namespace.wait_ready();
    external_namespace.wait_ready();
    for account in ["controller", "other"] {
        // Passed as an argument: the input of `kubectl exec -i` can be lost.
        let file = format!("echo \"$0\" > /tmp/{account}.pem");
        let write = ["sh", "-c", &file, &issue_certificate(account, &external_namespace)];
        expect_stdout(&external_namespace.exec("controller", &write));
    }
    let url = format!("https://server.{}:80/", namespace.name());
    let with_certificate = |file: &'static str| ["-k", "--cert", file, url.as_str()];
    let controller_arguments = with_certificate("/tmp/controller.pem");
    let expect = |arguments: &[&str], exit: i32, status: u16| {
        external_namespace.expect_curl("controller", arguments, exit, status);
    };
    // No port is open: the controller has a certificate of the mesh, but no policy names it.
    expect(&controller_arguments, 0, 403);
    let ingress_backend = |skipped: &str, sources: &str| {
        INGRESS_BACKEND.replace("SKIPPED", skipped).replace("SOURCES", sources)
    };
    let principal = format!("controller.{}.cluster.local", external_namespace.name());
    let principal = format!("{{kind: AuthenticatedPrincipal, name: {principal}}}");
    namespace.apply_manifests(&ingress_backend("false", &principal));
    expect(&controller_arguments, 0, 200);
    expect(&with_certificate("/tmp/other.pem"), 0, 403);
    wait_until_rejected(&external_namespace, &url);
    expect(&[&url.replace("https", "http")], 56, 0);
    // No certificate is required: any client with an address in the range is accepted.
    namespace.apply_manifests(&ingress_backend("true", "{kind: IPRange, name: 10.0.0.0/8}"));
    expect(&["-k", &url], 0, 200);
    let kind = "ingressbackends.policy.openservicemesh.io";
    expect_stdout(&namespace.kubectl(&["delete", kind, "opening"]));
    wait_until_rejected(&external_namespace, &url);
    expect(&controller_arguments, 0, 403);
}
