//! Signing what a workload asks for, after finding out whether it is the one it says it is.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use leno_discovery::{CertificateAnswer, ConnectionId, IssuedBytes, Joining};
use leno_identity::{
    AuthorityError, CertificateRequest, Issued, Peer, RequestError, Subject, TokenError, Tokens,
};
use leno_model::{ServiceAccount, SpiffeId, TrustDomain, Workload, WorkloadName};
use leno_telemetry::LogLimit;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::authority::Current;
use crate::review::{Holder, ReviewError, Reviewer};

/// The authority's directory in the data directory.
pub(crate) const AUTHORITY_DIRECTORY: &str = "authority";

/// The directory of unused tokens in the data directory.
pub(crate) const TOKENS_DIRECTORY: &str = "tokens";

/// Signs certificates, on threads of their own: a token is a file and a signature is work.
#[derive(Debug)]
pub(crate) struct Certifier {
    desk: Arc<Desk>,
    jobs: JoinSet<Outcome>,
    /// Who knows whose a token is that we did not make.
    reviewer: Option<Arc<dyn Reviewer>>,
    reviews: JoinSet<Reviewed>,
    /// The last certificate of each workload that is known.
    known: BTreeMap<WorkloadName, Signed>,
    pub(crate) issued: u64,
    pub(crate) refused: u64,
}

/// A certificate that was signed, or seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signed {
    pub(crate) workload: WorkloadName,
    pub(crate) id: SpiffeId,
    pub(crate) issued: SystemTime,
    pub(crate) not_after: SystemTime,
    /// Of the authority that signed.
    pub(crate) edition: u64,
}

/// Why a certificate was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Somebody showed a token.
    Join,
    /// The proxy at the other end of this connection wanted a new one.
    Renewal(ConnectionId),
}

/// Something that the certifier has done.
#[derive(Debug)]
pub(crate) enum Done {
    /// It signed a certificate.
    Signed(Signed, Occasion),
    /// It found out whose a token is.
    Reviewed(Reviewed),
}

/// A token of somebody else's making, and whose it is.
#[derive(Debug)]
pub(crate) struct Reviewed {
    pub(crate) joining: Joining,
    pub(crate) holder: Result<Holder, ReviewError>,
}

/// What came of a request.
#[derive(Debug)]
enum Outcome {
    Signed(Signed, Occasion),
    /// It was signed, but whoever asked had gone.
    Unheard,
    Refused,
}

#[derive(Debug)]
struct Desk {
    authority: Current,
    tokens: Arc<Tokens>,
    lifetime: Duration,
}

impl Certifier {
    pub(crate) fn new(authority: Current, tokens: Arc<Tokens>, lifetime: Duration) -> Self {
        Self {
            desk: Arc::new(Desk { authority, tokens, lifetime }),
            jobs: JoinSet::new(),
            reviewer: None,
            reviews: JoinSet::new(),
            known: BTreeMap::new(),
            issued: 0,
            refused: 0,
        }
    }

    /// The same, asking `reviewer` about tokens that it did not make.
    pub(crate) fn asking(mut self, reviewer: Option<Arc<dyn Reviewer>>) -> Self {
        self.reviewer = reviewer;
        self
    }

    /// How long certificates live that are signed now.
    pub(crate) fn lifetime(&self) -> Duration {
        self.desk.lifetime
    }

    /// Has it found out whose a token is that we did not make. What is ours, or all when nobody
    /// could be asked, is given back.
    pub(crate) fn review(&mut self, joining: Joining) -> Option<Joining> {
        let reviewer = self.reviewer.clone().filter(|_| !Tokens::is_ours(&joining.token));
        let Some(reviewer) = reviewer else { return Some(joining) };
        if self.reviews.len() >= JOBS_MAX {
            self.refuse(joining.answer, CertifyError::Busy);
            return None;
        }
        self.reviews.spawn(async move {
            let reviewed = timeout(REVIEW_WAIT, reviewer.review(&joining.token)).await;
            let late = || ReviewError::Unavailable("there was no answer in time".to_owned());
            let holder = reviewed.unwrap_or_else(|_| Err(late()));
            Reviewed { joining, holder }
        });
        None
    }

    /// A first certificate for somebody who has proved to be this workload.
    pub(crate) fn admit(&mut self, joining: Joining, account: ServiceAccount, now: SystemTime) {
        let Joining { workload, csr, answer, .. } = joining;
        self.spawn(answer, Occasion::Join, move |desk| {
            let request = CertificateRequest::from_der(&csr)?;
            desk.sign(&request, (&workload, account), now)
        });
    }

    /// A first certificate in exchange for a one-time token.
    pub(crate) fn join(
        &mut self,
        joining: Joining,
        account: Option<ServiceAccount>,
        now: SystemTime,
    ) {
        let Joining { token, workload, csr, answer } = joining;
        self.spawn(answer, Occasion::Join, move |desk| {
            desk.join(&token, &csr, (&workload, account), now)
        });
    }

