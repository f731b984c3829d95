//! Names: every metric, its kind, labels and meaning, in one table for sidecars and one for the
//! control plane.

pub mod control;

/// A family of numbers that are exposed under one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

/// How the numbers of a metric behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only rise, until the process ends.
    Counter,
    /// They rise and fall.
    Gauge,
    /// They are counts below limits.
    Histogram,
    /// They are quantiles since the start, with a sum and a count.
    Summary,
}

impl Kind {
    /// The word of the exposition format.
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

/// Every metric of a sidecar, in the order of the exposition and of the documents.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    [&REQUESTS, &REQUEST_DURATION, &REQUEST_BYTES, &RESPONSE_BYTES, &AUDITED, &RULE_HITS]
        .into_iter()
        .chain([&CONNECTIONS_REFUSED])
        .chain(Count::METRICS)
        .chain(Gauge::METRICS)
        .chain(Level::METRICS)
        .chain([&BUILD, &PROCESS_CPU, &PROCESS_MEMORY])
}

/// The document about all metrics, `docs/metrics.md`.
#[must_use]
pub fn render() -> String {
    let mut out = PREFACE.to_owned();
    rows(&mut out, metrics());
    out.push_str(CONTROL);
    rows(&mut out, control::METRICS);
    out.push_str(LABELS);
    out.push_str(ALIASES);
    for (name, means) in crate::exposition::alias::rows() {
        out.push_str(&format!("| `envoy_{name}` | `sidecar_{name}` | {means} |\n"));
    }
    out.push_str(ALIASES_END);
    for control::ControlAlias { name, means, .. } in control::ALIASES {
        out.push_str(&format!("| `osm_{name}` | `fsm_{name}` | {means} |\n"));
    }
    out.push_str(CONTROL_ALIASES_END);
    out
}

fn rows<'a>(out: &mut String, metrics: impl IntoIterator<Item = &'a Metric>) {
    out.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.as_str(), labels.join(", "));
        out.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
}

macro_rules! closed_list {
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
            /// All of them, in the order of the documents.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The metrics that they are exposed as.
            pub const METRICS: &'static [Metric] = &[$(Metric {
                name: $metric,
                kind: Kind::$kind,
                labels: &$labels,
                help: $help,
            },)+];

            /// The name of the metric that it belongs to.
            #[must_use]
            pub const fn metric(self) -> &'static str {
                match self { $($(Self::$variant => $metric,)+)+ }
            }

            /// The values of the metric's labels, in their order.
            #[must_use]
            pub const fn label_values(self) -> &'static [&'static str] {
                match self { $($(Self::$variant => &$values,)+)+ }
            }
        }
    };
}

