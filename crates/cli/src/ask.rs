//! HTTP queries to servers that this program has started, such as the sidecars of the demo.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Queries an admin page at `path`.
///
/// # Errors
/// If there is no answer within the timeout and the size limit, or its status is an error.
pub(crate) async fn query_admin(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let asked = tokio::time::timeout(MAX_WAIT, exchange(address, path));
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("no response within {MAX_WAIT:?}")),
    };
    answer.with_context(|| format!("GET http://{address}{path}"))
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
            // The connection may end as soon as the whole answer has arrived.
            asked.await
        }
    }
}

/// Longer than any answer on one machine takes.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// More than any sidecar's answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;
