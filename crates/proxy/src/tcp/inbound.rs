//! Opaque bytes at an application port: authorization of peers, and policies that depend on requests.

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
use super::{MEMORY_BYTES, PumpDirection, forward_counted, forward_streams};
use crate::config_store::ConfigSnapshot;
use crate::connection::{from_http1, list_session};
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
pub(crate) async fn to_application(session: &Session, port: u16, opened: OpenedStream) {
    if needs_requests(session, port) {
        return Box::pin(serve_requests(session, port, &opened.stream)).await;
    }
    let mut record = ExchangeRecord::open(session, "tcp");
    match try_forward(session, port, &opened.stream, &mut record).await {
        Ok(()) => record.mark_succeeded(),
        Err(failure) => {
            record.record_failure(&failure);
            // The other sidecar resets its client.
            opened.stream.reset_for(code_of(failure.reason), failure.reason);
        }
    }
}

async fn try_forward(
    session: &Session,
    port: u16,
    stream: &LinkStream,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Failure> {
    let connection = connect_application(session, port, record).await;
    record.count_opened();
    let connection = connection?;
    // The other sidecar sends its client's bytes only after this.
    stream.send_head(false, false, |_| {}).map_err(|_| Reason::DownstreamClosed)?;
    let max_wait = session.worker.config.limits.idle_connection;
    let mut plain = (connection.reader, MessageWriter::new(connection.writer.io.clone(), max_wait));
    let examination = RequestDetector::for_port(session, port);
    let towards = PumpDirection::Application(examination.as_ref());
    let carried = tokio::select! {
        carried = forward_streams(&mut plain, stream, towards, max_wait, record) => {
            carried.map_err(Failure::from)
        }
        denied = wait_until_denied(session, port, examination.as_ref()) => Err(denied),
    };
    if carried.is_err() {
        plain.1.io.reset_on_drop();
    }
    carried
}

/// True for a port without a declared protocol that rejects opaque bytes of a peer and may permit its requests.
/// Its bytes are then inspected, and served if they are HTTP.
pub(crate) fn needs_requests(session: &Session, port: u16) -> bool {
    let Some(config) = session.worker.config_store.current_config() else { return false };
    let access = &config.plans.access;
    config.plans.snapshot.config.declared_protocol(port) == Protocol::Detect
        && session.authorize_peer(&config, Instant::now()).is_ok_and(|permit| {
            access.may_let_requests_in(&permit)
                && (access.authorize_tcp(&permit).is_err() || sees_requests(&config, port).is_err())
        })
}

/// Serves the requests in a stream of bytes.
async fn serve_requests(session: &Session, port: u16, stream: &LinkStream) {
    let limits = &session.worker.config.limits;
    // The other sidecar sends its client's bytes only after this.
    if stream.send_head(false, false, |_| {}).is_err() {
        return;
    }
    let (near, far) = tokio::io::duplex(MEMORY_BYTES);
    let (near, far) = (Io::new(ByteStream::Memory(near)), Io::new(ByteStream::Memory(far)));
    let mut plain =
        (MessageReader::new(near.clone()), MessageWriter::new(near, limits.idle_connection));
    let (sent, received) = (Cell::new(0), Cell::new(0));
    let carried = forward_counted(
        &mut plain,
        stream,
        PumpDirection::Application(None),
        limits.idle_connection,
        &sent,
        &received,
    );
    let (mut carried, mut served) = (pin!(carried), pin!(serve_first(session, port, far)));
    let ended = tokio::select! {
        carried = &mut carried => match carried {
            Ok(()) => served.await,
            Err(reason) => Err(reason),
        },
        served = &mut served => match served {
            // The client may keep its direction open. Then the stream is reset.
            Ok(()) => timeout(LAST_BYTES, carried).await.unwrap_or(Ok(())),
            Err(reason) => Err(reason),
        },
    };
    if let Err(reason) = ended {
        stream.reset_for(code_of(reason), reason);
    }
}

/// Serves bytes according to the detected protocol. A connection without any bytes ends and is not counted: it
/// may be a health check.
async fn serve_first(session: &Session, port: u16, io: Io) -> Result<(), Reason> {
    let limits = &session.worker.config.limits;
    let mut early = BytesMut::new();
    if !wait_for_bytes(&session.worker, limits.idle_connection, &io, &mut early).await {
        io.close().await;
        return Ok(());
    }
    let sniffed = timeout(limits.head_timeout, sniff_connection(&io, &mut early)).await;
    let list = |protocol| list_session(session, protocol, format!("application port {port}"));
    match sniffed {
        Ok(DetectedProtocol::Http1) => {
            let listed = list("http");
            from_http1(session.for_detected_http(false), listed, &io, early).await;
        }
        Ok(DetectedProtocol::Http2) => {
            let _listed = list("http2");
            http2::server::serve_connection(Rc::new(session.for_detected_http(true)), &io, early)
                .await;
            io.close().await;
        }
        Ok(DetectedProtocol::Tls | DetectedProtocol::Opaque | DetectedProtocol::Incomplete)
        | Err(_) => {
            return carry_plainly(session, port, &io, early).await;
        }
    }
    Ok(())
}

/// Forwards a connection without mutual TLS to the application.
pub(crate) async fn forward_plaintext(session: &Session, port: u16, io: Io, early: BytesMut) {
    if carry_plainly(session, port, &io, early).await.is_err() {
        io.reset_on_drop();
    }
}

async fn carry_plainly(
    session: &Session,
    port: u16,
    io: &Io,
    early: BytesMut,
) -> Result<(), Reason> {
    let mut record = ExchangeRecord::open(session, "tcp");
    match attempt_plainly(session, port, io, early, &mut record).await {
        Ok(()) => {
            record.mark_succeeded();
            Ok(())
        }
        Err(failure) => {
            record.record_failure(&failure);
            Err(failure.reason)
        }
    }
}

async fn attempt_plainly(
    session: &Session,
    port: u16,
    io: &Io,
    early: BytesMut,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Failure> {
    let connection = connect_application(session, port, record).await;
    record.count_opened();
    let connection = connection?;
    let max_wait = session.worker.config.limits.idle_connection;
    let mut reader = MessageReader::new(io.clone());
    reader.buffer = early;
    let client = (reader, MessageWriter::new(io.clone(), max_wait));
    let server = (connection.reader, MessageWriter::new(connection.writer.io.clone(), max_wait));
    let cut = server.1.io.clone();
    let examination = RequestDetector::for_port(session, port);
    tokio::select! {
        spliced = copy_bytes(client, server, max_wait, record, examination.as_ref()) => Ok(spliced?),
        denied = wait_until_denied(session, port, examination.as_ref()) => {
            cut.reset_on_drop();
            Err(denied)
        }
    }
}

/// Connects to the application, if the policies permit bytes of this peer.
async fn connect_application(
    session: &Session,
    port: u16,
    record: &mut ExchangeRecord<'_>,
) -> Result<Http1Upstream, Failure> {
    let application = permitted_application(session, port, record)?;
    Ok(application.connect_exclusive(&session.worker).await?)
}

/// Returns the application, if the policies permit bytes of this peer.
fn permitted_application(
    session: &Session,
    port: u16,
    record: &mut ExchangeRecord<'_>,
) -> Result<Rc<Application>, Failure> {
    let resolved_route = route::route_inbound(session, port, false, record)?;
    let permit = session.authorize_peer(&resolved_route.config, record.started)?;
    let access = &resolved_route.config.plans.access;
    record.record_permit(access, access.authorize_tcp(&permit)?);
    sees_requests(&resolved_route.config, port)?;
    resolved_route.config.plans.limits.admit_connection(port, session.worker.config_store.age())?;
    match resolved_route.destination {
        Destination::Application(application) => Ok(application),
        Destination::Endpoints(_) | Destination::Redirected(_) => Err(Reason::NoEndpoint.into()),
    }
}

/// Rejects bytes without visible requests, which would bypass policies that decide by request.
///
/// # Errors
/// `denied-by-policy`, if such a policy applies.
fn sees_requests(config: &ConfigSnapshot, port: u16) -> Result<(), Failure> {
    let Some(policy) = config.plans.snapshot.config.rejects_bytes(port) else { return Ok(()) };
    let policy = Some(PolicyDecision::whole_policy(policy, &Arc::default()));
    Err(Denial { policy, ..Denial::without_policy(Reason::DeniedByPolicy) }.into())
}

/// Resolves when the current policies no longer permit the peer's bytes.
async fn wait_until_denied(
    session: &Session,
    port: u16,
    examination: Option<&RequestDetector<'_>>,
) -> Failure {
    let config_store = &session.worker.config_store;
    let mut changes = config_store.access_changes();
    loop {
        // Checked at the start as well: the policies may have changed since the stream was accepted.
        if let Some(config) = config_store.current_config() {
            let access = &config.plans.access;
            let permit = access.visit(session.identity.as_deref(), port, Some(session.origin()));
            if let Err(denial) = permit.and_then(|permit| access.authorize_tcp(&permit)) {
                return denial.into();
            }
            if let Err(denial) = sees_requests(&config, port) {
                return denial;
            }
            if let Some(Err(denial)) = examination.map(|it| it.check_request(&config)) {
                return denial;
            }
        }
        let rejected = async {
            match examination {
                Some(examination) => examination.wait_until_rejected().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    // The configuration ends with the sidecar.
                    std::future::pending::<()>().await;
                }
            }
            () = rejected => {}
        }
    }
}

/// Returns the code for resetting a stream.
fn code_of(reason: Reason) -> ResetCode {
    match reason.status() {
        // Other endpoints have their own limits.
        429 => ResetCode::Refused,
        403 => ResetCode::Denied,
        503 | 504 => ResetCode::Unreachable,
        _ => ResetCode::Failed,
    }
}

/// The time in which a stream has to end after its last response.
const LAST_BYTES: Duration = Duration::from_secs(5);
