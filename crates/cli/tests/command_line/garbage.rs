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

/// Part of each undecodable body, like the key of an authority in its Secret.
const MARKER: &str = "LS0tLS1CRUdJTiBQUklWQVRF";

/// The requests that receive garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GarbageScope {
    /// All lists.
    Lists,
    /// All watches.
    Watches,
    /// The list of Secrets, and the objects that the control plane accesses by name, except its authority.
    Objects,
    /// Everything but the version.
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
            for (turn, filter) in runs.into_iter().enumerate() {
                scope.spawn(move || {
                    let log = log_of_control_plane(garbage, filter, turn);
                    let line = log.lines().find(|line| line.contains(MARKER));
                    assert_eq!(line, None, "{garbage:?} {filter}");
                    assert!(!log.is_empty(), "{garbage:?} {filter}");
                });
            }
        });
    }
}

#[test]
fn terminals_show_no_part_of_an_invalid_response() {
    let directory = tempfile::tempdir().unwrap();
    for turn in 0..BODIES {
        let server = GarbageApiServer::start(GarbageScope::Everything, turn);
        let kubeconfig = server.write_kubeconfig(directory.path());
        for words in [
            &["check", "--kubernetes"][..],
            &["install", "--apply", "--timeout", "1s"],
            &["uninstall", "--apply"],
            &["migrate", "check"],
            &["inject", "-f", "pod.yaml"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
            command.args(words).args(["--log-level", "trace"]).env("KUBECONFIG", &kubeconfig);
            let done = command.current_dir(directory.path()).output().unwrap();
            for said in [done.stdout, done.stderr] {
                let said = String::from_utf8(said).unwrap();
                assert!(!said.contains(MARKER), "{words:?}: {said}");
            }
        }
    }
}

/// Returns the log of a control plane until it has received its garbage.
fn log_of_control_plane(garbage: GarbageScope, filter: &str, turn: usize) -> String {
    let directory = tempfile::tempdir().unwrap();
    let server = GarbageApiServer::start(garbage, turn);
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
    let mut control = KilledOnDrop(command.spawn().unwrap());
    let begin = Instant::now();
    loop {
        let absent = server.unserved_requests();
        let has_ended = control.0.try_wait().unwrap().is_some();
        let log = || fs::read_to_string(&path).unwrap();
        // It cannot continue without its authority.
        let is_over = absent.is_empty() || has_ended && garbage == GarbageScope::Everything;
        if is_over && !log().is_empty() {
            break;
        }
        assert!(!has_ended, "{garbage:?}: it ended: {}", log());
        let is_late = begin.elapsed() > MAX_WAIT;
        assert!(!is_late, "{garbage:?}: no requests for {absent:?}: {}", log());
        thread::park_timeout(Duration::from_millis(20));
    }
    // The last responses are read by now, or when the program has exited.
    control.end_process();
    fs::read_to_string(&path).unwrap()
}

/// A program that is killed at the end of its test.
struct KilledOnDrop(Child);

impl KilledOnDrop {
    fn end_process(&mut self) {
        self.0.kill().ok();
        self.0.wait().unwrap();
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.end_process();
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
    turn: usize,
    /// The number of garbage responses per path.
    answered: Mutex<BTreeMap<String, usize>>,
    /// Written objects by path.
    written: Mutex<BTreeMap<String, Value>>,
}

impl GarbageApiServer {
    fn start(garbage: GarbageScope, turn: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (answered, written) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(GarbageState { garbage, turn, answered, written });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
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

    /// Returns the requests that have not received enough garbage responses.
    fn unserved_requests(&self) -> Vec<String> {
        let answered = self.shared.answered.lock().unwrap();
        let expected = expected_requests(self.shared.garbage);
        expected
            .into_iter()
            .filter(|path| answered.get(path).is_none_or(|it| *it < TIMES))
            .collect()
    }
}

/// Returns the requests of a control plane that receive garbage.
fn expected_requests(garbage: GarbageScope) -> Vec<String> {
    let customs = served_kinds().into_iter().map(|kind| {
        format!("/apis/{}/{}", kind.api_versions.first().unwrap(), plural_of(kind.kind))
    });
    let watched = ["pods", "services", "namespaces", "nodes"].map(|it| format!("/api/v1/{it}"));
    let of_gateways = [
        "/apis/apps/v1/deployments",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/gateway.networking.k8s.io/v1/gateways",
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
    ];
    let all = watched.into_iter().chain(customs).chain(of_gateways.map(str::to_owned));
    match garbage {
        GarbageScope::Lists => all.collect(),
        GarbageScope::Watches => {
            let of_api_server = [
                "/api/v1/namespaces/default/services",
                "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            ];
            let all = all.chain(["/api/v1/secrets".to_owned()]);
            let all = all.chain(of_api_server.map(str::to_owned));
            all.map(|path| format!("watch {path}")).collect()
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
        while let Some((method, target, body)) = read(&mut reader) {
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let is_watch = query.contains("watch=true");
            let key = if is_watch { format!("watch {path}") } else { path.to_owned() };
            let is_good = match self.is_garbage(path, is_watch) {
                true => {
                    let mut answered = self.answered.lock().unwrap();
                    let times = answered.entry(key.clone()).or_default();
                    *times += 1;
                    let turn = self.turn + *times + key.len();
                    drop(answered);
                    let (status, body) = match is_watch {
                        true => (200, garbage_events(turn)),
                        false => garbage_response(turn),
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
            if !is_good {
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
                let is_own = ["leno-authority", "leno-roots", "leno-system/secrets"];
                let is_object =
                    path.contains("/namespaces/") && !is_own.iter().any(|own| path.ends_with(own));
                path == "/api/v1/secrets" || is_object
            }
            GarbageScope::Everything => true,
        }
    }

    /// Returns the response of an API server with a gateway and one client.
    fn valid_response(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut written = self.written.lock().unwrap();
        match method {
            "POST" => {
                let name = sent["metadata"]["name"].as_str().unwrap_or_default();
                written.insert(format!("{path}/{name}"), sent.clone());
                return (201, sent);
            }
            "PUT" | "PATCH" => {
                written.insert(path.to_owned(), sent.clone());
                return (200, sent);
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
            return written.get(path).map_or((404, missing), |found| (200, found.clone()));
        }
        if path.starts_with("/apis/") && path.matches('/').count() == 3 {
            let kinds = served_kinds().into_iter().map(|kind| kind.kind);
            let more = ["Gateway", "GatewayClass", "BackendTLSPolicy"];
            let resources: Vec<Value> = kinds
                .chain(more)
                .map(|kind| json!({"name": plural_of(kind), "singularName": "", "namespaced": true, "kind": kind, "verbs": []}))
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
fn garbage_response(turn: usize) -> (u16, Vec<u8>) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MARKER}, "data": {"ca.key": MARKER}});
    let wrong = json!({
        "kind": MARKER, "metadata": MARKER, "items": MARKER, "resources": MARKER, "data": MARKER, "spec": MARKER,
    });
    let item = json!({
        "kind": "List", "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": 1, "labels": MARKER}, "spec": MARKER, "data": {"a": MARKER}, "endpoints": MARKER}],
    });
    match turn % BODIES {
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

const BODIES: usize = 9;

fn garbage_events(turn: usize) -> Vec<u8> {
    let secret = json!({"kind": "Secret", "data": {"ca.key": MARKER}});
    let added =
        json!({"type": "ADDED", "object": {"metadata": MARKER, "spec": MARKER, "data": MARKER}});
    match turn % 4 {
        0 => format!("{MARKER}\n").into_bytes(),
        1 => format!("{secret}\n{added}\n").into_bytes(),
        2 => format!("{}\n", json!({"type": "ERROR", "object": {"message": MARKER, "code": 500}}))
            .into_bytes(),
        _ => [MARKER.as_bytes(), &[0xff, b'\n']].concat(),
    }
}

fn plural_of(kind: &str) -> String {
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
fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        if field.trim().is_empty() {
            break;
        }
        if let Some(value) = field.to_lowercase().strip_prefix("content-length:") {
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
const TIMES: usize = 2;
const MAX_WAIT: Duration = Duration::from_secs(120);
