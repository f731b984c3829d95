//! For tests: an API server that is a few lines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Objects by path, with versions that count up.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<String, Value>,
    version: u64,
    /// What was asked: methods and paths.
    pub(crate) asked: Vec<String>,
    /// What is refused: a method and a part of its path.
    pub(crate) forbidden: Option<(&'static str, &'static str)>,
    /// So many reads find nothing, as if somebody else were a moment later.
    pub(crate) blind: u32,
    /// So many patches of statuses conflict.
    pub(crate) conflicts: u32,
}

impl Store {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let refusal = |code: u16| {
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                _ => "Conflict",
            };
            let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": reason, "code": code});
            (code, said)
        };
        let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = sent["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        self.asked.push(format!("{method} {key}"));
        let forbids = |(word, part): &(&str, &str)| *word == method && key.contains(part);
        if self.forbidden.as_ref().is_some_and(forbids) {
            return refusal(403);
        }
        // Others are applied, and then need not be there.
        let is_event = key.contains("/events/");
        let held = self.objects.get(&key);
        match method {
            "GET" if self.blind > 0 => {
                self.blind -= 1;
                refusal(404)
            }
            "GET" => held.map_or(refusal(404), |held| (200, held.clone())),
            "DELETE" => match self.objects.remove(&key) {
                Some(gone) => (200, gone),
                None => refusal(404),
            },
            "POST" if held.is_some() => refusal(409),
            "PATCH" if self.conflicts > 0 && key.ends_with("/status") => {
                self.conflicts -= 1;
                refusal(409)
            }
            "PATCH" if is_event => {
                let Some(held) = self.objects.get_mut(&key) else { return refusal(404) };
                json_patch::merge(held, &sent);
                (200, held.clone())
            }
            "PUT" if held.is_none_or(|held| version(held) != version(&sent)) => refusal(409),
            _ => {
                self.version += 1;
                sent["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.objects.insert(key, sent.clone());
                (200, sent)
            }
        }
    }
}

fn version(object: &Value) -> &Value {
    &object["metadata"]["resourceVersion"]
}

/// An API server that is a few lines.
pub(crate) struct Server {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) client: Client,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::<Mutex<Store>>::default();
        let shared = Arc::clone(&store);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                connections.spawn(serve(tcp, Arc::clone(&shared)));
            }
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Self { store, client: Client::try_from(config).unwrap(), _tasks: tasks }
    }
}

async fn serve(mut tcp: TcpStream, store: Arc<Mutex<Store>>) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if tcp.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while bytes.len() < end + length {
            assert!(tcp.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let mut words = head.split([' ', '?']);
        let (method, path) = (words.next().unwrap().to_uppercase(), words.next().unwrap());
        let body = &bytes[end..end + length];
        let (code, said) = store.lock().unwrap().answer(&method, path, body);
        let said = said.to_string();
        let answer = format!(
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{said}",
            said.len()
        );
        tcp.write_all(answer.as_bytes()).await.unwrap();
        bytes.drain(..end + length);
    }
}
