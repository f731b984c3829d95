//! Signs certificates: verifies the identity of joining and renewing clients, and issues their certificates.

mod claim;
mod error;
mod fair_queue;
mod reviews;
mod suspects;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use leno_discovery::{CertificateReply, ConnectionId, IssuedCertificate, PendingJoin};
use leno_identity::{
    CertificateBundle, CertificateRequest, CertificateSubject, Registrations, TokenError, Tokens,
};
use leno_listen::ConnectionSource;
use leno_model::{Instance, ServiceAccount, SpiffeId, Uid, Workload, WorkloadName};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::authority::AuthorityReceiver;
use crate::rejected_joins::RejectedJoins;
use crate::review::{ReviewError, Reviewer};
use claim::renewed_instance;
use error::REJECTION_LOG_LIMIT;
use fair_queue::FairQueue;
use reviews::TokenReviews;

pub(crate) use claim::{ClaimError, PreviousCertificate, verify_claim};
pub(crate) use error::CertifyError;
pub(crate) use reviews::{ReviewNotStarted, ReviewResult};

/// The authority's directory in the data directory.
pub(crate) const AUTHORITY_DIRECTORY: &str = "authority";

/// The directory of unused tokens in the data directory.
pub(crate) const TOKENS_DIRECTORY: &str = "tokens";

/// The directory of registrations in the data directory.
const REGISTRATIONS_DIRECTORY: &str = "registrations";

/// The tokens and registrations by which a workload gets its first certificate.
#[derive(Debug)]
pub(crate) struct JoinCredentials {
    /// Unused one-time tokens.
    pub(crate) tokens: Arc<Tokens>,
    /// The newest registration of each workload.
    pub(crate) registrations: Registrations,
}

/// Signs certificates on blocking threads, because tokens are files and signatures take CPU time.
#[derive(Debug)]
pub(crate) struct Certifier {
    signer: Arc<Signer>,
    signing_jobs: JoinSet<SigningOutcome>,
    /// Joins in progress with tokens of this mesh.
    join_jobs: JoinSet<SigningOutcome>,
    /// Joins with tokens of this mesh that wait for a slot.
    queued_joins: FairQueue<(PendingJoin, Option<CertificateHolder>)>,
    reviews: TokenReviews,
    /// The last certificate of each known workload.
    certificates: BTreeMap<WorkloadName, SignedCertificate>,
    /// The newest known registration of each workload that joined with a token.
    latest_registrations: BTreeMap<WorkloadName, u64>,
    rejected_joins: Arc<RejectedJoins>,
    /// The number of certificates issued since the start.
    pub(crate) issued_count: u64,
    /// The number of requests rejected since the start.
    pub(crate) rejected_count: u64,
}

/// A signed certificate, issued here or presented by a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedCertificate {
    pub(crate) workload: WorkloadName,
    pub(crate) id: SpiffeId,
    /// The holder of the workload name; `None` in certificates of older releases.
    pub(crate) instance: Option<Instance>,
    pub(crate) issued: SystemTime,
    pub(crate) not_after: SystemTime,
    /// The CA generation that signed it.
    pub(crate) ca_generation: u64,
}

/// The reason for a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SigningReason {
    /// A client presented a token.
    Join,
    /// The proxy on this connection requested a renewal.
    Renewal(ConnectionId),
}

/// A completed action of the certifier.
#[derive(Debug)]
pub(crate) enum CertifierEvent {
    /// A certificate was signed.
    Signed(SignedCertificate, SigningReason),
    /// A token was reviewed.
    Reviewed(ReviewResult),
}

/// The workload that a new certificate is issued to, with its current account and UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateHolder {
    pub(crate) name: WorkloadName,
    pub(crate) account: ServiceAccount,
    pub(crate) uid: Option<Uid>,
}

impl CertificateHolder {
    pub(crate) fn from_workload(workload: &Workload) -> Self {
        Self {
            name: workload.name.clone(),
            account: workload.account.clone(),
            uid: workload.uid.clone(),
        }
    }
}

