//! Formats the control plane's responses for `leno get` as tables and text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use leno_control::status::{
    CertificateStatus, NamedRateStatus, ParentStatus, PolicyStatus, ProxyStatus, RateStatus,
    RouteStatus, ServiceStatus, Status, TrafficStatus, WorkloadStatus,
};
use serde_json::Value;

use super::rules;
use crate::duration::format_duration;
use crate::figures::{format_count, format_latency, format_rate, format_share};
use crate::output::{Listing, ListingColumn, format_line};

/// Describes the mesh as a whole.
pub(super) fn describe_status(status: &Status) -> String {
    let convergence = &status.convergence;
    let lines = [
        ("trust domain", status.trust_domain.clone()),
        ("default policy", status.default_policy.clone()),
        ("workloads", format!("{}, {} with a ready sidecar", status.workloads, status.registered)),
        ("services", status.services.to_string()),
        (
            "sidecars",
            format!(
                "{} connected, {} out of sync, {} rejecting; {}",
                status.proxies,
                status.out_of_sync,
                status.rejecting,
                format_count(status.peers, "other control plane")
            ),
        ),
        (
            "certificates",
            match status.outdated {
                1 => "1 sidecar must still renew its certificate after the CA change".to_owned(),
                count => {
                    format!("{count} sidecars must still renew certificates after the CA change")
                }
            },
        ),
        ("rejected", format_count(status.rejected, "document")),
        (
            "changes",
            format!(
                "{} timed, p50 {:.1} ms, p99 {:.1} ms",
                convergence.changes, convergence.p50_ms, convergence.p99_ms
            ),
        ),
    ];
    let mut text = String::new();
    for (label, value) in lines {
        writeln!(text, "{label:<13} {value}").expect("writing to a String never fails");
    }
    text
}

/// Lists workloads, joined with their sidecars.
pub(super) fn workload_table(workloads: &[WorkloadStatus], proxies: &[ProxyStatus]) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("workload"),
        ListingColumn::always("account"),
        ListingColumn::always("ports"),
        ListingColumn::always("services"),
        ListingColumn::always("sidecar"),
        ListingColumn::always("application"),
        ListingColumn::always("outbound listeners"),
        ListingColumn::always("listeners"),
        ListingColumn::wide("address"),
        ListingColumn::wide("labels"),
        ListingColumn::wide("inbound"),
        ListingColumn::wide("pid"),
        ListingColumn::wide("admin"),
        ListingColumn::wide("HTTP proxy"),
        ListingColumn::wide("version"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for workload in workloads {
        let proxy = proxies.iter().find(|proxy| proxy.workload == workload.name);
        let proxy_cell =
            |read_cell: fn(&ProxyStatus) -> String| proxy.map(read_cell).unwrap_or_default();
        let ports = workload.ports.iter();
        let outbound_listeners = workload.outbound_listeners.iter();
        let listeners = workload.listeners.iter();
        listing.add_row([
            workload.name.clone(),
            workload.account.clone(),
            join_texts(ports.map(|port| format!("{}/{}", port.port, port.protocol))),
            join_texts(workload.services.iter().cloned()),
            workload.sidecar.clone(),
            describe_application(workload),
            join_texts(outbound_listeners.map(|listener| {
                format!("{}→{}:{}", listener.listen, listener.service, listener.port)
            })),
            describe_listeners(workload),
            workload.address.clone(),
            format_labels(&workload.labels),
            join_texts(listeners.map(|(port, address)| format!("{port}←{address}"))),
            proxy_cell(|proxy| proxy.pid.to_string()),
            proxy_cell(|proxy| proxy.admin.clone().unwrap_or_default()),
            workload.http_proxy.clone().unwrap_or_default(),
            proxy_cell(|proxy| proxy.version.clone()),
        ]);
    }
    listing
}

/// Returns the state of an application and the number of its restarts; empty if `leno up` does not run it.
fn describe_application(workload: &WorkloadStatus) -> String {
    let Some(application) = &workload.application else { return String::new() };
    let mut text = application.state.clone();
    if application.restarts > 0 {
        text.push_str(&format!(" ×{}", application.restarts));
    }
    let problems = application.ports.iter().map(|(port, problem)| format!("{port}: {problem}"));
    let problems_text = join_texts(problems);
    if !problems_text.is_empty() {
        text.push_str(&format!(" ({problems_text})"));
    }
    text
}

