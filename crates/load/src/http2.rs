//! HTTP/2 with prior knowledge, and gRPC over it: several requests under way on each connection.

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

/// The requests of a plan, as they are sent.
#[derive(Debug, Clone)]
pub(crate) struct Requests(Rc<[Request]>);

impl Requests {
    /// Makes all requests.
    ///
    /// # Errors
    /// The first that would not be valid.
    pub(crate) fn new(plan: &Plan) -> Result<Self, InvalidPlan> {
        let requests = plan.targets.iter().map(|target| Request::new(target, plan.protocol));
        requests.collect::<Result<Rc<[Request]>, InvalidPlan>>().map(Self)
    }
}

/// The connections that several workers share, one for each address.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Whoever finds none opens one, while the others wait for it.
    senders: Vec<Mutex<Option<SendRequest<Bytes>>>>,
    /// What reads and writes the connections.
    drivers: RefCell<JoinSet<()>>,
}

impl Shared {
    pub(crate) fn new(places: usize) -> Self {
        let senders = (0..places).map(|_| Mutex::default()).collect();
        Self { senders, drivers: RefCell::default() }
    }

    /// A connection that takes requests.
    async fn lease<W: World>(
        &self,
        around: &Surroundings<W>,
        place: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        if around.reuse == Reuse::Fresh {
            return self.open(around, place).await;
        }
        let mut kept = self.senders[place].lock().await;
        if let Some(sender) = &mut *kept
            && is_open(sender).await
        {
            return Ok(sender.clone());
        }
        let sender = self.open(around, place).await?;
        *kept = Some(sender.clone());
        Ok(sender)
    }

    async fn open<W: World>(
        &self,
        around: &Surroundings<W>,
        place: usize,
    ) -> Result<SendRequest<Bytes>, ErrorKind> {
        let stream = Metered::new(around.connect(place).await?, Rc::clone(&around.meter));
        let (sender, driver) = handshake(stream).await?;
        let mut drivers = self.drivers.borrow_mut();
        while drivers.try_join_next().is_some() {}
        drivers.spawn_local(driver);
        Ok(sender)
    }
}

/// What one worker has: its place on shared connections.
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
        let deadline = Deadline::new(around.clock.instant(around.timeout));
        Self { requests: requests.clone(), shared: Rc::clone(shared), deadline }
    }

    /// Sends a request on the shared connection, or on a new one, and reads its response.
    pub(crate) async fn send<W: World>(
        &mut self,
        around: &Surroundings<W>,
        target: usize,
    ) -> Result<Answer, ErrorKind> {
        let request = &self.requests.0[target];
        let lease = timeout(around.timeout, self.shared.lease(around, around.place(target)));
        let sender = lease.await.map_err(|_| ErrorKind::ConnectTimeout)??;
        self.deadline.set(around.clock.instant(around.clock.now() + around.timeout));
        let deadline = &mut self.deadline;
        let mut answer = pin!(request.call(sender));
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Pending => deadline.poll(context).map(|()| Err(ErrorKind::Timeout)),
            done => done,
        })
        .await
    }
}

/// Whether a connection takes requests, as far as we have heard.
async fn is_open(sender: &mut SendRequest<Bytes>) -> bool {
    let ready = poll_fn(|context| Poll::Ready(sender.poll_ready(context))).await;
    !matches!(ready, Poll::Ready(Err(_)))
}

/// Begins HTTP/2 on a new connection.
async fn handshake<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: S,
) -> Result<(SendRequest<Bytes>, impl Future<Output = ()> + 'static), ErrorKind> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // Requests that time out are reset, however many: the connection is not to suffer.
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(None)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let opened = builder.handshake::<S, Bytes>(stream).await;
    let (sender, connection) = opened.map_err(|error| call::kind(&error))?;
    // Its error reaches every request that was under way.
    Ok((sender, async move { drop(connection.await) }))
}

/// Answers to that many requests that have timed out are recognised when they come after all.
const RESET_STREAMS_MAX: usize = 10_000;

/// The server is measured, not the flow control: room for most bodies.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
