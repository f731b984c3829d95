//! Certificates for clients outside the mesh: who is to have one, and the Secrets that they are kept in.

mod keep;
mod secret;
mod wish;

pub use keep::keep_guests;
pub(crate) use wish::{ACCESS_CERT, Judged, Owner, judge};
pub use wish::{Grants, GuestWish, GuestWishes, Outcomes};
