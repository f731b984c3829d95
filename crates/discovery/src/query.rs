//! Sends operators' queries to proxies, over the discovery stream of each proxy.
//!
//! The length of a query's path, the size of its response and the time until the last byte are bounded. A
//! stream carries one query at a time, and a control plane has a bounded number of open queries. A response is
//! sent in parts between the other messages of the stream. A response that arrives after the deadline of its
//! query is dropped, because its ID belongs to no open query.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Sleep, timeout};

use crate::event::ConnectionId;
use crate::proto;

/// The open queries of a control plane, and the streams that carry them.
#[derive(Debug)]
pub struct Queries {
    streams: Mutex<BTreeMap<ConnectionId, mpsc::Sender<PendingQuery>>>,
    /// The ID of the next query.
    next_id: AtomicU64,
    /// A permit for each open query. It limits the memory for responses, which are buffered until they are
    /// complete.
    permits: Semaphore,
}

/// A query as a proxy receives it. The response is dropped if the stream ends first.
#[derive(Debug)]
pub struct Query {
    /// The path and query of an admin endpoint, such as `/connectivity?service=shop/stock`.
    pub path: String,
    /// The maximum size of the response.
    pub max_bytes: usize,
    /// The time after which the control plane drops the response.
    pub deadline: Duration,
    /// The sender of the response.
    pub reply: oneshot::Sender<QueryResponse>,
}

/// The response of a proxy, as from its admin endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryResponse {
    /// The HTTP status.
    pub status: u16,
    /// The complete body of the response.
    pub body: Vec<u8>,
}

/// The reason that a query has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The path is longer than [`MAX_PATH_BYTES`].
    #[error("the path is longer than {MAX_PATH_BYTES} bytes")]
    PathTooLong,
    /// The stream ended before the whole response arrived, or before the query was sent.
    #[error("the sidecar has disconnected")]
    Disconnected,
    /// The sidecar's release does not support queries.
    #[error(
        "the sidecar runs an earlier release that does not support queries of the control plane: restart it with this release"
    )]
    Unsupported,
    /// The query could not be sent in time, because too many other queries are in progress.
    #[error("too many queries are in progress: try again")]
    Busy,
    /// The deadline passed.
    #[error("the sidecar did not respond within {QUERY_DEADLINE:?}")]
    Timeout,
    /// The response is longer than [`MAX_RESPONSE_BYTES`].
    #[error("the response of the sidecar is larger than {MAX_RESPONSE_BYTES} bytes")]
    Oversized,
}

/// A query that waits for its stream.
#[derive(Debug)]
pub(crate) struct PendingQuery {
    path: String,
    reply: oneshot::Sender<Result<QueryResponse, QueryError>>,
}

impl Queries {
    /// Creates an empty registry. Query IDs count from `first_id`, a random number: a proxy may still send the
    /// response to a query of another control plane.
    #[must_use]
    pub fn new(first_id: u64) -> Self {
        Self {
            streams: Mutex::default(),
            next_id: AtomicU64::new(first_id),
            permits: Semaphore::new(MAX_QUERIES),
        }
    }

    /// Sends a query to the proxy of a connection and waits for the whole response.
    ///
    /// # Errors
    /// [`QueryError`] if the query is invalid, cannot be sent in time, or gets no complete response in time.
    pub async fn send_query(
        &self,
        connection: ConnectionId,
        path: String,
    ) -> Result<QueryResponse, QueryError> {
        if path.len() > MAX_PATH_BYTES {
            return Err(QueryError::PathTooLong);
        }
        let (reply, receiver) = oneshot::channel();
        let send_to_stream = async {
            let permit = self.permits.acquire().await.map_err(|_| QueryError::Busy)?;
            let stream = self.lock().get(&connection).cloned().ok_or(QueryError::Disconnected)?;
            let query = PendingQuery { path, reply };
            stream.send(query).await.map_err(|_| QueryError::Disconnected)?;
            Ok(permit)
        };
        let send_result = timeout(PERMIT_TIMEOUT, send_to_stream).await;
        let _permit = send_result.map_err(|_| QueryError::Busy)??;
        // The stream sends this query after its open query has ended, at the latest at its deadline.
        let response = timeout(QUERY_DEADLINE + STREAM_TIMEOUT, receiver).await;
        response.map_err(|_| QueryError::Busy)?.map_err(|_| QueryError::Disconnected)?
    }

