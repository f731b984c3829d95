//! Serves the browser page, the web interface of the control plane: embedded files, and the JSON of the admin socket.
//!
//! The page is read-only. On loopback, every local user may open it. On other addresses, and for live requests on
//! every address, a token is required. Another web site cannot read the responses (no CORS) or embed the page in a
//! frame. Without a token, it cannot reach the page by a host name either (DNS rebinding): only IP addresses and
//! `localhost` are accepted as the host. Requests of other origins are rejected before they cause any work.

mod findings;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HeaderMap, HeaderName,
    HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use leno_discovery::Taps;
use leno_identity::{AcceptedHosts, FileOrigin, read_regular_text};
use leno_listen::ConnectionSource;
use leno_model::Reason;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::findings::FindingsCache;
use crate::admin::{
    AdminQueries, parse_query, query_objects, query_state_task, state_task_response,
    stopping_response,
};
use crate::data_directory::DataDirectory;
use crate::explanation::ExplainRunner;
use crate::http_server::{
    RequestHandler, reject_cross_site, serve_all, text_response, typed_body, typed_response,
};
use crate::query_share::QueryShare;
use crate::scrape_targets::Scraper;
use crate::state_task::{AdminQuery, AdminResponse};
use crate::tap::TapBody;

/// The listener of the browser page, and its tokens.
#[derive(Debug)]
pub(crate) struct Page {
    listener: TcpListener,
    address: SocketAddr,
    /// The required token; `None` on loopback.
    token: Option<String>,
    /// The token for live requests, required on loopback too: other users of the machine must not see them.
    live_token: String,
}

impl Page {
    /// Opens the listener; beyond loopback with the token stored in the data directory. With port 0, the
    /// address of the last run in the data directory is tried first: bookmarks and scrapers use it.
    pub(crate) async fn open(address: SocketAddr, data: &Path) -> io::Result<Self> {
        let listener = bind_listener(address, &data.join(ADDRESS_FILE))?;
        let address = listener.local_addr()?;
        let live_token = leno_identity::generate_secret()?;
        let token = match address.ip().is_loopback() {
            true => None,
            false => Some(stored_token(&data.join(TOKEN_FILE))?),
        };
        Ok(Self { listener, address, token, live_token })
    }

    /// Returns the URL for a browser. It contains the token: show it to operators only.
    pub(crate) fn url(&self) -> String {
        match &self.token {
            Some(token) => format!("http://{}/?token={token}", self.address),
            None => format!("http://{}/", self.address),
        }
    }

    /// Returns the URL of live requests, with the token in the fragment after `#`. Browsers do not send the fragment;
    /// the page sends the token with its queries.
    pub(crate) fn live_url(&self) -> String {
        format!("{}#/live/{}", self.url(), self.live_token)
    }

    /// Returns the listen address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until shutdown.
    pub(crate) async fn serve(
        self,
        queries: AdminQueries,
        PageResources { explain_runner, taps, directory }: PageResources,
        stop: watch::Receiver<bool>,
    ) {
        let findings_cache = FindingsCache::new(directory);
        let (query_share, explain_share) =
            (QueryShare::new(QUERY_PAUSE_FACTOR), QueryShare::new(EXPLAIN_PAUSE_FACTOR));
        let page_token = self.token.map(|token| PageToken::new(token, self.address.port()));
        let live_token = self.live_token;
        let handler = PageHandler {
            queries,
            page_token,
            live_token,
            explain_runner,
            taps,
            query_share,
            explain_share,
            findings_cache,
        };
        let handler = Arc::new(handler);
        serve_all(self.listener, MAX_CONNECTIONS, handler, stop).await;
    }
}

/// The components of the control plane that the page uses, in addition to the state task.
#[derive(Debug)]
pub(crate) struct PageResources {
    pub(crate) explain_runner: ExplainRunner,
    pub(crate) taps: Arc<Taps>,
    pub(crate) directory: Arc<DataDirectory>,
}

