//! Builds the diagnosis steps for conditions of a workload that break traffic: join token, application, listeners,
//! state on disk, circuit breakers.

use std::collections::BTreeSet;

use leno_control::findings::rejected_sidecar_hint;
use leno_control::status::{ApplicationStatus, ConditionStatus, WorkloadStatus};
use leno_control::{exit_hint, port_hint};

use super::steps::{DiagnosisInputs, DiagnosisStep, StepVerdict, is_on_path};
use crate::duration::format_duration;

/// Returns the steps for the conditions, in startup order. An open circuit is a problem if `to` is absent, or on the
/// path to the service `to`; otherwise it is a notice.
pub(super) fn condition_steps(
    inputs: &DiagnosisInputs,
    workload: &WorkloadStatus,
    to: Option<&str>,
) -> Vec<DiagnosisStep> {
    let mut steps: Vec<DiagnosisStep> = token_step(inputs, workload).into_iter().collect();
    steps.extend(workload.application.iter().flat_map(application_steps));
    steps.extend(listener_steps(workload));
    steps.extend(conditions_of_kind(workload, "state-unwritable").map(|condition| {
        DiagnosisStep::problem(
            "state",
            format!("the sidecar cannot write {}: {}", condition.subject, condition.reason),
            "free space there or make it writable: a restart loses unwritten state",
        )
    }));
    if workload.sidecar == "connected"
        && conditions_of_kind(workload, "state-unwritable").next().is_none()
    {
        steps.push(DiagnosisStep::success("state", "is written to disk"));
    }
    steps.extend(conditions_of_kind(workload, "circuit-open").map(|condition| {
        // The subject has the form `namespace/service:port`.
        let service = condition.subject.split(':').next().unwrap_or_default();
        let step = match to.is_none_or(|to| is_on_path(inputs, to, service)) {
            true => DiagnosisStep::problem,
            false => DiagnosisStep::notice,
        };
        step(
            "circuit",
            format!("to {} is open: {}", condition.subject, condition.reason),
            "repair the service; the circuit then closes automatically: leno get circuits",
        )
    }));
    steps
}

/// Returns the step for the last join; `None` if the join was not rejected.
fn token_step(inputs: &DiagnosisInputs, workload: &WorkloadStatus) -> Option<DiagnosisStep> {
    let join = inputs.rejected_joins.iter().find(|join| join.workload == workload.name)?;
    let message = format!("was rejected {} s ago: {}", join.age_seconds, join.reason);
    let hint = rejected_sidecar_hint(&inputs.status, workload);
    Some(match workload.has_sidecar() {
        true => DiagnosisStep::notice("token", message, hint),
        false => DiagnosisStep::problem("token", message, hint),
    })
}

/// Returns the failing steps of the applications behind the endpoints of the service `to`, except the
/// workload's own: requests fail or wait at these applications, although their sidecars are reachable.
pub(super) fn endpoint_application_steps(
    inputs: &DiagnosisInputs,
    workload: &str,
    to: &str,
) -> Vec<DiagnosisStep> {
    let services = inputs.services.iter().filter(|service| is_on_path(inputs, to, &service.name));
    let endpoint_workloads: BTreeSet<&str> = services
        .flat_map(|service| &service.ports)
        .flat_map(|port| &port.endpoints)
        .map(|endpoint| endpoint.workload.as_str())
        .collect();
    let statuses =
        inputs.workloads.iter().filter(|status| endpoint_workloads.contains(&*status.name));
    let other_statuses = statuses.filter(|status| status.name != workload);
    let steps = other_statuses.flat_map(|status| {
        let steps = status.application.iter().flat_map(application_steps);
        steps.map(move |step| DiagnosisStep {
            message: format!("{}: {}", status.name, step.message),
            ..step
        })
    });
    steps.filter(|step| step.verdict != StepVerdict::Ok).collect()
}

/// Returns the steps for the state of an application, and for the ports that it does not serve.
fn application_steps(application: &ApplicationStatus) -> Vec<DiagnosisStep> {
    let mut steps = vec![application_state_step(application)];
    steps.extend(application.ports.iter().map(|(port, problem)| {
        let message = format!("port {port} is not served: {problem}");
        DiagnosisStep::problem("application", message, port_hint(problem))
    }));
    steps
}

fn application_state_step(application: &ApplicationStatus) -> DiagnosisStep {
    let name = "application";
    let time_in_state = std::time::Duration::try_from_secs_f64(application.since_seconds);
    let state_duration = format_duration(time_in_state.unwrap_or_default());
    let last_exit_text = format_last_exit(application);
    let restarts = application.restarts;
    if application.crash_looping {
        return DiagnosisStep::problem(
            name,
            format!("keeps exiting (restarts: {restarts}{last_exit_text})"),
            exit_hint(application.last_exit.as_deref()),
        );
    }
    match (application.state.as_str(), application.pid) {
        ("running", Some(pid)) => DiagnosisStep::success(
            name,
            format!("runs as process {pid} for {state_duration} (restarts: {restarts})"),
        ),
        (state, _) => DiagnosisStep::notice(
            name,
            format!("is {state} (restarts: {restarts}{last_exit_text})"),
            "requests wait up to 10 s for its start",
        ),
    }
}

