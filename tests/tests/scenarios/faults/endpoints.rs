//! Endpoint failure under load: idempotent requests are retried at another endpoint, others never.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{
    BackgroundLoad, LoadOutcome, TestMesh, child_processes, eventually, exchange_bytes, free_port,
    get, signal_pid,
};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{CountingApplication, MAX_WAIT, connected_sidecar, loopback_address};

#[test]
fn killing_an_application_fails_no_get_and_executes_no_post_twice() {
    kill_under_load(|shop| {
        let store = shop.stores[0].to_str().unwrap();
        let children = child_processes(shop.mesh.up.pid());
        children
            .iter()
            .find(|child| child.command.contains(store))
            .expect("the application runs")
            .pid
    });
}

#[test]
fn killing_a_sidecar_fails_no_get_and_executes_no_post_twice() {
    kill_under_load(|shop| connected_sidecar(&shop.mesh, "shop/ratings-1").pid);
}

#[test]
fn stopping_a_sidecar_fails_no_request() {
    let shop = Shop::start_shop();
    let (get_load, post_load) = shop.start_loads();
    get_load.wait_for(100);
    let stopped_pid = connected_sidecar(&shop.mesh, "shop/ratings-1").pid;
    signal_pid(stopped_pid, Signal::TERM);
    let restarted_sidecar = || {
        Some(connected_sidecar(&shop.mesh, "shop/ratings-1"))
            .filter(|admin_endpoint| admin_endpoint.pid != stopped_pid)
    };
    eventually("the sidecar is restarted", MAX_WAIT, restarted_sidecar);
    shop.wait_for_first_workload(&get_load);
    get_load.finish_load().assert_no_failures();
    let post_load = post_load.finish_load();
    post_load.assert_no_failures();
    shop.assert_executed_once(&post_load);
}

/// A paused process is like a failed link: connections are not refused, and packets get no response.
#[test]
fn requests_to_a_silent_sidecar_move_to_another_endpoint() {
    let shop = Shop::start_shop();
    let (get_load, post_load) = shop.start_loads();
    get_load.wait_for(100);
    let paused_pid = connected_sidecar(&shop.mesh, "shop/ratings-1").pid;
    signal_pid(paused_pid, Signal::STOP);
    get_load.wait_for(300);
    post_load.wait_for(100);
    let started = Instant::now();
    let (get_load, post_load) = (get_load.finish_load(), post_load.finish_load());
    let elapsed = started.elapsed();
    signal_pid(paused_pid, Signal::CONT);
    get_load.assert_no_failures();
    assert!(elapsed < MAX_FAILOVER_TIME, "requests waited for the silent sidecar: {elapsed:?}");
    // At most the requests in progress at the silent sidecar fail.
    assert!(post_load.failed.len() <= 6, "{:?}", post_load.failed);
    for (_, failure) in &post_load.failed {
        assert_eq!(failure, "502 upstream-reset");
    }
    shop.assert_executed_once(&post_load);
}

#[test]
fn after_a_closed_connection_a_get_is_retried_and_a_post_is_not() {
    let (port, received_lines) = start_closing_server();
    let healthy = CountingApplication::start_echo();
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        SERVICE.to_owned(),
        LEAST_REQUEST.to_owned(),
        workload_manifest("1", port),
        workload_manifest("2", healthy.port()),
        client_manifest("web", &[], &[("ratings.shop", listener)]),
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let mut failure_count = 0;
    for id in 0..40 {
        let response = get(loopback_address(listener), &format!("/{id}")).unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let post_request = format!("POST /{id} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let response = exchange_bytes(loopback_address(listener), &post_request).unwrap();
        let request_line = format!("POST /{id} HTTP/1.1");
        let execution_count =
            received_lines.lock().unwrap().iter().filter(|line| **line == request_line).count();
        match response.status {
            200 => assert_eq!(execution_count, 0, "POST {id}"),
            _ => {
                assert_eq!(
                    (response.status, response.rejection_reason()),
                    (502, Some("upstream-reset"))
                );
                assert_eq!(execution_count, 1, "POST {id}");
                failure_count += 1;
            }
        }
    }
    assert!(failure_count > 0, "both workloads receive requests");
    assert!(received_lines.lock().unwrap().iter().any(|line| line.starts_with("GET")), "GETs too");
}

/// A link closes 6 s after an unanswered ping; earlier releases took 20 to 30 s.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(16);

/// Latency-based balancing would rarely select an endpoint that has just failed.
const LEAST_REQUEST: &str = "---
apiVersion: leno.dev/v1alpha1
kind: LoadBalancing
metadata: {name: ratings, namespace: shop}
spec: {targetRefs: [{name: ratings}], algorithm: LeastRequest}
";

/// Kills the process that `process_to_kill` returns for the first workload, under load, until a kill hits a request in
/// progress.
fn kill_under_load(process_to_kill: impl Fn(&Shop) -> u32) {
    let shop = Shop::start_shop();
    let (get_load, post_load) = shop.start_loads();
    get_load.wait_for(100);
    let retry_count =
        || connected_sidecar(&shop.mesh, "shop/web-1").metric_value("leno_retries_total");
    for _ in 0..MAX_KILLS {
        signal_pid(process_to_kill(&shop), Signal::KILL);
        get_load.wait_for(300);
        shop.wait_for_first_workload(&get_load);
        if retry_count() >= 1.0 {
            break;
        }
    }
    get_load.finish_load().assert_no_failures();
    shop.assert_executed_once(&post_load.finish_load());
    assert!(retry_count() >= 1.0, "a kill interrupted requests");
}

/// The maximum number of kills per workload: a kill between two requests has no effect.
const MAX_KILLS: usize = 10;

/// A service of two workloads that record the requests they execute.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    stores: [PathBuf; 2],
    _scratch: TempDir,
}

