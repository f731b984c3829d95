//! Calls check services, which are external authorization and rate limit services. Each check of a request is one gRPC
//! call; the calls are limited in number, size and time.

mod inside;
mod outside;
mod protobuf;

pub(crate) mod authorization;
pub(crate) mod limit;

pub(crate) use inside::read_response;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use leno_model::{CheckService, CheckServiceAddress, Reason};
use leno_outside::TlsSessions;
use leno_telemetry::LogLimit;
use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::outside::CheckServiceConnections;
use crate::http::buffered_body::BufferMemory;
use crate::http::grpc::message::{self, MalformedMessage};
use crate::worker::Worker;

/// The check services that one thread has called, with their connections.
pub(crate) struct CheckServices {
    states: RefCell<FxHashMap<CheckServiceAddress, Rc<ServiceState>>>,
    /// Opens TLS sessions to services outside the mesh.
    tls_sessions: TlsSessions,
    /// The memory that buffered body prefixes use on this thread.
    pub(crate) buffered_bodies: Rc<BufferMemory>,
}

/// The state of one check service on this thread.
struct ServiceState {
    address: CheckServiceAddress,
    /// Permits for check requests in flight.
    permits: Semaphore,
    /// The connections to a service outside the mesh.
    connections: Rc<CheckServiceConnections>,
    /// True if the last call succeeded; used to log a failure once.
    is_healthy: Cell<bool>,
    /// Limits the log lines about a service that fails intermittently.
    log_limit: RefCell<LogLimit>,
}

/// The reason why a check request has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CheckError {
    /// The timeout has expired.
    #[error("it did not respond in time")]
    Timeout,
    /// The service cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// A request to a service inside the mesh failed for this reason.
    #[error("it cannot be reached: {}", .0.label())]
    Mesh(Reason),
    /// The service responded with this HTTP status.
    #[error("it responded with status {0}")]
    Status(u16),
    /// The service responded with this gRPC status.
    #[error("it responded with gRPC status {0}")]
    Grpc(String),
    /// The response is not a valid gRPC response.
    #[error("it does not support gRPC, or the connection failed: {0}")]
    Protocol(String),
    /// The response message cannot be decoded, or has unsupported contents.
    #[error("its response is invalid: {0}")]
    Unusable(String),
}

impl From<MalformedMessage> for CheckError {
    fn from(error: MalformedMessage) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl CheckServices {
    /// Creates the state without services. `roots`: the file of CA certificates for services outside the mesh;
    /// `None` uses the system's certificates.
    pub(crate) fn new(roots: Option<PathBuf>) -> Self {
        Self {
            states: RefCell::default(),
            tls_sessions: TlsSessions::new(roots),
            buffered_bodies: Rc::default(),
        }
    }

    /// Returns the state of a service; creates it on the first call.
    fn service_state(&self, address: &CheckServiceAddress) -> Rc<ServiceState> {
        let mut states = self.states.borrow_mut();
        if let Some(state) = states.get(address) {
            return state.clone();
        }
        // Drops all states, because it is not known which of them belong to removed rules. The next call to a service
        // creates its state again.
        if states.len() >= MAX_CHECK_SERVICES {
            states.clear();
        }
        let state = Rc::new(ServiceState {
            address: address.clone(),
            permits: Semaphore::new(MAX_CHECKS_IN_FLIGHT),
            connections: Rc::default(),
            is_healthy: Cell::new(true),
            log_limit: RefCell::default(),
        });
        states.insert(address.clone(), state.clone());
        state
    }
}

/// Sends a check request to a service, and waits for the response within the timeout of the service.
/// `parse_response` converts the response message.
pub(crate) async fn send_check<T>(
    worker: &Rc<Worker>,
    check_service: &CheckService,
    method: &'static str,
    message: Vec<u8>,
    parse_response: impl FnOnce(Bytes) -> Result<T, CheckError>,
) -> Result<T, CheckError> {
    let state = worker.check_services.service_state(&check_service.address);
    let call = CheckCall {
        method,
        message: message::add_prefix(&message),
        time_limit: check_service.timeout,
    };
    // The message may contain a body: do not keep two copies.
    drop(message);
    let exchange = async {
        // The semaphore is never closed, so this cannot fail.
        let permit = state.permits.acquire().await;
        let _permit = permit.map_err(|_| CheckError::Timeout)?;
        match &state.address {
            CheckServiceAddress::Service { service, port } => {
                inside::send_check(worker, service, *port, &call).await
            }
            CheckServiceAddress::External(server) => {
                state.connections.send_check(worker, server, &call).await
            }
        }
    };
    let response = match timeout(check_service.timeout, exchange).await {
        Ok(response) => response.and_then(parse_response),
        Err(_) => {
            state.connections.record_timeout();
            Err(CheckError::Timeout)
        }
    };
    state.record_response(&response);
    response
}

/// A check request, independent of the connection that carries it.
struct CheckCall {
    /// The path of the gRPC method.
    method: &'static str,
    /// The length-prefixed message.
    message: Bytes,
    /// The time limit for the response, which the service receives as `grpc-timeout`.
    time_limit: std::time::Duration,
}

impl CheckCall {
    /// Returns the value of the `grpc-timeout` header, in milliseconds.
    fn grpc_timeout(&self) -> String {
        format!("{}m", self.time_limit.as_millis().max(1))
    }
}

impl ServiceState {
    /// Records whether the service responded; logs when it stops responding and when it responds again.
    fn record_response<T>(&self, response: &Result<T, CheckError>) {
        if self.is_healthy.replace(response.is_ok()) == response.is_ok() {
            return;
        }
        let line = self.log_limit.borrow_mut().permit_line(Instant::now());
        let Some(suppressed) = line.map(|line| line.suppressed) else { return };
        match response {
            Err(error) => {
                tracing::warn!(check_service = %self.address, %error, suppressed, "check service does not respond; failed checks are counted");
            }
            Ok(_) => {
                tracing::info!(check_service = %self.address, suppressed, "check service responds again")
            }
        }
    }
}

/// The maximum number of check requests in flight from one data thread to one service. Further requests wait
/// within their timeout.
const MAX_CHECKS_IN_FLIGHT: usize = 256;
/// The maximum number of cached services: more than the policies of a workload refer to.
const MAX_CHECK_SERVICES: usize = 64;

#[cfg(test)]
mod tests;
