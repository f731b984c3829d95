//! Large bodies are streamed completely, and wait for a slow receiver.

use std::cell::Cell;
use std::rc::Rc;

use leno_wire::link::{LinkEvent, StreamKind};
use tokio::io::AsyncWriteExt;

use super::fixture::{
    Application, Client, GET, Mesh, Peer, run, test_credential, tls_connect_small_buffer,
    wait_until_stable,
};
use crate::session::ListenerKind;
use crate::tls::{ALPN_HTTP1, ALPN_LINK};

/// 64 MiB in each direction through both sidecars; only the kernel's buffers grow.
#[test]
fn a_large_body_waits_for_a_slow_application_and_arrives_complete() {
    run(async {
        let (release, released) = tokio::sync::watch::channel(false);
        let app = Application::start(move |mut client| {
            let mut released = released.clone();
            async move {
                let mut request = client.read_head().await.unwrap();
                released.wait_for(|is_released| *is_released).await.unwrap();
                client.read_body(&mut request).await.unwrap();
                let checksum = request.body.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                let checksum = format!("{} {checksum}", request.body.len());
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", checksum.len());
                client.send_bytes(head + &checksum).await;
            }
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let body: Vec<u8> = (0..BODY_BYTES).map(|index| (index % 251) as u8).collect();
        client
            .send_bytes(format!(
                "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
            ))
            .await;
        let sent = Rc::new(Cell::new(0));
        let (count, checksum) =
            (sent.clone(), body.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        let upload = tokio::task::spawn_local(async move {
            for piece in body.chunks(64 * 1024) {
                client.stream.write_all(piece).await.unwrap();
                count.set(count.get() + piece.len());
            }
            client
        });
        let sent_bytes = wait_until_stable(|| sent.get()).await;
        assert!(
            sent_bytes < BODY_BYTES / 2,
            "{sent_bytes} bytes were accepted for an application that reads none"
        );
        release.send_replace(true);
        let mut client = upload.await.unwrap();
        assert_eq!(client.read_response().await.body_text(), format!("{BODY_BYTES} {checksum}"));
    });
}

#[test]
fn a_large_response_waits_for_a_slow_client_and_arrives_complete() {
    run(async {
        let (app, written_bytes) = start_download(BODY_BYTES).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        let sent_bytes = wait_until_stable(|| written_bytes.get()).await;
        assert!(
            sent_bytes < BODY_BYTES / 2,
            "{sent_bytes} bytes were accepted for a client that reads none"
        );
        let response = client.read_response().await;
        assert!(response.body.iter().all(|byte| *byte == b'x'));
        assert_eq!(response.body.len(), BODY_BYTES);
        assert_eq!(client.send_request(GET).await.body.len(), BODY_BYTES);
    });
}

/// If the socket is full, the last bytes wait inside the TLS session, and no later write flushes them.
#[test]
fn a_response_through_a_small_socket_buffer_arrives_complete_on_a_kept_connection() {
    run(async {
        let (app, _) = start_download(SMALL_BODY_BYTES).await;
        let mesh = Mesh::permissive(app.address).await;
        let listener_kind = ListenerKind::Inbound { port: mesh.server.port };
        let inbound = mesh.server.open_small_buffer_listener(listener_kind).await;
        let identity = test_credential(&mesh.authority, "foreign");
        let tls = tls_connect_small_buffer(inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
        let mut client = Client::new(tls);
        for _ in 0..2 {
            client.send_bytes(GET).await;
            assert_eq!(client.read_response().await.body.len(), SMALL_BODY_BYTES);
        }
    });
}

#[test]
fn a_link_over_a_small_socket_buffer_delivers_all_streams_completely() {
    run(async {
        const STREAMS: usize = 20;
        let (app, _) = start_download(SMALL_BODY_BYTES).await;
        let mesh = Mesh::permissive(app.address).await;
        let listener_kind = ListenerKind::Inbound { port: mesh.server.port };
        let inbound = mesh.server.open_small_buffer_listener(listener_kind).await;
        let identity = test_credential(&mesh.authority, "productpage");
        let tls = tls_connect_small_buffer(inbound, &identity, &[ALPN_LINK]).await.unwrap();
        let mut peer = Peer::connect_over(tls).await;
        for _ in 0..STREAMS {
            peer.open_stream(StreamKind::Http, GET, true);
        }
        let (mut arrived, mut ended) = (0, 0);
        while ended < STREAMS {
            if let LinkEvent::Data { data, end_stream, .. } =
                peer.next().await.expect("the link goes on")
            {
                arrived += data.len();
                ended += usize::from(end_stream);
            }
        }
        assert_eq!(arrived, STREAMS * SMALL_BODY_BYTES);
    });
}

/// Starts an application that responds with `bytes` bytes and counts those it could write.
async fn start_download(bytes: usize) -> (Application, Rc<Cell<usize>>) {
    let written_bytes = Rc::new(Cell::new(0));
    let count = written_bytes.clone();
    let app = Application::start(move |mut client| {
        let count = count.clone();
        async move {
            while client.read_head().await.is_some() {
                client
                    .send_bytes(format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n"))
                    .await;
                for piece in vec![b'x'; bytes].chunks(64 * 1024) {
                    if client.stream.write_all(piece).await.is_err() {
                        return;
                    }
                    count.set(count.get() + piece.len());
                }
            }
        }
    });
    (app.await, written_bytes)
}

/// The size of a large body.
const BODY_BYTES: usize = 64 * 1024 * 1024;
/// The size of a body that exceeds the capacity of a socket with small buffers many times, but is still sent in a short
/// time.
const SMALL_BODY_BYTES: usize = 60_000;
