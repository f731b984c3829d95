//! Runs the reviews of tokens of another issuer (Kubernetes). The number of reviews is limited per source, and a
//! token that was just rejected is not reviewed again.

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
use super::suspects::{RejectedTokens, Suspects};
use crate::review::{ReviewError, Reviewer, TokenSubject};

/// The result of a review of a token of another issuer.
#[derive(Debug)]
pub(crate) struct ReviewResult {
    pub(crate) pending_join: PendingJoin,
    pub(crate) subject: Result<TokenSubject, ReviewError>,
}

/// Reviews in progress, and joins that wait for one.
#[derive(Debug)]
pub(super) struct TokenReviews {
    /// The reviewer of tokens; `None` if only tokens of this mesh are accepted.
    reviewer: Option<Arc<dyn Reviewer>>,
    review_tasks: JoinSet<ReviewResult>,
    /// The source of each review in progress.
    sources_in_progress: BTreeMap<Id, ConnectionSource>,
    queued_joins: FairQueue<PendingJoin>,
    suspects: Suspects,
    rejected_tokens: RejectedTokens,
}

/// The reason why a token is not reviewed now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewNotStarted {
    /// The token was just rejected.
    #[error("{0}")]
    Rejected(String),
    /// Too many other tokens from the same source were rejected.
    #[error(
        "too many tokens from {0} were rejected in the last seconds, and reviews for this address are suspended: retry in a second"
    )]
    SourceSuspended(IpAddr),
    /// Too many joins are queued.
    #[error("too many tokens from {0} are waiting for a review: retry later")]
    QueueFull(IpAddr),
}

impl TokenReviews {
    pub(super) fn new() -> Self {
        Self {
            reviewer: None,
            review_tasks: JoinSet::new(),
            sources_in_progress: BTreeMap::new(),
            queued_joins: FairQueue::new(),
            suspects: Suspects::default(),
            rejected_tokens: RejectedTokens::default(),
        }
    }

    pub(super) fn set_reviewer(&mut self, reviewer: Option<Arc<dyn Reviewer>>) {
        self.reviewer = reviewer;
    }

    pub(super) fn reviewer(&self) -> Option<&Arc<dyn Reviewer>> {
        self.reviewer.as_ref()
    }

    /// Returns `Ok` if a token may be reviewed, otherwise the reason why it may not.
    pub(super) fn check_review_permitted(
        &self,
        pending_join: &PendingJoin,
        now: Instant,
    ) -> Result<(), ReviewNotStarted> {
        if let Some(reason) =
            self.rejected_tokens.rejection_reason(&token_digest(&pending_join.token), now)
        {
            return Err(ReviewNotStarted::Rejected(reason.to_owned()));
        }
        match self.suspects.is_suspended(pending_join.source.into(), now) {
            true => Err(ReviewNotStarted::SourceSuspended(pending_join.source)),
            false => Ok(()),
        }
    }

    /// Queues the review of a token, and starts it if a slot is free. If the queue is full, returns a join that has no
    /// room (this one or another), with the reason.
    pub(super) fn start_review(
        &mut self,
        pending_join: PendingJoin,
        now: Instant,
    ) -> Option<(PendingJoin, ReviewNotStarted)> {
        let rejected_join = self.queued_joins.push(pending_join.source.into(), pending_join);
        self.start_queued(now);
        let rejected_join = rejected_join?;
        let source = rejected_join.source;
        Some((rejected_join, ReviewNotStarted::QueueFull(source)))
    }

    /// Waits for the next completed review; `None` if none is in progress. Cancel-safe.
    pub(super) async fn next_result(&mut self) -> Option<ReviewResult> {
        loop {
            let result = self.review_tasks.join_next_with_id().await?;
            let now = Instant::now();
            let review_result = match result {
                Ok((id, review_result)) => {
                    let source = self.sources_in_progress.remove(&id);
                    self.record_review(source, &review_result, now);
                    Some(review_result)
                }
                Err(error) => {
                    self.sources_in_progress.remove(&error.id());
                    tracing::error!(%error, "a token review did not complete");
                    None
                }
            };
            self.start_queued(now);
            if review_result.is_some() {
                return review_result;
            }
        }
    }

