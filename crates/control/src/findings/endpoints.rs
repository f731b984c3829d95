//! Reports service ports without endpoints, and endpoints that sidecars do not call because they have no sidecar.

use std::collections::BTreeSet;

use crate::status::{ExcludedStatus, ServiceStatus};

use super::{Finding, FindingInputs, limit_findings};
use crate::figures::format_count;

/// Returns findings about service ports without endpoints, and about endpoints without a sidecar. Returns none during
/// the startup grace period, because sidecars may not have reported their endpoints yet.
pub(super) fn check_endpoints(inputs: &FindingInputs) -> Vec<Finding> {
    if inputs.status.starting {
        return Vec::new();
    }
    let used_ports = find_used_ports(inputs);
    let meshed_namespaces: BTreeSet<&str> =
        inputs.workloads.iter().map(|workload| namespace_of(&workload.name)).collect();
    let empty_ports = inputs.services.iter().flat_map(|service| {
        let ports = service.ports.iter().filter(|port| port.endpoints.is_empty());
        ports.map(move |port| (service, port.port))
    });
    let empty_port_findings = empty_ports.filter_map(|(service, port)| {
        let receives_requests = used_ports.contains(&format!("{}:{port}", service.name));
        // A service with routes sends its traffic to their backends, and a service without a selector has no workloads
        // of its own. A service in a namespace without a workload of the mesh is usually outside the mesh.
        let should_have_endpoints = service.routes.is_empty()
            && !service.selector.is_empty()
            && meshed_namespaces.contains(namespace_of(&service.name));
        (receives_requests || should_have_endpoints)
            .then(|| empty_port_finding(service, port, receives_requests))
    });
    let mut findings = limit_findings(empty_port_findings.collect(), "leno get services");
    let unmeshed_findings = inputs.services.iter().filter_map(|service| {
        Some(unmeshed_endpoints_finding(service, service.excluded.as_ref()?))
    });
    findings.extend(limit_findings(unmeshed_findings.collect(), "leno get services"));
    findings
}

