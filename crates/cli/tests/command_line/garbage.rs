//! Undecodable API server responses: no part of them reaches a log or terminal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leno_registry::served_kinds;
use serde_json::{Value, json};

/// A text in each undecodable body, in place of a key in a Secret.
const MARKER: &str = "LS0tLS1CRUdJTiBQUklWQVRF";

/// The requests that receive undecodable responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GarbageScope {
    /// All requests that list objects.
    Lists,
    /// All requests that watch objects.
    Watches,
    /// The list of Secrets, and the objects that the control plane accesses by name, except its authority.
    Objects,
    /// All requests except the one for the version.
    Everything,
}

#[test]
fn logs_contain_no_part_of_an_invalid_response() {
    for garbage in [
        GarbageScope::Lists,
        GarbageScope::Watches,
        GarbageScope::Objects,
        GarbageScope::Everything,
    ] {
        let runs =
            ["info", "debug", "trace", "kube_client=trace,kube_runtime=trace,hyper=trace,info"];
        thread::scope(|scope| {
            for (first_body, filter) in runs.into_iter().enumerate() {
                scope.spawn(move || {
                    let log = capture_control_plane_log(garbage, filter, first_body);
                    let line = log.lines().find(|line| line.contains(MARKER));
                    assert_eq!(line, None, "{garbage:?} {filter}");
                    assert!(!log.is_empty(), "{garbage:?} {filter}");
                });
            }
        });
    }
}

#[test]
fn terminals_contain_no_part_of_an_invalid_response() {
    let directory = tempfile::tempdir().unwrap();
    for first_body in 0..BODY_COUNT {
        let server = GarbageApiServer::start(GarbageScope::Everything, first_body);
        let kubeconfig = server.write_kubeconfig(directory.path());
        for arguments in [
            &["check", "--kubernetes"][..],
            &["install", "--apply", "--timeout", "1s"],
            &["uninstall", "--apply"],
            &["migrate", "check"],
            &["inject", "-f", "pod.yaml"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
            command.args(arguments).args(["--log-level", "trace"]).env("KUBECONFIG", &kubeconfig);
            let result = command.current_dir(directory.path()).output().unwrap();
            for output in [result.stdout, result.stderr] {
                let output = String::from_utf8(output).unwrap();
                assert!(!output.contains(MARKER), "{arguments:?}: {output}");
            }
        }
    }
}

/// Returns the log of a control plane until it has received its undecodable responses.
fn capture_control_plane_log(garbage: GarbageScope, filter: &str, first_body: usize) -> String {
    let directory = tempfile::tempdir().unwrap();
    let server = GarbageApiServer::start(garbage, first_body);
    let path = directory.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(["control", "--kubernetes", "--gateways", "--page", "off"]);
    command.args(["--listen", "127.0.0.1:0", "--webhook", "127.0.0.1:0", "--log-level", filter]);
    command.arg("--data").arg(directory.path().join("data"));
    command
        .env("KUBECONFIG", server.write_kubeconfig(directory.path()))
        .env("LENO_IMAGE", "leno:test");
    command.env("POD_IP", "127.0.0.1").env("POD_NAME", "a").env("POD_NAMESPACE", "leno-system");
    command.stdout(Stdio::null()).stderr(File::create(&path).unwrap());
    let mut control = KillOnDrop(command.spawn().unwrap());
    let start = Instant::now();
    loop {
        let unserved = server.unserved_requests();
        let has_ended = control.0.try_wait().unwrap().is_some();
        let log = || fs::read_to_string(&path).unwrap();
        // The control plane cannot continue without its authority.
        let is_complete = unserved.is_empty() || has_ended && garbage == GarbageScope::Everything;
        if is_complete && !log().is_empty() {
            break;
        }
        assert!(!has_ended, "{garbage:?}: the control plane exited: {}", log());
        let has_timed_out = start.elapsed() > TIMEOUT;
        assert!(!has_timed_out, "{garbage:?}: no requests for {unserved:?}: {}", log());
        thread::park_timeout(Duration::from_millis(20));
    }
    // The last responses are read by now, or when the program has exited.
    control.kill();
    fs::read_to_string(&path).unwrap()
}

/// A program that is killed at the end of its test.
struct KillOnDrop(Child);

impl KillOnDrop {
    fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().unwrap();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A minimal API server.
struct GarbageApiServer {
    address: String,
    shared: Arc<GarbageState>,
}

struct GarbageState {
    garbage: GarbageScope,
    /// The number of the first body.
    first_body: usize,
    /// The number of undecodable responses per path.
    response_counts: Mutex<BTreeMap<String, usize>>,
    /// Written objects by path.
    objects: Mutex<BTreeMap<String, Value>>,
}

impl GarbageApiServer {
    fn start(garbage: GarbageScope, first_body: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (response_counts, objects) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(GarbageState { garbage, first_body, response_counts, objects });
        let serving_state = Arc::clone(&shared);
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let shared = Arc::clone(&serving_state);
                thread::spawn(move || shared.serve_connection(tcp));
            }
        });
        Self { address, shared }
    }

    fn write_kubeconfig(&self, directory: &Path) -> std::path::PathBuf {
        // A colon would separate two files.
        let path = directory.join(format!("kubeconfig-{}", self.address.replace(':', "-")));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Returns the requests that have not received enough undecodable responses.
    fn unserved_requests(&self) -> Vec<String> {
        let response_counts = self.shared.response_counts.lock().unwrap();
        let expected = expected_requests(self.shared.garbage);
        expected
            .into_iter()
            .filter(|path| {
                response_counts.get(path).is_none_or(|count| *count < RESPONSES_PER_REQUEST)
            })
            .collect()
    }
}

