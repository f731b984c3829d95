//! Implements a minimal Kubernetes API server for tests, which stores objects by path and serves lists and
//! watches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Objects by path, with increasing versions.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<String, Value>,
    version: u64,
    /// The received requests: methods and paths.
    pub(crate) requests: Vec<String>,
    /// The requests that are rejected as forbidden: a method, and a substring of the path.
    pub(crate) forbidden: Option<(&'static str, &'static str)>,
    /// The number of reads that find nothing, as if another client created the object a moment later.
    pub(crate) missed_reads: u32,
    /// The number of patches of statuses that conflict.
    pub(crate) conflicts: u32,
    /// The current version, for watches.
    version_changes: watch::Sender<u64>,
    /// The paths of open watches.
    watches: watch::Sender<Vec<String>>,
}

impl Store {
    fn handle_request(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let rejection = |code: u16| {
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                _ => "Conflict",
            };
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": reason, "code": code});
            (code, status)
        };
        let mut object: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        self.requests.push(format!("{method} {key}"));
        let is_forbidden = |(rejected_method, part): &(&str, &str)| {
            *rejected_method == method && key.contains(part)
        };
        if self.forbidden.as_ref().is_some_and(is_forbidden) {
            return rejection(403);
        }
        // Other objects are applied, so they need not exist.
        let is_event = key.contains("/events/");
        let existing = self.objects.get(&key);
        match method {
            "GET" if self.missed_reads > 0 => {
                self.missed_reads -= 1;
                rejection(404)
            }
            "GET" => existing.map_or(rejection(404), |existing| (200, existing.clone())),
            "DELETE" => match self.objects.remove(&key) {
                Some(removed) => (200, removed),
                None => rejection(404),
            },
            "POST" if existing.is_some() => rejection(409),
            "PATCH" if self.conflicts > 0 && key.ends_with("/status") => {
                self.conflicts -= 1;
                rejection(409)
            }
            "PATCH" if is_event => {
                let Some(existing) = self.objects.get_mut(&key) else { return rejection(404) };
                json_patch::merge(existing, &object);
                (200, existing.clone())
            }
            "PUT"
                if existing.is_none_or(|existing| {
                    resource_version(existing) != resource_version(&object)
                }) =>
            {
                rejection(409)
            }
            _ => {
                self.version += 1;
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.objects.insert(key, object.clone());
                self.version_changes.send_replace(self.version);
                (200, object)
            }
        }
    }
}

impl Store {
    /// Returns a receiver that reports each change.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.version_changes.subscribe()
    }

    /// Returns the objects of a collection that are newer than a version.
    fn objects_after(&self, path: &str, version: u64) -> Vec<Value> {
        let is_in_collection =
            |key: &str| key.strip_prefix(path).is_some_and(|suffix| suffix.starts_with('/'));
        let parse_version =
            |object: &Value| resource_version(object).as_str().and_then(|text| text.parse().ok());
        let objects =
            self.objects.iter().filter(|(key, _)| is_in_collection(key)).map(|(_, object)| object);
        objects
            .filter(|object| {
                parse_version(object).is_some_and(|object_version: u64| object_version > version)
            })
            .cloned()
            .collect()
    }
}

fn resource_version(object: &Value) -> &Value {
    &object["metadata"]["resourceVersion"]
}

/// A minimal API server.
pub(crate) struct Server {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) client: Client,
    /// The server's task, which ends when this value is dropped.
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start_server() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::<Mutex<Store>>::default();
        let server_store = Arc::clone(&store);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                connections.spawn(serve_connection(tcp, Arc::clone(&server_store)));
            }
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Self { store, client: Client::try_from(config).unwrap(), _tasks: tasks }
    }

    /// Waits until a watch of a collection is open.
    pub(crate) async fn wait_for_watch(&self, plural: &str) {
        let mut watches = self.store.lock().unwrap().watches.subscribe();
        watches.wait_for(|paths| paths.iter().any(|path| path.ends_with(plural))).await.unwrap();
    }
}

async fn serve_connection(mut tcp: TcpStream, store: Arc<Mutex<Store>>) {
    let mut bytes = Vec::new();
    loop {
        let head_end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if tcp.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while bytes.len() < head_end + length {
            assert!(tcp.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let mut request_parts = head.split([' ', '?']);
        let (method, path) =
            (request_parts.next().unwrap().to_uppercase(), request_parts.next().unwrap());
        let query = request_parts.next().filter(|_| head.contains('?')).unwrap_or_default();
        if query.contains("watch=true") {
            let since_version = query.split("resourceversion=").nth(1).unwrap_or_default();
            let since_version =
                since_version.split('&').next().unwrap_or_default().parse().unwrap_or(0);
            return stream_changes(tcp, &store, path, since_version).await;
        }
        if query.contains("limit=") && !store.lock().unwrap().objects.contains_key(path) {
            send_list(&mut tcp, &store, path).await;
            bytes.drain(..head_end + length);
            continue;
        }
        let body = &bytes[head_end..head_end + length];
        let (code, response_body) = store.lock().unwrap().handle_request(&method, path, body);
        let response_body = response_body.to_string();
        let response = format!(
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{response_body}",
            response_body.len()
        );
        tcp.write_all(response.as_bytes()).await.unwrap();
        bytes.drain(..head_end + length);
    }
}

async fn send_list(tcp: &mut TcpStream, store: &Mutex<Store>, path: &str) {
    let (items, version) = {
        let store = store.lock().unwrap();
        (store.objects_after(path, 0), store.version.to_string())
    };
    let body = json!({"metadata": {"resourceVersion": version}, "items": items}).to_string();
    let head = "HTTP/1.1 200 x\r\ncontent-type: application/json\r\ncontent-length:";
    tcp.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
}

/// Sends the objects that are newer than the list until the client disconnects.
async fn stream_changes(mut tcp: TcpStream, store: &Mutex<Store>, path: &str, since_version: u64) {
    let (mut sent_version, mut changed) =
        (since_version, store.lock().unwrap().version_changes.subscribe());
    changed.mark_changed();
    store.lock().unwrap().watches.send_modify(|paths| paths.push(path.to_owned()));
    let head = "HTTP/1.1 200 x\r\ncontent-type: application/json\r\n\r\n";
    tcp.write_all(head.as_bytes()).await.unwrap();
    while changed.changed().await.is_ok() {
        let (newer_objects, version) = {
            let store = store.lock().unwrap();
            (store.objects_after(path, sent_version), store.version)
        };
        sent_version = version;
        for object in newer_objects {
            let event = json!({"type": "MODIFIED", "object": object});
            if tcp.write_all(format!("{event}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
