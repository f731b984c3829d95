//! The shutdown of the HTTP server, as its clients see it: requests in progress, and endless responses.

use http_body_util::Either;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use super::*;

/// Responds to `/` when released, and to `/endless` with a body without an end.
struct BlockingHandler {
    request_received: Notify,
    response_permits: Semaphore,
}

struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

impl RequestHandler for BlockingHandler {
    type Body = Either<Full<Bytes>, Endless>;

    const SERVER: &'static str = "test";

    const MAX_LIFE: Option<Duration> = None;

    async fn handle_request(
        &self,
        request: Request<Incoming>,
        _: ConnectionSource,
    ) -> Response<Self::Body> {
        self.request_received.notify_one();
        if request.uri().path() == "/endless" {
            return Response::new(Either::Right(Endless));
        }
        self.response_permits.acquire().await.unwrap().forget();
        text_response(StatusCode::OK, "done\n".to_owned()).map(Either::Left)
    }
}

struct TestServer {
    handler: Arc<BlockingHandler>,
    stop: watch::Sender<bool>,
    client: TcpStream,
    tasks: JoinSet<()>,
}

impl TestServer {
    /// Starts a server, and connects to it.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = Arc::new(BlockingHandler {
            request_received: Notify::new(),
            response_permits: Semaphore::new(0),
        });
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_all(listener, 8, Arc::clone(&handler), stop.subscribe()));
        let client = TcpStream::connect(address).await.unwrap();
        Self { handler, stop, client, tasks }
    }

    async fn send_get(&mut self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        self.client.write_all(request.as_bytes()).await.unwrap();
    }

    /// Reads to the end of the connection; then the server has ended as well.
    async fn read_to_end(mut self) -> String {
        let mut response = String::new();
        self.client.read_to_string(&mut response).await.unwrap();
        assert!(self.tasks.join_next().await.unwrap().is_ok());
        response
    }

    /// Waits until the port has no listener.
    async fn wait_until_closed(&self) {
        let address = self.client.peer_addr().unwrap();
        while TcpStream::connect(address).await.is_ok() {}
    }
}

#[tokio::test]
async fn a_response_in_progress_at_the_stop_is_completed() {
    let mut server = TestServer::start().await;
    server.send_get("/").await;
    server.handler.request_received.notified().await;
    server.stop.send_replace(true);
    server.wait_until_closed().await;
    server.handler.response_permits.add_permits(1);
    let response = server.read_to_end().await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("done\n"), "{response}");
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
}

#[tokio::test]
async fn a_connection_without_a_request_at_the_stop_gets_the_time_for_one() {
    let mut server = TestServer::start().await;
    server.stop.send_replace(true);
    server.send_get("/").await;
    server.handler.request_received.notified().await;
    server.wait_until_closed().await;
    server.handler.response_permits.add_permits(1);
    let response = server.read_to_end().await;
    assert!(response.ends_with("done\n"), "{response}");
}

#[tokio::test]
async fn a_kept_connection_without_a_request_ends_soon_after_the_stop() {
    let mut server = TestServer::start().await;
    server.handler.response_permits.add_permits(1);
    server.send_get("/").await;
    server.handler.request_received.notified().await;
    server.client.readable().await.unwrap();
    server.stop.send_replace(true);
    let response = tokio::time::timeout(DRAIN_TIMEOUT, server.read_to_end()).await.unwrap();
    assert!(response.ends_with("done\n"), "{response}");
}

#[tokio::test]
async fn an_endless_response_is_closed_in_order_at_the_stop() {
    let mut server = TestServer::start().await;
    server.send_get("/endless").await;
    server.handler.request_received.notified().await;
    server.stop.send_replace(true);
    let response = server.read_to_end().await;
    assert!(response.ends_with("\r\n0\r\n\r\n"), "{response}");
}
