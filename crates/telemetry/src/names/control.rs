//! The metrics of the control plane, in one table.

use super::{Kind, Metric};

macro_rules! table {
    ($($name:ident $metric:literal $kind:ident $labels:tt $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $name: Metric = Metric {
                name: $metric,
                kind: Kind::$kind,
                labels: &$labels,
                help: $help,
            };
        )+

        /// All of them, in the order of the exposition and of the documents.
        pub const METRICS: &[Metric] = &[$($name,)+];
    };
}

table! {
    WORKLOADS "leno_control_workloads" Gauge []
        "Workloads in force.";
    SERVICES "leno_control_services" Gauge []
        "Services in force.";
    PROXIES "leno_control_proxies" Gauge []
        "Proxies connected now.";
    PROXIES_BEHIND "leno_control_proxies_behind" Gauge []
        "Connected proxies that have not applied all they were told.";
    REJECTED "leno_control_rejected" Gauge []
        "Documents refused as things stand.";
    CHANGES "leno_control_changes_total" Counter []
        "Changes that were taken in.";
    COMPILED "leno_control_compiled_total" Counter []
        "Snapshots compiled because something that the proxy uses may have changed.";
    OFFERED "leno_control_offered_total" Counter []
        "Snapshots sent because they differed from what the proxy knew.";
    APPLIED "leno_control_applied_total" Counter []
        "Reports of proxies that they are up to date.";
    REFUSED "leno_control_refused_total" Counter []
        "Deltas that proxies refused.";
    SENT "leno_control_sent_bytes_total" Counter []
        "Bytes sent to proxies, before encryption.";
    RECEIVED "leno_control_received_bytes_total" Counter []
        "Bytes received from proxies, after decryption.";
    CERTIFICATES "leno_control_certificates_total" Counter []
        "Certificates signed.";
    CERTIFICATES_REFUSED "leno_control_certificates_refused_total" Counter []
        "Joins and renewals that were refused.";
    CONNECTIONS_REFUSED "leno_control_connections_refused_total" Counter ["reason"]
        "Connections that ended badly, by reason.";
    CONVERGENCE "leno_control_convergence_seconds" Histogram []
        "From seeing a change until the last proxy that it concerns has applied it.";
    TOUCHED "leno_control_touched_total" Counter []
        "Proxies that were told something new because of a change, summed over changes.";
    DELTA_BYTES "leno_control_delta_bytes_total" Counter []
        "Bytes of the deltas that proxies have answered.";
    REPORTS "leno_control_reports_total" Counter []
        "Messages of proxies that tell what they counted.";
    SERIES_FOLDED "leno_control_series_folded_total" Counter []
        "Series in those messages that were not kept apart: there was no room, or they were about no service of the mesh.";
    KEY_SOURCES "leno_control_key_sources" Gauge ["state"]
        "Places that keys of issuers are read from: all, those that could not be read the last time, and those without any keys in force.";
    KEY_READINGS "leno_control_key_readings_total" Counter ["result"]
        "Readings of such places, by what came of them: other keys, the same, or none.";
    QUEUES "leno_control_queue_depth" Gauge ["queue"]
        "What waits: updates of files, events of proxies, questions of operators, signatures, proxies that are due to be told, rounds that somebody has not applied.";
}

/// What control planes of OSM, osm-edge and FSM count that is the same here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlAlias {
    /// Its name there, without the prefix of the product.
    pub name: &'static str,
    /// How it behaves there.
    pub kind: Kind,
    /// What it is here.
    pub means: &'static str,
}

/// All of them, in the order of the exposition. What is not here is counted by nobody here, or
/// counts something else there.
pub const ALIASES: &[ControlAlias] = &[
    ControlAlias {
        name: "proxy_connect_count",
        kind: Kind::Gauge,
        means: "`leno_control_proxies`",
    },
    ControlAlias {
        name: "cert_issued_count",
        kind: Kind::Counter,
        means: "`leno_control_certificates_total`",
    },
    ControlAlias {
        name: "events_queued",
        kind: Kind::Gauge,
        means: "`leno_control_queue_depth{queue=\"updates\"}`",
    },
    ControlAlias {
        name: "version_info",
        kind: Kind::Gauge,
        means: "always 1; `version` is Leno's, `build_date` and `git_commit` are not there",
    },
];
