//! Serves opaque bytes at an application port: authorizes the peer, rejects bytes if a policy depends on requests, and
//! forwards the bytes to the application.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use leno_model::{Protocol, Reason};
use leno_traffic::{Denial, PolicyDecision};
use leno_wire::link::ResetCode;
use leno_wire::sniff::DetectedProtocol;
use tokio::time::timeout;

use super::request_detection::RequestDetector;
use super::{ClientSide, TUNNEL_BUFFER_BYTES, forward_bidirectional, forward_with_counters};
use crate::config_store::ConfigSnapshot;
use crate::connection::{list_session, serve_http1};
use crate::error::Failure;
use crate::first_bytes::sniff_connection;
use crate::http::message::{MessageReader, MessageWriter};
use crate::http::route::{self, Destination};
use crate::http2;
use crate::io::{ByteStream, Io};
use crate::link::{LinkStream, OpenedStream};
use crate::record::ExchangeRecord;
use crate::session::Session;
use crate::silent_client::wait_for_bytes;
use crate::splice::copy_bytes;
use crate::upstream::{Application, Http1Upstream};

/// Forwards a stream of a link to the application.
pub(crate) async fn forward_to_application(
    session: &Session,
    port: u16,
    opened_stream: OpenedStream,
) {
    if needs_requests(session, port) {
        return Box::pin(serve_requests(session, port, &opened_stream.stream)).await;
    }
    let mut record = ExchangeRecord::open(session, "tcp");
    match try_forward_stream(session, port, &opened_stream.stream, &mut record).await {
        Ok(()) => record.mark_completed(),
        Err(failure) => {
            record.record_failure(&failure);
            // The other sidecar resets its client.
            opened_stream.stream.reset_for(reset_code(failure.reason), failure.reason);
        }
    }
}

