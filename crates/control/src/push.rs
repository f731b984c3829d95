//! Pushing metrics: what the control plane counts, where sidecars push what they count.
//!
//! The owner of the mesh is asked for the numbers as for a page, and writes them down; all else is done
//! beside it.

use std::sync::Arc;
use std::time::SystemTime;

use leno_model::MetricsPush;
use leno_outside::{Counts, Fate, Pages, Post, Source, Teller, push_metrics};
use tokio::sync::{oneshot, watch};

use crate::admin::{Questions, answered};
use crate::dial::Plainly;
use crate::owner::{Answer, Question};
use crate::server::Gauges;

/// What is needed to push.
pub(crate) struct Push {
    /// Whose numbers they are.
    pub(crate) source: Source,
    pub(crate) post: Post<Plainly>,
    /// Where it is counted what became of them.
    pub(crate) gauges: Arc<Gauges>,
    /// Where they are asked for,
    pub(crate) questions: Questions,
    /// and once more when the owner has come to its end.
    pub(crate) last: oneshot::Sender<(Question, oneshot::Sender<Answer>)>,
    /// Where they are wanted.
    pub(crate) wanted: watch::Receiver<Option<Box<MetricsPush>>>,
    /// Draws when in an interval.
    pub(crate) seed: u64,
}

impl Push {
    /// Pushes until told to stop, and then once more.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { source, post, gauges, questions, last, wanted, seed } = self;
        let since = (SystemTime::now(), seed);
        let mut fate = Fate::new("metrics", Counted(gauges));
        let numbers = Numbers { source, questions, last };
        let over = async { drop(stop.wait_for(|stop| *stop).await) };
        push_metrics((&post, &mut fate), numbers, wanted, since, over).await;
    }
}

/// All that the control plane has counted.
struct Numbers {
    source: Source,
    questions: Questions,
    last: oneshot::Sender<(Question, oneshot::Sender<Answer>)>,
}

impl Teller for Numbers {
    fn source(&self) -> Source {
        self.source.clone()
    }

    async fn tell(&mut self, pages: Pages) -> Option<Pages> {
        points(answered(&self.questions, Question::Points(Box::new(pages))).await?)
    }

    async fn tell_last(self, pages: Pages) -> Option<Pages> {
        let (sender, answer) = oneshot::channel();
        self.last.send((Question::Points(Box::new(pages)), sender)).ok()?;
        points(answer.await.ok()?)
    }
}

fn points(answer: Answer) -> Option<Pages> {
    match answer {
        Answer::Points(pages) => Some(*pages),
        Answer::Json(_) | Answer::Objects(_) | Answer::Metrics(..) | Answer::Sidecar(_) => None,
    }
}

struct Counted(Arc<Gauges>);

impl Counts for Counted {
    fn exported(&self, count: u64) {
        self.0.push(count, 0);
    }

    fn refused(&self, count: u64) {
        self.0.push(0, count);
    }
}
