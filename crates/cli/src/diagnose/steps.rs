//! Builds the steps of a diagnosis from the responses of the control plane and the workload's sidecar, in the order
//! in which a request passes the sidecar, its listeners, the policies and the endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_control::findings::rejection_text::{self, MeshObjects};
use leno_control::findings::{absent_sidecar_hint, rejoin_hint};
use leno_control::status::{
    CertificateStatus, EdgeStatus, HistoryStatus, PolicyStatus, ProxyStatus, RejectedJoinStatus,
    RejectionStatus, RouteStatus, ServiceStatus, Status, WorkloadStatus,
};
use leno_model::Reason;
use serde::{Deserialize, Serialize};

use super::reachability::ServiceReachability;
use super::{calls, conditions, reachability, unknown_names};
use crate::duration::format_duration;
use crate::figures::{DEGRADED_BELOW, FAILING_BELOW, format_count, format_share};
use crate::get::describe_scope;
use crate::revoke::nearest_name;

/// The responses of the control plane and of the workload's sidecar from which a diagnosis is built.
#[derive(Default)]
pub(super) struct DiagnosisInputs {
    pub(super) status: Status,
    pub(super) workloads: Vec<WorkloadStatus>,
    pub(super) services: Vec<ServiceStatus>,
    pub(super) proxies: Vec<ProxyStatus>,
    pub(super) certificates: Vec<CertificateStatus>,
    pub(super) routes: Vec<RouteStatus>,
    pub(super) policies: Vec<PolicyStatus>,
    pub(super) rejected_joins: Vec<RejectedJoinStatus>,
    /// The available histories, by service.
    pub(super) histories: BTreeMap<String, HistoryStatus>,
    /// The requests that the mesh rejected recently.
    pub(super) rejections: Vec<RejectionStatus>,
    /// The counted requests from workloads and services to services.
    pub(super) edges: Vec<EdgeStatus>,
    /// The readiness that the sidecar reports; `None` if the sidecar is not connected to this control plane.
    pub(super) readiness: Option<Result<(), String>>,
    /// The endpoints that the sidecar has ejected.
    pub(super) ejected_endpoints: Vec<EndpointEjection>,
    /// The results of the sidecar's connection attempts to endpoints.
    pub(super) reachability: Vec<ServiceReachability>,
    /// The services that the application called and that do not exist, as `namespace/name`.
    pub(super) unknown_names: Vec<String>,
    /// The decision on a request to the service of `--to`; `None` without the option or a decision.
    pub(super) decision: Option<DiagnosisStep>,
}

/// The response of a sidecar at `/ejected`.
#[derive(Debug, Deserialize)]
pub(super) struct EjectedResponse {
    pub(super) ejected: Vec<EndpointEjection>,
}

/// An endpoint that a sidecar has ejected.
#[derive(Debug, Deserialize)]
pub(super) struct EndpointEjection {
    service: String,
    workload: String,
    cause: String,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DiagnosisStep {
    pub(super) name: &'static str,
    pub(super) verdict: StepVerdict,
    /// The observation.
    pub(super) message: String,
    /// The suggested action.
    pub(super) hint: Option<String>,
}

/// The verdict of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepVerdict {
    /// The step works.
    Ok,
    /// The step works, but may explain an observation.
    Notice,
    /// The step fails.
    Problem,
}

impl StepVerdict {
    pub(super) const fn symbol(self) -> char {
        match self {
            Self::Ok => '✓',
            Self::Notice => '·',
            Self::Problem => '✗',
        }
    }
}

impl DiagnosisStep {
    pub(super) fn success(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, verdict: StepVerdict::Ok, message: message.into(), hint: None }
    }

    fn from_verdict(
        name: &'static str,
        verdict: StepVerdict,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { name, verdict, message: message.into(), hint: Some(hint.into()) }
    }

    pub(super) fn problem(
        name: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::from_verdict(name, StepVerdict::Problem, message, hint)
    }

    pub(super) fn notice(
        name: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::from_verdict(name, StepVerdict::Notice, message, hint)
    }

    /// Replaces `leno explain request` in the hint with the complete command.
    pub(super) fn with_request(self, command: &str) -> Self {
        let hint =
            self.hint.map(|hint| hint.replace("`leno explain request`", &format!("`{command}`")));
        Self { hint, ..self }
    }
}