/// Returns the requests of a control plane that receive undecodable responses.
fn expected_requests(garbage: GarbageScope) -> Vec<String> {
    let custom_resources = served_kinds().into_iter().map(|kind| {
        format!("/apis/{}/{}", kind.api_versions.first().unwrap(), to_plural(kind.kind))
    });
    let core_resources =
        ["pods", "services", "namespaces", "nodes"].map(|name| format!("/api/v1/{name}"));
    let gateway_resources = [
        "/apis/apps/v1/deployments",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/gateway.networking.k8s.io/v1/gateways",
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
    ];
    let lists = core_resources
        .into_iter()
        .chain(custom_resources)
        .chain(gateway_resources.map(str::to_owned));
    match garbage {
        GarbageScope::Lists => lists.collect(),
        GarbageScope::Watches => {
            let api_server_resources = [
                "/api/v1/namespaces/default/services",
                "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            ];
            let lists = lists.chain(["/api/v1/secrets".to_owned()]);
            let lists = lists.chain(api_server_resources.map(str::to_owned));
            lists.map(|path| format!("watch {path}")).collect()
        }
        GarbageScope::Objects => [
            "/api/v1/secrets",
            "/api/v1/namespaces/leno-system/secrets/leno-webhook",
            "/apis/coordination.k8s.io/v1/namespaces/leno-system/leases/leno-control",
            "/apis/discovery.k8s.io/v1/namespaces/leno-system/endpointslices",
        ]
        .map(str::to_owned)
        .into(),
        GarbageScope::Everything => {
            vec!["/api/v1/pods".to_owned(), "/apis/leno.dev/v1alpha1".to_owned()]
        }
    }
}

impl GarbageState {
    fn serve_connection(&self, tcp: TcpStream) {
        let mut reader = BufReader::new(tcp.try_clone().unwrap());
        let mut writer = tcp;
        while let Some((method, target, body)) = read_request(&mut reader) {
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let is_watch = query.contains("watch=true");
            let key = if is_watch { format!("watch {path}") } else { path.to_owned() };
            let is_written = match self.is_garbage(path, is_watch) {
                true => {
                    let mut response_counts = self.response_counts.lock().unwrap();
                    let count = response_counts.entry(key.clone()).or_default();
                    *count += 1;
                    let body_index = self.first_body + *count + key.len();
                    drop(response_counts);
                    let (status, body) = match is_watch {
                        true => (200, garbage_events(body_index)),
                        false => garbage_response(body_index),
                    };
                    write_response(&mut writer, status, &body)
                }
                false if is_watch => {
                    // The watch stays idle until the client disconnects.
                    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                    writer.write_all(head.as_bytes()).is_ok()
                }
                false => {
                    let (status, value) = self.valid_response(&method, path, &body);
                    write_response(&mut writer, status, value.to_string().as_bytes())
                }
            };
            if !is_written {
                return;
            }
        }
    }

    fn is_garbage(&self, path: &str, is_watch: bool) -> bool {
        let is_list = !path.contains("/namespaces/") && path.matches('/').count() > 2;
        match self.garbage {
            _ if path == "/version" => false,
            GarbageScope::Lists => !is_watch && is_list && is_plural(path),
            GarbageScope::Watches => is_watch,
            GarbageScope::Objects => {
                let valid_suffixes = ["leno-authority", "leno-roots", "leno-system/secrets"];
                let is_object = path.contains("/namespaces/")
                    && !valid_suffixes.iter().any(|suffix| path.ends_with(suffix));
                path == "/api/v1/secrets" || is_object
            }
            GarbageScope::Everything => true,
        }
    }

    /// Returns the response of an API server with a gateway and one client.
    fn valid_response(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut objects = self.objects.lock().unwrap();
        match method {
            "POST" => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                objects.insert(format!("{path}/{name}"), object.clone());
                return (201, object);
            }
            "PUT" | "PATCH" => {
                objects.insert(path.to_owned(), object.clone());
                return (200, object);
            }
            _ => {}
        }
        if path == "/version" {
            let version = json!({
                "major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            });
            return (200, version);
        }
        let is_list = path.ends_with("/endpointslices") || path.ends_with("/services");
        if path.contains("/namespaces/") && !is_list {
            let missing = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            });
            return objects.get(path).map_or((404, missing), |object| (200, object.clone()));
        }
        if path.starts_with("/apis/") && path.matches('/').count() == 3 {
            let kinds = served_kinds().into_iter().map(|kind| kind.kind);
            let gateway_kinds = ["Gateway", "GatewayClass", "BackendTLSPolicy"];
            let resources: Vec<Value> = kinds
                .chain(gateway_kinds)
                .map(|kind| json!({"name": to_plural(kind), "singularName": "", "namespaced": true, "kind": kind, "verbs": []}))
                .collect();
            let version = path.trim_start_matches("/apis/");
            return (
                200,
                json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
            );
        }
        let items = match path.rsplit('/').next() {
            Some("gatewayclasses") => json!([{
                "metadata": {"name": "leno", "uid": "c", "generation": 1, "resourceVersion": "1"},
                "spec": {"controllerName": "leno.dev/gateway-controller"},
            }]),
            Some("gateways") => json!([{
                "metadata": {"name": "edge", "namespace": "shop", "uid": "g", "generation": 1, "resourceVersion": "1"},
                "spec": {"gatewayClassName": "leno", "listeners": [{
                    "name": "https", "port": 443, "protocol": "HTTPS",
                    "tls": {"certificateRefs": [{"name": "cert"}]},
                }]},
            }]),
            _ => json!([]),
        };
        (200, json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
    }
}

/// Returns a response that is not an object of the requested kind; it contains the marker.
fn garbage_response(body_index: usize) -> (u16, Vec<u8>) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MARKER}, "data": {"ca.key": MARKER}});
    let wrong = json!({
        "kind": MARKER, "metadata": MARKER, "items": MARKER, "resources": MARKER, "data": MARKER, "spec": MARKER,
    });
    let item = json!({
        "kind": "List", "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": 1, "labels": MARKER}, "spec": MARKER, "data": {"a": MARKER}, "endpoints": MARKER}],
    });
    match body_index % BODY_COUNT {
        0 => (200, secret.to_string().into_bytes()),
        1 => (200, format!("<html>{MARKER}").into_bytes()),
        2 => (200, wrong.to_string().into_bytes()),
        3 => (200, item.to_string().into_bytes()),
        4 => (500, format!("{MARKER}\n").into_bytes()),
        5 => (403, secret.to_string().into_bytes()),
        6 => (403, format!("{MARKER} {MARKER}").into_bytes()),
        7 => (503, json!({"message": MARKER, "reason": MARKER}).to_string().into_bytes()),
        _ => (200, [MARKER.as_bytes(), &[0xff, 0xfe]].concat()),
    }
}

