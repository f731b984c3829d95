//! Verdicts on the reports of the control plane and the sidecar, in the order in which a request needs each
//! step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_control::findings::rejection_text::{self, Objects};
use leno_control::findings::{absent_sidecar, join_again};
use leno_control::status::{
    CertificateStatus, EdgeStatus, HistoryStatus, PolicyStatus, ProxyStatus, RejectedJoinStatus,
    RejectionStatus, RouteStatus, ServiceStatus, Status, WorkloadStatus,
};
use leno_model::Reason;
use serde::{Deserialize, Serialize};

use super::reachability::ServiceReachability;
use super::{calls, conditions, reachability};
use crate::duration::format_duration;
use crate::figures::{AILING, FAILING, format_count, format_share};
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
    pub(super) ready: Option<Result<(), String>>,
    /// The endpoints that the sidecar has ejected.
    pub(super) ejected: Vec<EjectedEndpoint>,
    /// The results of the sidecar's connection attempts to endpoints.
    pub(super) reached: Vec<ServiceReachability>,
    /// Names that the application called and that no service has.
    pub(super) unknown: Vec<String>,
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
    pub(super) const fn mark(self) -> char {
        match self {
            Self::Ok => '✓',
            Self::Notice => '·',
            Self::Problem => '✗',
        }
    }
}

impl DiagnosisStep {
    pub(super) fn fine(name: &'static str, message: impl Into<String>) -> Self {
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

/// Returns the steps; without the workload, no step follows.
pub(super) fn build_steps(
    facts: &DiagnosisInputs,
    name: &str,
    to: Option<&str>,
) -> Vec<DiagnosisStep> {
    let Some(workload) = facts.workloads.iter().find(|known| known.name == name) else {
        let known: Vec<&str> = facts.workloads.iter().map(|it| it.name.as_str()).collect();
        let hint =
            "list the workloads: leno get workloads; a manifest may be rejected: leno get rejected";
        let hint = match nearest_name(name, &known) {
            Some(meant) => format!("did you mean {meant}? If not, {hint}"),
            None => hint.to_owned(),
        };
        return vec![DiagnosisStep::problem("workload", format!("no workload {name}"), hint)];
    };
    let of = match workload.services.as_slice() {
        [] => "selected by no service".to_owned(),
        services => format!("selected by {}", services.join(", ")),
    };
    let mut steps =
        vec![DiagnosisStep::fine("workload", format!("account {}, {of}", workload.account))];
    let proxy = facts.proxies.iter().find(|proxy| proxy.workload == name);
    steps.push(sidecar_step(facts, workload, proxy));
    steps.push(identity_step(facts, name));
    steps.extend(conditions::condition_steps(facts, workload, to));
    steps.extend(outbound_listeners(facts, workload));
    steps.extend(policy_steps(facts, workload));
    steps.extend(workload.services.iter().flat_map(|service| request_steps(facts, service)));
    match to {
        Some(to) => steps.extend(way_to(facts, name, to)),
        None => {
            steps.extend(calls::request_steps(facts, workload));
            steps.extend(endpoint_steps(facts, name));
            let is_outside = |it: &RejectionStatus| {
                it.service.is_empty() && it.clients.iter().any(|it| it == name)
            };
            steps.extend(rejection_steps(facts, is_outside));
            steps.extend(unknown_names(&facts.unknown, &known_namespaces(facts)));
        }
    }
    steps
}

/// True for the called service, and for services to which its routes forward requests.
pub(super) fn is_on_the_way(facts: &DiagnosisInputs, to: &str, service: &str) -> bool {
    let names = |text: &str, service: &str| {
        let rest = text.strip_prefix(service);
        rest.is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_alphanumeric() || ".-".contains(c))
        })
    };
    let mut routes =
        facts.routes.iter().filter(|route| route.parents.iter().any(|it| names(it, to)));
    service == to || routes.any(|route| route.backends.iter().any(|it| names(it, service)))
}

/// The namespaces with a service or a workload.
fn known_namespaces(facts: &DiagnosisInputs) -> BTreeSet<&str> {
    let services = facts.services.iter().map(|it| it.name.as_str());
    let names = services.chain(facts.workloads.iter().map(|it| it.name.as_str()));
    names.filter_map(|name| name.split_once('/')).map(|(namespace, _)| namespace).collect()
}