/// The outcome of a signing request.
#[derive(Debug)]
enum SigningOutcome {
    Signed(SignedCertificate, SigningReason),
    /// Signed, but the client had disconnected.
    Undelivered,
    Rejected,
}

#[derive(Debug)]
struct Signer {
    authority: AuthorityReceiver,
    join_credentials: Arc<JoinCredentials>,
    lifetime: Duration,
}

impl Certifier {
    pub(crate) fn new(
        authority: AuthorityReceiver,
        join_credentials: Arc<JoinCredentials>,
        lifetime: Duration,
    ) -> Self {
        Self {
            signer: Arc::new(Signer { authority, join_credentials, lifetime }),
            signing_jobs: JoinSet::new(),
            join_jobs: JoinSet::new(),
            queued_joins: FairQueue::new(),
            reviews: TokenReviews::new(),
            certificates: BTreeMap::new(),
            latest_registrations: BTreeMap::new(),
            rejected_joins: Arc::default(),
            issued_count: 0,
            rejected_count: 0,
        }
    }

    /// Sets the `reviewer` of tokens of another issuer (Kubernetes).
    pub(crate) fn with_reviewer(mut self, reviewer: Option<Arc<dyn Reviewer>>) -> Self {
        self.reviews.set_reviewer(reviewer);
        self
    }

    /// Returns the lifetime of certificates that are signed now.
    pub(crate) fn certificate_lifetime(&self) -> Duration {
        self.signer.lifetime
    }

    /// Returns the reviewer of this token; `None` if the token is one of this mesh, or no reviewer is configured.
    pub(crate) fn reviewer_of(&self, token: &str) -> Option<&Arc<dyn Reviewer>> {
        self.reviews.reviewer().filter(|_| !Tokens::has_token_prefix(token))
    }

    /// Returns `Ok` if a token may be reviewed: it was not just rejected, and its source is not suspended.
    pub(crate) fn check_review_permitted(
        &self,
        pending_join: &PendingJoin,
        now: Instant,
    ) -> Result<(), ReviewNotStarted> {
        self.reviews.check_review_permitted(pending_join, now)
    }

    /// Starts the review of a token of another issuer.
    pub(crate) fn start_review(&mut self, pending_join: PendingJoin, now: Instant) {
        if let Some((pending_join, reason)) = self.reviews.start_review(pending_join, now) {
            self.reject_request(pending_join.reply, reason.into());
        }
    }

    /// Signs the first certificate of a workload after the review of its token.
    pub(crate) fn sign_first_certificate(
        &mut self,
        pending_join: PendingJoin,
        holder: CertificateHolder,
        now: SystemTime,
    ) {
        let PendingJoin { csr, reply, .. } = pending_join;
        self.spawn_signing(reply, SigningReason::Join, move |signer| {
            let request = CertificateRequest::from_der(&csr)?;
            let instance = signer.current_instance(&holder)?;
            signer.sign(&request, &holder, instance, now)
        });
    }

    /// Queues a join with a one-time token of this mesh, which signs the first certificate of a workload. `holder` is
    /// `None` if the mesh does not have the workload. The queue serves sources in turn.
    pub(crate) fn queue_join(
        &mut self,
        pending_join: PendingJoin,
        holder: Option<CertificateHolder>,
        now: SystemTime,
    ) {
        let source = ConnectionSource::from(pending_join.source);
        if let Some((rejected, _)) = self.queued_joins.push(source, (pending_join, holder)) {
            self.reject_request(rejected.reply, CertifyError::Busy);
        }
        self.start_queued_joins(now);
    }