closed_list! {
    /// What a shard counts besides requests.
    Count, Counter;
    "leno_connections_opened_total" ["side"]
    "Connections accepted (downstream) and established (upstream)." {
        /// A connection was accepted.
        DownstreamOpened ["downstream"];
        /// A connection was established.
        UpstreamOpened ["upstream"];
    }
    "leno_handshakes_total" ["side", "result"]
    "TLS handshakes that ended, by who started them and how they ended." {
        /// A client and this sidecar proved themselves to each other.
        DownstreamHandshake ["downstream", "ok"];
        /// A handshake that a client started failed.
        DownstreamHandshakeFailed ["downstream", "failed"];
        /// An endpoint and this sidecar proved themselves to each other.
        UpstreamHandshake ["upstream", "ok"];
        /// A handshake with an endpoint failed.
        UpstreamHandshakeFailed ["upstream", "failed"];
    }
    "leno_plaintext_connections_total" []
    "Connections of clients without mutual TLS that were let in, since the mesh is set so." {
        /// A client without mutual TLS was let in.
        DownstreamPlaintext [];
    }
    "leno_upstream_connects_total" ["result"]
    "Attempts to connect to an endpoint, by how they ended." {
        /// It was reached.
        UpstreamConnected ["ok"];
        /// It refused, or could not be reached.
        UpstreamConnectFailed ["failed"];
        /// It did not answer in time.
        UpstreamConnectTimeout ["timeout"];
    }
    "leno_upstream_leases_total" ["source"]
    "Connections and links leased for requests, by whether one was open already." {
        /// One from the pool.
        LeaseReused ["pool"];
        /// One established for the request.
        LeaseOpened ["new"];
    }
    "leno_retries_total" []
    "Requests sent once more, to another endpoint." {
        /// A request was sent once more.
        Retries [];
    }
    "leno_retries_over_budget_total" []
    "Failed requests that were not sent once more because the retry budget of their service was spent." {
        /// A retry was not made.
        RetriesOverBudget [];
    }
    "leno_endpoint_backoffs_total" []
    "Times that an endpoint was left alone for a while because connecting to it failed." {
        /// An endpoint is left alone for a while.
        EndpointBackoffs [];
    }
    "leno_endpoint_removals_total" ["cause"]
    "Times that a policy removed an endpoint for a while, by what it was removed for." {
        /// Too large a share of its requests failed.
        EndpointRemovedForRate ["rate"];
        /// Too many requests failed in a row.
        EndpointRemovedForRow ["consecutive"];
        /// A probe failed.
        EndpointRemovedForProbe ["probe"];
    }
    "leno_endpoint_returns_total" []
    "Times that an endpoint that a policy had removed came back in full." {
        /// It takes requests again.
        EndpointReturns [];
    }
    "leno_circuit_turns_total" ["to"]
    "Times that the circuit of a port opened or closed, as one data thread sees it." {
        /// Too many requests failed.
        CircuitOpened ["open"];
        /// Its probes succeeded.
        CircuitClosed ["closed"];
    }
    "leno_mirrored_requests_total" ["result"]
    "Copies of requests for other services, by what became of them." {
        /// It was answered.
        MirrorsAnswered ["answered"];
        /// It could not be sent, or was not answered in time.
        MirrorsFailed ["failed"];
        /// It was not sent: too many were under way, or its body was too large, or not whole.
        MirrorsDropped ["dropped"];
    }
    "leno_faults_injected_total" ["fault"]
    "Faults that policies injected on purpose, by what they were." {
        /// A request waited.
        FaultDelays ["delay"];
        /// A request was answered.
        FaultAnswers ["abort"];
    }
    "leno_decider_questions_total" ["decider", "result"]
    "Requests that others were asked about (authorization and rate limit services), by what came of it: `failed` was denied since nobody answered, `skipped` let in." {
        /// An authorization service allowed it.
        AuthorizationAllowed ["authorization", "allowed"];
        /// An authorization service denied it.
        AuthorizationDenied ["authorization", "denied"];
        /// No authorization service answered, and it was denied.
        AuthorizationUnanswered ["authorization", "failed"];
        /// No authorization service answered, and it was let in.
        AuthorizationSkipped ["authorization", "skipped"];
        /// A rate limit service had room for it.
        GlobalLimitAllowed ["rate-limit", "allowed"];
        /// A rate limit service had none.
        GlobalLimitDenied ["rate-limit", "denied"];
        /// No rate limit service answered, and it was denied.
        GlobalLimitUnanswered ["rate-limit", "failed"];
        /// No rate limit service answered, and it was let in.
        GlobalLimitSkipped ["rate-limit", "skipped"];
    }
    "leno_snapshot_applied_total" []
    "Changes from the control plane that were applied." {
        /// A change was applied.
        SnapshotApplied [];
    }
    "leno_snapshot_refused_total" []
    "Changes from the control plane that were refused as a whole." {
        /// A change was refused.
        SnapshotRefused [];
    }
    "leno_control_connects_total" []
    "Times that the stream to the control plane was opened." {
        /// The stream was opened.
        ControlConnects [];
    }
    "leno_certificate_renewals_total" ["result"]
    "Attempts to renew the certificate of the workload." {
        /// A new certificate is in use.
        CertificateRenewed ["ok"];
        /// The old one stays in use for now.
        CertificateRenewalFailed ["failed"];
    }
    "leno_access_log_dropped_total" []
    "Lines of the access log that were dropped because its reader was too slow." {
        /// A line was dropped.
        AccessLogDropped [];
    }
    "leno_trace_spans_total" ["result"]
    "Spans of traces, by what became of them." {
        /// The collector took it.
        SpansExported ["exported"];
        /// It was dropped because too many waited for the collector.
        SpansOverflowed ["overflowed"];
        /// It was dropped because the collector did not take it.
        SpansRefused ["refused"];
    }
    "leno_metric_points_total" ["result"]
    "Points of metrics that were pushed to a collector, by what became of them." {
        /// The collector took it.
        PointsExported ["exported"];
        /// The collector did not take it: what was counted is in the next push.
        PointsRefused ["refused"];
    }
    "leno_log_records_total" ["result"]
    "Lines of the access log that were sent to a collector, by what became of them." {
        /// The collector took it.
        RecordsExported ["exported"];
        /// It was dropped because the collector did not take it.
        RecordsRefused ["refused"];
    }
    "leno_look_ups_total" ["result"]
    "Look-ups of names by the application that were led to the sidecar, by what became of them." {
        /// The mesh knew the name.
        LookUpsAnswered ["answered"];
        /// A name server answered.
        LookUpsForwarded ["forwarded"];
        /// No name server answered in time, there were too many at once, or it was no look-up.
        LookUpsFailed ["failed"];
    }
    "leno_application_scrapes_total" ["result"]
    "Times that the application's own metrics were read to be told beside these, by how that ended." {
        /// They are there.
        ApplicationScraped ["ok"];
        /// They are not: the application gave none, too late, too many or such as cannot be read.
        ApplicationScrapeFailed ["failed"];
    }
    "leno_series_folded_total" []
    "Sets of labels counted under the service `other`, because there were too many." {
        /// A set of labels was folded.
        SeriesFolded [];
    }
}

