//! Writes metric aliases: the names that dashboards of OSM, osm-edge and FSM query, with values computed from Leno's
//! metrics. In these names, a cluster is one port of a service.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;

use crate::histogram::Histogram;
use crate::names::{Count, Gauge};
use crate::series::SeriesTotals;
use crate::status::StatusClass;
use crate::telemetry::Telemetry;

use super::escape_label;

/// The product whose metric names are exposed in addition to Leno's own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasNames {
    /// OSM: names of Envoy, and `osm_request_…`.
    Osm,
    /// osm-edge and FSM: names of Pipy, and `fsm_request_…`.
    Fsm,
}

impl AliasNames {
    /// The values of the query parameter `names`.
    pub const ALL: [(&'static str, Self); 2] = [("osm", Self::Osm), ("fsm", Self::Fsm)];

    /// Parses the query parameter `names`; `Ok(None)` if it is absent.
    ///
    /// # Errors
    /// A message for the client, if the value is unknown.
    pub fn from_query(query: &str) -> Result<Option<Self>, String> {
        // Scrapers may add other parameters. The last occurrence of `names` counts.
        let requested_name = query.split('&').rev().find_map(|pair| pair.strip_prefix("names="));
        let Some(requested_name) = requested_name else { return Ok(None) };
        let entry = Self::ALL.iter().find(|(name, _)| *name == requested_name);
        let unknown_name =
            || format!("`names={requested_name}` is unknown: use names=osm or names=fsm\n");
        entry.map(|(_, names)| Some(*names)).ok_or_else(unknown_name)
    }

    /// Returns the name prefix of sidecar metrics.
    const fn sidecar_prefix(self) -> &'static str {
        match self {
            Self::Osm => "envoy",
            Self::Fsm => "sidecar",
        }
    }

    /// Returns the name prefix of the product's own metrics and of all metrics of its control plane.
    #[must_use]
    pub const fn mesh_prefix(self) -> &'static str {
        match self {
            Self::Osm => "osm",
            Self::Fsm => "fsm",
        }
    }
}

/// The name of an alias, and its meaning.
pub(crate) struct Alias {
    /// The name without the prefix of the product.
    pub(crate) name: &'static str,
    /// The meaning of the values in this mesh, for `docs/metrics.md`.
    pub(crate) meaning: &'static str,
}

/// The aliases of each cluster (one port of a service), `PREFIX_cluster_upstream_NAME`, with the functions that compute
/// their values.
const CLUSTER_ALIASES: &[(Alias, ClusterValue)] = &[
    (new_alias("rq_total", "`leno_requests_total`"), |cluster| cluster.request_count),
    (
        new_alias("rq_timeout", "requests with the reason `request-timeout` or `attempt-timeout`"),
        |cluster| cluster.count_reasons(&["request-timeout", "attempt-timeout"]),
    ),
    (new_alias("rq_rx_reset", "requests with the reason `upstream-reset`"), |cluster| {
        cluster.count_reasons(&["upstream-reset"])
    }),
    (
        new_alias(
            "rq_tx_reset",
            "requests with the reason `downstream-closed` or `attempt-abandoned`",
        ),
        |cluster| cluster.count_reasons(&["downstream-closed", "attempt-abandoned"]),
    ),
    (
        new_alias(
            "rq_pending_overflow",
            "requests with the reason `circuit-full` or `circuit-open`",
        ),
        |cluster| cluster.count_reasons(&["circuit-full", "circuit-open"]),
    ),
    (
        new_alias(
            "rq_pending_failure_eject",
            "requests with the reason `connect-failed` or `upstream-handshake-failed`",
        ),
        |cluster| cluster.count_reasons(&["connect-failed", "upstream-handshake-failed"]),
    ),
    (new_alias("cx_connect_timeout", "requests with the reason `connect-timeout`"), |cluster| {
        cluster.count_reasons(&["connect-timeout"])
    }),
    (
        new_alias("cx_tx_bytes_total", "`leno_request_bytes_total`: bodies, without heads"),
        |cluster| cluster.sent_bytes,
    ),
    (
        new_alias("cx_rx_bytes_total", "`leno_response_bytes_total`: bodies, without heads"),
        |cluster| cluster.received_bytes,
    ),
];

