//! Configuration sources: YAML and JSON files, and the readers of all kinds of objects.
//!
//! A document passes `scan` → `document` → `kinds` → `file` and becomes a [`leno_model::Change`]. Unsupported
//! content becomes a [`RejectedDocument`] with location, problem and hint; no field is ignored silently.
//! [`watch_source`] repeats this whenever a file changes. [`read_json`] reads objects of an API server by the
//! same readers.

mod document;
mod duration;
mod field;
mod file;
mod hint;
mod json;
mod kinds;
mod lint;
mod outline;
mod percentage;
mod rejections;
mod scan;
mod schema_reader;
mod unsupported_kinds;
mod watch;

use leno_model::suggest;

pub use field::UNKNOWN_FIELD;
pub use file::{FieldLines, FileSource, ObjectLocation, RegistryUpdate, locate_warnings, read_str};
pub use json::{read_gateway_route, read_json};
pub use kinds::gateway_route::{GatewayRoute, GatewayRules};
pub use kinds::ingress::{JOINING_LABEL, NODE_NETWORK_LABEL};
pub use kinds::service::{app_protocol, port_name_protocol};
pub use kinds::{ServedKind, served_kinds};
pub use lint::lint_objects;
pub use outline::outline_document;
pub use rejections::{DocumentLocation, RejectedDocument, Warning, count_rejected_documents};
pub use suggest::closest_word;
pub use watch::{WatchError, watch_source};
