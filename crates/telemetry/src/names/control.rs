//! Lists all metrics of the control plane, and the aliases under which other products' dashboards query them.

use super::{MetricFamily, MetricKind};

/// Defines a constant for each metric, and the list of all of them.
macro_rules! table {
    ($($name:ident $metric:literal $kind:ident $labels:tt $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $name: MetricFamily = MetricFamily {
                name: $metric,
                kind: MetricKind::$kind,
                labels: &$labels,
                help: $help,
            };
        )+

        /// All metrics, in the order of the exposition and of the documents.
        pub const METRICS: &[MetricFamily] = &[$($name,)+];
    };
}

table! {
    WORKLOADS "leno_control_workloads" Gauge []
        "Workloads in the configuration.";
    SERVICES "leno_control_services" Gauge []
        "Services in the configuration.";
    PROXIES "leno_control_proxies" Gauge []
        "Connected proxies.";
    PROXIES_OUT_OF_SYNC "leno_control_proxies_out_of_sync" Gauge []
        "Connected proxies that have not applied every update sent to them (out of sync).";
    REJECTED_OBJECTS "leno_control_rejected_objects" Gauge []
        "Objects currently rejected.";
    CONDITIONS "leno_control_conditions" Gauge ["kind"]
        "Problems that currently break traffic, as `leno status` lists them.";
    CHANGES "leno_control_changes_total" Counter []
        "Configuration changes received.";
    SNAPSHOTS_COMPILED "leno_control_snapshots_compiled_total" Counter []
        "Snapshots compiled because an object that the proxy uses may have changed.";
    PUSHES "leno_control_pushes_total" Counter []
        "Configurations sent to a proxy because they differ from its last one, counted for each proxy.";
    UPDATES_APPLIED "leno_control_updates_applied_total" Counter []
        "Updates that proxies applied (ACK). One update may combine several pushes.";
    UPDATES_REJECTED "leno_control_updates_rejected_total" Counter []
        "Updates that proxies rejected (NACK).";
    SENT "leno_control_sent_bytes_total" Counter []
        "Bytes sent to proxies, before encryption.";
    RECEIVED "leno_control_received_bytes_total" Counter []
        "Bytes received from proxies, after decryption.";
    CERTIFICATES "leno_control_certificates_total" Counter []
        "Certificates signed.";
    CERTIFICATE_REQUESTS_REJECTED "leno_control_certificate_requests_rejected_total" Counter []
        "Rejected joins and certificate renewals.";
    CONNECTIONS_REJECTED "leno_control_connections_rejected_total" Counter ["reason"]
        "Rejected or failed connections, by reason.";
    PENDING_CONNECTIONS_EVICTED "leno_control_pending_connections_evicted_total" Counter []
        "Pending connections evicted for newer ones before their peer was authenticated.";
    CONVERGENCE "leno_control_convergence_seconds" Histogram []
        "Time from the receipt of a change until the last affected proxy has applied it.";
    PUSH_RECIPIENTS "leno_control_push_recipients_total" Counter []
        "Proxies to which a change was pushed, summed over changes.";
    DELTA_BYTES "leno_control_delta_bytes_total" Counter []
        "Bytes of the updates that proxies have acknowledged or rejected.";
    REPORTS "leno_control_reports_total" Counter []
        "Metric reports received from proxies.";
    SERIES_DROPPED "leno_control_series_dropped_total" Counter []
        "Series of metric reports that were dropped: evicted for newer ones, or for a service outside the mesh.";
    LOG_LINES_DROPPED "leno_control_log_lines_dropped_total" Counter []
        "Log lines of the process that were dropped because its output was blocked.";
    JWKS_SOURCES "leno_control_jwks_sources" Gauge ["state"]
        "JWKS endpoints and files of issuers, by state: all, those whose last fetch failed, and those without valid keys.";
    JWKS_FETCHES "leno_control_jwks_fetches_total" Counter ["result"]
        "Fetches of JWKS endpoints and files, by result: changed keys, unchanged keys, or failed.";
    QUEUES "leno_control_queue_depth" Gauge ["queue"]
        "Queue lengths: file updates, proxy events, operator queries, signatures, proxies with a pending push, pushes that a proxy has not applied.";
    METRIC_POINTS "leno_control_metric_points_total" Counter ["result"]
        "Metric data points pushed to a collector, by export result.";
}

