//! Certificates for clients outside the mesh: validation of requests, and the Secrets that hold the
//! certificates.

mod desired;
mod reconcile;
mod secret;

pub(crate) use desired::{ACCESS_CERT, CertificateDecisions, OwnerObject, validate_requests};
pub use desired::{
    CertificateOutcomes, DesiredCertificate, DesiredCertificates, SecretPermissions,
};
pub use reconcile::reconcile_external_principals;
