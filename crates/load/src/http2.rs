//! HTTP/2 client with prior knowledge, and gRPC over it: several requests in progress per connection.

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

use self::metered::Metered;
use self::request::Request;
use crate::deadline::Deadline;
use crate::error_kind::ErrorKind;
use crate::plan::{InvalidPlan, Plan, Reuse};
use crate::report::Answer;
use crate::world::{Surroundings, World};

/// The prepared requests of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Requests(Rc<[Request]>);

impl Requests {
    /// Prepares all requests.
    ///
    /// # Errors
    /// The first invalid request.
    pub(crate) fn new(plan: &Plan) -> Result<Self, InvalidPlan> {
        let requests = plan.targets.iter().map(|target| Request::new(target, plan.protocol));
        requests.collect::<Result<Rc<[Request]>, InvalidPlan>>().map(Self)
    }
}

/// The connections that several workers share, one per address.
#[derive(Debug)]
pub(crate) struct Shared {
    /// A worker that finds no connection opens one, while the others wait for it.
    senders: Vec<Mutex<Option<SendRequest<Bytes>>>>,
    /// The tasks that read and write the connections.
    drivers: RefCell<JoinSet<()>>,
}

impl Shared {
    pub(crate) fn new(places: usize) -> Self {
        let senders = (0..places).map(|_| Mutex::default()).collect();
        Self { senders, drivers: RefCell::default() }
    }

    /// Returns a connection that accepts requests.
    async fn checkout_connection<W: World>(
        &self,
        around: &Surroundings<W>,
        place: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        if around.reuse == Reuse::Fresh {
            return self.open_connection(around, place).await;
        }
        let mut kept = self.senders[place].lock().await;
        if let Some(sender) = &mut *kept
            && is_open(sender).await
        {
            return Ok(sender.clone());
        }
        let sender = self.open_connection(around, place).await?;
        *kept = Some(sender.clone());
        Ok(sender)
    }

    async fn open_connection<W: World>(
        &self,
        around: &Surroundings<W>,
        place: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        let stream = Metered::new(around.connect(place).await?, Rc::clone(&around.meter));
        let (sender, driver) = start_http2(stream).await?;
        let mut drivers = self.drivers.borrow_mut();
        while drivers.try_join_next().is_some() {}
        drivers.spawn_local(driver);
        Ok(sender)
    }
}

/// The state of one worker on shared connections.
#[derive(Debug)]
pub(crate) struct Streams {
    requests: Requests,
    shared: Rc<Shared>,
    deadline: Deadline,
}

impl Streams {
    pub(crate) fn new<W>(
        requests: &Requests,
        shared: &Rc<Shared>,
        around: &Surroundings<W>,
    ) -> Self {
        let deadline = Deadline::new(around.clock.to_instant(around.timeout));
        Self { requests: requests.clone(), shared: Rc::clone(shared), deadline }
    }

    /// Sends a request on the shared connection, or on a new one, and reads its response.
    pub(crate) async fn send_request<W: World>(
        &mut self,
        around: &Surroundings<W>,
        target: usize,
    ) -> Result<Answer, ErrorKind> {
        let request = &self.requests.0[target];
        let lease = timeout(
            around.timeout,
            self.shared.checkout_connection(around, around.address_index(target)),
        );
        let sender = lease.await.map_err(|_| ErrorKind::ConnectTimeout)??;
        self.deadline.set(around.clock.to_instant(around.clock.now() + around.timeout));
        let deadline = &mut self.deadline;
        let mut answer = pin!(request.send_request(sender));
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Pending => deadline.poll(context).map(|()| Err(ErrorKind::Timeout)),
            done => done,
        })
        .await
    }
}

/// True if a connection accepts requests, as far as known.
async fn is_open(sender: &mut SendRequest<Bytes>) -> bool {
    let ready = poll_fn(|context| Poll::Ready(sender.poll_ready(context))).await;
    !matches!(ready, Poll::Ready(Err(_)))
}

/// Starts HTTP/2 on a new connection.
async fn start_http2<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
) -> Result<(SendRequest<Bytes>, impl Future<Output = ()> + 'static), ErrorKind> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // Timed-out requests are reset, in any number, without closing the connection.
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(None)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let opened = builder.handshake::<S, Bytes>(stream).await;
    let (sender, connection) = opened.map_err(|error| call::error_kind(&error))?;
    // Every request in progress receives the connection's error.
    Ok((sender, async move { drop(connection.await) }))
}

/// Late responses to so many timed-out requests are still recognized.
const RESET_STREAMS_MAX: usize = 10_000;

/// Large enough for most bodies: the server is measured, not flow control.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
