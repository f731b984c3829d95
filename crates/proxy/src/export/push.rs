//! Pushing metrics: all that was counted, again and again, where the control plane says.
//!
//! Counts are those since the start of the process, so that a push that was lost costs nothing but time.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use leno_model::MetricsPush;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::otlp::points::{self, Times};
use super::{Courier, Fate, Source};

/// Pushes until the data threads are gone, which `over` tells, and then once more.
pub(crate) async fn push_metrics(
    courier: Rc<Courier>,
    (started, seed): (SystemTime, u64),
    mut over: oneshot::Receiver<()>,
) {
    let mut wanted = courier.world.sights.metrics();
    let mut fate = Fate::of_metrics();
    // Whose counts they are: the same in all pushes, or they would count as new ones.
    let source = OnceCell::new();
    'settings: loop {
        let push = wanted.borrow_and_update().clone();
        let Some(push) = push else {
            fate.forget();
            tokio::select! {
                biased;
                _ = &mut over => return,
                // The world outlives this.
                _ = wanted.changed() => continue,
            }
        };
        let mut due = Instant::now() + share(push.interval, seed);
        loop {
            let next = async {
                sleep_until(due).await;
                let source = source.get_or_init(|| courier.source());
                courier.push(&push, (source, started), &mut fate).await
            };
            tokio::select! {
                biased;
                // One that is under way is given up: the last one says more.
                _ = &mut over => break,
                _ = wanted.changed() => continue 'settings,
                asked = next => {
                    // Whoever is slow, or asks for it, is left alone.
                    let pause = push.interval.max(asked.unwrap_or_default().min(PAUSE_MAX));
                    let now = Instant::now();
                    due += push.interval;
                    if due <= now || asked.is_some() {
                        due = now + pause;
                    }
                }
            }
        }
        // The settings may have changed in the same moment.
        let last = wanted.borrow().clone();
        if let Some(push) = last {
            let source = source.get_or_init(|| courier.source());
            courier.push(&push, (source, started), &mut fate).await;
        }
        return;
    }
}

impl Courier {
    /// Pushes once; tells for how long the collector asks to be left alone.
    async fn push(
        &self,
        push: &MetricsPush,
        (source, started): (&Source, SystemTime),
        fate: &mut Fate,
    ) -> Option<Duration> {
        // A clock that was set back since does not let counts begin after they end.
        let times = Times { started, now: SystemTime::now().max(started) };
        let requests = points::encode(source, self.shard.telemetry(), times);
        self.deliver_all(&push.collector, requests, fate).await
    }
}

/// A part of the interval: sidecars are told at the same moment, and are not to push at the same.
fn share(interval: Duration, seed: u64) -> Duration {
    interval.mul_f64((seed >> 32) as f64 / f64::from(u32::MAX))
}

/// However long a collector asks to be left alone.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
