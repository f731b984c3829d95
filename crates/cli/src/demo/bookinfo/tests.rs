//! Bookinfo behind a test proxy in place of the mesh.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::*;

#[test]
fn productpage_joins_details_and_reviews_through_the_proxy() {
    run(async {
        let bookinfo = TestBookinfo::start_all(&["details", "reviews", "ratings"]).await;
        let response = bookinfo.send_request("productpage", "/api/v1/products/0", &[]).await;
        assert_eq!(response.status, StatusCode::OK);
        let product = response.json();
        assert_eq!(product["details"]["author"], "William Shakespeare");
        assert_eq!(product["reviews"]["version"], "v3");
        let rating = &product["reviews"]["reviews"][0]["rating"];
        assert_eq!(rating, &json!({"stars": 5, "color": "red"}));

        let page = bookinfo.send_request("productpage", "/productpage?id=0", &[]).await;
        assert_eq!(page.status, StatusCode::OK);
        let html = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(html.contains("The Comedy of Errors") && html.contains("★★★★★"));
        assert!(html.contains("Served by reviews v3"));
    });
}

#[test]
fn only_trace_headers_and_the_user_are_propagated() {
    run(async {
        let bookinfo = TestBookinfo::start_all(&["details", "reviews", "ratings"]).await;
        let sent_headers = [
            ("x-request-id", "r-1"),
            ("traceparent", "00-a-b-01"),
            ("b3", "0"),
            ("end-user", "jason"),
            ("authorization", "secret"),
        ];
        bookinfo.send_request("productpage", "/api/v1/products/0", &sent_headers).await;
        let requests = bookinfo.requests.borrow();
        assert_eq!(requests.len(), 3);
        for (uri, headers) in &*requests {
            for (name, value) in &sent_headers[..4] {
                assert_eq!(headers.get(*name).unwrap(), value, "{name} to {uri}");
            }
            assert!(!headers.contains_key("authorization"), "{uri}");
        }
        let ratings = requests.iter().find(|(uri, _)| uri.contains("ratings")).unwrap();
        assert_eq!(ratings.0, "http://ratings.bookinfo:9080/ratings/0");
        assert_eq!(ratings.1["host"], "ratings.bookinfo:9080");
    });
}

#[test]
fn connections_to_the_proxy_are_reused() {
    run(async {
        let bookinfo = TestBookinfo::start_all(&["ratings"]).await;
        for _ in 0..20 {
            assert_eq!(
                bookinfo.send_request("gateway", "/ratings/1", &[]).await.status,
                StatusCode::OK
            );
        }
        assert_eq!(*bookinfo.connections.borrow(), 1);
    });
}

#[test]
fn a_rejected_upstream_call_results_in_503_with_the_reason() {
    run(async {
        // Ratings is not reachable: the proxy responds with 403 like a mesh.
        let bookinfo = TestBookinfo::start_all(&["details", "reviews"]).await;
        for (service, path, failed_service) in
            [("reviews", "/reviews/1", "ratings"), ("productpage", "/api/v1/products/1", "reviews")]
        {
            let response = bookinfo.send_request(service, path, &[]).await;
            assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE, "{service}");
            assert_eq!(response.json()["service"], failed_service);
        }
        let rejection = bookinfo.send_request("reviews", "/reviews/1", &[]).await.json();
        assert_eq!(rejection["status"], 403);
        assert_eq!(rejection["reason"], "denied;side=mesh");
        let page = bookinfo.send_request("productpage", "/productpage?id=1", &[]).await;
        assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(String::from_utf8_lossy(&page.body).contains("reviews responded with status 503"));
        // A gateway returns the response unchanged.
        let response = bookinfo.send_request("gateway", "/ratings/1", &[]).await;
        assert_eq!(response.status, StatusCode::FORBIDDEN);
    });
}

#[test]
fn an_unreachable_proxy_results_in_503_with_the_reason() {
    run(async {
        // Bound but not listening, so that no other process gets the port.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let proxy = format!("http://{}", socket.local_addr().unwrap());
        let service = RunningService::start("gateway", Some(&proxy)).await;
        let response = get(service.address, Method::GET, "/ratings/1", &[]).await;
        assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with("ratings cannot be reached: "), "{error}");
    });
}