closed_list! {
    /// What a shard has at the moment.
    Gauge, Gauge;
    "leno_connections" ["side"]
    "Connections open now, from clients (downstream) and to endpoints (upstream)." {
        /// Connections from clients.
        ConnectionsDownstream ["downstream"];
        /// Connections to endpoints.
        ConnectionsUpstream ["upstream"];
    }
    "leno_links" ["side"]
    "Multiplexed links between sidecars open now." {
        /// Links that other sidecars opened.
        LinksDownstream ["downstream"];
        /// Links that this sidecar opened.
        LinksUpstream ["upstream"];
    }
    "leno_endpoints_removed" []
    "Endpoints that policies have removed now, counted once for each data thread." {
        /// An endpoint that is removed.
        EndpointsRemoved [];
    }
    "leno_requests_in_flight" []
    "Requests and byte streams under way now." {
        /// Requests under way.
        RequestsInFlight [];
    }
}

closed_list! {
    /// What is so for the whole process.
    Level, Gauge;
    "leno_certificate_expiry_timestamp_seconds" []
    "When the certificate of the workload expires, in seconds since 1970." {
        /// When the certificate expires.
        CertificateExpiry [];
    }
    "leno_control_connected" []
    "1 while the control plane is connected, otherwise 0." {
        /// Whether the control plane is connected.
        ControlConnected [];
    }
    "leno_snapshot_services" []
    "Services that the sidecar knows now." {
        /// How many services are known.
        SnapshotServices [];
    }
}

/// The end of a connection that opened it, as seen from this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionSide {
    /// A client opened it.
    Downstream,
    /// This sidecar opened it.
    Upstream,
}

impl ConnectionSide {
    pub(crate) const fn opened(self) -> Count {
        match self {
            Self::Downstream => Count::DownstreamOpened,
            Self::Upstream => Count::UpstreamOpened,
        }
    }

