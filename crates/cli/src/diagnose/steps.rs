//! The steps of a diagnosis: verdicts on the reports of the control plane and the sidecar, in the order in which a
//! request passes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_control::findings::rejection_text::{self, Objects};
use leno_control::findings::{absent_sidecar_hint, rejoin_hint};
use leno_control::status::{
    CertificateStatus, EdgeStatus, HistoryStatus, PolicyStatus, ProxyStatus, RejectedJoinStatus,
    RejectionStatus, RouteStatus, ServiceStatus, Status, WorkloadStatus,
};
use leno_model::Reason;
use serde::{Deserialize, Serialize};

use super::reachability::ServiceReachability;
use super::{calls, conditions, reachability};
use crate::duration::format_duration;
use crate::figures::{DEGRADED_BELOW, FAILING_BELOW, format_count, format_share};
use crate::get::describe_scope;
use crate::revoke::nearest_name;

/// The inputs of a diagnosis.
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
    /// The readiness that the sidecar reports; `None` if it is not connected here.
    pub(super) readiness: Option<Result<(), String>>,
    /// The endpoints that the sidecar has ejected.
    pub(super) ejected: Vec<EjectedEndpoint>,
    /// The results of the sidecar's connection attempts to endpoints.
    pub(super) reachability: Vec<ServiceReachability>,
    /// Names that the application called and that no service has.
    pub(super) unknown_names: Vec<String>,
    /// The decision on a request to the service of `--to`.
    pub(super) decision: Option<DiagnosisStep>,
}

/// The response of a sidecar at `/ejected`.
#[derive(Debug, Deserialize)]
pub(super) struct EjectedPage {
    pub(super) ejected: Vec<EjectedEndpoint>,
}

/// An endpoint that a sidecar has ejected.
#[derive(Debug, Deserialize)]
pub(super) struct EjectedEndpoint {
    service: String,
    workload: String,
    cause: String,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DiagnosisStep {
    pub(super) name: &'static str,
    pub(super) verdict: StepResult,
    /// The observation.
    pub(super) message: String,
    /// The suggested action.
    pub(super) hint: Option<String>,
}

/// The verdict on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepResult {
    /// The step works.
    Ok,
    /// The step works, but may explain an observation.
    Notice,
    /// The step fails.
    Problem,
}

impl StepResult {
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
        Self { name, verdict: StepResult::Ok, message: message.into(), hint: None }
    }

    fn from_verdict(
        name: &'static str,
        verdict: StepResult,
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
        Self::from_verdict(name, StepResult::Problem, message, hint)
    }

    pub(super) fn notice(
        name: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::from_verdict(name, StepResult::Notice, message, hint)
    }

    /// Replaces `leno explain request` in the hint with the complete command.
    pub(super) fn with_request(self, command: &str) -> Self {
        let hint =
            self.hint.map(|hint| hint.replace("`leno explain request`", &format!("`{command}`")));
        Self { hint, ..self }
    }
}

