//! Generates `docs/metrics.md`, the document about the metrics of sidecars and the control plane: one table each,
//! the meaning of the labels, and the metric names of OSM and FSM that are available as aliases.

use super::{MetricFamily, control, sidecar_metrics};

/// Renders the text of `docs/metrics.md`. A test compares the file with it.
#[must_use]
pub fn render_document() -> String {
    let mut document = SIDECAR_SECTION.to_owned();
    render_metric_table(&mut document, sidecar_metrics());
    document.push_str(CONTROL_PLANE_SECTION);
    render_metric_table(&mut document, control::METRICS);
    document.push_str(REFERENCE_SECTIONS);
    document.push_str(ALIAS_SECTION);
    for (name, meaning) in crate::exposition::alias::document_rows() {
        document.push_str(&format!("| `envoy_{name}` | `sidecar_{name}` | {meaning} |\n"));
    }
    document.push_str(ALIAS_SECTION_END);
    render_unavailable_names(&mut document, crate::exposition::alias::UNAVAILABLE_METRICS);
    document.push_str(CONTROL_ALIAS_SECTION);
    for control::ControlAlias { name, meaning, .. } in control::ALIASES {
        document.push_str(&format!("| `osm_{name}` | `fsm_{name}` | {meaning} |\n"));
    }
    document.push_str(CONTROL_ALIAS_SECTION_END);
    render_unavailable_names(&mut document, control::UNAVAILABLE_METRICS);
    document
}

/// Appends a table of other products' metric names without an equivalent in Leno, each with the reason.
fn render_unavailable_names(document: &mut String, names: &[(&str, &str)]) {
    document.push_str("| unavailable | reason |\n|---|---|\n");
    for (name, reason) in names {
        document.push_str(&format!("| `{name}` | {reason} |\n"));
    }
}

/// Appends a table with one row per metric.
fn render_metric_table<'a>(
    document: &mut String,
    metrics: impl IntoIterator<Item = &'a MetricFamily>,
) {
    document.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for MetricFamily { name, kind, labels, help } in metrics {
        let quoted_labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, label_list) = (kind.as_str(), quoted_labels.join(", "));
        document.push_str(&format!("| `{name}` | {kind} | {label_list} | {help} |\n"));
    }
}

/// The title, the introduction, and the section about sidecars up to its table.
const SIDECAR_SECTION: &str = "\
# Metrics

Sidecars and the control plane expose metrics in the Prometheus text format 0.0.4, or in OpenMetrics
1.0 if the `Accept` header requests it, as that of Prometheus does. This page is generated from
`crates/telemetry/src/names.rs` and `names/control.rs`; after a change there,
`UPDATE_EXPECT=1 cargo test -p leno-telemetry` updates it.

## A sidecar