/// Returns all steps of a diagnosis; a single failing step if the workload does not exist.
pub(super) fn build_steps(
    inputs: &DiagnosisInputs,
    name: &str,
    to: Option<&str>,
) -> Vec<DiagnosisStep> {
    let Some(workload) = inputs.workloads.iter().find(|candidate| candidate.name == name) else {
        let existing_names: Vec<&str> =
            inputs.workloads.iter().map(|workload| workload.name.as_str()).collect();
        let list_hint =
            "list the workloads: leno get workloads; a manifest may be rejected: leno get rejected";
        let hint = match nearest_name(name, &existing_names) {
            Some(nearest) => format!("did you mean {nearest}? If not, {list_hint}"),
            None => list_hint.to_owned(),
        };
        return vec![DiagnosisStep::problem("workload", format!("no workload {name}"), hint)];
    };
    let services_text = match workload.services.as_slice() {
        [] => "selected by no service".to_owned(),
        services => format!("selected by {}", services.join(", ")),
    };
    let mut steps = vec![DiagnosisStep::success(
        "workload",
        format!("account {}, {services_text}", workload.account),
    )];
    let proxy = inputs.proxies.iter().find(|proxy| proxy.workload == name);
    steps.push(sidecar_step(inputs, workload, proxy));
    steps.push(identity_step(inputs, name));
    steps.extend(conditions::condition_steps(inputs, workload, to));
    steps.extend(inbound_steps(inputs, workload));
    steps.extend(policy_steps(inputs, workload));
    steps.extend(workload.services.iter().flat_map(|service| request_steps(inputs, service)));
    match to {
        Some(to) => steps.extend(path_steps(inputs, name, to)),
        None => {
            steps.extend(calls::outbound_request_steps(inputs, workload));
            steps.extend(endpoint_steps(inputs, name));
            // Rejected requests to hosts outside the mesh have no service.
            let is_own_without_service = |rejection: &RejectionStatus| {
                rejection.service.is_empty()
                    && rejection.clients.iter().any(|client| client == name)
            };
            steps.extend(rejection_steps(inputs, is_own_without_service));
            steps.extend(unknown_names::unknown_name_steps(
                &inputs.unknown_names,
                &existing_namespaces(inputs),
            ));
        }
    }
    steps
}

/// True for the called service, and for services to which its routes forward requests.
pub(super) fn is_on_path(inputs: &DiagnosisInputs, to: &str, service: &str) -> bool {
    let has_prefix = |text: &str, service: &str| {
        let suffix = text.strip_prefix(service);
        suffix.is_some_and(|suffix| {
            !suffix.starts_with(|c: char| c.is_alphanumeric() || ".-".contains(c))
        })
    };
    let mut routes =
        inputs.routes.iter().filter(|route| route.parents.iter().any(|name| has_prefix(name, to)));
    service == to || routes.any(|route| route.backends.iter().any(|name| has_prefix(name, service)))
}

/// Returns the namespaces with a service or a workload.
fn existing_namespaces(inputs: &DiagnosisInputs) -> BTreeSet<&str> {
    let services = inputs.services.iter().map(|object| object.name.as_str());
    let names = services.chain(inputs.workloads.iter().map(|object| object.name.as_str()));
    names.filter_map(|name| name.split_once('/')).map(|(namespace, _)| namespace).collect()
}

fn sidecar_step(
    inputs: &DiagnosisInputs,
    workload: &WorkloadStatus,
    proxy: Option<&ProxyStatus>,
) -> DiagnosisStep {
    let name = "sidecar";
    let Some(proxy) = proxy else {
        let is_at_other_replica = workload.sidecar == "other-replica";
        return match is_at_other_replica {
            true => DiagnosisStep::notice(
                name,
                "is connected to another control plane of the mesh",
                describe_scope(&inputs.status)
                    .unwrap_or_else(|| "run the command there".to_owned()),
            ),
            false => DiagnosisStep::problem(
                name,
                match workload.revoked {
                    true => format!("is {}: the workload is revoked", workload.sidecar),
                    false => format!("is {}", workload.sidecar),
                },
                absent_sidecar_hint(&inputs.status, &workload.name, workload.revoked),
            ),
        };
    };
    // The first of these problems is reported. Old rejections do not matter once no resource is rejected.
    if let Some(rejection) = proxy.rejections.last().filter(|_| proxy.rejected > 0) {
        let hint = "correct the named object; the previous configuration stays in use";
        return DiagnosisStep::problem(
            name,
            format!("rejects its configuration: {rejection}"),
            hint,
        );
    }
    if let Some(Err(reason)) = &inputs.readiness {
        let hint = "a sidecar is ready once it has a certificate, a configuration and all of its listeners";
        return DiagnosisStep::problem(name, format!("is not ready: {reason}"), hint);
    }
    if let Some(seconds) = proxy.out_of_sync_seconds {
        let duration = format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let hint = "if this persists, check its log and its machine";
        return DiagnosisStep::notice(name, format!("has been out of sync for {duration}"), hint);
    }
    let connection_age =
        format_duration(Duration::try_from_secs_f64(proxy.connected_seconds).unwrap_or_default());
    DiagnosisStep::success(
        name,
        format!("version {}, connected for {connection_age}, up to date", proxy.version),
    )
}

