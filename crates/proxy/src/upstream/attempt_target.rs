//! Defines the target of one attempt to forward a request: an endpoint of the mesh, or the local application.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use leno_model::{EndpointId, Reason};

use super::cluster::{OutcomeGuard, UpstreamCluster};
use super::connect::{self, ConnectWait};
use super::pool::Http1Upstream;
use super::{Application, Checkout, TimedAttempt, Upstream};
use crate::worker::Worker;

/// The target of one attempt.
#[derive(Clone)]
pub(crate) enum AttemptTarget {
    /// The local application, or a server outside the mesh.
    Application(Rc<Application>),
    /// An endpoint of a service.
    Upstream(Rc<Upstream>),
}

impl AttemptTarget {
    /// Returns the ID of the endpoint; `None` for the application.
    pub(crate) fn endpoint_id(&self) -> Option<EndpointId> {
        match self {
            Self::Application(_) => None,
            Self::Upstream(upstream) => Some(upstream.endpoint.id.clone()),
        }
    }

    /// Returns the address of the application or endpoint.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Application(application) => application.address,
            Self::Upstream(upstream) => upstream.endpoint.address,
        }
    }

    /// Counts a request as in flight until the guard is dropped, and measures its latency from the pick; `None`
    /// for the application.
    pub(crate) fn start_timed_attempt(&self) -> Option<TimedAttempt> {
        match self {
            Self::Application(_) => None,
            Self::Upstream(upstream) => Some(upstream.start_timed_attempt()),
        }
    }

    /// Records the start of an attempt for circuit breakers and outlier detection; `None` for the application.
    /// Fails if a circuit breaker rejects the attempt.
    pub(crate) fn start_attempt(
        &self,
        cluster: &Rc<UpstreamCluster>,
    ) -> Result<Option<OutcomeGuard>, Reason> {
        match self {
            Self::Application(_) => Ok(None),
            Self::Upstream(upstream) => {
                cluster.start_attempt(upstream, Some(|counts| &counts.requests)).map(Some)
            }
        }
    }

    /// Checks out a connection for one request. `detected_http2`: the client uses HTTP/2 on a port without a
    /// declared protocol.
    pub(crate) async fn acquire(
        &self,
        worker: &Rc<Worker>,
        timed_attempt: Option<&TimedAttempt>,
        detected_http2: bool,
        wait: impl Into<ConnectWait>,
    ) -> Result<Checkout, Reason> {
        match self {
            Self::Application(application) => application.acquire(worker).await,
            // Boxed to keep the future small for other requests.
            Self::Upstream(upstream) if detected_http2 && upstream.is_unmeshed() => {
                let result = Box::pin(upstream.acquire_http2(worker, wait.into())).await;
                timed_attempt.into_iter().for_each(TimedAttempt::mark_connected);
                result
            }
            Self::Upstream(upstream) => upstream.acquire(worker, timed_attempt, wait).await,
        }
    }

    /// Updates the backoff of the endpoint with the outcome of an attempt.
    pub(crate) fn record_outcome(&self, worker: &Worker, outcome: Result<(), Reason>) {
        let Self::Upstream(upstream) = self else { return };
        match outcome {
            Ok(()) => upstream.clear_failures(),
            Err(reason) if connect::is_application_failure(reason) => upstream.back_off(worker),
            Err(_) => {}
        }
    }

    /// Checks out an HTTP/1.1 connection, for an upgrade at an HTTP/2 server without extended CONNECT.
    ///
    /// # Errors
    /// `unsupported` for a plaintext server, with which no other protocol is negotiated; otherwise the reason why
    /// the connection failed.
    pub(crate) async fn acquire_http1(
        &self,
        worker: &Rc<Worker>,
        timed_attempt: Option<&TimedAttempt>,
        wait: ConnectWait,
    ) -> Result<Checkout, Reason> {
        let result = match self {
            Self::Application(_) => return Err(Reason::Unsupported),
            Self::Upstream(upstream) if upstream.is_unmeshed() => return Err(Reason::Unsupported),
            Self::Upstream(upstream) => connect::acquire_tls_http1(upstream, worker, wait).await,
        };
        if let Some(timed_attempt) = timed_attempt {
            timed_attempt.mark_connected();
        }
        result
    }

    /// Checks out an HTTP/1.1 connection reserved for one client, if the upstream supports it.
    pub(crate) async fn acquire_exclusive(
        &self,
        worker: &Rc<Worker>,
        timed_attempt: Option<&TimedAttempt>,
        wait: ConnectWait,
    ) -> Result<Checkout, Reason> {
        let result = match self {
            Self::Application(application) => application.acquire_exclusive(worker).await,
            Self::Upstream(upstream) => connect::acquire_exclusive(upstream, worker, wait).await,
        };
        if let Some(timed_attempt) = timed_attempt {
            timed_attempt.mark_connected();
        }
        result
    }

    /// Returns a reusable connection to its pool.
    pub(crate) fn return_connection(&self, connection: Box<Http1Upstream>) {
        let now = Instant::now();
        match self {
            Self::Application(application) => application.http1_pool.put_back(connection, now),
            Self::Upstream(upstream) => upstream.http1_pool.put_back(connection, now),
        }
    }
}
