//! JWKS fetches from scripted servers and files: key rotation, errors, and permitted sources.

use std::sync::Mutex;

use leno_model::{IssuerKeys, KeyServer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A scripted server that records its requests.
struct Issuer {
    port: u16,
    response: Arc<Mutex<String>>,
    requests: Arc<Mutex<Vec<String>>>,
    _server_task: JoinSet<()>,
}

impl Issuer {
    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (response, requests) =
            (Arc::<Mutex<String>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let mut server_task = JoinSet::new();
        let (shared_response, shared_requests) = (Arc::clone(&response), Arc::clone(&requests));
        server_task.spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                match &tls {
                    None => serve_connection(tcp, &shared_response, &shared_requests).await,
                    // A client that does not trust the certificate ends the handshake.
                    Some(tls) => {
                        if let Ok(session) = tls.accept(tcp).await {
                            serve_connection(session, &shared_response, &shared_requests).await;
                        }
                    }
                }
            }
        });
        Self { port, response, requests, _server_task: server_task }
    }

    fn set_response(&self, status: &str, fields: &str, body: &str) {
        let length = body.len();
        *self.response.lock().unwrap() =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{fields}\r\n{body}");
    }

    fn key_source(&self, scheme: &str) -> KeySource {
        let url = format!("{scheme}://localhost:{}/keys?a=b", self.port);
        KeySource::Server(KeyServer::parse(&url, MINUTE).unwrap())
    }

    fn last_request(&self) -> String {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

async fn serve_connection(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    response: &Mutex<String>,
    requests: &Mutex<Vec<String>>,
) {
    let mut request_head = Vec::new();
    while !request_head.ends_with(b"\r\n\r\n") {
        match io.read_u8().await {
            Ok(byte) => request_head.push(byte),
            Err(_) => return,
        }
    }
    requests.lock().unwrap().push(String::from_utf8(request_head).unwrap());
    let response = response.lock().unwrap().clone();
    // A client that has read enough may have disconnected.
    drop(io.write_all(response.as_bytes()).await);
    drop(io.shutdown().await);
}

fn key_set(id: &str) -> String {
    let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "{id}", "x": "{x}"}}]}}"#)
}

fn fetcher_with_source(source: &KeySource) -> JwksFetcher {
    let mut fetcher = JwksFetcher::new(None, KeyAccess::for_operator(), 1);
    fetcher.set_sources(&BTreeSet::from([source.clone()]), Instant::now());
    fetcher
}

/// Fetches the sets that are due after this time.
async fn fetch_due(fetcher: &mut JwksFetcher, after: Duration) -> Option<FetchOutcome> {
    let now = Instant::now() + after;
    fetcher.start_due_fetches(now, |_| true);
    let (source, result) = fetcher.fetches_in_progress.join_next().await?.unwrap();
    fetcher.record_result(source, result, now).map(|update| update.outcome)
}

fn changed_keys(outcome: Option<FetchOutcome>) -> String {
    match outcome {
        Some(FetchOutcome::Changed(set)) => set.to_string(),
        other => panic!("{other:?}"),
    }
}