fn identity_step(inputs: &DiagnosisInputs, workload: &str) -> DiagnosisStep {
    let name = "identity";
    let certificate =
        inputs.certificates.iter().find(|certificate| certificate.workload == workload);
    let Some(CertificateStatus { identity, valid_for_seconds, .. }) = certificate else {
        return DiagnosisStep::notice(
            name,
            "no certificate was issued since this control plane started",
            "a certificate issued earlier stays valid until it expires",
        );
    };
    let validity = format_duration(Duration::from_secs(*valid_for_seconds));
    if *valid_for_seconds == 0 {
        let hint = match inputs.status.kubernetes {
            true => rejoin_hint(&inputs.status, workload),
            false => {
                format!("create a new token and start the sidecar with it: leno token {workload}")
            }
        };
        return DiagnosisStep::problem(
            name,
            format!("{identity} has expired: peers reject it"),
            hint,
        );
    }
    // Sidecars renew a certificate after half of its lifetime. With a fifth of it left, renewals have failed for long.
    if *valid_for_seconds <= inputs.status.certificate_lifetime_seconds / 5 {
        let hint = "its sidecar should have renewed it: check that it reaches the control plane";
        return DiagnosisStep::problem(name, format!("{identity} expires in {validity}"), hint);
    }
    DiagnosisStep::success(name, format!("{identity}, valid for another {validity}"))
}

/// Returns the steps for inbound listeners, and for the workload's endpoints of each service.
fn inbound_steps(inputs: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let mut steps = Vec::new();
    let ports: Vec<u16> = workload.ports.iter().map(|port| port.port).collect();
    let closed_ports: Vec<String> = ports
        .iter()
        .filter(|port| !workload.listeners.contains_key(port))
        .map(u16::to_string)
        .collect();
    if !closed_ports.is_empty() {
        steps.push(DiagnosisStep::problem(
            "inbound",
            format!("no inbound listener for port {}", closed_ports.join(", ")),
            "its log has the reason: the address may be in use",
        ));
    } else if !ports.is_empty() {
        let port_texts: Vec<String> = ports.iter().map(u16::to_string).collect();
        steps.push(DiagnosisStep::success(
            "inbound",
            format!("open for port {}", port_texts.join(", ")),
        ));
    }
    for service in workload.services.iter().filter_map(|name| find_service(inputs, name)) {
        let missing_ports: Vec<String> = service
            .ports
            .iter()
            .filter(|port| {
                !port.endpoints.iter().any(|endpoint| endpoint.workload == workload.name)
            })
            .map(|port| port.port.to_string())
            .collect();
        steps.push(match missing_ports.is_empty() {
            true => {
                DiagnosisStep::success("endpoint", format!("is an endpoint of {}", service.name))
            }
            false => DiagnosisStep::problem(
                "endpoint",
                format!(
                    "is not an endpoint of {} at port {}",
                    service.name,
                    missing_ports.join(", ")
                ),
                "it has no port for the service's targetPort, is not ready, or its sidecar has not \
                 reported its listeners",
            ),
        });
    }
    steps
}

/// Returns a failing step for each invalid policy that applies to the workload; without invalid policies, a single
/// step with the number of policies in force.
fn policy_steps(inputs: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let services: Vec<&str> = workload.services.iter().map(String::as_str).collect();
    let accounts = [workload.account.as_str()];
    let applicable_policies: Vec<&PolicyStatus> =
        inputs.policies.iter().filter(|policy| policy.applies_to(&accounts, &services)).collect();
    let invalid_policies = applicable_policies.iter().filter(|policy| !policy.problems.is_empty());
    let mut steps: Vec<DiagnosisStep> = invalid_policies
        .map(|policy| {
            let message =
                format!("{} {}: {}", policy.kind, policy.name, policy.problems.join("; "));
            DiagnosisStep::problem(
                "policy",
                message,
                "add the missing object, or correct the reference",
            )
        })
        .collect();
    if steps.is_empty() {
        let in_force_count = applicable_policies.iter().filter(|policy| policy.in_force).count();
        let mode = &inputs.status.default_policy;
        steps.push(DiagnosisStep::success(
            "policy",
            format!("the mesh has default policy {mode}; applicable policies: {in_force_count}"),
        ));
    }
    steps
}

