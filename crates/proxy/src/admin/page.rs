//! Renders the documents of the admin endpoint as JSON, and determines whether the proxy is ready.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use leno_model::{Access, AddressEntry, PolicyRule, PortSet, ServiceConfig, Snapshot};
use serde_json::{Value, json};

use super::Admin;
use crate::application_ports::PortState;
use crate::config::Interception;
use crate::drain::Phase;

/// Returns the reason why the proxy is not ready; `None` if it is.
pub(super) fn unready_reason(admin: &Admin) -> Option<&'static str> {
    if *admin.phase.borrow() != Phase::Serving {
        return Some("the proxy is stopping");
    }
    let Some(credential) = admin.config_store.credential() else {
        return Some("waiting for a certificate");
    };
    if credential.is_expired(SystemTime::now()) {
        return Some("the certificate has expired");
    }
    let Some(config) = admin.config_store.current_config() else {
        return Some("waiting for the first snapshot");
    };
    let Some(open_listeners) = admin.open_listeners.current_states() else {
        return Some("opening the outbound listeners");
    };
    let is_open = |name: String| open_listeners.open.contains_key(&name);
    let is_redirected = matches!(admin.config.interception, Interception::Redirect { .. });
    if is_redirected && open_listeners.closed.keys().any(|name| name.starts_with("redirected-")) {
        return Some("opening the listeners for redirected connections");
    }
    let gateway = || config.compiled.snapshot.config.gateway.clone();
    match admin.is_gateway.then(gateway) {
        None => None,
        Some(None) => Some("waiting for the Gateway of this proxy"),
        Some(Some(gateway)) => {
            // All ports are opened in one pass: an open port shows that all of them were tried. A port that another
            // process uses does not make the gateway unready.
            let mut ports = gateway.ports.iter().map(|port| format!("gateway-{}", port.port));
            if gateway.ports.is_empty() || ports.any(is_open) {
                admin.were_ports_open.set(true);
            }
            (!admin.were_ports_open.get()).then_some("opening the ports of the gateway")
        }
    }
}

/// Returns the current configuration: the proxy configuration, services and certificate, without secrets.
pub(super) fn current_config(admin: &Admin) -> Value {
    let Some(config) = admin.config_store.current_config() else {
        return json!({ "version": 0 });
    };
    let snapshot = &config.compiled.snapshot;
    let workload_config = &snapshot.config;
    let ports: Vec<_> = workload_config
        .ports
        .iter()
        .map(|port| json!({ "port": port.port, "protocol": port.protocol.as_str() }))
        .collect();
    json!({
        "version": config.version,
        "workload": workload_config.workload.to_string(),
        "ports": ports,
        "access": render_access(&workload_config.access),
        "dry_run": workload_config.inbound.is_dry_run,
        "access_rules": workload_config.inbound.rules.iter().map(render_rule).collect::<Vec<_>>(),
        "open_listeners": admin.open_listeners.current_states().map(|states| states.open.clone()),
        "closed_listeners": admin.open_listeners.current_states().map(|states| states.closed.clone()),
        "conditions": active_conditions(admin),
        "application": application_ports(admin),
        "services": snapshot.services.values().map(|service| render_service(service)).collect::<Vec<_>>(),
        "addresses": address_entries(snapshot),
        "egress": workload_config.egress.as_str(),
        "mtls": workload_config.mtls.as_str(),
        "absent": config.absent_services().map(ToString::to_string).collect::<Vec<_>>(),
        "tracing": tracing_settings(admin),
        "access_log": access_log_settings(admin),
        "metrics": metrics_push_settings(admin),
        "taps": active_taps(admin),
        "certificate": certificate_details(admin),
    })
}

/// Returns the address entries of the destinations that the application connected to: descriptions by address.
fn address_entries(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let describe = |entry: &AddressEntry| match entry {
        AddressEntry::External => "outside".to_owned(),
        AddressEntry::Service(name) => format!("service {name}"),
        AddressEntry::Workload { workload, .. } => format!("workload {workload}"),
    };
    let entries = snapshot.addresses.iter();
    entries.map(|(address, entry)| (address.to_string(), describe(entry))).collect()
}

