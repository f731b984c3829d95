//! An intermediate authority issued and renewed by real cert-manager controllers, as documented.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use leno_tests::{
    ApplicationResponse, TestApplication, TestProgram, cert_manager, eventually, free_port,
    leno_command,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{ApiServerProcess, run};

#[test]
#[ignore = "takes cert-manager's controllers: ./test cert-manager"]
fn an_authority_of_cert_manager_signs_and_is_renewed_without_a_restart() {
    run(async {
        let server = ApiServerProcess::start().await;
        let _controllers = start_issuer(&server).await;
        create_certificate(&server, documented_certificate()).await;
        let mesh = IssuedMesh::start(&server).await;
        let before = mesh.signed_chain(&server).await;
        let old_root =
            secret_text(&server.read(SECRET, "cert-manager", "company").await, "tls.crt");
        for (namespace, name) in [("cert-manager", "company"), ("leno-system", "leno-authority")] {
            renew_certificate(&server, namespace, name).await;
        }
        let after = mesh.signed_chain(&server).await;
        let new_root =
            secret_text(&server.read(SECRET, "cert-manager", "company").await, "tls.crt");
        // Members with the old roots and members with the new roots accept both chains.
        for roots in [old_root, new_root] {
            for chain in [&before, &after] {
                mesh.assert_verified(&roots, chain);
            }
        }
    });
}

#[test]
#[ignore = "takes cert-manager's controllers: ./test cert-manager"]
fn an_ingress_controller_is_admitted_with_a_certificate_of_the_issuer() {
    run(async {
        let server = ApiServerProcess::start().await;
        let _controllers = start_issuer(&server).await;
        create_certificate(&server, documented_certificate()).await;
        let client = create_certificate(&server, client_certificate()).await;
        let application = TestApplication::start(|_| ApplicationResponse::ok("here"));
        server.create_service("web", application.port()).await;
        server.define_kind(INGRESS_BACKEND).await;
        server
            .apply_object(INGRESS_BACKEND, Some("shop"), "web", ingress_policy(application.port()))
            .await;
        let mesh = IssuedMesh::start(&server).await;
        mesh.assert_verified(&published_roots(&server).await, &secret_text(&client, "tls.crt"));
        let listener = mesh.inbound_port();
        eventually("the controller gets a response", MAX_WAIT, || {
            (mesh.curl_application(listener, &client) == "here 200").then_some(())
        });
    });
}

#[test]
#[ignore = "takes cert-manager's controllers: ./test cert-manager"]
fn invalid_ca_certificates_are_rejected_with_a_hint() {
    run(async {
        let server = ApiServerProcess::start().await;
        let _controllers = start_issuer(&server).await;
        for (missing_field, expected) in [
            ("privateKey", "`tls.key` contains no P-256 private key: issue the authority with one"),
            (
                "isCA",
                "`tls.crt` must begin with a CA certificate for `tls.key`, followed by at most two",
            ),
        ] {
            let mut certificate = documented_certificate();
            certificate["spec"].as_object_mut().unwrap().remove(missing_field).unwrap();
            let namespace = missing_field.to_lowercase();
            certificate["metadata"]["namespace"] = json!(namespace);
            server.create_namespace(&namespace).await;
            create_certificate(&server, certificate).await;
            let directory = tempfile::tempdir().unwrap();
            let mut control_plane =
                start_control_plane(&server, &namespace, free_port(), directory.path());
            assert!(!control_plane.wait_for_exit(MAX_WAIT).success());
            let printed = control_plane.printed_output();
            assert!(printed.contains(expected), "{printed}");
        }
    });
}

/// Starts cert-manager and a ClusterIssuer with a generated root, the usual form of a company's authority.
async fn start_issuer(server: &ApiServerProcess) -> TestProgram {
    server.install_kinds("cert-manager.sh");
    for namespace in ["cert-manager", "leno-system", "ingress", "shop"] {
        server.create_namespace(namespace).await;
    }
    let mut command = Command::new(cert_manager());
    command.arg("--kubeconfig").arg(server.kubeconfig());
    let controllers = TestProgram::start("cert-manager", &mut command);
    server.apply_object(ISSUER, None, "itself", json!({"spec": {"selfSigned": {}}})).await;
    let root = json!({"metadata": {"name": "company", "namespace": "cert-manager"}, "spec": {
        "isCA": true,
        "secretName": "company",
        "commonName": "company",
        "privateKey": {"rotationPolicy": "Never"},
        "issuerRef": {"kind": "ClusterIssuer", "name": "itself"},
    }});
    create_certificate(server, root).await;
    server
        .apply_object(ISSUER, None, "company", json!({"spec": {"ca": {"secretName": "company"}}}))
        .await;
    controllers
}