/// Forwards the bytes until either side ends, or until the policies no longer permit them.
async fn try_forward_stream(
    session: &Session,
    port: u16,
    stream: &LinkStream,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Failure> {
    let connection = connect_application(session, port, record).await;
    record.count_opened();
    let connection = connection?;
    // The other sidecar sends its client's bytes only after this head.
    stream.send_head(false, false, |_| {}).map_err(|_| Reason::DownstreamClosed)?;
    let idle_timeout = session.worker.config.limits.idle_connection;
    let mut application =
        (connection.reader, MessageWriter::new(connection.writer.io.clone(), idle_timeout));
    let detector = RequestDetector::for_port(session, port);
    let client_side = ClientSide::Link(detector.as_ref());
    let outcome = tokio::select! {
        result = forward_bidirectional(&mut application, stream, client_side, idle_timeout, record) => {
            result.map_err(Failure::from)
        }
        denial = wait_until_denied(session, port, detector.as_ref()) => Err(denial),
    };
    if outcome.is_err() {
        application.1.io.reset_on_drop();
    }
    outcome
}

/// True if a port without a declared protocol rejects opaque bytes of a peer but may permit its requests. The
/// peer's bytes are then inspected, and served if they are HTTP.
pub(crate) fn needs_requests(session: &Session, port: u16) -> bool {
    let Some(config) = session.worker.config_store.current_config() else { return false };
    let access = &config.compiled.access;
    config.compiled.snapshot.config.declared_protocol(port) == Protocol::Detect
        && session.authorize_peer(&config, Instant::now()).is_ok_and(|permit| {
            access.may_allow_requests(&permit)
                && (access.authorize_tcp(&permit).is_err()
                    || admit_opaque_bytes(&config, port).is_err())
        })
}

/// Serves the requests in a stream of a link, over an in-memory connection.
async fn serve_requests(session: &Session, port: u16, stream: &LinkStream) {
    let limits = &session.worker.config.limits;
    // The other sidecar sends its client's bytes only after this head.
    if stream.send_head(false, false, |_| {}).is_err() {
        return;
    }
    let (stream_end, server_end) = tokio::io::duplex(TUNNEL_BUFFER_BYTES);
    let (stream_end, server_end) =
        (Io::new(ByteStream::Memory(stream_end)), Io::new(ByteStream::Memory(server_end)));
    let mut stream_side = (
        MessageReader::new(stream_end.clone()),
        MessageWriter::new(stream_end, limits.idle_connection),
    );
    let (sent_bytes, received_bytes) = (Cell::new(0), Cell::new(0));
    let forwarding = forward_with_counters(
        &mut stream_side,
        stream,
        ClientSide::Link(None),
        limits.idle_connection,
        &sent_bytes,
        &received_bytes,
    );
    let serving = serve_detected(session, port, server_end);
    let (mut forwarding, mut serving) = (pin!(forwarding), pin!(serving));
    let outcome = tokio::select! {
        forward_result = &mut forwarding => match forward_result {
            Ok(()) => serving.await,
            Err(reason) => Err(reason),
        },
        serve_result = &mut serving => match serve_result {
            // The client may leave its direction open. Then the stream is reset.
            Ok(()) => timeout(MAX_CLOSE_TIME, forwarding).await.unwrap_or(Ok(())),
            Err(reason) => Err(reason),
        },
    };
    if let Err(reason) = outcome {
        stream.reset_for(reset_code(reason), reason);
    }
}

/// Serves bytes according to the detected protocol. A connection that ends without any byte is not counted: it
/// may be a health check.
async fn serve_detected(session: &Session, port: u16, io: Io) -> Result<(), Reason> {
    let limits = &session.worker.config.limits;
    let mut early_bytes = BytesMut::new();
    if !wait_for_bytes(&session.worker, limits.idle_connection, &io, &mut early_bytes).await {
        io.close().await;
        return Ok(());
    }
    let protocol = timeout(limits.head_timeout, sniff_connection(&io, &mut early_bytes)).await;
    let list_as = |label| list_session(session, label, format!("application port {port}"));
    match protocol {
        Ok(DetectedProtocol::Http1) => {
            let list_entry = list_as("http");
            serve_http1(session.for_detected_http(false), list_entry, &io, early_bytes).await;
        }
        Ok(DetectedProtocol::Http2) => {
            let _list_entry = list_as("http2");
            http2::server::serve_connection(
                Rc::new(session.for_detected_http(true)),
                &io,
                early_bytes,
            )
            .await;
            io.close().await;
        }
        Ok(DetectedProtocol::Tls | DetectedProtocol::Opaque | DetectedProtocol::Incomplete)
        | Err(_) => {
            return forward_recorded(session, port, &io, early_bytes).await;
        }
    }
    Ok(())
}

/// Forwards a connection without mutual TLS to the application.
pub(crate) async fn forward_plaintext(session: &Session, port: u16, io: Io, early_bytes: BytesMut) {
    if forward_recorded(session, port, &io, early_bytes).await.is_err() {
        io.reset_on_drop();
    }
}

/// Forwards a connection without mutual TLS to the application, with a record for metrics and the access log.
async fn forward_recorded(
    session: &Session,
    port: u16,
    io: &Io,
    early_bytes: BytesMut,
) -> Result<(), Reason> {
    let mut record = ExchangeRecord::open(session, "tcp");
    match try_forward_plaintext(session, port, io, early_bytes, &mut record).await {
        Ok(()) => {
            record.mark_completed();
            Ok(())
        }
        Err(failure) => {
            record.record_failure(&failure);
            Err(failure.reason)
        }
    }
}

/// Forwards the bytes until either side ends, or until the policies no longer permit them.
async fn try_forward_plaintext(
    session: &Session,
    port: u16,
    io: &Io,
    early_bytes: BytesMut,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Failure> {
    let connection = connect_application(session, port, record).await;
    record.count_opened();
    let connection = connection?;
    let idle_timeout = session.worker.config.limits.idle_connection;
    let mut reader = MessageReader::new(io.clone());
    reader.buffer = early_bytes;
    let client = (reader, MessageWriter::new(io.clone(), idle_timeout));
    let server =
        (connection.reader, MessageWriter::new(connection.writer.io.clone(), idle_timeout));
    let application_io = server.1.io.clone();
    let detector = RequestDetector::for_port(session, port);
    tokio::select! {
        outcome = copy_bytes(client, server, idle_timeout, record, detector.as_ref()) => Ok(outcome?),
        denial = wait_until_denied(session, port, detector.as_ref()) => {
            application_io.reset_on_drop();
            Err(denial)
        }
    }
}

/// Connects to the application, if the policies permit opaque bytes of this peer.
async fn connect_application(
    session: &Session,
    port: u16,
    record: &mut ExchangeRecord<'_>,
) -> Result<Http1Upstream, Failure> {
    let application = permitted_application(session, port, record)?;
    Ok(application.connect_exclusive(&session.worker).await?)
}

/// Returns the application, if the policies permit opaque bytes of this peer.
fn permitted_application(
    session: &Session,
    port: u16,
    record: &mut ExchangeRecord<'_>,
) -> Result<Rc<Application>, Failure> {
    let resolved_route = route::route_inbound(session, port, false, record)?;
    let permit = session.authorize_peer(&resolved_route.config, record.started)?;
    let access = &resolved_route.config.compiled.access;
    record.record_permit(access, access.authorize_tcp(&permit)?);
    admit_opaque_bytes(&resolved_route.config, port)?;
    resolved_route
        .config
        .compiled
        .limits
        .admit_connection(port, session.worker.config_store.age())?;
    match resolved_route.destination {
        Destination::Application(application) => Ok(application),
        Destination::Endpoints(_) | Destination::Redirected(_) => Err(Reason::NoEndpoint.into()),
    }
}

/// Rejects bytes without visible requests, which would bypass policies that decide by request.
///
/// # Errors
/// `denied-by-policy`, if such a policy applies.
fn admit_opaque_bytes(config: &ConfigSnapshot, port: u16) -> Result<(), Failure> {
    let Some(policy) = config.compiled.snapshot.config.policy_rejecting_bytes(port) else {
        return Ok(());
    };
    let policy = Some(PolicyDecision::from_whole_policy(policy, &Arc::default()));
    Err(Denial { policy, ..Denial::without_policy(Reason::DeniedByPolicy) }.into())
}

/// Resolves when the current policies no longer permit the peer's bytes.
async fn wait_until_denied(
    session: &Session,
    port: u16,
    detector: Option<&RequestDetector<'_>>,
) -> Failure {
    let config_store = &session.worker.config_store;
    let mut changes = config_store.access_changes();
    loop {
        // Checked at the start as well: the policies may have changed since the stream was accepted.
        if let Some(config) = config_store.current_config() {
            let access = &config.compiled.access;
            let permit = access.authorize_connection_from(
                session.identity.as_deref(),
                port,
                Some(session.origin()),
            );
            if let Err(denial) = permit.and_then(|permit| access.authorize_tcp(&permit)) {
                return denial.into();
            }
            if let Err(denial) = admit_opaque_bytes(&config, port) {
                return denial;
            }
            if let Some(Err(denial)) = detector.map(|detector| detector.check_request(&config)) {
                return denial;
            }
        }
        let request_rejected = async {
            match detector {
                Some(detector) => detector.wait_until_rejected().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    // The configuration store outlives its subscribers.
                    std::future::pending::<()>().await;
                }
            }
            () = request_rejected => {}
        }
    }
}

/// Returns the code with which a stream is reset for this reason.
fn reset_code(reason: Reason) -> ResetCode {
    match reason.status() {
        // Other endpoints have their own limits.
        429 => ResetCode::Refused,
        403 => ResetCode::Denied,
        503 | 504 => ResetCode::Unreachable,
        _ => ResetCode::Failed,
    }
}

/// The maximum time for a stream to end after its last response.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(5);
