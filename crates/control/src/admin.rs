//! Serves the admin socket, a Unix socket that only the file's owner can open: JSON for `leno get`, and metrics.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Either, Empty, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_discovery::{ChangeId, OperatorSessions};
use leno_identity::create_private_directory;
use leno_listen::{ConnectionSource, SocketPath};
use leno_model::{Object, WorkloadName};
use leno_outside::drive_exchange;
use leno_registry::FieldLines;
use leno_telemetry::{AliasNames, ExpositionFormat};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::data_directory::DataDirectory;
use crate::explanation::ExplainRunner;
use crate::history::PlotSubject;
use crate::http_server::{
    RequestHandler, decode_percent, serve_all, text_response, typed_body, typed_response,
};
use crate::invite::{Invitations, InviteError};
use crate::query_share::QueryShare;
use crate::scrape_targets::Scraper;
use crate::sidecar_query;
use crate::state_task::{AdminQuery, AdminResponse};
use crate::tap::TapBody;

/// The request handler of the admin socket.
#[derive(Debug)]
pub(crate) struct AdminHandler {
    pub(crate) queries: AdminQueries,
    /// The data directory, for its status at `/state`.
    pub(crate) directory: Arc<DataDirectory>,
    /// Creates the join bundles of `/token`.
    pub(crate) invitations: Arc<Invitations>,
    /// Notified to make the registries read their files again.
    pub(crate) reload: Arc<Notify>,
    /// Taps and queries to sidecars.
    pub(crate) operators: OperatorSessions,
    pub(crate) explain_runner: ExplainRunner,
    /// Runs operators' queries one at a time.
    pub(crate) query_share: QueryShare,
}

/// The channel to the state task, with a reply channel for each query.
pub(crate) type AdminQueries = mpsc::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>;

/// Queries a running control plane through its admin socket; returns the status code and the body.
///
/// # Errors
/// Returns an error if no control plane listens there, the response is not complete within 10 s, or it is larger
/// than 64 MiB.
pub async fn query_admin(socket: &Path, method: &str, path: &str) -> io::Result<(u16, String)> {
    let response = tokio::time::timeout(QUERY_TIMEOUT, query_without_timeout(socket, method, path));
    response.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn query_without_timeout(
    socket: &Path,
    method: &str,
    path: &str,
) -> io::Result<(u16, String)> {
    let stream = UnixStream::connect(SocketPath::for_path(socket)?.path()).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(io::Error::other)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "leno")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let limited_body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
        let content = limited_body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&content).into_owned()))
    };
    drive_exchange(connection, exchange, io::Error::other).await
}

/// Reads an endless response line by line, until `handle_line` returns false or the response ends. If the control
/// plane returns an error response, returns its status code and body as the inner error.
///
/// # Errors
/// Returns an error if no control plane listens there, a line exceeds `MAX_LINE_BYTES`, or `handle_line` fails.
pub async fn follow_lines<E: From<io::Error>>(
    socket: &Path,
    path: &str,
    mut handle_line: impl FnMut(&str) -> Result<bool, E>,
) -> Result<Result<(), (u16, String)>, E> {
    let stream = UnixStream::connect(SocketPath::for_path(socket)?.path()).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(io::Error::other)?;
    let request = Request::get(path)
        .header(HOST, "leno")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let limited_body = Limited::new(body, MAX_LINE_BYTES);
            let problem = limited_body.collect().await.map_err(io::Error::other)?.to_bytes();
            return Ok(Err((status.as_u16(), String::from_utf8_lossy(&problem).into_owned())));
        }
        let mut buffer = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(bytes) = frame.map_err(io::Error::other)?.into_data() else { continue };
            buffer.extend_from_slice(&bytes);
            while let Some(newline_index) = buffer.iter().position(|byte| *byte == b'\n') {
                let line_bytes: Vec<u8> = buffer.drain(..=newline_index).collect();
                let line_text = String::from_utf8_lossy(&line_bytes);
                let line = line_text.trim_end();
                // A blank line is a keepalive.
                if !line.is_empty() && !handle_line(line)? {
                    return Ok(Ok(()));
                }
            }
            if buffer.len() > MAX_LINE_BYTES {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
        }
        Ok(Ok(()))
    };
    drive_exchange(connection, exchange, |error| io::Error::other(error).into()).await
}