const BODY_COUNT: usize = 9;

fn garbage_events(body_index: usize) -> Vec<u8> {
    let secret = json!({"kind": "Secret", "data": {"ca.key": MARKER}});
    let added =
        json!({"type": "ADDED", "object": {"metadata": MARKER, "spec": MARKER, "data": MARKER}});
    match body_index % 4 {
        0 => format!("{MARKER}\n").into_bytes(),
        1 => format!("{secret}\n{added}\n").into_bytes(),
        2 => format!("{}\n", json!({"type": "ERROR", "object": {"message": MARKER, "code": 500}}))
            .into_bytes(),
        _ => [MARKER.as_bytes(), &[0xff, b'\n']].concat(),
    }
}

fn to_plural(kind: &str) -> String {
    match kind.strip_suffix('y').filter(|stem| !stem.ends_with('a')) {
        Some(stem) => format!("{}ies", stem.to_lowercase()),
        None if kind.ends_with('s') => format!("{}es", kind.to_lowercase()),
        None => format!("{}s", kind.to_lowercase()),
    }
}

fn is_plural(path: &str) -> bool {
    !path.rsplit('/').next().is_some_and(|last| {
        last.starts_with('v') && last[1..].starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Reads one request; `None` if the client has disconnected.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, target, body))
}

fn write_response(writer: &mut TcpStream, status: u16, body: &[u8]) -> bool {
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body)).is_ok()
}

/// The number of responses per request: the second request proves that the first response was read.
const RESPONSES_PER_REQUEST: usize = 2;
/// The time for all expected requests to arrive.
const TIMEOUT: Duration = Duration::from_secs(120);
