//! Sends HTTP queries to the admin endpoints of processes that this program has started, such as the sidecars
//! of the demo.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Sends `GET path` and returns the body of the response.
///
/// # Errors
/// If there is no response within 5 s, the response is larger than 8 MiB, or its status is an error.
pub(crate) async fn query_admin(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let body_result = match tokio::time::timeout(RESPONSE_TIMEOUT, exchange(address, path)).await {
        Ok(body) => body,
        Err(_) => Err(anyhow::anyhow!("no response within {RESPONSE_TIMEOUT:?}")),
    };
    body_result.with_context(|| format!("GET http://{address}{path}"))
}

/// Sends the request on a new connection, and returns the body of a successful response.
async fn exchange(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(hyper::header::HOST, address.to_string())
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let body = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!(error))?
            .to_bytes();
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
        }
        Ok(body)
    };
    tokio::pin!(connection, body);
    tokio::select! {
        // The body is polled first, so that an error of the connection never replaces a complete response.
        biased;
        result = &mut body => result,
        result = &mut connection => {
            result?;
            // The connection may close as soon as the whole response has arrived.
            body.await
        }
    }
}

/// The timeout of a query; responses on the same machine take less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a response body, in bytes; the responses of sidecars are smaller.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