A sidecar serves its metrics at `/metrics` of its admin endpoint. The clients that `--metrics-from` lists also get them at
`/metrics` of `--health`. If configured, the sidecar
[pushes them to an OpenTelemetry Collector](tracing.md#metrics-by-otlp).

Metrics contain the services and accounts that a workload calls, and mutual TLS does not protect `--health`.
`--metrics-from` lists the addresses and ranges of permitted clients: `none` (the default), `any`, or a list such as
`10.1.2.3,fd00::/64`; other clients get 403. Probes are open to all. In Kubernetes:

| goal | configuration |
|---|---|
| probes only | the default |
| Prometheus scrapes some pods | annotate them, or their namespace, `leno.dev/metrics: enabled` |
| Prometheus scrapes from known addresses only | the annotation, and `leno install --metrics-from 10.1.2.0/24` (with Helm `metricsFrom`), and restart the pods |
| Prometheus scrapes gateways | `leno install --metrics-from any`, or with a list |
| no scraping | push metrics with [`spec.metrics`](tracing.md#metrics-by-otlp) |

A request with a `Host` that may be the name of a public web site gets 421: use addresses, names without dots, or names below `.svc`,
`.cluster.local` or `.internal`.

With `--application-metrics PORT/PATH` the sidecar scrapes the application for each request and appends its metrics:
one scrape for both, without an exception from mutual TLS. Such a response always has the text
format 0.0.4. The application's metrics may have up to 8 MiB, and must arrive within 5 s. Metrics with the name of a sidecar metric, such as
`process_cpu_seconds_total`, are omitted. If the application's metrics are invalid, all of them are omitted and counted in
`leno_application_scrapes_total{result=\"failed\"}`; the sidecar's metrics are served in any case. In Kubernetes the injector
[sets the option](kubernetes.md) if metrics are enabled and the pod has the scrape annotations.

";

/// The section about the control plane up to its table.
const CONTROL_PLANE_SECTION: &str = "
## The control plane

The control plane serves its metrics at `/metrics` of its admin socket:
`curl --unix-socket DATA/control.sock http://leno/metrics`. Prometheus supports TCP only: `socat TCP-LISTEN:9901,bind=127.0.0.1,fork UNIX-CONNECT:DATA/control.sock` opens the socket to it and to
every user of the machine. `leno control --health` serves the metrics too, and, if configured, the control plane
[pushes them to an OpenTelemetry Collector](tracing.md#metrics-by-otlp).

";

/// The sections about labels, gRPC and durations.
const REFERENCE_SECTIONS: &str = r#"
## Labels

| label | values |
|---|---|
| `direction` | `inbound`: to the workload; `outbound`: from the workload |
| `destination_service` | the destination service, `namespace/name`; `other` beyond 2048 label sets |
| `destination_port` | the port of the destination service; 0 for `other` |
| `route` | the `HTTPRoute` that selected the backend, `namespace/name`; empty without one |
| `peer` | the verified identity of the peer; empty without one, which occurs inbound only if plaintext is accepted |
| `protocol` | the protocol; `outside` for connections to destinations outside the mesh, with an empty destination service and the port 0 |
| `code` | the response code class, `1xx` to `5xx`; `000` without a response |
| `cause` | the cause of an ejection: `rate` (failure rate), `consecutive` (consecutive failures), `probe` (a probe request failed) or `check` (health checks failed) |
| `check_service` | the type of the external service: `authorization` or `rate-limit` |
| `reason` | the reason that the request failed or the connection was rejected, from the closed [list of reasons](errors.md); empty if the application responded |
| `grpc_status` | the status of a gRPC call, by name (`OK` to `UNAUTHENTICATED`); `UNKNOWN` also for undefined numbers; absent for other protocols, and for a call without a response |
| `side` | `downstream`: opened by a client; `upstream`: opened by this sidecar |
| `fault` | the injected fault: `delay` or `abort` |
| `result` | the result of an attempt: `ok`, `failed` or `timeout`; of a mirrored request: `responded`, `failed` or `dropped`; of spans, data points and log records: `exported`, `overflowed` (the queue was full) or `rejected` (the collector is unavailable or rejected them); of JWKS fetches: `changed`, `unchanged` or `failed`; of health checks: `ok`, `failed` or `unknown`; of external checks: `allowed`, `denied`, `failed` or `failure-mode-allowed`; of DNS queries: `answered`, `forwarded` or `failed` |
| `source` | `pool`: a reused connection; `new`: opened for the request |
| `table` | the table of a sidecar that was full: `unknown-services` (names of services that do not exist), `services`, `addresses` (of redirected connections), `names` (resolved by DNS) or `service-addresses` (allocated by `leno up --netns`) |
| `to` | the new state of a circuit breaker: `open` or `closed` |
| `rule_kind` | the kind of the object that contains the rule; empty for rules beyond the limit |
| `rule_namespace` | the namespace of that object |
| `rule_name` | its name; `other` for the rules beyond the first 1023 that matched in this process |
| `rule` | the rule: its name, otherwise its index from 0; empty for a `TrafficTarget` and for requests that a circuit breaker rejects ([which decisions count](observability.md#rules-that-decide)) |
| `version` | the version of Leno |
| `kind` | the kind of a problem, such as `listener-closed` |
| `state` | of JWKS endpoints and files: `all`, those whose last fetch failed (`failing`), those without valid keys (`without-keys`) |
| `queue` | the queue: `updates` of files, `events` of proxies, `queries` (of operators), `signatures`, `pending` (proxies with a pending push), `pushes` (pushes that a proxy has not applied) |

## gRPC

A failed gRPC call has HTTP status 200. Sidecars read `grpc-status` if they speak HTTP/2 with
the client or the server, from the trailers, or from the header of a trailers-only response.
A response without it counts with the status that gRPC clients derive from its HTTP status:
`UNKNOWN` for 200, `UNAVAILABLE` for 503. A failure of the mesh has a `reason` as well.

A rejection by one sidecar has the same `reason` in the counts of both sides: the client's sidecar
reads it from the connection to the verified sidecar of the server, which is a link or `leno-http/1`.
A response of the application has none, even with a `leno-reason` header.

In success rates (`leno get`, the admin endpoint) a request is a success when it has no `reason`, its
status is below 500, and its `grpc_status` is none of `UNKNOWN`, `DEADLINE_EXCEEDED`,
`UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` and `DATA_LOSS`: the server errors of the OpenTelemetry
semantic conventions. The same rule applies on both sides of a call, so that both have the same counts. In Prometheus:

```
sum by (destination_service) (rate(leno_requests_total{direction="inbound",reason="",code!="5xx",
    grpc_status!~"UNKNOWN|DEADLINE_EXCEEDED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS"}[5m]))
  / sum by (destination_service) (rate(leno_requests_total{direction="inbound"}[5m]))
```

## Durations

Durations are kept in buckets with a width of at most an eighth of their value, so that quantiles are
exact to 6 %; the boundaries of the exposed histogram are the nearest ones.

In OpenMetrics a bucket has the last request of a sampled [trace](tracing.md) that fell into it as its
exemplar, with `trace_id`. Prometheus keeps them with `--enable-feature=exemplar-storage`.
"#;

/// The section about the metric names of other products up to the rows of the sidecar's aliases.
const ALIAS_SECTION: &str = "
## Names of OSM and FSM

Dashboards and scripts for OSM, osm-edge or FSM get the metric names of these products on request:
`/metrics?names=osm` adds those of OSM with Envoy, `/metrics?names=fsm` those of osm-edge and FSM with Pipy,
always in the text format. Configure Prometheus with `params: {names: [osm]}`. Their values come
from the metrics on this page; the table states where they are less detailed than the original. Clusters have the name
`NAMESPACE/SERVICE|PORT`; only services that the workload calls are clusters.

| OSM | osm-edge, FSM | Leno metric |
|---|---|---|
";

/// The rows of aliases that are not one name for one metric, and the introduction of the unavailable names.
const ALIAS_SECTION_END: &str = "\
| `envoy_cluster_upstream_rq_xx` | `sidecar_cluster_upstream_rq_xx` | `leno_requests_total` by `code`; the label `envoy_response_code_class` (`sidecar_…`) has the first digit |
| `envoy_local_rate_limit_inbound` | `sidecar_local_rate_limit_inbound` | inbound requests with the reason `rate-limited`; `label` is `NAMESPACE/SERVICE_PORT_PROTOCOL.rate_limited` |
| `envoy_http_local_rate_limiter_http_local_rate_limit_rate_limited` | `http_local_rate_limiter{http_local_rate_limit=\"rate_limited\"}` | the same for HTTP only, all services together |
| `osm_request_total` | `fsm_request_total` | outbound `leno_requests_total`, by service; `response_code` has the class, such as `2xx` |
| `osm_request_duration_ms` | `fsm_request_duration_ms` | `leno_request_duration_seconds`, in milliseconds |

The labels `source_namespace`, `source_name` and `source_pod` name the workload, `destination_namespace` and
`destination_name` the service; for OSM `-` is replaced by `_`, as in OSM. A sidecar does not have the values of
`source_kind`, `destination_kind` and `destination_pod`. These names with `envoy_` or `sidecar_` are unavailable:

";

/// The introduction of the control plane's aliases up to their rows.
const CONTROL_ALIAS_SECTION: &str = "
The control plane has these aliases, requested in the same way (the control plane of osm-edge has the names of OSM):

| OSM, osm-edge | FSM | Leno metric |
|---|---|---|
";

/// The introduction of the control plane's unavailable names.
const CONTROL_ALIAS_SECTION_END: &str = "
Its other metrics have no equivalent; use [the control plane's metrics](#the-control-plane).

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        expect_test::expect_file!["../../../../docs/metrics.md"].assert_eq(&render_document());
    }

    #[test]
    fn every_label_is_explained() {
        for label in sidecar_metrics().chain(control::METRICS).flat_map(|metric| metric.labels) {
            assert!(REFERENCE_SECTIONS.contains(&format!("| `{label}` |")), "{label}");
        }
    }
}
