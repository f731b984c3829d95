//! Exporting: spans, metrics and lines of the access log, sent to collectors by the control thread.
//!
//! Everything is bounded: what waits ([`crate::seen::SPANS_MAX`], [`crate::seen::LINES_MAX`]), what is
//! sent at once, how long and how often that is tried. What does not fit is dropped and counted; no data
//! thread waits.

mod fate;
mod otlp;
mod post;
mod push;
mod retry_info;
pub(crate) mod source;
mod spans;
mod zipkin;

use std::sync::Arc;
use std::time::Duration;

use leno_model::{Collector, LogForm};
use leno_telemetry::Shard;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub(crate) use self::fate::Fate;
use self::otlp::records;
use self::post::{Failed, Parcel, Refused};
pub(crate) use self::push::push_metrics;
use self::source::Source;
#[cfg(test)]
pub(crate) use self::spans::encode_all;
pub(crate) use self::spans::export_spans;
use crate::config::Config;
use crate::seen::Seen;
use crate::servers::Sessions;
use crate::world::World;

/// Brings to collectors what this sidecar tells.
pub(crate) struct Courier {
    config: Arc<Config>,
    world: Arc<World>,
    shard: Shard,
    sessions: Sessions,
}

impl Courier {
    pub(crate) fn new(config: Arc<Config>, world: Arc<World>, shard: Shard) -> Self {
        let sessions = Sessions::new(config.collector_roots.clone());
        Self { config, world, shard, sessions }
    }

    /// What the sidecar knows, and what operators want to see.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// Sends lines of the access log.
    pub(crate) async fn deliver_lines(
        &self,
        (collector, form): (&Collector, &LogForm),
        batch: &[Arc<Seen>],
        fate: &mut Fate,
    ) {
        let parcels = records::encode(&self.source(), batch, form);
        self.deliver_all(collector, parcels, fate).await;
    }

    fn source(&self) -> Source {
        Source::of(&self.config.workload, self.world.scene().as_deref())
    }

    /// Sends requests of OTLP one after the other. Once one could not be sent, neither can the others;
    /// but one that is refused for what is in it says nothing of them. Returns for how long the collector
    /// asks to be left alone.
    async fn deliver_all(
        &self,
        collector: &Collector,
        requests: Vec<(Vec<u8>, u64)>,
        fate: &mut Fate,
    ) -> Option<Duration> {
        fate.toward(collector);
        let mut is_taken = true;
        let mut asked = None;
        for parcel in requests.into_iter().map(Parcel::otlp) {
            if is_taken {
                let told = self.deliver(collector, &parcel).await;
                if let Err(error) = &told {
                    is_taken = error.is_of_parcel();
                    asked = error.after();
                }
                fate.note(&self.shard, parcel.count, &told);
            } else {
                fate.lost(&self.shard, parcel.count);
            }
        }
        asked
    }

    /// Sends a parcel, again if that may help; tells what of it the collector refused.
    async fn deliver(&self, collector: &Collector, parcel: &Parcel) -> Result<Refused, Failed> {
        let mut pause = PAUSE_FIRST;
        let mut tries = TRIES_MAX;
        loop {
            let posted = post::post(collector, parcel, (&self.config.interception, &self.sessions));
            let outcome = timeout(SEND_MAX, posted).await.unwrap_or(Err(Failed::Late));
            tries -= 1;
            match outcome {
                Err(error) if error.may_pass() && tries > 0 => {
                    let asked = error.after().unwrap_or_default();
                    if asked > PAUSE_MAX {
                        return Err(error);
                    }
                    sleep(pause.max(asked)).await;
                }
                outcome => return outcome,
            }
            pause *= 2;
        }
    }
}

/// Waits this long for more to travel with what there is. It looks now and then: being woken for each
/// of them took this thread, and those that woke it, more time than all that was told.
pub(crate) async fn gather(
    intake: &mut mpsc::Receiver<Arc<Seen>>,
    batch: &mut Vec<Arc<Seen>>,
    time: Duration,
) {
    let until = Instant::now() + time;
    loop {
        while batch.len() < BATCH_MAX {
            match intake.try_recv() {
                Ok(seen) => batch.push(seen),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now = Instant::now();
        if batch.len() >= BATCH_MAX || now >= until {
            return;
        }
        sleep_until(until.min(now + LOOK_EVERY)).await;
    }
}

/// Spans, or lines, that are sent at once: a few hundred KiB.
const BATCH_MAX: usize = 512;
/// How long a span, or a line, waits for others to travel with.
pub(crate) const GATHER: Duration = Duration::from_secs(1);
/// How often it is looked for others: seldom enough to cost nothing, often enough that what waits has room.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long sending a batch may take.
const SEND_MAX: Duration = Duration::from_secs(10);
/// How often a batch is sent before it is dropped.
const TRIES_MAX: u32 = 3;
/// How long to wait before a batch is sent for the second time; then twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// A collector that wants to be left alone for longer than this gets nothing of the batch.
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
