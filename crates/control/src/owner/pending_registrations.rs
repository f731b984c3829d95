//! Joins: with a token of this mesh, or with a token that a reviewer verifies.

use leno_discovery::PendingJoin;
use leno_listen::ConnectionSource;
use leno_model::Workload;
use tokio::time::Instant;

use super::{EventTime, Owner};
use crate::certify::{CertificateHolder, CertifyError, ReviewResult};
use crate::review::TokenSubject;

/// A pending join: its token names a workload that is not known in this form yet, since a new pod may join
/// before the source has reported it.
#[derive(Debug)]
pub(crate) struct PendingRegistration {
    joining: PendingJoin,
    holder: TokenSubject,
    proof: TokenEvidence,
    until: Instant,
}

/// The evidence that a token belongs to its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenEvidence {
    /// The unverified text of the token: it is reviewed once its workload is known.
    Text,
    /// A completed review.
    Review,
}

impl Owner {
    pub(super) fn join(&mut self, joining: PendingJoin, now: EventTime) {
        let Some(reviewer) = self.certifier.reviewer_of(&joining.token) else {
            let target = self.mesh.workload(&joining.workload);
            // A revoked workload gets the same response as an unknown one.
            let target =
                target.filter(|it| !self.mesh.is_revoked(it)).map(CertificateHolder::from_workload);
            self.certifier.join(joining, target, now.wall);
            return;
        };
        let holder = match reviewer.claimed_holder(&joining.token, now.wall) {
            Ok(holder) => holder,
            Err(error) => return self.reject_join(joining, error.into()),
        };
        if let Err(reason) = self.certifier.permit_review(&joining, now.clock) {
            return self.reject_join(joining, reason.into());
        }
        match holder {
            None => self.certifier.start_review(joining, now.clock),
            Some(holder) => self.handle_joining(joining, holder, TokenEvidence::Text, now),
        }
    }

    /// Processes the result of a token review.
    pub(super) fn handle_review(&mut self, reviewed: ReviewResult, now: EventTime) {
        let ReviewResult { joining, holder } = reviewed;
        match holder {
            Err(error) => self.reject_join(joining, error.into()),
            Ok(holder) => self.handle_joining(joining, holder, TokenEvidence::Review, now),
        }
    }

    fn handle_joining(
        &mut self,
        joining: PendingJoin,
        holder: TokenSubject,
        proof: TokenEvidence,
        now: EventTime,
    ) {
        if holder.workload != joining.workload {
            let (claimed, holder) = (joining.workload.clone(), holder.workload);
            let error = CertifyError::OtherHolder { claimed, holder };
            return self.reject_join(joining, error);
        }
        let until = now.clock + self.times.joining;
        let waits = self.decide_join(PendingRegistration { joining, holder, proof, until }, now);
        let Some((pending, mismatch)) = waits else { return };
        match self.has_room(&pending) {
            true => self.pending_registrations.push(pending),
            false => self.reject_join(pending.joining, mismatch),
        }
    }

    /// Checks again if the workloads of pending joins are known by now.
    pub(super) fn consider_all(&mut self, now: EventTime) {
        for pending in std::mem::take(&mut self.pending_registrations) {
            if pending.joining.answer.is_closed() {
                continue;
            }
            let waits = self.decide_join(pending, now);
            self.pending_registrations.extend(waits.map(|(pending, _)| pending));
        }
    }

    /// Returns the time at which the first pending join times out.
    pub(super) fn max_wait_ends(&self) -> Option<Instant> {
        self.pending_registrations.iter().map(|pending| pending.until).min()
    }

    /// Accepts or rejects a join; returns one that may still wait for its workload, with the mismatch.
    fn decide_join(
        &mut self,
        pending: PendingRegistration,
        now: EventTime,
    ) -> Option<(PendingRegistration, CertifyError)> {
        let found = self.mesh.workload(&pending.holder.workload);
        match check_holder(&pending.holder, found) {
            Ok(target) => self.accept_join(pending, target, now),
            Err(mismatch) if now.clock < pending.until => return Some((pending, mismatch)),
            Err(mismatch) => self.reject_join(pending.joining, mismatch),
        }
        None
    }

    /// Accepts a join: its workload is known as the token describes it.
    fn accept_join(
        &mut self,
        pending: PendingRegistration,
        target: CertificateHolder,
        now: EventTime,
    ) {
        let PendingRegistration { joining, proof, .. } = pending;
        match proof {
            TokenEvidence::Text => self.certifier.start_review(joining, now.clock),
            TokenEvidence::Review => match self.revocation_error(&target) {
                Some(error) => self.reject_join(joining, error),
                None => self.certifier.issue_first(joining, target, now.wall),
            },
        }
    }

    fn reject_join(&mut self, joining: PendingJoin, error: CertifyError) {
        let exists = self.mesh.workload(&joining.workload).is_some();
        self.certifier.reject_join(joining, exists, error);
    }

    /// Returns the reason why an existing workload gets no certificate.
    fn revocation_error(&self, target: &CertificateHolder) -> Option<CertifyError> {
        let found = self.mesh.workload(&target.name)?;
        if self.mesh.config().revoked.contains(&found.account) {
            return Some(CertifyError::Revoked(found.account.clone()));
        }
        let is_revoked = self.mesh.is_revoked(found);
        is_revoked.then(|| CertifyError::RevokedWorkload(found.name.clone()))
    }

    /// True if there is room for a pending join; unverified tokens have few slots per source.
    fn has_room(&self, pending: &PendingRegistration) -> bool {
        if self.pending_registrations.len() >= APPLICANTS_MAX {
            return false;
        }
        let source = ConnectionSource::from(pending.joining.source);
        let unproved =
            || self.pending_registrations.iter().filter(|other| other.proof == TokenEvidence::Text);
        let own = unproved().filter(|other| ConnectionSource::from(other.joining.source) == source);
        pending.proof == TokenEvidence::Review
            || (own.count() < UNPROVED_PER_SOURCE && unproved().count() < UNPROVED_MAX)
    }
}

/// Compares the subject of a token with the workload of that name.
fn check_holder(
    holder: &TokenSubject,
    found: Option<&Workload>,
) -> Result<CertificateHolder, CertifyError> {
    let workload = holder.workload.clone();
    let Some(found) = found else { return Err(CertifyError::Unseen(workload)) };
    if found.account != holder.account {
        let (held, expected) = (holder.account.clone(), found.account.clone());
        return Err(CertifyError::OtherAccount { workload, held, expected });
    }
    match (&holder.uid, &found.uid) {
        (Some(held), Some(expected)) if held != expected => {
            let (held, expected) = (held.clone(), expected.clone());
            Err(CertifyError::OtherPod { workload, held, expected })
        }
        _ => Ok(CertificateHolder::from_workload(found)),
    }
}

/// Maximum pending joins: a new deployment on many machines. Further joins must retry.
const APPLICANTS_MAX: usize = 4096;

/// Of these, the maximum with tokens that are not reviewed yet,
const UNPROVED_MAX: usize = 1024;

/// and per source: the pods of a node that share its address.
const UNPROVED_PER_SOURCE: usize = 32;
