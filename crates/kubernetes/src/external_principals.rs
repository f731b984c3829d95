//! Issues certificates to external principals, which are clients outside the mesh: validates the requests, and
//! writes the Secrets that hold the certificates.

mod desired;
mod reconcile;
mod secret;

pub(crate) use desired::{ACCESS_CERT, CertificateDecisions, OwnerObject, validate_requests};
pub use desired::{
    CertificateOutcomes, DesiredCertificates, ExternalCertificateRequest, SecretPermissions,
};
pub use reconcile::reconcile_external_principals;
