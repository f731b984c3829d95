//! Sends mirrored copies of requests in parallel with the requests. The number of copies in flight is bounded,
//! and their responses are discarded.

pub(crate) mod plain;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leno_model::{Reason, WeightedBackend};
use leno_telemetry::Count;
use leno_traffic::fault::is_in_share;
use leno_traffic::outlier::EndpointResult;
use leno_wire::http1::{ParseProgress, RequestKind, ResponseHead};
use leno_wire::link::StreamKind;

use super::body::{BodyPiece, send_link_data};
use super::route::{ResolvedRoute, permitted_endpoints};
use crate::config_store::ConfigSnapshot;
use crate::error::stream_error_reason;
use crate::link::{LinkHandle, LinkStream, ReceivedHead, ReceivedItem};
use crate::upstream::pick::pick_endpoint;
use crate::upstream::{Checkout, ConnectWait};
use crate::worker::Worker;

/// The copies of one request that are not sent yet: a head, and the backends that receive it.
pub(crate) struct PendingMirrors {
    worker: Rc<Worker>,
    config: Arc<ConfigSnapshot>,
    backends: Vec<WeightedBackend>,
    head: Bytes,
}

/// Selects the services that receive a copy of this request, by their percentages.
pub(crate) fn select_mirrors(
    worker: &Worker,
    resolved_route: &ResolvedRoute,
) -> Vec<WeightedBackend> {
    let mirrors = resolved_route.actions.iter().flat_map(|actions| &actions.mirrors);
    mirrors.filter(|mirror| is_in_share(mirror.weight, worker.random_number())).cloned().collect()
}

impl PendingMirrors {
    /// Creates the copies of a request with this head.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        config: &Arc<ConfigSnapshot>,
        backends: Vec<WeightedBackend>,
        head: BytesMut,
    ) -> Self {
        let (worker, config) = (worker.clone(), config.clone());
        Self { worker, config, backends, head: head.freeze() }
    }

    /// Sends the copies with this body. If `body` is `None`, because it is incomplete or too large to buffer,
    /// the copies are dropped.
    pub(crate) fn send_all(mut self, body: Option<Vec<BodyPiece>>) {
        for backend in std::mem::take(&mut self.backends) {
            let metrics = &self.worker.metrics;
            let Some(permit) = MirrorPermit::try_acquire(&self.worker).filter(|_| body.is_some())
            else {
                metrics.add(Count::MirrorsDropped, 1);
                continue;
            };
            let copy = MirroredRequest {
                worker: self.worker.clone(),
                config: self.config.clone(),
                backend,
                head: self.head.clone(),
                body: body.clone().unwrap_or_default(),
            };
            // The task is not aborted: it ends within `MAX_COPY_TIME`, and holds its permit until its end.
            tokio::task::spawn_local(async move {
                let worker = copy.worker.clone();
                let result = tokio::time::timeout(MAX_COPY_TIME, copy.send_copy()).await;
                worker.metrics.add(
                    match result {
                        Ok(Ok(())) => Count::MirrorsResponded,
                        Ok(Err(_)) | Err(_) => Count::MirrorsFailed,
                    },
                    1,
                );
                drop(permit);
            });
        }
    }
}

impl Drop for PendingMirrors {
    /// Counts the copies that were dropped because the request ended before its body was complete.
    fn drop(&mut self) {
        if !self.backends.is_empty() {
            self.worker.metrics.add(Count::MirrorsDropped, self.backends.len() as u64);
        }
    }
}

/// A permit for one copy in flight, held until dropped.
struct MirrorPermit(Rc<Cell<usize>>);

impl MirrorPermit {
    /// Returns a permit; `None` if too many copies are in flight.
    fn try_acquire(worker: &Worker) -> Option<Self> {
        let in_flight = worker.mirrors_in_flight.get();
        (in_flight < MAX_COPIES_IN_FLIGHT).then(|| {
            worker.mirrors_in_flight.set(in_flight + 1);
            Self(worker.mirrors_in_flight.clone())
        })
    }
}

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A copy of a request.
struct MirroredRequest {
    worker: Rc<Worker>,
    config: Arc<ConfigSnapshot>,
    backend: WeightedBackend,
    head: Bytes,
    body: Vec<BodyPiece>,
}

