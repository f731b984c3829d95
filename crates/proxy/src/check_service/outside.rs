//! Sends check requests to check services outside the mesh, over a few HTTP/2 connections shared by one thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::header::{CONTENT_TYPE, HeaderMap, TE};
use http::{Request, Version};
use leno_model::{AddressClass, Reason, Scheme, Server};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{CheckCall, CheckError};
use crate::http::grpc::message;
use crate::http2::client::{Http2Checkout, Http2Pool, connect_and_handshake, is_unprocessed};
use crate::io::{ByteStream, Io};
use crate::worker::Worker;

/// The connections of one thread to one check service.
#[derive(Default)]
pub(super) struct CheckServiceConnections {
    pool: Http2Pool,
    /// True while a task opens another connection.
    is_connecting: Cell<bool>,
    /// The error of the last connection attempt.
    last_error: RefCell<Option<CheckError>>,
    /// Wakes the requests that wait for the end of a connection attempt.
    attempt_ended: Notify,
    /// The number of consecutive requests that timed out.
    consecutive_timeouts: Cell<u32>,
}

/// The failure of one attempt to call a check service.
enum FailedCall {
    /// The server did not process the request (RFC 9113 §6.8 and §8.7), which may be sent again. `is_reset` is
    /// true if the server reset the stream.
    Unprocessed { checkout: Http2Checkout, is_reset: bool, error: CheckError },
    /// The server may have processed the request.
    Final(CheckError),
}

impl From<CheckError> for FailedCall {
    fn from(error: CheckError) -> Self {
        Self::Final(error)
    }
}

impl CheckServiceConnections {
    /// Sends a check request, and repeats it if the server did not process it: at most [`MAX_ATTEMPTS`] times while
    /// the server processes no other requests either.
    pub(super) async fn send_check(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
        call: &CheckCall,
    ) -> Result<Bytes, CheckError> {
        let mut attempts = 1;
        loop {
            let (checkout, is_reset, error) = match self.send_once(worker, server, call).await {
                Ok(response) => return Ok(response),
                Err(FailedCall::Final(error)) => return Err(error),
                Err(FailedCall::Unprocessed { checkout, is_reset, error }) => {
                    (checkout, is_reset, error)
                }
            };
            if !checkout.wait_for_progress(is_reset).await {
                if attempts == MAX_ATTEMPTS {
                    return Err(error);
                }
                attempts += 1;
            }
        }
    }