/// Opens a socket that only its owner can use; replaces a socket without a listener.
pub(crate) async fn open_socket(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(SocketPath::for_path(path)?.path()).await.is_ok() {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another control plane uses this data directory: stop it, or use another directory",
        ));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    bind_socket(path)
}

/// Binds the socket. Its directory is private, so no other user can connect before the permissions are set.
fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(SocketPath::for_path(path)?.path())?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves requests until shutdown, then removes the socket.
pub(crate) async fn serve(
    listener: UnixListener,
    path: PathBuf,
    admin: Arc<AdminHandler>,
    stop: watch::Receiver<bool>,
) {
    let mut listener = listener;
    let mut stop_receiver = stop.clone();
    let mut socket_identity = file_identity(&path);
    // If the socket was removed, it is created again. Responses in progress on the old socket are dropped.
    loop {
        let new_socket = tokio::select! {
            // Never completes.
            () = admin.directory.track_dropped_lines() => None,
            () = serve_all(listener, MAX_CONNECTIONS, Arc::clone(&admin), stop.clone()) => break,
            () = wait_until_removed(&path) => rebind_socket(&path, &mut stop_receiver).await,
        };
        match new_socket {
            Some(new_listener) => {
                socket_identity = file_identity(&path);
                listener = new_listener;
            }
            None => break,
        }
    }
    // The socket at the path may be that of another control plane by now.
    if socket_identity.is_some() && file_identity(&path) == socket_identity {
        std::fs::remove_file(&path).ok();
    }
}

/// Returns the device and inode number of a file, which identify it; `None` if no file is at the path.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Waits until the socket's path is missing or names another file.
async fn wait_until_removed(path: &Path) {
    let identity = file_identity(path);
    while identity.is_some() && file_identity(path) == identity {
        tokio::time::sleep(SOCKET_CHECK_INTERVAL).await;
    }
}

/// Binds the socket again as soon as that is possible. Returns `None` if the control plane shuts down first.
async fn rebind_socket(path: &Path, stop: &mut watch::Receiver<bool>) -> Option<UnixListener> {
    let mut is_reported = false;
    loop {
        // Recreates a data directory that was removed as a whole.
        let create_result = path.parent().map_or(Ok(()), create_private_directory);
        match create_result.and_then(|()| bind_socket(path)) {
            Ok(listener) => {
                tracing::warn!(path = %path.display(), "the admin socket was removed; recreating it");
                return Some(listener);
            }
            Err(error) if !is_reported => {
                tracing::warn!(path = %path.display(), %error, "cannot recreate the admin socket yet");
                is_reported = true;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(SOCKET_CHECK_INTERVAL) => {}
            _ = stop.wait_for(|stopped| *stopped) => return None,
        }
    }
}

/// The interval between two checks of the admin socket.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl RequestHandler for AdminHandler {
    type Body = Either<Full<Bytes>, TapBody>;

    const SERVER: &'static str = "control.sock";

    /// Connections have no maximum age: only the owner can open the socket.
    const MAX_LIFE: Option<Duration> = None;

    async fn handle_request(
        &self,
        request: Request<Incoming>,
        _: ConnectionSource,
    ) -> Response<Self::Body> {
        respond_or_tap(self, request).await
    }
}

/// Responds to a request. The body of `/tap` is a stream until the client disconnects; all other bodies are complete.
async fn respond_or_tap(
    admin: &AdminHandler,
    request: Request<Incoming>,
) -> Response<Either<Full<Bytes>, TapBody>> {
    if (request.method(), request.uri().path()) != (&Method::GET, "/tap") {
        return handle_request(admin, request).await.map(Either::Left);
    }
    match TapBody::open(&admin.operators.taps, request.uri().query().unwrap_or_default()) {
        Ok(tap_body) => typed_body(StatusCode::OK, "application/x-ndjson", Either::Right(tap_body)),
        Err((status, problem)) => text_response(status, format!("{problem}\n")).map(Either::Left),
    }
}

