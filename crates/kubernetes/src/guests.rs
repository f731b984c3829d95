//! Certificates for clients outside the mesh: validation of requests, and the Secrets that hold the
//! certificates.

mod keep;
mod secret;
mod wish;

pub use keep::keep_guests;
pub(crate) use wish::{ACCESS_CERT, Judged, Owner, judge};
pub use wish::{Grants, GuestWish, GuestWishes, Outcomes};