/// The aliases of the whole sidecar, with the functions that compute their values.
const SIDECAR_ALIASES: &[(Alias, SidecarValue)] = &[
    (
        new_alias("cluster_upstream_rq_retry", "`leno_retries_total`; all clusters together"),
        |telemetry| telemetry.count(Count::Retries),
    ),
    (
        new_alias(
            "cluster_upstream_rq_retry_overflow",
            "`leno_retries_over_budget_total`; all clusters together",
        ),
        |telemetry| telemetry.count(Count::RetriesOverBudget),
    ),
    (
        new_alias(
            "cluster_upstream_cx_active",
            "`leno_connections{side=\"upstream\"}`; all clusters together",
        ),
        |telemetry| telemetry.gauge(Gauge::ConnectionsUpstream),
    ),
    (new_alias("server_live", "always 1"), |_| 1),
];

/// Computes the value of an alias of a cluster.
type ClusterValue = fn(&ClusterStats) -> u64;
/// Computes the value of an alias of the sidecar.
type SidecarValue = fn(&Telemetry) -> u64;

const fn new_alias(name: &'static str, meaning: &'static str) -> Alias {
    Alias { name, meaning }
}

/// The totals of this sidecar's outbound requests to one port of a service.
#[derive(Default)]
struct ClusterStats {
    request_count: u64,
    /// The number of requests by status class, such as `2xx`.
    classes: BTreeMap<&'static str, u64>,
    /// The number of requests by failure reason; empty for responses of the application.
    reasons: BTreeMap<&'static str, u64>,
    /// The bytes of request bodies, which the sidecar sends to the cluster.
    sent_bytes: u64,
    /// The bytes of response bodies, which the sidecar receives from the cluster.
    received_bytes: u64,
    durations: Histogram,
}

impl ClusterStats {
    /// Adds the totals of a series.
    fn add_series(&mut self, series: &SeriesTotals) {
        for (outcome, count) in &series.requests {
            self.request_count = self.request_count.saturating_add(*count);
            *self.classes.entry(outcome.class.label()).or_default() += count;
            *self.reasons.entry(outcome.reason).or_default() += count;
        }
        self.sent_bytes = self.sent_bytes.saturating_add(series.bytes_in);
        self.received_bytes = self.received_bytes.saturating_add(series.bytes_out);
        self.durations.merge(&series.durations);
    }

    /// Returns the number of requests with one of these reasons.
    fn count_reasons(&self, reasons: &[&str]) -> u64 {
        reasons.iter().filter_map(|reason| self.reasons.get(reason)).sum()
    }
}

/// Appends the aliases, always in the text format 0.0.4, because their names violate the rules of OpenMetrics.
/// `namespace` and `workload_name` belong to the sidecar's workload.
pub(super) fn write_aliases(
    telemetry: &Telemetry,
    names: AliasNames,
    namespace: &str,
    workload_name: &str,
    output: &mut String,
) {
    let mut clusters: BTreeMap<(String, u16), ClusterStats> = BTreeMap::new();
    let mut rate_limited_counts: BTreeMap<String, u64> = BTreeMap::new();
    for (labels, cells) in telemetry.series_cells() {
        let series = SeriesTotals::sum_shards(labels.clone(), &cells);
        match labels.direction {
            "outbound" if labels.protocol != "outside" && !labels.service.is_empty() => {
                clusters.entry((labels.service, labels.port)).or_default().add_series(&series);
            }
            "inbound" => {
                let limited_requests =
                    series.requests.iter().filter(|(outcome, _)| outcome.reason == "rate-limited");
                let count: u64 = limited_requests.map(|(_, count)| count).sum();
                let (service, port, protocol) = (labels.service, labels.port, labels.protocol);
                *rate_limited_counts
                    .entry(format!("{service}_{port}_{protocol}.rate_limited"))
                    .or_default() += count;
            }
            // Outbound traffic without a service of the mesh belongs to no cluster.
            _ => {}
        }
    }
    let mut writer = AliasWriter { names, output };
    writer.write_clusters(&clusters);
    writer.write_requests(&clusters, namespace, workload_name);
    let rate_limit_name = format!("{}_local_rate_limit_inbound", names.sidecar_prefix());
    writer.start_family(&rate_limit_name, "counter");
    for (label, count) in rate_limited_counts.iter().filter(|(_, count)| **count > 0) {
        let series = format!("{rate_limit_name}{{label=\"{}\"}}", escape_label(label));
        writer.write_value(&series, count);
    }
    let http_counts =
        rate_limited_counts.iter().filter(|(label, _)| !label.ends_with(LIMITED_TCP_SUFFIX));
    writer.write_http_limits(http_counts.map(|(_, count)| count).sum());
    for (alias, compute_value) in SIDECAR_ALIASES {
        let name = format!("{}_{}", names.sidecar_prefix(), alias.name);
        writer.start_family(&name, "untyped");
        writer.write_value(&name, compute_value(telemetry));
    }
}