/// Returns the Certificate from the documentation.
fn documented_certificate() -> Value {
    let mut blocks = include_str!("../../../docs/kubernetes.md").split("```");
    let certificate = blocks.find(|block| block.contains("\nkind: Certificate\n")).unwrap();
    serde_saphyr::from_str(certificate.strip_prefix("yaml\n").unwrap()).unwrap()
}

/// Returns the documented Certificate for an ingress controller.
fn client_certificate() -> Value {
    json!({"metadata": {"name": "leno-client", "namespace": "ingress"}, "spec": {
        "uris": ["spiffe://cluster.local/ns/ingress/sa/nginx"],
        "usages": ["client auth"],
        "secretName": "leno-client",
        "issuerRef": {"kind": "ClusterIssuer", "name": "company"},
    }})
}

/// Returns a policy that opens the application's port to the ingress controller.
fn ingress_policy(port: u16) -> Value {
    let backend = json!({
        "name": "web",
        "port": {"number": port, "protocol": "https"},
        "tls": {"skipClientCertValidation": false},
    });
    let source = json!({"kind": "AuthenticatedPrincipal", "name": "nginx.ingress.cluster.local"});
    json!({"spec": {"backends": [backend], "sources": [source]}})
}

/// Creates a Certificate and returns its Secret once cert-manager has issued it.
async fn create_certificate(server: &ApiServerProcess, certificate: Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (metadata, spec) = (&certificate["metadata"], &certificate["spec"]);
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let secret = text(&spec["secretName"]);
    server.apply_object(CERTIFICATE, Some(&namespace), &name, certificate).await;
    let is_ready = |certificate: &Value| {
        let conditions = certificate["status"]["conditions"].as_array();
        let is_ready = |entry: &Value| entry["type"] == "Ready" && entry["status"] == "True";
        conditions.is_some_and(|conditions| conditions.iter().any(is_ready))
    };
    server.wait_until(CERTIFICATE, Some(&namespace), &name, is_ready).await;
    server.read(SECRET, &namespace, &secret).await
}

/// Renews a certificate as `cmctl renew` does.
async fn renew_certificate(server: &ApiServerProcess, namespace: &str, name: &str) {
    let before = server.read(SECRET, namespace, name).await;
    let certificate = server.read(CERTIFICATE, namespace, name).await;
    let mut status = json!({"conditions": certificate["status"]["conditions"]});
    let issuing = json!({"type": "Issuing", "status": "True", "reason": "ManuallyTriggered"});
    status["conditions"].as_array_mut().unwrap().push(issuing);
    server.patch_status(CERTIFICATE, namespace, name, status).await;
    let is_renewed = |secret: &Value| secret["data"]["tls.crt"] != before["data"]["tls.crt"];
    server.wait_until(SECRET, Some(namespace), name, is_renewed).await;
}

/// Returns the roots that members trust, as published in the cluster.
async fn published_roots(server: &ApiServerProcess) -> String {
    let roots = server
        .wait_until("v1/ConfigMap", Some("leno-system"), "leno-roots", |map| {
            map["data"]["roots.pem"].is_string()
        })
        .await;
    roots["data"]["roots.pem"].as_str().unwrap().to_owned()
}

