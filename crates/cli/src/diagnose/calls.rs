//! The services that a workload calls: by subscriptions, outbound listeners, routes, and counted requests.

use std::collections::BTreeSet;

use leno_control::status::{EdgeStatus, RejectionStatus, WorkloadStatus};

use super::steps::{
    DiagnosisInputs, DiagnosisStep, explain_command, most_frequent_reason, rejection_steps,
    success_step,
};
use crate::figures::AILING;

/// Returns the services that the workload's application calls by name, or has an outbound listener for. A
/// listener needs no subscription.
pub(super) fn called_by_name<'a>(facts: &'a DiagnosisInputs, workload: &str) -> BTreeSet<&'a str> {
    let proxies = facts.proxies.iter().filter(|proxy| proxy.workload == workload);
    let subscriptions = proxies.flat_map(|proxy| &proxy.subscriptions);
    let workloads = facts.workloads.iter().filter(|known| known.name == workload);
    let listeners =
        workloads.flat_map(|known| &known.outbound_listeners).map(|listener| &listener.service);
    subscriptions.chain(listeners).map(String::as_str).collect()
}

/// True if the workload sends requests to the service, or can do so without a subscription.
pub(super) fn may_call(facts: &DiagnosisInputs, workload: &str, to: &str) -> bool {
    let called = called_by_name(facts, workload);
    called.contains(to) || is_routed(facts, &called, to) || is_counted(facts, workload, to)
}

/// True if a route of a service that the workload calls has `to` as a backend.
fn is_routed(facts: &DiagnosisInputs, called: &BTreeSet<&str>, to: &str) -> bool {
    let services = facts.services.iter().filter(|service| called.contains(service.name.as_str()));
    let attached: BTreeSet<&String> = services.flat_map(|service| &service.routes).collect();
    let routes = facts.routes.iter().filter(|route| attached.contains(&route.name));
    let mut backends = routes.flat_map(|route| &route.backends);
    backends.any(|backend| backend.strip_prefix(to).is_some_and(|rest| rest.starts_with(':')))
}

/// True if requests of the workload to the service were counted. Requests counted for a service are those of
/// the workload if it is the only one of that service.
fn is_counted(facts: &DiagnosisInputs, workload: &str, to: &str) -> bool {
    facts.edges.iter().filter(|edge| edge.to == to && edge.rates.requests > 0).any(
        |edge| match edge.kind.as_str() {
            "workload" => edge.from == workload,
            "service" => is_alone(facts, &edge.from, workload),
            _ => false,
        },
    )
}

/// True if the workload is the only one of the service.
fn is_alone(facts: &DiagnosisInputs, service: &str, workload: &str) -> bool {
    let found = facts.services.iter().find(|known| known.name == service);
    found.is_some_and(|known| known.workloads == [workload])
}

/// Returns the steps for recent requests of a workload to services other than its own, one per service.
pub(super) fn request_steps(
    facts: &DiagnosisInputs,
    workload: &WorkloadStatus,
) -> Vec<DiagnosisStep> {
    counted_services(facts, workload)
        .into_iter()
        .flat_map(|it| request_steps_to(facts, workload, it))
        .collect()
}

/// Returns the services at which requests of the workload failed recently. Their histories have the reasons.
pub(super) fn failing_services<'a>(
    facts: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> BTreeSet<&'a str> {
    let edges = counted_edges(facts, workload);
    let failing = edges.filter(|edge| edge.rates.success.is_some_and(|success| success < AILING));
    failing.map(|edge| edge.to.as_str()).collect()
}

/// Returns the services for which requests or rejections of the workload were counted recently.
fn counted_services<'a>(
    facts: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> BTreeSet<&'a str> {
    let rejections = facts.rejections.iter().filter(|it| it.clients.contains(&workload.name));
    let rejected = rejections.map(|it| it.service.as_str()).filter(|service| !service.is_empty());
    let counted = counted_edges(facts, workload).map(|edge| edge.to.as_str());
    let is_own = |service: &str| workload.services.iter().any(|own| own == service);
    rejected.chain(counted).filter(|service| !is_own(service)).collect()
}

/// Returns the counted requests of a workload, with those of each service that selects no other workload.
fn counted_edges<'a>(
    facts: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> impl Iterator<Item = &'a EdgeStatus> {
    let name = workload.name.clone();
    let alone: BTreeSet<String> =
        workload.services.iter().filter(|it| is_alone(facts, it, &name)).cloned().collect();
    facts.edges.iter().filter(move |edge| match edge.kind.as_str() {
        "workload" => edge.from == name,
        "service" => alone.contains(&edge.from),
        _ => false,
    })
}

