//! Export of the control plane's metrics, to the collector that sidecars push to.
//!
//! The mesh owner collects the numbers as for a scrape; everything else runs in a separate task.

use std::sync::Arc;
use std::time::SystemTime;

use leno_model::MetricsPush;
use leno_outside::{Counts, Fate, Pages, Post, Source, Teller, push_metrics};
use tokio::sync::{oneshot, watch};

use crate::admin::{Questions, query_owner};
use crate::dial::Plainly;
use crate::owner::{Answer, Question};
use crate::server::Gauges;

/// The metrics exporter.
pub(crate) struct Push {
    /// The resource attributes.
    pub(crate) source: Source,
    pub(crate) post: Post<Plainly>,
    /// Counters of export results.
    pub(crate) gauges: Arc<Gauges>,
    /// The query channel of the mesh owner,
    pub(crate) questions: Questions,
    /// and the last query, after the owner has ended.
    pub(crate) last: oneshot::Sender<(Question, oneshot::Sender<Answer>)>,
    /// The configured destination.
    pub(crate) wanted: watch::Receiver<Option<Box<MetricsPush>>>,
    /// The seed of the jitter within an interval.
    pub(crate) seed: u64,
}

impl Push {
    /// Exports until shutdown, and once more afterwards.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { source, post, gauges, questions, last, wanted, seed } = self;
        let mut fate = Fate::new("metrics", Counted(gauges));
        let numbers = Numbers { source, questions, last };
        let over = async { drop(stop.wait_for(|stop| *stop).await) };
        push_metrics(&post, &mut fate, numbers, wanted, SystemTime::now(), seed, over).await;
    }
}

/// All metrics of the control plane.
struct Numbers {
    source: Source,
    questions: Questions,
    last: oneshot::Sender<(Question, oneshot::Sender<Answer>)>,
}

impl Teller for Numbers {
    fn source(&self) -> Source {
        self.source.clone()
    }

    async fn write_metrics(&mut self, pages: Pages) -> Option<Pages> {
        metric_pages(query_owner(&self.questions, Question::Points(Box::new(pages))).await?)
    }

    async fn tell_last(self, pages: Pages) -> Option<Pages> {
        let (sender, answer) = oneshot::channel();
        self.last.send((Question::Points(Box::new(pages)), sender)).ok()?;
        metric_pages(answer.await.ok()?)
    }
}

fn metric_pages(answer: Answer) -> Option<Pages> {
    match answer {
        Answer::Points(pages) => Some(*pages),
        Answer::Json(_) | Answer::Objects(_) | Answer::Metrics(..) | Answer::Sidecar(_) => None,
    }
}

struct Counted(Arc<Gauges>);

impl Counts for Counted {
    fn add_exported(&self, count: u64) {
        self.0.push(count, 0);
    }

    fn add_rejected(&self, count: u64) {
        self.0.push(0, count);
    }
}
