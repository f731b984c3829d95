//! The control plane's end of a stream: one connection's reads, writes and waits.

mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::envelope::hello_from_wire;
use crate::event::{Connected, ConnectionId, Event, Standing};
use crate::frame::{FrameError, FrameReader, FrameWriter, REQUEST_BYTES_MAX};
use crate::message::Hello;
use crate::proto::{self, from_proxy};
use crate::publisher::Publisher;
use crate::resource::Invalid;
use crate::server::session::{Ending, Session};
use crate::tap::Taps;
use crate::vigil::PING_AFTER;

/// Serves one proxy over an authenticated stream until the stream ends.
///
/// Who the proxy is, the caller knows from its certificate. Sends [`Event::Connected`] after the
/// proxy's first message and [`Event::Left`] at the end. The owner ends the connection by
/// [`Standing::Goodbye`] or by dropping the sender of standings. The proxy hears of all `taps`, and
/// is asked to tell of its traffic every `report_every`, if that is given.
///
/// # Errors
/// [`ServeError`] unless the proxy closed the stream, or the owner of the mesh ended it.
pub async fn serve<S>(
    stream: S,
    connection: ConnectionId,
    events: mpsc::Sender<Event>,
    report_every: Option<Duration>,
    taps: Arc<Taps>,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, REQUEST_BYTES_MAX);
    let mut writer = FrameWriter::new(write);
    let first = timeout(PING_AFTER, introduction(&mut reader)).await;
    let (hello, publisher) = match first.unwrap_or(Err(ServeError::Silent)) {
        Ok(Some(introduction)) => introduction,
        Ok(None) => return Ok(()),
        Err(error) => {
            session::farewell(writer, &error.to_string()).await;
            return Err(error);
        }
    };
    let workload = hello.workload.clone();
    let (standing, offers) = watch::channel(Standing::Pending);
    let connected = Box::new(Connected { connection, hello, standing });
    events.send(Event::Connected(connected)).await.map_err(|_| ServeError::Stopped)?;
    let mut session = Session::new(&mut writer, publisher, (connection, workload), &events, &taps);
    let asked = report_every.map_or(Ok(()), |every| session.ask_for_reports(every));
    let ending = match asked {
        Ok(()) => session.run(&mut reader, offers).await.unwrap_or_else(Ending::Failed),
        Err(error) => Ending::Failed(error),
    };
    drop(session);
    // When nobody listens any more there is nobody to tell.
    events.send(Event::Left { connection }).await.ok();
    ending.part(writer).await
}

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The stream broke.
    #[error("the stream to the proxy broke")]
    Io(#[from] io::Error),
    /// Nothing came for longer than the bounded silence.
    #[error("the proxy was silent for too long")]
    Silent,
    /// The proxy sent something that is not of this protocol.
    #[error("the proxy sent an invalid message: {0}")]
    Malformed(String),
    /// A delta was neither acknowledged nor refused in time.
    #[error("the proxy did not acknowledge a delta in time")]
    Unacknowledged,
    /// The proxy speaks a version of the contract that this control plane does not.
    #[error(
        "the proxy speaks version {0} of the discovery protocol and this control plane version \
         {ours}: upgrade the older one", ours = crate::PROTOCOL
    )]
    Protocol(u32),
    /// The owner of the mesh is gone.
    #[error("the control plane is shutting down")]
    Stopped,
}

impl From<FrameError> for ServeError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Cut => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<Invalid> for ServeError {
    fn from(invalid: Invalid) -> Self {
        Self::Malformed(format!("{}: {}", invalid.field, invalid.reason))
    }
}

impl From<prost::DecodeError> for ServeError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Reads the first message; `None` when the proxy closed the stream instead.
async fn introduction<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
) -> Result<Option<(Hello, Publisher)>, ServeError> {
    let Some(frame) = reader.next().await? else {
        return Ok(None);
    };
    match proto::FromProxy::decode(frame)?.message {
        Some(from_proxy::Message::Hello(wire)) if wire.protocol != crate::PROTOCOL => {
            Err(ServeError::Protocol(wire.protocol))
        }
        Some(from_proxy::Message::Hello(wire)) => {
            let (hello, held) = hello_from_wire(wire)?;
            Ok(Some((hello, Publisher::new(held))))
        }
        _ => Err(ServeError::Malformed("the first message must be a Hello".into())),
    }
}

#[cfg(test)]
mod tests;
