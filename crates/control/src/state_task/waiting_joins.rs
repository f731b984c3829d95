//! Processes joins (requests for a first certificate) with a token of this mesh, or with a token that a reviewer
//! verifies (Kubernetes). A join may have to wait until a registry reports its workload.

use leno_discovery::PendingJoin;
use leno_listen::ConnectionSource;
use leno_model::Workload;
use tokio::time::Instant;

use super::{ControlState, EventTime};
use crate::certify::{CertificateHolder, CertifyError, ReviewResult};
use crate::review::TokenSubject;

/// A join that waits until a registry reports a workload that matches the token's subject. A new pod may join before a
/// registry reports the pod.
#[derive(Debug)]
pub(crate) struct WaitingJoin {
    pending_join: PendingJoin,
    subject: TokenSubject,
    evidence: TokenEvidence,
    /// The time at which the join is rejected.
    deadline: Instant,
}

/// The evidence for the subject of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenEvidence {
    /// The claims in the text of the token, unverified: the token is reviewed once its workload is known.
    UnverifiedText,
    /// A completed review.
    CompletedReview,
}

impl ControlState {
    /// Starts a join. The certifier verifies a token of this mesh. Other tokens are reviewed: if the text of the
    /// token names its subject, the join first waits for that workload; otherwise the review starts at once.
    pub(super) fn start_join(&mut self, pending_join: PendingJoin, now: EventTime) {
        let Some(reviewer) = self.certifier.reviewer_of(&pending_join.token) else {
            let holder = self.mesh.workload(&pending_join.workload);
            // A revoked workload gets the same response as an unknown one.
            let holder = holder
                .filter(|workload| !self.mesh.is_revoked(workload))
                .map(CertificateHolder::from_workload);
            self.certifier.queue_join(pending_join, holder, now.wall_time);
            return;
        };
        let subject = match reviewer.claimed_subject(&pending_join.token, now.wall_time) {
            Ok(subject) => subject,
            Err(error) => return self.reject_join(pending_join, error.into()),
        };
        if let Err(reason) = self.certifier.check_review_permitted(&pending_join, now.clock) {
            return self.reject_join(pending_join, reason.into());
        }
        match subject {
            None => self.certifier.start_review(pending_join, now.clock),
            Some(subject) => {
                self.handle_joining(pending_join, subject, TokenEvidence::UnverifiedText, now)
            }
        }
    }

    /// Processes the result of a token review.
    pub(super) fn handle_review(&mut self, reviewed: ReviewResult, now: EventTime) {
        let ReviewResult { pending_join, subject } = reviewed;
        match subject {
            Err(error) => self.reject_join(pending_join, error.into()),
            Ok(subject) => {
                self.handle_joining(pending_join, subject, TokenEvidence::CompletedReview, now)
            }
        }
    }

    /// Continues a join whose token names this subject. The join waits up to `join_timeout` for its workload to be
    /// reported, if there is room.
    fn handle_joining(
        &mut self,
        pending_join: PendingJoin,
        subject: TokenSubject,
        evidence: TokenEvidence,
        now: EventTime,
    ) {
        if subject.workload != pending_join.workload {
            let (claimed, subject) = (pending_join.workload.clone(), subject.workload);
            let error = CertifyError::OtherSubject { claimed, subject };
            return self.reject_join(pending_join, error);
        }
        let deadline = now.clock + self.times.join_timeout;
        let join_with_mismatch =
            self.decide_join(WaitingJoin { pending_join, subject, evidence, deadline }, now);
        let Some((waiting_join, mismatch)) = join_with_mismatch else { return };
        match self.has_room(&waiting_join) {
            true => self.waiting_joins.push(waiting_join),
            false => self.reject_join(waiting_join.pending_join, mismatch),
        }
    }

    /// Decides waiting joins again, after new reports of workloads or at a deadline.
    pub(super) fn retry_waiting_joins(&mut self, now: EventTime) {
        for waiting_join in std::mem::take(&mut self.waiting_joins) {
            // The client has disconnected.
            if waiting_join.pending_join.reply.is_closed() {
                continue;
            }
            let join_with_mismatch = self.decide_join(waiting_join, now);
            self.waiting_joins.extend(join_with_mismatch.map(|(waiting_join, _)| waiting_join));
        }
    }

    /// Returns the time at which the first waiting join times out.
    pub(super) fn join_deadline(&self) -> Option<Instant> {
        self.waiting_joins.iter().map(|waiting_join| waiting_join.deadline).min()
    }