/// Returns the steps for called names without a service: information for the owner of the workload, not a
/// failure of the mesh. A name in a missing namespace is a host outside the mesh.
fn unknown_names(names: &[String], namespaces: &BTreeSet<&str>) -> Vec<DiagnosisStep> {
    let is_inside = |name: &&String| {
        name.split_once('/').is_none_or(|(namespace, _)| namespaces.contains(namespace))
    };
    let (inside, outside): (Vec<&String>, Vec<&String>) = names.iter().partition(is_inside);
    let inside: Vec<String> = inside.into_iter().cloned().collect();
    let outside: Vec<String> = outside.into_iter().map(|it| service_host(it)).collect();
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
    let of_services =
        "check the host name in the application; list the services: leno get services";
    let of_hosts = "spec.egress of the MeshConfig permits or denies hosts outside the mesh; for a service, \
                    check the namespace in the host name";
    let services = services.map(|message| DiagnosisStep::notice("names", message, of_services));
    let hosts = hosts.map(|message| DiagnosisStep::notice("names", message, of_hosts));
    services.into_iter().chain(hosts).collect()
}

/// Joins the first names of a list, with the number of omitted ones.
fn join_first_names(names: &[String]) -> String {
    let shown = names.get(..names.len().min(UNKNOWN_NAMES_MAX)).unwrap_or_default();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn sidecar_step(
    facts: &DiagnosisInputs,
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
                describe_scope(&facts.status).unwrap_or_else(|| "run the command there".to_owned()),
            ),
            false => DiagnosisStep::problem(
                name,
                match workload.revoked {
                    true => format!("is {}: the workload is revoked", workload.sidecar),
                    false => format!("is {}", workload.sidecar),
                },
                absent_sidecar(&facts.status, &workload.name, workload.revoked),
            ),
        };
    };
    if let Some(refusal) = proxy.rejections.last().filter(|_| proxy.rejected > 0) {
        let hint = "correct the named object; the previous configuration stays in use";
        return DiagnosisStep::problem(name, format!("rejects its configuration: {refusal}"), hint);
    }
    if let Some(Err(why)) = &facts.ready {
        let hint = "a sidecar is ready once it has a certificate, a configuration and all of its listeners";
        return DiagnosisStep::problem(name, format!("is not ready: {why}"), hint);
    }
    if let Some(behind) = proxy.out_of_sync_seconds {
        let behind = format_duration(Duration::try_from_secs_f64(behind).unwrap_or_default());
        let hint = "if this persists, check its log and its machine";
        return DiagnosisStep::notice(name, format!("has been out of sync for {behind}"), hint);
    }
    let age =
        format_duration(Duration::try_from_secs_f64(proxy.connected_seconds).unwrap_or_default());
    DiagnosisStep::fine(name, format!("version {}, connected for {age}, up to date", proxy.version))
}

fn identity_step(facts: &DiagnosisInputs, name: &str) -> DiagnosisStep {
    let step = "identity";
    let certificate = facts.certificates.iter().find(|known| known.workload == name);
    let Some(CertificateStatus { identity, valid_for_seconds, .. }) = certificate else {
        return DiagnosisStep::notice(
            step,
            "no certificate was issued since this control plane started",
            "a certificate issued earlier stays valid until it expires",
        );
    };
    let left = format_duration(Duration::from_secs(*valid_for_seconds));
    if *valid_for_seconds == 0 {
        let hint = match facts.status.kubernetes {
            true => join_again(&facts.status, name),
            false => format!("create a new token and start the sidecar with it: leno token {name}"),
        };
        return DiagnosisStep::problem(
            step,
            format!("{identity} has expired: peers reject it"),
            hint,
        );
    }
    if *valid_for_seconds <= facts.status.certificate_lifetime_seconds / 5 {
        let hint = "its sidecar should have renewed it: check that it reaches the control plane";
        return DiagnosisStep::problem(step, format!("{identity} expires in {left}"), hint);
    }
    DiagnosisStep::fine(step, format!("{identity}, valid for another {left}"))
}

/// Returns the steps for inbound listeners, and for the workload's endpoints of each service.
fn outbound_listeners(facts: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
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
        steps.push(DiagnosisStep::fine("inbound", format!("open for port {}", ports.join(", "))));
    }
    for service in workload.services.iter().filter_map(|name| find_service(facts, name)) {
        let lacks = service.ports.iter().filter(|port| {
            !port.endpoints.iter().any(|endpoint| endpoint.workload == workload.name)
        });
        let lacks: Vec<String> = lacks.map(|port| port.port.to_string()).collect();
        steps.push(match lacks.is_empty() {
            true => DiagnosisStep::fine("endpoint", format!("is an endpoint of {}", service.name)),
            false => DiagnosisStep::problem(
                "endpoint",
                format!("is not an endpoint of {} at port {}", service.name, lacks.join(", ")),
                "it has no port for the service's targetPort, is not ready, or its sidecar has not \
                 reported its listeners",
            ),
        });
    }
    steps
}