/// Returns the number of open connections, and lists at most [`MAX_LISTED_CONNECTIONS`] of them.
pub(super) fn open_connections(admin: &Admin) -> Value {
    let (open_count, listed_connections) = admin.connections.snapshot(MAX_LISTED_CONNECTIONS);
    let rows: Vec<_> = listed_connections
        .iter()
        .map(|connection| {
            json!({
                "direction": connection.direction,
                "protocol": connection.protocol,
                "peer": connection.peer,
                "identity": connection.identity,
                "target": connection.target,
                "age_s": connection.opened_at.elapsed().as_secs(),
            })
        })
        .collect();
    json!({ "open": open_count, "connections": rows })
}

/// Returns the counts, latency quantiles and bytes of every request series. `leno` renders them as tables.
pub(super) fn request_counts(admin: &Admin) -> Value {
    let milliseconds = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    let series: Vec<_> = admin
        .telemetry
        .series_summaries()
        .into_iter()
        .map(|series| {
            json!({
                "direction": series.labels.direction,
                "service": series.labels.service,
                "port": series.labels.port,
                "route": series.labels.route,
                "peer": series.labels.peer,
                "protocol": series.labels.protocol,
                "requests": series.requests,
                "success": series.success,
                "failures": series.failures.iter().map(|failure| json!({
                    "code": failure.code, "reason": failure.reason, "requests": failure.requests,
                })).collect::<Vec<_>>(),
                "p50_ms": milliseconds(series.p50),
                "p90_ms": milliseconds(series.p90),
                "p99_ms": milliseconds(series.p99),
                "bytes_in": series.bytes_in,
                "bytes_out": series.bytes_out,
            })
        })
        .collect();
    json!({ "series": series })
}

/// Returns the endpoints that outlier detection has ejected.
pub(super) fn ejected_endpoints(admin: &Admin) -> Value {
    let ejected: Vec<_> = admin
        .ejected_endpoints
        .snapshot()
        .into_iter()
        .map(|(thread_count, record)| {
            let id = &record.endpoint.id;
            json!({
                "service": id.service.to_string(),
                "port": id.port,
                "workload": id.workload.to_string(),
                "address": record.endpoint.address,
                "policy": record.policy.to_string(),
                "cause": record.cause.as_str(),
                "age_s": record.since.elapsed().as_secs(),
                "threads": thread_count,
            })
        })
        .collect();
    json!({ "ejected": ejected })
}

/// Returns the circuits that are not closed.
pub(super) fn open_circuits(admin: &Admin) -> Value {
    let now = Instant::now();
    let circuits =
        admin.config_store.conditions.open_circuits().into_iter().map(|(thread_count, circuit)| {
            json!({
                "service": circuit.subject.service.to_string(),
                "port": circuit.subject.port,
                "policy": circuit.policy.to_string(),
                "state": circuit.state(now).as_str(),
                "trigger": circuit.trigger.as_str(),
                "age_s": now.saturating_duration_since(circuit.since).as_secs(),
                "open_duration_ms": u64::try_from(circuit.open_for.as_millis()).unwrap_or(u64::MAX),
                "status": circuit.status,
                "threads": thread_count,
                "total_threads": admin.config.cores.max(1),
            })
        });
    json!({ "circuits": circuits.collect::<Vec<_>>() })
}

/// Returns the conditions that break traffic at this proxy.
fn active_conditions(admin: &Admin) -> Value {
    let conditions = admin.config_store.conditions.active_conditions(Instant::now());
    let rows = conditions.into_iter().map(|condition| {
        json!({
            "kind": condition.kind,
            "subject": condition.subject,
            "reason": condition.reason,
        })
    });
    rows.collect()
}

/// Returns the state of each application port; empty if no supervisor reports them.
fn application_ports(admin: &Admin) -> Value {
    let states = admin.config_store.application_ports.states();
    let describe = |state: &PortState| match state {
        PortState::Open => "open".to_owned(),
        PortState::Starting => "starting".to_owned(),
        PortState::Down => "down".to_owned(),
        PortState::Taken { by } => format!("taken by {by}"),
    };
    let ports = states.ports.iter().map(|(port, state)| (port.to_string(), describe(state)));
    json!(ports.collect::<BTreeMap<_, _>>())
}

