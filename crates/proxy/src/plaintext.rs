//! Clients without mutual TLS, where a mesh that is not complete yet lets them in.

use std::time::Duration;

use leno_identity::offers;
use leno_model::{Plaintext, Protocol};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::tls::ALPN_LINK;
use crate::worker::Worker;

/// What the application speaks at this port, if clients without mutual TLS are let in there.
pub(crate) fn accepted(worker: &Worker, port: u16) -> Option<Protocol> {
    let scene = worker.world.scene()?;
    let plan = &scene.plans.snapshot.plan;
    let known = plan.ports.iter().find(|known| known.port == port)?;
    (plan.plaintext == Plaintext::Accept).then_some(known.protocol)
}

/// Whether a client begins mutual TLS of the mesh; nothing of what it says is taken away.
///
/// Where the application itself may speak TLS, only who offers the link is taken for a member.
/// Silence means a protocol in which the server speaks first, where there may be one.
pub(crate) async fn is_mutual_tls(worker: &Worker, spoken: Protocol, tcp: &TcpStream) -> bool {
    let limits = &worker.config.limits;
    let (may_be_opaque, patience) = match spoken {
        Protocol::Http | Protocol::Http2 | Protocol::Grpc => (false, limits.handshake_timeout),
        Protocol::Tcp | Protocol::Detect => (true, limits.detect_timeout),
    };
    let mut first = [0; 1];
    match timeout(patience, tcp.peek(&mut first)).await {
        Ok(Ok(1)) if first == [TLS_HANDSHAKE] => {}
        Ok(Ok(_)) | Err(_) => return false,
        // Whoever reads it finds out why.
        Ok(Err(_)) => return true,
    }
    !may_be_opaque || timeout(limits.handshake_timeout, offers_link(tcp)).await.unwrap_or(true)
}

async fn offers_link(tcp: &TcpStream) -> bool {
    let mut hello = vec![0; CLIENT_HELLO_BYTES_MAX];
    loop {
        let Ok(length) = tcp.peek(&mut hello).await else { return true };
        let is_full = length == hello.len();
        match offers(hello.get(..length).unwrap_or_default(), ALPN_LINK) {
            Some(offered) => return offered,
            None if is_full => return false,
            // What was seen stays readable: there is no event for the rest of it.
            None => sleep(LOOK_AGAIN).await,
        }
    }
}

/// RFC 8446 §5.1: the type of the first record of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// The longest ClientHello: one record.
const CLIENT_HELLO_BYTES_MAX: usize = 16 * 1024;
/// How often a ClientHello is looked at that did not come whole.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