/// Returns the closed listeners, or `open` if none is closed; empty if the sidecar is not connected.
fn describe_listeners(workload: &WorkloadStatus) -> String {
    let kinds = ["listener-closed", "dns-closed"];
    let closed_listeners: Vec<&str> = workload
        .conditions
        .iter()
        .filter(|condition| kinds.contains(&condition.kind.as_str()))
        .map(|condition| condition.subject.as_str())
        .collect();
    match (closed_listeners.as_slice(), workload.sidecar.as_str()) {
        ([], "connected") => "open".to_owned(),
        ([], _) => String::new(),
        (closed_listeners, _) => format!("closed: {}", closed_listeners.join(", ")),
    }
}

/// Lists services with their statistics, one row per port.
pub(super) fn service_table(services: &[ServiceStatus], traffic: &TrafficStatus) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("service"),
        ListingColumn::always("port"),
        ListingColumn::always("protocol"),
        ListingColumn::always("endpoints"),
        ListingColumn::always("workloads"),
        ListingColumn::always("routes"),
        ListingColumn::wide("selector"),
        ListingColumn::wide("addresses"),
        ListingColumn::wide("rate"),
        ListingColumn::wide("success"),
        ListingColumn::wide("p99"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for service in services {
        let rates = find_rates(&traffic.services, &service.name);
        for port in &service.ports {
            let endpoints = port.endpoints.iter();
            listing.add_row([
                service.name.clone(),
                port.port.to_string(),
                port.protocol.clone(),
                format!("{}/{}", port.endpoints.len(), service.workloads.len()),
                join_texts(service.workloads.iter().cloned()),
                join_texts(service.routes.iter().cloned()),
                format_labels(&service.selector),
                join_texts(endpoints.map(|endpoint| endpoint.address.clone())),
                rates.map(|rates| format_rate(rates.per_second)).unwrap_or_default(),
                rates.map(|rates| format_share(rates.success)).unwrap_or_default(),
                rates.map(|rates| format_latency(rates.p99_ms)).unwrap_or_default(),
            ]);
        }
    }
    listing
}

/// Lists certificates with their age and remaining validity.
pub(super) fn certificate_table(certificates: &[CertificateStatus]) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("workload"),
        ListingColumn::always("identity"),
        ListingColumn::always("age"),
        ListingColumn::always("valid for"),
        ListingColumn::wide("issued"),
        ListingColumn::wide("not after"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for certificate in certificates {
        let validity = match certificate.valid_for_seconds {
            0 => "expired".to_owned(),
            seconds => format_duration(Duration::from_secs(seconds)),
        };
        listing.add_row([
            certificate.workload.clone(),
            certificate.identity.clone(),
            format_duration(Duration::from_secs(certificate.age_seconds)),
            validity,
            format_date(certificate.issued),
            format_date(certificate.not_after),
        ]);
    }
    listing
}

/// Lists connected sidecars with the state of their configuration.
pub(super) fn proxy_table(proxies: &[ProxyStatus]) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("workload"),
        ListingColumn::always("pid"),
        ListingColumn::always("connected"),
        ListingColumn::always("services"),
        ListingColumn::always("state"),
        ListingColumn::always("config"),
        ListingColumn::always("version"),
        ListingColumn::wide("admin"),
        ListingColumn::wide("subscriptions"),
        ListingColumn::wide("last rejection"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for proxy in proxies {
        let state = if proxy.rejected > 0 {
            format!("rejects {}", proxy.rejected)
        } else if proxy.applied < proxy.sent {
            let delay = Duration::try_from_secs_f64(proxy.out_of_sync_seconds.unwrap_or_default());
            format!("out of sync for {}", format_duration(delay.unwrap_or_default()))
        } else {
            "current".to_owned()
        };
        let connection_age = Duration::try_from_secs_f64(proxy.connected_seconds);
        listing.add_row([
            proxy.workload.clone(),
            proxy.pid.to_string(),
            format_duration(connection_age.unwrap_or_default()),
            proxy.services.to_string(),
            state,
            match proxy.config_age_seconds.map(Duration::try_from_secs_f64) {
                Some(Ok(age)) => format!("{} old", format_duration(age)),
                _ => "none".to_owned(),
            },
            proxy.version.clone(),
            proxy.admin.clone().unwrap_or_default(),
            join_texts(proxy.subscriptions.iter().cloned()),
            proxy.rejections.last().cloned().unwrap_or_default(),
        ]);
    }
    listing
}

