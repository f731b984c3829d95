//! Builds the diagnosis steps that need a query: a sidecar tests connections to endpoints, and the control plane
//! decides a request.

use leno_control::Explanation;
use leno_control::status::ServiceStatus;
use leno_model::{Protocol, Reason};
use serde::Deserialize;

use super::steps::{DiagnosisStep, to_host_name};
use crate::figures::format_count;
use crate::get::{MeshSocket, parse_response};
use crate::tap::percent_encode;

/// The results of connection attempts to the endpoints of one service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ServiceReachability {
    service: String,
    /// The reason why the sidecar has no configuration for the service; `None` if it has one.
    reason: Option<String>,
    endpoints: Vec<EndpointReachability>,
    /// The number of endpoints that were not tried, beyond the limit.
    omitted: usize,
}

/// The result of the connection attempt to one endpoint, which took `duration_ms` milliseconds; `reason` is `None` on
/// success.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct EndpointReachability {
    workload: String,
    address: String,
    reason: Option<String>,
    duration_ms: f64,
}

impl ServiceReachability {
    /// Makes a sidecar connect to the endpoints of a service. Returns `None` if the sidecar does not support
    /// the query, such as a sidecar of an older release.
    pub(super) async fn query_sidecar(
        mesh: &MeshSocket,
        workload: &str,
        service: &str,
    ) -> Option<Self> {
        let page = mesh
            .query_sidecar_page(workload, &format!("/connectivity?service={service}"))
            .await
            .ok()?;
        serde_json::from_str(&page).ok()
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Returns the steps for the results: unreachable endpoints, and a summary of the reached ones.
    pub(super) fn steps(&self) -> Vec<DiagnosisStep> {
        const NAME: &str = "connectivity";
        let service = &self.service;
        if let Some(reason) = &self.reason {
            let message = format!("its sidecar has no configuration for {service}: {reason}");
            return vec![DiagnosisStep::problem(NAME, message, reason_hint(reason))];
        }
        if self.endpoints.is_empty() {
            let message = format!("its sidecar has no endpoint of {service}");
            let hint = "the service has none, or no policy allows this workload to call it: see the other steps";
            return vec![DiagnosisStep::notice(NAME, message, hint)];
        }
        let unreachable_endpoints = self
            .endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint, endpoint.reason.as_ref()?)));
        let mut steps: Vec<DiagnosisStep> = unreachable_endpoints
            .map(|(endpoint, reason)| {
                let EndpointReachability { workload, address, duration_ms, .. } = endpoint;
                let message = format!(
                    "{workload} of {service} is unreachable at {address}: {reason}, after {duration_ms:.0} ms"
                );
                DiagnosisStep::problem(NAME, message, reason_hint(reason))
            })
            .collect();
        let reached_count = self.endpoints.len() - steps.len();
        if reached_count > 0 {
            let reached = self.endpoints.iter().filter(|endpoint| endpoint.reason.is_none());
            let slowest_ms = reached.map(|endpoint| endpoint.duration_ms).fold(0.0, f64::max);
            let omitted_text = match self.omitted {
                0 => String::new(),
                count => format!("; {count} more were not tried"),
            };
            let total = self.endpoints.len();
            let message = format!(
                "{service}: reached {reached_count} of {}, with mutual TLS, within {slowest_ms:.0} ms{omitted_text}",
                format_count(total, "endpoint")
            );
            steps.insert(0, DiagnosisStep::success(NAME, message));
        }
        steps
    }
}

fn reason_hint(reason: &str) -> String {
    let known_reason = Reason::ALL.iter().find(|known_reason| known_reason.label() == reason);
    let message = known_reason.map(|known_reason| known_reason.remedy()).unwrap_or_default();
    format!("{message} (leno explain {reason})")
}

/// Returns the step for the control plane's decision on a request of the workload to the first port of a service.
/// Returns `None` if the service has no port, or the control plane cannot decide.
pub(super) async fn query_decision_step(
    mesh: &MeshSocket,
    workload: &str,
    service: &ServiceStatus,
) -> Option<DiagnosisStep> {
    let url = first_port_url(service)?;
    let path = format!("/explain?from={}&url={}", percent_encode(workload), percent_encode(&url));
    let explanation: Explanation = parse_response(mesh.query_json(&path).await.ok()?).ok()?;
    step_from_decision(&explanation, workload, &url)
}

/// Returns the URL of the first port of a service, with the scheme `tcp` for a TCP port; `None` without ports.
pub(super) fn first_port_url(service: &ServiceStatus) -> Option<String> {
    let port = service.ports.first()?;
    let authority = format!("{}:{}", to_host_name(&service.name), port.port);
    Some(match port.protocol == Protocol::Tcp.as_str() {
        true => format!("tcp://{authority}"),
        false => format!("http://{authority}/"),
    })
}