impl MirroredRequest {
    /// Sends the copy to an endpoint of its backend, and waits for the end of the response.
    async fn send_copy(self) -> Result<(), Reason> {
        let Self { worker, config, backend, head, body } = self;
        let service = config.compiled.service(&backend.service);
        let compiled_port =
            service.and_then(|compiled_service| compiled_service.ports.get(&backend.port));
        let compiled_port = compiled_port.ok_or(Reason::InvalidBackend)?;
        let priorities = permitted_endpoints(&worker, compiled_port, None)?;
        let cluster = worker.cluster_for(
            compiled_port.traffic_policy.as_ref(),
            compiled_port,
            config.version,
        );
        let upstream = pick_endpoint(&worker, &priorities, cluster.as_deref(), None, None)?;
        // A mesh member without links would need another framing.
        if upstream.uses_http1() && !upstream.is_unmeshed() {
            return Err(Reason::Unsupported);
        }
        // The limits on requests apply to copies, and the results of copies count for outlier detection.
        let outcome_guard = match &cluster {
            None => None,
            Some(cluster) => {
                Some(cluster.start_attempt(&upstream, Some(|counts| &counts.requests))?)
            }
        };
        let _in_flight = upstream.start_request();
        let acquisition = upstream.acquire(&worker, None, ConnectWait::Full);
        let checkout_result = match &cluster {
            None => acquisition.await,
            Some(cluster) => cluster.wait_for_connection(acquisition).await,
        };
        let outcome = match checkout_result {
            Ok(Checkout::Link(link)) => exchange_copy(&worker, &link, &head, body).await,
            Ok(Checkout::Http1(connection)) if upstream.is_unmeshed() => {
                plain::exchange_over_http1(&worker, &upstream, connection, head, body).await
            }
            Ok(Checkout::Http2(checkout)) if upstream.is_unmeshed() => {
                plain::exchange_over_http2(
                    &worker,
                    &upstream,
                    cluster.as_deref(),
                    checkout,
                    head,
                    body,
                )
                .await
            }
            // No request was sent, so the endpoint has not failed.
            Ok(Checkout::Http1(_) | Checkout::Http2(_)) => return Err(Reason::Unsupported),
            Err(reason) => Err(reason),
        };
        if let Some(outcome_guard) = outcome_guard {
            outcome_guard.finish(
                &worker,
                match outcome {
                    Ok(status) => EndpointResult::Response { status, grpc: None },
                    Err(reason) => EndpointResult::Failed(reason),
                },
            );
        }
        outcome.map(drop)
    }
}

/// Sends a copy on a link, and reads the response to its end. Returns its status.
async fn exchange_copy(
    worker: &Worker,
    link: &LinkHandle,
    head: &[u8],
    body: Vec<BodyPiece>,
) -> Result<u16, Reason> {
    let stream = send_buffered_request(worker, link, head, body).await?;
    discard_response(&stream).await
}

/// Sends a request with a buffered head and body.
pub(crate) async fn send_buffered_request(
    worker: &Worker,
    link: &LinkHandle,
    head: &[u8],
    body: Vec<BodyPiece>,
) -> Result<LinkStream, Reason> {
    let max_wait = worker.config.limits.connect_timeout;
    link.wait_uncongested(max_wait)
        .await
        .ok_or(Reason::ConnectTimeout)?
        .map_err(stream_error_reason)?;
    let stream = link
        .open_stream(StreamKind::Http, body.is_empty(), |out| out.extend_from_slice(head))
        .map_err(|_| Reason::UpstreamRefused)?;
    match send_body(&stream, body, max_wait).await {
        // A peer that responds early needs no more of the body (RFC 9112 §9.5).
        Err(_) if stream.has_more() => Ok(stream),
        result => result.map(|()| stream),
    }
}

/// Sends a buffered body on a stream of a link.
async fn send_body(
    stream: &LinkStream,
    body: Vec<BodyPiece>,
    max_wait: Duration,
) -> Result<(), Reason> {
    let mut remaining_pieces = body.len();
    for piece in body {
        remaining_pieces -= 1;
        match piece {
            BodyPiece::Data(data) => send_link_data(stream, data, remaining_pieces == 0, max_wait)
                .await
                .map_err(|_| Reason::UpstreamReset)?,
            BodyPiece::Trailers(trailers) => {
                stream.send_trailers(&trailers).map_err(stream_error_reason)?;
            }
        }
    }
    Ok(())
}

/// Reads a response to its end, at most [`MAX_RESPONSE_BYTES`], and returns its status. A rejection by the
/// endpoint's sidecar is an error.
pub(crate) async fn discard_response(stream: &LinkStream) -> Result<u16, Reason> {
    let (mut status, mut byte_count) = (0, 0_usize);
    while byte_count < MAX_RESPONSE_BYTES {
        match stream.next().await.map_err(stream_error_reason)? {
            ReceivedItem::Head { head: bytes, rejected: true, .. } => {
                return Err(parse_rejection(bytes));
            }
            ReceivedItem::Head { head, end, .. } => {
                status = parse_status(&head).ok_or(Reason::UpstreamMalformed)?;
                if end {
                    break;
                }
            }
            ReceivedItem::Data { end: true, .. } | ReceivedItem::Trailers(_) => break,
            ReceivedItem::Data { data, .. } => byte_count = byte_count.saturating_add(data.len()),
        }
    }
    Ok(status)
}

/// Returns the reason in the head of a response that the endpoint's sidecar wrote to reject the copy.
#[cold]
fn parse_rejection(bytes: Bytes) -> Reason {
    let mut head = ResponseHead::default();
    let received_head = ReceivedHead { bytes, rejected: true };
    match head.parse(&received_head.bytes, RequestKind::Other) {
        Ok(ParseProgress::Complete(_)) => received_head.rejection_reason(&head),
        Ok(ParseProgress::Partial) | Err(_) => None,
    }
    .unwrap_or(Reason::UpstreamMalformed)
}

/// Returns the status of an HTTP/1.1 head; no other part of it is parsed.
fn parse_status(head: &[u8]) -> Option<u16> {
    let status = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

/// The maximum number of copies in flight from one data thread; further copies are dropped.
const MAX_COPIES_IN_FLIGHT: usize = 64;
/// The time limit of a copy, including its response.
const MAX_COPY_TIME: Duration = Duration::from_secs(15);
/// The maximum number of response bytes that are read; after them the stream is reset.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
