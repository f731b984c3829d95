//! Sends requests over HTTP/2 with prior knowledge, and gRPC calls, with several requests in progress per connection.

mod call;
mod metered;
mod request;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::metered::MeteredStream;
use self::request::Http2Request;
use crate::deadline::Deadline;
use crate::environment::{Environment, ThreadContext};
use crate::error_kind::ErrorKind;
use crate::plan::{ConnectionReuse, InvalidPlan, LoadPlan};
use crate::report::ResponseStatus;

/// The prepared requests of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Http2Requests(Rc<[Http2Request]>);

impl Http2Requests {
    /// Prepares all requests.
    ///
    /// # Errors
    /// The first invalid request.
    pub(crate) fn new(plan: &LoadPlan) -> Result<Self, InvalidPlan> {
        let requests = plan.targets.iter().map(|target| Http2Request::new(target, plan.protocol));
        requests.collect::<Result<Rc<[Http2Request]>, InvalidPlan>>().map(Self)
    }
}

/// The connections that several workers share, one per address.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    /// The request sender of each connection, by address index; `None` before the first connection. A worker that finds
    /// no connection opens one, while the others wait for it.
    request_senders: Vec<Mutex<Option<SendRequest<Bytes>>>>,
    /// The tasks that read and write the connections.
    connection_tasks: RefCell<JoinSet<()>>,
}

impl SharedConnections {
    pub(crate) fn new(address_count: usize) -> Self {
        let request_senders = (0..address_count).map(|_| Mutex::default()).collect();
        Self { request_senders, connection_tasks: RefCell::default() }
    }

    /// Returns a connection that accepts requests: the shared one, or a new one.
    async fn checkout_connection<E: Environment>(
        &self,
        thread_context: &ThreadContext<E>,
        address_index: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        if thread_context.reuse == ConnectionReuse::Fresh {
            return self.open_connection(thread_context, address_index).await;
        }
        let mut sender_slot = self.request_senders[address_index].lock().await;
        if let Some(sender) = &mut *sender_slot
            && is_open(sender).await
        {
            return Ok(sender.clone());
        }
        let sender = self.open_connection(thread_context, address_index).await?;
        *sender_slot = Some(sender.clone());
        Ok(sender)
    }

    async fn open_connection<E: Environment>(
        &self,
        thread_context: &ThreadContext<E>,
        address_index: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        let stream = MeteredStream::new(
            thread_context.connect(address_index).await?,
            Rc::clone(&thread_context.byte_counters),
        );
        let (sender, connection_task) = start_http2(stream).await?;
        let mut connection_tasks = self.connection_tasks.borrow_mut();
        // Frees the tasks of closed connections.
        while connection_tasks.try_join_next().is_some() {}
        connection_tasks.spawn_local(connection_task);
        Ok(sender)
    }
}

/// The state of one worker on shared connections.
#[derive(Debug)]
pub(crate) struct Http2Streams {
    prepared_requests: Http2Requests,
    shared_connections: Rc<SharedConnections>,
    deadline: Deadline,
}

impl Http2Streams {
    pub(crate) fn new<E>(
        requests: &Http2Requests,
        shared_connections: &Rc<SharedConnections>,
        thread_context: &ThreadContext<E>,
    ) -> Self {
        let deadline = Deadline::new(thread_context.clock.to_instant(thread_context.timeout));
        Self {
            prepared_requests: requests.clone(),
            shared_connections: Rc::clone(shared_connections),
            deadline,
        }
    }

    /// Sends a request on the shared connection, or on a new one, and reads its response.
    pub(crate) async fn send_request<E: Environment>(
        &mut self,
        thread_context: &ThreadContext<E>,
        target_index: usize,
    ) -> Result<ResponseStatus, ErrorKind> {
        let request = &self.prepared_requests.0[target_index];
        let checkout = timeout(
            thread_context.timeout,
            self.shared_connections
                .checkout_connection(thread_context, thread_context.address_index(target_index)),
        );
        let sender = checkout.await.map_err(|_| ErrorKind::ConnectTimeout)??;
        self.deadline.postpone(
            thread_context.clock.to_instant(thread_context.clock.now() + thread_context.timeout),
        );
        let deadline = &mut self.deadline;
        let mut response = pin!(request.send_request(sender));
        poll_fn(|context| match response.as_mut().poll(context) {
            Poll::Pending => deadline.poll(context).map(|()| Err(ErrorKind::Timeout)),
            ready => ready,
        })
        .await
    }
}

/// True unless a connection is known to accept no more requests.
async fn is_open(sender: &mut SendRequest<Bytes>) -> bool {
    let readiness = poll_fn(|context| Poll::Ready(sender.poll_ready(context))).await;
    !matches!(readiness, Poll::Ready(Err(_)))
}

/// Starts HTTP/2 on a new connection.
async fn start_http2<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
) -> Result<(SendRequest<Bytes>, impl Future<Output = ()> + 'static), ErrorKind> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // Timed-out requests are reset, in any number, without closing the connection.
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(None)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let handshake = builder.handshake::<S, Bytes>(stream).await;
    let (sender, connection) = handshake.map_err(|error| call::classify_error(&error))?;
    // Every request in progress receives the connection's error.
    Ok((sender, async move { drop(connection.await) }))
}

/// The number of timed-out requests with late responses that are still recognized.
const MAX_RESET_STREAMS: usize = 10_000;

/// The receive window of a stream, large enough for most bodies: the server is measured, not flow control.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The receive window of all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