/// Lists routes and their request rates.
pub(super) fn route_table(routes: &[RouteStatus], traffic: &TrafficStatus) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("kind"),
        ListingColumn::always("route"),
        ListingColumn::always("attached to"),
        ListingColumn::always("rules"),
        ListingColumn::always("backends"),
        ListingColumn::always("problems"),
        ListingColumn::wide("accepted"),
        ListingColumn::wide("resolved"),
        ListingColumn::wide("rate"),
        ListingColumn::wide("success"),
        ListingColumn::wide("requests"),
        ListingColumn::wide("matches 1h"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for route in routes {
        let rates = find_rates(&traffic.routes, &route.name);
        listing.add_row([
            route.kind.clone(),
            route.name.clone(),
            join_texts(route.parents.iter().cloned()),
            route.rules.to_string(),
            join_texts(route.backends.iter().cloned()),
            join_texts(route.problems.iter().cloned()),
            describe_condition(&route.attached, |parent| parent.accepted),
            describe_condition(&route.attached, |parent| parent.resolved),
            rates.map(|rates| format_rate(rates.per_second)).unwrap_or_default(),
            rates.map(|rates| format_share(rates.success)).unwrap_or_default(),
            rates.map(|rates| rates.requests.to_string()).unwrap_or_default(),
            rules::describe_matches(&traffic.rules, &route.kind, &route.name),
        ]);
    }
    listing
}

/// Summarizes a condition of a route at its parents, in one word if all parents agree; empty without parents.
fn describe_condition(parents: &[ParentStatus], is_met: impl Fn(&ParentStatus) -> bool) -> String {
    let state = |parent: &ParentStatus| if is_met(parent) { "yes" } else { "no" };
    let states = parents.iter().map(state);
    match parents.split_first() {
        None => String::new(),
        Some((first, other_parents))
            if other_parents.iter().all(|parent| is_met(parent) == is_met(first)) =>
        {
            state(first).to_owned()
        }
        Some(_) => join_texts(
            parents.iter().zip(states).map(|(parent, state)| format!("{}: {state}", parent.parent)),
        ),
    }
}

/// Returns the rates of one object; `None` if no traffic was counted for it.
fn find_rates<'a>(rates: &'a [NamedRateStatus], name: &str) -> Option<&'a RateStatus> {
    rates.iter().find(|rate| rate.name == name).map(|rate| &rate.rates)
}

/// Lists policies with their problems and match counts.
pub(super) fn policy_table(policies: &[PolicyStatus], traffic: &TrafficStatus) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("kind"),
        ListingColumn::always("policy"),
        ListingColumn::always("destination"),
        ListingColumn::always("sources"),
        ListingColumn::always("in force"),
        ListingColumn::always("problems"),
        ListingColumn::wide("rules"),
        ListingColumn::wide("matches 1h"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for policy in policies {
        let in_force = match (policy.in_force, &policy.reason) {
            (true, _) => "yes".to_owned(),
            (false, Some(reason)) => format!("no: {reason}"),
            (false, None) => "no".to_owned(),
        };
        listing.add_row([
            policy.kind.clone(),
            policy.name.clone(),
            join_texts(policy.destinations.iter().cloned()),
            join_texts(policy.sources.iter().cloned()),
            in_force,
            join_texts(policy.problems.iter().cloned()),
            join_texts(policy.rules.iter().cloned()),
            rules::describe_matches(&traffic.rules, &policy.kind, &policy.name),
        ]);
    }
    listing
}

/// Lists rejections and warnings, and the problem of a rejected change of the trust domain, one per line.
pub(super) fn format_rejections(response: &Value) -> String {
    let mut text = String::new();
    for (list, kind) in [("rejected", "rejected"), ("warnings", "warning")] {
        let findings = response.get(list).and_then(Value::as_array);
        for finding in findings.into_iter().flatten() {
            writeln!(text, "{kind}: {}", format_line(&format_finding(finding)))
                .expect("writing to a String never fails");
        }
    }
    if let Some(problem) = response.get("trust_domain").and_then(Value::as_str) {
        writeln!(text, "rejected: MeshConfig: {}", format_line(&problem))
            .expect("writing to a String never fails");
    }
    if text.is_empty() {
        text.push_str("nothing is rejected\n");
    }
    text
}

/// Formats a finding as `leno check` prints it.
fn format_finding(finding: &Value) -> String {
    let text_field = |name: &str| match finding.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let location_parts: Vec<String> =
        ["file", "line", "column"].iter().filter_map(|name| text_field(name)).collect();
    let object = match (text_field("kind"), text_field("namespace"), text_field("name")) {
        (Some(kind), Some(namespace), Some(name)) => Some(format!("{kind} {namespace}/{name}")),
        (Some(kind), None, Some(name)) => Some(format!("{kind} {name}")),
        (kind, ..) => kind,
    };
    let location = (!location_parts.is_empty()).then(|| location_parts.join(":"));
    let parts: Vec<String> = [location, object, text_field("field"), text_field("problem")]
        .into_iter()
        .flatten()
        .collect();
    format!("{}; {}", parts.join(": "), text_field("hint").unwrap_or_default())
}

