//! Serves the control plane's end of a discovery stream. [`serve_proxy`] reads the first messages of one proxy
//! and runs its `Session`; the state task ([`crate::queue`]) receives the proxy's events.

mod pending;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::MAX_SUBSCRIPTIONS;
use crate::budget::Budget;
use crate::client::MAX_SERVICES_PER_MESSAGE;
use crate::envelope::{hello_from_wire, services_from_wire};
use crate::event::{Connected, ConnectionId, Event, StateTaskResponse};
use crate::frame::{FrameError, FrameReader, FrameWriter, MAX_REQUEST_BYTES};
use crate::keepalive::PING_AFTER;
use crate::message::Hello;
use crate::proto::{self, from_proxy};
use crate::publisher::Publisher;
use crate::query::Queries;
use crate::queue::EventSender;
use crate::resource::InvalidField;
use crate::server::pending::PendingEvents;
use crate::server::session::{ConnectionEnd, Session};
use crate::tap::Taps;

/// Serves one proxy over an authenticated stream until the stream ends.
///
/// The caller takes the proxy's identity from its certificate. Sends [`Event::Connected`] after the proxy's
/// first message and [`Event::Disconnected`] at the end. The state task ends the connection by
/// [`StateTaskResponse::Goodbye`] or by dropping the sender of responses. The proxy receives all taps and queries
/// of `operators`. It reports its traffic at `report_interval`; with `None`, no reports are requested.
///
/// # Errors
/// [`ServeError`] unless the proxy closed the stream, or the state task ended it.
pub async fn serve_proxy<S>(
    stream: S,
    connection: ConnectionId,
    event_sender: EventSender,
    report_interval: Option<Duration>,
    operators: OperatorSessions,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MAX_REQUEST_BYTES);
    let mut writer = FrameWriter::new(write);
    // An identity that exceeded its budget on another connection waits before it is read again.
    let now = Instant::now();
    let budget = event_sender.budget();
    if let Some(resume_at) = budget.next_read_at(now).max(budget.next_work_at(now)) {
        sleep_until(resume_at).await;
    }
    let timed_read =
        timeout(PING_AFTER, read_introduction(&mut reader, event_sender.budget())).await;
    // Unwrapped in place: a variable of its own would stay in the memory of the idle connection.
    let Introduction { hello, publisher, next_message } =
        match timed_read.unwrap_or(Err(ServeError::Timeout)) {
            Ok(Some(introduction)) => introduction,
            Ok(None) => return Ok(()),
            Err(error) => {
                session::send_goodbye(writer, &error.to_string()).await;
                return Err(error);
            }
        };
    let workload = hello.workload.clone();
    let queries = operators.queries.open_stream(connection, hello.answers_queries);
    let pending_events = Box::new(PendingEvents::new(connection, &hello));
    let (responses, state_task_responses) = watch::channel(StateTaskResponse::Pending);
    let connected = Box::new(Connected { connection, hello, responses });
    event_sender.send(Event::Connected(connected)).await?;
    let taps = operators.taps.watch_taps();
    let mut session = Session::new(
        &mut writer,
        publisher,
        pending_events,
        workload,
        &event_sender,
        taps,
        queries,
    );
    let request_result =
        report_interval.map_or(Ok(()), |interval| session.request_reports(interval));
    let setup_result = request_result
        .and_then(|()| next_message.map_or(Ok(()), |message| session.handle_message(message)));
    let connection_end = match setup_result {
        Ok(()) => session
            .run(&mut reader, state_task_responses)
            .await
            .unwrap_or_else(ConnectionEnd::Failed),
        Err(error) => ConnectionEnd::Failed(error),
    };
    session.finish().await;
    // The state task may have stopped.
    event_sender.send(Event::Disconnected { connection }).await.ok();
    connection_end.notify_proxy(writer).await
}

/// The open taps and queries of operators.
#[derive(Debug, Clone)]
pub struct OperatorSessions {
    /// The open taps.
    pub taps: Arc<Taps>,
    /// The open queries.
    pub queries: Arc<Queries>,
}

