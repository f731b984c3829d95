//! An authority between directories and a Secret, with an API server that is a few lines.

use std::sync::{Arc, Mutex};

use leno_identity::Rotation;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

/// Objects by path, with versions that count up.
#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// So many reads find nothing, as if somebody else were a moment later.
    blind: u32,
}

impl Store {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let refusal = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "Conflict" };
            let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": reason, "code": code});
            (code, said)
        };
        let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = sent["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        let held = self.objects.get(&key);
        match method {
            "GET" if self.blind > 0 => {
                self.blind -= 1;
                refusal(404)
            }
            "GET" => held.map_or(refusal(404), |held| (200, held.clone())),
            "POST" if held.is_some() => refusal(409),
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

struct Server {
    store: Arc<Mutex<Store>>,
    client: Client,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn open() -> Self {
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

    fn secret(&self) -> Option<Secret> {
        let store = self.store.lock().unwrap();
        let held = store.objects.get("/api/v1/namespaces/leno-system/secrets/leno-authority");
        held.map(|held| serde_json::from_value(held.clone()).unwrap())
    }

    fn roots(&self) -> String {
        let store = self.store.lock().unwrap();
        let held = &store.objects["/api/v1/namespaces/leno-system/configmaps/leno-roots"];
        held["data"]["roots.pem"].as_str().unwrap().to_owned()
    }

    fn forget(&self) {
        self.store.lock().unwrap().objects.retain(|path, _| !path.contains("/secrets/"));
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

fn domain() -> TrustDomain {
    TrustDomain::new("cluster.local").unwrap()
}

/// One replica, and where it has the authority.
fn replica(server: &Server) -> (SharedAuthority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("authority");
    (SharedAuthority::new(server.client.clone(), "leno-system", &place, domain()), dir)
}

fn files(dir: &TempDir) -> AuthorityFiles {
    AuthorityFiles::read(&dir.path().join("authority")).unwrap()
}

fn rotation(dir: &TempDir) -> Rotation {
    Rotation::of(&dir.path().join("authority"), domain())
}

#[tokio::test]
async fn whoever_is_first_decides_and_all_others_have_the_same() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    let source = one.establish().await.unwrap();
    assert_eq!(source, AuthoritySource::Own(first.path().join("authority")));
    // The other looked a moment too early, and made one of its own.
    server.store.lock().unwrap().blind = 2;
    let other = two.establish().await.unwrap();
    assert!(files(&first) == files(&second));
    let now = SystemTime::now();
    let roots = other.open(&domain(), now).unwrap().roots().to_pem();
    assert_eq!(roots, source.open(&domain(), now).unwrap().roots().to_pem());
    assert_eq!(server.roots(), roots);
}

#[tokio::test]
async fn what_is_changed_in_one_replica_arrives_in_the_others() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    one.establish().await.unwrap();
    two.establish().await.unwrap();
    rotation(&first).add(SystemTime::now()).unwrap();
    let before = server.secret();
    one.offer().await;
    assert!(server.secret() == before, "a step may have several files");
    one.offer().await;
    two.follow(server.secret().unwrap());
    assert!(files(&second) == files(&first) && files(&first).iter().count() == 3);
    assert_eq!(server.roots(), files(&first).roots().unwrap());
    // Its own change comes back, when it has gone on already.
    let own = server.secret().unwrap();
    rotation(&first).switch(SystemTime::now()).unwrap();
    let switched = files(&first);
    one.follow(own);
    assert!(files(&first) == switched);
    one.offer().await;
    one.offer().await;
    two.follow(server.secret().unwrap());
    assert!(files(&second) == switched);
}

#[tokio::test]
async fn of_two_changes_at_once_the_first_counts() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    one.establish().await.unwrap();
    two.establish().await.unwrap();
    for (replica, dir) in [(&mut one, &first), (&mut two, &second)] {
        rotation(dir).add(SystemTime::now()).unwrap();
        replica.offer().await;
        replica.offer().await;
    }
    assert!(files(&first) != files(&second));
    two.follow(server.secret().unwrap());
    assert!(files(&first) == files(&second));
}

#[tokio::test]
async fn a_secret_that_is_broken_or_gone_takes_nothing_from_anybody() {
    let server = Server::open().await;
    let (mut one, first) = replica(&server);
    one.establish().await.unwrap();
    let before = files(&first);
    one.follow(Secret { data: None, ..server.secret().unwrap() });
    assert!(files(&first) == before);
    server.forget();
    // Members have certificates of it, and who starts now does not know it.
    let (mut new, _dir) = replica(&server);
    let lost = new.establish().await.unwrap_err().to_string();
    assert!(lost.contains("put the Secret back"), "{lost}");
    one.restore().await;
    server.store.lock().unwrap().blind = 1;
    new.establish().await.unwrap();
    assert!(files_of(&server.secret().unwrap()) == before);
    // What somebody else keeps there stays there.
    let mut secret = server.secret().unwrap();
    secret.data.get_or_insert_default().insert("note".to_owned(), ByteString(b"x".to_vec()));
    fill(&mut secret, &before);
    assert!(secret.data.unwrap().contains_key("note"));
    let (mut two, _second) = replica(&server);
    server.store.lock().unwrap().objects.values_mut().for_each(|held| held["data"] = json!({}));
    let refused = two.establish().await.unwrap_err().to_string();
    assert!(refused.contains("`ca.key` and `ca.pem`"), "{refused}");
}