/// Returns all steps of a diagnosis; if the workload does not exist, only that step.
pub(super) fn build_steps(
    inputs: &DiagnosisInputs,
    name: &str,
    to: Option<&str>,
) -> Vec<DiagnosisStep> {
    let Some(workload) = inputs.workloads.iter().find(|existing| existing.name == name) else {
        let existing: Vec<&str> =
            inputs.workloads.iter().map(|workload| workload.name.as_str()).collect();
        let hint =
            "list the workloads: leno get workloads; a manifest may be rejected: leno get rejected";
        let hint = match nearest_name(name, &existing) {
            Some(nearest) => format!("did you mean {nearest}? If not, {hint}"),
            None => hint.to_owned(),
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
            steps.extend(calls::request_steps(inputs, workload));
            steps.extend(endpoint_steps(inputs, name));
            let is_outside = |rejection: &RejectionStatus| {
                rejection.service.is_empty()
                    && rejection.clients.iter().any(|client| client == name)
            };
            steps.extend(rejection_steps(inputs, is_outside));
            steps.extend(unknown_name_steps(&inputs.unknown_names, &existing_namespaces(inputs)));
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

/// Returns the steps for called names that are not services: information for the owner of the workload, not a
/// failure of the mesh. A name in a missing namespace is a host outside the mesh.
fn unknown_name_steps(names: &[String], namespaces: &BTreeSet<&str>) -> Vec<DiagnosisStep> {
    let is_inside = |name: &&String| {
        name.split_once('/').is_none_or(|(namespace, _)| namespaces.contains(namespace))
    };
    let (inside, outside): (Vec<&String>, Vec<&String>) = names.iter().partition(is_inside);
    let inside: Vec<String> = inside.into_iter().cloned().collect();
    let outside: Vec<String> = outside.into_iter().map(|name| service_host(name)).collect();
    let services = match inside.as_slice() {
        [] => None,
        [name] => Some(format!("it called {name}: no such service")),
        _ => Some(format!("it called {}: no such services", join_first_names(&inside))),
    };
    let hosts = match outside.as_slice() {
        [] => None,
        [name] => Some(format!(
            "it called {name}: a host outside the mesh, as there is no such namespace"
        )),
        _ => Some(format!(
            "it called {}: hosts outside the mesh, as there are no such namespaces",
            join_first_names(&outside)
        )),
    };
    let service_hint =
        "check the host name in the application; list the services: leno get services";
    let host_hint = "spec.egress of the MeshConfig permits or denies hosts outside the mesh; for a service, \
                    check the namespace in the host name";
    let services = services.map(|message| DiagnosisStep::notice("names", message, service_hint));
    let hosts = hosts.map(|message| DiagnosisStep::notice("names", message, host_hint));
    services.into_iter().chain(hosts).collect()
}

/// Joins the first names of a list, with the number of omitted ones.
fn join_first_names(names: &[String]) -> String {
    let first = names.get(..names.len().min(MAX_UNKNOWN_NAMES)).unwrap_or_default();
    match names.len() - first.len() {
        0 => first.join(", "),
        omitted => format!("{} and {omitted} more", first.join(", ")),
    }
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
    if let Some(duration) = proxy.out_of_sync_seconds {
        let duration = format_duration(Duration::try_from_secs_f64(duration).unwrap_or_default());
        let hint = "if this persists, check its log and its machine";
        return DiagnosisStep::notice(name, format!("has been out of sync for {duration}"), hint);
    }
    let age =
        format_duration(Duration::try_from_secs_f64(proxy.connected_seconds).unwrap_or_default());
    DiagnosisStep::success(
        name,
        format!("version {}, connected for {age}, up to date", proxy.version),
    )
}

fn identity_step(inputs: &DiagnosisInputs, name: &str) -> DiagnosisStep {
    let step = "identity";
    let certificate = inputs.certificates.iter().find(|certificate| certificate.workload == name);
    let Some(CertificateStatus { identity, valid_for_seconds, .. }) = certificate else {
        return DiagnosisStep::notice(
            step,
            "no certificate was issued since this control plane started",
            "a certificate issued earlier stays valid until it expires",
        );
    };
    let validity = format_duration(Duration::from_secs(*valid_for_seconds));
    if *valid_for_seconds == 0 {
        let hint = match inputs.status.kubernetes {
            true => rejoin_hint(&inputs.status, name),
            false => format!("create a new token and start the sidecar with it: leno token {name}"),
        };
        return DiagnosisStep::problem(
            step,
            format!("{identity} has expired: peers reject it"),
            hint,
        );
    }
    if *valid_for_seconds <= inputs.status.certificate_lifetime_seconds / 5 {
        let hint = "its sidecar should have renewed it: check that it reaches the control plane";
        return DiagnosisStep::problem(step, format!("{identity} expires in {validity}"), hint);
    }
    DiagnosisStep::success(step, format!("{identity}, valid for another {validity}"))
}

/// Returns the steps for inbound listeners, and for the workload's endpoints of each service.
fn inbound_steps(inputs: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let mut steps = Vec::new();
    let ports: Vec<u16> = workload.ports.iter().map(|port| port.port).collect();
    let closed = ports.iter().filter(|port| !workload.listeners.contains_key(port));
    let closed: Vec<String> = closed.map(u16::to_string).collect();
    if !closed.is_empty() {
        steps.push(DiagnosisStep::problem(
            "inbound",
            format!("no inbound listener for port {}", closed.join(", ")),
            "its log has the reason: the address may be in use",
        ));
    } else if !ports.is_empty() {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        steps
            .push(DiagnosisStep::success("inbound", format!("open for port {}", ports.join(", "))));
    }
    for service in workload.services.iter().filter_map(|name| find_service(inputs, name)) {
        let missing = service.ports.iter().filter(|port| {
            !port.endpoints.iter().any(|endpoint| endpoint.workload == workload.name)
        });
        let missing: Vec<String> = missing.map(|port| port.port.to_string()).collect();
        steps.push(match missing.is_empty() {
            true => {
                DiagnosisStep::success("endpoint", format!("is an endpoint of {}", service.name))
            }
            false => DiagnosisStep::problem(
                "endpoint",
                format!("is not an endpoint of {} at port {}", service.name, missing.join(", ")),
                "it has no port for the service's targetPort, is not ready, or its sidecar has not \
                 reported its listeners",
            ),
        });
    }
    steps
}

fn policy_steps(inputs: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let applicable: Vec<&PolicyStatus> =
        inputs.policies.iter().filter(|policy| applies_to(policy, workload)).collect();
    let invalid = applicable.iter().filter(|policy| !policy.problems.is_empty());
    let mut steps: Vec<DiagnosisStep> = invalid
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
        let in_force = applicable.iter().filter(|policy| policy.in_force).count();
        let mode = &inputs.status.default_policy;
        steps.push(DiagnosisStep::success(
            "policy",
            format!("the mesh has default policy {mode}; applicable policies: {in_force}"),
        ));
    }
    steps
}

/// True if the policy applies to the workload's account, or to a service of the workload with the name of that
/// account.
fn applies_to(policy: &PolicyStatus, workload: &WorkloadStatus) -> bool {
    let is_of_account = matches!(policy.kind.as_str(), "TrafficTarget" | "AccessPolicy");
    policy.destination == workload.account
        && (is_of_account || workload.services.contains(&policy.destination))
}

/// Returns the steps for requests to a service, with the most frequent reason of failures.
fn request_steps(inputs: &DiagnosisInputs, service: &str) -> Vec<DiagnosisStep> {
    let steps = rejection_steps(inputs, |rejection| rejection.service == service);
    if !steps.is_empty() {
        return steps;
    }
    let success = inputs.histories.get(service).and_then(|history| history.rates.success);
    let reason = most_frequent_reason(inputs, service);
    let step =
        success.map(|success| success_step(success, &format!("the requests to {service}"), reason));
    step.map(|step| step.with_request(&explain_command(inputs, None, service)))
        .into_iter()
        .collect()
}

/// Returns the most frequent reason of recent failed requests to a service.
pub(super) fn most_frequent_reason<'a>(
    inputs: &'a DiagnosisInputs,
    service: &str,
) -> Option<&'a str> {
    let reasons = inputs.histories.get(service)?.recent_reasons.iter();
    reasons.max_by_key(|(_, count)| **count).map(|(reason, _)| reason.as_str())
}

