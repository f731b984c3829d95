//! Lists all metrics of sidecars, with kind, labels and description. The module [`control`] lists the metrics of the
//! control plane; `page` generates `docs/metrics.md` from both.

pub mod control;

mod page;

pub use self::page::render_document;

/// A metric family: all values with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricFamily {
    /// The name, such as `leno_requests_total`; that of a counter ends in `_total`.
    pub name: &'static str,
    /// The kind, for `TYPE` and `docs/metrics.md`.
    pub kind: MetricKind,
    /// The names of the labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// The description for `HELP` and `docs/metrics.md`.
    pub help: &'static str,
}

/// The kind of a metric, as in the exposition formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases until the process ends.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Cumulative counts of values up to limits, with sum and count.
    Histogram,
    /// Quantiles since the start of the process, with sum and count.
    Summary,
}

impl MetricKind {
    /// Returns the name of the kind in the exposition format.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// Returns the metrics of sidecars, in the order of the exposition and of `docs/metrics.md`. Those of the control
/// plane are [`control::METRICS`].
pub fn sidecar_metrics() -> impl Iterator<Item = &'static MetricFamily> {
    [
        &REQUESTS,
        &REQUEST_DURATION,
        &REQUEST_BYTES,
        &RESPONSE_BYTES,
        &TCP_OPENED,
        &STREAMS_OPENED,
        &STREAMS,
    ]
    .into_iter()
    .chain([&DRY_RUN_DENIALS, &RULE_MATCHES, &CONNECTIONS_REJECTED])
    .chain(Count::METRICS)
    .chain(Gauge::METRICS)
    .chain(Level::METRICS)
    .chain([&BUILD, &LOG_LINES_DROPPED, &PROCESS_CPU, &PROCESS_MEMORY])
}

