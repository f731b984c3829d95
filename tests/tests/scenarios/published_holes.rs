//! Nine published vulnerabilities of the meshes that Leno replaces, with Leno's behavior instead.
//!
//! docs/security.md lists the vulnerabilities with these tests.

mod api_server;
mod intruder;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_manifest, server_with_protocol,
    tcp_access_manifest,
};
use leno_tests::{
    ControlProgram, SidecarProgram, TestApplication, TestConnection, TestMesh, eventually,
    exchange_bytes, free_port, get, leno_command,
};

use self::api_server::FakeApiServer;
use self::intruder::{ByteForwarder, attack_responses, key_material, listening_addresses};

/// A mesh of two machines that denies by default: `web` calls `stock`, which no policy allows.
struct TwoMachineMesh {
    control: ControlProgram,
    web: SidecarProgram,
    stock: SidecarProgram,
    _application: TestApplication,
}

impl TwoMachineMesh {
    fn start() -> Self {
        let application = TestApplication::start_echo();
        let manifests = [
            mesh_config("deny"),
            server_manifest("stock", application.port(), &[]),
            client_manifest("web", &[], &[("stock", free_port())]),
        ];
        let control = ControlProgram::start(&manifests.concat(), &["--health", "127.0.0.1:0"]);
        let health_options = ["--health", "127.0.0.1:0"];
        let stock = SidecarProgram::join(&control, "shop/stock-1", &health_options);
        let web = SidecarProgram::join(&control, "shop/web-1", &health_options);
        Self { control, web, stock, _application: application }
    }

    /// Returns a part of the text of each private key in the mesh.
    fn private_keys(&self) -> Vec<String> {
        let state_directories =
            ["shop/stock-1", "shop/web-1"].map(|workload| self.control.state_directory(workload));
        let keys: Vec<String> = state_directories
            .iter()
            .chain([&self.control.data_directory()])
            .flat_map(|state_directory| key_material(state_directory))
            .collect();
        assert!(keys.len() >= 3, "a key of each sidecar, and that of the authority");
        keys
    }
}

