//! The health listener of a control plane: readiness, metrics, unknown hosts, and floods of scrapes.

use leno_control::HealthListener;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::*;

/// Sends a GET request. Returns the status code and the whole response.
async fn send_get(health: &HealthListener, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(health.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    (response[9..12].parse().unwrap(), response)
}

#[test]
fn a_control_plane_is_alive_before_it_is_ready_and_not_ready_during_shutdown() {
    run(async {
        let health = HealthListener::start_server("127.0.0.1:0".parse().unwrap()).await.unwrap();
        assert_eq!(send_get(&health, "/livez").await.0, 200);
        let (status, response) = send_get(&health, "/readyz").await;
        assert!(status == 503 && response.contains("not loaded yet"), "{response}");
        assert_eq!(send_get(&health, "/metrics").await.0, 503);
        let shop = Shop::open().await;
        health.set_ready(&shop.control);
        assert_eq!(send_get(&health, "/readyz").await.0, 200);
        let (status, response) = send_get(&health, "/metrics").await;
        assert!(status == 200 && response.contains("\nleno_control_workloads 2\n"), "{response}");
        // The health listener has no paths for operators.
        for path in ["/status", "/token", "/"] {
            assert_eq!(send_get(&health, path).await.0, 404, "{path}");
        }
        health.set_stopping();
        let (status, response) = send_get(&health, "/readyz").await;
        assert!(status == 503 && response.contains("shutting down"), "{response}");
    });
}

/// The name may belong to a foreign page (DNS rebinding).
#[test]
fn a_request_with_an_unknown_host_name_gets_only_a_status() {
    run(async {
        let health = HealthListener::start_server("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let get_with_host = async |host: &str, path: &str| {
            let mut stream = TcpStream::connect(health.address()).await.unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        };
        let response = get_with_host("evil.example", "/readyz").await;
        assert!(response.contains(" 503 ") && !response.contains("not loaded yet"), "{response}");
        assert!(get_with_host("evil.example", "/livez").await.contains(" 200 "));
        let response = get_with_host("a\r\nhost: b", "/readyz").await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        let shop = Shop::open().await;
        health.set_ready(&shop.control);
        assert!(get_with_host("evil.example", "/readyz").await.contains(" 200 "));
        assert!(get_with_host("evil.example", "/metrics").await.contains(" 421 "));
    });
}

/// Half-close by the client (RFC 9112 §9.6).
#[test]
fn a_client_that_half_closes_gets_its_response() {
    run(async {
        let health = HealthListener::start_server("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let shop = Shop::open().await;
        health.set_ready(&shop.control);
        for _ in 0..10 {
            let mut stream = TcpStream::connect(health.address()).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert!(response.contains("\nleno_control_workloads 2\n"), "{response}");
        }
    });
}

/// Starts clients that connect repeatedly, each with many scrapes on every connection, until the returned set is dropped.
fn flood_scrapes(health: &HealthListener) -> JoinSet<()> {
    const CLIENTS: usize = 80;
    let (address, source) = (health.address(), SocketAddr::from(([127, 0, 0, 2], 0)));
    let scrapes = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(500);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let scrapes = scrapes.clone();
        clients.spawn(async move {
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(source).unwrap();
                let Ok(mut stream) = socket.connect(address).await else { return };
                // The control plane may have closed it already.
                if stream.write_all(scrapes.as_bytes()).await.is_ok() {
                    drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
                }
            }
        });
    }
    clients
}

#[test]
fn scrapes_of_one_client_do_not_block_the_kubelet_or_another_collector() {
    run(async {
        let health = HealthListener::start_server("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let shop = Shop::open().await;
        health.set_ready(&shop.control);
        let clients = flood_scrapes(&health);
        // The timeout of the scenario limits the time of these requests.
        for _ in 0..20 {
            assert_eq!(send_get(&health, "/livez").await.0, 200);
            assert_eq!(send_get(&health, "/readyz").await.0, 200);
        }
        assert_eq!(send_get(&health, "/metrics").await.0, 200);
        drop(clients);
    });
}