/// Returns the step for a success rate, with the most frequent reason if it is low.
pub(super) fn success_step(success: f64, requests: &str, reason: Option<&str>) -> DiagnosisStep {
    let share = format_share(Some(success));
    if success >= DEGRADED_BELOW {
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
    let verdict = if success < FAILING_BELOW { StepResult::Problem } else { StepResult::Notice };
    let message = format!("{share} of {requests} succeed{reason_text}");
    DiagnosisStep::from_verdict("requests", verdict, message, hint)
}

/// Returns the steps for rejected requests that `is_relevant` selects, one for each reason, the largest share
/// first.
pub(super) fn rejection_steps(
    inputs: &DiagnosisInputs,
    is_relevant: impl Fn(&RejectionStatus) -> bool,
) -> Vec<DiagnosisStep> {
    let relevant = inputs.rejections.iter().filter(|rejection| is_relevant(rejection));
    let notable = relevant.filter(|rejection| rejection_text::is_notable(rejection));
    let mut notable: Vec<&RejectionStatus> = notable.collect();
    notable.sort_by(|first, second| second.share.total_cmp(&first.share));
    notable.into_iter().map(|rejection| rejection_step(inputs, rejection)).collect()
}

fn rejection_step(inputs: &DiagnosisInputs, rejection: &RejectionStatus) -> DiagnosisStep {
    let objects = Objects {
        workloads: &inputs.workloads,
        routes: &inputs.routes,
        policies: &inputs.policies,
    };
    let verdict = match 1.0 - rejection.share < FAILING_BELOW {
        true => StepResult::Problem,
        false => StepResult::Notice,
    };
    let reason = Reason::from_label(&rejection.reason);
    let hint = reason.map_or("update leno: the reason is unknown to this version", Reason::remedy);
    let hint = format!("{hint} (leno explain {})", rejection.reason);
    let client = rejection.clients.first().map(String::as_str);
    DiagnosisStep::from_verdict(
        "requests",
        verdict,
        rejection_text::describe_rejection(rejection, objects),
        hint,
    )
    .with_request(&explain_command(inputs, client, &rejection.service))
}

/// Returns the command that explains a request to a service, with placeholders for unknown parts.
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
    let service_steps = |reached: &ServiceReachability| {
        let command = explain_command(inputs, Some(workload), reached.service());
        reached.steps().into_iter().map(move |step| step.with_request(&command))
    };
    inputs.reachability.iter().flat_map(service_steps).collect()
}

