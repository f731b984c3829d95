//! Reviews of tokens that were not made here: limited per source, and none for a token that was just rejected.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::PendingJoin;
use leno_identity::token_digest;
use leno_listen::ConnectionSource;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout};

use super::fair_queue::FairQueue;
use super::suspects::{RefusedTokens, Suspects};
use crate::review::{ReviewError, Reviewer, TokenSubject};

/// A token that was not made here, and its subject.
#[derive(Debug)]
pub(crate) struct ReviewResult {
    pub(crate) joining: PendingJoin,
    pub(crate) holder: Result<TokenSubject, ReviewError>,
}

/// Reviews in progress, and joins that wait for one.
#[derive(Debug)]
pub(super) struct TokenReviews {
    reviewer: Option<Arc<dyn Reviewer>>,
    tasks: JoinSet<ReviewResult>,
    /// The source of each review in progress.
    sources: BTreeMap<Id, ConnectionSource>,
    waiting: FairQueue<PendingJoin>,
    suspects: Suspects,
    refused: RefusedTokens,
}

/// The reason why a token is not reviewed now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewNotStarted {
    /// The token was just rejected.
    #[error("{0}")]
    Refused(String),
    /// Too many other tokens of its source were rejected.
    #[error(
        "too many tokens from {0} were rejected in the last seconds, and reviews for this address are suspended: retry in a second"
    )]
    Barred(IpAddr),
    /// Too many joins are queued.
    #[error("too many tokens from {0} are waiting for a review: retry later")]
    Crowded(IpAddr),
}

impl TokenReviews {
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

    /// Permits the review of a token, or returns the reason against it.
    pub(super) fn permit_review(
        &self,
        joining: &PendingJoin,
        now: Instant,
    ) -> Result<(), ReviewNotStarted> {
        if let Some(reason) = self.refused.rejection_reason(&token_digest(&joining.token), now) {
            return Err(ReviewNotStarted::Refused(reason.to_owned()));
        }
        match self.suspects.is_barred(joining.source.into(), now) {
            true => Err(ReviewNotStarted::Barred(joining.source)),
            false => Ok(()),
        }
    }

    /// Queues the review of a token. Returns a join that has no room, with the reason.
    pub(super) fn start(
        &mut self,
        joining: PendingJoin,
        now: Instant,
    ) -> Option<(PendingJoin, ReviewNotStarted)> {
        let rejected = self.waiting.push(joining.source.into(), joining);
        self.start_queued(now);
        let rejected = rejected?;
        let source = rejected.source;
        Some((rejected, ReviewNotStarted::Crowded(source)))
    }

    /// Waits for the next completed review; `None` if none is in progress. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ReviewResult> {
        loop {
            let done = self.tasks.join_next_with_id().await?;
            let now = Instant::now();
            let reviewed = match done {
                Ok((id, reviewed)) => {
                    let source = self.sources.remove(&id);
                    self.record_review(source, &reviewed, now);
                    Some(reviewed)
                }
                Err(error) => {
                    self.sources.remove(&error.id());
                    tracing::error!(%error, "a token review did not complete");
                    None
                }
            };
            self.start_queued(now);
            if reviewed.is_some() {
                return reviewed;
            }
        }
    }

    /// A join needs no review if its client has disconnected or its token was rejected meanwhile.
    fn start_queued(&mut self, now: Instant) {
        let Some(reviewer) = self.reviewer.clone() else { return };
        while self.tasks.len() < REVIEWS_MAX {
            let (under_way, suspects) = (&self.sources, &self.suspects);
            let may = |source| may_begin(under_way, suspects, source, now);
            let Some((source, joining)) = self.waiting.pop(may) else { return };
            if joining.answer.is_closed() {
                continue;
            }
            let refused = self.permit_review(&joining, now).err();
            let reviewer = Arc::clone(&reviewer);
            let task = self.tasks.spawn(async move {
                let holder = match refused {
                    Some(reason) => Err(ReviewError::Repeated(reason.to_string())),
                    None => review_token(&*reviewer, &joining.token).await,
                };
                ReviewResult { joining, holder }
            });
            self.sources.insert(task.id(), source);
        }
    }

    fn record_review(
        &mut self,
        source: Option<ConnectionSource>,
        reviewed: &ReviewResult,
        now: Instant,
    ) {
        let Some(source) = source else { return };
        match &reviewed.holder {
            Ok(_) | Err(ReviewError::Repeated(_)) => {}
            Err(ReviewError::Refused(reason)) => {
                self.suspects.record_rejection(source, now);
                self.refused.insert(token_digest(&reviewed.joining.token), reason.clone(), now);
            }
            // This does not invalidate the token, but it occupied a review slot for the full timeout.
            Err(ReviewError::Unavailable(_)) => self.suspects.record_rejection(source, now),
        }
    }
}

/// True if a review for a source may begin now.
fn may_begin(
    sources: &BTreeMap<Id, ConnectionSource>,
    suspects: &Suspects,
    source: ConnectionSource,
    now: Instant,
) -> bool {
    let own = sources.values().filter(|other| **other == source).count();
    if suspects.rejection_count(source, now) == 0 {
        return own < REVIEWS_PER_SOURCE;
    }
    let of_suspects =
        sources.values().filter(|other| suspects.rejection_count(**other, now) > 0).count();
    own == 0 && of_suspects < REVIEWS_OF_SUSPECTS
}

async fn review_token(reviewer: &dyn Reviewer, token: &str) -> Result<TokenSubject, ReviewError> {
    let reviewed = timeout(REVIEW_WAIT, reviewer.review_token(token)).await;
    let late = || ReviewError::Unavailable("no response in time".to_owned());
    reviewed.unwrap_or_else(|_| Err(late()))
}

/// Maximum reviews in progress.
const REVIEWS_MAX: usize = 64;

/// Maximum reviews in progress per source.
const REVIEWS_PER_SOURCE: usize = 16;

/// Maximum reviews in progress of all sources with rejected tokens: one per source, and together they leave
/// room for others.
const REVIEWS_OF_SUSPECTS: usize = 16;

/// The timeout of a review: a join waits only a few seconds in total.
const REVIEW_WAIT: Duration = Duration::from_secs(3);