/// A control plane metric of OSM, osm-edge and FSM that has an equivalent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlAlias {
    /// The name of the metric in these products, without the prefix of the product.
    pub name: &'static str,
    /// The kind of the metric in these products.
    pub kind: MetricKind,
    /// The meaning of the metric in this mesh.
    pub meaning: &'static str,
}

/// All aliases, in the order of the exposition.
pub const ALIASES: &[ControlAlias] = &[
    control_alias("proxy_connect_count", MetricKind::Gauge, "`leno_control_proxies`"),
    control_alias("cert_issued_count", MetricKind::Counter, "`leno_control_certificates_total`"),
    control_alias(
        "events_queued",
        MetricKind::Gauge,
        "`leno_control_queue_depth{queue=\"updates\"}`",
    ),
    control_alias(
        "resource_namespace_count",
        MetricKind::Gauge,
        "namespaces that have a workload or a service",
    ),
    control_alias(
        "proxy_broadcast_event_count",
        MetricKind::Counter,
        "`leno_control_changes_total`",
    ),
    control_alias(
        "proxy_response_send_success_count",
        MetricKind::Counter,
        "`leno_control_pushes_total`; all proxies and types together",
    ),
    control_alias(
        "proxy_response_send_error_count",
        MetricKind::Counter,
        "`leno_control_updates_rejected_total`: updates that proxies rejected; all proxies and types together",
    ),
    control_alias(
        "proxy_config_update_time",
        MetricKind::Histogram,
        "`leno_control_convergence_seconds`: until the last proxy has applied a change, not until it was sent",
    ),
    control_alias(
        "error_err_code_count",
        MetricKind::Counter,
        "`leno_control_connections_rejected_total`; `err_code` has the reason, such as `untrusted-peer`",
    ),
    control_alias(
        "version_info",
        MetricKind::Gauge,
        "always 1; `version` is Leno's, `build_date` and `git_commit` are absent",
    ),
];

const fn control_alias(
    name: &'static str,
    kind: MetricKind,
    meaning: &'static str,
) -> ControlAlias {
    ControlAlias { name, kind, meaning }
}

/// The control plane metrics of these products that have no alias, and the reasons.
pub(crate) const UNAVAILABLE_METRICS: &[(&str, &str)] = &[
    (
        "k8s_api_event_count",
        "events are merged into changes before they are counted: see `leno_control_changes_total`",
    ),
    ("proxy_reconnect_count", "reconnections are not distinguished from first connections"),
    (
        "proxy_xds_request_count",
        "there is no xDS: the control plane pushes changes without a request of the proxy",
    ),
    (
        "proxy_max_connections_rejected",
        "such a connection is counted with other handshakes that failed",
    ),
    ("cert_issued_time", "signing is counted, its duration is not measured"),
    (
        "admission_webhook_response_total",
        "the API server counts the same: `apiserver_admission_webhook_admission_duration_seconds`",
    ),
    (
        "http_response_total",
        "the few requests of the kubelet, Prometheus and the web page are not counted",
    ),
    (
        "http_response_duration",
        "the few requests of the kubelet, Prometheus and the web page are not timed",
    ),
    ("feature_flag_enabled", "there are no feature flags"),
    (
        "reconciliation_total",
        "the control plane does not restore installed objects: the chart does",
    ),
    ("ingress_broadcast_event_count", "there is one kind of change: `proxy_broadcast_event_count`"),
    ("gateway_broadcast_event_count", "there is one kind of change: `proxy_broadcast_event_count`"),
    ("service_broadcast_event_count", "there is one kind of change: `proxy_broadcast_event_count`"),
    ("connector_broadcast_event_count", "there are no connectors"),
];