/// Returns the steps for requests to a service: one per reason of rejected requests, or else one with the success
/// rate and the most frequent reason of failures. Returns no steps if no requests are counted.
fn request_steps(inputs: &DiagnosisInputs, service: &str) -> Vec<DiagnosisStep> {
    let steps = rejection_steps(inputs, |rejection| rejection.service == service);
    if !steps.is_empty() {
        return steps;
    }
    let success_rate = inputs.histories.get(service).and_then(|history| history.rates.success);
    let reason = most_frequent_reason(inputs, service);
    let step = success_rate.map(|success_rate| {
        success_step(success_rate, &format!("the requests to {service}"), reason)
    });
    step.map(|step| step.with_request(&explain_command(inputs, None, service)))
        .into_iter()
        .collect()
}

/// Returns the most frequent reason of recent failed requests to a service; `None` if none has a known reason.
pub(super) fn most_frequent_reason<'a>(
    inputs: &'a DiagnosisInputs,
    service: &str,
) -> Option<&'a str> {
    let reasons = inputs.histories.get(service)?.recent_reasons.iter();
    reasons.max_by_key(|(_, count)| **count).map(|(reason, _)| reason.as_str())
}

/// Returns the step for a success rate (0 to 1), with the most frequent reason if the rate is low. `requests` names the
/// requests in the message.
pub(super) fn success_step(
    success_rate: f64,
    requests: &str,
    reason: Option<&str>,
) -> DiagnosisStep {
    let share = format_share(Some(success_rate));
    if success_rate >= DEGRADED_BELOW {
        return DiagnosisStep::success("requests", format!("{share} of {requests} succeed"));
    }
    let known_reason = reason
        .and_then(|label| Reason::ALL.iter().find(|known_reason| known_reason.label() == label));
    let reason_text = reason.map(|reason| format!(", most with {reason}")).unwrap_or_default();
    let hint = match known_reason {
        Some(known_reason) => {
            format!("{} (leno explain {})", known_reason.remedy(), known_reason.label())
        }
        None => "the application sends these responses: check its log".to_owned(),
    };
    let verdict =
        if success_rate < FAILING_BELOW { StepVerdict::Problem } else { StepVerdict::Notice };
    let message = format!("{share} of {requests} succeed{reason_text}");
    DiagnosisStep::from_verdict("requests", verdict, message, hint)
}

/// Returns the steps for the rejected requests that `is_relevant` selects, one per reason, the largest share
/// first.
pub(super) fn rejection_steps(
    inputs: &DiagnosisInputs,
    is_relevant: impl Fn(&RejectionStatus) -> bool,
) -> Vec<DiagnosisStep> {
    let relevant_rejections = inputs.rejections.iter().filter(|rejection| is_relevant(rejection));
    let mut notable_rejections: Vec<&RejectionStatus> =
        relevant_rejections.filter(|rejection| rejection_text::is_notable(rejection)).collect();
    notable_rejections.sort_by(|first, second| second.share.total_cmp(&first.share));
    notable_rejections.into_iter().map(|rejection| rejection_step(inputs, rejection)).collect()
}

fn rejection_step(inputs: &DiagnosisInputs, rejection: &RejectionStatus) -> DiagnosisStep {
    let objects = MeshObjects {
        workloads: &inputs.workloads,
        routes: &inputs.routes,
        policies: &inputs.policies,
    };
    let verdict = match 1.0 - rejection.share < FAILING_BELOW {
        true => StepVerdict::Problem,
        false => StepVerdict::Notice,
    };
    let reason = Reason::from_label(&rejection.reason);
    let remedy =
        reason.map_or("update leno: the reason is unknown to this version", Reason::remedy);
    let hint = format!("{remedy} (leno explain {})", rejection.reason);
    let client = rejection.clients.first().map(String::as_str);
    DiagnosisStep::from_verdict(
        "requests",
        verdict,
        rejection_text::describe_rejection(rejection, objects),
        hint,
    )
    .with_request(&explain_command(inputs, client, &rejection.service))
}

