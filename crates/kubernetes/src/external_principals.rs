//! Certificates for clients outside the mesh: validation of requests, and the Secrets that hold the
//! certificates.

mod desired;
mod keep;
mod secret;

pub(crate) use desired::{ACCESS_CERT, Judged, Owner, validate_requests};
pub use desired::{DesiredCertificate, DesiredCertificates, Grants, Outcomes};
pub use keep::keep_external_principals;