/// Returns the token of the last run, which scrapers use. If it cannot be stored, this run gets a new token.
fn stored_token(file: &Path) -> io::Result<String> {
    match leno_identity::read_or_create_secret(file) {
        Ok(token) => Ok(token),
        Err(error) => {
            tracing::warn!(%error, "cannot store the token of the page: this run uses a new one");
            leno_identity::generate_secret()
        }
    }
}

/// Binds `address`. With port 0, tries the address in `file` first, and stores the bound address there.
fn bind_listener(address: SocketAddr, file: &Path) -> io::Result<TcpListener> {
    if address.port() != 0 {
        return leno_listen::bind(address);
    }
    let address_text =
        read_regular_text(file, FileOrigin::Leno, MAX_ADDRESS_BYTES).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the page address of the last run");
            None
        });
    let previous_address = address_text.and_then(|address_text| address_text.trim().parse().ok());
    if let Some(previous_address) = previous_address
        .filter(|previous_address: &SocketAddr| previous_address.ip() == address.ip())
    {
        match leno_listen::bind(previous_address) {
            Ok(listener) => return Ok(listener),
            Err(error) => tracing::warn!(
                address = %previous_address, %error,
                "cannot reuse the page address of the last run: using another one"
            ),
        }
    }
    let listener = leno_listen::bind(address)?;
    let address_text = listener.local_addr()?.to_string();
    if let Err(error) = leno_identity::replace_private(file, address_text.as_bytes()) {
        tracing::warn!(%error, "cannot store the page address for the next run");
    }
    Ok(listener)
}

/// The request handler of the browser page.
struct PageHandler {
    queries: AdminQueries,
    page_token: Option<PageToken>,
    /// The token required for live requests, in addition to the page's token if there is one.
    live_token: String,
    explain_runner: ExplainRunner,
    taps: Arc<Taps>,
    /// Limits the queries of all browsers, because the state task has other work.
    query_share: QueryShare,
    /// Limits the explanations of this page, so that a client of the admin socket waits for at most one of them.
    explain_share: QueryShare,
    findings_cache: FindingsCache,
}

/// The access token of the page.
struct PageToken {
    token: String,
    /// The name of the cookie that stores the token. It contains the port because cookies ignore ports (RFC 6265
    /// §8.5): two pages on one host would overwrite a cookie of the same name.
    cookie_name: String,
}

impl PageToken {
    fn new(token: String, port: u16) -> Self {
        Self { token, cookie_name: format!("leno-page-{port}") }
    }
}

impl RequestHandler for PageHandler {
    type Body = Either<Full<Bytes>, TapBody>;

    const SERVER: &'static str = "page";

    /// The maximum age of a connection; browsers reconnect.
    const MAX_LIFE: Option<Duration> = Some(Duration::from_secs(120));

    async fn handle_request(
        &self,
        request: Request<Incoming>,
        source: ConnectionSource,
    ) -> Response<Self::Body> {
        let (request_head, _) = request.into_parts();
        let target = request_head.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut response = match admit_request(
            self.page_token.as_ref(),
            &request_head.uri,
            &request_head.headers,
            target,
        ) {
            PageAdmission::Admitted => match target.strip_prefix("/api/tap?") {
                Some(query) if request_head.method == Method::GET => {
                    self.stream_tap(&request_head.headers, query)
                }
                _ => self
                    .handle_admitted(&request_head.method, target, source)
                    .await
                    .map(Either::Left),
            },
            PageAdmission::Respond(response) => response.map(Either::Left),
        };
        set_security_headers(response.headers_mut());
        response
    }
}

