//! Calls of check services inside the mesh: over a link, like any client of the service.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use leno_model::{Reach, Reason, ServiceName};
use leno_telemetry::GrpcStatus;
use leno_traffic::outlier::Ending;
use leno_wire::http1::{Answers, Parsed, ResponseHead};
use leno_wire::link::StreamKind;

use super::outside::ATTEMPTS_MAX;
use super::{NoAnswer, Question};
use crate::error::lost_reason;
use crate::http::body::send_data;
use crate::http::grpc::{Call, message};
use crate::http::route::permitted_endpoints;
use crate::link::{Incoming, LinkHandle, LinkStream, ReceivedHead};
use crate::upstream::pick::pick_endpoint;
use crate::upstream::{Checkout, Wait};
use crate::worker::Worker;

/// Sends a check request, again if the other sidecar did not process it, for example because its link was
/// closed.
pub(super) async fn send_check(
    worker: &Rc<Worker>,
    at: (&ServiceName, u16),
    question: &Question,
) -> Result<Bytes, NoAnswer> {
    let mut attempts = 1;
    loop {
        match send_once(worker, at.0, at.1, question).await {
            Err(NoAnswer::Mesh(Reason::UpstreamRefused)) if attempts < ATTEMPTS_MAX => {
                attempts += 1
            }
            outcome => return outcome,
        }
    }
}

async fn send_once(
    worker: &Rc<Worker>,
    service: &ServiceName,
    number: u16,
    question: &Question,
) -> Result<Bytes, NoAnswer> {
    let max_wait = worker.config.limits.discovery_timeout;
    let (config, plan) = worker.world.with_service(service, max_wait).await?;
    if plan.view.reach == Reach::Denied {
        return Err(NoAnswer::Mesh(Reason::DeniedOutbound));
    }
    let port = plan.ports.get(&number).ok_or(Reason::UnknownService)?;
    // Check requests are never sent in plaintext.
    let priorities = permitted_endpoints(worker, port, None)?.with_sidecars();
    let cluster = worker.cluster_for(port.traffic_policy.as_ref(), port, config.version);
    let upstream = pick_endpoint(worker, &priorities, cluster.as_deref(), None, None)?;
    // The limits on requests to a service apply to check requests.
    let trial = match &cluster {
        None => None,
        Some(cluster) => Some(cluster.start_attempt(&upstream, Some(|it| &it.requests))?),
    };
    let host = format!("{}.{}:{number}", service.name, service.namespace);
    let _under_way = upstream.start_request();
    let outcome = match upstream.acquire(worker, None, Wait::Whole).await {
        Ok(Checkout::Link(link)) => exchange_messages(worker, &link, &host, question).await,
        // Check services of the mesh have a sidecar.
        Ok(Checkout::Http1(_) | Checkout::Http2(_)) => Err(NoAnswer::Mesh(Reason::Unsupported)),
        Err(reason) => Err(reason.into()),
    };
    if let Some(trial) = trial {
        trial.finish(
            worker,
            match &outcome {
                Ok(_) | Err(NoAnswer::Protocol(_) | NoAnswer::Unusable(_) | NoAnswer::Grpc(_)) => {
                    Ending::Answered { status: 200, grpc: None }
                }
                Err(NoAnswer::Status(status)) => Ending::Answered { status: *status, grpc: None },
                Err(NoAnswer::Mesh(reason)) => Ending::Broken(*reason),
                Err(NoAnswer::Late | NoAnswer::Unreachable(_)) => {
                    Ending::Broken(Reason::UpstreamReset)
                }
            },
        );
    }
    outcome
}

async fn exchange_messages(
    worker: &Worker,
    link: &LinkHandle,
    host: &str,
    question: &Question,
) -> Result<Bytes, NoAnswer> {
    let max_wait = worker.config.limits.connect_timeout;
    let uncongested = link.wait_uncongested(max_wait).await;
    uncongested.ok_or(Reason::ConnectTimeout)?.map_err(lost_reason)?;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/grpc\r\nte: trailers\r\n\
         grpc-timeout: {}\r\n\r\n",
        question.method,
        question.timeout_value()
    );
    let opened =
        link.open_stream(StreamKind::Http, false, |out| out.extend_from_slice(head.as_bytes()));
    let stream = opened.map_err(|_| Reason::UpstreamRefused)?;
    let sent = send_data(&stream, question.message.clone(), true, max_wait).await;
    sent.map_err(|_| Reason::UpstreamReset)?;
    read_response(&stream).await
}

/// Reads the response to its end. A rejection by the endpoint's sidecar is an error.
pub(crate) async fn read_response(stream: &LinkStream) -> Result<Bytes, NoAnswer> {
    let reported = Cell::new(None);
    let call = Call(&reported);
    let mut answer = BytesMut::new();
    loop {
        match stream.next().await.map_err(lost_reason)? {
            Incoming::Head { interim: true, .. } => {}
            Incoming::Head { head: bytes, rejected, end, .. } => {
                let mut head = ResponseHead::default();
                match head.parse(&bytes, Answers::Other) {
                    Ok(Parsed::Complete(_)) => {}
                    Ok(Parsed::Partial) | Err(_) => return Err(Reason::UpstreamMalformed.into()),
                }
                let received = ReceivedHead { bytes, rejected };
                if let Some(reason) = received.rejection_reason(&head) {
                    return Err(NoAnswer::Mesh(reason));
                }
                let bytes = received.bytes;
                if head.status != 200 {
                    return Err(NoAnswer::Status(head.status));
                }
                if end {
                    call.finish_response(&bytes, &head);
                    break;
                }
            }
            Incoming::Data { data, end } => {
                message::append_part(&mut answer, &data)?;
                if end {
                    break;
                }
            }
            Incoming::Trailers(section) => {
                call.record_trailers(&section);
                break;
            }
        }
    }
    match reported.get() {
        Some(GrpcStatus::Ok) => Ok(message::single_message(answer.freeze())?),
        Some(status) => Err(NoAnswer::Grpc(status.code().to_string())),
        None => Err(NoAnswer::Protocol("it has no grpc-status".to_owned())),
    }
}

impl From<Reason> for NoAnswer {
    fn from(reason: Reason) -> Self {
        Self::Mesh(reason)
    }
}