/// Returns a value of a Secret.
fn secret_text(secret: &Value, key: &str) -> String {
    let bytes = STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Starts a control plane with an authority in a namespace of the cluster.
fn start_control_plane(
    server: &ApiServerProcess,
    namespace: &str,
    port: u16,
    data_directory: &Path,
) -> TestProgram {
    let listen = format!("127.0.0.1:{port}");
    let mut command = leno_command();
    command.args(["control", "--kubernetes", "--page", "off", "--listen", &listen, "--data"]);
    command.arg(data_directory).env("KUBECONFIG", server.kubeconfig());
    command.env("POD_IP", "127.0.0.1").env("POD_NAMESPACE", namespace);
    TestProgram::start("leno control", &mut command)
}

/// A control plane, and the sidecar of the Pod `shop/web-1`.
struct IssuedMesh {
    directory: TempDir,
    _programs: [TestProgram; 2],
}

impl IssuedMesh {
    async fn start(server: &ApiServerProcess) -> Self {
        let namespace = json!({"metadata": {"annotations": {"leno.dev/default-policy": "deny"}}});
        server.apply_object("v1/Namespace", None, "shop", namespace).await;
        server
            .apply_object("v1/ServiceAccount", Some("shop"), "web", json!({"metadata": {}}))
            .await;
        server.create_pod("web-1", "127.0.0.1").await;
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let control_plane =
            start_control_plane(server, "leno-system", port, &directory.path().join("control"));
        control_plane.wait_for_line("control plane ready", MAX_WAIT);

        let token_file = directory.path().join("token");
        fs::write(&token_file, pod_token(server).await).unwrap();
        let mut command = leno_command();
        command.args(["proxy", "--workload", "shop/web-1", "--trust-domain", "cluster.local"]);
        command.arg("--control").arg(format!("127.0.0.1:{port}"));
        command
            .arg("--service-account-token")
            .arg(token_file)
            .env("LENO_ROOTS", published_roots(server).await);
        command.arg("--state").arg(directory.path().join("sidecar"));
        let sidecar = TestProgram::start("leno proxy", &mut command);
        Self { directory, _programs: [sidecar, control_plane] }
    }

    /// Returns the certificate chain of the sidecar once the authority in the Secret has signed it.
    async fn signed_chain(&self, server: &ApiServerProcess) -> String {
        let chain_file = self.directory.path().join("sidecar/credential.pem");
        let is_signed_by = |secret: &Value| {
            let signer = secret_text(secret, "tls.crt");
            fs::read_to_string(&chain_file).is_ok_and(|chain| chain.contains(signer.trim()))
        };
        server.wait_until(SECRET, Some("leno-system"), "leno-authority", is_signed_by).await;
        fs::read_to_string(&chain_file).unwrap()
    }

    fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Verifies a chain with openssl, an independent verifier.
    fn assert_verified(&self, roots: &str, chain: &str) {
        let (roots, chain) =
            (self.write_file("roots.pem", roots), self.write_file("chain.pem", chain));
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-no-CApath", "-no-CAstore", "-purpose", "sslclient", "-CAfile"]);
        let output = openssl.arg(roots).arg("-untrusted").arg(&chain).arg(&chain).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the port of the sidecar's inbound listener.
    fn inbound_port(&self) -> u16 {
        let data = self.directory.path().join("control");
        let find_port = || {
            let mut command = leno_command();
            command.args(["get", "workloads", "-o", "json", "--data"]).arg(&data);
            let output: Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
            let listeners = output[0]["listeners"].as_object()?.values().next()?.as_str()?;
            listeners.rsplit(':').next()?.parse().ok()
        };
        eventually("the sidecar has a listener", MAX_WAIT, find_port).0
    }

    /// Returns the application's response to an external client with the certificate in the Secret `client`.
    fn curl_application(&self, listener: u16, client: &Value) -> String {
        let file = |key: &str| self.write_file(key, &secret_text(client, key));
        let url = format!("https://web.shop.cluster.local:{listener}/");
        let mut curl = Command::new("curl");
        curl.args(["-s", "-w", " %{http_code}", "--tlsv1.3", "--cacert"]).arg(file("ca.crt"));
        curl.arg("--cert").arg(file("tls.crt")).arg("--key").arg(file("tls.key"));
        curl.arg("--resolve").arg(format!("web.shop.cluster.local:{listener}:127.0.0.1")).arg(url);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    }
}

/// Returns a token of the Pod's own account, as issued for the kubelet.
async fn pod_token(server: &ApiServerProcess) -> String {
    let pod = server.read("v1/Pod", "shop", "web-1").await;
    let bound_object = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": pod["metadata"]["uid"],
    });
    let request =
        json!({"metadata": {}, "spec": {"audiences": ["leno"], "boundObjectRef": bound_object}});
    let request: TokenRequest = serde_json::from_value(request).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(server.admin_client().await, "shop");
    let response = accounts.create_token_request("web", &PostParams::default(), &request).await;
    response.unwrap().status.unwrap().token
}

const CERTIFICATE: &str = "cert-manager.io/v1/Certificate";
const ISSUER: &str = "cert-manager.io/v1/ClusterIssuer";
const INGRESS_BACKEND: &str = "policy.openservicemesh.io/v1alpha1/IngressBackend";
const SECRET: &str = "v1/Secret";
const MAX_WAIT: Duration = Duration::from_secs(60);