    /// A new certificate for a workload whose connection proves who it is.
    pub(crate) fn renew(
        &mut self,
        (connection, workload): (ConnectionId, &Workload),
        csr: Vec<u8>,
        answer: CertificateAnswer,
        now: SystemTime,
    ) {
        let (name, account) = (workload.name.clone(), workload.account.clone());
        self.spawn(answer, Occasion::Renewal(connection), move |desk| {
            let request = CertificateRequest::from_der(&csr)?;
            desk.sign(&request, (&name, account), now)
        });
    }

    /// Says no.
    pub(crate) fn refuse(&mut self, answer: CertificateAnswer, error: CertifyError) {
        self.refused += 1;
        decline(answer, &error);
    }

    /// What it has done next; waits for ever when nothing is under way. Safe to drop while waiting.
    pub(crate) async fn next(&mut self) -> Done {
        loop {
            tokio::select! {
                Some(done) = self.jobs.join_next() => {
                    if let Some((signed, occasion)) = self.finish(done) {
                        return Done::Signed(signed, occasion);
                    }
                }
                Some(reviewed) = self.reviews.join_next() => match reviewed {
                    Ok(reviewed) => return Done::Reviewed(reviewed),
                    Err(error) => {
                        self.refused += 1;
                        tracing::error!(%error, "a review was not finished");
                    }
                },
                else => return std::future::pending().await,
            }
        }
    }

    fn finish(&mut self, done: Result<Outcome, JoinError>) -> Option<(Signed, Occasion)> {
        match done {
            Ok(Outcome::Signed(signed, occasion)) => {
                self.issued += 1;
                self.note(signed.clone());
                return Some((signed, occasion));
            }
            Ok(Outcome::Unheard) => self.issued += 1,
            Ok(Outcome::Refused) => self.refused += 1,
            Err(error) => {
                self.refused += 1;
                tracing::error!(%error, "a signature was not finished");
            }
        }
        None
    }

    /// Remembers the certificate that a workload holds.
    pub(crate) fn note(&mut self, signed: Signed) {
        self.known.insert(signed.workload.clone(), signed);
    }

    pub(crate) fn forget(&mut self, workload: &WorkloadName) {
        self.known.remove(workload);
    }

    /// How many signatures are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn known(&self) -> impl Iterator<Item = &Signed> {
        self.known.values()
    }

    fn spawn(
        &mut self,
        answer: CertificateAnswer,
        occasion: Occasion,
        sign: impl FnOnce(&Desk) -> Result<(Issued, Signed), CertifyError> + Send + 'static,
    ) {
        if self.jobs.len() >= JOBS_MAX {
            self.refuse(answer, CertifyError::Busy);
            return;
        }
        let desk = Arc::clone(&self.desk);
        self.jobs.spawn_blocking(move || match sign(&desk) {
            Ok((issued, signed)) => {
                let told = answer.send(Ok(bytes(&issued)));
                told.map_or(Outcome::Unheard, |()| Outcome::Signed(signed, occasion))
            }
            Err(error) => {
                decline(answer, &error);
                Outcome::Refused
            }
        });
    }
}

impl Desk {
    fn join(
        &self,
        token: &str,
        csr: &[u8],
        (workload, account): (&WorkloadName, Option<ServiceAccount>),
        now: SystemTime,
    ) -> Result<(Issued, Signed), CertifyError> {
        // The request first: a token that is redeemed for nothing is lost.
        let request = CertificateRequest::from_der(csr)?;
        // The token stays good for when the workload exists.
        let account = account.ok_or_else(|| CertifyError::Stranger(workload.clone()))?;
        self.tokens.redeem(token, workload, now)?;
        self.sign(&request, (workload, account), now)
    }

    fn sign(
        &self,
        request: &CertificateRequest,
        (workload, account): (&WorkloadName, ServiceAccount),
        now: SystemTime,
    ) -> Result<(Issued, Signed), CertifyError> {
        let authority = Arc::clone(&self.authority.borrow());
        let id = SpiffeId { trust_domain: authority.trust_domain().clone(), account };
        let subject = Subject { id: &id, workload: Some(workload) };
        let issued = authority.sign(request, subject, self.lifetime, now)?;
        let signed = Signed {
            workload: workload.clone(),
            id,
            issued: now,
            not_after: issued.not_after,
            edition: authority.edition(),
        };
        Ok((issued, signed))
    }
}