/// Writes the aliases of one product to `output`.
struct AliasWriter<'a> {
    names: AliasNames,
    output: &'a mut String,
}

impl AliasWriter<'_> {
    /// Writes the aliases of each cluster.
    fn write_clusters(&mut self, clusters: &BTreeMap<(String, u16), ClusterStats>) {
        let prefix = self.names.sidecar_prefix();
        let cluster_label = |service: &str, port: u16| {
            format!("{prefix}_cluster_name=\"{}|{port}\"", escape_label(service))
        };
        for (alias, compute_value) in CLUSTER_ALIASES {
            let name = format!("{prefix}_cluster_upstream_{}", alias.name);
            self.start_family(&name, "counter");
            for ((service, port), cluster) in clusters {
                let series = format!("{name}{{{}}}", cluster_label(service, *port));
                self.write_value(&series, compute_value(cluster));
            }
        }
        let name = format!("{prefix}_cluster_upstream_rq_xx");
        self.start_family(&name, "counter");
        for ((service, port), cluster) in clusters {
            for (class, count) in
                cluster.classes.iter().filter(|(class, _)| **class != NO_RESPONSE_CLASS)
            {
                let class_label = format!("{prefix}_response_code_class=\"{}\"", &class[..1]);
                let series = format!("{name}{{{class_label},{}}}", cluster_label(service, *port));
                self.write_value(&series, count);
            }
        }
    }

    /// Writes the product's own metrics: requests and their durations, as seen by the client.
    fn write_requests(
        &mut self,
        clusters: &BTreeMap<(String, u16), ClusterStats>,
        namespace: &str,
        workload_name: &str,
    ) {
        let source_labels = format!(
            "source_namespace=\"{}\",source_name=\"{}\",source_pod=\"{}\"",
            self.label_value(namespace),
            self.label_value(workload_name),
            self.label_value(workload_name)
        );
        // These metrics have one series per service, for all its ports.
        let mut services: BTreeMap<&str, ClusterStats> = BTreeMap::new();
        for ((service, _), cluster) in clusters {
            let stats = services.entry(service).or_default();
            for (class, count) in &cluster.classes {
                *stats.classes.entry(class).or_default() += count;
            }
            stats.durations.merge(&cluster.durations);
        }
        let destination_labels = |writer: &Self, service: &str| {
            let (namespace, name) = service.split_once('/').unwrap_or(("", service));
            let (namespace, name) = (writer.label_value(namespace), writer.label_value(name));
            format!("destination_namespace=\"{namespace}\",destination_name=\"{name}\"")
        };
        let total_name = format!("{}_request_total", self.names.mesh_prefix());
        self.start_family(&total_name, "counter");
        for (service, stats) in &services {
            let labels = format!("{source_labels},{}", destination_labels(self, service));
            for (class, count) in &stats.classes {
                let series = format!("{total_name}{{response_code=\"{class}\",{labels}}}");
                self.write_value(&series, count);
            }
        }
        let duration_name = format!("{}_request_duration_ms", self.names.mesh_prefix());
        self.start_family(&duration_name, "histogram");
        for (service, stats) in &services {
            let labels = format!("{source_labels},{}", destination_labels(self, service));
            for (limit, cumulative_count) in stats.durations.cumulative_counts(&DURATION_LIMITS) {
                let limit_ms = limit.as_millis();
                let series = format!("{duration_name}_bucket{{{labels},le=\"{limit_ms}\"}}");
                self.write_value(&series, cumulative_count);
            }
            let (count, sum) = (stats.durations.count(), stats.durations.sum());
            self.write_value(&format!("{duration_name}_bucket{{{labels},le=\"+Inf\"}}"), count);
            self.write_value(&format!("{duration_name}_sum{{{labels}}}"), sum.as_secs_f64() * 1e3);
            self.write_value(&format!("{duration_name}_count{{{labels}}}"), count);
        }
    }

    /// Writes the count of rate-limited requests, for which the products have different names.
    fn write_http_limits(&mut self, count: u64) {
        let (name, labels) = match self.names {
            AliasNames::Osm => {
                ("envoy_http_local_rate_limiter_http_local_rate_limit_rate_limited", "")
            }
            AliasNames::Fsm => {
                ("http_local_rate_limiter", "{http_local_rate_limit=\"rate_limited\"}")
            }
        };
        self.start_family(name, "counter");
        self.write_value(&format!("{name}{labels}"), count);
    }

    /// Escapes a text for a label value. OSM also replaces `-` by `_` in these labels.
    fn label_value(&self, text: &str) -> String {
        match self.names {
            AliasNames::Osm => escape_label(&text.replace('-', "_")),
            AliasNames::Fsm => escape_label(text),
        }
    }

    fn start_family(&mut self, name: &str, kind: &str) {
        write_family_header(name, kind, self.output);
    }

    /// Appends the line of a value. `series` is the name of the metric, with its labels in braces if it has any.
    fn write_value(&mut self, series: &str, value: impl Display) {
        // Writing to a `String` cannot fail.
        writeln!(self.output, "{series} {value}").unwrap_or_default();
    }
}

