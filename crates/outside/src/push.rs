//! Pushing metrics: all that was counted, again and again, where the mesh says.
//!
//! Counts are those since the start of the process, so that a push that was lost costs nothing but time.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use leno_model::MetricsPush;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::fate::{Counts, Fate};
use crate::otlp::points::{Pages, Times};
use crate::post::Post;
use crate::servers::Dial;
use crate::source::Source;

/// Who has the numbers of a process.
pub trait Teller {
    /// Whose they are; asked once: in pushes under another name they would count as new ones.
    fn source(&self) -> Source;

    /// Writes all of them down; nothing comes back when there is nobody to ask any more.
    fn tell(&mut self, pages: Pages) -> impl Future<Output = Option<Pages>>;

    /// The same when the process ends: what came last is among them.
    fn tell_last(self, pages: Pages) -> impl Future<Output = Option<Pages>>;
}

/// Pushes until it is `over`, and then once more.
pub async fn push_metrics(
    (post, fate): (&Post<impl Dial>, &mut Fate<impl Counts>),
    mut teller: impl Teller,
    mut wanted: watch::Receiver<Option<Box<MetricsPush>>>,
    (started, seed): (SystemTime, u64),
    over: impl Future<Output = ()>,
) {
    let mut over = pin!(over);
    let mut source = None;
    'settings: loop {
        let push = wanted.borrow_and_update().clone();
        let Some(push) = push else {
            fate.forget();
            tokio::select! {
                biased;
                () = &mut over => return,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue,
                    // Who would say so is gone.
                    Err(_) => return,
                },
            }
        };
        let mut due = Instant::now() + share(push.interval, seed);
        loop {
            let next = async {
                sleep_until(due).await;
                let source = &*source.get_or_insert_with(|| teller.source());
                let pages = teller.tell(Pages::new(source, Times::since(started))).await?;
                post.deliver_all(&push.collector, pages.finish(), fate).await
            };
            tokio::select! {
                biased;
                // One that is under way is given up: the last one says more.
                () = &mut over => break,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue 'settings,
                    Err(_) => return,
                },
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
            let source = source.unwrap_or_else(|| teller.source());
            let last = async {
                let pages = teller.tell_last(Pages::new(&source, Times::since(started))).await?;
                post.deliver_all(&push.collector, pages.finish(), fate).await
            };
            // It has failed, or says for how long nobody is to come back: nobody will.
            timeout(LAST_MAX, last).await.ok();
        }
        return;
    }
}

/// A part of the interval: all are told at the same moment, and are not to push at the same.
fn share(interval: Duration, seed: u64) -> Duration {
    interval.mul_f64((seed >> 32) as f64 / f64::from(u32::MAX))
}

/// However long a collector asks to be left alone.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long the last push may take: whoever ends the process waits for it, sidecars with what they tell
/// beside it.
const LAST_MAX: Duration = Duration::from_secs(2);