fn join_texts(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

fn format_labels(labels: &BTreeMap<String, String>) -> String {
    join_texts(labels.iter().map(|(key, value)| format!("{key}={value}")))
}

/// Formats a Unix timestamp in seconds as RFC 3339; empty if it is out of range.
fn format_date(timestamp: u64) -> String {
    let seconds = i64::try_from(timestamp).ok();
    let date = seconds.and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    let text =
        date.and_then(|date| date.format(&time::format_description::well_known::Rfc3339).ok());
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::OutputFormat;

    #[test]
    fn findings_are_formatted_as_by_leno_check() {
        let response = json!({
            "rejected": [{
                "file": "mesh.yaml", "line": 12, "column": 7, "kind": "HTTPRoute",
                "namespace": "bookinfo", "name": "reviews", "field": "spec.rules",
                "problem": "what is wrong", "hint": "what to do",
            }],
            "warnings": [{"file": "a.yaml", "problem": "odd", "hint": "even"}],
            "trust_domain": "it cannot be replaced",
        });
        assert_eq!(
            format_rejections(&response),
            "rejected: mesh.yaml:12:7: HTTPRoute bookinfo/reviews: spec.rules: what is wrong; \
             what to do\nwarning: a.yaml: odd; even\nrejected: MeshConfig: it cannot be replaced\n"
        );
        let empty_list = json!({"rejected": [], "warnings": [], "trust_domain": null});
        assert_eq!(format_rejections(&empty_list), "nothing is rejected\n");
    }

    #[test]
    fn the_reason_of_a_policy_not_in_force_is_listed() {
        let policy = |name: &str, in_force, reason: Option<&str>| PolicyStatus {
            kind: "Retry".to_owned(),
            name: name.to_owned(),
            in_force,
            reason: reason.map(str::to_owned),
            ..PolicyStatus::default()
        };
        let policies = [
            policy("shop/a", true, None),
            policy("shop/b", false, Some("Retry shop/a is about the same requests")),
            policy("shop/c", false, None),
        ];
        let table = policy_table(&policies, &TrafficStatus::default()).render(OutputFormat::Table);
        expect_test::expect![[r#"
            KIND   POLICY  DESTINATION  SOURCES  IN FORCE                                     PROBLEMS
            Retry  shop/a  -            -        yes                                          -
            Retry  shop/b  -            -        no: Retry shop/a is about the same requests  -
            Retry  shop/c  -            -        no                                           -
        "#]]
        .assert_eq(&table);
    }

    #[test]
    fn conditions_that_differ_are_listed_per_parent() {
        let parent = |parent: &str, accepted| ParentStatus {
            parent: parent.to_owned(),
            accepted,
            resolved: true,
            reasons: Vec::new(),
        };
        let parents = [parent("shop/a", true), parent("shop/b", false)];
        assert_eq!(
            describe_condition(&parents, |parent| parent.accepted),
            "shop/a: yes, shop/b: no"
        );
        assert_eq!(describe_condition(&parents, |parent| parent.resolved), "yes");
        assert_eq!(describe_condition(&[], |parent| parent.resolved), "");
    }

    #[test]
    fn the_remaining_validity_of_certificates_is_listed() {
        let certificate = |seconds| CertificateStatus {
            workload: "a/b".to_owned(),
            identity: "spiffe://c/ns/a/sa/b".to_owned(),
            issued: 1_799_913_600,
            age_seconds: 86_400 - seconds,
            not_after: 1_800_000_000,
            valid_for_seconds: seconds,
        };
        let listing = certificate_table(&[certificate(43_205), certificate(0)]);
        expect_test::expect![[r#"
            WORKLOAD  IDENTITY              AGE     VALID FOR  ISSUED                NOT AFTER
            a/b       spiffe://c/ns/a/sa/b  11h59m  12h        2027-01-14T08:00:00Z  2027-01-15T08:00:00Z
            a/b       spiffe://c/ns/a/sa/b  1d      expired    2027-01-14T08:00:00Z  2027-01-15T08:00:00Z
        "#]]
        .assert_eq(&listing.render(OutputFormat::Wide));
    }
}
