//! Finds the services that a workload calls, and builds the diagnosis steps for its requests to them.
//!
//! A workload calls a service if its sidecar subscribes to the service, has an outbound listener for it, or sent it
//! counted requests, or if a route of a called service forwards requests to it. An edge is the requests from one
//! source, such as a workload or a service, to one service.

use std::collections::BTreeSet;

use leno_control::status::{EdgeStatus, RejectionStatus, WorkloadStatus};

use super::steps::{
    DiagnosisInputs, DiagnosisStep, explain_command, most_frequent_reason, rejection_steps,
    success_step,
};
use crate::figures::DEGRADED_BELOW;

/// Returns the services to which the workload's sidecar subscribes because the application calls them by name, and
/// the services of its outbound listeners, which need no subscription.
pub(super) fn services_called_by_name<'a>(
    inputs: &'a DiagnosisInputs,
    workload: &str,
) -> BTreeSet<&'a str> {
    let proxies = inputs.proxies.iter().filter(|proxy| proxy.workload == workload);
    let subscriptions = proxies.flat_map(|proxy| &proxy.subscriptions);
    let workloads = inputs.workloads.iter().filter(|status| status.name == workload);
    let listeners =
        workloads.flat_map(|status| &status.outbound_listeners).map(|listener| &listener.service);
    subscriptions.chain(listeners).map(String::as_str).collect()
}

/// True if the workload sends requests to the service directly, through an outbound listener or through a route.
pub(super) fn may_call(inputs: &DiagnosisInputs, workload: &str, to: &str) -> bool {
    let called_services = services_called_by_name(inputs, workload);
    called_services.contains(to)
        || is_routed(inputs, &called_services, to)
        || has_counted_requests(inputs, workload, to)
}

/// True if a route of a service that the workload calls has `to` as a backend.
fn is_routed(inputs: &DiagnosisInputs, called_services: &BTreeSet<&str>, to: &str) -> bool {
    let services =
        inputs.services.iter().filter(|service| called_services.contains(service.name.as_str()));
    let attached_routes: BTreeSet<&String> = services.flat_map(|service| &service.routes).collect();
    let routes = inputs.routes.iter().filter(|route| attached_routes.contains(&route.name));
    let mut backends = routes.flat_map(|route| &route.backends);
    backends.any(|backend| backend.strip_prefix(to).is_some_and(|suffix| suffix.starts_with(':')))
}

/// True if requests of the workload to the service were counted. Requests counted for a client service are
/// attributed to the workload if it is the only workload of that service.
fn has_counted_requests(inputs: &DiagnosisInputs, workload: &str, to: &str) -> bool {
    inputs.edges.iter().filter(|edge| edge.to == to && edge.rates.requests > 0).any(|edge| {
        match edge.kind.as_str() {
            "workload" => edge.from == workload,
            "service" => is_only_workload(inputs, &edge.from, workload),
            // Requests that a route forwarded may come from any client.
            _ => false,
        }
    })
}

/// True if the service selects this workload and no other.
fn is_only_workload(inputs: &DiagnosisInputs, service: &str, workload: &str) -> bool {
    let service_status = inputs.services.iter().find(|status| status.name == service);
    service_status.is_some_and(|status| status.workloads == [workload])
}

/// Returns the steps for recent requests of a workload to services that do not select the workload.
pub(super) fn outbound_request_steps(
    inputs: &DiagnosisInputs,
    workload: &WorkloadStatus,
) -> Vec<DiagnosisStep> {
    counted_services(inputs, workload)
        .into_iter()
        .flat_map(|service| outbound_request_steps_to(inputs, workload, service))
        .collect()
}

/// Returns the services at which requests of the workload failed recently. The histories of these services have
/// the reasons.
pub(super) fn failing_services<'a>(
    inputs: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> BTreeSet<&'a str> {
    let edges = counted_edges(inputs, workload);
    let failing_edges =
        edges.filter(|edge| edge.rates.success.is_some_and(|success| success < DEGRADED_BELOW));
    failing_edges.map(|edge| edge.to.as_str()).collect()
}

