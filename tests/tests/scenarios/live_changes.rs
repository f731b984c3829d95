//! Live changes of a service's only workload under a constant load.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::{
    TestMesh, TestProgram, eventually, free_port, get, leno_command, ratings_manifests,
};
use rustix::process::Signal;
use serde_json::{Value, json};

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A server on two ports that responds with a word.
const WORD_SERVER: &str = "import http.server,sys,threading\n\
class H(http.server.BaseHTTPRequestHandler):\n\
\x20 protocol_version='HTTP/1.1'\n\
\x20 def do_GET(self):\n\
\x20  self.send_response(200); self.send_header('content-length',str(len(sys.argv[1]))); self.end_headers(); self.wfile.write(sys.argv[1].encode())\n\
\x20 def log_message(self,*a): pass\n\
class S(http.server.ThreadingHTTPServer):\n\
\x20 request_queue_size=128\n\
for port in sys.argv[2:]: threading.Thread(target=S(('127.0.0.1',int(port)),H).serve_forever).start()\n";

/// The changeable fields of the workload.
#[derive(Debug, Clone)]
struct WorkloadVariant {
    /// The HTTP port and the TCP port.
    ports: [u16; 2],
    account: &'static str,
    word: String,
}

impl WorkloadVariant {
    /// Returns the manifests of a mesh with a client that has a listener for each of the ports.
    fn mesh_manifests(&self, [listener, raw_listener]: [u16; 2]) -> String {
        let [port, raw_port] = self.ports;
        let command = json!([
            "python3",
            "-c",
            WORD_SERVER,
            self.word,
            port.to_string(),
            raw_port.to_string()
        ]);
        let manifests = ratings_manifests(&command.to_string(), port, listener, "allow");
        let raw_port_yaml =
            format!("protocol: HTTP}}, {{name: raw, port: {raw_port}, protocol: TCP}}]");
        let raw_outbound_yaml = format!(
            "listen: \"{}\"}}\n  - {{service: raw.bookinfo, port: 9080, listen: \"{}\"}}\n",
            loopback_address(listener),
            loopback_address(raw_listener)
        );
        let service = "---
apiVersion: v1
kind: Service
metadata: {name: raw, namespace: bookinfo}
spec: {selector: {app: ratings}, ports: [{name: raw, port: 9080, targetPort: raw}]}
";
        let account = format!("serviceAccount: {}", self.account);
        let manifests = manifests
            .replace("protocol: HTTP}]", &raw_port_yaml)
            .replace(&format!("listen: \"{}\"}}\n", loopback_address(listener)), &raw_outbound_yaml)
            .replace("serviceAccount: ratings", &account);
        manifests + service
    }

    /// Waits until requests succeed and the certificate is that of the account.
    fn wait_until_applied(&self, mesh: &TestMesh, [listener, raw_listener]: [u16; 2]) {
        eventually(&format!("{self:?}"), MAX_WAIT, || {
            let certificates = mesh.get_json("certificates");
            let mut certificates = certificates.as_array()?.iter();
            let certificate =
                certificates.find(|certificate| certificate["workload"] == "bookinfo/ratings-1")?;
            let is_served = |listener: u16| {
                get(loopback_address(listener), "/")
                    .is_ok_and(|response| response.body == self.word.as_bytes())
            };
            let is_account =
                certificate["identity"].as_str()?.ends_with(&format!("/{}", self.account));
            (is_account && is_served(listener) && is_served(raw_listener)).then_some(())
        });
    }
}

/// Starts a load of 50 requests per second that runs until a signal.
fn start_load(arguments: &[&str], listener: u16) -> TestProgram {
    let mut command = leno_command();
    command.args(["load", "--rate", "50", "-d", "1h", "--warmup", "0s", "--timeout", "60s"]);
    command
        .args(["-o", "json"])
        .args(arguments)
        .arg(format!("http://{}/", loopback_address(listener)));
    TestProgram::start("leno load", &mut command)
}

/// Stops a load and returns its report.
fn stop_and_report(mut load: TestProgram) -> Value {
    load.send_signal(Signal::INT);
    load.wait_for_exit(MAX_WAIT);
    let printed_output = load.printed_output();
    let json = printed_output
        .find('{')
        .zip(printed_output.rfind('}'))
        .map(|(json_start, json_end)| &printed_output[json_start..=json_end]);
    serde_json::from_str(json.unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {printed_output}"))
}

/// The sidecar and the application are replaced, and requests wait for their successors.
#[test]
fn ten_changes_of_the_only_instance_fail_no_request() {
    let listeners = [free_port(), free_port()];
    let ports = [[free_port(), free_port()], [free_port(), free_port()]];
    let mut variant = WorkloadVariant { ports: ports[0], account: "ratings", word: "0".to_owned() };
    let mesh = TestMesh::up(&variant.mesh_manifests(listeners));
    variant.wait_until_applied(&mesh, listeners);
    let loads = [
        ("HTTP/1.1", start_load(&["-c", "100"], listeners[0])),
        ("HTTP/2", start_load(&["--http", "2", "-c", "2", "--streams", "50"], listeners[0])),
        ("TCP", start_load(&["--disable-keepalive", "-c", "100"], listeners[1])),
    ];
    let changes = ["port", "account", "run", "port account", "port account run"];
    for (number, changed_fields) in changes.iter().cycle().take(10).enumerate() {
        if changed_fields.contains("port") {
            // The command of the application contains the ports.
            variant.ports = ports[usize::from(variant.ports == ports[0])];
        }
        if changed_fields.contains("account") {
            variant.account = if variant.account == "ratings" { "reviews" } else { "ratings" };
        }
        if changed_fields.contains("run") {
            variant.word = (number + 1).to_string();
        }
        mesh.write("mesh.yaml", &variant.mesh_manifests(listeners));
        variant.wait_until_applied(&mesh, listeners);
    }
    for (protocol, load) in loads {
        let mut report = stop_and_report(load);
        let errors = report["errors_by_kind"].as_object_mut().unwrap();
        // Unsent requests were due at the time of the signal.
        errors.remove("unsent");
        assert!(errors.is_empty(), "{protocol}: {errors:?}\n{}", mesh.up.printed_output());
        let statuses = report["statuses"].as_object().unwrap();
        assert!(statuses.keys().eq(["200"]), "{protocol}: {statuses:?}");
        assert!(statuses["200"].as_u64() > Some(50), "{protocol}: {statuses:?}");
    }
}

const MAX_WAIT: Duration = Duration::from_secs(120);