impl PageHandler {
    /// Responds to a request with valid origin and token.
    async fn handle_admitted(
        &self,
        method: &Method,
        target: &str,
        source: ConnectionSource,
    ) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let reason = "this page is read-only: use GET\n";
            return text_response(StatusCode::METHOD_NOT_ALLOWED, reason.to_owned());
        }
        let (path, query_string) = match target.split_once('?') {
            Some((path, query_string)) => (path, Some(query_string)),
            None => (target, None),
        };
        if let Some((_, content_type, content)) = FILES.iter().find(|(name, ..)| *name == path) {
            return typed_response(StatusCode::OK, content_type, *content);
        }
        if path == "/api/reasons" {
            return typed_response(StatusCode::OK, "application/json", reasons_json());
        }
        if path == "/api/explain" {
            return self.explain_request(query_string.unwrap_or_default()).await;
        }
        if path == "/api/findings" {
            return self.findings_cache.findings_response(&self.queries, &self.query_share).await;
        }
        // Metrics are on the admin socket only. Prometheus discovers sidecars here.
        let api_path = path
            .strip_prefix("/api")
            .filter(|path| *path != "/metrics")
            .or((path == "/prometheus/targets").then_some(path));
        match api_path.and_then(|path| parse_query(path, query_string)) {
            Some(admin_query) => {
                let _turn = self.query_share.acquire_turn().await;
                match admin_query {
                    AdminQuery::Status => self.status_response().await,
                    AdminQuery::ScrapeTargets(_) => {
                        let scraper = Scraper::from_source(source);
                        state_task_response(&self.queries, AdminQuery::ScrapeTargets(scraper)).await
                    }
                    other_query => state_task_response(&self.queries, other_query).await,
                }
            }
            None => text_response(StatusCode::NOT_FOUND, "not found: open /\n".to_owned()),
        }
    }
}

impl PageHandler {
    /// Streams live requests. The token must be in the request itself: cookies are sent to every port of a
    /// host, and on loopback another user may own a port.
    fn stream_tap(
        &self,
        headers: &HeaderMap,
        query: &str,
    ) -> Response<Either<Full<Bytes>, TapBody>> {
        let is_authorized = bearer_token(headers)
            .is_some_and(|presented_token| is_same_secret(presented_token, &self.live_token));
        if !is_authorized {
            return text_response(StatusCode::UNAUTHORIZED, LIVE_TOKEN_REQUIRED.to_owned())
                .map(Either::Left);
        }
        match TapBody::open(&self.taps, query) {
            Ok(tap_body) => {
                typed_body(StatusCode::OK, "application/x-ndjson", Either::Right(tap_body))
            }
            Err((status, problem)) => {
                text_response(status, format!("{problem}\n")).map(Either::Left)
            }
        }
    }

    /// Returns the status without the URLs of the page: they contain the tokens, which scripts must not read.
    async fn status_response(&self) -> Response<Full<Bytes>> {
        let Some(AdminResponse::Json(mut status)) =
            query_state_task(&self.queries, AdminQuery::Status).await
        else {
            return stopping_response();
        };
        if let Some(fields) = status.as_object_mut() {
            fields.remove("page");
            fields.remove("live");
        }
        typed_response(StatusCode::OK, "application/json", format!("{status:#}\n"))
    }

    /// Explains the rules for the request that a query describes.
    async fn explain_request(&self, query: &str) -> Response<Full<Bytes>> {
        let _turn = self.explain_share.acquire_turn().await;
        match self.explain_runner.explain_query(query, query_objects(&self.queries)).await {
            Ok(explanation) => text_response(StatusCode::OK, explanation.text),
            Err((status, reason)) => text_response(status, reason),
        }
    }
}

/// Returns every failure reason with its meaning and its hint.
fn reasons_json() -> String {
    let reason = |reason: &Reason| {
        json!({
            "label": reason.label(),
            "status": reason.status(),
            "caption": reason.caption(),
            "hint": reason.remedy(),
        })
    };
    format!("{:#}\n", Value::from_iter(Reason::ALL.iter().map(reason)))
}

/// The admission of a request.
enum PageAdmission {
    Admitted,
    /// The request is not admitted; the response is a rejection or a redirect.
    Respond(Box<Response<Full<Bytes>>>),
}

