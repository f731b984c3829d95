//! Authorization through real sidecars: default policies and rules that change while connections are open.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, server_manifest, server_with_protocol};
use leno_tests::{Response, TestApplication, TestConnection, TestMesh, eventually, free_port, get};

/// A mesh in which `web` calls `stock`, and the outbound listener for these calls.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    stock: TestApplication,
}

/// Returns the mesh settings; `extra_fields` are appended to the `spec` of the settings.
fn mesh_settings(default_policy: &str, extra_fields: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{defaultPolicy: {default_policy}{extra_fields}}}\n"
    )
}

fn shop_manifests(config: &str, stock_fields: &str, port: u16, listener: u16) -> String {
    let account = "  serviceAccount: stock\n";
    let server =
        server_manifest("stock", port, &[]).replace(account, &format!("{account}{stock_fields}"));
    [config, &server, &client_manifest("web", &[], &[("stock", listener)])].concat()
}

impl Shop {
    /// Starts a mesh that denies by default, in which no policy allows `web` to call `stock`.
    fn start_denying() -> Self {
        let stock = TestApplication::start_echo();
        let (port, listener) = (stock.port(), free_port());
        let mesh = TestMesh::up(&shop_manifests(&mesh_settings("deny", ""), "", port, listener));
        Self { mesh, listener: SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), stock }
    }

    /// Rewrites the manifests: the mesh settings, and further fields of `stock-1`.
    fn rewrite_manifests(&self, config: &str, stock_fields: &str) {
        self.mesh.write(
            "mesh.yaml",
            &shop_manifests(config, stock_fields, self.stock.port(), self.listener.port()),
        );
    }

    /// Waits until a GET of this path has this status and reason, from the application or a sidecar.
    fn wait_for_response(&self, path: &str, expected: (u16, Option<&str>)) {
        let matches_expected =
            |response: &Response| (response.status, response.rejection_reason()) == expected;
        let condition = format!("{path} gets {expected:?}");
        eventually(&condition, MAX_WAIT, || get(self.listener, path).ok().filter(matches_expected));
    }

    /// Returns the number of dry-run denials for a reason.
    fn dry_run_denials(&self, reason: &str) -> f64 {
        let series = format!(
            "leno_dry_run_denials_total{{direction=\"inbound\",destination_service=\"shop/stock\",destination_port=\"{}\",\
             route=\"\",peer=\"shop/web\",protocol=\"http\",reason=\"{reason}\"}}",
            self.stock.port()
        );
        self.mesh.sidecar("shop/stock-1").sum_metrics(&series)
    }

    fn explain_request(&self, path: &str) -> String {
        let url = format!("http://stock:9080{path}");
        let files = self.mesh.manifest_file("");
        let mut command = leno_tests::leno_command();
        command.args(["explain", "request", "--from", "shop/web-1", "--url", &url, "-f"]);
        let output = command.arg(files).output().expect("leno runs");
        String::from_utf8(output.stdout).expect("text")
    }
}

#[test]
fn dry_run_counts_the_requests_that_deny_would_reject() {
    let shop = Shop::start_denying();
    shop.wait_for_response("/items", (403, Some("denied-outbound")));
    let dry_run = mesh_settings("deny", ", namespaces: [{name: shop, defaultPolicy: dry-run}]");
    shop.rewrite_manifests(&dry_run, "");
    shop.wait_for_response("/items", (200, None));
    let denials_before = shop.dry_run_denials("denied");
    assert!(denials_before >= 1.0, "{denials_before}");
    let mut connection = TestConnection::open(shop.listener).unwrap();
    for _ in 0..5 {
        assert_eq!(connection.get("/items").unwrap().status, 200);
    }
    assert_eq!(shop.dry_run_denials("denied") - denials_before, 5.0);
    let output = shop.explain_request("/items");
    assert!(
        output.contains("allowed by default policy dry-run; with default policy deny 403 denied"),
        "{output}"
    );
    assert!(output.contains("verdict   200-range"), "{output}");
    // The default policy of a workload takes precedence over that of its namespace.
    shop.rewrite_manifests(&dry_run, "  defaultPolicy: deny\n");
    shop.wait_for_response("/items", (403, Some("denied-outbound")));
}

#[test]
fn changed_access_policies_apply_to_open_connections() {
    let shop = Shop::start_denying();
    shop.wait_for_response("/items", (403, Some("denied-outbound")));
    let policy = |deny: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1
kind: AccessPolicy
metadata: {{name: guard, namespace: shop}}
spec:
  serviceAccounts: [stock]
  deny: [{deny}]
  allow:
  - {{name: reads, from: [{{serviceAccount: \"w*\"}}], requests: [{{methods: [GET], path: {{value: /items}}}}]}}
"
        )
    };
    let admin = "{name: admin, requests: [{path: {value: /items/admin}}]}";
    shop.mesh.write("policy.yaml", &policy(admin));
    shop.wait_for_response("/items/1", (200, None));
    let mut connection = TestConnection::open(shop.listener).unwrap();
    for (path, status, reason) in [
        ("/items/1", 200, None),
        ("/items/admin", 403, Some("denied-by-policy")),
        ("/items/%61dmin", 403, Some("denied-by-policy")),
        ("/items/1", 200, None),
        ("/other", 403, Some("denied")),
    ] {
        let response = connection.get(path).unwrap();
        assert_eq!((response.status, response.rejection_reason()), (status, reason), "{path}");
    }
    let output = shop.explain_request("/items/1");
    assert!(output.contains("allowed by the AccessPolicy shop/guard rule reads"), "{output}");
    let output = shop.explain_request("/items/admin");
    let denial = "403 denied-by-policy (the AccessPolicy shop/guard rule admin denies it)";
    assert!(output.contains(denial), "{output}");
    // The connection stays open, and its requests are subject to the current rules.
    shop.mesh.write("policy.yaml", &policy("{from: [{serviceAccount: web}]}"));
    shop.wait_for_response("/items/1", (403, Some("denied-by-policy")));
    assert_eq!(connection.get("/items/1").unwrap().rejection_reason(), Some("denied-by-policy"));
    shop.mesh.remove("policy.yaml");
    shop.wait_for_response("/items/1", (403, Some("denied-outbound")));
}

#[test]
fn a_tcp_connection_is_reset_when_a_rule_denies_it() {
    let stock = TestApplication::start_echo();
    let listener = free_port();
    let tcp = server_with_protocol("stock", stock.port(), "TCP", &[]);
    let mesh =
        [mesh_settings("allow", ""), tcp, client_manifest("web", &[], &[("stock", listener)])]
            .concat();
    let mesh = TestMesh::up(&mesh);
    let mut connection =
        TestConnection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, listener))).unwrap();
    assert_eq!(connection.get("/items").unwrap().status, 200);
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\n\
                  metadata: {name: guard, namespace: shop}\n\
                  spec: {deny: [{from: [{serviceAccount: \"*\"}]}]}\n";
    mesh.write("policy.yaml", policy);
    let read_result = connection.read_to_end();
    assert!(read_result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

const MAX_WAIT: Duration = Duration::from_secs(20);
