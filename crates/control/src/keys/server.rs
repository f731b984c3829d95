//! Requests a JWKS over HTTP from a permitted server outside the mesh, on one connection, with ETag and `max-age`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, CACHE_CONTROL, CONNECTION, ETAG, HOST, HeaderMap, IF_NONE_MATCH, USER_AGENT,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_model::{IssuerKeys, KeyServer, Scheme, Server};
use leno_outside::{TlsSessionError, TlsSessions, connect_permitted, drive_exchange};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::access::PermittedServers;
use super::{FETCH_TIMEOUT, JwksResponse};
use crate::dial::DirectDialer;

/// Requests the key set. The server returns it unless `etag` is still current. Fails after [`FETCH_TIMEOUT`].
pub(super) async fn fetch_key_set(
    server: &KeyServer,
    etag: Option<&str>,
    roots_file: Option<PathBuf>,
    permitted_servers: &PermittedServers,
) -> Result<JwksResponse, String> {
    let result = timeout(
        FETCH_TIMEOUT,
        request_without_timeout(server, etag, roots_file, permitted_servers),
    )
    .await;
    result.unwrap_or(Err(JwksRequestError::TimedOut)).map_err(|error| error.to_string())
}

/// The reason why a JWKS request failed. In diagnostics, each message follows the URL.
#[derive(Debug, thiserror::Error)]
enum JwksRequestError {
    #[error("did not respond within {FETCH_TIMEOUT:?}")]
    TimedOut,
    #[error("cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error(
        "has a non-public address that --jwks-allow does not list: the control plane does not connect to it"
    )]
    NotPermitted,
    #[error("cannot be verified: {0}")]
    Unverified(#[from] TlsSessionError),
    #[error("the request failed: {0}")]
    InvalidRequest(#[from] hyper::http::Error),
    #[error("did not respond with HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("returned redirect {0}; redirects are not followed, configure the final URL")]
    Redirected(StatusCode),
    #[error("returned {0}")]
    Status(StatusCode),
    #[error("returned more than {} bytes", IssuerKeys::MAX_BYTES)]
    TooLarge,
    #[error("failed before the end of its response: {0}")]
    Interrupted(Box<dyn std::error::Error + Send + Sync>),
    #[error("returned a body that is not text")]
    NotUtf8,
}

async fn request_without_timeout(
    KeyServer { server, path, .. }: &KeyServer,
    etag: Option<&str>,
    roots_file: Option<PathBuf>,
    permitted_servers: &PermittedServers,
) -> Result<JwksResponse, JwksRequestError> {
    let mut request_builder = Request::get(path)
        .header(HOST, host_header(server))
        .header(ACCEPT, "application/jwk-set+json, application/json;q=0.9")
        .header(USER_AGENT, concat!("leno/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close");
    if let Some(etag) = etag {
        request_builder = request_builder.header(IF_NONE_MATCH, etag);
    }
    let request = request_builder.body(Empty::new())?;
    let permits = |address| permitted_servers.permits_server(server, address);
    let connect_error = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => JwksRequestError::NotPermitted,
        _ => JwksRequestError::Unreachable(error),
    };
    let tcp = connect_permitted(server, &DirectDialer, permits).await.map_err(connect_error)?;
    match server.scheme {
        Scheme::Http => send_request(tcp, request).await,
        Scheme::Https => {
            // The trust roots are read for each fetch, because their file may have been replaced.
            let tls_stream =
                TlsSessions::new(roots_file).open_session(server, b"http/1.1", tcp).await?;
            send_request(tls_stream, request).await
        }
    }
}

/// Returns the value of the `Host` header. The port is absent if it is the scheme's default.
fn host_header(server: &Server) -> String {
    let authority = server.authority();
    match authority.strip_suffix(&format!(":{}", server.scheme.default_port())) {
        Some(host) => host.to_owned(),
        None => authority,
    }
}

/// Sends one request on its own connection.
async fn send_request(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<JwksResponse, JwksRequestError> {
    let handshake =
        http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    let exchange = async { read_response(sender.send_request(request).await?).await };
    drive_exchange(connection, exchange, JwksRequestError::Http).await
}

async fn read_response(response: Response<Incoming>) -> Result<JwksResponse, JwksRequestError> {
    let (response_head, body) = response.into_parts();
    let max_age = read_max_age(&response_head.headers);
    match response_head.status {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED => return Ok(JwksResponse::Unchanged { max_age }),
        status if status.is_redirection() => return Err(JwksRequestError::Redirected(status)),
        status => return Err(JwksRequestError::Status(status)),
    }
    let body_error =
        |error: Box<dyn std::error::Error + Send + Sync>| match error.is::<LengthLimitError>() {
            true => JwksRequestError::TooLarge,
            false => JwksRequestError::Interrupted(error),
        };
    let limited_body = Limited::new(body, IssuerKeys::MAX_BYTES);
    let content = limited_body.collect().await.map_err(body_error)?.to_bytes();
    let text = String::from_utf8(content.into()).map_err(|_| JwksRequestError::NotUtf8)?;
    let etag = response_head
        .headers
        .get(ETAG)
        .and_then(|value| value.to_str().ok())
        .filter(|etag| etag.len() <= MAX_ETAG_BYTES)
        .map(str::to_owned);
    Ok(JwksResponse::Set { text, etag, max_age })
}

/// Returns the `max-age` of a response, if it has one (RFC 9111 §5.2.2.1).
fn read_max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = values.flat_map(|value| value.split(',')).map(str::trim);
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| value.trim().trim_matches('"'))
    });
    seconds?.parse().ok().map(Duration::from_secs)
}

/// Maximum bytes of a response head, and of one read of its body.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Maximum bytes of an ETag; longer ones are ignored.
const MAX_ETAG_BYTES: usize = 512;