    fn start_queued_joins(&mut self, now: SystemTime) {
        while self.join_jobs.len() < MAX_JOINS
            && let Some((_, (pending_join, holder))) = self.queued_joins.pop(|_| true)
        {
            let PendingJoin { token, workload, csr, reply, .. } = pending_join;
            // The client has disconnected.
            if reply.is_closed() {
                continue;
            }
            let rejected_joins = Arc::clone(&self.rejected_joins);
            let sign = move |signer: &Signer| {
                let exists = holder.is_some();
                let join_result = signer.redeem_token(&token, &csr, workload.clone(), holder, now);
                match &join_result {
                    Ok(_) => rejected_joins.remove_joined(&workload),
                    Err(error) => {
                        rejected_joins.record_rejection(
                            &workload,
                            exists,
                            &error.to_string(),
                            Instant::now(),
                        );
                    }
                }
                join_result
            };
            let job = signing_job(Arc::clone(&self.signer), reply, SigningReason::Join, sign);
            self.join_jobs.spawn_blocking(job);
        }
    }

    /// Renews the certificate of a workload that authenticated with its connection.
    pub(crate) fn renew_certificate(
        &mut self,
        connection: ConnectionId,
        workload: &Workload,
        previous: PreviousCertificate,
        csr: Vec<u8>,
        reply: CertificateReply,
        now: SystemTime,
    ) {
        let holder = CertificateHolder::from_workload(workload);
        self.spawn_signing(reply, SigningReason::Renewal(connection), move |signer| {
            let request = CertificateRequest::from_der(&csr)?;
            let instance =
                renewed_instance(&holder.name, &previous, &signer.current_instance(&holder)?)?;
            signer.sign(&request, &holder, instance, now)
        });
    }

    /// Rejects a request: counts it, and sends the reason to the client.
    pub(crate) fn reject_request(&mut self, reply: CertificateReply, error: CertifyError) {
        self.rejected_count += 1;
        send_rejection(reply, &error);
    }

    /// Rejects a join, and records the reason for operators. `exists` is true if the mesh has the workload.
    pub(crate) fn reject_join(
        &mut self,
        pending_join: PendingJoin,
        exists: bool,
        error: CertifyError,
    ) {
        let reason = error.to_string();
        self.rejected_joins.record_rejection(
            &pending_join.workload,
            exists,
            &reason,
            Instant::now(),
        );
        self.reject_request(pending_join.reply, error);
    }

    /// Returns the rejected joins.
    pub(crate) fn rejected_joins(&self) -> &RejectedJoins {
        &self.rejected_joins
    }

