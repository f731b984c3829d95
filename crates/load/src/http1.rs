//! Sends requests over HTTP/1.1, with one request in progress per connection.

mod exchange;
mod request;
mod response;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use self::exchange::Http1Exchange;
use self::request::SerializedRequest;
use self::response::ResponseReader;
use crate::deadline::Deadline;
use crate::environment::{Environment, ThreadContext};
use crate::error_kind::ErrorKind;
use crate::plan::{ConnectionReuse, InvalidPlan, LoadPlan};
use crate::report::ResponseStatus;

/// The serialized requests of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Http1Requests(Rc<[SerializedRequest]>);

impl Http1Requests {
    /// Serializes all requests.
    ///
    /// # Errors
    /// The first invalid request.
    pub(crate) fn new(plan: &LoadPlan) -> Result<Self, InvalidPlan> {
        let requests = plan.targets.iter().map(|target| SerializedRequest::new(target, plan.reuse));
        requests.collect::<Result<Rc<[SerializedRequest]>, InvalidPlan>>().map(Self)
    }
}

/// The state of one worker: idle connections, at most one per address.
#[derive(Debug)]
pub(crate) struct Http1Connections<S> {
    serialized_requests: Http1Requests,
    idle_connections: Vec<Option<S>>,
    /// A connection that the server is about to close.
    closing_connection: Option<S>,
    response_reader: ResponseReader,
    deadline: Deadline,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1Connections<S> {
    pub(crate) fn new<E>(requests: &Http1Requests, thread_context: &ThreadContext<E>) -> Self
    where
        E: Environment<Stream = S>,
    {
        Self {
            serialized_requests: requests.clone(),
            idle_connections: (0..thread_context.address_count()).map(|_| None).collect(),
            closing_connection: None,
            response_reader: ResponseReader::default(),
            deadline: Deadline::new(thread_context.clock.to_instant(thread_context.timeout)),
        }
    }

    /// Sends the request of a target on the idle connection, or on a new one, and reads its response. The current time
    /// is `now`.
    pub(crate) async fn send_request<E>(
        &mut self,
        thread_context: &ThreadContext<E>,
        target_index: usize,
        now: Duration,
    ) -> Result<ResponseStatus, ErrorKind>
    where
        E: Environment<Stream = S>,
    {
        let address_index = thread_context.address_index(target_index);
        let (mut stream, now) =
            match self.idle_connections[address_index].take().and_then(take_if_idle) {
                Some(stream) => (stream, now),
                None => (thread_context.connect(address_index).await?, thread_context.clock.now()),
            };
        self.deadline.postpone(thread_context.clock.to_instant(now + thread_context.timeout));
        let deadline = &mut self.deadline;
        let request = &self.serialized_requests.0[target_index];
        let mut exchange = Http1Exchange::new(&mut stream, request, &mut self.response_reader);
        let response = poll_fn(|context| match exchange.poll(context, thread_context) {
            Poll::Pending => deadline.poll(context).map(|()| Err(ErrorKind::Timeout)),
            ready => ready,
        });
        let response = response.await?;
        match thread_context.reuse {
            ConnectionReuse::Keep if response.can_reuse_connection => {
                self.idle_connections[address_index] = Some(stream)
            }
            // The server will close the connection, or more bytes than the response are in transit.
            ConnectionReuse::Keep => {}
            ConnectionReuse::Fresh => self.closing_connection = Some(stream),
        }
        Ok(ResponseStatus { status: response.status, grpc: None })
    }

    /// Waits until the server has closed a connection that is not reused. If the client always closed first,
    /// this machine would soon run out of ports.
    pub(crate) async fn wait_for_close<E>(&mut self, thread_context: &ThreadContext<E>)
    where
        E: Environment<Stream = S>,
    {
        let Some(mut stream) = self.closing_connection.take() else {
            return;
        };
        let closed = poll_fn(|context| {
            let mut read_buffers = thread_context.read_buffers.borrow_mut();
            loop {
                let mut buffer = ReadBuf::new(&mut read_buffers.read_buffer);
                match ready!(Pin::new(&mut stream).poll_read(context, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        });
        // Some servers do not close the connection as requested.
        drop(timeout(thread_context.timeout.min(MAX_CLOSE_WAIT), closed).await);
    }
}

/// Returns the connection if it is still open and the server has sent nothing. Costs no system call unless the runtime
/// has received an event for the connection.
fn take_if_idle<S: AsyncRead + Unpin>(mut stream: S) -> Option<S> {
    let mut context = Context::from_waker(Waker::noop());
    let read_result = Pin::new(&mut stream).poll_read(&mut context, &mut ReadBuf::new(&mut [0]));
    read_result.is_pending().then_some(stream)
}

/// The timeout for a server to close a connection.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(1);
