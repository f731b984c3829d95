//! Requests to the admin pages of sidecars, at addresses of their own and nowhere else.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leno_control::status::ProxyStatus;
use tokio::net::TcpStream;

/// What an admin page says at `path`.
///
/// # Errors
/// When nobody answers there, in time and within bounds, or the answer is a refusal.
pub(crate) async fn admin(address: SocketAddr, path: &str) -> anyhow::Result<Bytes> {
    get(address, path, None).await
}

/// The answer of a sidecar's admin page at `path`.
///
/// # Errors
/// As [`admin`], and when the sidecar has no page at an address of its own, or another program answers there.
pub(crate) async fn sidecar(proxy: &ProxyStatus, path: &str) -> anyhow::Result<Bytes> {
    let address = page_of(proxy)?;
    // At an address of its workload only the workload itself can answer; on loopback anything can.
    let whose = address.ip().to_canonical().is_loopback().then_some(proxy.workload.as_str());
    get(address, path, whose).await
}

/// The address of a sidecar's admin page.
///
/// # Errors
/// When it has none, or not at an address of its own.
fn page_of(proxy: &ProxyStatus) -> anyhow::Result<SocketAddr> {
    if let Some(foreign) = &proxy.foreign_admin {
        bail!(
            "left out: it reports {foreign} as its admin page, which is no address of its workload and not on \
             this machine"
        );
    }
    Ok(proxy.admin.as_deref().context("it has no admin page")?.parse()?)
}

async fn get(address: SocketAddr, path: &str, whose: Option<&str>) -> anyhow::Result<Bytes> {
    let asked = tokio::time::timeout(PATIENCE, exchange(address, path, whose));
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("no answer within {PATIENCE:?}")),
    };
    answer.with_context(|| format!("asking http://{address}{path}"))
}

async fn exchange(address: SocketAddr, path: &str, whose: Option<&str>) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(hyper::header::HOST, address.to_string())
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let asked = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        if let Some(workload) = whose {
            let named = response.headers().get(WORKLOAD_FIELD);
            let is_it = named.is_some_and(|named| named.as_bytes() == workload.as_bytes());
            ensure!(
                is_it,
                "left out: the answer does not name {workload}: it may be another program's"
            );
        }
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
/// The field in which a page names its workload.
const WORKLOAD_FIELD: &str = "leno-workload";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn proxy(admin: &str, foreign: Option<&str>) -> ProxyStatus {
        let status = serde_json::json!({
            "workload": "shop/one", "connection": 1, "connected_seconds": 1.0, "pid": 1, "version": "", "admin": admin,
            "foreign_admin": foreign, "subscriptions": [], "services": 0, "refused": 0, "refusals": [],
        });
        serde_json::from_value(status).unwrap()
    }

    /// Finding F13 of issue 25.
    #[tokio::test]
    async fn only_the_page_of_the_workload_itself_is_believed() {
        for (fields, body, expected) in [
            ("leno-workload: shop/one\r\n", "ours", Ok("ours")),
            ("", "secret", Err("does not name shop/one")),
            ("leno-workload: shop/two\r\n", "secret", Err("does not name shop/one")),
            ("leno-workload: shop/one\r\n", &*"x".repeat(ANSWER_BYTES_MAX + 1), Err("limit")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let length = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\n{fields}content-length: {length}\r\n\r\n{body}");
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                // A client that has seen enough ends.
                drop(stream.write_all(answer.as_bytes()).await);
            };
            let proxy = proxy(&address, None);
            let (told, ()) = tokio::join!(sidecar(&proxy, "/world"), server);
            match (told, expected) {
                (Ok(told), Ok(expected)) => assert_eq!(told, expected),
                (Err(error), Err(why)) => assert!(format!("{error:#}").contains(why), "{error:#}"),
                (told, expected) => panic!("{told:?} and not {expected:?}"),
            }
        }
        let error =
            sidecar(&proxy("127.0.0.1:1", Some("192.0.2.9:80")), "/world").await.unwrap_err();
        assert!(error.to_string().contains("192.0.2.9:80"), "{error}");
    }
}
