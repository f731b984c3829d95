//! TLS sessions between openssl programs, routed by server name.

use std::process::Output;
use std::time::Duration;

use leno_tests::manifests::{
    client_manifest, mesh_config, server_with_protocol, tcp_access_manifest,
};
use leno_tests::{SelfSigned, TestMesh, eventually, free_port};
use tempfile::TempDir;

use super::{DEFAULT_POLICIES, bounded_command};

/// Two servers, each with a certificate for its own name, and a service `secure` of the first.
struct Site {
    mesh: TestMesh,
    listener: u16,
    _certificate_directory: TempDir,
}

/// Starts the site; a policy opens the first server, and tests decide about the second.
fn start_site(default_policy: &str, routes: &str) -> Site {
    let certificate_directory = tempfile::tempdir().unwrap();
    let listener = free_port();
    let ports = [free_port(), free_port()];
    let servers = [("one", ports[0]), ("two", ports[1])].map(|(name, port)| {
        let SelfSigned { key, certificate } =
            SelfSigned::generate_files(certificate_directory.path(), name);
        let [key, certificate] = [key, certificate].map(|file| file.display().to_string());
        let port_text = port.to_string();
        let command =
            ["openssl", "s_server", "-accept", &port_text, "-key", &key, "-cert", &certificate];
        server_with_protocol(name, port, "TCP", &[&command[..], &["-quiet"]].concat())
    });
    let secure_service = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: secure, namespace: shop}}\n\
         spec: {{selector: {{app: one}}, ports: [{{port: 9080, targetPort: {}}}]}}\n",
        ports[0]
    );
    let manifests = [
        mesh_config(default_policy),
        client_manifest("user", &[], &[("secure.shop", listener)]),
        secure_service,
        tcp_access_manifest("user", "one"),
    ];
    let mesh = TestMesh::up(&[&manifests[..], &servers].concat().concat());
    mesh.write("route.yaml", routes);
    Site { mesh, listener, _certificate_directory: certificate_directory }
}

impl Site {
    /// Returns the name in the certificate of the server reached with this server name.
    fn reached_server(&self, options: &[&str]) -> Option<String> {
        let output = self.run_client(options);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let subject = stdout.lines().find_map(|line| line.strip_prefix("subject=CN = "));
        subject.map(str::to_owned)
    }

    fn run_client(&self, options: &[&str]) -> Output {
        let listener = format!("127.0.0.1:{}", self.listener);
        let mut client = bounded_command("openssl");
        client.args(["s_client", "-connect", &listener]).args(options);
        client.stdin(std::process::Stdio::null()).output().unwrap()
    }
}

const ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: first, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: secure}]
  hostnames: [one.example.com]
  rules: [{backendRefs: [{name: one, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: second, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: secure}]
  hostnames: ["*.example.com"]
  rules: [{backendRefs: [{name: two, port: 9080}]}]
"#;

#[test]
fn sessions_are_routed_by_server_name_and_others_are_closed() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy, ROUTES);
        site.mesh.write("policy.yaml", &tcp_access_manifest("user", "two"));
        let server_for = |name| site.reached_server(&["-servername", name]);
        eventually("a session reaches the second server", Duration::from_secs(20), || {
            server_for("any.example.com").filter(|server| server == "two")
        });
        eventually("a session reaches the first server", Duration::from_secs(20), || {
            server_for("one.example.com").filter(|server| server == "one")
        });
        assert_eq!(server_for("ONE.example.COM").as_deref(), Some("one"));
        assert_eq!(server_for("a.one.example.com").as_deref(), Some("two"));
        // TLS 1.2 contains the server name as well.
        assert_eq!(
            site.reached_server(&["-tls1_2", "-servername", "x.example.com"]).as_deref(),
            Some("two")
        );
        assert_eq!(server_for("example.org"), None);
        assert_eq!(site.reached_server(&["-noservername"]), None);
        if default_policy == "deny" {
            // The route forwards to the second server, and no policy allows clients there any more.
            site.mesh.remove("policy.yaml");
            eventually("the second server is closed", Duration::from_secs(20), || {
                server_for("any.example.com").is_none().then_some(())
            });
            assert_eq!(server_for("one.example.com").as_deref(), Some("one"));
        }
        // Without routes, all sessions are forwarded to the service's own endpoints.
        site.mesh.remove("route.yaml");
        eventually("any session passes", Duration::from_secs(20), || server_for("example.org"));
        assert_eq!(server_for("example.org").as_deref(), Some("one"));
    }
}