impl Shop {
    fn start_shop() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let stores = ["1", "2"].map(|number| scratch.path().join(format!("ledger-{number}")));
        let listener = free_port();
        let mut manifests = vec![mesh_config("allow"), SERVICE.to_owned()];
        for (number, store) in ["1", "2"].iter().zip(&stores) {
            manifests.push(application_manifest(number, store));
        }
        manifests.push(client_manifest("web", &[], &[("ratings.shop", listener)]));
        let mesh = TestMesh::up(&manifests.concat());
        let shop = Self { mesh, listener: loopback_address(listener), stores, _scratch: scratch };
        eventually("both applications respond", MAX_WAIT, || {
            let responds = get(shop.listener, "/0").is_ok_and(|response| response.status == 200);
            let have_entries = shop.stores.iter().all(|store| !store_entries(store).is_empty());
            (responds && have_entries).then_some(())
        });
        shop
    }

    fn start_loads(&self) -> (BackgroundLoad, BackgroundLoad) {
        (
            BackgroundLoad::start("GET", self.listener, 3),
            BackgroundLoad::start("POST", self.listener, 3),
        )
    }

    /// Waits until the first workload serves requests again after its failure.
    fn wait_for_first_workload(&self, load: &BackgroundLoad) {
        let count_before = store_entries(&self.stores[0]).len();
        let serves = || (store_entries(&self.stores[0]).len() > count_before).then_some(());
        eventually("the first workload is back", MAX_WAIT, serves);
        load.wait_for(100);
    }

    /// Asserts that each successful POST was executed once, and each failed one at most once.
    fn assert_executed_once(&self, post_outcome: &LoadOutcome) {
        let mut executions: BTreeMap<String, usize> = BTreeMap::new();
        for entry in self.stores.iter().flat_map(|store| store_entries(store)) {
            *executions.entry(entry).or_default() += 1;
        }
        let execution_count =
            |id: u64| executions.get(&format!("POST /{id}")).copied().unwrap_or_default();
        assert!(!post_outcome.succeeded.is_empty(), "{post_outcome:?}");
        for id in &post_outcome.succeeded {
            assert_eq!(execution_count(*id), 1, "POST {id} succeeded");
        }
        for (id, failure) in &post_outcome.failed {
            assert!(
                execution_count(*id) <= 1,
                "POST {id} failed ({failure}) and was executed twice"
            );
        }
    }
}

fn store_entries(store: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(store).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns an application that reads each request and closes its connection, and the request lines.
fn start_closing_server() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    let received_lines = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&received_lines);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
            let request_line = lines.next();
            // Reads the complete head: unread bytes would turn the close into a reset.
            lines.find(String::is_empty);
            recorder.lock().expect("no thread panics with it").extend(request_line);
        }
    });
    (port, received_lines)
}

fn application_manifest(number: &str, store: &Path) -> String {
    let port = free_port();
    let store = store.to_str().expect("a path in UTF-8");
    let run = json!(["python3", "-c", STORE_PROGRAM, port.to_string(), store]);
    format!("{}  run: {run}\n", workload_manifest(number, port))
}

fn workload_manifest(number: &str, port: u16) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: ratings-{number}, namespace: shop, labels: {{app: ratings}}}}
spec:
  serviceAccount: ratings
  ports: [{{name: http, port: {port}, protocol: HTTP}}]
"
    )
}

const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080, targetPort: http}]}
";

/// An application that records each request before its response, with a delay in which it can be killed.
const STORE_PROGRAM: &str = r#"
import http.server, os, sys, time
port, path = int(sys.argv[1]), sys.argv[2]
ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
class Application(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        os.write(ledger, f"{self.command} {self.path}\n".encode())
        time.sleep(0.003)
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    do_GET = do_POST = answer
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
Server(("127.0.0.1", port), Application).serve_forever()
"#;
