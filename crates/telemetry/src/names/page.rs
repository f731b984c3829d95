//! The document about all metrics, `docs/metrics.md`: the text around its tables.

use super::{Metric, control, metrics};

/// Renders the document about all metrics, `docs/metrics.md`.
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
    absent(&mut out, crate::exposition::alias::ABSENT);
    out.push_str(CONTROL_ALIASES);
    for control::ControlAlias { name, means, .. } in control::ALIASES {
        out.push_str(&format!("| `osm_{name}` | `fsm_{name}` | {means} |\n"));
    }
    out.push_str(CONTROL_ALIASES_END);
    absent(&mut out, control::ABSENT);
    out
}

/// Renders the metrics of other products that are absent here.
fn absent(out: &mut String, names: &[(&str, &str)]) {
    out.push_str("| not here | because |\n|---|---|\n");
    for (name, reason) in names {
        out.push_str(&format!("| `{name}` | {reason} |\n"));
    }
}

fn rows<'a>(out: &mut String, metrics: impl IntoIterator<Item = &'a Metric>) {
    out.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.as_str(), labels.join(", "));
        out.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
}

const PREFACE: &str = "\
# Metrics

What sidecars and the control plane expose, in the Prometheus text format 0.0.4, or in OpenMetrics
1.0 where `Accept` asks for it, as Prometheus does. This page is generated from
`crates/telemetry/src/names.rs` and `names/control.rs`; after a change there,
`UPDATE_EXPECT=1 cargo test -p leno-telemetry` writes it anew.

## A sidecar

At `/metrics` of its admin page; at that of `--health` for the clients that `--metrics-from` lists; and, where the mesh is set
so, [pushed to a collector](tracing.md#metrics-by-otlp) of OpenTelemetry.

Metrics name the services and accounts that a workload talks to, and `--health` is not protected by mutual TLS.
`--metrics-from` has the addresses and ranges of its clients: `none` (the default), `any`, or a list such as
`10.1.2.3,fd00::/64`; others get 403. Probes are open to all. In Kubernetes:

| wish | how |
|---|---|
| probes only | the default |
| Prometheus scrapes some pods | annotate them, or their namespace, `leno.dev/metrics: enabled` |
| it scrapes from known addresses only | also `leno install --metrics-from 10.1.2.0/24` (with Helm `metricsFrom`), and restart the pods |
| it scrapes gateways | `leno install --metrics-from any`, or with a list |
| nothing is scraped | push metrics with [`spec.metrics`](tracing.md#metrics-by-otlp) |

A request by a name that a site of the web may have is answered 421: use addresses, names without dots, or names below `.svc`,
`.cluster.local` or `.internal`.

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
whoever else is on the machine. And at `leno control --health`; and, where the mesh is set so,
[pushed to a collector](tracing.md#metrics-by-otlp) of OpenTelemetry.

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
| `cause` | why a policy removed an endpoint: `rate` (too large a share of its requests failed), `consecutive` (too many in a row), `probe` (it failed again) or `check` (its health checks failed) |
| `decider` | what decided in place of the sidecar: `authorization` or `rate-limit`, a service of one of these kinds |
| `reason` | why the request failed or the connection was refused, from the closed [list of reasons](errors.md); empty when the application answered |
| `grpc_status` | how a gRPC call was answered, by name (`OK` to `UNAUTHENTICATED`); `UNKNOWN` also for numbers that gRPC does not have; absent for anything else, and for a call that ended without an answer |
| `side` | `downstream`: opened by a client; `upstream`: opened by this sidecar |
| `fault` | what was injected: `delay` or `abort` |
| `result` | how an attempt ended: `ok`, `failed` or `timeout`; of a copy of a request: `answered`, `failed` or `dropped`; of spans, points and lines: `exported`, `overflowed` (too many waited) or `refused` (the collector is away, or did not take them); of readings of keys: `changed`, `same` or `failed` |
| `source` | `pool`: open already; `new`: opened for the request |
| `table` | the table of a sidecar that was full: `unknown-services` (names of services that do not exist), `services`, `addresses` (of redirected connections), `names` (resolved by DNS) or `service-addresses` (given out by `leno up --netns`) |
| `to` | what a circuit became: `open` or `closed` |
| `kind` | the kind of the object that holds a rule; empty for rules that had no room |
| `namespace` | the namespace of that object |
| `name` | its name; `other` for the rules beyond the first 1023 that decided something in this process |
| `rule` | the rule in it: the name of those that have one, otherwise the place from 0; empty for a `TrafficTarget` and for what a circuit breaker turns away ([which decisions count](seeing.md#rules-that-decide)) |
| `version` | the version of Leno |
| `state` | of places that keys are read from: `all` of them, those `failing` the last time, those `without` any keys in force |
| `queue` | what waits: `updates` of files, `events` of proxies, `questions` of operators, `signatures`, proxies `due` to be told, `rounds` that somebody has not applied |

## gRPC

A call of gRPC fails with HTTP status 200. Sidecars read `grpc-status` where they speak HTTP/2 with
the one who calls or with the one who is called, from the trailers, or from the head of an answer
that has nothing else. An answer without one counts as what gRPC's clients make of its HTTP status:
`UNKNOWN` for 200, `UNAVAILABLE` for 503. A failure of the mesh has a `reason` as well.

A rejection by one sidecar has the same `reason` in the counts of both sides: the client's sidecar
reads it from the connection to the verified sidecar of the server, which is a link or `leno-http/1`.
A response of the application has none, also where it carries a `leno-reason` field.

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
| `envoy_http_local_rate_limiter_http_local_rate_limit_rate_limited` | `http_local_rate_limiter{http_local_rate_limit=\"rate_limited\"}` | the same of HTTP alone, of all services together |
| `osm_request_total` | `fsm_request_total` | `leno_requests_total` of what the workload calls, by service; `response_code` has the class, such as `2xx` |
| `osm_request_duration_ms` | `fsm_request_duration_ms` | `leno_request_duration_seconds`, in milliseconds |

The labels `source_namespace`, `source_name` and `source_pod` name the workload, `destination_namespace` and
`destination_name` the service; for OSM `-` in them is `_`, as OSM has it. Not there, since a sidecar does not know them:
`source_kind`, `destination_kind` and `destination_pod`. Of the names with `envoy_` or `sidecar_`:

";

const CONTROL_ALIASES: &str = "
The control plane tells these of its own, on request in the same way (the control plane of osm-edge has the names of OSM):

| OSM, osm-edge | FSM | here |
|---|---|---|
";

const CONTROL_ALIASES_END: &str = "
Of its other names none would say the same; [its own metrics](#the-control-plane) stand for them.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        expect_test::expect_file!["../../../../docs/metrics.md"].assert_eq(&render());
    }

    #[test]
    fn every_label_is_explained() {
        for label in metrics().chain(control::METRICS).flat_map(|m| m.labels) {
            assert!(LABELS.contains(&format!("| `{label}` |")), "{label}");
        }
    }
}
