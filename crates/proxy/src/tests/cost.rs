//! What a request costs in a steady state, both sidecars together: see `docs/performance.md`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Mesh, run};

/// Runs exchanges that allocate nothing outside the sidecars.
#[test]
#[ignore = "started by what counts, in a process of its own"]
fn exchanges() {
    let each = std::env::var("LENO_EXCHANGES").ok().and_then(|count| count.parse().ok());
    run(async move {
        let (_mesh, mut clients) = begin().await;
        exchange(&mut clients, each.unwrap_or(10)).await;
    });
}

async fn begin() -> (Mesh, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(answer(tcp));
        }
    });
    let mesh = Mesh::permissive(address).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(mesh.door).await.unwrap());
    }
    (mesh, clients)
}

/// An application that answers 1 KiB.
async fn answer(mut tcp: TcpStream) {
    let mut response = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n").into_bytes();
    response.resize(response.len() + BODY, b'x');
    let mut request = [0; 1024];
    while tcp.read(&mut request).await.is_ok_and(|read| read > 0) {
        tcp.write_all(&response).await.unwrap();
    }
}

/// Lets every client ask `count` times, all of them at once each time.
async fn exchange(clients: &mut [TcpStream], count: usize) {
    let mut answer = [0; 4096];
    for _ in 0..count {
        for client in &mut *clients {
            client.write_all(REQUEST).await.unwrap();
        }
        for client in &mut *clients {
            let mut read = 0;
            while read < BODY || !answer[..read].ends_with(b"x") || read < BODY + 38 {
                read += client.read(&mut answer[read..]).await.unwrap();
            }
        }
    }
}

const CLIENTS: usize = 32;
const BODY: usize = 1024;
/// As a client library sends it.
const REQUEST: &[u8] = b"GET /ratings/1 HTTP/1.1\r\nhost: ratings.bookinfo:9080\r\n\
    user-agent: cost/1\r\naccept: */*\r\n\r\n";