    /// Accepts or rejects a join. Returns the join and the mismatch if it may still wait for its workload.
    fn decide_join(
        &mut self,
        waiting_join: WaitingJoin,
        now: EventTime,
    ) -> Option<(WaitingJoin, CertifyError)> {
        let workload = self.mesh.workload(&waiting_join.subject.workload);
        match check_subject(&waiting_join.subject, workload) {
            Ok(holder) => self.continue_join(waiting_join, holder, now),
            Err(mismatch) if now.clock < waiting_join.deadline => {
                return Some((waiting_join, mismatch));
            }
            Err(mismatch) => self.reject_join(waiting_join.pending_join, mismatch),
        }
        None
    }

    /// Continues a join whose workload matches the token's subject: starts the review of the token, or signs the
    /// certificate after the review.
    fn continue_join(
        &mut self,
        waiting_join: WaitingJoin,
        holder: CertificateHolder,
        now: EventTime,
    ) {
        let WaitingJoin { pending_join, evidence, .. } = waiting_join;
        match evidence {
            TokenEvidence::UnverifiedText => self.certifier.start_review(pending_join, now.clock),
            TokenEvidence::CompletedReview => match self.revocation_error(&holder) {
                Some(error) => self.reject_join(pending_join, error),
                None => self.certifier.sign_first_certificate(pending_join, holder, now.wall_time),
            },
        }
    }

    /// Rejects a join, and records the rejection for diagnostics.
    fn reject_join(&mut self, pending_join: PendingJoin, error: CertifyError) {
        let workload_exists = self.mesh.workload(&pending_join.workload).is_some();
        self.certifier.reject_join(pending_join, workload_exists, error);
    }

    /// Returns the error for a revoked workload; `None` if it is not revoked.
    fn revocation_error(&self, holder: &CertificateHolder) -> Option<CertifyError> {
        let workload = self.mesh.workload(&holder.name)?;
        if self.mesh.config().revoked.contains(&workload.account) {
            return Some(CertifyError::Revoked(workload.account.clone()));
        }
        let is_revoked = self.mesh.is_revoked(workload);
        is_revoked.then(|| CertifyError::RevokedWorkload(workload.name.clone()))
    }

    /// True if there is room for a waiting join; unverified tokens have few slots per source.
    fn has_room(&self, waiting_join: &WaitingJoin) -> bool {
        if self.waiting_joins.len() >= MAX_WAITING_JOINS {
            return false;
        }
        let source = ConnectionSource::from(waiting_join.pending_join.source);
        let unverified_joins = || {
            self.waiting_joins
                .iter()
                .filter(|other| other.evidence == TokenEvidence::UnverifiedText)
        };
        let joins_of_source = unverified_joins()
            .filter(|other| ConnectionSource::from(other.pending_join.source) == source);
        waiting_join.evidence == TokenEvidence::CompletedReview
            || (joins_of_source.count() < MAX_UNVERIFIED_JOINS_PER_SOURCE
                && unverified_joins().count() < MAX_UNVERIFIED_JOINS)
    }
}

/// Compares the subject of a token with the mesh's workload of that name, and returns the certificate holder.
fn check_subject(
    subject: &TokenSubject,
    existing_workload: Option<&Workload>,
) -> Result<CertificateHolder, CertifyError> {
    let workload = subject.workload.clone();
    let Some(existing_workload) = existing_workload else {
        return Err(CertifyError::UnknownPod(workload));
    };
    if existing_workload.account != subject.account {
        let (held, expected) = (subject.account.clone(), existing_workload.account.clone());
        return Err(CertifyError::OtherAccount { workload, held, expected });
    }
    match (&subject.uid, &existing_workload.uid) {
        (Some(held), Some(expected)) if held != expected => {
            let (held, expected) = (held.clone(), expected.clone());
            Err(CertifyError::OtherPod { workload, held, expected })
        }
        // If one of the two has no UID, the name and the account suffice.
        _ => Ok(CertificateHolder::from_workload(existing_workload)),
    }
}

/// Maximum waiting joins, enough for a new deployment on many machines. Further joins must retry.
const MAX_WAITING_JOINS: usize = 4096;

/// Maximum waiting joins with tokens that are not reviewed yet, in total.
const MAX_UNVERIFIED_JOINS: usize = 1024;

/// Maximum waiting joins with tokens that are not reviewed yet, per source. It is above 1, because pods of a node may
/// share its address.
const MAX_UNVERIFIED_JOINS_PER_SOURCE: usize = 32;
