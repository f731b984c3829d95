//! Leno's control plane: compiles per-proxy snapshots from registry updates.
//!
//! The path of a change: `watch` (queues the updates of the registries) → `state_task` (the one task with all changing
//! state) → `mesh` (the objects and their relations; returns the affected objects) → `publish` (decides which proxies
//! must be updated, and when) → `compile` (computes their configurations, without side effects) → a proxy's stream in
//! `server`. In addition, `certify` signs certificates, `presence` tracks connected sidecars, and `admin` serves
//! operators. [`Control::start`] connects these modules.

pub mod admin;
mod admin_address;
mod applications;
mod authority;
mod certify;
mod compile;
mod config;
mod control;
mod control_task;
mod data_directory;
mod dial;
mod explain;
mod explanation;
pub mod figures;
pub mod findings;
#[cfg(test)]
mod fixture;
mod health;
mod history;
mod http_server;
mod invite;
mod keys;
mod mesh;
mod metrics;
mod metrics_exporter;
mod page;
mod peers;
mod presence;
mod publish;
mod query_share;
mod rejected_joins;
mod replaced;
mod report;
mod review;
mod scrape_targets;
mod server;
mod server_credential;
mod sidecar_query;
mod state_task;
pub mod status;
mod tap;
mod watch;

pub use applications::{
    Application, ApplicationState, Applications, PORT_NOT_LISTENING, PORT_UNREADY, exit_hint,
    port_hint,
};
pub use config::{Config, Limits, REPORT_INTERVAL, Times};
pub use control::{Control, StartError, Stopped};
pub use control_task::EndedUnexpectedly;
pub use explain::{UnknownWorkload, snapshot_for};
pub use explanation::{ExplainRequest, Explainer, Explanation};
pub use health::HealthListener;
pub use invite::InviteError;
pub use keys::{KeyAccess, PermittedFiles, PermittedServers};
pub use replaced::ReplacedSidecars;
pub use review::{ReviewError, ReviewFuture, Reviewer, TokenSubject};
pub use server_credential::ServerCredentialError;
pub use watch::{MAX_UPDATES, requested_trust_domain};
