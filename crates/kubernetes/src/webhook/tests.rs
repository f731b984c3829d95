//! Tests of the whole webhook, with an API server that supports only the requests of the webhook.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_listen::ConcurrencyLimit;
use leno_model::TrustDomain;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::api::NamespaceName;
use crowd::{Sent, expect_served};

#[path = "../../../listen/src/tests/crowd.rs"]
mod crowd;

/// The state of the API server.
struct ApiServerState {
    secret: Mutex<Option<Value>>,
    bundle: watch::Sender<String>,
    /// The requests about namespaces, each as method and URI.
    namespace_requests: Mutex<Vec<String>>,
    /// Notified when a request about the namespace `slow` arrives.
    slow_arrived: Notify,
    /// Permits for responses to requests about the namespace `slow`.
    slow_permits: Semaphore,
}

impl ApiServerState {
    fn take_namespace_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.namespace_requests.lock().unwrap())
    }
}

/// A part of the API server's responses that clients of the webhook must not see.
const MARKER: &str = "LS0tLS1CRUdJTiBQUklWQVRF";

/// Starts an API server; returns its state and a client.
async fn start_api_server(tasks: &mut JoinSet<()>) -> (Arc<ApiServerState>, Client) {
    let api_state = Arc::new(ApiServerState {
        secret: Mutex::new(None),
        bundle: watch::Sender::default(),
        namespace_requests: Mutex::default(),
        slow_arrived: Notify::new(),
        slow_permits: Semaphore::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server_state = Arc::clone(&api_state);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let api_state = Arc::clone(&server_state);
            connections.spawn(async move {
                let service = service_fn(move |request| {
                    let api_state = Arc::clone(&api_state);
                    async move { Ok::<_, Infallible>(api_state.handle_request(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (api_state, Client::try_from(config).unwrap())
}

impl ApiServerState {
    async fn handle_request(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let uri = parts.uri.to_string();
        if !uri.ends_with(&format!("/secrets/{WEBHOOK_SECRET}")) && uri.contains("/namespaces/") {
            self.namespace_requests.lock().unwrap().push(format!("{} {uri}", parts.method));
        }
        if uri == "/api/v1/namespaces/slow" {
            self.slow_arrived.notify_one();
            self.slow_permits.acquire().await.unwrap().forget();
        }
        let (status, response) = self.respond_to(&parts.method, parts.uri.path(), &body);
        let mut response = Response::new(Full::new(Bytes::from(response.to_string())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    }

    fn respond_to(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let status = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "AlreadyExists" };
            let failure = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            });
            (code, failure)
        };
        let secrets = "/api/v1/namespaces/leno-system/secrets";
        let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/";
        match (method.as_str(), path) {
            ("GET", "/api/v1/namespaces/shop" | "/api/v1/namespaces/slow") => {
                let labels = json!({"leno.dev/injection": "enabled"});
                (200, json!({"metadata": {"name": "shop", "labels": labels}}))
            }
            ("GET", "/api/v1/namespaces/secret") => {
                (200, json!({"apiVersion": "v1", "kind": "Secret", "data": {"ca.key": MARKER}}))
            }
            ("GET", "/api/v1/namespaces/failing") => {
                let failure = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
                    "message": format!("etcdserver: {MARKER}"), "reason": "InternalError",
                });
                (500, failure)
            }
            ("GET", "/api/v1/namespaces/text") => (502, json!(MARKER)),
            ("GET", path) if path == format!("{secrets}/{WEBHOOK_SECRET}") => {
                self.secret.lock().unwrap().clone().map_or(status(404), |secret| (200, secret))
            }
            ("POST", path) if path == secrets => {
                let mut secret = self.secret.lock().unwrap();
                if secret.is_some() {
                    return status(409);
                }
                let created: Value = serde_json::from_slice(body).unwrap();
                *secret = Some(created.clone());
                (201, created)
            }
            ("GET", path) if path == format!("{configurations}{INJECTOR}") => {
                (200, self.current_configuration())
            }
            ("PATCH", path) if path == format!("{configurations}{INJECTOR}") => {
                let patch: Value = serde_json::from_slice(body).unwrap();
                let bundle = &patch["webhooks"][0]["clientConfig"]["caBundle"];
                self.bundle.send_replace(bundle.as_str().unwrap().to_owned());
                (200, self.current_configuration())
            }
            _ => status(404),
        }
    }

    fn current_configuration(&self) -> Value {
        let bundle = Some(self.bundle.borrow().clone()).filter(|bundle| !bundle.is_empty());
        json!({"metadata": {"name": INJECTOR}, "webhooks": [{
            "name": "namespace.sidecar-injector.leno.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"caBundle": bundle},
        }]})
    }
}

/// Sends a request like an API server that trusts `bundle`. Returns the status and the body of the response;
/// a body that is not JSON is null.
async fn send_review(
    address: SocketAddr,
    bundle: &str,
    path: &str,
    body: &Value,
) -> (StatusCode, Value) {
    let (status, response) = send_request(address, bundle, None, path, body).await.unwrap();
    (status, serde_json::from_slice(&response).unwrap_or(Value::Null))
}

/// Sends a request like an API server that trusts `bundle` and has an optional client certificate. Returns the
/// status and the body of the response.
async fn send_request(
    address: SocketAddr,
    bundle: &str,
    client_certificate: Option<&ClientCertificate>,
    path: &str,
    body: &Value,
) -> Result<(StatusCode, Bytes), Failure> {
    let (sender, connection) = connect_tls(address, bundle, client_certificate).await?;
    let (head, body) = exchange_request(sender, connection, path, body).await?.into_parts();
    Ok((head.status, body))
}

/// Opens a connection like an API server that trusts `bundle`.
async fn connect_tls(
    address: SocketAddr,
    bundle: &str,
    client_certificate: Option<&ClientCertificate>,
) -> Result<WebhookConnection, Failure> {
    let pem: k8s_openapi::ByteString = serde_json::from_value(json!(bundle)).unwrap();
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&pem.0) {
        roots.add(der.unwrap()).unwrap();
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client_certificate {
        Some((chain, key)) => config.with_client_auth_cert(vec![chain.clone()], key.clone_key())?,
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("leno-control.leno-system.svc").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?)
}

/// Returns the response to one request on this connection.
async fn exchange_request(
    mut sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<TlsStream<TcpStream>>, Full<Bytes>>,
    path: &str,
    body: &Value,
) -> Result<Response<Bytes>, Failure> {
    let request = Request::post(path).header("host", "leno-control.leno-system.svc");
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    };
    let mut exchange = pin!(exchange);
    let connection_result = tokio::select! {
        response = exchange.as_mut() => return response,
        connection_result = connection => connection_result,
    };
    // The connection may close with the response.
    match connection_result {
        Ok(()) => exchange.await,
        Err(error) => Err(error.into()),
    }
}

/// The reason that there is no response.
type Failure = Box<dyn std::error::Error>;

/// A connection to the webhook.
type WebhookConnection =
    (SendRequest<Full<Bytes>>, Connection<TokioIo<TlsStream<TcpStream>>, Full<Bytes>>);

/// A certificate and its key.
type ClientCertificate = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// Creates a client CA and one client certificate.
fn client_authority() -> (String, ClientCertificate) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&key).unwrap();
    let issuer = Issuer::new(parameters, key);
    let client_key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = parameters.signed_by(&client_key, &issuer).unwrap();
    let client_key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(client_key.serialize_der()));
    (authority.pem(), (certificate.der().clone(), client_key))
}

/// A webhook with its API server.
struct WebhookFixture {
    api_state: Arc<ApiServerState>,
    address: SocketAddr,
    bundle: String,
    stop: watch::Sender<bool>,
    webhook: JoinSet<()>,
    _tasks: JoinSet<()>,
}

impl WebhookFixture {
    async fn start(clients: Option<ClientAuthorities>) -> Self {
        let mut tasks = JoinSet::new();
        let (api_state, client) = start_api_server(&mut tasks).await;
        let (stop, stopped) = watch::channel(false);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut webhook = JoinSet::new();
        webhook.spawn(async move {
            let settings = test_settings();
            drop(serve_with(client, listener, clients, settings, stopped, Duration::ZERO).await);
        });
        let mut bundles = api_state.bundle.subscribe();
        let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
        // The webhook has its certificate by now.
        api_state.take_namespace_requests();
        Self { api_state, address, bundle, stop, webhook, _tasks: tasks }
    }

    async fn send_review(&self, review: &Value) -> (StatusCode, String) {
        let response = send_request(self.address, &self.bundle, None, MUTATE_PATH, review).await;
        let (status, response) = response.unwrap();
        (status, String::from_utf8(response.to_vec()).unwrap())
    }
}

fn pod_review(namespace: &Value, object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": namespace, "object": object,
    }})
}

