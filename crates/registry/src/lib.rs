//! Where facts come from: files first; readers of foreign rule formats.
//!
//! An object of an API server is read by the same readers with [`read_json`].
//!
//! A document travels `scan` → `document` → `kinds` → `file`, and leaves as a
//! [`leno_model::Change`]. What cannot be honoured is [`Rejected`] with place, reason and remedy;
//! nothing is ignored. [`watch`] does so again whenever a file changes.

mod document;
mod field;
mod file;
mod foreign;
mod hint;
mod json;
mod kinds;
mod lint;
mod outline;
mod pattern;
mod rejected;
mod scan;
mod suggest;
mod watch;

pub use field::UNKNOWN_FIELD;
pub use file::{FieldLines, FileSource, Located, Update, locate, read_str};
pub use json::{read_gateway_route, read_json};
pub use kinds::gateway_route::{GatewayRoute, GatewayRules};
pub use kinds::ingress::{JOINING_LABEL, NODE_NETWORK_LABEL};
pub use kinds::service::{app_protocol, port_name_protocol};
pub use kinds::{ServedKind, served_kinds};
pub use lint::lint;
pub use outline::outline;
pub use rejected::{Place, Rejected, Warning, rejected_documents};
pub use suggest::closest;
pub use watch::{WatchError, watch};