    pub(crate) const fn open(self) -> Gauge {
        match self {
            Self::Downstream => Gauge::ConnectionsDownstream,
            Self::Upstream => Gauge::ConnectionsUpstream,
        }
    }
}

/// The labels of a series, which all metrics about requests share.
macro_rules! request_labels {
    ($($more:literal),*) => {
        &["direction", "service", "port", "route", "peer", "protocol" $(, $more)*]
    };
}

pub(crate) const REQUESTS: Metric = Metric {
    name: "leno_requests_total",
    kind: Kind::Counter,
    labels: request_labels!("code", "reason", "grpc_status"),
    help: "Requests and byte streams that ended, by class of status, reason of failure and status of gRPC.",
};

pub(crate) const REQUEST_DURATION: Metric = Metric {
    name: "leno_request_duration_seconds",
    kind: Kind::Histogram,
    labels: request_labels!(),
    help: "How long requests took, from the first byte received to the last byte sent.",
};

pub(crate) const REQUEST_BYTES: Metric = Metric {
    name: "leno_request_bytes_total",
    kind: Kind::Counter,
    labels: request_labels!(),
    help: "Bytes of bodies received from clients.",
};

pub(crate) const RESPONSE_BYTES: Metric = Metric {
    name: "leno_response_bytes_total",
    kind: Kind::Counter,
    labels: request_labels!(),
    help: "Bytes of bodies sent to clients.",
};

pub(crate) const AUDITED: Metric = Metric {
    name: "leno_audited_denials_total",
    kind: Kind::Counter,
    labels: request_labels!("reason"),
    help: "Requests and byte streams that audit mode let in and strict mode would deny, by reason.",
};

pub(crate) const RULE_HITS: Metric = Metric {
    name: "leno_rule_hits_total",
    kind: Kind::Counter,
    labels: &["kind", "namespace", "name", "rule"],
    help: "Requests and byte streams that a rule decided.",
};

pub(crate) const CONNECTIONS_REFUSED: Metric = Metric {
    name: "leno_connections_refused_total",
    kind: Kind::Counter,
    labels: &["reason"],
    help: "Connections refused before any request, by reason.",
};

pub(crate) const BUILD: Metric = Metric {
    name: "leno_build_info",
    kind: Kind::Gauge,
    labels: &["version"],
    help: "Always 1; the label tells which version runs.",
};

pub(crate) const PROCESS_CPU: Metric = Metric {
    name: "process_cpu_seconds_total",
    kind: Kind::Counter,
    labels: &[],
    help: "CPU time that the process has used, in user and system mode.",
};

pub(crate) const PROCESS_MEMORY: Metric = Metric {
    name: "process_resident_memory_bytes",
    kind: Kind::Gauge,
    labels: &[],
    help: "Memory of the process that is resident.",
};

const PREFACE: &str = "\
# Metrics

What sidecars and the control plane expose, in the Prometheus text format 0.0.4, or in OpenMetrics
1.0 where `Accept` asks for it, as Prometheus does. This page is generated from
`crates/telemetry/src/names.rs` and `names/control.rs`; after a change there,
`UPDATE_EXPECT=1 cargo test -p leno-telemetry` writes it anew.

## A sidecar

