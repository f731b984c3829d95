//! The services that a workload calls: by subscriptions, by listeners of its own, by routes, and as counted.

use std::collections::BTreeSet;

use super::steps::Facts;

/// The services that the application of a workload calls by name, or by a listener of its sidecar. A listener needs no
/// subscription.
pub(super) fn services<'a>(facts: &'a Facts, workload: &str) -> BTreeSet<&'a str> {
    let proxies = facts.proxies.iter().filter(|proxy| proxy.workload == workload);
    let subscriptions = proxies.flat_map(|proxy| &proxy.subscriptions);
    let workloads = facts.workloads.iter().filter(|known| known.name == workload);
    let listeners = workloads.flat_map(|known| &known.doors).map(|listener| &listener.service);
    subscriptions.chain(listeners).map(String::as_str).collect()
}

/// True when requests of a workload go to a service, or can go there without a subscription.
pub(super) fn may_call(facts: &Facts, workload: &str, to: &str) -> bool {
    let called = services(facts, workload);
    called.contains(to) || is_routed(facts, &called, to) || is_counted(facts, workload, to)
}

/// A route of a service that the workload calls has the other service as a backend.
fn is_routed(facts: &Facts, called: &BTreeSet<&str>, to: &str) -> bool {
    let services = facts.services.iter().filter(|service| called.contains(service.name.as_str()));
    let attached: BTreeSet<&String> = services.flat_map(|service| &service.routes).collect();
    let routes = facts.routes.iter().filter(|route| attached.contains(&route.name));
    let mut backends = routes.flat_map(|route| &route.backends);
    backends.any(|backend| backend.strip_prefix(to).is_some_and(|rest| rest.starts_with(':')))
}

/// Requests of the workload to the service were counted. Those of a workload behind a service count for that service.
fn is_counted(facts: &Facts, workload: &str, to: &str) -> bool {
    let is_alone = |service: &str| {
        let found = facts.services.iter().find(|known| known.name == service);
        found.is_some_and(|known| known.workloads == [workload])
    };
    facts.edges.iter().filter(|edge| edge.to == to && edge.rates.requests > 0).any(
        |edge| match edge.kind.as_str() {
            "workload" => edge.from == workload,
            "service" => is_alone(&edge.from),
            _ => false,
        },
    )
}

#[cfg(test)]
mod tests {
    use leno_control::status::{EdgeStatus, RateStatus, RouteStatus};
    use serde_json::json;

    use super::super::steps::examine;
    use super::*;

    fn service(name: &str, workload: &str, routes: serde_json::Value) -> serde_json::Value {
        let endpoint = json!({
            "name": null, "port": 80, "protocol": "HTTP", "endpoints": [],
        });
        json!({
            "name": name, "selector": {}, "workloads": [workload], "routes": routes,
            "ports": [endpoint],
        })
    }

    fn facts() -> Facts {
        let workload = json!({
            "name": "t/c-1", "account": "t/c", "address": "127.0.0.1", "ports": [], "labels": {},
            "services": ["t/c"], "sidecar": "connected", "listeners": {}, "doors": [],
        });
        let proxy = json!({
            "workload": "t/c-1", "connection": 1, "connected_seconds": 1.0, "pid": 1,
            "version": "1", "admin": null, "subscriptions": [], "services": 1,
            "world_age_seconds": 1.0, "behind_seconds": null, "told": 1, "applied": 1, "refused": 0,
            "refusals": [],
        });
        Facts {
            workloads: vec![serde_json::from_value(workload).unwrap()],
            proxies: vec![serde_json::from_value(proxy).unwrap()],
            services: [service("t/c", "t/c-1", json!([])), service("t/h", "t/h-1", json!([]))]
                .map(|it| serde_json::from_value(it).unwrap())
                .into(),
            ..Facts::default()
        }
    }

    fn is_reported_as_unused(facts: &Facts) -> bool {
        let steps = examine(facts, "t/c-1", Some("t/h"));
        steps.iter().any(|step| step.name == "subscribed")
    }

    fn edge(kind: &str, from: &str, requests: u64) -> EdgeStatus {
        let rates = RateStatus { requests, ..RateStatus::default() };
        let (kind, from, to) = (kind.to_owned(), from.to_owned(), "t/h".to_owned());
        EdgeStatus { kind, from, to, mtls: true, rates }
    }

    #[test]
    fn a_workload_that_calls_a_service_is_not_reported_as_silent() {
        assert!(is_reported_as_unused(&facts()));
        let mut subscribed = facts();
        subscribed.proxies[0].subscriptions = vec!["t/h".to_owned()];
        let mut listening = facts();
        listening.workloads[0].doors = serde_json::from_value(
            json!([{ "service": "t/h", "port": 80, "listen": "127.0.0.1:1" }]),
        )
        .unwrap();
        assert_eq!(services(&listening, "t/c-1"), ["t/h"].into());
        let mut counted = facts();
        counted.edges = vec![edge("workload", "t/c-1", 3)];
        let mut of_its_service = facts();
        of_its_service.edges = vec![edge("service", "t/c", 3)];
        let mut routed = facts();
        let main = service("t/main", "t/m-1", json!(["t/split"]));
        routed.services.push(serde_json::from_value(main).unwrap());
        routed.proxies[0].subscriptions = vec!["t/main".to_owned()];
        let split: RouteStatus = serde_json::from_value(json!({
            "kind": "HTTPRoute", "name": "t/split", "parents": ["t/main"], "rules": 1,
            "backends": ["t/h:80 weight 1"], "problems": [],
        }))
        .unwrap();
        routed.routes = vec![split];
        for facts in [subscribed, listening, counted, of_its_service, routed] {
            assert!(!is_reported_as_unused(&facts));
        }
    }

    #[test]
    fn requests_of_others_say_nothing_about_a_workload() {
        let mut facts = facts();
        facts.edges = vec![edge("workload", "t/c-2", 3), edge("service", "t/c", 0)];
        assert!(is_reported_as_unused(&facts));
        // Another workload of the same service may have sent them.
        facts.edges = vec![edge("service", "t/c", 3)];
        facts.services[0].workloads.push("t/c-2".to_owned());
        assert!(is_reported_as_unused(&facts));
    }
}