/// Appends the header lines of an alias.
pub(super) fn write_family_header(name: &str, kind: &str, output: &mut String) {
    let lines = format!("# HELP {name} An alias: see docs/metrics.md.\n# TYPE {name} {kind}\n");
    output.push_str(&lines);
}

/// Returns the names and meanings of all aliases, for `docs/metrics.md`.
pub(crate) fn document_rows() -> impl Iterator<Item = (String, &'static str)> {
    let clusters = CLUSTER_ALIASES
        .iter()
        .map(|(alias, _)| (format!("cluster_upstream_{}", alias.name), alias.meaning));
    clusters.chain(SIDECAR_ALIASES.iter().map(|(alias, _)| (alias.name.to_owned(), alias.meaning)))
}

/// The sidecar metrics of these products that have no alias, without a prefix, and the reasons.
pub(crate) const UNAVAILABLE_METRICS: &[(&str, &str)] = &[
    (
        "cluster_upstream_rq_retry_success",
        "a retry has no result of its own: the result of the request counts",
    ),
    (
        "cluster_upstream_rq_retry_limit_exceeded",
        "a request that failed after its last attempt has the reason of that attempt",
    ),
    (
        "cluster_upstream_rq_retry_backoff_exponential",
        "retries with and without a back-off are not counted separately",
    ),
    (
        "cluster_upstream_rq_retry_backoff_ratelimited",
        "retries with and without a back-off are not counted separately",
    ),
    (
        "cluster_upstream_cx_destroy_remote_with_active_rq",
        "such a request has the reason `upstream-reset`: see `rq_rx_reset`",
    ),
    (
        "cluster_upstream_cx_destroy_local_with_active_rq",
        "the sidecar closes a connection with requests in progress only for `downstream-closed`: see `rq_tx_reset`",
    ),
    (
        "cluster_external_upstream_rq",
        "external destinations are counted as connections: `leno_requests_total{protocol=\"outside\"}`",
    ),
    (
        "cluster_external_upstream_rq_xx",
        "external destinations are counted as connections: `leno_requests_total{protocol=\"outside\"}`",
    ),
    (
        "cluster_external_upstream_rq_completed",
        "external destinations are counted as connections: `leno_requests_total{protocol=\"outside\"}`",
    ),
];

