//! Defines the reasons for rejected certificate requests, and the text that a client receives for each of them.

use std::io;
use std::sync::Mutex;

use leno_discovery::IssuanceFailure;
use leno_identity::{AuthorityError, CertificateRequestError, TokenError};
use leno_model::{ServiceAccount, Uid, WorkloadName};
use leno_telemetry::LogLimit;

use super::{ClaimError, INVALID_TOKEN_REASON, ReviewNotStarted};
use crate::review::ReviewError;

/// The reason for a rejected certificate request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertifyError {
    #[error("there is no Workload {0}: create it first")]
    UnknownWorkload(WorkloadName),
    /// Like `UnknownWorkload`, for a client without a certificate: it receives a reason that does not reveal which
    /// workloads exist.
    #[error("there is no Workload {0}: create it first")]
    UnknownJoiningWorkload(WorkloadName),
    #[error("{0} is revoked by the MeshConfig")]
    Revoked(ServiceAccount),
    #[error(
        "workload {0} is revoked: remove it from `spec.revoked` of the MeshConfig, or use `leno \
         revoke --undo`"
    )]
    RevokedWorkload(WorkloadName),
    #[error("too many certificates are being signed: retry later")]
    Busy,
    /// The review of a token failed.
    #[error(transparent)]
    Review(#[from] ReviewError),
    /// The review of the token was not started.
    #[error(transparent)]
    ReviewNotStarted(#[from] ReviewNotStarted),
    /// The certificate cannot be renewed.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The directory of registrations cannot be used.
    #[error("the registration of the workload cannot be read or written: {0}")]
    Registration(#[source] io::Error),
    #[error(
        "the token was issued to pod {workload} with UID {held}, but that pod now has UID {expected}"
    )]
    OtherPod { workload: WorkloadName, held: Uid, expected: Uid },
    #[error("the token was issued to pod {subject}, not {claimed}")]
    OtherSubject { claimed: WorkloadName, subject: WorkloadName },
    #[error(
        "pod {0} is not a known workload of the mesh: it was deleted, or has no IP address yet; the proxy retries"
    )]
    UnknownPod(WorkloadName),
    #[error("the token was issued to account {held}, but workload {workload} runs as {expected}")]
    OtherAccount { workload: WorkloadName, held: ServiceAccount, expected: ServiceAccount },
    #[error(transparent)]
    Request(#[from] CertificateRequestError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl CertifyError {
    /// Returns the reason for the client. It omits errors of the local disk, and a client without a certificate
    /// cannot find out by guessing which workloads exist or which workload a token is for.
    pub(super) fn client_reason(&self) -> IssuanceFailure {
        let reason = match self {
            Self::Token(TokenError::Io(_))
            | Self::Registration(_)
            | Self::Review(ReviewError::Unavailable(_)) => {
                "the control plane cannot check join tokens at the moment".to_owned()
            }
            Self::Authority(_) => {
                "the control plane cannot sign certificates at the moment".to_owned()
            }
            Self::Token(_) | Self::UnknownJoiningWorkload(_) => {
                return IssuanceFailure { reason: INVALID_TOKEN_REASON.to_owned(), is_final: true };
            }
            error => error.to_string(),
        };
        reason.into()
    }
}

/// The log limit for rejected requests. All clients share it, because clients without a certificate are
/// indistinguishable.
pub(super) static REJECTION_LOG_LIMIT: Mutex<LogLimit> = Mutex::new(LogLimit::new());