/// Returns the services for which requests or rejections of the workload were counted recently.
fn counted_services<'a>(
    inputs: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> BTreeSet<&'a str> {
    let rejections =
        inputs.rejections.iter().filter(|rejection| rejection.clients.contains(&workload.name));
    let rejecting_services = rejections
        .map(|rejection| rejection.service.as_str())
        .filter(|service| !service.is_empty());
    let requested_services = counted_edges(inputs, workload).map(|edge| edge.to.as_str());
    let selects_workload = |service: &str| workload.services.iter().any(|own| own == service);
    rejecting_services
        .chain(requested_services)
        .filter(|service| !selects_workload(service))
        .collect()
}

/// Returns the edges from a workload, and from services that select no other workload.
fn counted_edges<'a>(
    inputs: &'a DiagnosisInputs,
    workload: &WorkloadStatus,
) -> impl Iterator<Item = &'a EdgeStatus> {
    let name = workload.name.clone();
    let exclusive_services: BTreeSet<String> = workload
        .services
        .iter()
        .filter(|service| is_only_workload(inputs, service, &name))
        .cloned()
        .collect();
    inputs.edges.iter().filter(move |edge| match edge.kind.as_str() {
        "workload" => edge.from == name,
        "service" => exclusive_services.contains(&edge.from),
        // Requests that a route forwarded may come from any client.
        _ => false,
    })
}