    /// Waits for the next completed action; pends forever if no work is in progress. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> CertifierEvent {
        loop {
            tokio::select! {
                Some(result) = self.signing_jobs.join_next() => {
                    if let Some((certificate, reason)) = self.record_outcome(result) {
                        return CertifierEvent::Signed(certificate, reason);
                    }
                }
                Some(result) = self.join_jobs.join_next() => {
                    self.start_queued_joins(SystemTime::now());
                    if let Some((certificate, reason)) = self.record_outcome(result) {
                        return CertifierEvent::Signed(certificate, reason);
                    }
                }
                Some(reviewed) = self.reviews.next_result() => return CertifierEvent::Reviewed(reviewed),
                else => return std::future::pending().await,
            }
        }
    }

    /// Counts the outcome of a job, and records the certificate of a delivered response. Returns this certificate with
    /// the reason for its signature; `None` if none was delivered.
    fn record_outcome(
        &mut self,
        result: Result<SigningOutcome, JoinError>,
    ) -> Option<(SignedCertificate, SigningReason)> {
        match result {
            Ok(SigningOutcome::Signed(certificate, reason)) => {
                self.issued_count += 1;
                self.record_certificate(certificate.clone());
                return Some((certificate, reason));
            }
            Ok(SigningOutcome::Undelivered) => self.issued_count += 1,
            Ok(SigningOutcome::Rejected) => self.rejected_count += 1,
            Err(error) => {
                self.rejected_count += 1;
                tracing::error!(%error, "certificate signing did not complete");
            }
        }
        None
    }

    /// Records the certificate that a workload holds.
    pub(crate) fn record_certificate(&mut self, certificate: SignedCertificate) {
        if let Some(Instance::Registration(number)) = certificate.instance {
            let latest_number =
                self.latest_registrations.entry(certificate.workload.clone()).or_default();
            *latest_number = number.max(*latest_number);
        }
        self.rejected_joins.remove_joined(&certificate.workload);
        self.certificates.insert(certificate.workload.clone(), certificate);
    }

    pub(crate) fn forget_workload(&mut self, workload: &WorkloadName) {
        self.certificates.remove(workload);
        self.latest_registrations.remove(workload);
    }

    /// Reads the newest registration of a workload, because the workload may have joined at another control plane with
    /// the same files. The file is small, so it is read on this task. Pods have no registration.
    pub(crate) fn read_registration(&mut self, workload_object: &Workload) {
        let workload = &workload_object.name;
        if workload_object.uid.is_some() {
            return;
        }
        match self.signer.join_credentials.registrations.latest_number(workload) {
            // The workload has no registration.
            Ok(0) => {}
            Ok(latest_number) => {
                self.latest_registrations.insert(workload.clone(), latest_number);
            }
            Err(error) => {
                tracing::error!(%error, %workload, "cannot read the registration of the workload")
            }
        }
    }

    /// Returns the current instance of a workload, by its last known registration; 0 if it never joined with a token.
    pub(crate) fn instance_of(&self, workload: &Workload) -> Instance {
        match &workload.uid {
            Some(uid) => Instance::Pod(uid.clone()),
            None => {
                let latest_number = self.latest_registrations.get(&workload.name).copied();
                Instance::Registration(latest_number.unwrap_or_default())
            }
        }
    }

    /// Returns the number of signatures in progress.
    pub(crate) fn in_progress_count(&self) -> usize {
        self.signing_jobs.len() + self.join_jobs.len()
    }

    pub(crate) fn latest_certificates(&self) -> impl Iterator<Item = &SignedCertificate> {
        self.certificates.values()
    }

    fn spawn_signing(
        &mut self,
        reply: CertificateReply,
        reason: SigningReason,
        sign: impl FnOnce(&Signer) -> Result<(CertificateBundle, SignedCertificate), CertifyError>
        + Send
        + 'static,
    ) {
        if self.signing_jobs.len() >= MAX_SIGNING_JOBS {
            self.reject_request(reply, CertifyError::Busy);
            return;
        }
        let job = signing_job(Arc::clone(&self.signer), reply, reason, sign);
        self.signing_jobs.spawn_blocking(job);
    }
}

/// Returns a job that signs a certificate with `sign`, and sends the response.
fn signing_job(
    signer: Arc<Signer>,
    reply: CertificateReply,
    reason: SigningReason,
    sign: impl FnOnce(&Signer) -> Result<(CertificateBundle, SignedCertificate), CertifyError>
    + Send
    + 'static,
) -> impl FnOnce() -> SigningOutcome + Send + 'static {
    move || match sign(&signer) {
        Ok((bundle, certificate)) => {
            let delivery = reply.send(Ok(encode_bundle(&bundle)));
            delivery.map_or(SigningOutcome::Undelivered, |()| {
                SigningOutcome::Signed(certificate, reason)
            })
        }
        Err(error) => {
            send_rejection(reply, &error);
            SigningOutcome::Rejected
        }
    }
}

impl Signer {
    /// Redeems a one-time token, registers the workload, and signs its first certificate.
    fn redeem_token(
        &self,
        token: &str,
        csr: &[u8],
        workload: WorkloadName,
        holder: Option<CertificateHolder>,
        now: SystemTime,
    ) -> Result<(CertificateBundle, SignedCertificate), CertifyError> {
        // The request is parsed first: a token redeemed for an invalid request would be lost.
        let request = CertificateRequest::from_der(csr)?;
        // The token stays valid until the workload exists.
        let holder =
            holder.ok_or_else(|| CertifyError::UnknownJoiningWorkload(workload.clone()))?;
        self.join_credentials.tokens.redeem(token, &workload, now)?;
        let instance = match &holder.uid {
            Some(uid) => Instance::Pod(uid.clone()),
            None => {
                let number = self.join_credentials.registrations.register(&workload, now);
                Instance::Registration(number.map_err(CertifyError::Registration)?)
            }
        };
        self.sign(&request, &holder, instance, now)
    }

