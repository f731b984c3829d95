//! Joins: with a token of this mesh, or with a token that a reviewer verifies.

use leno_discovery::PendingJoin;
use leno_listen::ConnectionSource;
use leno_model::Workload;
use tokio::time::Instant;

use super::{EventTime, Owner};
use crate::certify::{CertificateHolder, CertifyError, ReviewResult};
use crate::review::TokenSubject;

/// A pending join: no registry has reported the workload as its token describes it. A new pod may join
/// before its registry reports it.
#[derive(Debug)]
pub(crate) struct PendingRegistration {
    joining: PendingJoin,
    subject: TokenSubject,
    evidence: TokenEvidence,
    deadline: Instant,
}

/// The evidence for the subject of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenEvidence {
    /// The text of the token, unverified: the token is reviewed once its workload is known.
    UnverifiedText,
    /// A completed review.
    CompletedReview,
}

impl Owner {
    pub(super) fn join(&mut self, joining: PendingJoin, now: EventTime) {
        let Some(reviewer) = self.certifier.reviewer_of(&joining.token) else {
            let holder = self.mesh.workload(&joining.workload);
            // A revoked workload gets the same response as an unknown one.
            let holder = holder
                .filter(|workload| !self.mesh.is_revoked(workload))
                .map(CertificateHolder::from_workload);
            self.certifier.join(joining, holder, now.wall);
            return;
        };
        let subject = match reviewer.claimed_subject(&joining.token, now.wall) {
            Ok(subject) => subject,
            Err(error) => return self.reject_join(joining, error.into()),
        };
        if let Err(reason) = self.certifier.permit_review(&joining, now.clock) {
            return self.reject_join(joining, reason.into());
        }
        match subject {
            None => self.certifier.start_review(joining, now.clock),
            Some(subject) => {
                self.handle_joining(joining, subject, TokenEvidence::UnverifiedText, now)
            }
        }
    }

    /// Processes the result of a token review.
    pub(super) fn handle_review(&mut self, reviewed: ReviewResult, now: EventTime) {
        let ReviewResult { joining, subject } = reviewed;
        match subject {
            Err(error) => self.reject_join(joining, error.into()),
            Ok(subject) => {
                self.handle_joining(joining, subject, TokenEvidence::CompletedReview, now)
            }
        }
    }

    fn handle_joining(
        &mut self,
        joining: PendingJoin,
        subject: TokenSubject,
        evidence: TokenEvidence,
        now: EventTime,
    ) {
        if subject.workload != joining.workload {
            let (claimed, subject) = (joining.workload.clone(), subject.workload);
            let error = CertifyError::OtherSubject { claimed, subject };
            return self.reject_join(joining, error);
        }
        let deadline = now.clock + self.times.joining;
        let still_waiting =
            self.decide_join(PendingRegistration { joining, subject, evidence, deadline }, now);
        let Some((pending, mismatch)) = still_waiting else { return };
        match self.has_room(&pending) {
            true => self.pending_registrations.push(pending),
            false => self.reject_join(pending.joining, mismatch),
        }
    }

    /// Decides pending joins again, after new reports of workloads or at a deadline.
    pub(super) fn retry_pending_joins(&mut self, now: EventTime) {
        for pending in std::mem::take(&mut self.pending_registrations) {
            if pending.joining.reply.is_closed() {
                continue;
            }
            let still_waiting = self.decide_join(pending, now);
            self.pending_registrations.extend(still_waiting.map(|(pending, _)| pending));
        }
    }

    /// Returns the time at which the first pending join times out.
    pub(super) fn join_deadline(&self) -> Option<Instant> {
        self.pending_registrations.iter().map(|pending| pending.deadline).min()
    }

    /// Accepts or rejects a join; returns one that may still wait for its workload, with the mismatch.
    fn decide_join(
        &mut self,
        pending: PendingRegistration,
        now: EventTime,
    ) -> Option<(PendingRegistration, CertifyError)> {
        let workload = self.mesh.workload(&pending.subject.workload);
        match check_subject(&pending.subject, workload) {
            Ok(holder) => self.continue_join(pending, holder, now),
            Err(mismatch) if now.clock < pending.deadline => return Some((pending, mismatch)),
            Err(mismatch) => self.reject_join(pending.joining, mismatch),
        }
        None
    }

    /// Continues a join whose workload is known as its token describes it: with a review of the token, or with
    /// the signature after the review.
    fn continue_join(
        &mut self,
        pending: PendingRegistration,
        holder: CertificateHolder,
        now: EventTime,
    ) {
        let PendingRegistration { joining, evidence, .. } = pending;
        match evidence {
            TokenEvidence::UnverifiedText => self.certifier.start_review(joining, now.clock),
            TokenEvidence::CompletedReview => match self.revocation_error(&holder) {
                Some(error) => self.reject_join(joining, error),
                None => self.certifier.sign_first_certificate(joining, holder, now.wall),
            },
        }
    }

    fn reject_join(&mut self, joining: PendingJoin, error: CertifyError) {
        let exists = self.mesh.workload(&joining.workload).is_some();
        self.certifier.reject_join(joining, exists, error);
    }

    /// Returns the reason why an existing workload gets no certificate.
    fn revocation_error(&self, holder: &CertificateHolder) -> Option<CertifyError> {
        let workload = self.mesh.workload(&holder.name)?;
        if self.mesh.config().revoked.contains(&workload.account) {
            return Some(CertifyError::Revoked(workload.account.clone()));
        }
        let is_revoked = self.mesh.is_revoked(workload);
        is_revoked.then(|| CertifyError::RevokedWorkload(workload.name.clone()))
    }

    /// True if there is room for a pending join; unverified tokens have few slots per source.
    fn has_room(&self, pending: &PendingRegistration) -> bool {
        if self.pending_registrations.len() >= MAX_PENDING_JOINS {
            return false;
        }
        let source = ConnectionSource::from(pending.joining.source);
        let unverified_joins = || {
            self.pending_registrations
                .iter()
                .filter(|other| other.evidence == TokenEvidence::UnverifiedText)
        };
        let same_source = unverified_joins()
            .filter(|other| ConnectionSource::from(other.joining.source) == source);
        pending.evidence == TokenEvidence::CompletedReview
            || (same_source.count() < MAX_UNVERIFIED_JOINS_PER_SOURCE
                && unverified_joins().count() < MAX_UNVERIFIED_JOINS)
    }
}

/// Compares the subject of a token with the workload of that name.
fn check_subject(
    subject: &TokenSubject,
    existing: Option<&Workload>,
) -> Result<CertificateHolder, CertifyError> {
    let workload = subject.workload.clone();
    let Some(existing) = existing else { return Err(CertifyError::UnknownPod(workload)) };
    if existing.account != subject.account {
        let (held, expected) = (subject.account.clone(), existing.account.clone());
        return Err(CertifyError::OtherAccount { workload, held, expected });
    }
    match (&subject.uid, &existing.uid) {
        (Some(held), Some(expected)) if held != expected => {
            let (held, expected) = (held.clone(), expected.clone());
            Err(CertifyError::OtherPod { workload, held, expected })
        }
        _ => Ok(CertificateHolder::from_workload(existing)),
    }
}

/// Maximum pending joins: a new deployment on many machines. Further joins must retry.
const MAX_PENDING_JOINS: usize = 4096;

/// Maximum pending joins with tokens that are not reviewed yet, in total.
const MAX_UNVERIFIED_JOINS: usize = 1024;

/// Maximum pending joins with tokens that are not reviewed yet, per source: pods of a node may share its
/// address.
const MAX_UNVERIFIED_JOINS_PER_SOURCE: usize = 32;
