//! Operators' queries to proxies, over the discovery stream of each proxy.
//!
//! Each query is bounded: its path, the bytes of its response and the time until the last byte. A stream
//! carries one query at a time, and a control plane has a bounded number of open queries. A response is sent in
//! parts between the other messages of the stream. A late response has the number of no open query and is
//! dropped.

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
    /// The number of the next query.
    next: AtomicU64,
    /// A permit for each open query: responses are buffered until they are complete.
    places: Semaphore,
}

/// A query as a proxy receives it. The response is dropped if the stream ends first.
#[derive(Debug)]
pub struct Query {
    /// The path and query of an admin page, such as `/connectivity?service=shop/stock`.
    pub path: String,
    /// The maximum size of the response.
    pub bytes_max: usize,
    /// The time after which the control plane drops the response.
    pub deadline: Duration,
    /// The sender of the response.
    pub answer: oneshot::Sender<QueryResponse>,
}

/// The response of a proxy, as from its admin page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryResponse {
    /// The HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
}

/// The reason that a query has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The path is too long.
    #[error("the path is longer than {PATH_BYTES_MAX} bytes")]
    Path,
    /// The stream ended before the whole response arrived, or before the query was sent.
    #[error("the sidecar has disconnected")]
    Disconnected,
    /// The sidecar's release does not support queries.
    #[error(
        "the sidecar runs an earlier release that does not support queries of the control plane: restart it with this release"
    )]
    Unsupported,
    /// Other queries took all the time.
    #[error("too many queries are in progress: try again")]
    Busy,
    /// The deadline passed.
    #[error("the sidecar did not respond within {QUERY_DEADLINE:?}")]
    Timeout,
    /// The response is too long.
    #[error("the response of the sidecar is larger than {ANSWER_BYTES_MAX} bytes")]
    Oversized,
}

/// A query that waits for its stream.
#[derive(Debug)]
pub(crate) struct PendingQuery {
    path: String,
    answer: oneshot::Sender<Result<QueryResponse, QueryError>>,
}

impl Queries {
    /// Creates an empty registry. Numbers count from `first`, a random number: a proxy may still send the
    /// response to a query of another control plane.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self {
            streams: Mutex::default(),
            next: AtomicU64::new(first),
            places: Semaphore::new(QUERIES_MAX),
        }
    }

    /// Sends a query to the proxy of a connection and waits for the whole response.
    ///
    /// # Errors
    /// [`QueryError`].
    pub async fn send_query(
        &self,
        connection: ConnectionId,
        path: String,
    ) -> Result<QueryResponse, QueryError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(QueryError::Path);
        }
        let (answer, answered) = oneshot::channel();
        let sent = async {
            let place = self.places.acquire().await.map_err(|_| QueryError::Busy)?;
            let stream = self.lock().get(&connection).cloned().ok_or(QueryError::Disconnected)?;
            let query = PendingQuery { path, answer };
            stream.send(query).await.map_err(|_| QueryError::Disconnected)?;
            Ok(place)
        };
        let sent = timeout(PLACE_WAIT, sent).await;
        let _place = sent.map_err(|_| QueryError::Busy)??;
        // The stream takes this query after its open one. Each ends at its deadline.
        let answered = timeout(QUERY_DEADLINE + ANSWER_GRACE, answered).await;
        answered.map_err(|_| QueryError::Busy)?.map_err(|_| QueryError::Disconnected)?
    }

    /// Opens the receiving end for one stream.
    pub(crate) fn open_stream(
        self: &Arc<Self>,
        connection: ConnectionId,
        is_supported: bool,
    ) -> Box<StreamQueries> {
        // The channel has no room for a queue: a second query waits in `send` for its turn.
        let (sender, intake) = mpsc::channel(1);
        self.lock().insert(connection, sender);
        let all = Arc::clone(self);
        Box::new(StreamQueries { all, connection, is_supported, intake, open: None })
    }

    /// Locks the streams. A thread that panicked while it held the lock left no half-written state.
    fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionId, mpsc::Sender<PendingQuery>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queries of one stream at the control plane. Queries fail when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamQueries {
    all: Arc<Queries>,
    connection: ConnectionId,
    is_supported: bool,
    intake: mpsc::Receiver<PendingQuery>,
    open: Option<Box<OpenQuery>>,
}

/// The query that the proxy is answering.
#[derive(Debug)]
struct OpenQuery {
    id: u64,
    deadline: Pin<Box<Sleep>>,
    /// The parts received so far.
    body: Vec<u8>,
    answer: oneshot::Sender<Result<QueryResponse, QueryError>>,
}

