//! Pushing metrics: all that was counted, again and again, where the control plane says.
//!
//! Counts are those since the start of the process, so that a push that was lost costs nothing but time.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use leno_model::MetricsPush;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::otlp::points::{self, Times};
use super::{Courier, Fate};

/// Pushes until the data threads are gone, which `over` tells, and then once more.
pub(crate) async fn push_metrics(
    courier: Rc<Courier>,
    (started, seed): (SystemTime, u64),
    mut over: oneshot::Receiver<()>,
) {
    let mut wanted = courier.world.sights.metrics();
    let mut fate = Fate::of_metrics();
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
                courier.push(&push, started, &mut fate).await;
            };
            tokio::select! {
                biased;
                // One that is under way is given up: the last one says more.
                _ = &mut over => break,
                _ = wanted.changed() => continue 'settings,
                () = next => {}
            }
            // A collector that is slow is not asked more often for it.
            due = (due + push.interval).max(Instant::now());
        }
        // The settings may have changed in the same moment.
        let last = wanted.borrow().clone();
        if let Some(push) = last {
            courier.push(&push, started, &mut fate).await;
        }
        return;
    }
}

impl Courier {
    async fn push(&self, push: &MetricsPush, started: SystemTime, fate: &mut Fate) {
        let times = Times { started, now: SystemTime::now() };
        let requests = points::encode(&self.source(), self.shard.telemetry(), times);
        self.deliver_all(&push.collector, requests, fate).await;
    }
}

/// A part of the interval: sidecars are told at the same moment, and are not to push at the same.
fn share(interval: Duration, seed: u64) -> Duration {
    interval.mul_f64((seed >> 32) as f64 / f64::from(u32::MAX))
}
