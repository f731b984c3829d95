//! A real Prometheus that scrapes sidecars and the control plane, and loads the alert rules of `deploy`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, server_manifest};
use leno_tests::{
    TestApplication, TestMesh, TestProgram, eventually, exchange_bytes, free_port, get,
};
use serde_json::Value;

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A running Prometheus that scrapes these addresses.
struct PrometheusServer {
    _program: TestProgram,
    address: SocketAddr,
}

impl PrometheusServer {
    fn start(directory: &Path, target_addresses: &[SocketAddr]) -> Self {
        let target_addresses: Vec<_> =
            target_addresses.iter().map(|target| format!("'{target}'")).collect();
        let rules = deployed_file("alerts.yaml");
        let configuration = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n- job_name: leno\n  static_configs: [{{targets: [{}]}}]\n",
            rules.display(),
            target_addresses.join(", ")
        );
        let configuration_file = directory.join("prometheus.yaml");
        std::fs::write(&configuration_file, configuration).expect("a configuration");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", configuration_file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.arg("--enable-feature=exemplar-storage");
        let program = TestProgram::start("Prometheus", &mut command);
        let is_ready = || get(address, "/-/ready").ok().filter(|response| response.status == 200);
        eventually("Prometheus is ready", MAX_WAIT, is_ready);
        Self { _program: program, address }
    }

    fn query_api(&self, path: &str) -> Option<Value> {
        let request =
            format!("GET {path} HTTP/1.0\r\nhost: prometheus\r\nconnection: close\r\n\r\n");
        let response = exchange_bytes(self.address, &request).ok()?;
        serde_json::from_slice::<Value>(&response.body)
            .ok()
            .map(|response| response["data"].clone())
    }

    /// Waits until a query has values, and returns them.
    fn wait_for_values(&self, query: &str) -> Vec<f64> {
        let encoded_query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let query_values = || {
            let data = self.query_api(&format!("/api/v1/query?query={encoded_query}"))?;
            let entries = data["result"].as_array()?.iter();
            let values =
                entries.filter_map(|entry| entry["value"][1].as_str()?.parse::<f64>().ok());
            Some(values.collect::<Vec<_>>()).filter(|values| !values.is_empty())
        };
        eventually(query, MAX_WAIT, query_values).0
    }
}

/// Forwards TCP connections to a Unix socket.
fn start_bridge(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for tcp_stream in listener.incoming().map_while(Result::ok) {
            let Ok(unix_stream) = UnixStream::connect(&socket) else { return };
            std::thread::spawn(move || relay_bytes(&tcp_stream, &unix_stream));
        }
    });
    address
}

fn relay_bytes(tcp_stream: &TcpStream, unix_stream: &UnixStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(io::copy(&mut &*tcp_stream, &mut &*unix_stream));
            drop(unix_stream.shutdown(std::net::Shutdown::Write));
        });
        drop(io::copy(&mut &*unix_stream, &mut &*tcp_stream));
        drop(tcp_stream.shutdown(std::net::Shutdown::Both));
    });
}

#[test]
fn prometheus_scrapes_metrics_and_exemplars_of_both_planes() {
    let stock = TestApplication::start_echo();
    let listener = free_port();
    let tracing_config = "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
                  spec:\n  tracing: {sampling: 0%, errors: false, export: {zipkin: {endpoint: \
                  'http://127.0.0.1:9'}}}\n";
    let manifests = [
        tracing_config.to_owned(),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let sidecar_addresses =
        ["shop/web-1", "shop/stock-1"].map(|workload| mesh.sidecar(workload).admin);
    let control_address = start_bridge(mesh.data_directory().join("control.sock"));
    let directory = tempfile::tempdir().expect("a folder");
    let targets = [sidecar_addresses[0], sidecar_addresses[1], control_address];
    let prometheus = PrometheusServer::start(directory.path(), &targets);
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    let send_request = || {
        let trace_context = format!("00-{TRACE_ID}-00f067aa0ba902b7-01");
        let head = format!(
            "GET / HTTP/1.1\r\nhost: stock\r\ntraceparent: {trace_context}\r\nconnection: close\r\n\r\n"
        );
        exchange_bytes(listener, &head).ok().filter(|response| response.status == 200)
    };
    eventually("a request gets a response", MAX_WAIT, send_request);
    // Every target is up, so each page is parsed completely.
    eventually("all targets are up", MAX_WAIT, || {
        let up_values = prometheus.wait_for_values("up");
        (up_values.len() == 3 && up_values.iter().all(|up_value| *up_value > 0.0)).then_some(())
    });
    let requests_query = "leno_requests_total{destination_service=\"shop/stock\",direction=\"inbound\",code=\"2xx\"}";
    assert!(prometheus.wait_for_values(requests_query)[0] >= 1.0);
    assert!(prometheus.wait_for_values("leno_control_proxies")[0] >= 2.0);
    assert!(prometheus.wait_for_values("leno_control_convergence_seconds_count")[0] >= 0.0);
    let exemplars_path = "/api/v1/query_exemplars?query=leno_request_duration_seconds_bucket\
                     &start=0&end=99999999999";
    eventually("an exemplar names the trace", MAX_WAIT, || {
        send_request()?;
        prometheus.query_api(exemplars_path)?.to_string().contains(TRACE_ID).then_some(())
    });
    let rules = prometheus.query_api("/api/v1/rules").expect("the rules").to_string();
    assert!(rules.contains("LenoServiceFails") && !rules.contains("\"health\":\"err\""), "{rules}");
}

fn deployed_file(configuration_file: &str) -> PathBuf {
    project_root().join("deploy/prometheus").join(configuration_file)
}

fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_owned()
}

const MAX_WAIT: Duration = Duration::from_secs(30);