#[test]
fn each_service_serves_its_own_paths() {
    run(async {
        let bookinfo = TestBookinfo::start_all(&["details", "reviews", "ratings"]).await;
        for (service, path, status) in [
            ("productpage", "/", 200),
            ("productpage", "/health", 200),
            ("productpage", "/productpage", 200),
            ("productpage", "/api/v1/products", 200),
            ("productpage", "/productpage?id=99", 404),
            ("productpage", "/api/v1/products/x", 404),
            ("details", "/health", 200),
            ("details", "/details/3", 200),
            ("details", "/details/4", 404),
            ("details", "/ratings/0", 404),
            ("reviews", "/reviews/3", 200),
            ("reviews", "/reviews/", 404),
            ("ratings", "/ratings/2", 200),
            ("ratings", "/ratings/2/x", 404),
            ("gateway", "/ratings/2?verbose=1", 200),
            ("gateway", "/ratings/77", 404),
            ("gateway", "/details/1", 404),
        ] {
            let response = bookinfo.send_request(service, path, &[]).await;
            assert_eq!(response.status.as_u16(), status, "{service} {path}");
        }
        let ratings = bookinfo.send_request("ratings", "/ratings/0", &[]).await.json();
        assert_eq!(ratings, json!({"id": 0, "ratings": {"Adriana": 5, "Egeon": 4}}));
        let address = bookinfo.services["details"].address;
        let head_response = get(address, Method::HEAD, "/details/0", &[]).await;
        assert_eq!((head_response.status.as_u16(), head_response.body.len()), (200, 0));
        let post_response = get(address, Method::POST, "/details/0", &[]).await;
        assert_eq!(post_response.status, StatusCode::METHOD_NOT_ALLOWED);
    });
}

#[test]
fn versions_of_reviews_differ_in_their_stars() {
    run(async {
        let bookinfo = TestBookinfo::start_all(&["ratings"]).await;
        for (version, color) in [
            (ReviewsVersion::V1, Value::Null),
            (ReviewsVersion::V2, json!("black")),
            (ReviewsVersion::V3, json!("red")),
        ] {
            let options = ServiceOptions { version, ..service_options(Some(&bookinfo.proxy)) };
            let service = RunningService::start_with_options(ServiceKind::Reviews, &options).await;
            let reviews = get(service.address, Method::GET, "/reviews/1", &[]).await.json();
            assert_eq!(reviews["version"], serde_json::to_value(version).unwrap());
            assert_eq!(reviews["reviews"][1]["rating"]["color"], color);
        }
        assert_eq!(bookinfo.requests.borrow().len(), 2, "version 1 calls no other service");
    });
}

#[test]
fn shutdown_completes_requests_in_progress_and_closes_idle_connections() {
    run(async {
        // A proxy that delays its response until signaled.
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy_url = format!("http://{}", proxy.local_addr().unwrap());
        let mut service = RunningService::start("gateway", Some(&proxy_url)).await;
        let mut idle_connection = TcpStream::connect(service.address).await.unwrap();
        idle_connection.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_ne!(idle_connection.read(&mut [0; 1024]).await.unwrap(), 0);

        let address = service.address;
        let pending_response = spawn_local(get(address, Method::GET, "/ratings/1", &[]));
        let (mut connection, _) = proxy.accept().await.unwrap();
        assert_ne!(connection.read(&mut [0; 1024]).await.unwrap(), 0);
        service.stop_sender.take().unwrap().send(()).unwrap();
        assert_eq!(
            idle_connection.read(&mut [0; 1024]).await.unwrap(),
            0,
            "idle connections close"
        );
        assert!(!service.server_task.is_finished(), "shutdown waits for the request in progress");
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        assert_eq!(pending_response.await.unwrap().body, "{}");
        service.server_task.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    });
}

/// Services behind a test proxy in place of the mesh: for unknown names it responds with 403 and a reason, like a
/// sidecar.
struct TestBookinfo {
    proxy: String,
    services: BTreeMap<&'static str, RunningService>,
    /// Targets and headers of the requests through the proxy.
    requests: Rc<RefCell<Vec<(String, HeaderMap)>>>,
    /// The number of connections that the proxy accepted.
    connections: Rc<RefCell<usize>>,
}