    /// Starts queued reviews up to the limit, except for joins whose client has disconnected or whose token was
    /// rejected meanwhile.
    fn start_queued(&mut self, now: Instant) {
        let Some(reviewer) = self.reviewer.clone() else { return };
        while self.review_tasks.len() < MAX_REVIEWS {
            let (in_progress, suspects) = (&self.sources_in_progress, &self.suspects);
            let may_serve = |source| may_start_review(in_progress, suspects, source, now);
            let Some((source, pending_join)) = self.queued_joins.pop(may_serve) else { return };
            if pending_join.reply.is_closed() {
                continue;
            }
            // A rejected join gets a task too, so that `next_result` returns its result.
            let rejection = self.check_review_permitted(&pending_join, now).err();
            let reviewer = Arc::clone(&reviewer);
            let task = self.review_tasks.spawn(async move {
                let subject = match rejection {
                    Some(reason) => Err(ReviewError::Repeated(reason.to_string())),
                    None => review_token(&*reviewer, &pending_join.token).await,
                };
                ReviewResult { pending_join, subject }
            });
            self.sources_in_progress.insert(task.id(), source);
        }
    }

    fn record_review(
        &mut self,
        source: Option<ConnectionSource>,
        review_result: &ReviewResult,
        now: Instant,
    ) {
        let Some(source) = source else { return };
        match &review_result.subject {
            // Without a review, nothing is counted: the token was rejected before, or its source is suspended.
            Ok(_) | Err(ReviewError::Repeated(_)) => {}
            Err(ReviewError::Rejected(reason)) => {
                self.suspects.record_rejection(source, now);
                self.rejected_tokens.insert(
                    token_digest(&review_result.pending_join.token),
                    reason.clone(),
                    now,
                );
            }
            // An unavailable reviewer does not make the token invalid. But the review may have occupied a slot for
            // the full timeout, so it counts against the source.
            Err(ReviewError::Unavailable(_)) => self.suspects.record_rejection(source, now),
        }
    }
}

/// True if a review for a source may start now. A source with recent failed reviews has one review at a time, and all
/// such sources share [`MAX_SUSPECT_REVIEWS`].
fn may_start_review(
    sources_in_progress: &BTreeMap<Id, ConnectionSource>,
    suspects: &Suspects,
    source: ConnectionSource,
    now: Instant,
) -> bool {
    let own_reviews = sources_in_progress.values().filter(|other| **other == source).count();
    if suspects.rejection_count(source, now) == 0 {
        return own_reviews < MAX_REVIEWS_PER_SOURCE;
    }
    let suspect_reviews = sources_in_progress
        .values()
        .filter(|other| suspects.rejection_count(**other, now) > 0)
        .count();
    own_reviews == 0 && suspect_reviews < MAX_SUSPECT_REVIEWS
}

async fn review_token(reviewer: &dyn Reviewer, token: &str) -> Result<TokenSubject, ReviewError> {
    let reviewed = timeout(REVIEW_TIMEOUT, reviewer.review_token(token)).await;
    let timeout_error = || ReviewError::Unavailable("no response in time".to_owned());
    reviewed.unwrap_or_else(|_| Err(timeout_error()))
}

/// Maximum reviews in progress.
const MAX_REVIEWS: usize = 64;

/// Maximum reviews in progress per source.
const MAX_REVIEWS_PER_SOURCE: usize = 16;

/// Maximum reviews in progress of all sources with rejected tokens together. Each of these sources has at most one, and
/// they leave room for other sources.
const MAX_SUSPECT_REVIEWS: usize = 16;

/// The timeout of a review. It is short, because the client ends its join after 10 s.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(3);