/// Returns the namespace of `NAMESPACE/NAME`.
fn namespace_of(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

/// Reports ready endpoints without a sidecar, which only clients outside the mesh reach because of a setting.
fn unmeshed_endpoints_finding(
    service: &ServiceStatus,
    excluded_status: &ExcludedStatus,
) -> Finding {
    let ExcludedStatus { endpoints, setting } = excluded_status;
    Finding::notice(
        format!(
            "{}: sidecars send no request to {} without a sidecar ({setting})",
            service.name,
            format_count(*endpoints, "ready endpoint"),
        ),
        "restart these pods in a namespace of the mesh to give them a sidecar, or set defaultPolicy: allow and egress: \
         allow until all have one",
    )
}

/// Reports a service port without endpoints: a problem if the port receives requests, otherwise a notice.
fn empty_port_finding(service: &ServiceStatus, port: u16, receives_requests: bool) -> Finding {
    let ServiceStatus { name, workloads, .. } = service;
    let (message, hint) = match workloads.is_empty() {
        true => (
            format!("{name}:{port} has no endpoint: its selector selects no workload"),
            "compare its selector with the labels of the workloads in its namespace, or start one"
                .to_owned(),
        ),
        false => (
            format!("{name}:{port} has no endpoint: none of its workloads serves the port"),
            format!(
                "leno diagnose {} shows the cause",
                workloads.first().map_or("", String::as_str)
            ),
        ),
    };
    match receives_requests {
        true => Finding::problem(format!("{message}; requests to it fail"), hint),
        false => Finding::notice(message, hint),
    }
}

/// Returns the service ports that receive requests, as `NAMESPACE/NAME:PORT`: those of outbound listeners, of backends
/// with a weight other than 0, and of services without routes that a sidecar subscribes to.
fn find_used_ports(inputs: &FindingInputs) -> BTreeSet<String> {
    let all_listeners = inputs.workloads.iter().flat_map(|workload| &workload.outbound_listeners);
    let has_routes = |name: &str| {
        inputs.services.iter().any(|service| service.name == name && !service.routes.is_empty())
    };
    let unrouted_listeners = all_listeners.filter(|listener| !has_routes(&listener.service));
    let mut used_ports: BTreeSet<String> = unrouted_listeners
        .map(|listener| format!("{}:{}", listener.service, listener.port))
        .collect();
    for backend in inputs.routes.iter().flat_map(|route| &route.backends) {
        // A backend is reported as `NAMESPACE/NAME:PORT weight NUMBER`.
        if let Some((target, weight)) = backend.split_once(" weight ")
            && weight != "0"
        {
            used_ports.insert(target.to_owned());
        }
    }
    let subscribed_services: BTreeSet<&String> =
        inputs.proxies.iter().flat_map(|proxy| &proxy.subscriptions).collect();
    let services = inputs
        .services
        .iter()
        .filter(|service| subscribed_services.contains(&service.name) && service.routes.is_empty());
    for service in services {
        used_ports
            .extend(service.ports.iter().map(|port| format!("{}:{}", service.name, port.port)));
    }
    used_ports
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Severity;
    use super::super::tests::{healthy_inputs, proxy_status, workload_status};
    use super::*;

    fn empty_service(selector: serde_json::Value, routes: serde_json::Value) -> ServiceStatus {
        serde_json::from_value(json!({
            "name": "shop/stock", "selector": selector, "workloads": [], "routes": routes,
            "ports": [{ "name": null, "port": 80, "protocol": "HTTP", "endpoints": [] }],
        }))
        .unwrap()
    }

    #[test]
    fn a_port_without_endpoints_is_a_problem_if_it_receives_requests() {
        let app_selector = || json!({"app": "stock"});
        let listener = json!([{ "service": "shop/stock", "port": 80, "listen": "127.0.0.1:1" }]);
        let mut calling_workload = serde_json::to_value(workload_status("connected")).unwrap();
        calling_workload["outbound_listeners"] = listener;
        let subscribed = |services: &[&str]| {
            let mut proxy = proxy_status();
            proxy.subscriptions = services.iter().map(|name| (*name).to_owned()).collect();
            vec![proxy]
        };
        let mut inputs = healthy_inputs();
        inputs.services = vec![empty_service(app_selector(), json!([]))];
        assert_eq!(check_endpoints(&inputs)[0].severity, Severity::Notice);
        inputs.proxies = subscribed(&["shop/stock"]);
        assert_eq!(check_endpoints(&inputs)[0].severity, Severity::Problem);
        inputs.proxies = subscribed(&[]);
        inputs.workloads = vec![serde_json::from_value(calling_workload).unwrap()];
        assert_eq!(check_endpoints(&inputs)[0].severity, Severity::Problem);
        // A route forwards its traffic elsewhere.
        inputs.services = vec![empty_service(app_selector(), json!(["shop/canary"]))];
        assert!(check_endpoints(&inputs).is_empty());
        inputs.workloads = vec![workload_status("connected")];
        inputs.services = vec![empty_service(json!({}), json!([]))];
        assert!(check_endpoints(&inputs).is_empty());
        inputs.services = vec![empty_service(app_selector(), json!([]))];
        inputs.status.starting = true;
        assert!(check_endpoints(&inputs).is_empty());
    }

    #[test]
    fn endpoints_that_the_default_policy_excludes_are_counted() {
        let mut inputs = healthy_inputs();
        let excluded = |endpoints: usize| {
            let mut service = empty_service(json!({}), json!([]));
            let setting = "defaultPolicy: deny".to_owned();
            service.excluded = Some(ExcludedStatus { endpoints, setting });
            service
        };
        inputs.services = vec![excluded(5)];
        let findings = check_endpoints(&inputs);
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Notice));
        let expected = "shop/stock: sidecars send no request to 5 ready endpoints without a sidecar (defaultPolicy: deny)";
        assert_eq!(findings[0].message, expected);
        assert!(findings[0].hint.contains("defaultPolicy: allow"), "{}", findings[0].hint);
        inputs.services = (1..=9).map(excluded).collect();
        assert!(check_endpoints(&inputs).len() < 9);
    }

    #[test]
    fn a_backend_receives_requests_if_it_has_a_weight() {
        let route = |weight: u32| {
            let backends = [format!("shop/stock:80 weight {weight}")];
            serde_json::from_value(json!({
                "kind": "HTTPRoute", "name": "shop/canary", "parents": [], "rules": 1,
                "backends": backends, "problems": [],
            }))
            .unwrap()
        };
        for (weight, expected) in [(1, Severity::Problem), (0, Severity::Notice)] {
            let mut inputs = healthy_inputs();
            inputs.services = vec![empty_service(json!({"app": "stock"}), json!([]))];
            inputs.routes = vec![route(weight)];
            assert_eq!(check_endpoints(&inputs)[0].severity, expected);
        }
    }
}