    /// Opens the receiving end for one stream. `is_supported`: the proxy answers queries, according to its
    /// Hello.
    pub(crate) fn open_stream(
        self: &Arc<Self>,
        connection: ConnectionId,
        is_supported: bool,
    ) -> Box<StreamQueries> {
        // The channel holds one query. A further query waits in `send`.
        let (sender, receiver) = mpsc::channel(1);
        self.lock().insert(connection, sender);
        let queries = Arc::clone(self);
        Box::new(StreamQueries { queries, connection, is_supported, receiver, open_query: None })
    }

    /// Locks the streams. A thread that panicked while it held the lock left no half-written state.
    fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionId, mpsc::Sender<PendingQuery>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control plane's queries to the proxy of one stream. They fail when this object is dropped.
#[derive(Debug)]
pub(crate) struct StreamQueries {
    queries: Arc<Queries>,
    connection: ConnectionId,
    /// True if the proxy answers queries, according to its Hello.
    is_supported: bool,
    receiver: mpsc::Receiver<PendingQuery>,
    /// The query that waits for its response; `None` if the stream is free for the next query.
    open_query: Option<Box<OpenQuery>>,
}

/// The query that was sent to the proxy.
#[derive(Debug)]
struct OpenQuery {
    id: u64,
    deadline: Pin<Box<Sleep>>,
    /// The parts received so far.
    body: Vec<u8>,
    reply: oneshot::Sender<Result<QueryResponse, QueryError>>,
}

impl StreamQueries {
    /// Waits for the next query to send. An open query delays it until the query completes, or fails at its
    /// deadline. Cancel-safe.
    pub(crate) async fn next(&mut self) -> proto::Query {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<proto::Query> {
        loop {
            if let Some(open_query) = &mut self.open_query {
                ready!(open_query.deadline.as_mut().poll(context));
                self.finish_query(Err(QueryError::Timeout));
            }
            // The registry keeps a sender for the lifetime of this object.
            let Some(pending_query) = ready!(self.receiver.poll_recv(context)) else {
                return Poll::Pending;
            };
            if !self.is_supported {
                pending_query.reply.send(Err(QueryError::Unsupported)).ok();
                continue;
            }
            // The operator no longer waits for a response.
            if pending_query.reply.is_closed() {
                continue;
            }
            // Relaxed: an ID has to be unique, and orders no other memory access.
            let id = self.queries.next_id.fetch_add(1, Ordering::Relaxed);
            let deadline = Box::pin(tokio::time::sleep(QUERY_DEADLINE));
            let PendingQuery { path, reply } = pending_query;
            self.open_query = Some(Box::new(OpenQuery { id, deadline, body: Vec::new(), reply }));
            return Poll::Ready(proto::Query {
                id,
                path,
                max_bytes: MAX_RESPONSE_BYTES as u64,
                deadline_ms: u32::try_from(QUERY_DEADLINE.as_millis()).unwrap_or(u32::MAX),
            });
        }
    }

    /// Adds a part of a response. Returns true if the part belongs to the open query, and is the last part or
    /// has the maximum size: the cost of reading it is refunded to the proxy. Shorter parts are not refunded,
    /// because a response could consist of any number of them.
    pub(crate) fn receive_part(&mut self, wire: proto::QueryAnswer) -> bool {
        let Some(open_query) =
            self.open_query.as_mut().filter(|open_query| open_query.id == wire.id)
        else {
            return false;
        };
        if wire.part.is_empty() && !wire.last {
            return false;
        }
        if open_query.body.len().saturating_add(wire.part.len()) > MAX_RESPONSE_BYTES {
            self.finish_query(Err(QueryError::Oversized));
            return false;
        }
        open_query.body.extend_from_slice(&wire.part);
        let is_refundable = wire.last || wire.part.len() == MAX_PART_BYTES;
        if wire.last {
            let body = std::mem::take(&mut open_query.body);
            let status = u16::try_from(wire.status).unwrap_or_default();
            self.finish_query(match wire.oversized {
                true => Err(QueryError::Oversized),
                false => Ok(QueryResponse { status, body }),
            });
        }
        is_refundable
    }

    fn finish_query(&mut self, result: Result<QueryResponse, QueryError>) {
        if let Some(open_query) = self.open_query.take() {
            // The operator may no longer wait.
            open_query.reply.send(result).ok();
        }
    }
}

impl Drop for StreamQueries {
    fn drop(&mut self) {
        self.queries.lock().remove(&self.connection);
    }
}

/// A query at the proxy, until the whole response is sent.
#[derive(Debug)]
pub(crate) struct QueryInProgress {
    id: u64,
    max_bytes: usize,
    response_state: ResponseState,
}

/// The state of a response.
#[derive(Debug)]
enum ResponseState {
    /// The response is not complete yet.
    Waiting(oneshot::Receiver<QueryResponse>),
    /// The response, and the number of its bytes already sent.
    Sending(QueryResponse, usize),
}

impl QueryInProgress {
    /// Parses a query. Returns its state for the stream, and the query for the proxy's handler.
    pub(crate) fn parse_query(wire: proto::Query) -> (Self, Query) {
        let (reply, receiver) = oneshot::channel();
        let max_bytes =
            usize::try_from(wire.max_bytes).unwrap_or(usize::MAX).min(MAX_RESPONSE_BYTES);
        let deadline = Duration::from_millis(wire.deadline_ms.into()).min(QUERY_DEADLINE);
        let query = Query { path: wire.path, max_bytes, deadline, reply };
        (Self { id: wire.id, max_bytes, response_state: ResponseState::Waiting(receiver) }, query)
    }
}

/// Waits for the next part of the response to send; forever if no query is in progress. Cancel-safe.
pub(crate) async fn next_part(
    query_in_progress: &mut Option<Box<QueryInProgress>>,
) -> proto::QueryAnswer {
    let Some(query) = query_in_progress else { return std::future::pending().await };
    if let ResponseState::Waiting(receiver) = &mut query.response_state {
        let response = receiver.await.unwrap_or_else(|_| QueryResponse {
            status: 503,
            body: b"the sidecar does not accept queries now\n".to_vec(),
        });
        query.response_state = ResponseState::Sending(response, 0);
    }
    let (id, max_bytes) = (query.id, query.max_bytes);
    let ResponseState::Sending(response, sent_bytes) = &mut query.response_state else {
        return std::future::pending().await;
    };
    let oversized = response.body.len() > max_bytes;
    let remaining_body =
        response.body.get(*sent_bytes..).filter(|_| !oversized).unwrap_or_default();
    let part =
        remaining_body.get(..remaining_body.len().min(MAX_PART_BYTES)).unwrap_or_default().to_vec();
    let (status, last) = (response.status.into(), part.len() == remaining_body.len());
    *sent_bytes = sent_bytes.saturating_add(part.len());
    if last {
        *query_in_progress = None;
    }
    proto::QueryAnswer { id, status, part, last, oversized }
}

/// The maximum number of open queries of a control plane. Each may buffer a whole response.
const MAX_QUERIES: usize = 16;
/// The maximum length of a query's path.
pub const MAX_PATH_BYTES: usize = 2048;
/// The maximum size of a response: the configuration of a sidecar in a large mesh.
pub const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// The maximum size of a response part: other messages of the stream are sent between two parts.
const MAX_PART_BYTES: usize = 64 << 10;
/// The proxy's deadline for a response: for some queries a sidecar tries to reach endpoints.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum wait for a permit, and for the stream to take the query.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time added to the deadline of a query for the other query that the stream may have open.
const STREAM_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