/// Checks the origin and token of a request. A browser that sends the token once gets a cookie.
fn admit_request(
    page_token: Option<&PageToken>,
    uri: &Uri,
    headers: &HeaderMap,
    target: &str,
) -> PageAdmission {
    let reject_request = |status, reason: &str| {
        PageAdmission::Respond(Box::new(text_response(status, reason.to_owned())))
    };
    let accepted_hosts =
        if page_token.is_some() { AcceptedHosts::Any } else { AcceptedHosts::Local };
    // A link on another site may open the HTML page, but not the JSON responses.
    let is_page = target.starts_with("/?token=") || FILES.iter().any(|(name, ..)| *name == target);
    if let Some(response) = reject_cross_site(uri, headers, accepted_hosts, is_page) {
        return PageAdmission::Respond(Box::new(response));
    }
    let Some(PageToken { token, cookie_name }) = page_token else {
        return PageAdmission::Admitted;
    };
    if let Some(presented_token) = target.strip_prefix("/?token=") {
        if !is_same_secret(presented_token, token) {
            return reject_request(StatusCode::UNAUTHORIZED, TOKEN_REQUIRED);
        }
        let mut response = text_response(StatusCode::SEE_OTHER, String::new());
        let set_cookie = format!("{cookie_name}={token}; HttpOnly; SameSite=Strict; Path=/");
        if let Ok(set_cookie_value) = HeaderValue::from_str(&set_cookie) {
            response.headers_mut().insert(SET_COOKIE, set_cookie_value);
        }
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
        return PageAdmission::Respond(Box::new(response));
    }
    let presented_bearer = bearer_token(headers);
    let mut cookies = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split("; "));
    let cookie =
        cookies.find_map(|pair| pair.strip_prefix(cookie_name.as_str())?.strip_prefix('='));
    match [presented_bearer, cookie]
        .into_iter()
        .flatten()
        .any(|presented_token| is_same_secret(presented_token, token))
    {
        true => PageAdmission::Admitted,
        false => reject_request(StatusCode::UNAUTHORIZED, TOKEN_REQUIRED),
    }
}

/// Returns the bearer token of a request.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// Compares two secrets in constant time.
fn is_same_secret(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    a.len() == b.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Sets the security headers of every response.
fn set_security_headers(headers: &mut HeaderMap) {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                  connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// The files of the page: path, type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML_TYPE, include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/main.js", SCRIPT_TYPE, include_str!("page/main.js")),
    ("/mesh.js", SCRIPT_TYPE, include_str!("page/mesh.js")),
    ("/dom.js", SCRIPT_TYPE, include_str!("page/dom.js")),
    ("/list.js", SCRIPT_TYPE, include_str!("page/list.js")),
    ("/graph.js", SCRIPT_TYPE, include_str!("page/graph.js")),
    ("/plot.js", SCRIPT_TYPE, include_str!("page/plot.js")),
    ("/views.js", SCRIPT_TYPE, include_str!("page/views.js")),
    ("/live.js", SCRIPT_TYPE, include_str!("page/live.js")),
];

/// The token's file in the data directory.
const TOKEN_FILE: &str = "page-token";
/// The file in the data directory with the page's last address.
const ADDRESS_FILE: &str = "page.address";
/// The maximum length of the stored address in bytes.
const MAX_ADDRESS_BYTES: u64 = 64;

/// The content type of HTML files.
const HTML_TYPE: &str = "text/html; charset=utf-8";
/// The content type of scripts.
const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";

/// Maximum concurrent browser connections; more wait. One browser has up to six.
const MAX_CONNECTIONS: usize = 64;

/// The pause after a query, in multiples of its duration. With 3, browsers take at most a quarter of the state task's
/// time.
const QUERY_PAUSE_FACTOR: u32 = 3;

/// The pause after an explanation, in multiples of its duration; it runs on a separate thread.
const EXPLAIN_PAUSE_FACTOR: u32 = 1;

/// The response to a request for live requests without the live token.
const LIVE_TOKEN_REQUIRED: &str =
    "live requests need a token: open the address that `leno tap --page` prints\n";

/// The response to a request without the page's token.
const TOKEN_REQUIRED: &str = "this page requires its token: `leno status` on the machine of the control \
                        plane prints the address\n";

#[cfg(test)]
mod tests;
