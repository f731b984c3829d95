//! Exporting spans: batches of what data threads saw, sent to a collector by the control thread.
//!
//! Everything is bounded: what waits ([`crate::seen::SPANS_MAX`]), what is sent at once
//! ([`BATCH_MAX`]), how long and how often that is tried. What does not fit is dropped and counted.

mod otlp;
mod post;
mod session;
mod source;
mod zipkin;

use std::sync::Arc;
use std::time::Duration;

use leno_model::{Collector, CollectorProtocol};
use leno_telemetry::{Count, Shard};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::post::{Failed, Parcel};
pub(crate) use self::session::Sessions;
use self::source::Source;
use crate::config::Config;
use crate::seen::Seen;
use crate::world::World;

/// Sends spans where the control plane says.
pub(crate) struct Exporter {
    config: Arc<Config>,
    world: Arc<World>,
    shard: Shard,
    sessions: Sessions,
}

impl Exporter {
    pub(crate) fn new(config: Arc<Config>, world: Arc<World>, shard: Shard) -> Self {
        let sessions = Sessions::new(config.collector_roots.clone());
        Self { config, world, shard, sessions }
    }

    /// Exports until all data threads are gone and what they left is told.
    pub(crate) async fn run(self, mut spans: mpsc::Receiver<Arc<Seen>>) {
        let mut batch = Vec::new();
        let mut is_well = true;
        while gather(&mut spans, &mut batch).await {
            let count = batch.len() as u64;
            let told = self.deliver(&batch).await;
            batch.clear();
            match told {
                Ok(refused) => {
                    self.shard.add(Count::SpansExported, count.saturating_sub(refused));
                    self.shard.add(Count::SpansRefused, refused.min(count));
                    if !std::mem::replace(&mut is_well, true) {
                        tracing::info!("the collector takes spans again");
                    }
                }
                // Nobody wants them any more.
                Err(Failed::Off) => is_well = true,
                Err(error) => {
                    self.shard.add(Count::SpansRefused, count);
                    // Once for a time of trouble: the metric tells how much is lost.
                    if std::mem::replace(&mut is_well, false) {
                        tracing::warn!(%error, "spans cannot be exported; they are dropped and counted");
                    }
                }
            }
        }
    }

    /// Sends a batch, again if that may help; tells how many spans the collector refused.
    async fn deliver(&self, batch: &[Arc<Seen>]) -> Result<u64, Failed> {
        let view = self.world.sights.view();
        let collector = view.as_ref().and_then(|view| view.tracing());
        // Tracing may have been turned off since.
        let Some(collector) = collector.map(|tracing| &tracing.collector) else {
            return Err(Failed::Off);
        };
        let parcel = self.parcel(collector, batch);
        let mut pause = PAUSE_FIRST;
        let mut tries = TRIES_MAX;
        loop {
            let posted =
                post::post(collector, &parcel, (&self.config.interception, &self.sessions));
            let outcome = timeout(SEND_MAX, posted).await.unwrap_or(Err(Failed::Late));
            tries -= 1;
            match outcome {
                Err(error) if error.may_pass() && tries > 0 => sleep(pause).await,
                outcome => return outcome,
            }
            pause *= 2;
        }
    }

    fn parcel(&self, collector: &Collector, batch: &[Arc<Seen>]) -> Parcel {
        let source = Source::of(&self.config.workload, self.world.scene().as_deref());
        match collector.protocol {
            CollectorProtocol::OtlpHttp | CollectorProtocol::OtlpGrpc => {
                Parcel { kind: "application/x-protobuf", bytes: otlp::encode(&source, batch) }
            }
            CollectorProtocol::Zipkin => {
                Parcel { kind: "application/json", bytes: zipkin::encode(&source, batch) }
            }
        }
    }
}

/// Waits for a span, and a moment for more. False: there will be none.
async fn gather(spans: &mut mpsc::Receiver<Arc<Seen>>, batch: &mut Vec<Arc<Seen>>) -> bool {
    if spans.recv_many(batch, BATCH_MAX).await == 0 {
        return false;
    }
    let until = Instant::now() + GATHER;
    while batch.len() < BATCH_MAX {
        let room = BATCH_MAX - batch.len();
        match timeout_at(until, spans.recv_many(batch, room)).await {
            Ok(more) if more > 0 => {}
            Ok(_) | Err(_) => break,
        }
    }
    true
}

/// Spans that are sent at once: a few hundred KiB.
const BATCH_MAX: usize = 512;
/// How long a span waits for others to travel with.
const GATHER: Duration = Duration::from_secs(1);
/// How long sending a batch may take.
const SEND_MAX: Duration = Duration::from_secs(10);
/// How often a batch is sent before it is dropped.
const TRIES_MAX: u32 = 3;
/// How long to wait before a batch is sent for the second time; then twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);

/// Encodes spans as for a collector, and sends them nowhere: what that costs is measured.
#[cfg(test)]
pub(crate) async fn encode_all(mut spans: mpsc::Receiver<Arc<Seen>>) {
    let workload = leno_model::WorkloadName::new("bookinfo", "a").unwrap();
    let source = Source::of(&workload, None);
    let mut batch = Vec::new();
    while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
        std::hint::black_box(otlp::encode(&source, &batch));
        batch.clear();
    }
}

#[cfg(test)]
mod tests;