/// Returns the step for the decision on a request to the URL, or on a TCP connection. Returns `None` if the
/// explanation has no verdict.
fn step_from_decision(
    explanation: &Explanation,
    workload: &str,
    url: &str,
) -> Option<DiagnosisStep> {
    const NAME: &str = "decision";
    let verdict =
        explanation.text.lines().rev().find_map(|line| line.strip_prefix("verdict   "))?;
    let message = match url.starts_with("tcp:") {
        true => format!("a connection to {url}: {verdict}"),
        false => format!("GET {url}: {verdict}"),
    };
    let hint =
        format!("leno explain request --from {workload} --url {url} shows the matching rules");
    // A rejected request may have status 2xx or 3xx, because policies declare the status of their rejections.
    let is_rejected = !explanation.decision["reason"].is_null();
    Some(match verdict.chars().next() {
        // Allowed, or redirected by a rule.
        Some('2' | '3') if !is_rejected => DiagnosisStep::success(NAME, message),
        _ if verdict.starts_with("allowed") => DiagnosisStep::success(NAME, message),
        // The service may not serve the path `/`.
        Some('4') if verdict.contains("no-route") || verdict.contains("no-policy-route") => {
            DiagnosisStep::notice(NAME, message, hint)
        }
        _ if verdict.starts_with("it depends") => DiagnosisStep::notice(NAME, message, hint),
        _ => DiagnosisStep::problem(NAME, message, hint),
    })
}

/// The maximum number of services to test without `--to`; the tests run one after the other.
pub(super) const MAX_TESTED_SERVICES: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diagnose::steps::StepVerdict;

    fn sample_reachability(reasons: &[Option<&str>]) -> ServiceReachability {
        let endpoint = |(number, reason): (usize, &Option<&str>)| EndpointReachability {
            workload: format!("shop/stock-{number}"),
            address: "10.0.0.1:80".to_owned(),
            reason: reason.map(str::to_owned),
            duration_ms: 1.4,
        };
        ServiceReachability {
            service: "shop/stock".to_owned(),
            reason: None,
            endpoints: reasons.iter().enumerate().map(endpoint).collect(),
            omitted: 2,
        }
    }

    #[test]
    fn unreachable_endpoints_are_named_with_a_hint() {
        let steps = sample_reachability(&[None, Some("connect-failed"), None]).steps();
        let verdicts: Vec<StepVerdict> = steps.iter().map(|step| step.verdict).collect();
        assert_eq!(verdicts, [StepVerdict::Ok, StepVerdict::Problem]);
        assert!(steps[0].message.contains("shop/stock: reached 2 of 3 endpoints"), "{steps:?}");
        assert!(steps[0].message.contains("2 more were not tried"), "{steps:?}");
        assert!(
            steps[1].message.contains("shop/stock-1 of shop/stock is unreachable"),
            "{steps:?}"
        );
        let hint = steps[1].hint.as_deref().unwrap_or_default();
        assert!(hint.ends_with("(leno explain connect-failed)"), "{hint}");
        assert_eq!(sample_reachability(&[]).steps()[0].verdict, StepVerdict::Notice);
        let unknown = ServiceReachability {
            reason: Some("discovery-timeout".to_owned()),
            ..sample_reachability(&[])
        };
        assert_eq!(unknown.steps()[0].verdict, StepVerdict::Problem);
    }

    #[test]
    fn a_rejection_is_a_problem_whatever_its_status() {
        for (verdict, reason, expected) in [
            ("200-range: allowed; the application responds", None, StepVerdict::Ok),
            ("301: the client's sidecar sends a redirect", None, StepVerdict::Ok),
            ("200 fault-injected: a fault", Some("fault-injected"), StepVerdict::Problem),
            ("404 no-route: no route", Some("no-route"), StepVerdict::Notice),
            ("503 no-endpoint: the service has no endpoint.", None, StepVerdict::Problem),
            (
                "it depends on the endpoint (allowed, denied): see the lines above",
                None,
                StepVerdict::Notice,
            ),
        ] {
            let explanation = Explanation {
                text: format!("verdict   {verdict}\n"),
                decision: json!({"reason": reason}),
            };
            let step =
                step_from_decision(&explanation, "shop/web-1", "http://web.shop:80/").unwrap();
            assert_eq!(step.verdict, expected, "{verdict}");
        }
    }

    #[test]
    fn tcp_ports_are_explained_as_connections() {
        let service = |protocol: &str| {
            let port = json!({"name": null, "port": 6379, "protocol": protocol, "endpoints": []});
            let service = json!({"name": "shop/redis", "selector": {}, "workloads": [], "ports": [port], "routes": []});
            first_port_url(&serde_json::from_value(service).unwrap()).unwrap()
        };
        assert_eq!(service("HTTP"), "http://redis.shop:6379/");
        let url = service("TCP");
        assert_eq!(url, "tcp://redis.shop:6379");
        for (verdict, reason, expected) in [
            ("allowed: the connection reaches the application", None, StepVerdict::Ok),
            ("reset denied: no policy", Some("denied"), StepVerdict::Problem),
        ] {
            let explanation = Explanation {
                text: format!("verdict   {verdict}\n"),
                decision: json!({"reason": reason}),
            };
            let step = step_from_decision(&explanation, "shop/web-1", &url).unwrap();
            let message = format!("a connection to tcp://redis.shop:6379: {verdict}");
            assert_eq!((step.message, step.verdict), (message, expected));
        }
    }
}