impl StreamQueries {
    /// The next query to send. Drops the open one at its deadline. Cancel-safe.
    pub(crate) async fn next(&mut self) -> proto::Query {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<proto::Query> {
        loop {
            if let Some(open) = &mut self.open {
                ready!(open.deadline.as_mut().poll(context));
                self.finish_query(Err(QueryError::Timeout));
            }
            // The registry keeps a sender for the lifetime of this object.
            let Some(pending) = ready!(self.intake.poll_recv(context)) else {
                return Poll::Pending;
            };
            if !self.is_supported {
                pending.answer.send(Err(QueryError::Unsupported)).ok();
                continue;
            }
            // The operator is gone and needs no response.
            if pending.answer.is_closed() {
                continue;
            }
            let id = self.all.next.fetch_add(1, Ordering::Relaxed);
            let deadline = Box::pin(tokio::time::sleep(QUERY_DEADLINE));
            let PendingQuery { path, answer } = pending;
            self.open = Some(Box::new(OpenQuery { id, deadline, body: Vec::new(), answer }));
            return Poll::Ready(proto::Query {
                id,
                path,
                bytes_max: ANSWER_BYTES_MAX as u64,
                deadline_ms: u32::try_from(QUERY_DEADLINE.as_millis()).unwrap_or(u32::MAX),
            });
        }
    }

    /// Adds a part of a response. True if the control plane requested it and it is the last one or has the full
    /// size: it is not charged to the proxy's budget then. Short parts would allow any number of messages.
    pub(crate) fn receive_part(&mut self, part: proto::QueryAnswer) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.id == part.id) else { return false };
        if part.part.is_empty() && !part.last {
            return false;
        }
        if open.body.len().saturating_add(part.part.len()) > ANSWER_BYTES_MAX {
            self.finish_query(Err(QueryError::Oversized));
            return false;
        }
        open.body.extend_from_slice(&part.part);
        let is_free = part.last || part.part.len() == PART_BYTES_MAX;
        if part.last {
            let body = std::mem::take(&mut open.body);
            let status = u16::try_from(part.status).unwrap_or_default();
            self.finish_query(match part.oversized {
                true => Err(QueryError::Oversized),
                false => Ok(QueryResponse { status, body }),
            });
        }
        is_free
    }

    fn finish_query(&mut self, result: Result<QueryResponse, QueryError>) {
        if let Some(open) = self.open.take() {
            // The operator may be gone.
            open.answer.send(result).ok();
        }
    }
}

impl Drop for StreamQueries {
    fn drop(&mut self) {
        self.all.lock().remove(&self.connection);
    }
}

/// The proxy's state of the query that it is answering.
#[derive(Debug)]
pub(crate) struct QueryInProgress {
    id: u64,
    bytes_max: usize,
    state: AnsweringState,
}

#[derive(Debug)]
enum AnsweringState {
    Waiting(oneshot::Receiver<QueryResponse>),
    /// The response, and the number of its bytes already sent.
    Sending(QueryResponse, usize),
}

impl QueryInProgress {
    /// Parses a query. The control plane sends the next one only after it dropped this one.
    pub(crate) fn begin_query(wire: proto::Query) -> (Self, Query) {
        let (answer, receiver) = oneshot::channel();
        let bytes_max = usize::try_from(wire.bytes_max).unwrap_or(usize::MAX).min(ANSWER_BYTES_MAX);
        let deadline = Duration::from_millis(wire.deadline_ms.into()).min(QUERY_DEADLINE);
        let query = Query { path: wire.path, bytes_max, deadline, answer };
        (Self { id: wire.id, bytes_max, state: AnsweringState::Waiting(receiver) }, query)
    }
}

/// The next part of the response; pending while there is none. Cancel-safe.
pub(crate) async fn next_part(answering: &mut Option<Box<QueryInProgress>>) -> proto::QueryAnswer {
    let Some(open) = answering else { return std::future::pending().await };
    if let AnsweringState::Waiting(receiver) = &mut open.state {
        let answer = receiver.await.unwrap_or_else(|_| QueryResponse {
            status: 503,
            body: b"the sidecar does not accept queries now\n".to_vec(),
        });
        open.state = AnsweringState::Sending(answer, 0);
    }
    let (id, bytes_max) = (open.id, open.bytes_max);
    let AnsweringState::Sending(answer, sent) = &mut open.state else {
        return std::future::pending().await;
    };
    let oversized = answer.body.len() > bytes_max;
    let rest = answer.body.get(*sent..).filter(|_| !oversized).unwrap_or_default();
    let part = rest.get(..rest.len().min(PART_BYTES_MAX)).unwrap_or_default().to_vec();
    let (status, last) = (answer.status.into(), part.len() == rest.len());
    *sent = sent.saturating_add(part.len());
    if last {
        *answering = None;
    }
    proto::QueryAnswer { id, status, part, last, oversized }
}

/// The maximum number of open queries of a control plane. Each may buffer a whole response.
const QUERIES_MAX: usize = 16;
/// The maximum length of a query's path.
pub const PATH_BYTES_MAX: usize = 2048;
/// The maximum response: the configuration of a sidecar in a large mesh.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The maximum size of a response part: other messages of the stream are sent between two parts.
const PART_BYTES_MAX: usize = 64 << 10;
/// The proxy's deadline for a response: for some queries a sidecar tries to reach endpoints.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum wait for a permit.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// The maximum wait for another query of the same stream.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