/// Returns the steps on the path to a called service.
fn path_steps(inputs: &DiagnosisInputs, workload: &str, to: &str) -> Vec<DiagnosisStep> {
    let Some(service) = find_service(inputs, to) else {
        let hint = "leno get services lists them; check the spelling and the namespace";
        return vec![DiagnosisStep::problem("service", format!("no service {to}"), hint)];
    };
    let mut steps = Vec::new();
    let empty_ports = service.ports.iter().filter(|port| port.endpoints.is_empty());
    let empty_ports: Vec<String> = empty_ports.map(|port| port.port.to_string()).collect();
    let endpoints: usize = service.ports.iter().map(|port| port.endpoints.len()).sum();
    steps.push(match empty_ports.is_empty() {
        true => DiagnosisStep::success(
            "service",
            format!("{to} has {}", format_count(endpoints, "endpoint")),
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
    let invalid = routes.filter(|route| !route.problems.is_empty());
    steps.extend(invalid.map(|route| {
        let message = format!("{} {}: {}", route.kind, route.name, route.problems.join("; "));
        DiagnosisStep::problem(
            "route",
            message,
            "until then, requests that match this part of the route get 500",
        )
    }));
    let ejected =
        inputs.ejected.iter().filter(|endpoint| is_on_path(inputs, to, &endpoint.service));
    steps.extend(ejected.map(|endpoint| {
        DiagnosisStep::notice(
            "ejected",
            format!("{} is ejected: {}", endpoint.workload, endpoint.cause),
            "it returns to service automatically: leno get ejected",
        )
    }));
    steps.extend(conditions::endpoint_application_steps(inputs, workload, to));
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
    let undecided = || {
        DiagnosisStep::notice(
            "decision",
            "rules and policies decide each request individually",
            explain_command(inputs, Some(workload), to),
        )
    };
    steps.push(inputs.decision.clone().unwrap_or_else(undecided));
    steps
}

/// The maximum number of unknown names in a list.
const MAX_UNKNOWN_NAMES: usize = 5;

fn find_service<'a>(inputs: &'a DiagnosisInputs, name: &str) -> Option<&'a ServiceStatus> {
    inputs.services.iter().find(|service| service.name == name)
}

/// Converts `namespace/name` to the host name that applications use.
pub(super) fn service_host(service: &str) -> String {
    match service.split_once('/') {
        Some((namespace, name)) => format!("{name}.{namespace}"),
        None => service.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_unknown_namespaces_are_hosts_outside_the_mesh() {
        let names = ["com/example", "internal/foo", "shop/typo"].map(str::to_owned);
        let messages = |names: &[String]| {
            let steps = unknown_name_steps(names, &BTreeSet::from(["shop"]));
            steps.into_iter().map(|step| step.message).collect::<Vec<_>>()
        };
        let typo = "it called shop/typo: no such service";
        let hosts = "it called example.com, foo.internal: hosts outside the mesh, as there are no such namespaces";
        assert_eq!(messages(&names), [typo, hosts]);
        let host = "it called example.com: a host outside the mesh, as there is no such namespace";
        assert_eq!(messages(&names[..1]), [host]);
        assert_eq!(messages(&[]), [""; 0]);
    }
}