/// Responds to a request with a complete body. Requests for the status of the mesh are queries to the state task.
async fn handle_request(admin: &AdminHandler, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (path, query_string) = (request.uri().path(), request.uri().query());
    let admin_query = match (request.method(), path) {
        (&Method::POST, "/token") => return create_token(admin, query_string),
        (&Method::POST, "/reload") => {
            admin.reload.notify_one();
            return text_response(StatusCode::ACCEPTED, "reloading the files\n".to_owned());
        }
        (&Method::GET, "/state") => {
            let status = admin.directory.directory_status().await;
            return status.map_or_else(stopping_response, |status| {
                typed_response(StatusCode::OK, "application/json", format!("{:#}\n", json!(status)))
            });
        }
        (&Method::GET, "/sidecar") => {
            return query_sidecar(admin, query_string.unwrap_or_default()).await;
        }
        (&Method::GET, "/explain") => {
            return explain_request(admin, query_string.unwrap_or_default()).await;
        }
        (&Method::GET | &Method::HEAD, path) => match parse_query(path, query_string) {
            Some(AdminQuery::Metrics(..)) => match parse_metrics_query(&request) {
                Ok(metrics_query) => metrics_query,
                Err(problem) => return text_response(StatusCode::BAD_REQUEST, problem),
            },
            Some(admin_query) => admin_query,
            None => return text_response(StatusCode::NOT_FOUND, PATH_LIST_TEXT.to_owned()),
        },
        _ => return text_response(StatusCode::METHOD_NOT_ALLOWED, PATH_LIST_TEXT.to_owned()),
    };
    let _turn = admin.query_share.acquire_turn().await;
    state_task_response(&admin.queries, admin_query).await
}

/// Returns the response of a sidecar's admin endpoint, queried over the sidecar's open stream.
async fn query_sidecar(admin: &AdminHandler, query: &str) -> Response<Full<Bytes>> {
    let Some((workload, path)) = sidecar_query::parse_query(query) else {
        let hint = "use GET /sidecar?workload=NAMESPACE/NAME&path=PATH, percent-encoded\n";
        return text_response(StatusCode::BAD_REQUEST, hint.to_owned());
    };
    let turn = admin.query_share.acquire_turn().await;
    let response = query_state_task(&admin.queries, AdminQuery::Sidecar(workload.clone())).await;
    // The state task is idle while the sidecar responds.
    drop(turn);
    let Some(AdminResponse::Sidecar(location)) = response else { return stopping_response() };
    match sidecar_query::send_query(&admin.operators.queries, &workload, location, path).await {
        Ok(reply) => {
            // An invalid or informational (1xx) status is not a final response.
            let final_status =
                StatusCode::from_u16(reply.status).ok().filter(|status| !status.is_informational());
            let status = final_status.unwrap_or(StatusCode::BAD_GATEWAY);
            typed_response(status, "text/plain; charset=utf-8", reply.body)
        }
        Err((status, problem)) => text_response(status, format!("{problem}\n")),
    }
}

/// Explains the rules for the request that a query describes, as JSON. An error response is text.
async fn explain_request(admin: &AdminHandler, query: &str) -> Response<Full<Bytes>> {
    match admin.explain_runner.explain_query(query, query_objects(&admin.queries)).await {
        Ok(explanation) => typed_response(
            StatusCode::OK,
            "application/json",
            format!("{:#}\n", json!(explanation)),
        ),
        Err((status, reason)) => text_response(status, format!("{}\n", reason.trim_end())),
    }
}

/// Returns all objects of the mesh; `None` if the state task is shutting down.
pub(crate) async fn query_objects(queries: &AdminQueries) -> Option<Vec<Object>> {
    match query_state_task(queries, AdminQuery::Objects).await {
        Some(AdminResponse::Objects(objects)) => Some(objects),
        Some(
            AdminResponse::Json(_)
            | AdminResponse::Metrics(..)
            | AdminResponse::Points(_)
            | AdminResponse::Sidecar(_),
        )
        | None => None,
    }
}