impl OperatorSessions {
    /// Creates an empty set of taps and queries. Their IDs count from `first_id`, a random number.
    #[must_use]
    pub fn new(first_id: u64) -> Self {
        Self { taps: Arc::new(Taps::new(first_id)), queries: Arc::new(Queries::new(first_id)) }
    }
}

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The stream broke.
    #[error("the stream to the proxy broke")]
    Io(#[from] io::Error),
    /// No message from the peer arrived in time.
    #[error("the proxy was silent for too long")]
    Timeout,
    /// The proxy sent an invalid message.
    #[error("the proxy sent an invalid message: {0}")]
    Malformed(String),
    /// The proxy has exceeded its budget for minutes, which no regular sidecar does.
    #[error(
        "the proxy has exceeded its share of the control plane's work for minutes: its updates are throttled"
    )]
    Overload,
    /// A delta was neither acknowledged nor rejected in time.
    #[error("the proxy did not acknowledge a delta in time")]
    Unacknowledged,
    /// The proxy uses another version of the protocol.
    #[error(
        "the proxy speaks version {0} of the discovery protocol and this control plane version \
         {ours}: upgrade the older one", ours = crate::PROTOCOL
    )]
    Protocol(u32),
    /// The state task has ended.
    #[error("the control plane is shutting down")]
    Stopped,
}

impl From<FrameError> for ServeError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Truncated => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<InvalidField> for ServeError {
    fn from(invalid: InvalidField) -> Self {
        Self::Malformed(format!("{}: {}", invalid.field, invalid.reason))
    }
}

impl From<prost::DecodeError> for ServeError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The first messages of a proxy.
struct Introduction {
    hello: Hello,
    /// The publisher, with the versions that the proxy holds.
    publisher: Publisher,
    /// The message after the Hello and its further services, if it was already read.
    next_message: Option<proto::FromProxy>,
}

/// Reads the Hello, and the services that follow it. Returns `None` if the proxy closed the stream before it
/// sent a Hello.
async fn read_introduction<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    budget: &Budget,
) -> Result<Option<Introduction>, ServeError> {
    let Some(message) = read_message(reader, budget).await? else {
        return Ok(None);
    };
    match message.message {
        Some(from_proxy::Message::Hello(wire)) if wire.protocol != crate::PROTOCOL => {
            Err(ServeError::Protocol(wire.protocol))
        }
        Some(from_proxy::Message::Hello(wire)) => {
            let (mut hello, held_versions) = hello_from_wire(wire)?;
            let next_message = read_further_services(reader, &mut hello, budget).await?;
            Ok(Some(Introduction { hello, publisher: Publisher::new(held_versions), next_message }))
        }
        _ => Err(ServeError::Malformed("the first message must be a Hello".into())),
    }
}

/// Reads the services that did not fit into a Hello and follow it, so that a proxy that reconnects with
/// thousands of services does not first get a partial configuration. Returns the message that ended these
/// services; `None` if all services arrived, or no message followed in time.
async fn read_further_services<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    hello: &mut Hello,
    budget: &Budget,
) -> Result<Option<proto::FromProxy>, ServeError> {
    let mut services_in_message = hello.services.len();
    while services_in_message == MAX_SERVICES_PER_MESSAGE
        && hello.services.len() < MAX_SUBSCRIPTIONS
    {
        let Ok(message) = timeout(FURTHER_SERVICES_TIMEOUT, read_message(reader, budget)).await
        else {
            break;
        };
        let Some(message) = message? else { break };
        match &message.message {
            Some(from_proxy::Message::Subscribe(wire))
                if wire.addresses.is_empty() && wire.dns_names.is_empty() =>
            {
                let services: Vec<_> = services_from_wire(&wire.names)?;
                services_in_message = services.len();
                hello.services.extend(services);
            }
            _ => return Ok(Some(message)),
        }
    }
    Ok(None)
}

/// Reads one message and charges the proxy's budget. Cancel-safe.
async fn read_message<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    budget: &Budget,
) -> Result<Option<proto::FromProxy>, ServeError> {
    let Some(frame) = reader.next().await? else { return Ok(None) };
    budget.charge_reading(session::reading_units(frame.len()), Instant::now());
    Ok(Some(proto::FromProxy::decode(frame)?))
}

/// The maximum wait for further services; a proxy with a full Hello usually sends them at once.
const FURTHER_SERVICES_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