fn policy_steps(facts: &DiagnosisInputs, workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let about: Vec<&PolicyStatus> =
        facts.policies.iter().filter(|policy| is_about(policy, workload)).collect();
    let broken = about.iter().filter(|policy| !policy.problems.is_empty());
    let mut steps: Vec<DiagnosisStep> = broken
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
        let in_force = about.iter().filter(|policy| policy.in_force).count();
        let mode = &facts.status.default_policy;
        steps.push(DiagnosisStep::fine(
            "policy",
            format!("the mesh has default policy {mode}; applicable policies: {in_force}"),
        ));
    }
    steps
}

/// True if the policy applies to the workload's account, or to a service of the workload with the name of that
/// account.
fn is_about(policy: &PolicyStatus, workload: &WorkloadStatus) -> bool {
    let is_of_account = matches!(policy.kind.as_str(), "TrafficTarget" | "AccessPolicy");
    policy.destination == workload.account
        && (is_of_account || workload.services.contains(&policy.destination))
}

/// Returns the steps for requests to a service, with the most frequent reason of failures.
fn request_steps(facts: &DiagnosisInputs, service: &str) -> Vec<DiagnosisStep> {
    let rejected = rejection_steps(facts, |it| it.service == service);
    if !rejected.is_empty() {
        return rejected;
    }
    let success = facts.histories.get(service).and_then(|history| history.rates.success);
    let reason = most_frequent_reason(facts, service);
    let step =
        success.map(|success| success_step(success, &format!("the requests to {service}"), reason));
    step.map(|step| step.with_request(&explain_command(facts, None, service))).into_iter().collect()
}

/// Returns the most frequent reason of recent failed requests to a service.
pub(super) fn most_frequent_reason<'a>(
    facts: &'a DiagnosisInputs,
    service: &str,
) -> Option<&'a str> {
    let reasons = facts.histories.get(service)?.recent_reasons.iter();
    reasons.max_by_key(|(_, count)| **count).map(|(reason, _)| reason.as_str())
}

/// Returns the step for a success rate, with the most frequent reason if it is low.
pub(super) fn success_step(success: f64, requests: &str, reason: Option<&str>) -> DiagnosisStep {
    let shown = format_share(Some(success));
    if success >= AILING {
        return DiagnosisStep::fine("requests", format!("{shown} of {requests} succeed"));
    }
    let known = reason.and_then(|label| Reason::ALL.iter().find(|known| known.label() == label));
    let why = reason.map(|reason| format!(", most with {reason}")).unwrap_or_default();
    let hint = match known {
        Some(known) => format!("{} (leno explain {})", known.remedy(), known.label()),
        None => "the application sends these responses: check its log".to_owned(),
    };
    let verdict = if success < FAILING { StepResult::Problem } else { StepResult::Notice };
    let message = format!("{shown} of {requests} succeed{why}");
    DiagnosisStep::from_verdict("requests", verdict, message, hint)
}

/// Returns the steps for rejected requests that `of_interest` selects, one for each reason, the largest share
/// first.
pub(super) fn rejection_steps(
    facts: &DiagnosisInputs,
    of_interest: impl Fn(&RejectionStatus) -> bool,
) -> Vec<DiagnosisStep> {
    let of_interest = facts.rejections.iter().filter(|it| of_interest(it));
    let notable = of_interest.filter(|it| rejection_text::is_notable(it));
    let mut notable: Vec<&RejectionStatus> = notable.collect();
    notable.sort_by(|one, other| other.share.total_cmp(&one.share));
    notable.into_iter().map(|rejection| rejection_step(facts, rejection)).collect()
}

fn rejection_step(facts: &DiagnosisInputs, rejection: &RejectionStatus) -> DiagnosisStep {
    let objects =
        Objects { workloads: &facts.workloads, routes: &facts.routes, policies: &facts.policies };
    let verdict = match 1.0 - rejection.share < FAILING {
        true => StepResult::Problem,
        false => StepResult::Notice,
    };
    let known = Reason::from_label(&rejection.reason);
    let hint = known.map_or("update leno: the reason is unknown to this version", Reason::remedy);
    let hint = format!("{hint} (leno explain {})", rejection.reason);
    let client = rejection.clients.first().map(String::as_str);
    DiagnosisStep::from_verdict(
        "requests",
        verdict,
        rejection_text::describe_rejection(rejection, objects),
        hint,
    )
    .with_request(&explain_command(facts, client, &rejection.service))
}