/// The suffix of the rate limit labels of byte streams.
const LIMITED_TCP_SUFFIX: &str = "_tcp.rate_limited";

/// The class of requests without a response.
const NO_RESPONSE_CLASS: &str = StatusClass::None.label();

/// The upper limits of the duration buckets, which are the same in both products.
const DURATION_LIMITS: [Duration; 17] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(600),
    Duration::from_secs(3600),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{RequestLabels, RequestRecord};

    fn alias_page(names: AliasNames) -> String {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let labels = |direction, service: &str, protocol| RequestLabels {
            direction,
            service: service.to_owned(),
            port: 9080,
            route: String::new(),
            peer: String::new(),
            protocol,
        };
        for (labels, status, reason) in [
            (labels("outbound", "shop/stock-db", "http"), 200, None),
            (labels("outbound", "shop/stock-db", "http"), 503, Some("circuit-full")),
            (labels("outbound", "shop/stock-db", "tcp"), 0, None),
            (labels("outbound", "", "outside"), 0, None),
            (labels("inbound", "shop/web", "http"), 429, Some("rate-limited")),
        ] {
            let outcome = RequestRecord {
                status,
                reason,
                grpc: None,
                duration: Duration::from_millis(3),
                bytes_in: 5,
                bytes_out: 7,
            };
            shard.record_request(shard.series_id(&labels), &outcome);
        }
        shard.add(Count::Retries, 2);
        let mut output = String::new();
        telemetry.expose_as(names, "shop", "web-1", &mut output);
        output
    }

    #[test]
    fn aliases_have_the_names_that_dashboards_of_the_products_query() {
        let osm = alias_page(AliasNames::Osm);
        for line in [
            "envoy_cluster_upstream_rq_total{envoy_cluster_name=\"shop/stock-db|9080\"} 3",
            "envoy_cluster_upstream_rq_pending_overflow{envoy_cluster_name=\"shop/stock-db|9080\"} 1",
            "envoy_cluster_upstream_rq_xx{envoy_response_code_class=\"2\",\
             envoy_cluster_name=\"shop/stock-db|9080\"} 1",
            "envoy_cluster_upstream_cx_rx_bytes_total{envoy_cluster_name=\"shop/stock-db|9080\"} 21",
            "envoy_cluster_upstream_rq_retry 2",
            "envoy_server_live 1",
            "envoy_local_rate_limit_inbound{label=\"shop/web_9080_http.rate_limited\"} 1",
            "envoy_http_local_rate_limiter_http_local_rate_limit_rate_limited 1",
            "osm_request_total{response_code=\"2xx\",source_namespace=\"shop\",\
             source_name=\"web_1\",source_pod=\"web_1\",destination_namespace=\"shop\",\
             destination_name=\"stock_db\"} 1",
        ] {
            assert!(osm.lines().any(|written| written == line), "{line}\n{osm}");
        }
        assert!(osm.contains("leno_requests_total{"), "our own names are included as well");
        let fsm = alias_page(AliasNames::Fsm);
        for line in [
            "sidecar_cluster_upstream_rq_total{sidecar_cluster_name=\"shop/stock-db|9080\"} 3",
            "sidecar_local_rate_limit_inbound{label=\"shop/web_9080_http.rate_limited\"} 1",
            "http_local_rate_limiter{http_local_rate_limit=\"rate_limited\"} 1",
            "fsm_request_duration_ms_bucket{source_namespace=\"shop\",source_name=\"web-1\",\
             source_pod=\"web-1\",destination_namespace=\"shop\",destination_name=\"stock-db\",\
             le=\"5\"} 3",
        ] {
            assert!(fsm.lines().any(|written| written == line), "{line}\n{fsm}");
        }
        assert!(!fsm.contains("envoy_") && !fsm.contains("osm_"), "{fsm}");
    }

    #[test]
    fn no_metric_family_appears_twice() {
        for names in [AliasNames::Osm, AliasNames::Fsm] {
            let page = alias_page(names);
            let mut families: Vec<_> =
                page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
            let family_count = families.len();
            families.sort_unstable();
            families.dedup();
            assert_eq!(families.len(), family_count);
        }
    }
}
