//! Reviews of tokens that were not made here: a share for each source, and none for a token that was rejected just now.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::Joining;
use leno_identity::token_digest;
use leno_listen::Source;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout};

use super::fair::FairQueue;
use super::suspects::{RefusedTokens, Suspects};
use crate::review::{Holder, ReviewError, Reviewer};

/// A token that was not made here, and its holder.
#[derive(Debug)]
pub(crate) struct Reviewed {
    pub(crate) joining: Joining,
    pub(crate) holder: Result<Holder, ReviewError>,
}

/// Reviews that are under way, and joins that wait for one.
#[derive(Debug)]
pub(super) struct Reviews {
    reviewer: Option<Arc<dyn Reviewer>>,
    tasks: JoinSet<Reviewed>,
    /// The source of each review that is under way.
    sources: BTreeMap<Id, Source>,
    waiting: FairQueue<Joining>,
    suspects: Suspects,
    refused: RefusedTokens,
}

/// Why a token is not reviewed now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoReview {
    /// It was refused a moment ago.
    #[error("{0}")]
    Refused(String),
    /// Too many others of its source were.
    #[error(
        "too many tokens from {0} were rejected in the last seconds, and none from there is reviewed: \
         try again in a second"
    )]
    Barred(IpAddr),
    /// Too many wait.
    #[error("too many tokens from {0} wait for a review: try again")]
    Crowded(IpAddr),
}

impl Reviews {
    pub(super) fn new() -> Self {
        Self {
            reviewer: None,
            tasks: JoinSet::new(),
            sources: BTreeMap::new(),
            waiting: FairQueue::new(),
            suspects: Suspects::default(),
            refused: RefusedTokens::default(),
        }
    }

    pub(super) fn set_reviewer(&mut self, reviewer: Option<Arc<dyn Reviewer>>) {
        self.reviewer = reviewer;
    }

    pub(super) fn reviewer(&self) -> Option<&Arc<dyn Reviewer>> {
        self.reviewer.as_ref()
    }

    /// Permits the review of a token, or says why there is none now.
    pub(super) fn permit(&self, joining: &Joining, now: Instant) -> Result<(), NoReview> {
        if let Some(reason) = self.refused.reason(&token_digest(&joining.token), now) {
            return Err(NoReview::Refused(reason.to_owned()));
        }
        match self.suspects.is_barred(joining.source.into(), now) {
            true => Err(NoReview::Barred(joining.source)),
            false => Ok(()),
        }
    }

    /// Has a token reviewed when it is its turn. A join for which there is no room is returned with the reason.
    pub(super) fn start(&mut self, joining: Joining, now: Instant) -> Option<(Joining, NoReview)> {
        let rejected = self.waiting.push(joining.source.into(), joining);
        self.advance(now);
        let rejected = rejected?;
        let source = rejected.source;
        Some((rejected, NoReview::Crowded(source)))
    }

    /// The next review that is done; `None` when none is under way. Safe to drop while waiting.
    pub(super) async fn next(&mut self) -> Option<Reviewed> {
        loop {
            let done = self.tasks.join_next_with_id().await?;
            let now = Instant::now();
            let reviewed = match done {
                Ok((id, reviewed)) => {
                    let source = self.sources.remove(&id);
                    self.learn(source, &reviewed, now);
                    Some(reviewed)
                }
                Err(error) => {
                    self.sources.remove(&error.id());
                    tracing::error!(%error, "a review was not finished");
                    None
                }
            };
            self.advance(now);
            if reviewed.is_some() {
                return reviewed;
            }
        }
    }

    /// A join needs no review when its client has left, or its token was rejected meanwhile.
    fn advance(&mut self, now: Instant) {
        let Some(reviewer) = self.reviewer.clone() else { return };
        while self.tasks.len() < REVIEWS_MAX {
            let (under_way, suspects) = (&self.sources, &self.suspects);
            let may = |source| may_begin(under_way, suspects, source, now);
            let Some((source, joining)) = self.waiting.pop(may) else { return };
            if joining.answer.is_closed() {
                continue;
            }
            let refused = self.permit(&joining, now).err();
            let reviewer = Arc::clone(&reviewer);
            let task = self.tasks.spawn(async move {
                let holder = match refused {
                    Some(reason) => Err(ReviewError::Repeated(reason.to_string())),
                    None => review(&*reviewer, &joining.token).await,
                };
                Reviewed { joining, holder }
            });
            self.sources.insert(task.id(), source);
        }
    }

    fn learn(&mut self, source: Option<Source>, reviewed: &Reviewed, now: Instant) {
        let Some(source) = source else { return };
        match &reviewed.holder {
            Ok(_) | Err(ReviewError::Repeated(_)) => {}
            Err(ReviewError::Refused(reason)) => {
                self.suspects.refused(source, now);
                self.refused.insert(token_digest(&reviewed.joining.token), reason.clone(), now);
            }
            // It proves nothing against the token, but took a place for as long as reviews may.
            Err(ReviewError::Unavailable(_)) => self.suspects.refused(source, now),
        }
    }
}

/// True when a review of a source may begin now.
fn may_begin(
    sources: &BTreeMap<Id, Source>,
    suspects: &Suspects,
    source: Source,
    now: Instant,
) -> bool {
    let own = sources.values().filter(|other| **other == source).count();
    if suspects.count(source, now) == 0 {
        return own < REVIEWS_PER_SOURCE;
    }
    let of_suspects = sources.values().filter(|other| suspects.count(**other, now) > 0).count();
    own == 0 && of_suspects < REVIEWS_OF_SUSPECTS
}

async fn review(reviewer: &dyn Reviewer, token: &str) -> Result<Holder, ReviewError> {
    let reviewed = timeout(REVIEW_WAIT, reviewer.review(token)).await;
    let late = || ReviewError::Unavailable("there was no answer in time".to_owned());
    reviewed.unwrap_or_else(|_| Err(late()))
}

/// Reviews under way at once.
const REVIEWS_MAX: usize = 64;

/// Of these, those of one source.
const REVIEWS_PER_SOURCE: usize = 16;

/// Of these, those of all sources with rejected tokens: each has one, and together they leave room for others.
const REVIEWS_OF_SUSPECTS: usize = 16;

/// The longest review: a join waits a few seconds in all.
const REVIEW_WAIT: Duration = Duration::from_secs(3);