/// Returns the text about the last exit; empty before the first one.
fn format_last_exit(application: &ApplicationStatus) -> String {
    application.last_exit.as_deref().map_or_else(String::new, |exit| format!(", last exit: {exit}"))
}

/// Returns the steps for outbound listeners and the DNS listener.
fn listener_steps(workload: &WorkloadStatus) -> Vec<DiagnosisStep> {
    let closed_steps: Vec<DiagnosisStep> = conditions_of_kind(workload, "listener-closed")
        .chain(conditions_of_kind(workload, "dns-closed"))
        .map(|condition| {
            DiagnosisStep::problem(
                "listener",
                format!("{} is closed: {}", condition.subject, condition.reason),
                "stop the process that uses the address (ss -ltnp shows it), or use another address",
            )
        })
        .collect();
    if !closed_steps.is_empty() || workload.sidecar != "connected" {
        return closed_steps;
    }
    let open_addresses: Vec<&str> =
        workload.outbound_listeners.iter().map(|listener| listener.listen.as_str()).collect();
    match open_addresses.as_slice() {
        [] => vec![DiagnosisStep::success("listener", "all are open")],
        open_addresses => vec![DiagnosisStep::success(
            "listener",
            format!("open at {}", open_addresses.join(", ")),
        )],
    }
}

fn conditions_of_kind<'a>(
    workload: &'a WorkloadStatus,
    kind: &'static str,
) -> impl Iterator<Item = &'a ConditionStatus> {
    workload.conditions.iter().filter(move |condition| condition.kind == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload_status(
        conditions: serde_json::Value,
        application: serde_json::Value,
    ) -> WorkloadStatus {
        serde_json::from_value(json!({
            "name": "shop/cart-1", "account": "shop/cart", "address": "127.0.0.1", "ports": [],
            "labels": {}, "services": [], "sidecar": "connected", "listeners": {},
            "outbound_listeners": [{ "service": "shop/stock", "port": 80, "listen": "127.0.0.1:19080" }],
            "conditions": conditions, "application": application,
        }))
        .unwrap()
    }

    #[test]
    fn each_condition_has_a_failing_step() {
        let condition =
            |kind: &str| json!([{ "kind": kind, "subject": "there", "reason": "a cause" }]);
        let crash_looping = json!({
            "state": "restarting", "pid": null, "restarts": 7, "crash_looping": true,
            "last_exit": "exit status: 1", "since_seconds": 1.0, "ports": {"80": "taken"},
        });
        for (conditions, application, name) in [
            (condition("listener-closed"), json!(null), "listener"),
            (condition("dns-closed"), json!(null), "listener"),
            (condition("state-unwritable"), json!(null), "state"),
            (condition("circuit-open"), json!(null), "circuit"),
            (json!([]), crash_looping, "application"),
        ] {
            let workload = workload_status(conditions, application);
            let steps = condition_steps(&DiagnosisInputs::default(), &workload, None);
            let failed = steps.iter().filter(|step| step.verdict == StepVerdict::Problem);
            let failed: Vec<&str> = failed.map(|step| step.name).collect();
            assert!(!failed.is_empty() && failed.iter().all(|step| *step == name), "{steps:?}");
        }
        let healthy = workload_status(json!([]), json!(null));
        let steps = condition_steps(&DiagnosisInputs::default(), &healthy, None);
        assert!(steps.iter().all(|step| step.verdict == StepVerdict::Ok), "{steps:?}");
    }

    #[test]
    fn an_application_that_never_exited_has_no_last_exit() {
        for (last_exit, text) in [
            (json!(null), "is starting (restarts: 0)"),
            (json!("signal: 9"), "is starting (restarts: 0, last exit: signal: 9)"),
        ] {
            let starting = json!({
                "state": "starting", "pid": null, "restarts": 0, "crash_looping": false,
                "last_exit": last_exit, "since_seconds": 1.0, "ports": {},
            });
            let steps = condition_steps(
                &DiagnosisInputs::default(),
                &workload_status(json!([]), starting),
                None,
            );
            assert!(steps.iter().any(|step| step.message == text), "{steps:?}");
        }
    }

    #[test]
    fn an_open_circuit_is_a_problem_for_the_services_on_the_path() {
        let open =
            json!([{ "kind": "circuit-open", "subject": "shop/api-v2:80", "reason": "a cause" }]);
        let route = json!({
            "kind": "HTTPRoute", "name": "shop/canary", "parents": ["shop/api"], "rules": 1,
            "backends": ["shop/api-v1:80 (90 %)", "shop/api-v2:80 (10 %)"], "problems": [],
        });
        let routes = vec![serde_json::from_value(route).unwrap()];
        let inputs = DiagnosisInputs { routes, ..DiagnosisInputs::default() };
        for (to, fails) in [
            (None, true),
            (Some("shop/api-v2"), true),
            (Some("shop/api"), true),
            (Some("shop/api-v1"), false),
            (Some("shop/ap"), false),
        ] {
            let steps = condition_steps(&inputs, &workload_status(open.clone(), json!(null)), to);
            let failed = steps.iter().any(|step| step.verdict == StepVerdict::Problem);
            assert_eq!(failed, fails, "{to:?}: {steps:?}");
        }
    }
}