/// Serves the webhook to clients with and without certificates.
async fn serve_all_clients(
    client: Client,
    listener: TcpListener,
    settings: watch::Receiver<InjectionSettings>,
    stop: watch::Receiver<bool>,
    shutdown_delay: Duration,
) -> Result<(), WebhookError> {
    serve_with(client, listener, None, settings, stop, shutdown_delay).await
}

fn test_settings() -> watch::Receiver<InjectionSettings> {
    let trust_domain = TrustDomain::new("cluster.local").unwrap();
    let image = "leno:test".to_owned();
    watch::channel(InjectionSettings::new(
        image,
        NamespaceName::from_literal("leno-system"),
        trust_domain,
        String::new(),
    ))
    .1
}

#[tokio::test]
async fn every_replica_is_trusted_and_responds() {
    let mut tasks = JoinSet::new();
    let (api_state, client) = start_api_server(&mut tasks).await;
    let (stop, stopped) = watch::channel(false);
    let mut webhooks = JoinSet::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        webhooks.spawn(serve_all_clients(
            client.clone(),
            listener,
            test_settings(),
            stopped.clone(),
            Duration::ZERO,
        ));
    }
    let mut bundles = api_state.bundle.subscribe();
    let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "shop", "object": pod,
    }});
    for address in addresses {
        let (status, response) = send_review(address, &bundle, MUTATE_PATH, &review).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(response["response"]["allowed"], true, "{response}");
        assert_eq!(response["response"]["patchType"], "JSONPatch", "{response}");
        let (status, _) = send_review(address, &bundle, MUTATE_PATH, &json!({})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let (status, _) = send_review(address, &bundle, "/another", &review).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    stop.send_replace(true);
    while let Some(ended) = webhooks.join_next().await {
        assert!(ended.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_pod_is_rejected_while_its_namespace_cannot_be_read() {
    let served = WebhookFixture::start(None).await;
    let (_, response) = served.send_review(&pod_review(&json!("gone"), &json!({"spec": {}}))).await;
    let response: Value = serde_json::from_str(&response).unwrap();
    assert_eq!(response["response"]["allowed"], false, "{response}");
    assert_eq!(response["response"]["status"]["code"], 503, "{response}");
}

/// Returns once the address accepts no more connections.
async fn wait_until_closed(address: SocketAddr) {
    while TcpStream::connect(address).await.is_ok() {}
}

#[tokio::test]
async fn a_review_in_progress_at_the_stop_is_completed() {
    let mut served = WebhookFixture::start(None).await;
    let review = pod_review(&json!("slow"), &json!({"spec": {"containers": [{"name": "app"}]}}));
    let stopping = async {
        served.api_state.slow_arrived.notified().await;
        served.stop.send_replace(true);
        wait_until_closed(served.address).await;
        served.api_state.slow_permits.add_permits(1);
    };
    let ((status, response), ()) = tokio::join!(served.send_review(&review), stopping);
    assert_eq!(status, StatusCode::OK);
    assert!(response.contains("JSONPatch"), "{response}");
    assert!(served.webhook.join_next().await.unwrap().is_ok());
}

#[tokio::test]
async fn a_connection_without_a_request_at_the_stop_may_still_send_one() {
    let mut served = WebhookFixture::start(None).await;
    let review = pod_review(&json!("slow"), &json!({"spec": {"containers": [{"name": "app"}]}}));
    let (sender, connection) = connect_tls(served.address, &served.bundle, None).await.unwrap();
    served.stop.send_replace(true);
    let releasing = async {
        served.api_state.slow_arrived.notified().await;
        wait_until_closed(served.address).await;
        served.api_state.slow_permits.add_permits(1);
        std::future::pending().await
    };
    let response = tokio::select! {
        response = exchange_request(sender, connection, MUTATE_PATH, &review) => response.unwrap(),
        () = releasing => return,
    };
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["connection"], "close");
    assert!(served.webhook.join_next().await.unwrap().is_ok());
}

#[tokio::test]
async fn idle_connections_delay_the_shutdown_only_briefly() {
    let mut served = WebhookFixture::start(None).await;
    let _silent = TcpStream::connect(served.address).await.unwrap();
    let _idle = connect_tls(served.address, &served.bundle, None).await.unwrap();
    served.stop.send_replace(true);
    let ended = tokio::time::timeout(Duration::from_secs(4), served.webhook.join_next()).await;
    assert!(ended.unwrap().unwrap().is_ok());
}

/// Texts that would change the path or the query of a request.
const HOSTILE_TEXTS: &[&str] = &[
    "",
    "leno-system/secrets/leno-authority",
    "leno-system/secrets",
    "/",
    "a/..",
    "..",
    ".",
    "../secrets",
    "shop?watch=true",
    "shop#",
    "shop%2fpods",
    "%2e%2e",
    "shop\0",
    "shop\r\nhost: a",
    "shop;a",
    "shop\\a",
    "SHOP",
    " shop",
    "shop.",
    "-shop",
    "a.b",
];

#[tokio::test]
async fn a_namespace_that_is_not_a_label_is_rejected_without_an_api_request() {
    let served = WebhookFixture::start(None).await;
    let long = "a".repeat(64);
    for namespace in HOSTILE_TEXTS.iter().copied().chain([long.as_str()]) {
        let (status, response) =
            served.send_review(&pod_review(&json!(namespace), &json!({"spec": {}}))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{namespace:?}: {response}");
        assert_eq!(served.api_state.take_namespace_requests(), [""; 0], "{namespace:?}");
    }
    let (status, _) = served.send_review(&pod_review(&Value::Null, &json!({"spec": {}}))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(served.api_state.take_namespace_requests(), [""; 0]);
}

#[tokio::test]
async fn no_other_text_of_a_review_is_part_of_an_api_path() {
    let served = WebhookFixture::start(None).await;
    for text in HOSTILE_TEXTS {
        let pod = json!({
            "metadata": {
                "name": text, "generateName": text, "namespace": text,
                "labels": {"app": text},
                "ownerReferences": [{"apiVersion": text, "kind": text, "name": text, "uid": text}],
            },
            "spec": {
                "serviceAccountName": text, "nodeName": text,
                "imagePullSecrets": [{"name": text}],
                "containers": [{"name": "app", "envFrom": [{"secretRef": {"name": text}}]}],
                "volumes": [{"name": "v", "secret": {"secretName": text}}],
            },
        });
        let mut review = pod_review(&json!("shop"), &pod);
        for field in ["name", "uid", "userInfo", "resource", "requestKind"] {
            review["request"][field] = json!(text);
        }
        review["request"]["oldObject"] = pod;
        let (status, response) = served.send_review(&review).await;
        assert_eq!(status, StatusCode::OK, "{text:?}: {response}");
        assert_eq!(
            served.api_state.take_namespace_requests(),
            ["GET /api/v1/namespaces/shop"],
            "{text:?}"
        );
    }
}

#[tokio::test]
async fn responses_do_not_contain_text_of_the_api_server() {
    let served = WebhookFixture::start(None).await;
    for namespace in ["secret", "failing", "text", "gone"] {
        let (status, response) =
            served.send_review(&pod_review(&json!(namespace), &json!({"spec": {}}))).await;
        assert_eq!(status, StatusCode::OK);
        for internal in [MARKER, "etcdserver", "deserializ", "Secret", "column", "NotFound", "502"]
        {
            assert!(!response.contains(internal), "{internal}: {response}");
        }
        let response: Value = serde_json::from_str(&response).unwrap();
        assert_eq!(response["response"]["status"]["code"], 503, "{response}");
    }
}

#[tokio::test]
async fn clients_without_a_certificate_of_the_authority_are_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let ((first_ca, first_client), (second_ca, second_client)) =
        (client_authority(), client_authority());
    std::fs::write(&path, &first_ca).unwrap();
    let clients = ClientAuthorities::open(path.clone()).unwrap();
    let served = WebhookFixture::start(Some(clients)).await;
    let review = pod_review(&json!("shop"), &json!({"spec": {"containers": [{"name": "app"}]}}));
    let is_served = async |certificate: Option<&ClientCertificate>| {
        let response =
            send_request(served.address, &served.bundle, certificate, MUTATE_PATH, &review).await;
        response.is_ok_and(|(status, _)| status == StatusCode::OK)
    };
    assert!(is_served(Some(&first_client)).await);
    assert!(!is_served(None).await && !is_served(Some(&second_client)).await);
    served.api_state.take_namespace_requests();
    // The file is reloaded. An invalid file changes nothing, a file with another CA replaces the first CA.
    std::fs::write(&path, "broken").unwrap();
    assert!(is_served(Some(&first_client)).await);
    std::fs::write(&path, &second_ca).unwrap();
    let started = Instant::now();
    while !is_served(Some(&second_client)).await {
        assert!(started.elapsed() < Duration::from_secs(60), "the file is not read again");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!is_served(Some(&first_client)).await && !is_served(None).await);
}

#[tokio::test]
async fn reviews_beyond_the_limit_of_a_source_are_rejected() {
    let mut tasks = JoinSet::new();
    let (_, client) = start_api_server(&mut tasks).await;
    let review_limit = ConcurrencyLimit::new(2, 1);
    let state = listen::WebhookState { client, settings: test_settings(), review_limit };
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}});
    let review = pod_review(&json!("shop"), &pod).to_string();
    let source = |last: u8| ConnectionSource::from(IpAddr::from([10, 0, 0, last]));
    let in_progress = state.review_limit.acquire(source(1)).unwrap();
    for (last, expected) in [(1, StatusCode::SERVICE_UNAVAILABLE), (2, StatusCode::OK)] {
        let response = state.review_response(review.as_bytes(), source(last)).await;
        assert_eq!(response.status(), expected, "{last}");
    }
    drop(in_progress);
    let response = state.review_response(review.as_bytes(), source(1)).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn pods_are_reviewed_despite_ten_times_as_many_idle_connections() {
    let mut tasks = JoinSet::new();
    let (api_state, client) = start_api_server(&mut tasks).await;
    let (_stop, stopped) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        drop(serve_all_clients(client, listener, test_settings(), stopped, Duration::ZERO).await);
    });
    let mut bundles = api_state.bundle.subscribe();
    let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "shop", "object": {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}},
    }});
    for sent in [&Sent::REQUESTS[..], &Sent::HANDSHAKES].concat() {
        // The limit of one source is half of all waiting connections.
        let connection_count = 10 * listen::MAX_WAITING_CONNECTIONS / 2;
        expect_served(address, connection_count, sent, b"h2", async || {
            let (status, _) = send_review(address, &bundle, MUTATE_PATH, &review).await;
            assert_eq!(status, StatusCode::OK);
        })
        .await;
    }
}
