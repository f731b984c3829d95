//! Requests to HTTP servers that this program has started itself, such as the sidecars of a demonstration.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What an admin page says at `path`.
///
/// # Errors
/// When nobody answers there, in time and within bounds, or the answer is a refusal.
pub(crate) async fn admin(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let asked = tokio::time::timeout(PATIENCE, exchange(address, path));
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("no answer within {PATIENCE:?}")),
    };
    answer.with_context(|| format!("asking http://{address}{path}"))
}

async fn exchange(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(hyper::header::HOST, address.to_string())
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let asked = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let body = body.await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
        }
        Ok(body)
    };
    tokio::pin!(connection, asked);
    tokio::select! {
        biased;
        answer = &mut asked => answer,
        ended = &mut connection => {
            ended?;
            // The connection may end first when the whole answer has arrived.
            asked.await
        }
    }
}

/// Longer than any answer on one machine takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than a sidecar has to say.
const ANSWER_BYTES_MAX: usize = 8 << 20;