/// a. Any client reads the configuration of any sidecar, including keys, and changes the configuration.
#[test]
fn a_no_client_without_a_certificate_controls_the_data_plane() {
    let machines = TwoMachineMesh::start();
    let keys = machines.private_keys();
    let ports = listening_addresses(machines.control.program.pid());
    assert!(ports.contains(&machines.control.listen_address()), "{ports:?}");
    for port in ports {
        for (request, response) in attack_responses(port) {
            let response_text = String::from_utf8_lossy(&response.body);
            let is_leaked = keys.iter().any(|key| response_text.contains(key.as_str()));
            assert!(
                !is_leaked && !response_text.contains("PRIVATE KEY"),
                "{port} {request}: a key"
            );
            let is_read = request.starts_with("GET ");
            assert!(
                is_read || !(200..300).contains(&response.status),
                "{port} {request} is accepted"
            );
        }
    }
    // The sidecars' port accepts only TLS, and requires a certificate.
    let address = machines.control.listen_address();
    let plain_result = exchange_bytes(
        address,
        "GET /api/v1/repo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    );
    assert!(plain_result.is_err(), "{plain_result:?}");
    let output = Command::new("timeout")
        .args(["20", "openssl", "s_client", "-quiet", "-alpn", "leno-discovery/1", "-connect"])
        .arg(address.to_string())
        .output()
        .expect("openssl runs");
    assert_ne!(output.status.code(), Some(124), "the control plane ends the session: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// a, in a cluster: an admission review gives no access to the API server, and so not to the authority's key.
#[test]
fn a_no_pod_reads_the_api_server_through_the_webhook() {
    let mesh = FakeApiServer::with_control_plane();
    let authority_key = mesh.authority_key();
    for namespace in [
        "leno-system/secrets/leno-authority",
        "shop/../leno-system/secrets/leno-authority",
        "..",
        "shop?watch=true",
        "shop#",
        "leno-system%2fsecrets%2fleno-authority",
        "shop\u{0}",
        "",
        &"a".repeat(64),
    ] {
        let paths_before = mesh.received_paths();
        let status = mesh.send_review(namespace);
        assert_eq!(status, 400, "{namespace:?}");
        let requested_paths = mesh.received_paths().split_off(paths_before.len());
        let is_leaked = requested_paths
            .iter()
            .any(|path| path.contains("leno-authority") || path.contains(".."));
        assert!(!is_leaked, "{namespace:?}: {requested_paths:?}");
    }
    assert_eq!(mesh.send_review("shop"), 200, "a review of a namespace gets a response");
    let control_log = mesh.control_log();
    assert!(
        !control_log.contains(&authority_key) && !control_log.contains("PRIVATE KEY"),
        "a key is in the log"
    );
}

/// b. Policies trust a header with the caller's identity.
#[test]
fn b_no_header_is_an_identity() {
    let stock = TestApplication::start_echo();
    let (allowed_port, denied_port) = (free_port(), free_port());
    let manifests = [
        mesh_config("deny"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", allowed_port)]),
        client_manifest("other", &[], &[("stock", denied_port)]),
        http_access_manifest("web", "stock", ".*"),
        // The client's own sidecar permits the request: only the server's sidecar decides.
        http_access_manifest("other", "stock", "/public"),
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let identity_headers = "serviceidentity: web.shop\r\n\
                  x-forwarded-client-cert: By=x;URI=spiffe://cluster.local/ns/shop/sa/web\r\n\
                  l5d-client-id: web.shop.serviceaccount.identity.cluster.local\r\n";
    for (port, headers, status) in [
        (allowed_port, "", 200),
        (denied_port, "", 403),
        (denied_port, identity_headers, 403),
        (allowed_port, identity_headers, 200),
    ] {
        let head =
            format!("GET /private HTTP/1.1\r\nhost: stock\r\n{headers}connection: close\r\n\r\n");
        assert_eq!(
            exchange_bytes(loopback_address(port), &head).unwrap().status,
            status,
            "{port} {headers}"
        );
    }
}

/// c. Every member can connect to every TCP port, regardless of policies.
#[test]
fn c_a_tcp_port_needs_a_policy() {
    let mesh = TcpShop::start_shop();
    assert!(mesh.is_closed(), "no policy allows the connection");
    mesh.test_mesh.write("tcp.yaml", &tcp_access_manifest("web", "stock"));
    eventually("the policy opens the port", MAX_WAIT, || (!mesh.is_closed()).then_some(()));
    mesh.test_mesh.remove("tcp.yaml");
    eventually("without the policy the port is closed", MAX_WAIT, || {
        mesh.is_closed().then_some(())
    });
}

/// d. A client accepts every certificate of the mesh for every service.
#[test]
fn d_a_client_verifies_which_service_the_server_is() {
    let (stock, intruder) = (TestApplication::start_echo(), TestApplication::start_echo());
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        server_manifest("intruder", intruder.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
    ];
    let control = ControlProgram::start(&manifests.concat(), &[]);
    let mut stock_sidecar = SidecarProgram::join(&control, "shop/stock-1", &[]);
    let intruder_sidecar = SidecarProgram::join(&control, "shop/intruder-1", &[]);
    let _client = SidecarProgram::join(&control, "shop/web-1", &[]);
    let send_request = || get(loopback_address(listener), "/items").ok();
    eventually("the service responds", MAX_WAIT, || {
        send_request().filter(|response| response.status == 200)
    });
    // A server with a mesh certificate of another account takes the address of the service.
    let stock_address = stock_sidecar.admin_endpoint.inbound_listener(stock.port());
    stock_sidecar.kill();
    let _forwarder = ByteForwarder::start(
        stock_address,
        intruder_sidecar.admin_endpoint.inbound_listener(intruder.port()),
    );
    let is_rejected =
        || send_request().filter(|response| response.rejection_reason() == Some("wrong-identity"));
    let (response, _) = eventually("the client notices", MAX_WAIT, is_rejected);
    assert_eq!(response.status, 502);
}

/// e. A pattern matches in the middle of a path, and in the query.
#[test]
fn e_a_pattern_matches_the_whole_path_and_not_the_query() {
    let stock = TestApplication::start_echo();
    let listener = free_port();
    let rules = "---
apiVersion: leno.dev/v1alpha1
kind: AccessPolicy
metadata: {name: teams, namespace: shop}
spec:
  serviceAccounts: [stock]
  allow:
  - requests: [{path: {type: RegularExpression, value: /team}, headers: [{name: x-team, type: RegularExpression, value: shop}]}]
";
    let manifests = [
        mesh_config("deny"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
        http_access_manifest("web", "stock", "/admin"),
        rules.to_owned(),
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let send_request = |path: &str, team: &str| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nx-team: {team}\r\nconnection: close\r\n\r\n"
        );
        exchange_bytes(loopback_address(listener), &head).unwrap().status
    };
    for (path, team, is_allowed) in [
        ("/admin", "", true),
        ("/admin?x=1", "", true),
        ("/public/admin-ish", "", false),
        ("/admin-ish", "", false),
        ("/public/admin", "", false),
        ("/buy?x=/admin", "", false),
        ("/?/admin", "", false),
        ("/team", "shop", true),
        ("/team", "workshop", false),
        ("/team", "shops", false),
    ] {
        let status = send_request(path, team);
        assert_eq!(status == 200, is_allowed, "{path} {team}: {status}");
        assert!(is_allowed || [403, 404].contains(&status), "{path} {team}: {status}");
    }
}

/// f. The pages of a proxy reveal its key and accept a new program.
#[test]
fn f_no_local_page_shows_a_key_or_takes_a_change() {
    let machines = TwoMachineMesh::start();
    let keys = machines.private_keys();
    for sidecar in [&machines.web, &machines.stock] {
        let ports = listening_addresses(sidecar.program.pid());
        assert!(ports.contains(&sidecar.admin_endpoint.address), "{ports:?}");
        for port in ports {
            for (request, response) in attack_responses(port) {
                let response_text = String::from_utf8_lossy(&response.body);
                let is_leaked = keys.iter().any(|key| response_text.contains(key.as_str()));
                assert!(
                    !is_leaked && !response_text.contains("PRIVATE KEY"),
                    "{port} {request}: a key"
                );
                let is_read = request.starts_with("GET ");
                let is_accepted = (200..300).contains(&response.status);
                assert!(is_read || !is_accepted, "{port} {request} is accepted");
            }
        }
    }
}

/// g. Logs contain bodies and `Authorization`.
#[test]
fn g_no_log_holds_a_body_or_a_credential() {
    let stock = TestApplication::start_echo();
    let listener = free_port();
    let mesh_config_manifest = "---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: allow, accessLog: {sampling: 100%}}
";
    let manifests = [
        mesh_config_manifest.to_owned(),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
    ];
    let mesh = TestMesh::up_with(&manifests.concat(), &["--log-level", "debug,leno_proxy=trace"]);
    let body = "card=hunter2";
    let head = format!(
        "POST /orders?token=hunter2 HTTP/1.1\r\nhost: user:hunter2@stock\r\nauthorization: Bearer hunter2\r\n\
         cookie: session=hunter2\r\nx-api-key: hunter2\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .replace("user:hunter2@", "");
    let response = exchange_bytes(loopback_address(listener), &head).unwrap();
    assert_eq!(response.status, 200);
    mesh.up.wait_for_line("/orders", MAX_WAIT);
    assert!(!mesh.up.printed_output().contains("hunter2"), "{}", mesh.up.printed_output());
}

/// h. Objects contain passwords, tokens and kubeconfigs.
#[test]
fn h_no_kind_has_a_field_for_a_secret() {
    let output = leno_command().args(["install"]).output().expect("leno runs");
    assert!(output.status.success(), "{output:?}");
    let manifests = String::from_utf8(output.stdout).expect("text");
    let crds = manifests
        .split("---\n")
        .filter(|document| document.contains("kind: CustomResourceDefinition"));
    let crds: Vec<&str> = crds.collect();
    assert!(crds.len() > 10, "{} kinds", crds.len());
    let fields = crds.iter().flat_map(|crd| crd.lines());
    let fields = fields.filter_map(|line| line.trim_start_matches([' ', '-']).split_once(':'));
    let fields: BTreeSet<String> = fields.map(|(name, _)| name.to_ascii_lowercase()).collect();
    assert!(fields.contains("defaultpolicy"), "{fields:?}");
    for word in ["password", "passwd", "secret", "kubeconfig", "privatekey", "credential", "token"]
    {
        // A switch: it forwards the token of a request to the application.
        let field =
            fields.iter().find(|name| name.contains(word) && *name != "forwardoriginaltoken");
        assert_eq!(field, None, "{word}");
    }
}

/// i. Without a target every TCP port is open; a target for HTTP opens TCP.
#[test]
fn i_a_target_for_http_opens_no_tcp_port() {
    let mesh = TcpShop::start_shop();
    assert!(mesh.is_closed(), "there is no target");
    mesh.test_mesh.write("http.yaml", &http_access_manifest("web", "stock", ".*"));
    let has_target = || {
        let output = mesh.test_mesh.run_leno(&["get", "policies", "-o", "json"]);
        String::from_utf8_lossy(&output.stdout).contains("web-to-stock").then_some(())
    };
    // A sidecar may read a connection before it has the target, and its request afterwards: such a connection
    // is reset.
    eventually("the control plane has the target", MAX_WAIT, has_target);
    for _ in 0..20 {
        assert!(mesh.is_closed(), "a target for HTTP opens the TCP port");
    }
}

/// i. An `IngressBackend` for HTTPS without a principal accepts every certificate of the mesh.
#[test]
fn i_an_ingress_backend_for_https_needs_a_principal() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ingress.yaml");
    let ingress_backend = "apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: stock, namespace: shop}
spec:
  backends: [{name: stock, port: {number: 8080, protocol: https}}]
  sources: [{kind: IPRange, name: 10.0.0.0/8}]
";
    fs::write(&file, ingress_backend).expect("a file");
    let output = leno_command().args(["check", "-f"]).arg(&file).output().expect("leno runs");
    assert!(!output.status.success(), "{output:?}");
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text);
    assert!(output_text.contains("AuthenticatedPrincipal"), "{output_text}");
}

/// i. Pods of one account share a key generated by the control plane; certificates are valid for ten years.
#[test]
fn i_each_sidecar_has_a_key_of_its_own_for_a_day() {
    let replica_manifest = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web-2, namespace: shop, labels: {app: web}}
spec: {serviceAccount: web}
";
    let manifests =
        [mesh_config("deny"), client_manifest("web", &[], &[]), replica_manifest.to_owned()];
    let control = ControlProgram::start(&manifests.concat(), &[]);
    let workloads = ["shop/web-1", "shop/web-2"];
    let _proxies = workloads.map(|workload| SidecarProgram::join(&control, workload, &[]));
    let keys = workloads.map(|workload| key_material(&control.state_directory(workload)).pop());
    assert!(keys[0].is_some() && keys[0] != keys[1], "each sidecar has its own key");
    // The control plane has no copy of the keys.
    let control_files = directory_contents(&control.data_directory());
    assert!(keys.iter().flatten().all(|key| !control_files.contains(key.as_str())));
    for workload in workloads {
        let file = control.state_directory(workload).join("credential.pem");
        let output = Command::new("openssl")
            .args(["x509", "-noout", "-checkend", "90000", "-in"])
            .arg(file)
            .output()
            .expect("openssl runs");
        assert!(!output.status.success(), "a certificate is valid for more than 25 hours");
    }
}

/// A mesh that denies by default, in which the service `stock` uses TCP.
struct TcpShop {
    test_mesh: TestMesh,
    listener: SocketAddr,
    _stock: TestApplication,
}

impl TcpShop {
    fn start_shop() -> Self {
        let stock = TestApplication::start_echo();
        let listener = free_port();
        let manifests = [
            mesh_config("deny"),
            server_with_protocol("stock", stock.port(), "TCP", &[]),
            client_manifest("web", &[], &[("stock", listener)]),
        ];
        let mesh = TestMesh::up(&manifests.concat());
        Self { test_mesh: mesh, listener: loopback_address(listener), _stock: stock }
    }

    /// True if no byte of the application is received.
    fn is_closed(&self) -> bool {
        // A sidecar that resets the connection can do so before the client sees it as established.
        let response = match TestConnection::open(self.listener) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the listener accepts");
                return true;
            }
            Ok(mut connection) => connection.get("/items"),
        };
        // Sidecars of clients may respond to HTTP-like bytes in HTTP.
        response.is_err()
            || response.is_ok_and(|response| response.rejection_reason() == Some("denied-outbound"))
    }
}

/// Returns the text of all files below a directory.
fn directory_contents(directory: &Path) -> String {
    let mut contents = String::new();
    let mut directories: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => directories.push(path),
                false => {
                    let bytes = fs::read(&path).unwrap_or_default();
                    contents.push_str(&String::from_utf8_lossy(&bytes));
                }
            }
        }
    }
    contents
}

fn loopback_address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

const MAX_WAIT: Duration = Duration::from_secs(20);