impl TestBookinfo {
    /// Starts all services; the proxy forwards to the reachable ones.
    async fn start_all(reachable_services: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://{}/", listener.local_addr().unwrap());
        let mut services = BTreeMap::new();
        for name in ["productpage", "details", "reviews", "ratings", "gateway"] {
            services.insert(name, RunningService::start(name, Some(&proxy)).await);
        }
        let addresses: BTreeMap<String, SocketAddr> = reachable_services
            .iter()
            .map(|name| (format!("{name}.bookinfo:9080"), services[name].address))
            .collect();
        let requests = Rc::default();
        let connections = Rc::default();
        spawn_local(run_proxy(listener, addresses, Rc::clone(&requests), Rc::clone(&connections)));
        Self { proxy, services, requests, connections }
    }

    async fn send_request(
        &self,
        service: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> TestResponse {
        get(self.services[service].address, Method::GET, path, headers).await
    }
}

async fn run_proxy(
    listener: TcpListener,
    addresses: BTreeMap<String, SocketAddr>,
    requests: Rc<RefCell<Vec<(String, HeaderMap)>>>,
    connections: Rc<RefCell<usize>>,
) {
    let addresses = Rc::new(addresses);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        *connections.borrow_mut() += 1;
        let (requests, addresses) = (Rc::clone(&requests), Rc::clone(&addresses));
        let service = service_fn(move |request: Request<Incoming>| {
            requests.borrow_mut().push((request.uri().to_string(), request.headers().clone()));
            let authority = request.uri().authority().expect("absolute form").to_string();
            let address = addresses.get(&authority).copied();
            async move { Ok::<_, Infallible>(forward_request(address, request).await) }
        });
        spawn_local(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn forward_request(
    address: Option<SocketAddr>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let Some(address) = address else {
        let mut rejection = Response::new(Full::default());
        *rejection.status_mut() = StatusCode::FORBIDDEN;
        rejection.headers_mut().insert("leno-reason", "denied;side=mesh".parse().unwrap());
        return rejection;
    };
    let headers: Vec<(&str, &str)> = request
        .headers()
        .iter()
        .filter(|(name, _)| *name != "host")
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    let target = request.uri().path_and_query().unwrap().as_str();
    let upstream_response = get(address, request.method().clone(), target, &headers).await;
    let mut response = Response::new(Full::new(upstream_response.body));
    *response.status_mut() = upstream_response.status;
    response
}

/// A service on a port of its own.
struct RunningService {
    address: SocketAddr,
    stop_sender: Option<oneshot::Sender<()>>,
    server_task: tokio::task::JoinHandle<()>,
}

impl RunningService {
    async fn start(name: &str, proxy: Option<&str>) -> Self {
        let kind = ServiceKind::from_str(name, false).unwrap();
        let options = ServiceOptions { version: ReviewsVersion::V3, ..service_options(proxy) };
        Self::start_with_options(kind, &options).await
    }

    async fn start_with_options(kind: ServiceKind, options: &ServiceOptions) -> Self {
        let application = build_application(kind, options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop_sender, stop_receiver) = oneshot::channel();
        let server_task = spawn_local(server::serve(listener, application, async {
            stop_receiver.await.ok();
        }));
        Self { address, stop_sender: Some(stop_sender), server_task }
    }
}

fn service_options(proxy: Option<&str>) -> ServiceOptions {
    ServiceOptions {
        port: 0,
        address: Ipv4Addr::LOCALHOST.into(),
        version: ReviewsVersion::V1,
        http_proxy: proxy.map(|proxy| proxy.parse().unwrap()),
    }
}

struct TestResponse {
    status: StatusCode,
    body: Bytes,
}

impl TestResponse {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn get(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> impl Future<Output = TestResponse> + use<> {
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::<Bytes>::default()).unwrap();
    async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let connection_task = spawn_local(connection);
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        drop(sender);
        connection_task.await.unwrap().ok();
        TestResponse { status, body }
    }
}

/// Runs a test on one thread, with a timeout.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let test_with_timeout = tokio::time::timeout(Duration::from_secs(30), test);
        test_with_timeout.await.expect("the test hangs");
    });
}