At `/metrics` of its admin page, and of `--health`; and, where the mesh is set so, [pushed to a collector](tracing.md#metrics-by-otlp)
of OpenTelemetry.

With `--application-metrics PORT/PATH` it reads those of the application each time and tells them
behind its own: one scrape for both, which needs no way around mutual TLS. They are in the text
format 0.0.4 then, at most 8 MiB and within 5 s. What has a name of ours is left out, such as
`process_cpu_seconds_total`. What cannot be read is left out as a whole and counted in
`leno_application_scrapes_total{result=\"failed\"}`; ours are there all the same. In Kubernetes the injector
[sets it](kubernetes.md) where metrics are wanted and the pod says where its own are.

";

const CONTROL: &str = "
## The control plane

At `/metrics` of its admin socket: `curl --unix-socket DATA/control.sock http://leno/metrics`. Prometheus
speaks TCP only: `socat TCP-LISTEN:9901,bind=127.0.0.1,fork UNIX-CONNECT:DATA/control.sock` lets it in, and
whoever else is on the machine.

";

const LABELS: &str = r#"
## Labels

| label | values |
|---|---|
| `direction` | `inbound`: to the workload; `outbound`: from the workload |
| `service` | the service that was called, `namespace/name`; `other` when there are more than 2048 sets of labels |
| `port` | the port of the service; 0 for `other` |
| `route` | the `HTTPRoute` that decided, `namespace/name`; empty without one |
| `peer` | the verified identity at the other end; empty without one: on requests that came in, only where plaintext is accepted |
| `protocol` | what was spoken; `outside` for connections to what is not of the mesh, whose service and port stay empty |
| `code` | the class of the response's status, `1xx` to `5xx`; `000` when there was no response |
| `cause` | why a policy removed an endpoint: `rate` (too large a share of its requests failed), `consecutive` (too many in a row) or `probe` (it failed again) |
| `decider` | what decided in place of the sidecar: `authorization` or `rate-limit`, a service of one of these kinds |
| `reason` | why the request failed or the connection was refused, from the closed [list of reasons](errors.md); empty when the application answered |
| `grpc_status` | how a gRPC call was answered, by name (`OK` to `UNAUTHENTICATED`); `UNKNOWN` also for numbers that gRPC does not have; absent for anything else, and for a call that ended without an answer |
| `side` | `downstream`: opened by a client; `upstream`: opened by this sidecar |
| `fault` | what was injected: `delay` or `abort` |
| `result` | how an attempt ended: `ok`, `failed` or `timeout`; of a copy of a request: `answered`, `failed` or `dropped`; of spans, points and lines: `exported`, `overflowed` (too many waited) or `refused` (the collector is away, or did not take them) |
| `source` | `pool`: open already; `new`: opened for the request |
| `to` | what a circuit became: `open` or `closed` |
| `kind` | the kind of the object that holds a rule; empty for rules that had no room |
| `namespace` | the namespace of that object |
| `name` | its name; `other` for the rules beyond the first 1023 that decided something in this process |
| `rule` | the rule in it: the name of those that have one, otherwise the place from 0; empty for a `TrafficTarget` and for what a circuit breaker turns away ([which decisions count](seeing.md#rules-that-decide)) |
| `version` | the version of Leno |
| `queue` | what waits: `updates` of files, `events` of proxies, `questions` of operators, `signatures`, proxies `due` to be told, `rounds` that somebody has not applied |

## gRPC

A call of gRPC fails with HTTP status 200. Sidecars read `grpc-status` where they speak HTTP/2 with
the one who calls or with the one who is called, from the trailers, or from the head of an answer
that has nothing else. An answer without one counts as what gRPC's clients make of its HTTP status:
`UNKNOWN` for 200, `UNAVAILABLE` for 503. A failure of the mesh has a `reason` as well.

In success rates (`leno get`, the admin page) a request is a success when it has no `reason`, its
status is below 500, and its `grpc_status` is none of `UNKNOWN`, `DEADLINE_EXCEEDED`,
`UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` and `DATA_LOSS`: those that the semantic conventions of
OpenTelemetry call errors of a server. The others are answers. The same rule holds on both sides of
a call, so that both count alike. In Prometheus:

```
sum by (service) (rate(leno_requests_total{direction="inbound",reason="",code!="5xx",
    grpc_status!~"UNKNOWN|DEADLINE_EXCEEDED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS"}[5m]))
  / sum by (service) (rate(leno_requests_total{direction="inbound"}[5m]))
```

## Durations

Durations are kept in buckets no wider than an eighth of what they hold, so that quantiles are
exact to 6 %; a limit of the exposed histogram falls on the nearest of them.

In OpenMetrics a bucket has the last request of a sampled [trace](tracing.md) that fell into it as its
exemplar, with `trace_id`. Prometheus keeps them with `--enable-feature=exemplar-storage`.
"#;

const ALIASES: &str = "
## Names of OSM and FSM

Dashboards and scripts that were written for OSM, osm-edge or FSM find their names on request:
`/metrics?names=osm` has those of OSM with Envoy, `/metrics?names=fsm` those of osm-edge and FSM with Pipy,
each beside ours and always in the text format. Let Prometheus ask with `params: {names: [osm]}`. They are filled
from what is counted here: where it says less than the original did, that is said. Clusters are called
`NAMESPACE/SERVICE|PORT`; only what the workload itself calls makes one.

| OSM | osm-edge, FSM | here |
|---|---|---|
";

const ALIASES_END: &str = "\
| `envoy_cluster_upstream_rq_xx` | `sidecar_cluster_upstream_rq_xx` | `leno_requests_total` by `code`; the label `envoy_response_code_class` (`sidecar_…`) has the first digit |
| `envoy_local_rate_limit_inbound` | `sidecar_local_rate_limit_inbound` | requests that came in, with the reason `rate-limited`; `label` is `NAMESPACE/SERVICE_PORT_PROTOCOL.rate_limited` |
| `osm_request_total` | `fsm_request_total` | `leno_requests_total` of what the workload calls, by service; `response_code` has the class, such as `2xx` |
| `osm_request_duration_ms` | `fsm_request_duration_ms` | `leno_request_duration_seconds`, in milliseconds |

The labels `source_namespace`, `source_name` and `source_pod` name the workload, `destination_namespace` and
`destination_name` the service; for OSM `-` in them is `_`, as OSM has it. Not there, since a sidecar does not know them:
`source_kind`, `destination_kind`, `destination_pod`; the causes of back-offs between retries; and what was destroyed with requests
under way.

The control plane tells these of its own, on request in the same way (the control plane of osm-edge has the names of OSM):

| OSM, osm-edge | FSM | here |
|---|---|---|
";

const CONTROL_ALIASES_END: &str = "
Its other names are not there: they count what is not done here (broadcasts, requests of xDS, reconciliations, feature flags),
or by what is not told here (kinds of events, each proxy's own answers, codes of errors). [Its metrics](#the-control-plane) stand for them.
";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        expect_test::expect_file!["../../../docs/metrics.md"].assert_eq(&render());
    }

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut seen = HashSet::new();
        for metric in metrics().chain(control::METRICS) {
            assert!(seen.insert(metric.name), "{}", metric.name);
            let counts = metric.kind == Kind::Counter;
            assert_eq!(metric.name.ends_with("_total"), counts, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.help.contains(['\\', '\n', '|']), "{}", metric.name);
        }
    }

    #[test]
    fn every_number_of_a_list_has_the_labels_of_its_metric() {
        let counts = Count::ALL.iter().map(|c| (c.metric(), c.label_values()));
        let gauges = Gauge::ALL.iter().map(|g| (g.metric(), g.label_values()));
        let levels = Level::ALL.iter().map(|l| (l.metric(), l.label_values()));
        let mut seen = HashSet::new();
        for (name, values) in counts.chain(gauges).chain(levels) {
            let metric = metrics().find(|m| m.name == name).unwrap();
            assert_eq!(metric.labels.len(), values.len(), "{name}");
            assert!(seen.insert((name, values)), "{name} {values:?}");
        }
    }

    #[test]
    fn every_label_is_explained() {
        for label in metrics().chain(control::METRICS).flat_map(|m| m.labels) {
            assert!(LABELS.contains(&format!("| `{label}` |")), "{label}");
        }
    }
}