/// Returns the command that explains a request to a service, with placeholders for an unknown client or port.
pub(super) fn explain_command(
    inputs: &DiagnosisInputs,
    client: Option<&str>,
    service: &str,
) -> String {
    let url = find_service(inputs, service)
        .and_then(reachability::first_port_url)
        .unwrap_or_else(|| "URL".to_owned());
    format!("leno explain request --from {} --url {url}", client.unwrap_or("NAMESPACE/WORKLOAD"))
}

/// Returns the steps for connection attempts of a workload's sidecar.
fn endpoint_steps(inputs: &DiagnosisInputs, workload: &str) -> Vec<DiagnosisStep> {
    let service_steps = |service: &ServiceReachability| {
        let command = explain_command(inputs, Some(workload), service.service());
        service.steps().into_iter().map(move |step| step.with_request(&command))
    };
    inputs.reachability.iter().flat_map(service_steps).collect()
}

/// Returns the steps on the path to a called service.
fn path_steps(inputs: &DiagnosisInputs, workload: &str, to: &str) -> Vec<DiagnosisStep> {
    let Some(service) = find_service(inputs, to) else {
        let hint = "leno get services lists them; check the spelling and the namespace";
        return vec![DiagnosisStep::problem("service", format!("no service {to}"), hint)];
    };
    // The configuration of the path: endpoints and routes.
    let mut steps = Vec::new();
    let unserved_ports = service.ports.iter().filter(|port| port.endpoints.is_empty());
    let empty_ports: Vec<String> = unserved_ports.map(|port| port.port.to_string()).collect();
    let endpoint_count: usize = service.ports.iter().map(|port| port.endpoints.len()).sum();
    steps.push(match empty_ports.is_empty() {
        true => DiagnosisStep::success(
            "service",
            format!("{to} has {}", format_count(endpoint_count, "endpoint")),
        ),
        false if service.workloads.is_empty() => DiagnosisStep::problem(
            "service",
            format!("{to} has no workload"),
            "compare its selector with the labels of workloads in its namespace",
        ),
        false => DiagnosisStep::problem(
            "service",
            format!("{to} has no endpoint at port {}", empty_ports.join(", ")),
            format!("diagnose one of its workloads: {}", service.workloads.join(", ")),
        ),
    });
    let routes = inputs.routes.iter().filter(|route| service.routes.contains(&route.name));
    let invalid_routes = routes.filter(|route| !route.problems.is_empty());
    steps.extend(invalid_routes.map(|route| {
        let message = format!("{} {}: {}", route.kind, route.name, route.problems.join("; "));
        DiagnosisStep::problem(
            "route",
            message,
            "until then, requests that match this part of the route get 500",
        )
    }));
    // The state of the endpoints.
    let ejected_endpoints = inputs
        .ejected_endpoints
        .iter()
        .filter(|endpoint| is_on_path(inputs, to, &endpoint.service));
    steps.extend(ejected_endpoints.map(|endpoint| {
        DiagnosisStep::notice(
            "ejected",
            format!("{} is ejected: {}", endpoint.workload, endpoint.cause),
            "it returns to service automatically: leno get ejected",
        )
    }));
    steps.extend(conditions::endpoint_application_steps(inputs, workload, to));
    // The requests to the service.
    if inputs.proxies.iter().any(|proxy| proxy.workload == workload)
        && !calls::may_call(inputs, workload, to)
    {
        steps.push(DiagnosisStep::notice(
            "subscribed",
            format!("the workload has sent no request to {to} recently"),
            "check that the application calls the service, by that name",
        ));
    }
    steps.extend(request_steps(inputs, to));
    steps.extend(endpoint_steps(inputs, workload));
    let undecided_step = || {
        DiagnosisStep::notice(
            "decision",
            "rules and policies decide each request individually",
            explain_command(inputs, Some(workload), to),
        )
    };
    steps.push(inputs.decision.clone().unwrap_or_else(undecided_step));
    steps
}

fn find_service<'a>(inputs: &'a DiagnosisInputs, name: &str) -> Option<&'a ServiceStatus> {
    inputs.services.iter().find(|service| service.name == name)
}

/// Converts a `namespace/name` to the host name `name.namespace` that applications use.
pub(super) fn to_host_name(namespaced_name: &str) -> String {
    match namespaced_name.split_once('/') {
        Some((namespace, name)) => format!("{name}.{namespace}"),
        None => namespaced_name.to_owned(),
    }
}