/// Returns the steps for requests of a workload to one service, as counted for this client: failures of other
/// clients' requests do not matter.
fn outbound_request_steps_to(
    inputs: &DiagnosisInputs,
    workload: &WorkloadStatus,
    service: &str,
) -> Vec<DiagnosisStep> {
    let edge = counted_edges(inputs, workload).find(|edge| edge.to == service);
    let success_rate = edge.and_then(|edge| edge.rates.success);
    if success_rate.is_none_or(|success_rate| success_rate < DEGRADED_BELOW) {
        let is_of_client = |rejection: &RejectionStatus| {
            rejection.service == service && rejection.clients.contains(&workload.name)
        };
        let steps = rejection_steps(inputs, is_of_client);
        if !steps.is_empty() {
            return steps;
        }
    }
    let requests = format!("its requests to {service}");
    let reason = most_frequent_reason(inputs, service);
    let step = success_rate.map(|success_rate| success_step(success_rate, &requests, reason));
    let command = explain_command(inputs, Some(&workload.name), service);
    step.map(|step| step.with_request(&command)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_control::status::{HistoryStatus, RateStatus, RouteStatus};
    use serde_json::json;

    use super::super::steps::{StepVerdict, build_steps};
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

    fn sample_inputs() -> DiagnosisInputs {
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
            .map(|service| serde_json::from_value(service).unwrap())
            .into(),
            ..DiagnosisInputs::default()
        }
    }

    fn has_subscribed_step(inputs: &DiagnosisInputs) -> bool {
        let steps = build_steps(inputs, "t/c-1", Some("t/h"));
        steps.iter().any(|step| step.name == "subscribed")
    }

    fn edge_status(kind: &str, from: &str, requests: u64) -> EdgeStatus {
        let rates = RateStatus { requests, ..RateStatus::default() };
        let (kind, from, to) = (kind.to_owned(), from.to_owned(), "t/h".to_owned());
        EdgeStatus { kind, from, to, mtls: true, rates }
    }

    #[test]
    fn a_service_that_the_workload_calls_has_no_subscribed_step() {
        assert!(has_subscribed_step(&sample_inputs()));
        let mut subscribed = sample_inputs();
        subscribed.proxies[0].subscriptions = vec!["t/h".to_owned()];
        let mut listening = sample_inputs();
        listening.workloads[0].outbound_listeners = serde_json::from_value(
            json!([{ "service": "t/h", "port": 80, "listen": "127.0.0.1:1" }]),
        )
        .unwrap();
        assert_eq!(services_called_by_name(&listening, "t/c-1"), ["t/h"].into());
        let mut counted = sample_inputs();
        counted.edges = vec![edge_status("workload", "t/c-1", 3)];
        let mut counted_for_service = sample_inputs();
        counted_for_service.edges = vec![edge_status("service", "t/c", 3)];
        let mut routed = sample_inputs();
        let main = service_status("t/main", "t/m-1", json!(["t/split"]));
        routed.services.push(serde_json::from_value(main).unwrap());
        routed.proxies[0].subscriptions = vec!["t/main".to_owned()];
        let split: RouteStatus = serde_json::from_value(json!({
            "kind": "HTTPRoute", "name": "t/split", "parents": ["t/main"], "rules": 1,
            "backends": ["t/h:80 weight 1"], "problems": [],
        }))
        .unwrap();
        routed.routes = vec![split];
        for inputs in [subscribed, listening, counted, counted_for_service, routed] {
            assert!(!has_subscribed_step(&inputs));
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

    fn failed_steps(inputs: &DiagnosisInputs) -> Vec<String> {
        let steps = build_steps(inputs, "t/c-1", None).into_iter();
        let steps =
            steps.filter(|step| step.name == "requests" && step.verdict == StepVerdict::Problem);
        steps.map(|step| step.message).collect()
    }

    #[test]
    fn failed_requests_of_the_client_are_a_problem() {
        let mut inputs = sample_inputs();
        let success = |share: f64| {
            let rates =
                RateStatus { success: Some(share), ..edge_status("service", "t/c", 30).rates };
            vec![EdgeStatus { rates, ..edge_status("service", "t/c", 30) }]
        };
        assert_eq!(failed_steps(&inputs), [""; 0]);
        inputs.rejections = vec![rejection_status("t/h", "t/c-1")];
        let message = "t/h: the mesh rejects 100 % of the requests with denied-by-policy at the sidecar t/h-1";
        assert_eq!(failed_steps(&inputs), [message]);
        inputs.edges = success(0.0);
        assert_eq!(failed_steps(&inputs), [message]);
        // The requests of this client succeed, or the rejected ones are another client's.
        inputs.edges = success(1.0);
        assert_eq!(failed_steps(&inputs), [""; 0]);
        inputs.edges = Vec::new();
        inputs.rejections = vec![rejection_status("t/h", "t/c-2")];
        assert_eq!(failed_steps(&inputs), [""; 0]);
        // Failures that are not rejections.
        inputs.edges = success(0.0);
        inputs.rejections = Vec::new();
        let rates = inputs.edges[0].rates.clone();
        let recent_reasons = [("connect-failed".to_owned(), 30)].into();
        let (plots, reasons) = (Vec::new(), BTreeMap::new());
        let history = HistoryStatus { rates, plots, reasons, recent_reasons };
        inputs.histories = [("t/h".to_owned(), history)].into();
        let message = "0.00 % of its requests to t/h succeed, most with connect-failed";
        assert_eq!(failed_steps(&inputs), [message]);
    }

    #[test]
    fn each_rejection_reason_has_a_step_with_a_complete_command() {
        let mut inputs = sample_inputs();
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
        inputs.rejections =
            vec![limited, denied, outside("egress-denied", 0.5), outside("unknown-service", 0.4)];
        let steps = build_steps(&inputs, "t/c-1", None).into_iter();
        let steps: Vec<DiagnosisStep> = steps.filter(|step| step.name == "requests").collect();
        let prefixes = [
            "t/h: the mesh rejects 60.00 % of the requests with denied-by-policy",
            "t/h: the mesh rejects 30.00 % of the requests with rate-limited",
            "t/c-1: the mesh rejects 50.00 % of its requests to destinations that are not services with egress-denied",
            "t/c-1: the mesh rejects 40.00 % of its requests to destinations that are not services with unknown-service",
        ];
        assert_eq!(steps.len(), prefixes.len(), "{steps:?}");
        for (step, prefix) in steps.iter().zip(prefixes) {
            assert!(step.message.starts_with(prefix), "{step:?}");
        }
        let command = "`leno explain request --from t/c-1 --url http://h.t:80/` names";
        for step in &steps[..2] {
            assert!(step.hint.as_ref().unwrap().contains(command), "{step:?}");
        }
    }

    #[test]
    fn requests_of_other_workloads_are_ignored() {
        let mut inputs = sample_inputs();
        inputs.edges = vec![edge_status("workload", "t/c-2", 3), edge_status("service", "t/c", 0)];
        assert!(has_subscribed_step(&inputs));
        // Another workload of the same service may have sent them.
        inputs.edges = vec![edge_status("service", "t/c", 3)];
        inputs.services[0].workloads.push("t/c-2".to_owned());
        assert!(has_subscribed_step(&inputs));
    }
}
