//! HTTP/1.1 client: one request in progress per connection.

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

use self::exchange::Exchange;
use self::request::Request;
use self::response::Receiving;
use crate::deadline::Deadline;
use crate::error_kind::ErrorKind;
use crate::plan::{InvalidPlan, Plan, Reuse};
use crate::report::Answer;
use crate::world::{Surroundings, World};

/// The serialized requests of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Requests(Rc<[Request]>);

impl Requests {
    /// Serializes all requests.
    ///
    /// # Errors
    /// The first invalid request.
    pub(crate) fn new(plan: &Plan) -> Result<Self, InvalidPlan> {
        let requests = plan.targets.iter().map(|target| Request::new(target, plan.reuse));
        requests.collect::<Result<Rc<[Request]>, InvalidPlan>>().map(Self)
    }
}

/// The state of one worker: kept connections, one per address.
#[derive(Debug)]
pub(crate) struct Lines<S> {
    requests: Requests,
    kept: Vec<Option<S>>,
    /// A connection that the server is about to close.
    parting: Option<S>,
    receiving: Receiving,
    deadline: Deadline,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Lines<S> {
    pub(crate) fn new<W>(requests: &Requests, around: &Surroundings<W>) -> Self
    where
        W: World<Stream = S>,
    {
        Self {
            requests: requests.clone(),
            kept: (0..around.address_count()).map(|_| None).collect(),
            parting: None,
            receiving: Receiving::default(),
            deadline: Deadline::new(around.clock.to_instant(around.timeout)),
        }
    }

    /// Sends a request on the kept connection, or on a new one, and reads its response. The current time is
    /// `now`.
    pub(crate) async fn send_request<W>(
        &mut self,
        around: &Surroundings<W>,
        target: usize,
        now: Duration,
    ) -> Result<Answer, ErrorKind>
    where
        W: World<Stream = S>,
    {
        let place = around.address_index(target);
        let (mut stream, now) = match self.kept[place].take().and_then(take_if_idle) {
            Some(stream) => (stream, now),
            None => (around.connect(place).await?, around.clock.now()),
        };
        self.deadline.set(around.clock.to_instant(now + around.timeout));
        let deadline = &mut self.deadline;
        let request = &self.requests.0[target];
        let mut exchange = Exchange::new(&mut stream, request, &mut self.receiving);
        let received = poll_fn(|context| match exchange.poll(context, around) {
            Poll::Pending => deadline.poll(context).map(|()| Err(ErrorKind::Timeout)),
            done => done,
        });
        let received = received.await?;
        match around.reuse {
            Reuse::Keep if received.reusable => self.kept[place] = Some(stream),
            Reuse::Keep => {}
            Reuse::Fresh => self.parting = Some(stream),
        }
        Ok(Answer { status: received.status, grpc: None })
    }

    /// Waits until the server has closed a connection that is not reused. If the client always closed first,
    /// this machine would soon run out of ports.
    pub(crate) async fn wait_for_close<W>(&mut self, around: &Surroundings<W>)
    where
        W: World<Stream = S>,
    {
        let Some(mut stream) = self.parting.take() else {
            return;
        };
        let closed = poll_fn(|context| {
            let mut read_buffers = around.read_buffers.borrow_mut();
            loop {
                let mut buffer = ReadBuf::new(&mut read_buffers.buffer);
                match ready!(Pin::new(&mut stream).poll_read(context, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        });
        // Some servers do not close the connection as requested.
        drop(timeout(around.timeout.min(PARTING_MAX), closed).await);
    }
}

/// Returns a kept connection if it is still open and idle. Costs no system call unless there was an event on
/// it.
fn take_if_idle<S: AsyncRead + Unpin>(mut stream: S) -> Option<S> {
    let mut context = Context::from_waker(Waker::noop());
    let read = Pin::new(&mut stream).poll_read(&mut context, &mut ReadBuf::new(&mut [0]));
    read.is_pending().then_some(stream)
}

/// The timeout for a server to close a connection.
const PARTING_MAX: Duration = Duration::from_secs(1);