/// Queries the state task and returns its response as an HTTP response.
pub(crate) async fn state_task_response(
    queries: &AdminQueries,
    query: AdminQuery,
) -> Response<Full<Bytes>> {
    let has_field_lines = matches!(query, AdminQuery::Rejected);
    match query_state_task(queries, query).await {
        Some(AdminResponse::Json(mut value)) => {
            if has_field_lines {
                // The lines are read from files, so this runs outside the state task.
                value = tokio::task::spawn_blocking(|| set_field_lines(value))
                    .await
                    .unwrap_or_default();
            }
            typed_response(StatusCode::OK, "application/json", format!("{value:#}\n"))
        }
        Some(AdminResponse::Metrics(format, text)) => {
            typed_response(StatusCode::OK, format.content_type(), text)
        }
        // No path of the admin socket makes one of these queries.
        Some(AdminResponse::Objects(_) | AdminResponse::Points(_) | AdminResponse::Sidecar(_))
        | None => stopping_response(),
    }
}

/// Sets the line of each warning to that of its field instead of the first line of its document.
fn set_field_lines(mut diagnostics: Value) -> Value {
    let mut lines = FieldLines::default();
    let warnings = diagnostics.get_mut("warnings").and_then(Value::as_array_mut);
    for warning in warnings.into_iter().flatten() {
        let text_field = |name: &str| warning.get(name).and_then(Value::as_str);
        let document_line =
            warning.get("line").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok());
        // A warning with a column already has the line of its field.
        if let (Some(file), Some(field), Some(document_line), None) =
            (text_field("file"), text_field("field"), document_line, warning.get("column"))
            && let Some(line) = lines.find_line(Path::new(file), document_line, field)
            && let Some(fields) = warning.as_object_mut()
        {
            fields.insert("line".to_owned(), json!(line));
        }
    }
    diagnostics
}

/// Returns the state task's response, or `None` if the state task is shutting down.
pub(crate) async fn query_state_task(
    queries: &AdminQueries,
    query: AdminQuery,
) -> Option<AdminResponse> {
    let (sender, response) = oneshot::channel();
    queries.send((query, sender)).await.ok()?;
    response.await.ok()
}

/// Returns the metrics query of a request. Alias names exist only in text format 0.0.4.
pub(crate) fn parse_metrics_query(request: &Request<Incoming>) -> Result<AdminQuery, String> {
    let alias_names = AliasNames::from_query(request.uri().query().unwrap_or_default())?;
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = match alias_names {
        Some(_) => ExpositionFormat::Prometheus,
        None => ExpositionFormat::from_accept(accept.unwrap_or_default()),
    };
    Ok(AdminQuery::Metrics(format, alias_names))
}

/// Parses the path and query of a request; `None` for an unknown path or an invalid query.
pub(crate) fn parse_query(path: &str, query: Option<&str>) -> Option<AdminQuery> {
    Some(match path {
        "/change" => {
            let id = query.and_then(|query| query.strip_prefix("id="))?;
            AdminQuery::Change(ChangeId(id.parse().ok()?))
        }
        "/changes" => AdminQuery::Changes,
        "/certificates" => AdminQuery::Certificates,
        "/history" => AdminQuery::History(parse_subject(query?)?),
        // The caller replaces this query by that of `parse_metrics_query`, which reads the headers too.
        "/metrics" => AdminQuery::Metrics(ExpositionFormat::Prometheus, None),
        "/policies" => AdminQuery::Policies,
        "/proxies" => AdminQuery::Proxies,
        "/prometheus/targets" => AdminQuery::ScrapeTargets(Scraper::Local),
        "/rejected" => AdminQuery::Rejected,
        "/rejected-joins" => AdminQuery::RejectedJoins,
        "/routes" => AdminQuery::Routes,
        "/services" => AdminQuery::Services,
        "/status" => AdminQuery::Status,
        "/traffic" => AdminQuery::Traffic,
        "/workloads" => AdminQuery::Workloads,
        _ => return None,
    })
}