    /// Makes one attempt: sends the request on an open or new connection, and returns the message of the response.
    async fn send_once(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
        call: &CheckCall,
    ) -> Result<Bytes, FailedCall> {
        let mut checkout = self.acquire(worker, server).await?;
        let request = Request::post(format!("{server}{}", call.method))
            .version(Version::HTTP_2)
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header("grpc-timeout", call.grpc_timeout())
            .body(())
            .map_err(protocol_error)?;
        let (response, mut stream) = match checkout.open_stream(request, false) {
            Ok(stream) => stream,
            Err(reason) => {
                return Err(FailedCall::Unprocessed {
                    checkout,
                    is_reset: false,
                    error: reason.into(),
                });
            }
        };
        // If the server has ended the stream, the response reports it.
        drop(stream.send_data(call.message.clone(), true));
        let response = match response.await {
            Ok(response) => response,
            Err(error) if is_unprocessed(&error) => {
                let is_reset = error.is_reset();
                return Err(FailedCall::Unprocessed {
                    checkout,
                    is_reset,
                    error: protocol_error(error),
                });
            }
            Err(error) => return Err(protocol_error(error).into()),
        };
        checkout.record_processed();
        self.consecutive_timeouts.set(0);
        let (head, mut body) = response.into_parts();
        if !head.status.is_success() {
            return Err(CheckError::Status(head.status.as_u16()).into());
        }
        // The gRPC status follows the message in the trailers. Without a message it is in the head (trailers-only).
        let mut message_bytes = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(protocol_error)?;
            body.flow_control().release_capacity(chunk.len()).map_err(protocol_error)?;
            message::append_part(&mut message_bytes, &chunk).map_err(CheckError::from)?;
        }
        let trailers = body.trailers().await.map_err(protocol_error)?.unwrap_or_default();
        match read_grpc_status(&trailers).or_else(|| read_grpc_status(&head.headers)).as_deref() {
            Some("0") => {
                Ok(message::parse_single_message(message_bytes.freeze())
                    .map_err(CheckError::from)?)
            }
            Some(status) => Err(CheckError::Grpc(status.to_owned()).into()),
            None => Err(CheckError::Protocol("it has no grpc-status".to_owned()).into()),
        }
    }

    /// Records that a request timed out. After [`MAX_CONSECUTIVE_TIMEOUTS`] the connections may be broken,
    /// so later requests use new ones.
    pub(super) fn record_timeout(&self) {
        let consecutive_timeouts = self.consecutive_timeouts.get().saturating_add(1);
        self.consecutive_timeouts.set(consecutive_timeouts);
        if consecutive_timeouts >= MAX_CONSECUTIVE_TIMEOUTS {
            self.consecutive_timeouts.set(0);
            self.pool.clear();
        }
    }

    /// Returns a connection with room for one stream. If all open connections are full, a separate task opens
    /// another one, so that the next request finds it open even if this one times out. Free streams of open
    /// connections are used as soon as available, also while no other connection can be opened: a server may
    /// accept only a few.
    async fn acquire(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
    ) -> Result<Http2Checkout, CheckError> {
        loop {
            if let Some(checkout) = self.pool.wait_for_room().await {
                return Ok(checkout);
            }
            let attempt_ended = self.attempt_ended.notified();
            tokio::pin!(attempt_ended);
            attempt_ended.as_mut().enable();
            if !self.is_connecting.replace(true) {
                // The task ends within the connect timeout, with or without a connection.
                tokio::task::spawn_local(
                    self.clone().open_connection(worker.clone(), server.clone()),
                );
            }
            tokio::select! {
                biased;
                () = attempt_ended => {}
                Some(checkout) = self.pool.wait_for_room_on_open() => return Ok(checkout),
            }
            // Without an error the attempt opened a connection, which the next turn of the loop tries.
            let Some(error) = self.last_error.borrow().clone() else { continue };
            if !self.pool.is_open() {
                return Err(error);
            }
            if let Some(checkout) = self.pool.wait_for_room_on_open().await {
                return Ok(checkout);
            }
        }
    }

    /// Opens a connection and adds it to the pool, or stores the error. Wakes the waiting requests in both cases.
    async fn open_connection(self: Rc<Self>, worker: Rc<Worker>, server: Server) {
        let max_wait = worker.config.limits.connect_timeout;
        let connection = timeout(max_wait, connect(&worker, &server)).await;
        let error = match connection.unwrap_or(Err(CheckError::Timeout)) {
            Ok(sender) => {
                self.pool.add_connection(sender, None);
                None
            }
            Err(error) => Some(error),
        };
        self.last_error.replace(error);
        self.is_connecting.set(false);
        self.attempt_ended.notify_waiters();
    }
}

/// Connects to a check service, over TLS if its address requires it.
async fn connect(worker: &Worker, server: &Server) -> Result<SendRequest<Bytes>, CheckError> {
    // The server is named by a rule of a namespace; it must not be a cloud metadata service.
    let is_permitted = |address| AddressClass::from_address(address) != AddressClass::Special;
    let connector = &worker.config.interception;
    let open = async || -> Result<_, CheckError> {
        let tcp = leno_outside::connect_permitted(server, connector, is_permitted).await;
        let tcp = tcp.map_err(|error| CheckError::Unreachable(error.to_string()))?;
        let stream = match server.scheme {
            Scheme::Http => ByteStream::Plain(tcp),
            Scheme::Https => {
                let tls_session =
                    worker.check_services.tls_sessions.open_session(server, b"h2", tcp).await;
                let tls_session =
                    tls_session.map_err(|error| CheckError::Unreachable(error.to_string()))?;
                ByteStream::Client(Box::new(tls_session))
            }
        };
        Ok((Io::new(stream), ()))
    };
    connect_and_handshake(open).await.map_err(|error| match error {
        CheckError::Mesh(Reason::ConnectFailed) => {
            CheckError::Unreachable("it closes connections before a request".to_owned())
        }
        CheckError::Mesh(_) => CheckError::Unreachable("it does not support HTTP/2".to_owned()),
        error => error,
    })
}

/// Reads `grpc-status` from headers or trailers, truncated to [`MAX_STATUS_CHARACTERS`]. A status that is not ASCII
/// counts as 2 (`UNKNOWN`). Returns `None` without the field.
fn read_grpc_status(fields: &HeaderMap) -> Option<String> {
    let status = fields.get("grpc-status")?;
    Some(status.to_str().unwrap_or("2").chars().take(MAX_STATUS_CHARACTERS).collect())
}

fn protocol_error(error: impl std::fmt::Display) -> CheckError {
    CheckError::Protocol(error.to_string())
}

/// The maximum number of attempts to send a request to a server that processes neither this request nor others.
pub(super) const MAX_ATTEMPTS: u32 = 3;
/// The number of consecutive timeouts after which requests use new connections.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 8;
/// The maximum number of characters of a gRPC status that is reported; valid statuses have at most two digits.
const MAX_STATUS_CHARACTERS: usize = 8;
