//! The whole webhook, with an API server that knows just what it asks for.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_model::TrustDomain;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::*;
use crowd::{Sent, expect_served};

#[path = "../../../listen/src/tests/crowd.rs"]
mod crowd;

/// What the API server keeps.
struct Kept {
    secret: Mutex<Option<Value>>,
    bundle: watch::Sender<String>,
}

/// An API server, and where it is.
async fn api_server(tasks: &mut JoinSet<()>) -> (Arc<Kept>, Client) {
    let kept = Arc::new(Kept { secret: Mutex::new(None), bundle: watch::Sender::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = Arc::clone(&kept);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let kept = Arc::clone(&serving);
            connections.spawn(async move {
                let service = service_fn(move |request| {
                    let kept = Arc::clone(&kept);
                    async move { Ok::<_, Infallible>(kept.answer(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (kept, Client::try_from(config).unwrap())
}

impl Kept {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (status, answer) = self.decide(&parts.method, parts.uri.path(), &body);
        let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    }

    fn decide(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
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
            ("GET", "/api/v1/namespaces/shop") => {
                let labels = json!({"leno.dev/injection": "enabled"});
                (200, json!({"metadata": {"name": "shop", "labels": labels}}))
            }
            ("GET", path) if path == format!("{secrets}/{WEBHOOK_SECRET}") => {
                self.secret.lock().unwrap().clone().map_or(status(404), |secret| (200, secret))
            }
            ("POST", path) if path == secrets => {
                let mut secret = self.secret.lock().unwrap();
                if secret.is_some() {
                    return status(409);
                }
                let new: Value = serde_json::from_slice(body).unwrap();
                *secret = Some(new.clone());
                (201, new)
            }
            ("GET", path) if path == format!("{configurations}{INJECTOR}") => {
                (200, self.configuration())
            }
            ("PATCH", path) if path == format!("{configurations}{INJECTOR}") => {
                let patch: Value = serde_json::from_slice(body).unwrap();
                let bundle = &patch["webhooks"][0]["clientConfig"]["caBundle"];
                self.bundle.send_replace(bundle.as_str().unwrap().to_owned());
                (200, self.configuration())
            }
            _ => status(404),
        }
    }

    fn configuration(&self) -> Value {
        let bundle = Some(self.bundle.borrow().clone()).filter(|bundle| !bundle.is_empty());
        json!({"metadata": {"name": INJECTOR}, "webhooks": [{
            "name": "namespace.sidecar-injector.leno.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"caBundle": bundle},
        }]})
    }
}

/// Asks as an API server does that trusts `bundle`.
async fn ask(address: SocketAddr, bundle: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let pem: k8s_openapi::ByteString = serde_json::from_value(json!(bundle)).unwrap();
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&pem.0) {
        roots.add(der.unwrap()).unwrap();
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("leno-control.leno-system.svc").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let request = Request::post(path).header("host", "leno-control.leno-system.svc");
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let exchange = async {
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    };
    tokio::select! {
        answer = exchange => answer,
        _ = connection => panic!("the connection ended before the answer"),
    }
}

fn settings() -> watch::Receiver<Settings> {
    let trust_domain = TrustDomain::new("cluster.local").unwrap();
    let image = "leno:test".to_owned();
    watch::channel(Settings::new(image, "leno-system".to_owned(), trust_domain, String::new())).1
}

#[tokio::test]
async fn every_replica_is_trusted_and_answers() {
    let mut tasks = JoinSet::new();
    let (kept, client) = api_server(&mut tasks).await;
    let (stop, stopped) = watch::channel(false);
    let mut webhooks = JoinSet::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        webhooks.spawn(serve_on(
            client.clone(),
            listener,
            settings(),
            (stopped.clone(), Duration::ZERO),
        ));
    }
    let mut bundles = kept.bundle.subscribe();
    let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "shop", "object": pod,
    }});
    for address in addresses {
        let (status, answer) = ask(address, &bundle, MUTATE_PATH, &review).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
        assert_eq!(answer["response"]["patchType"], "JSONPatch", "{answer}");
        let (status, _) = ask(address, &bundle, MUTATE_PATH, &json!({})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let (status, _) = ask(address, &bundle, "/elsewhere", &review).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    stop.send_replace(true);
    while let Some(ended) = webhooks.join_next().await {
        assert!(ended.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_pod_is_refused_while_its_namespace_cannot_be_read() {
    let mut tasks = JoinSet::new();
    let (kept, client) = api_server(&mut tasks).await;
    let (_stop, stopped) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        drop(serve_on(client, listener, settings(), (stopped, Duration::ZERO)).await);
    });
    let mut bundles = kept.bundle.subscribe();
    let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "gone", "object": {"spec": {}},
    }});
    let (_, answer) = ask(address, &bundle, MUTATE_PATH, &review).await;
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
    assert_eq!(answer["response"]["status"]["code"], 503, "{answer}");
}

#[tokio::test]
async fn pods_are_reviewed_past_ten_times_as_many_silent_clients() {
    let mut tasks = JoinSet::new();
    let (kept, client) = api_server(&mut tasks).await;
    let (_stop, stopped) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        drop(serve_on(client, listener, settings(), (stopped, Duration::ZERO)).await);
    });
    let mut bundles = kept.bundle.subscribe();
    let bundle = bundles.wait_for(|bundle| !bundle.is_empty()).await.unwrap().clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "shop", "object": {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}},
    }});
    for sent in [&[Sent::Nothing][..], &Sent::HANDSHAKES].concat() {
        // Those of one source that there is room for.
        let number = 10 * listen::WAITING_MAX / 2;
        expect_served((address, number), (sent, b"h2"), async || {
            let (status, _) = ask(address, &bundle, MUTATE_PATH, &review).await;
            assert_eq!(status, StatusCode::OK);
        })
        .await;
    }
}
