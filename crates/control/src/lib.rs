//! Leno's control plane: compiles per-proxy snapshots from registry updates.
//!
//! The path of a change: `watch` (registries into one queue) → `owner` (the one task with all state) → `mesh`
//! (the joined objects; returns the affected parts) → `publish` (which proxies must be updated, and when) →
//! `compile` (pure) → a proxy's stream in `server`. Alongside, `certify` signs, `presence` tracks connected
//! sidecars, and `admin` serves operators. [`Control::start`] assembles the parts.

pub mod admin;
mod admin_address;
mod answering;
mod applications;
mod authority;
mod certify;
mod compile;
mod config;
mod control;
mod dial;
mod explain;
pub mod figures;
pub mod findings;
#[cfg(test)]
mod fixture;
mod health;
mod history;
mod invite;
mod keys;
mod mesh;
mod metrics;
mod owner;
mod page;
mod part;
mod peers;
mod playground;
mod presence;
mod publish;
mod push;
mod rejected_joins;
mod replaced;
mod report;
mod review;
mod scrape_targets;
mod server;
mod serving;
mod share;
mod sidecar_query;
pub mod status;
mod tap;
mod watch;
mod writable;

pub use applications::{
    Application, ApplicationState, Applications, PORT_SILENT, PORT_UNREADY, exit_remedy,
    port_remedy,
};
pub use config::{Config, Limits, REPORT_EVERY, Times};
pub use control::{Control, StartError, Stopped};
pub use explain::{UnknownWorkload, snapshot_for};
pub use health::Health;
pub use invite::InviteError;
pub use keys::{KeyAccess, PermittedFiles, PermittedServers};
pub use part::EndedUnexpectedly;
pub use playground::{Asked, Explained, Playground};
pub use replaced::ReplacedSidecars;
pub use review::{Holder, Review, ReviewError, Reviewer};
pub use serving::ServingError;
pub use watch::{UPDATES_MAX, trust_domain_of};