fn failure_cause(outcome: Option<FetchOutcome>) -> String {
    match outcome {
        Some(FetchOutcome::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_set_is_fetched_again_by_its_etag_and_the_last_valid_one_stays() {
    let issuer = Issuer::start(None).await;
    let mut fetcher = fetcher_with_source(&issuer.key_source("http"));
    issuer.set_response("200 OK", "etag: \"1\"\r\n", &key_set("one"));
    assert!(changed_keys(fetch_due(&mut fetcher, Duration::ZERO).await).contains("one"));
    let request = issuer.last_request();
    assert!(request.starts_with("GET /keys?a=b HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: localhost:{}\r\n", issuer.port)), "{request}");
    assert!(!request.contains("if-none-match"), "{request}");

    assert_eq!(fetch_due(&mut fetcher, Duration::ZERO).await, None, "nothing is due yet");
    issuer.set_response("304 Not Modified", "", "");
    assert_eq!(fetch_due(&mut fetcher, MINUTE).await, Some(FetchOutcome::Unchanged));
    assert!(issuer.last_request().contains("if-none-match: \"1\"\r\n"));
    issuer.set_response("503 Service Unavailable", "", "");
    assert_eq!(
        failure_cause(fetch_due(&mut fetcher, 2 * MINUTE).await),
        "returned 503 Service Unavailable"
    );
    // A failed fetch is retried soon.
    issuer.set_response("200 OK", "", &key_set("one"));
    let soon = 2 * MINUTE + Duration::from_secs(1);
    assert_eq!(fetch_due(&mut fetcher, soon).await, Some(FetchOutcome::Unchanged));
    issuer.set_response("200 OK", "", &key_set("two"));
    assert!(changed_keys(fetch_due(&mut fetcher, 4 * MINUTE).await).contains("two"));
    assert!(!issuer.last_request().contains("if-none-match"), "the last response had no ETag");
}

#[tokio::test]
async fn an_unusable_response_is_reported_and_adds_no_keys() {
    let issuer = Issuer::start(None).await;
    let oversized = " ".repeat(IssuerKeys::MAX_BYTES + 1);
    for (status, fields, body, expected) in [
        (
            "302 Found",
            "location: http://localhost/\r\n",
            "",
            "returned redirect 302 Found; redirects are not followed",
        ),
        ("404 Not Found", "", &*key_set("a"), "returned 404 Not Found"),
        ("200 OK", "", "<html>", "is not a JWK set"),
        ("200 OK", "", r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#, "has no RSA key"),
        ("200 OK", "", &oversized, "returned more than 65536 bytes"),
        ("200 OK", "content-encoding: gzip\r\n", "\u{1f}", "is not a JWK set"),
    ] {
        issuer.set_response(status, fields, body);
        let reason = failure_cause(
            fetch_due(&mut fetcher_with_source(&issuer.key_source("http")), Duration::ZERO).await,
        );
        assert!(reason.contains(expected), "{status} {fields}: {reason}");
    }
    *issuer.response.lock().unwrap() = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}".to_owned();
    let reason = failure_cause(
        fetch_due(&mut fetcher_with_source(&issuer.key_source("http")), Duration::ZERO).await,
    );
    assert!(
        reason.contains("before the end of its response") || reason.contains("HTTP"),
        "{reason}"
    );
    *issuer.response.lock().unwrap() = "no HTTP at all\r\n\r\n".to_owned();
    let reason = failure_cause(
        fetch_due(&mut fetcher_with_source(&issuer.key_source("http")), Duration::ZERO).await,
    );
    assert!(reason.contains("did not respond with HTTP"), "{reason}");
}

#[tokio::test]
async fn only_a_server_with_a_verified_certificate_is_trusted() {
    let trusted = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key =
        rustls::pki_types::PrivateKeyDer::try_from(trusted.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![trusted.cert.der().clone()], key)
        .unwrap();
    let issuer = Issuer::start(Some(TlsAcceptor::from(Arc::new(config)))).await;
    issuer.set_response("200 OK", "", &key_set("one"));
    let directory = tempfile::tempdir().unwrap();
    let roots_path = directory.path().join("roots.pem");
    let untrusted = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    for (root, is_trusted) in [(&untrusted.cert, false), (&trusted.cert, true)] {
        std::fs::write(&roots_path, root.pem()).unwrap();
        let mut fetcher = fetcher_with_source(&issuer.key_source("https"));
        fetcher.roots_file = Some(roots_path.clone());
        let outcome = fetch_due(&mut fetcher, Duration::ZERO).await;
        match is_trusted {
            true => assert!(changed_keys(outcome).contains("one")),
            false => assert!(failure_cause(outcome).starts_with("cannot be verified: ")),
        }
    }
    let mut fetcher = fetcher_with_source(&issuer.key_source("https"));
    fetcher.roots_file = Some(directory.path().join("absent.pem"));
    let reason = failure_cause(fetch_due(&mut fetcher, Duration::ZERO).await);
    assert!(
        reason.contains("cannot read the CA certificates") && reason.contains("absent.pem"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_file_is_read_repeatedly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.json");
    let mut fetcher = fetcher_with_source(&KeySource::File(path.clone()));
    let seconds = |count| FILE_CHECK_INTERVAL * count;
    assert!(
        failure_cause(fetch_due(&mut fetcher, seconds(0)).await).starts_with("cannot be read: ")
    );
    std::fs::write(&path, key_set("one")).unwrap();
    assert!(changed_keys(fetch_due(&mut fetcher, seconds(2)).await).contains("one"));
    assert_eq!(fetch_due(&mut fetcher, seconds(4)).await, Some(FetchOutcome::Unchanged));
    std::fs::write(&path, " ".repeat(IssuerKeys::MAX_BYTES + 1)).unwrap();
    assert_eq!(
        failure_cause(fetch_due(&mut fetcher, seconds(6)).await),
        "has more than 65536 bytes"
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(failure_cause(fetch_due(&mut fetcher, seconds(8)).await), "is not a file");
}

#[tokio::test]
async fn a_server_that_is_not_permitted_gets_no_connection() {
    let issuer = Issuer::start(None).await;
    issuer.set_response("200 OK", "", &key_set("one"));
    for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "127.1"] {
        let url = format!("http://{host}:{}/keys", issuer.port);
        let source = KeySource::Server(KeyServer::parse(&url, MINUTE).unwrap());
        let mut fetcher = JwksFetcher::new(None, KeyAccess::for_tenants(), 1);
        fetcher.set_sources(&BTreeSet::from([source]), Instant::now());
        let reason = failure_cause(fetch_due(&mut fetcher, Duration::ZERO).await);
        assert!(reason.contains("--jwks-allow"), "{host}: {reason}");
    }
    assert!(issuer.requests.lock().unwrap().is_empty());
    // The operator permits the address.
    let key_access =
        KeyAccess { servers: "127.0.0.0/8,::1".parse().unwrap(), ..KeyAccess::for_tenants() };
    let mut fetcher = JwksFetcher::new(None, key_access, 1);
    fetcher.set_sources(&BTreeSet::from([issuer.key_source("http")]), Instant::now());
    assert!(changed_keys(fetch_due(&mut fetcher, Duration::ZERO).await).contains("one"));
}

#[tokio::test]
async fn a_file_that_is_not_permitted_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let (keys_directory, other) =
        (directory.path().join("keys"), directory.path().join("other.json"));
    std::fs::create_dir(&keys_directory).unwrap();
    std::fs::write(&other, key_set("one")).unwrap();
    std::fs::write(keys_directory.join("a.json"), key_set("one")).unwrap();
    for (files, path, is_read) in [
        (PermittedFiles::None, keys_directory.join("a.json"), false),
        (PermittedFiles::Below(keys_directory.clone()), keys_directory.join("a.json"), true),
        (
            PermittedFiles::Below(keys_directory.clone()),
            keys_directory.join("../other.json"),
            false,
        ),
        (PermittedFiles::Below(keys_directory.clone()), other, false),
        (
            PermittedFiles::Below(keys_directory.clone()),
            directory.path().join("absent.json"),
            false,
        ),
    ] {
        let mut fetcher =
            JwksFetcher::new(None, KeyAccess { files, ..KeyAccess::for_tenants() }, 1);
        fetcher.set_sources(&BTreeSet::from([KeySource::File(path.clone())]), Instant::now());
        match fetch_due(&mut fetcher, Duration::ZERO).await {
            Some(FetchOutcome::Failed(reason)) if !is_read => {
                assert!(reason.contains("--jwks-files"), "{}: {reason}", path.display());
            }
            other => assert!(is_read, "{}: {other:?}", path.display()),
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_is_no_longer_used_is_dropped() {
    let issuer = Issuer::start(None).await;
    issuer.set_response("200 OK", "", &key_set("one"));
    let source = issuer.key_source("http");
    let mut fetcher = fetcher_with_source(&source);
    fetcher.start_due_fetches(Instant::now(), |_| true);
    let unused_endpoints = fetcher.set_sources(&BTreeSet::new(), Instant::now());
    assert_eq!(
        unused_endpoints,
        [KeyUpdate { source: source.clone(), outcome: FetchOutcome::EndpointUnused }]
    );
    // The fetch in progress is aborted.
    let fetch_result = fetcher.fetches_in_progress.join_next().await.unwrap();
    assert!(fetch_result.unwrap_err().is_cancelled());
    assert_eq!(fetch_due(&mut fetcher, Duration::ZERO).await, None);
    fetcher.set_sources(&BTreeSet::from([source]), Instant::now());
    changed_keys(fetch_due(&mut fetcher, Duration::ZERO).await);
}

#[tokio::test]
async fn a_first_response_of_not_modified_is_an_error() {
    let issuer = Issuer::start(None).await;
    issuer.set_response("304 Not Modified", "", "");
    let mut fetcher = fetcher_with_source(&issuer.key_source("http"));
    let reason = failure_cause(fetch_due(&mut fetcher, Duration::ZERO).await);
    assert!(reason.contains("no keys were fetched before"), "{reason}");
    assert!(
        fetcher
            .endpoints
            .values()
            .all(|endpoint| endpoint.etag.is_none() && endpoint.consecutive_failures == 1)
    );
}

#[tokio::test]
async fn the_endpoint_that_is_due_the_longest_is_fetched_first() {
    let now = Instant::now();
    let file = |index: usize| KeySource::File(format!("/absent/{index:02}").into());
    let longest_due = file(MAX_FETCHES);
    let mut fetcher = JwksFetcher::new(None, KeyAccess::for_operator(), 1);
    fetcher.set_sources(&(0..=MAX_FETCHES).map(file).collect(), now + FILE_CHECK_INTERVAL);
    fetcher.endpoints.get_mut(&longest_due).unwrap().due_at = Some(now);
    fetcher.start_due_fetches(now + FILE_CHECK_INTERVAL, |_| true);
    let unstarted_sources =
        fetcher.endpoints.iter().filter(|(_, endpoint)| endpoint.due_at.is_some());
    let unstarted_sources: Vec<&KeySource> = unstarted_sources.map(|(source, _)| source).collect();
    assert_eq!(unstarted_sources.len(), 1);
    assert_ne!(unstarted_sources, [&longest_due]);
}

#[tokio::test]
async fn the_start_waits_for_one_response_of_each_endpoint() {
    let (working, failing) = (Issuer::start(None).await, Issuer::start(None).await);
    working.set_response("200 OK", "", &key_set("one"));
    failing.set_response("500 Internal Server Error", "", "");
    let sources = BTreeSet::from([working.key_source("http"), failing.key_source("http")]);
    let updates = JwksFetcher::new(None, KeyAccess::for_operator(), 1).fetch_first(&sources).await;
    let outcome_of = |issuer: &Issuer| {
        let source = issuer.key_source("http");
        let source_update = updates.iter().find(|update| update.source == source);
        source_update.map(|update| update.outcome.clone())
    };
    assert!(changed_keys(outcome_of(&working)).contains("one"));
    failure_cause(outcome_of(&failing));
    assert_eq!(updates.len(), 2);
}

const MINUTE: Duration = Duration::from_secs(60);