/// Parses the subject of `/history`, the object that is plotted: `service=NAMESPACE/NAME` or `route=NAMESPACE/NAME`.
fn parse_subject(query: &str) -> Option<PlotSubject> {
    let (kind, name) = query.split_once('=')?;
    let name = decode_percent(name)?;
    match kind {
        "service" => Some(PlotSubject::Service(name.parse().ok()?)),
        "route" => Some(PlotSubject::Route(name.parse().ok()?)),
        _ => None,
    }
}

/// Creates a join bundle, and returns it as the text of a token file.
fn create_token(admin: &AdminHandler, query: Option<&str>) -> Response<Full<Bytes>> {
    let parameter = |name: &str| {
        let mut pairs =
            query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let name = parameter("workload").and_then(decode_percent);
    let lifetime_ms = parameter("lifetime_ms").map(str::parse).transpose();
    let (Some(Ok(workload)), Ok(lifetime_ms)) =
        (name.map(|name| name.parse::<WorkloadName>()), lifetime_ms)
    else {
        let hint =
            "specify the workload: POST /token?workload=NAMESPACE/NAME[&lifetime_ms=NUMBER]\n";
        return text_response(StatusCode::BAD_REQUEST, hint.to_owned());
    };
    let lifetime = lifetime_ms.map(Duration::from_millis);
    match admin.invitations.create_bundle(&workload, lifetime, SystemTime::now()) {
        Ok(bundle) => text_response(StatusCode::OK, bundle.render()),
        Err(error @ InviteError::UnknownWorkload(_)) => {
            text_response(StatusCode::NOT_FOUND, format!("{error}\n"))
        }
        Err(InviteError::Tokens(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            text_response(StatusCode::BAD_REQUEST, format!("{error}\n"))
        }
        Err(error @ InviteError::Tokens(_)) => {
            tracing::error!(%error, "cannot create a join token");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}

pub(crate) fn stopping_response() -> Response<Full<Bytes>> {
    let reason = "the control plane is shutting down\n";
    text_response(StatusCode::SERVICE_UNAVAILABLE, reason.to_owned())
}

/// The response to unknown paths: a list of all paths.
const PATH_LIST_TEXT: &str = "leno control: GET /workloads /services /certificates /proxies /prometheus/targets /routes \
                     /policies /rejected /rejected-joins /state /status /metrics /traffic /history?service=NAMESPACE/NAME \
                     /history?route=NAMESPACE/NAME /changes /change?id=NUMBER \
                     /explain?from=NAMESPACE/NAME&url=URL[&method=METHOD][&header=NAME:VALUE] \
                     /tap?service=NAMESPACE/NAME /sidecar?workload=NAMESPACE/NAME&path=PATH, POST \
                     /token?workload=NAMESPACE/NAME[&lifetime_ms=NUMBER] /reload\n";

/// The pause after a query, in multiples of its duration. With 1, queries take at most half of the state task's time.
pub(crate) const QUERY_PAUSE_FACTOR: u32 = 1;

/// Maximum concurrent admin connections; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Maximum bytes of a line that [`follow_lines`] reads; more than any report of a request has.
const MAX_LINE_BYTES: usize = 256 << 10;

/// The timeout of [`query_admin`] for the complete response.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum bytes of a response that [`query_admin`] reads. It suffices for a hundred thousand workloads.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_get_the_line_of_their_field() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("mesh.yaml");
        std::fs::write(&file, "a: 1\n---\nkind: X\nspec:\n  rules:\n  - name: one\n").unwrap();
        let warning = |line: u32, field: &str| json!({"file": file, "line": line, "field": field});
        let mut with_column = warning(3, "spec.rules");
        with_column["column"] = json!(7);
        let diagnostics = json!({"warnings": [
            warning(3, "spec.rules[0].name"),
            warning(3, "spec.absent"),
            warning(99, "spec.rules"),
            with_column,
            {"problem": "an object without a file"},
        ]});
        let with_lines = set_field_lines(diagnostics);
        let lines: Vec<Option<u64>> = with_lines["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|warning| warning["line"].as_u64())
            .collect();
        assert_eq!(lines, [Some(6), Some(4), Some(99), Some(3), None]);
    }
}
