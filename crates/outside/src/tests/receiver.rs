//! An OTLP/HTTP collector for tests, with configurable responses. It records the requests that it receives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A received request: the path, the content type, and the body.
pub(super) type ReceivedRequest = (String, String, Bytes);

pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    requests: Rc<RefCell<Vec<ReceivedRequest>>>,
}

impl Receiver {
    /// Starts a collector with these responses, followed by empty ones with status 200.
    pub(super) async fn start(responses: Vec<Response<Full<Bytes>>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Rc::<RefCell<Vec<ReceivedRequest>>>::default();
        let responses = Rc::new(RefCell::new(VecDeque::from(responses)));
        let shared_requests = requests.clone();
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (requests, responses) = (shared_requests.clone(), responses.clone());
                let service = hyper::service::service_fn(move |request: Request<_>| {
                    handle_request(request, requests.clone(), responses.clone())
                });
                let connection = hyper::server::conn::http1::Builder::new();
                let connection = connection.serve_connection(TokioIo::new(tcp), service);
                tokio::task::spawn_local(async move { drop(connection.await) });
            }
        });
        Self { address, requests }
    }

    pub(super) fn arrived_requests(&self) -> Vec<ReceivedRequest> {
        self.requests.borrow().clone()
    }
}

async fn handle_request(
    request: Request<hyper::body::Incoming>,
    requests: Rc<RefCell<Vec<ReceivedRequest>>>,
    responses: Rc<RefCell<VecDeque<Response<Full<Bytes>>>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let content_type = request.headers()["content-type"].to_str().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    requests.borrow_mut().push((path, content_type, body));
    Ok(responses.borrow_mut().pop_front().unwrap_or_default())
}

/// Creates a response with this status, an optional `Retry-After` header, and this body.
pub(super) fn response_with(
    status: u16,
    retry_after: Option<&str>,
    body: Vec<u8>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status.try_into().unwrap();
    if let Some(retry_after) = retry_after {
        response.headers_mut().insert("retry-after", retry_after.parse().unwrap());
    }
    response
}
