//! The table of all metrics of the control plane.

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

        /// All metrics, in the order of the exposition and of the documents.
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
    CONDITIONS "leno_control_conditions" Gauge ["kind"]
        "Conditions that break traffic now, as `leno status` lists them.";
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
    HALF_OPEN_EVICTED "leno_control_half_open_evicted_total" Counter []
        "Connections ended to make room for others before the identity of their peer was proven.";
    CONVERGENCE "leno_control_convergence_seconds" Histogram []
        "From seeing a change until the last proxy that it concerns has applied it.";
    TOUCHED "leno_control_touched_total" Counter []
        "Proxies that were told something new because of a change, summed over changes.";
    DELTA_BYTES "leno_control_delta_bytes_total" Counter []
        "Bytes of the deltas that proxies have answered.";
    REPORTS "leno_control_reports_total" Counter []
        "Messages of proxies that tell what they counted.";
    SERIES_FOLDED "leno_control_series_folded_total" Counter []
        "Series in those messages that were not kept: they were evicted for newer ones, or they were about no service of the mesh.";
    LOG_LINES_DROPPED "leno_control_log_lines_dropped_total" Counter []
        "Lines of the process's log that were dropped because its output was blocked.";
    KEY_SOURCES "leno_control_key_sources" Gauge ["state"]
        "Places that keys of issuers are read from: all, those that could not be read the last time, and those without any keys in force.";
    KEY_READINGS "leno_control_key_readings_total" Counter ["result"]
        "Readings of such places, by what came of them: other keys, the same, or none.";
    QUEUES "leno_control_queue_depth" Gauge ["queue"]
        "What waits: updates of files, events of proxies, questions of operators, signatures, proxies that are due to be told, rounds that somebody has not applied.";
    METRIC_POINTS "leno_control_metric_points_total" Counter ["result"]
        "Points of metrics that were pushed to a collector, by what became of them.";
}

/// A control plane metric of OSM, osm-edge and FSM with an equivalent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlAlias {
    /// Its name there, without the prefix of the product.
    pub name: &'static str,
    /// Its kind there.
    pub kind: Kind,
    /// Its meaning here.
    pub means: &'static str,
}

/// All aliases, in the order of the exposition.
pub const ALIASES: &[ControlAlias] = &[
    alias("proxy_connect_count", Kind::Gauge, "`leno_control_proxies`"),
    alias("cert_issued_count", Kind::Counter, "`leno_control_certificates_total`"),
    alias("events_queued", Kind::Gauge, "`leno_control_queue_depth{queue=\"updates\"}`"),
    alias("resource_namespace_count", Kind::Gauge, "namespaces that have a workload or a service"),
    alias("proxy_broadcast_event_count", Kind::Counter, "`leno_control_changes_total`"),
    alias(
        "proxy_response_send_success_count",
        Kind::Counter,
        "`leno_control_offered_total`; of all proxies and types together",
    ),
    alias(
        "proxy_response_send_error_count",
        Kind::Counter,
        "`leno_control_refused_total`: what proxies refused; of all proxies and types together",
    ),
    alias(
        "proxy_config_update_time",
        Kind::Histogram,
        "`leno_control_convergence_seconds`: until the last proxy has applied a change, not until it was sent",
    ),
    alias(
        "error_err_code_count",
        Kind::Counter,
        "`leno_control_connections_refused_total`; `err_code` has the reason, such as `untrusted-peer`",
    ),
    alias(
        "version_info",
        Kind::Gauge,
        "always 1; `version` is Leno's, `build_date` and `git_commit` are not there",
    ),
];

const fn alias(name: &'static str, kind: Kind, means: &'static str) -> ControlAlias {
    ControlAlias { name, kind, means }
}

/// Their other metrics, and the reason that they are absent here.
pub(crate) const ABSENT: &[(&str, &str)] = &[
    (
        "k8s_api_event_count",
        "events are joined to changes before anything is counted: see `leno_control_changes_total`",
    ),
    ("proxy_reconnect_count", "who comes back is not told apart from who comes"),
    (
        "proxy_xds_request_count",
        "there is no xDS: proxies ask for nothing, they are told what changed",
    ),
    (
        "proxy_max_connections_rejected",
        "such a connection is counted with other handshakes that failed",
    ),
    ("cert_issued_time", "signing is counted and not timed"),
    (
        "admission_webhook_response_total",
        "the API server counts the same: `apiserver_admission_webhook_admission_duration_seconds`",
    ),
    (
        "http_response_total",
        "the few requests of the kubelet, Prometheus and the page are not counted",
    ),
    ("http_response_duration", "as above"),
    ("feature_flag_enabled", "there are no feature flags"),
    (
        "reconciliation_total",
        "the control plane does not restore what was installed: that is left to the chart",
    ),
    ("ingress_broadcast_event_count", "there is one kind of change: `proxy_broadcast_event_count`"),
    ("gateway_broadcast_event_count", "as above"),
    ("service_broadcast_event_count", "as above"),
    ("connector_broadcast_event_count", "there are no connectors"),
];