/// Returns the steps for requests of a workload to one service, as counted by its own sidecar: failures of
/// other clients are not its problem.
fn request_steps_to(
    facts: &DiagnosisInputs,
    workload: &WorkloadStatus,
    service: &str,
) -> Vec<DiagnosisStep> {
    let edge = counted_edges(facts, workload).find(|edge| edge.to == service);
    let success = edge.and_then(|edge| edge.rates.success);
    if success.is_none_or(|success| success < AILING) {
        let is_own =
            |it: &RejectionStatus| it.service == service && it.clients.contains(&workload.name);
        let rejected = rejection_steps(facts, is_own);
        if !rejected.is_empty() {
            return rejected;
        }
    }
    let requests = format!("its requests to {service}");
    let reason = most_frequent_reason(facts, service);
    let step = success.map(|success| success_step(success, &requests, reason));
    let command = explain_command(facts, Some(&workload.name), service);
    step.map(|step| step.with_request(&command)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_control::status::{HistoryStatus, RateStatus, RouteStatus};
    use serde_json::json;

    use super::super::steps::{StepResult, build_steps};
    use super::*;

    fn service_status(name: &str, workload: &str, routes: serde_json::Value) -> serde_json::Value {
        let endpoint = json!({
            "name": null, "port": 80, "protocol": "HTTP", "endpoints": [],
        });
        json!({
            "name": name, "selector": {}, "workloads": [workload], "routes": routes,
            "ports": [endpoint],
        })
    }

    fn sample_facts() -> DiagnosisInputs {
        let workload = json!({
            "name": "t/c-1", "account": "t/c", "address": "127.0.0.1", "ports": [], "labels": {},
            "services": ["t/c"], "sidecar": "connected", "listeners": {}, "outbound_listeners": [],
        });
        let proxy = json!({
            "workload": "t/c-1", "connection": 1, "connected_seconds": 1.0, "pid": 1,
            "version": "1", "admin": null, "subscriptions": [], "services": 1,
            "config_age_seconds": 1.0, "out_of_sync_seconds": null, "sent": 1, "applied": 1, "rejected": 0,
            "rejections": [],
        });
        DiagnosisInputs {
            workloads: vec![serde_json::from_value(workload).unwrap()],
            proxies: vec![serde_json::from_value(proxy).unwrap()],
            services: [
                service_status("t/c", "t/c-1", json!([])),
                service_status("t/h", "t/h-1", json!([])),
            ]
            .map(|it| serde_json::from_value(it).unwrap())
            .into(),
            ..DiagnosisInputs::default()
        }
    }

    fn is_reported_as_unused(facts: &DiagnosisInputs) -> bool {
        let steps = build_steps(facts, "t/c-1", Some("t/h"));
        steps.iter().any(|step| step.name == "subscribed")
    }

    fn edge_status(kind: &str, from: &str, requests: u64) -> EdgeStatus {
        let rates = RateStatus { requests, ..RateStatus::default() };
        let (kind, from, to) = (kind.to_owned(), from.to_owned(), "t/h".to_owned());
        EdgeStatus { kind, from, to, mtls: true, rates }
    }

    #[test]
    fn a_workload_that_calls_a_service_is_not_reported_as_silent() {
        assert!(is_reported_as_unused(&sample_facts()));
        let mut subscribed = sample_facts();
        subscribed.proxies[0].subscriptions = vec!["t/h".to_owned()];
        let mut listening = sample_facts();
        listening.workloads[0].outbound_listeners = serde_json::from_value(
            json!([{ "service": "t/h", "port": 80, "listen": "127.0.0.1:1" }]),
        )
        .unwrap();
        assert_eq!(called_by_name(&listening, "t/c-1"), ["t/h"].into());
        let mut counted = sample_facts();
        counted.edges = vec![edge_status("workload", "t/c-1", 3)];
        let mut of_its_service = sample_facts();
        of_its_service.edges = vec![edge_status("service", "t/c", 3)];
        let mut routed = sample_facts();
        let main = service_status("t/main", "t/m-1", json!(["t/split"]));
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

    fn rejection_status(service: &str, client: &str) -> RejectionStatus {
        RejectionStatus {
            service: service.to_owned(),
            reason: "denied-by-policy".to_owned(),
            requests: 30,
            share: 1.0,
            side: "server".to_owned(),
            sidecars: vec!["t/h-1".to_owned()],
            clients: vec![client.to_owned()],
            policies: Vec::new(),
        }
    }

    fn failed_steps(facts: &DiagnosisInputs) -> Vec<String> {
        let steps = build_steps(facts, "t/c-1", None).into_iter();
        let steps = steps.filter(|it| it.name == "requests" && it.verdict == StepResult::Problem);
        steps.map(|step| step.message).collect()
    }

    #[test]
    fn a_client_whose_requests_fail_has_a_step_that_fails() {
        let mut facts = sample_facts();
        let success = |share: f64| {
            let rates =
                RateStatus { success: Some(share), ..edge_status("service", "t/c", 30).rates };
            vec![EdgeStatus { rates, ..edge_status("service", "t/c", 30) }]
        };
        assert_eq!(failed_steps(&facts), [""; 0]);
        facts.rejections = vec![rejection_status("t/h", "t/c-1")];
        let text = "t/h: the mesh rejects 100 % of the requests with denied-by-policy at the sidecar t/h-1";
        assert_eq!(failed_steps(&facts), [text]);
        facts.edges = success(0.0);
        assert_eq!(failed_steps(&facts), [text]);
        // The requests of this client succeed, or the rejected ones are another client's.
        facts.edges = success(1.0);
        assert_eq!(failed_steps(&facts), [""; 0]);
        facts.edges = Vec::new();
        facts.rejections = vec![rejection_status("t/h", "t/c-2")];
        assert_eq!(failed_steps(&facts), [""; 0]);
        // Failures that are not rejections.
        facts.edges = success(0.0);
        facts.rejections = Vec::new();
        let rates = facts.edges[0].rates.clone();
        let recent_reasons = [("connect-failed".to_owned(), 30)].into();
        let (plots, reasons) = (Vec::new(), BTreeMap::new());
        let history = HistoryStatus { rates, plots, reasons, recent_reasons };
        facts.histories = [("t/h".to_owned(), history)].into();
        let text = "0.00 % of its requests to t/h succeed, most with connect-failed";
        assert_eq!(failed_steps(&facts), [text]);
    }

    #[test]
    fn each_reason_of_rejections_is_a_step_with_a_whole_command() {
        let mut facts = sample_facts();
        let denied = RejectionStatus { share: 0.6, ..rejection_status("t/h", "t/c-1") };
        let limited = RejectionStatus {
            reason: "rate-limited".to_owned(),
            share: 0.3,
            ..rejection_status("t/h", "t/c-1")
        };
        let outside = |reason: &str, share| RejectionStatus {
            reason: reason.to_owned(),
            share,
            ..rejection_status("", "t/c-1")
        };
        facts.rejections =
            vec![limited, denied, outside("egress-denied", 0.5), outside("unknown-service", 0.4)];
        let steps = build_steps(&facts, "t/c-1", None).into_iter();
        let steps: Vec<DiagnosisStep> = steps.filter(|it| it.name == "requests").collect();
        let begins = [
            "t/h: the mesh rejects 60.00 % of the requests with denied-by-policy",
            "t/h: the mesh rejects 30.00 % of the requests with rate-limited",
            "t/c-1: the mesh rejects 50.00 % of its requests to destinations that are not services with egress-denied",
            "t/c-1: the mesh rejects 40.00 % of its requests to destinations that are not services with unknown-service",
        ];
        assert_eq!(steps.len(), begins.len(), "{steps:?}");
        for (step, begin) in steps.iter().zip(begins) {
            assert!(step.message.starts_with(begin), "{step:?}");
        }
        let command = "`leno explain request --from t/c-1 --url http://h.t:80/` names";
        for step in &steps[..2] {
            assert!(step.hint.as_ref().unwrap().contains(command), "{step:?}");
        }
    }

    #[test]
    fn requests_of_other_workloads_are_ignored() {
        let mut facts = sample_facts();
        facts.edges = vec![edge_status("workload", "t/c-2", 3), edge_status("service", "t/c", 0)];
        assert!(is_reported_as_unused(&facts));
        // Another workload of the same service may have sent them.
        facts.edges = vec![edge_status("service", "t/c", 3)];
        facts.services[0].workloads.push("t/c-2".to_owned());
        assert!(is_reported_as_unused(&facts));
    }
}
