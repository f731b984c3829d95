//! Copies of requests for other services: sent beside the request, bounded, their answers unread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leno_model::{Reason, WeightedBackend};
use leno_telemetry::Count;
use leno_traffic::fault::is_drawn;
use leno_wire::link::StreamKind;

use super::body::{Piece, send};
use super::route::{Bound, tagged};
use crate::error::lost_reason;
use crate::link::{Incoming, LinkStream};
use crate::upstream::Lease;
use crate::upstream::pick::pick;
use crate::worker::Worker;
use crate::world::Scene;

/// Copies of one request, on their way or waiting for its body.
pub(crate) struct Copies {
    worker: Rc<Worker>,
    scene: Arc<Scene>,
    to: Vec<WeightedBackend>,
    head: Bytes,
}

/// The services that get a copy of this request, by chance.
pub(crate) fn drawn(worker: &Worker, bound: &Bound) -> Vec<WeightedBackend> {
    let mirrors = bound.actions.iter().flat_map(|actions| &actions.mirrors);
    mirrors.filter(|mirror| is_drawn(mirror.weight, worker.draw())).cloned().collect()
}

impl Copies {
    /// Copies of a request with this head.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        scene: &Arc<Scene>,
        to: Vec<WeightedBackend>,
        head: BytesMut,
    ) -> Self {
        let (worker, scene) = (worker.clone(), scene.clone());
        Self { worker, scene, to, head: head.freeze() }
    }

    /// Sends them with this body; `None` when it is not whole, or too large to be kept.
    pub(crate) fn send(self, body: Option<&[Piece]>) {
        for backend in self.to {
            let shard = &self.worker.shard;
            let Some(place) = Place::take(&self.worker).filter(|_| body.is_some()) else {
                shard.add(Count::MirrorsDropped, 1);
                continue;
            };
            let copy = Copy {
                worker: self.worker.clone(),
                scene: self.scene.clone(),
                backend,
                head: self.head.clone(),
                body: body.unwrap_or_default().to_vec(),
            };
            // It ends by itself, soon, and holds its place until then.
            tokio::task::spawn_local(async move {
                let worker = copy.worker.clone();
                let sent = tokio::time::timeout(TIME_MAX, copy.send()).await;
                worker.shard.add(
                    match sent {
                        Ok(Ok(())) => Count::MirrorsAnswered,
                        Ok(Err(_)) | Err(_) => Count::MirrorsFailed,
                    },
                    1,
                );
                drop(place);
            });
        }
    }
}

/// One of the few places for copies under way, until dropped.
struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(worker: &Worker) -> Option<Self> {
        let taken = worker.mirrors.get();
        (taken < UNDER_WAY_MAX).then(|| {
            worker.mirrors.set(taken + 1);
            Self(worker.mirrors.clone())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A copy of a request.
struct Copy {
    worker: Rc<Worker>,
    scene: Arc<Scene>,
    backend: WeightedBackend,
    head: Bytes,
    body: Vec<Piece>,
}

impl Copy {
    async fn send(self) -> Result<(), Reason> {
        let Self { worker, scene, backend, head, body } = self;
        let service = scene.plans.service(&backend.service);
        let port = service.and_then(|plan| plan.ports.get(&backend.port));
        let port = port.ok_or(Reason::InvalidBackend)?;
        let endpoints = tagged(&worker, port, None)?;
        let ward = worker.ward(port, scene.version);
        let upstream = pick(&worker, (&endpoints, ward.as_deref()), None, None)?;
        let _under_way = upstream.enter();
        // Copies are for members of the mesh: a foreign peer would need another framing.
        let Lease::Link(link) = upstream.lease(&worker).await? else {
            return Err(Reason::Unsupported);
        };
        let patience = worker.config.limits.connect_timeout;
        link.uncongested(patience).await.ok_or(Reason::ConnectTimeout)?.map_err(lost_reason)?;
        let stream = link
            .open(StreamKind::Http, body.is_empty(), |out| out.extend_from_slice(&head))
            .map_err(|_| Reason::UpstreamRefused)?;
        give(&stream, body, patience).await?;
        discard(&stream).await
    }
}

async fn give(stream: &LinkStream, body: Vec<Piece>, patience: Duration) -> Result<(), Reason> {
    let mut rest = body.len();
    for piece in body {
        rest -= 1;
        match piece {
            Piece::Data(data) => {
                send(stream, data, rest == 0, patience).await.map_err(|_| Reason::UpstreamReset)?
            }
            Piece::Trailers(trailers) => {
                stream.send_trailers(&trailers).map_err(lost_reason)?;
            }
        }
    }
    Ok(())
}

/// Reads an answer to its end, or as far as is worth it.
async fn discard(stream: &LinkStream) -> Result<(), Reason> {
    let mut bytes = 0_usize;
    while bytes < ANSWER_BYTES_MAX {
        match stream.next().await.map_err(lost_reason)? {
            Incoming::Head { end: true, .. }
            | Incoming::Data { end: true, .. }
            | Incoming::Trailers(_) => break,
            Incoming::Head { .. } => {}
            Incoming::Data { data, .. } => bytes = bytes.saturating_add(data.len()),
        }
    }
    Ok(())
}

/// Copies under way from one data thread: what is more is not sent.
const UNDER_WAY_MAX: usize = 64;
/// How long a copy may take, its answer included.
const TIME_MAX: Duration = Duration::from_secs(15);
/// How much of an answer is read; the rest is reset.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
