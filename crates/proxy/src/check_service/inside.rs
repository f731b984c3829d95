//! Sends check requests to check services inside the mesh, over links to the service's sidecars like other requests to
//! the service.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use leno_model::{ClientAuthorization, Reason, ServiceName};
use leno_telemetry::GrpcStatus;
use leno_traffic::outlier::EndpointResult;
use leno_wire::http1::{ParseProgress, RequestKind, ResponseHead};
use leno_wire::link::StreamKind;

use super::outside::MAX_ATTEMPTS;
use super::{CheckCall, CheckError};
use crate::error::stream_error_reason;
use crate::http::body::send_link_data;
use crate::http::grpc::{GrpcCall, message};
use crate::http::route::permitted_endpoints;
use crate::link::{LinkHandle, LinkStream, ReceivedHead, ReceivedItem};
use crate::upstream::pick::pick_endpoint;
use crate::upstream::{Checkout, ConnectWait};
use crate::worker::Worker;

/// Sends a check request, and repeats it if the other sidecar did not process it, for example because its link
/// was closed.
pub(super) async fn send_check(
    worker: &Rc<Worker>,
    service: &ServiceName,
    port: u16,
    call: &CheckCall,
) -> Result<Bytes, CheckError> {
    let mut attempts = 1;
    loop {
        match send_once(worker, service, port, call).await {
            Err(CheckError::Mesh(Reason::UpstreamRefused)) if attempts < MAX_ATTEMPTS => {
                attempts += 1
            }
            outcome => return outcome,
        }
    }
}

/// Sends a check request to one endpoint, and records the outcome for the outlier detection of its service.
async fn send_once(
    worker: &Rc<Worker>,
    service: &ServiceName,
    port_number: u16,
    call: &CheckCall,
) -> Result<Bytes, CheckError> {
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, compiled_service) = worker.config_store.with_service(service, max_wait).await?;
    if compiled_service.config.client_authorization == ClientAuthorization::Denied {
        return Err(CheckError::Mesh(Reason::DeniedOutbound));
    }
    let port = compiled_service.ports.get(&port_number).ok_or(Reason::UnknownService)?;
    // Check requests are never sent in plaintext.
    let priorities = permitted_endpoints(worker, port, None)?.with_sidecars();
    let cluster = worker.cluster_for(port.traffic_policy.as_ref(), port, config.version);
    let upstream = pick_endpoint(worker, &priorities, cluster.as_deref(), None, None)?;
    // The limits on requests to a service apply to check requests.
    let outcome_guard = match &cluster {
        None => None,
        Some(cluster) => {
            Some(cluster.start_attempt(&upstream, Some(|in_flight| &in_flight.requests))?)
        }
    };
    let host = format!("{}.{}:{port_number}", service.name, service.namespace);
    let _load_guard = upstream.start_request();
    let outcome = match upstream.acquire(worker, None, ConnectWait::Full).await {
        Ok(Checkout::Link(link)) => exchange_messages(worker, &link, &host, call).await,
        // Only endpoints with a sidecar were selected.
        Ok(Checkout::Http1(_) | Checkout::Http2(_)) => Err(CheckError::Mesh(Reason::Unsupported)),
        Err(reason) => Err(reason.into()),
    };
    if let Some(outcome_guard) = outcome_guard {
        outcome_guard.finish(
            worker,
            match &outcome {
                // The endpoint responded with 200, even if the gRPC call failed.
                Ok(_)
                | Err(CheckError::Protocol(_) | CheckError::Unusable(_) | CheckError::Grpc(_)) => {
                    EndpointResult::Response { status: 200, grpc: None }
                }
                Err(CheckError::Status(status)) => {
                    EndpointResult::Response { status: *status, grpc: None }
                }
                Err(CheckError::Mesh(reason)) => EndpointResult::Failed(*reason),
                Err(CheckError::Timeout | CheckError::Unreachable(_)) => {
                    EndpointResult::Failed(Reason::UpstreamReset)
                }
            },
        );
    }
    outcome
}

/// Sends the request over a link, and returns the message of the response.
async fn exchange_messages(
    worker: &Worker,
    link: &LinkHandle,
    host: &str,
    call: &CheckCall,
) -> Result<Bytes, CheckError> {
    let max_wait = worker.config.limits.connect_timeout;
    let uncongested = link.wait_uncongested(max_wait).await;
    uncongested.ok_or(Reason::ConnectTimeout)?.map_err(stream_error_reason)?;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/grpc\r\nte: trailers\r\n\
         grpc-timeout: {}\r\n\r\n",
        call.method,
        call.grpc_timeout()
    );
    let stream = link.open_stream(StreamKind::Http, false, |head_buffer| {
        head_buffer.extend_from_slice(head.as_bytes())
    });
    let stream = stream.map_err(|_| Reason::UpstreamRefused)?;
    let result = send_link_data(&stream, call.message.clone(), true, max_wait).await;
    result.map_err(|_| Reason::UpstreamReset)?;
    read_response(&stream).await
}

/// Reads the response to its end, and returns its gRPC message. A rejection by the endpoint's sidecar is an
/// error.
pub(crate) async fn read_response(stream: &LinkStream) -> Result<Bytes, CheckError> {
    let grpc_status = Cell::new(None);
    let call = GrpcCall(&grpc_status);
    let mut message_bytes = BytesMut::new();
    loop {
        match stream.next().await.map_err(stream_error_reason)? {
            // An interim response (1xx) contains no result.
            ReceivedItem::Head { interim: true, .. } => {}
            ReceivedItem::Head { head: bytes, rejected, end, .. } => {
                let mut head = ResponseHead::default();
                match head.parse(&bytes, RequestKind::Other) {
                    Ok(ParseProgress::Complete(_)) => {}
                    Ok(ParseProgress::Partial) | Err(_) => {
                        return Err(Reason::UpstreamMalformed.into());
                    }
                }
                let received_head = ReceivedHead { bytes, rejected };
                if let Some(reason) = received_head.rejection_reason(&head) {
                    return Err(CheckError::Mesh(reason));
                }
                let bytes = received_head.bytes;
                if head.status != 200 {
                    return Err(CheckError::Status(head.status));
                }
                // A response without a message has its gRPC status in the head (trailers-only).
                if end {
                    call.finish_response(&bytes, &head);
                    break;
                }
            }
            ReceivedItem::Data { data, end } => {
                message::append_part(&mut message_bytes, &data)?;
                if end {
                    break;
                }
            }
            ReceivedItem::Trailers(section) => {
                call.record_trailers(&section);
                break;
            }
        }
    }
    match grpc_status.get() {
        Some(GrpcStatus::Ok) => Ok(message::parse_single_message(message_bytes.freeze())?),
        Some(status) => Err(CheckError::Grpc(status.code().to_string())),
        None => Err(CheckError::Protocol("it has no grpc-status".to_owned())),
    }
}

impl From<Reason> for CheckError {
    fn from(reason: Reason) -> Self {
        Self::Mesh(reason)
    }
}