    /// Returns the current instance of the workload.
    fn current_instance(&self, holder: &CertificateHolder) -> Result<Instance, CertifyError> {
        let Some(uid) = &holder.uid else {
            let latest_number = self.join_credentials.registrations.latest_number(&holder.name);
            return latest_number.map(Instance::Registration).map_err(CertifyError::Registration);
        };
        Ok(Instance::Pod(uid.clone()))
    }

    fn sign(
        &self,
        request: &CertificateRequest,
        holder: &CertificateHolder,
        instance: Instance,
        now: SystemTime,
    ) -> Result<(CertificateBundle, SignedCertificate), CertifyError> {
        let authority = Arc::clone(&self.authority.borrow());
        let account = holder.account.clone();
        let id = SpiffeId { trust_domain: authority.trust_domain().clone(), account };
        let subject =
            CertificateSubject { id: &id, workload: Some(&holder.name), instance: Some(&instance) };
        let bundle = authority.sign(request, subject, self.lifetime, now)?;
        let certificate = SignedCertificate {
            workload: holder.name.clone(),
            id,
            instance: Some(instance),
            issued: now,
            not_after: bundle.not_after,
            ca_generation: authority.ca_generation(),
        };
        Ok((bundle, certificate))
    }
}

/// Rejects a request and logs the full reason.
fn send_rejection(reply: CertificateReply, error: &CertifyError) {
    // Any client could fill the log with these errors, so they are logged only at the debug level.
    if matches!(
        error,
        CertifyError::ReviewNotStarted(_)
            | CertifyError::Busy
            | CertifyError::UnknownJoiningWorkload(_)
    ) {
        tracing::debug!(%error, "certificate request rejected");
        reply.send(Err(error.client_reason())).ok();
        return;
    }
    let line = REJECTION_LOG_LIMIT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .permit_line(Instant::now().into_std());
    if let Some(suppressed) = line.map(|line| line.suppressed) {
        match error {
            CertifyError::Token(TokenError::Io(_))
            | CertifyError::Registration(_)
            | CertifyError::Review(ReviewError::Unavailable(_))
            | CertifyError::Authority(_) => {
                tracing::error!(%error, suppressed, "cannot issue a certificate");
            }
            _ => tracing::warn!(%error, suppressed, "certificate request rejected"),
        }
    }
    // The client may have disconnected.
    reply.send(Err(error.client_reason())).ok();
}

/// Opens the directories of tokens and of registrations; expired registrations are removed.
pub(crate) fn open_join_credentials(data: &Path, now: SystemTime) -> io::Result<JoinCredentials> {
    let tokens = Arc::new(Tokens::open(&data.join(TOKENS_DIRECTORY))?);
    tokens.remove_expired(now)?;
    let registrations = Registrations::open(&data.join(REGISTRATIONS_DIRECTORY))?;
    registrations.remove_expired(now)?;
    Ok(JoinCredentials { tokens, registrations })
}

fn encode_bundle(bundle: &CertificateBundle) -> IssuedCertificate {
    IssuedCertificate {
        chain: bundle.chain.iter().map(|der| der.to_vec()).collect(),
        roots: bundle.roots.certificates().iter().map(|der| der.to_vec()).collect(),
    }
}

/// The response to every token that is not valid for the named workload, regardless of the reason.
const INVALID_TOKEN_REASON: &str = "the join token is unknown, has expired, was used already, was issued for another workload, or its Workload does not \
     exist: create the Workload and a new token for it";

/// Maximum signatures in progress, excluding joins with tokens.
const MAX_SIGNING_JOBS: usize = 64;

/// Maximum joins in progress with tokens of this mesh, so that token guessing leaves threads for renewals.
const MAX_JOINS: usize = 32;

#[cfg(test)]
mod tests;
