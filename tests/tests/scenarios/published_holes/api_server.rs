//! A control plane in a cluster with a fake API server, which stores objects and records each request.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leno_tests::{
    ApplicationResponse, ReceivedRequest, TestApplication, TestProgram, eventually, free_port,
    leno_command,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The control plane and its API server.
pub(super) struct FakeApiServer {
    served_objects: Arc<ServedObjects>,
    control: TestProgram,
    webhook_port: u16,
    _server: TestApplication,
    _directory: TempDir,
}

/// Objects by path, and the paths of all requests.
#[derive(Default)]
struct ServedObjects {
    objects: Mutex<BTreeMap<String, Value>>,
    request_paths: Mutex<Vec<String>>,
}

impl FakeApiServer {
    /// Starts the API server and the control plane, and waits until the webhook responds.
    pub(super) fn with_control_plane() -> Self {
        let served_objects = Arc::new(ServedObjects::default());
        let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        served_objects.lock_objects().insert("/api/v1/namespaces/shop".to_owned(), shop);
        let shared_objects = served_objects.clone();
        let server = TestApplication::start(move |request| shared_objects.handle_request(request));
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://127.0.0.1:{}", server.port())}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let kubeconfig_file = directory.path().join("kubeconfig");
        fs::write(&kubeconfig_file, kubeconfig.to_string()).expect("a file");
        let webhook_port = free_port();
        let mut command = leno_command();
        command.args(["control", "--kubernetes", "--listen", "127.0.0.1:0", "--page", "off"]);
        command
            .args(["--webhook", &format!("127.0.0.1:{webhook_port}"), "--data"])
            .arg(directory.path().join("data"));
        command
            .env("KUBECONFIG", kubeconfig_file)
            .env("POD_IP", "127.0.0.1")
            .env("LENO_IMAGE", "leno:test");
        let control = TestProgram::start("leno control", &mut command);
        let server_and_control =
            Self { served_objects, control, webhook_port, _server: server, _directory: directory };
        eventually("the webhook responds", MAX_WAIT, || {
            (server_and_control.send_review("shop") == 200).then_some(())
        });
        server_and_control
    }

    /// Returns the response status of a review for a Pod in this namespace.
    pub(super) fn send_review(&self, namespace: &str) -> u16 {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "operation": "CREATE",
                "namespace": namespace,
                "object": {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "app"}]}},
            },
        });
        let url = format!("https://127.0.0.1:{}/mutate", self.webhook_port);
        let mut curl = Command::new("curl");
        curl.args([
            "-ks",
            "-m",
            "20",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--data-binary",
            "@-",
        ]);
        curl.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = curl.spawn().expect("curl runs");
        let mut input = child.stdin.take().expect("the input is a pipe");
        std::io::Write::write_all(&mut input, review.to_string().as_bytes()).expect("curl reads");
        drop(input);
        let output = child.wait_with_output().expect("curl ends");
        String::from_utf8_lossy(&output.stdout).parse().unwrap_or(0)
    }

    /// Returns the paths of all requests to the API server so far.
    pub(super) fn received_paths(&self) -> Vec<String> {
        self.served_objects.request_paths.lock().expect("no thread panicked").clone()
    }

    /// Returns the log of the control plane.
    pub(super) fn control_log(&self) -> String {
        self.control.printed_output()
    }

    /// Returns the key of the authority as stored by the API server.
    pub(super) fn authority_key(&self) -> String {
        let objects = self.served_objects.lock_objects();
        let secret = objects.iter().find(|(path, _)| path.ends_with("/secrets/leno-authority"));
        let (_, secret) = secret.expect("the authority is a Secret");
        secret["data"]["ca.key"].as_str().expect("the Secret has a key").to_owned()
    }
}

impl ServedObjects {
    fn lock_objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.objects.lock().expect("no thread panicked")
    }

    fn handle_request(&self, request: &ReceivedRequest) -> ApplicationResponse {
        let (method, target) = request.method_and_target();
        self.request_paths.lock().expect("no thread panicked").push(target.to_owned());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if query.contains("watch=") {
            return ApplicationResponse::NoResponse;
        }
        let body = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let (status, object) = self.respond_to(method, path, query, body);
        let text = object.to_string();
        let head = format!(
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        ApplicationResponse::Bytes([head, text].concat().into_bytes())
    }

    fn respond_to(&self, method: &str, path: &str, query: &str, mut body: Value) -> (u16, Value) {
        let mut objects = self.lock_objects();
        match method {
            "GET" if path == "/version" => (
                200,
                json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0",
                "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            "GET" if query.contains("limit=") || query.contains("resourceVersion") => {
                let items = Vec::<Value>::new();
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
            "GET" => match objects.get(path) {
                Some(object) => (200, object.clone()),
                None => (404, not_found()),
            },
            "POST" | "PUT" | "PATCH" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let object_path =
                    if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
                body["metadata"]["resourceVersion"] = "1".into();
                body["metadata"]["uid"] = "00000000-0000-0000-0000-000000000001".into();
                objects.insert(object_path, body.clone());
                (if method == "POST" { 201 } else { 200 }, body)
            }
            _ => (404, not_found()),
        }
    }
}

fn not_found() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
}

const MAX_WAIT: Duration = Duration::from_secs(60);