/// Returns the command that explains a request to a service, with placeholders for unknown parts.
pub(super) fn explain_command(
    facts: &DiagnosisInputs,
    client: Option<&str>,
    service: &str,
) -> String {
    let url = find_service(facts, service)
        .and_then(reachability::first_port_url)
        .unwrap_or_else(|| "URL".to_owned());
    format!("leno explain request --from {} --url {url}", client.unwrap_or("NAMESPACE/WORKLOAD"))
}

/// Returns the steps for connection attempts of a workload's sidecar.
fn endpoint_steps(facts: &DiagnosisInputs, workload: &str) -> Vec<DiagnosisStep> {
    let of_one = |reached: &ServiceReachability| {
        let command = explain_command(facts, Some(workload), reached.service());
        reached.steps().into_iter().map(move |step| step.with_request(&command))
    };
    facts.reached.iter().flat_map(of_one).collect()
}

/// Returns the steps on the way to a called service.
fn way_to(facts: &DiagnosisInputs, workload: &str, to: &str) -> Vec<DiagnosisStep> {
    let Some(service) = find_service(facts, to) else {
        let hint = "leno get services lists them; check the spelling and the namespace";
        return vec![DiagnosisStep::problem("service", format!("no service {to}"), hint)];
    };
    let mut steps = Vec::new();
    let empty = service.ports.iter().filter(|port| port.endpoints.is_empty());
    let empty: Vec<String> = empty.map(|port| port.port.to_string()).collect();
    let endpoints: usize = service.ports.iter().map(|port| port.endpoints.len()).sum();
    steps.push(match empty.is_empty() {
        true => DiagnosisStep::fine(
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
            format!("{to} has no endpoint at port {}", empty.join(", ")),
            format!("diagnose one of its workloads: {}", service.workloads.join(", ")),
        ),
    });
    let routes = facts.routes.iter().filter(|route| service.routes.contains(&route.name));
    let broken = routes.filter(|route| !route.problems.is_empty());
    steps.extend(broken.map(|route| {
        let message = format!("{} {}: {}", route.kind, route.name, route.problems.join("; "));
        DiagnosisStep::problem(
            "route",
            message,
            "until then, requests that match this part of the route get 500",
        )
    }));
    let ejected =
        facts.ejected.iter().filter(|endpoint| is_on_the_way(facts, to, &endpoint.service));
    steps.extend(ejected.map(|endpoint| {
        DiagnosisStep::notice(
            "ejected",
            format!("{} is ejected: {}", endpoint.workload, endpoint.cause),
            "it returns to service automatically: leno get ejected",
        )
    }));
    steps.extend(conditions::of_endpoints(facts, workload, to));
    if facts.proxies.iter().any(|proxy| proxy.workload == workload)
        && !calls::may_call(facts, workload, to)
    {
        steps.push(DiagnosisStep::notice(
            "subscribed",
            format!("the workload has sent no request to {to} recently"),
            "check that the application calls the service, by that name",
        ));
    }
    steps.extend(request_steps(facts, to));
    steps.extend(endpoint_steps(facts, workload));
    let undecided = || {
        DiagnosisStep::notice(
            "decision",
            "rules and policies decide each request individually",
            explain_command(facts, Some(workload), to),
        )
    };
    steps.push(facts.decision.clone().unwrap_or_else(undecided));
    steps
}

/// The maximum number of unknown names in a list.
const UNKNOWN_NAMES_MAX: usize = 5;

fn find_service<'a>(facts: &'a DiagnosisInputs, name: &str) -> Option<&'a ServiceStatus> {
    facts.services.iter().find(|service| service.name == name)
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
    fn names_of_unknown_namespaces_are_hosts_outside() {
        let names = ["com/example", "internal/foo", "shop/typo"].map(str::to_owned);
        let reported = |names: &[String]| {
            let steps = unknown_names(names, &BTreeSet::from(["shop"]));
            steps.into_iter().map(|step| step.message).collect::<Vec<_>>()
        };
        let typo = "it called shop/typo: no such service";
        let hosts = "it called example.com, foo.internal: hosts outside the mesh, as there are no such namespaces";
        assert_eq!(reported(&names), [typo, hosts]);
        let host = "it called example.com: a host outside the mesh, as there is no such namespace";
        assert_eq!(reported(&names[..1]), [host]);
        assert_eq!(reported(&[]), [""; 0]);
    }
}