fn render_rule(rule: &PolicyRule) -> Value {
    json!({
        "policy": rule.policy.to_string(),
        "rule": rule.name,
        "action": rule.action.as_str(),
        "from": rule.peers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "requests": rule.requests.len(),
        "ports": render_ports(&rule.ports),
    })
}

fn render_access(access: &Access) -> Value {
    match access {
        Access::AllowAll => json!("allow-all"),
        Access::AllowListed(rules) => rules
            .iter()
            .map(|rule| {
                json!({
                    "policy": rule.policy.to_string(),
                    "sources": rule.sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "http_matches": rule.http.len(),
                    "tcp_ports": render_ports(&rule.tcp),
                })
            })
            .collect(),
    }
}

fn render_ports(ports: &PortSet) -> Value {
    match ports {
        PortSet::All => json!("all"),
        PortSet::Only(ports) => json!(ports),
    }
}

fn render_service(service: &ServiceConfig) -> Value {
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|(number, port)| {
            let endpoints: Vec<_> = port
                .endpoints
                .iter()
                .map(|endpoint| {
                    json!({
                        "workload": endpoint.id.workload.to_string(),
                        "address": endpoint.address,
                        "account": endpoint.account.as_ref().map(ToString::to_string),
                    })
                })
                .collect();
            json!({
                "port": number,
                "protocol": port.protocol.as_str(),
                "rules": port.rules.len(),
                "policies": port.traffic_policy.policy_names().map(ToString::to_string).collect::<Vec<_>>(),
                "endpoints": endpoints,
            })
        })
        .collect();
    json!({ "name": service.name.to_string(), "client_access": format!("{:?}", service.client_authorization), "ports": ports })
}

/// Returns the ID and the service of each active tap, which streams live requests to an operator (`leno tap`).
fn active_taps(admin: &Admin) -> Vec<Value> {
    let settings = admin.config_store.observability.active_settings();
    let taps = settings.iter().flat_map(|settings| settings.taps()).map(|tap| tap.matcher.tap());
    taps.map(|tap| json!({ "id": tap.id, "service": tap.service.to_string() })).collect()
}

/// Returns the tracing settings; null if tracing is off.
fn tracing_settings(admin: &Admin) -> Value {
    let settings = admin.config_store.observability.active_settings();
    let Some(tracing) = settings.as_ref().and_then(|settings| settings.tracing_settings()) else {
        return Value::Null;
    };
    json!({
        "sampling": tracing.sampling.to_string(),
        "errors": tracing.errors,
        "collector": tracing.collector.to_string(),
    })
}

/// Returns the access log settings, with the collector if the destination is not standard output; null without
/// an access log.
fn access_log_settings(admin: &Admin) -> Value {
    let settings = admin.config_store.observability.active_settings();
    let Some(log) = settings.as_ref().and_then(|settings| settings.access_log()) else {
        return Value::Null;
    };
    json!({
        "sampling": log.sampling.to_string(),
        "errors": log.errors,
        "collector": log.collector.as_ref().map(ToString::to_string),
    })
}

/// Returns the settings of the metrics push; null if metrics are not pushed.
fn metrics_push_settings(admin: &Admin) -> Value {
    let Some(push) = admin.config_store.observability.subscribe_metrics().borrow().clone() else {
        return Value::Null;
    };
    let interval = format!("{:?}", push.interval);
    json!({ "collector": push.collector.to_string(), "interval": interval })
}

/// Returns the certificate's identity and validity in Unix seconds; null before the first certificate.
fn certificate_details(admin: &Admin) -> Value {
    let Some(credential) = admin.config_store.credential() else {
        return Value::Null;
    };
    let unix_seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
    };
    json!({
        "id": credential.id().to_string(),
        "not_before": unix_seconds(credential.not_before()),
        "not_after": unix_seconds(credential.not_after()),
    })
}

/// The maximum number of connections that are listed; the count of open connections is always exact.
const MAX_LISTED_CONNECTIONS: usize = 1000;