/// Defines an enum of metric values, and the metrics they belong to. One entry is a metric with its label names and help
/// text, followed by its values: an enum variant each, with the values of the labels.
macro_rules! metric_values {
    (
        $(#[doc = $about:literal])+
        $list:ident, $kind:ident;
        $(
            $metric:literal $labels:tt $help:literal
            { $($(#[doc = $caption:literal])+ $variant:ident $values:tt;)+ }
        )+
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $list { $($($(#[doc = $caption])+ $variant,)+)+ }

        impl $list {
            /// All values, in the order of the documents.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The exposed metrics.
            pub const METRICS: &'static [MetricFamily] = &[$(MetricFamily {
                name: $metric,
                kind: MetricKind::$kind,
                labels: &$labels,
                help: $help,
            },)+];

            /// Returns the name of the metric to which the value belongs.
            #[must_use]
            pub const fn metric(self) -> &'static str {
                match self { $($(Self::$variant => $metric,)+)+ }
            }

            /// Returns the values of the metric's labels, in order.
            #[must_use]
            pub const fn label_values(self) -> &'static [&'static str] {
                match self { $($(Self::$variant => &$values,)+)+ }
            }
        }
    };
}

metric_values! {
    /// The counters of a shard, other than those of requests.
    Count, Counter;
    "leno_connections_opened_total" ["side"]
    "Connections accepted (downstream) and established (upstream)." {
        /// A client connection was accepted.
        DownstreamOpened ["downstream"];
        /// A connection to an endpoint was established.
        UpstreamOpened ["upstream"];
    }
    "leno_handshakes_total" ["side", "result"]
    "TLS handshakes, by side and result." {
        /// A handshake with a client succeeded.
        DownstreamHandshake ["downstream", "ok"];
        /// A handshake with a client failed.
        DownstreamHandshakeFailed ["downstream", "failed"];
        /// A handshake with an endpoint succeeded.
        UpstreamHandshake ["upstream", "ok"];
        /// A handshake with an endpoint failed.
        UpstreamHandshakeFailed ["upstream", "failed"];
    }
    "leno_pending_connections_evicted_total" []
    "Pending connections evicted for newer ones before their client finished its handshake or sent a request." {
        /// A pending connection was closed to make room.
        PendingConnectionsEvicted [];
    }
    "leno_accept_pauses_total" []
    "Pauses of listeners because the system had no file descriptor or memory for a connection." {
        /// A listener paused.
        AcceptPauses [];
    }
    "leno_plaintext_connections_total" []
    "Plaintext connections of clients that were accepted because the mesh permits plaintext." {
        /// A client without mutual TLS was allowed.
        DownstreamPlaintext [];
    }
    "leno_upstream_connects_total" ["result"]
    "Attempts to connect to an endpoint, by result." {
        /// The connection was established.
        UpstreamConnected ["ok"];
        /// The endpoint refused the connection, or was unreachable.
        UpstreamConnectFailed ["failed"];
        /// The endpoint did not respond in time.
        UpstreamConnectTimeout ["timeout"];
    }
    "leno_upstream_checkouts_total" ["source"]
    "Checkouts of connections and links for requests, by source: reused from the pool or new." {
        /// A pooled connection was reused.
        CheckoutReused ["pool"];
        /// A new connection was opened for the request.
        CheckoutOpened ["new"];
    }
    "leno_retries_total" []
    "Retried requests." {
        /// A request was retried.
        Retries [];
    }
    "leno_retries_over_budget_total" []
    "Requests not retried because the retry budget of their service was exhausted." {
        /// A retry was suppressed by the budget.
        RetriesOverBudget [];
    }
    "leno_hedges_total" []
    "Hedged requests: requests sent to a second endpoint because the first did not respond within the hedging delay." {
        /// A second attempt was made in parallel.
        Hedges [];
    }
    "leno_hedges_won_total" []
    "Hedged requests in which the client received the response of the second attempt." {
        /// The second attempt responded first.
        HedgesWon [];
    }
    "leno_endpoint_backoffs_total" []
    "Back-offs of an endpoint after a failed connection attempt." {
        /// An endpoint entered backoff.
        EndpointBackoffs [];
    }
    "leno_endpoint_ejections_total" ["cause"]
    "Endpoint ejections by outlier detection, by cause." {
        /// An endpoint was ejected for its failure rate.
        EndpointEjectedForRate ["rate"];
        /// An endpoint was ejected for consecutive failures.
        EndpointEjectedForConsecutive ["consecutive"];
        /// An endpoint was ejected for a failed probe.
        EndpointEjectedForProbe ["probe"];
        /// An endpoint was ejected for failed health checks.
        EndpointEjectedForCheck ["check"];
    }
    "leno_endpoint_unejections_total" []
    "Unejections: endpoints returned to service after an ejection." {
        /// An endpoint returned to service.
        EndpointUnejections [];
    }
    "leno_health_checks_total" ["result"]
    "Active health checks of endpoints by this sidecar, by result." {
        /// The endpoint is healthy.
        HealthChecksOk ["ok"];
        /// The endpoint is unhealthy.
        HealthChecksFailed ["failed"];
        /// The check was rejected on its way, or by a policy of the endpoint: the health is unknown.
        HealthChecksUnknown ["unknown"];
    }
    "leno_preference_fallbacks_total" []
    "Fallbacks: requests sent outside the preferred tag set because it had no healthy endpoint." {
        /// A request was sent outside the preferred set of endpoints.
        PreferenceFallbacks [];
    }
    "leno_circuit_transitions_total" ["to"]
    "Transitions of circuit breakers to open or closed; half-open is not counted. Each worker thread has its own circuit for each port." {
        /// The circuit opened after too many failures.
        CircuitOpened ["open"];
        /// The circuit closed after successful probes.
        CircuitClosed ["closed"];
    }
    "leno_mirrored_requests_total" ["result"]
    "Mirrored requests, by result." {
        /// The mirrored request received a response.
        MirrorsResponded ["responded"];
        /// The mirrored request could not be sent, or received no response in time.
        MirrorsFailed ["failed"];
        /// The mirrored request was not sent: too many were in progress, or its body was too large or
        /// incomplete.
        MirrorsDropped ["dropped"];
    }
    "leno_faults_injected_total" ["fault"]
    "Faults injected by policies, by type." {
        /// A request was delayed.
        FaultDelays ["delay"];
        /// A request was aborted, with the response of the fault.
        FaultAborts ["abort"];
    }
    "leno_external_checks_total" ["check_service", "result"]
    "External authorization and rate limit checks, by result; `failed`: denied without a response of the service, `failure-mode-allowed`: allowed without one." {
        /// An external authorization service allowed the request.
        AuthorizationAllowed ["authorization", "allowed"];
        /// An external authorization service denied the request.
        AuthorizationDenied ["authorization", "denied"];
        /// The external authorization service did not respond, and the request was denied.
        AuthorizationFailed ["authorization", "failed"];
        /// The external authorization service did not respond, and the request was allowed.
        AuthorizationFailureModeAllowed ["authorization", "failure-mode-allowed"];
        /// A rate limit service allowed the request.
        GlobalLimitAllowed ["rate-limit", "allowed"];
        /// A rate limit service denied the request.
        GlobalLimitDenied ["rate-limit", "denied"];
        /// The rate limit service did not respond, and the request was denied.
        GlobalLimitFailed ["rate-limit", "failed"];
        /// The rate limit service did not respond, and the request was allowed.
        GlobalLimitFailureModeAllowed ["rate-limit", "failure-mode-allowed"];
    }
    "leno_config_updates_applied_total" []
    "Configuration updates from the control plane that were applied." {
        /// A configuration change was applied.
        ConfigUpdatesApplied [];
    }
    "leno_config_updates_rejected_total" []
    "Configuration updates from the control plane that were rejected." {
        /// A configuration change was rejected.
        ConfigUpdatesRejected [];
    }
    "leno_control_connects_total" []
    "Discovery streams opened to the control plane." {
        /// The stream to the control plane was opened.
        ControlConnects [];
    }
    "leno_certificate_renewals_total" ["result"]
    "Attempts to renew the certificate of the workload." {
        /// A new certificate is in use.
        CertificateRenewed ["ok"];
        /// The renewal failed; the old certificate stays in use.
        CertificateRenewalFailed ["failed"];
    }
    "leno_access_log_lines_dropped_total" []
    "Access log lines dropped because their reader was too slow." {
        /// A line was dropped.
        AccessLogLinesDropped [];
    }
    "leno_trace_spans_total" ["result"]
    "Trace spans, by export result." {
        /// The collector accepted the span.
        SpansExported ["exported"];
        /// The span was dropped because the export queue was full.
        SpansOverflowed ["overflowed"];
        /// The span was dropped because the collector rejected it.
        SpansRejected ["rejected"];
    }
    "leno_metric_points_total" ["result"]
    "Metric data points pushed to a collector, by export result." {
        /// The collector accepted the data point.
        PointsExported ["exported"];
        /// The collector rejected the data point; its value is part of the next push.
        PointsRejected ["rejected"];
    }
    "leno_log_records_total" ["result"]
    "Access log records sent to a collector, by export result." {
        /// The collector accepted the log record.
        RecordsExported ["exported"];
        /// The log record was dropped because the collector rejected it.
        RecordsRejected ["rejected"];
    }
    "leno_dns_queries_total" ["result"]
    "DNS queries of the application that were redirected to the sidecar, by result." {
        /// The mesh answered the DNS query.
        DnsQueriesAnswered ["answered"];
        /// A name server answered the DNS query.
        DnsQueriesForwarded ["forwarded"];
        /// No name server answered in time, too many queries were in progress, or the query was malformed.
        DnsQueriesFailed ["failed"];
    }
    "leno_table_evictions_total" ["table"]
    "Entries evicted from a full table of destinations that the application uses, by table. A later use adds the entry again." {
        /// The name of a service that does not exist was evicted.
        EvictedUnknownService ["unknown-services"];
        /// A service was evicted.
        EvictedService ["services"];
        /// An intercepted destination address was evicted.
        EvictedAddress ["addresses"];
        /// A resolved name was evicted.
        EvictedName ["names"];
        /// An address of a service was evicted.
        EvictedServiceAddress ["service-addresses"];
    }
    "leno_application_scrapes_total" ["result"]
    "Scrapes of the application's own metrics, by result." {
        /// The application's metrics were scraped.
        ApplicationScraped ["ok"];
        /// The application's metrics were missing, too late, too many or malformed.
        ApplicationScrapeFailed ["failed"];
    }
    "leno_series_overflowed_total" []
    "Label sets merged into the destination service `other` because their number exceeded the limit." {
        /// A set of labels was merged into an overflow series.
        SeriesOverflowed [];
    }
}

metric_values! {
    /// The gauges of a shard, which a thread increments and decrements.
    Gauge, Gauge;
    "leno_connections" ["side"]
    "Open connections, from clients (downstream) and to endpoints (upstream)." {
        /// Connections from clients.
        ConnectionsDownstream ["downstream"];
        /// Connections to endpoints.
        ConnectionsUpstream ["upstream"];
    }
    "leno_links" ["side"]
    "Open multiplexed links between sidecars." {
        /// Links that other sidecars opened.
        LinksDownstream ["downstream"];
        /// Links that this sidecar opened.
        LinksUpstream ["upstream"];
    }
    "leno_endpoints_ejected" []
    "Endpoints currently ejected by outlier detection, counted once for each worker thread." {
        /// An ejected endpoint.
        EndpointsEjected [];
    }
    "leno_requests_in_flight" []
    "Requests and TCP connections in progress." {
        /// Requests in progress.
        RequestsInFlight [];
    }
}

metric_values! {
    /// The gauges of the whole process, which any thread sets.
    Level, Gauge;
    "leno_certificate_expiry_timestamp_seconds" []
    "Expiry of the workload's certificate, in seconds since 1970." {
        /// The expiration time of the certificate.
        CertificateExpiry [];
    }
    "leno_certificate_issued_timestamp_seconds" []
    "Issue time of the workload's certificate, in seconds since 1970." {
        /// The issue time of the certificate.
        CertificateIssued [];
    }
    "leno_control_connected" []
    "1 while the control plane is connected, else 0." {
        /// The control plane is connected.
        ControlConnected [];
    }
    "leno_config_services" []
    "Services in the sidecar's configuration." {
        /// The number of services in the configuration.
        ConfigServices [];
    }
}

/// The side of a connection, as seen from this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionSide {
    /// Opened by a client.
    Downstream,
    /// Opened by this sidecar.
    Upstream,
}

impl ConnectionSide {
    pub(crate) const fn opened_counter(self) -> Count {
        match self {
            Self::Downstream => Count::DownstreamOpened,
            Self::Upstream => Count::UpstreamOpened,
        }
    }

    pub(crate) const fn open_gauge(self) -> Gauge {
        match self {
            Self::Downstream => Gauge::ConnectionsDownstream,
            Self::Upstream => Gauge::ConnectionsUpstream,
        }
    }
}

/// The labels of a series, common to all request metrics.
macro_rules! request_labels {
    ($($more:literal),*) => {
        &[
            "direction",
            "destination_service",
            "destination_port",
            "route",
            "peer",
            "protocol"
            $(, $more)*
        ]
    };
}

pub(crate) const REQUESTS: MetricFamily = MetricFamily {
    name: "leno_requests_total",
    kind: MetricKind::Counter,
    labels: request_labels!("code", "reason", "grpc_status"),
    help: "Completed requests and TCP connections, by response code class, failure reason and gRPC status.",
};

pub(crate) const REQUEST_DURATION: MetricFamily = MetricFamily {
    name: "leno_request_duration_seconds",
    kind: MetricKind::Histogram,
    labels: request_labels!(),
    help: "Duration of requests, from the first byte received to the last byte sent.",
};

pub(crate) const REQUEST_BYTES: MetricFamily = MetricFamily {
    name: "leno_request_bytes_total",
    kind: MetricKind::Counter,
    labels: request_labels!(),
    help: "Request body bytes received from clients.",
};

pub(crate) const RESPONSE_BYTES: MetricFamily = MetricFamily {
    name: "leno_response_bytes_total",
    kind: MetricKind::Counter,
    labels: request_labels!(),
    help: "Response body bytes sent to clients.",
};

pub(crate) const STREAMS_OPENED: MetricFamily = MetricFamily {
    name: "leno_streams_opened_total",
    kind: MetricKind::Counter,
    labels: request_labels!(),
    help: "Streaming requests, counted at their start: WebSocket and other upgrades, and bodies of unknown length in which the client of a gRPC call or the server pauses. leno_requests_total counts them when they end.",
};

pub(crate) const STREAMS: MetricFamily = MetricFamily {
    name: "leno_streams",
    kind: MetricKind::Gauge,
    labels: request_labels!(),
    help: "Open streams of leno_streams_opened_total.",
};

pub(crate) const TCP_OPENED: MetricFamily = MetricFamily {
    name: "leno_tcp_connections_opened_total",
    kind: MetricKind::Counter,
    labels: request_labels!(),
    help: "Opaque TCP connections, counted when they open or are rejected. leno_requests_total counts them when they end.",
};

pub(crate) const DRY_RUN_DENIALS: MetricFamily = MetricFamily {
    name: "leno_dry_run_denials_total",
    kind: MetricKind::Counter,
    labels: request_labels!("reason"),
    help: "Requests and TCP connections that `defaultPolicy: dry-run` allowed and `deny` would have rejected, by reason.",
};

pub(crate) const RULE_MATCHES: MetricFamily = MetricFamily {
    name: "leno_rule_matches_total",
    kind: MetricKind::Counter,
    labels: &["rule_kind", "rule_namespace", "rule_name", "rule"],
    help: "Requests and TCP connections that matched a rule.",
};

pub(crate) const CONNECTIONS_REJECTED: MetricFamily = MetricFamily {
    name: "leno_connections_rejected_total",
    kind: MetricKind::Counter,
    labels: &["reason"],
    help: "Connections rejected before any request, by reason.",
};

pub(crate) const BUILD: MetricFamily = MetricFamily {
    name: "leno_build_info",
    kind: MetricKind::Gauge,
    labels: &["version"],
    help: "Always 1; the label has the version.",
};

pub(crate) const LOG_LINES_DROPPED: MetricFamily = MetricFamily {
    name: "leno_log_lines_dropped_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Log lines of the process that were dropped because its output was blocked.",
};

pub(crate) const PROCESS_CPU: MetricFamily = MetricFamily {
    name: "process_cpu_seconds_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Total user and system CPU time of the process.",
};

pub(crate) const PROCESS_MEMORY: MetricFamily = MetricFamily {
    name: "process_resident_memory_bytes",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Resident memory of the process.",
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut names = HashSet::new();
        for metric in sidecar_metrics().chain(control::METRICS) {
            assert!(names.insert(metric.name), "{}", metric.name);
            let is_counter = metric.kind == MetricKind::Counter;
            assert_eq!(metric.name.ends_with("_total"), is_counter, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.help.contains(['\\', '\n', '|']), "{}", metric.name);
            // Prometheus adds labels of these names to a target, and would rename ours to `exported_…`.
            let target_labels = ["namespace", "service", "pod", "name", "job", "instance"];
            assert!(
                !metric.labels.iter().any(|label| target_labels.contains(label)),
                "{}",
                metric.name
            );
        }
    }

    #[test]
    fn every_value_has_the_labels_of_its_metric() {
        let counts = Count::ALL.iter().map(|count| (count.metric(), count.label_values()));
        let gauges = Gauge::ALL.iter().map(|gauge| (gauge.metric(), gauge.label_values()));
        let levels = Level::ALL.iter().map(|level| (level.metric(), level.label_values()));
        let mut label_sets = HashSet::new();
        for (name, values) in counts.chain(gauges).chain(levels) {
            let metric = sidecar_metrics().find(|metric| metric.name == name).unwrap();
            assert_eq!(metric.labels.len(), values.len(), "{name}");
            assert!(label_sets.insert((name, values)), "{name} {values:?}");
        }
    }
}
