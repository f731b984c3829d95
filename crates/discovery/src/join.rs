//! Requests and issues the first certificate of a workload in exchange for a one-time token (a join).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use leno_model::WorkloadName;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::envelope::{issued_from_wire, issued_to_wire};
use crate::event::{Event, PendingJoin};
use crate::frame::{FrameError, FrameReader, FrameWriter, MAX_JOIN_BYTES};
use crate::message::{IssuanceFailure, IssuedCertificate};
use crate::proto::{self, join_reply::Outcome};
use crate::queue::EventSender;
use crate::resource::parse_name;
use crate::server::ServeError;

/// Requests a first certificate over a stream with an authenticated server.
///
/// # Errors
/// [`JoinError`] if the stream breaks, the response is late or the control plane rejects the request.
pub async fn join<S>(
    stream: S,
    token: &str,
    workload: &WorkloadName,
    csr: &[u8],
) -> Result<IssuedCertificate, JoinError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = proto::JoinRequest {
        token: token.to_owned(),
        workload: workload.to_string(),
        csr: csr.to_vec(),
    };
    let exchange_messages = async {
        let (read, write) = tokio::io::split(stream);
        let mut writer = FrameWriter::new(write);
        writer.push(&request, MAX_JOIN_BYTES)?;
        writer.flush().await?;
        FrameReader::new(read, MAX_JOIN_BYTES).next().await
    };
    let received_frame =
        timeout(JOIN_TIMEOUT, exchange_messages).await.map_err(|_| JoinError::Timeout)??;
    let frame = received_frame.ok_or_else(|| JoinError::Io(io::ErrorKind::UnexpectedEof.into()))?;
    let join_reply =
        proto::JoinReply::decode(frame).map_err(|error| JoinError::Malformed(error.to_string()))?;
    let is_final = join_reply.is_final;
    match join_reply.outcome {
        None => Err(JoinError::Malformed("a response without content".into())),
        Some(Outcome::Issued(issued)) => Ok(issued_from_wire(issued)),
        Some(Outcome::Error(reason)) => Err(JoinError::Rejected { reason, is_final }),
    }
}

/// Serves one join from the address `source`: reads the request, forwards it to the state task, and writes the
/// response.
///
/// # Errors
/// [`ServeError`] if the stream breaks, the message is not a join request, or the deadline passes.
pub async fn serve_join<S>(
    stream: S,
    source: IpAddr,
    event_sender: EventSender,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout(JOIN_TIMEOUT, handle_join(stream, source, event_sender))
        .await
        .unwrap_or(Err(ServeError::Timeout))
}

/// Serves one join without a time limit.
async fn handle_join<S>(
    stream: S,
    source: IpAddr,
    event_sender: EventSender,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let Some(frame) = FrameReader::new(read, MAX_JOIN_BYTES).next().await? else {
        // The client closed the stream without a request.
        return Ok(());
    };
    let request = proto::JoinRequest::decode(frame)?;
    let workload = parse_name("workload", &request.workload)?;
    let (reply, receiver) = oneshot::channel();
    let pending_join =
        PendingJoin { token: request.token, workload, csr: request.csr, source, reply };
    event_sender.send(Event::JoinRequested(pending_join)).await?;
    let (outcome, is_final) = match timeout(STATE_TASK_TIMEOUT, receiver).await {
        Ok(Ok(Ok(issued))) => (Outcome::Issued(issued_to_wire(issued)), false),
        Ok(Ok(Err(IssuanceFailure { reason, is_final }))) => (Outcome::Error(reason), is_final),
        Ok(Err(_)) | Err(_) => {
            let reason = "the control plane did not respond in time: try again";
            (Outcome::Error(reason.into()), false)
        }
    };
    let mut writer = FrameWriter::new(write);
    writer.push(&proto::JoinReply { outcome: Some(outcome), is_final }, MAX_JOIN_BYTES)?;
    Ok(writer.finish().await?)
}

/// Formats without the token.
impl fmt::Debug for proto::JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("workload", &self.workload).finish_non_exhaustive()
    }
}

/// The reason why a join failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The stream broke.
    #[error("the stream to the control plane broke")]
    Io(#[from] io::Error),
    /// The control plane did not respond in time.
    #[error("the control plane did not respond to the join in time")]
    Timeout,
    /// The control plane sent an invalid message.
    #[error("the control plane sent an invalid message: {0}")]
    Malformed(String),
    /// The control plane rejected the join.
    #[error("the control plane rejected the join: {reason}")]
    Rejected {
        /// The reason given by the control plane.
        reason: String,
        /// True if the same token cannot succeed later.
        is_final: bool,
    },
}

impl From<FrameError> for JoinError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Truncated => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

/// The time limit for the response of the state task: shorter than `JOIN_TIMEOUT`, so that the client gets a
/// response.
const STATE_TASK_TIMEOUT: Duration = Duration::from_secs(8);

/// The time limit of a join, at either end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
