//! Joining: with a token of ours, or as whoever somebody else says that the holder of a token is.

use leno_discovery::Joining;
use tokio::time::Instant;

use super::{Now, Owner};
use crate::certify::{CertifyError, Reviewed};
use crate::review::Holder;

/// Somebody who proved who it is, and whose workload is not known yet as it says: a new pod may ask
/// before the source has told of it.
#[derive(Debug)]
pub(crate) struct Applicant {
    joining: Joining,
    holder: Holder,
    until: Instant,
}

impl Owner {
    pub(super) fn join(&mut self, joining: Joining, now: Now) {
        let Some(joining) = self.certifier.review(joining) else { return };
        let workload = self.mesh.workload(&joining.workload);
        let account = workload.map(|workload| workload.account.clone());
        // Told as little as any stranger.
        let account = account.filter(|account| !self.mesh.config().revoked.contains(account));
        self.certifier.join(joining, account, now.wall);
    }

    /// It is known whose a token is, or why not.
    pub(super) fn reviewed(&mut self, reviewed: Reviewed, now: Now) {
        let Reviewed { joining, holder } = reviewed;
        match holder {
            Err(error) => self.certifier.refuse(joining.answer, error.into()),
            Ok(Holder { workload: holder, .. }) if holder != joining.workload => {
                let claimed = joining.workload;
                let error = CertifyError::OtherHolder { claimed, holder };
                self.certifier.refuse(joining.answer, error);
            }
            Ok(holder) => {
                let until = now.clock + self.times.newcomer;
                self.consider(Applicant { joining, holder, until }, now);
            }
        }
    }

    /// Looks again whether the workloads of those who wait are known by now.
    pub(super) fn consider_all(&mut self, now: Now) {
        for applicant in std::mem::take(&mut self.applicants) {
            if !applicant.joining.answer.is_closed() {
                self.consider(applicant, now);
            }
        }
    }

    /// When somebody has waited long enough.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.applicants.iter().map(|applicant| applicant.until).min()
    }

    fn consider(&mut self, applicant: Applicant, now: Now) {
        let Holder { workload: name, account: held } = &applicant.holder;
        let expected = self.mesh.workload(name).map(|workload| workload.account.clone());
        if expected.as_ref() == Some(held) {
            let Applicant { joining, holder, .. } = applicant;
            match self.mesh.config().revoked.contains(&holder.account) {
                true => {
                    let error = CertifyError::Revoked(holder.account);
                    self.certifier.refuse(joining.answer, error);
                }
                false => self.certifier.admit(joining, holder.account, now.wall),
            }
            return;
        }
        if now.clock < applicant.until && self.applicants.len() < APPLICANTS_MAX {
            self.applicants.push(applicant);
            return;
        }
        let (workload, held) = (name.clone(), held.clone());
        let error = match expected {
            Some(expected) => CertifyError::OtherAccount { workload, held, expected },
            None => CertifyError::Unseen(workload),
        };
        self.certifier.refuse(applicant.joining.answer, error);
    }
}

/// Who may wait at once: a new deployment on many machines; more are told to try again.
const APPLICANTS_MAX: usize = 4096;