/// Whether a certificate lets its holder speak for a workload: it must be that workload's, and of
/// the account that the workload runs under now.
///
/// # Errors
/// [`ClaimError`], in words for whoever operates the proxy.
pub(crate) fn vouch(
    peer: &Peer,
    claimed: &WorkloadName,
    workload: Option<&Workload>,
    trust_domain: &TrustDomain,
) -> Result<(), ClaimError> {
    if peer.workload.as_ref() != Some(claimed) {
        return Err(ClaimError::OtherWorkload {
            claimed: claimed.clone(),
            held: peer.workload.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
    }
    let Some(workload) = workload else {
        return Err(ClaimError::UnknownWorkload(claimed.clone()));
    };
    let expected =
        SpiffeId { trust_domain: trust_domain.clone(), account: workload.account.clone() };
    if peer.id != expected {
        return Err(ClaimError::OtherIdentity {
            workload: claimed.clone(),
            held: Box::new(peer.id.clone()),
            expected: Box::new(expected),
        });
    }
    Ok(())
}

/// Why a proxy may not speak for a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the certificate is that of workload `{held}` and not of {claimed}")]
    OtherWorkload { claimed: WorkloadName, held: String },
    #[error("there is no Workload {0}: create it, or use the name of one that exists")]
    UnknownWorkload(WorkloadName),
    #[error(
        "workload {workload} runs as {expected} and the certificate is for {held}: join again \
         with a new token"
    )]
    OtherIdentity { workload: WorkloadName, held: Box<SpiffeId>, expected: Box<SpiffeId> },
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertifyError {
    #[error("there is no Workload {0}: create it first")]
    UnknownWorkload(WorkloadName),
    /// The same, asked by somebody who has no certificate.
    #[error("there is no Workload {0}: create it first")]
    Stranger(WorkloadName),
    #[error("{0} is revoked: the MeshConfig says so")]
    Revoked(ServiceAccount),
    #[error("too many certificates are being signed: try again")]
    Busy,
    /// Whose a token is that we did not make.
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error("the token is that of pod {holder}, and not of {claimed}")]
    OtherHolder { claimed: WorkloadName, holder: WorkloadName },
    #[error(
        "pod {0} is not known as a workload of the mesh: it may have gone, or has not got its \
         address yet; it is tried again"
    )]
    Unseen(WorkloadName),
    #[error("the token is of account {held}, and workload {workload} runs as {expected}")]
    OtherAccount { workload: WorkloadName, held: ServiceAccount, expected: ServiceAccount },
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl CertifyError {
    /// What the other side may read. What is wrong with our own disk is none of its business, and
    /// a stranger does not learn from a guess which workloads there are, or whose a token is.
    fn explained(&self) -> String {
        match self {
            Self::Token(TokenError::Io(_)) | Self::Review(ReviewError::Unavailable(_)) => {
                "the control plane cannot check join tokens at the moment".to_owned()
            }
            Self::Authority(_) => {
                "the control plane cannot sign certificates at the moment".to_owned()
            }
            Self::Token(_) | Self::Stranger(_) => NOT_WELCOME.to_owned(),
            other => other.to_string(),
        }
    }
}

/// The log lines about refused requests, together: clients that have no certificate are not told apart.
static REFUSED: Mutex<LogLimit> = Mutex::new(LogLimit::new());

/// Says no, and keeps the whole reason in the log.
fn decline(answer: CertificateAnswer, error: &CertifyError) {
    let line = REFUSED.lock().unwrap_or_else(PoisonError::into_inner).permit(Instant::now());
    if let Some(suppressed) = line.map(|line| line.suppressed) {
        match error {
            CertifyError::Token(TokenError::Io(_))
            | CertifyError::Review(ReviewError::Unavailable(_))
            | CertifyError::Authority(_) => {
                tracing::error!(%error, suppressed, "a certificate cannot be made");
            }
            _ => tracing::warn!(%error, suppressed, "a certificate is refused"),
        }
    }
    // Whoever asked may have gone.
    answer.send(Err(error.explained())).ok();
}

/// Opens the directory of tokens, of which expired ones are removed.
pub(crate) fn open_tokens(data: &Path, now: SystemTime) -> io::Result<Tokens> {
    let tokens = Tokens::open(&data.join(TOKENS_DIRECTORY))?;
    tokens.sweep(now)?;
    Ok(tokens)
}

fn bytes(issued: &Issued) -> IssuedBytes {
    IssuedBytes {
        chain: issued.chain.iter().map(|der| der.to_vec()).collect(),
        roots: issued.roots.certificates().iter().map(|der| der.to_vec()).collect(),
    }
}

/// The one answer to all whose token is not good for the workload that they name.
const NOT_WELCOME: &str = "the join token is not known, has expired, was used already, was made for \
                           another workload, or its Workload does not exist: create the Workload, \
                           and make a new token for it";

/// Signatures under way at once, and reviews.
const JOBS_MAX: usize = 64;

/// How long it may take to find out whose a token is: what joins waits a few seconds in all.
const REVIEW_WAIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
