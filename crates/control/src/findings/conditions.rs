//! Reports conditions that break traffic, such as closed listeners, failing applications, rejected joins and open
//! circuits, and conditions that only need attention, such as full tables and dropped log lines. Sidecars report their
//! conditions, each with a kind such as `listener-closed`, a subject and a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_model::PlaintextClient;

use crate::mesh::is_own_address;
use crate::status::{ApplicationStatus, ConditionStatus, RejectedJoinStatus, WorkloadStatus};

use super::{Finding, FindingInputs, Severity, limit_findings, rejected_sidecar_hint, rejoin_hint};
use crate::applications::{exit_hint, port_hint};

/// Returns the findings about conditions, applications, rejected joins and data directories, the most direct causes
/// first.
pub(super) fn check_conditions(inputs: &FindingInputs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let conditions_of = |kind: &'static str| {
        inputs.workloads.iter().flat_map(move |workload| {
            let conditions =
                workload.conditions.iter().filter(move |condition| condition.kind == kind);
            conditions.map(move |condition| (workload, condition))
        })
    };
    let closed_listeners = conditions_of("listener-closed")
        .map(|(workload, condition)| closed_listener_finding(workload, condition));
    findings.extend(limit_findings(closed_listeners.collect(), "leno get workloads"));
    let closed_dns_listeners = conditions_of("dns-closed").map(|(workload, condition)| {
        Finding::problem(
            format!(
                "{}: the DNS listener {} is closed: {}",
                workload.name, condition.subject, condition.reason
            ),
            "stop the process that uses the port; the sidecar retries every second",
        )
    });
    findings.extend(limit_findings(closed_dns_listeners.collect(), "leno get workloads -o json"));
    let applications = inputs
        .workloads
        .iter()
        .filter_map(|workload| Some((workload, workload.application.as_ref()?)))
        .flat_map(|(workload, application)| check_application(workload, application));
    findings.extend(limit_findings(applications.collect(), "leno get workloads"));
    let open_circuits = conditions_of("circuit-open").map(|(workload, condition)| {
        Finding::problem(
            format!(
                "{}: the circuit to {} is open: {}",
                workload.name, condition.subject, condition.reason
            ),
            "leno get circuits shows all; repair the service, and the circuit closes automatically",
        )
    });
    findings.extend(limit_findings(open_circuits.collect(), "leno get circuits"));
    findings.extend(check_detection_delays(inputs));
    findings.extend(check_rejected_clients(inputs));
    let joins = inputs.rejected_joins.iter().map(|join| rejected_join_finding(inputs, join));
    findings.extend(limit_findings(joins.collect(), "leno status -o json"));
    findings.extend(check_directories(inputs));
    let full_tables = conditions_of("table-full").map(|(workload, condition)| {
        Finding::notice(
            format!(
                "{}: the table {} is full: {}",
                workload.name, condition.subject, condition.reason
            ),
            "leno_table_evictions_total counts evictions; docs/limits.md lists the bounds",
        )
    });
    findings.extend(limit_findings(full_tables.collect(), "leno get workloads -o json"));
    findings.extend(check_dropped_log_lines(inputs));
    findings.extend(check_unknown_conditions(inputs));
    findings
}

/// Reports log lines that were dropped because a program's output blocked.
fn check_dropped_log_lines(inputs: &FindingInputs) -> Vec<Finding> {
    let finding = |message: String| {
        let hint =
            "free space on the disk of the log, or repair its reader; traffic is not affected";
        Finding::notice(message, hint)
    };
    let control_plane_findings = inputs
        .directory
        .iter()
        .map(|directory| directory.log_lines_dropped)
        .filter(|lines| *lines > 0)
        .map(|lines| {
            finding(format!(
                "the control plane drops log lines because its output is blocked: {lines}"
            ))
        });
    let sidecar_findings = inputs.workloads.iter().flat_map(|workload| {
        let dropped_line_conditions =
            workload.conditions.iter().filter(|condition| condition.kind == "log-lines-dropped");
        dropped_line_conditions.map(|condition| {
            finding(format!("{}: its sidecar drops log {}", workload.name, condition.reason))
        })
    });
    limit_findings(
        control_plane_findings.chain(sidecar_findings).collect(),
        "leno get workloads -o json",
    )
}

fn closed_listener_finding(workload: &WorkloadStatus, condition: &ConditionStatus) -> Finding {
    let ConditionStatus { subject, reason, .. } = condition;
    Finding::problem(
        format!("{}: the listener {subject} is closed: {reason}", workload.name),
        "stop the process that uses the address (ss -ltnp shows it), or configure another address; the listener then opens \
         within seconds",
    )
}

/// Returns the findings about one application: a crash loop or a restart, and ports that are not served.
fn check_application(workload: &WorkloadStatus, application: &ApplicationStatus) -> Vec<Finding> {
    let name = &workload.name;
    let mut findings = Vec::new();
    let restarts = application.restarts;
    let last_exit = application.last_exit.as_deref();
    if application.crash_looping {
        findings.push(Finding::problem(
            format!(
                "{name}: the application keeps exiting (restarts: {restarts}{})",
                last_exit.map_or_else(String::new, |status| format!(", last exit: {status}"))
            ),
            exit_hint(last_exit),
        ));
    } else if application.state == "restarting" {
        findings.push(Finding::notice(
            format!(
                "{name}: the application has exited and is restarted{}",
                last_exit.map_or_else(String::new, |status| format!(" (last exit: {status})"))
            ),
            "its output is in the log of `leno up`",
        ));
    }
    findings.extend(application.ports.iter().map(|(port, problem)| {
        Finding::problem(
            format!("{name}: port {port} of the application is not served: {problem}"),
            port_hint(problem),
        )
    }));
    findings
}

fn rejected_join_finding(inputs: &FindingInputs, join: &RejectedJoinStatus) -> Finding {
    let RejectedJoinStatus { workload, exists, count, age_seconds, reason } = join;
    let workload_status = inputs.workloads.iter().find(|status| status.name == *workload);
    // The sidecar of a revoked workload is rejected on purpose.
    let is_expected = workload_status.is_some_and(|status| status.has_sidecar() || status.revoked);
    let severity = if *exists && !is_expected { Severity::Problem } else { Severity::Notice };
    let message = format!(
        "{workload}: a joining sidecar is rejected (attempts: {count}, last: {age_seconds} s ago): {reason}"
    );
    let hint = match workload_status.filter(|_| *exists) {
        Some(workload_status) => rejected_sidecar_hint(&inputs.status, workload_status),
        None if inputs.status.kubernetes => rejoin_hint(&inputs.status, workload),
        None => format!("add the Workload, then make a token: leno token {workload}"),
    };
    Finding { severity, message, hint }
}

/// Reports service ports without a declared protocol whose server sends first, each once.
fn check_detection_delays(inputs: &FindingInputs) -> Vec<Finding> {
    let delay_conditions = inputs
        .workloads
        .iter()
        .flat_map(|workload| &workload.conditions)
        .filter(|condition| condition.kind == "detection-delayed");
    let reasons_by_port: BTreeMap<&str, &str> = delay_conditions
        .map(|condition| (condition.subject.as_str(), condition.reason.as_str()))
        .collect();
    let findings = reasons_by_port.into_iter().map(|(port, reason)| {
        Finding::notice(
            format!("{port} declares no protocol: {reason}"),
            "add `appProtocol: tcp` to this port of the Service",
        )
    });
    limit_findings(findings.collect(), "leno get workloads -o json")
}

/// Reports rejected clients without mutual TLS. Those with a sidecar (members) bypass the mesh, and have another hint.
fn check_rejected_clients(inputs: &FindingInputs) -> Vec<Finding> {
    let member_addresses: BTreeSet<IpAddr> = inputs
        .workloads
        .iter()
        .flat_map(|workload| {
            let addresses = std::iter::once(&workload.address)
                .chain(&workload.other_addresses)
                .filter_map(|text| text.parse::<IpAddr>().ok());
            addresses.filter(move |address| is_own_address(*address, &workload.labels))
        })
        .collect();
    let is_member = |name: &str| {
        name.parse::<IpAddr>()
            .is_ok_and(|address| member_addresses.contains(&address.to_canonical()))
    };
    let findings = inputs.workloads.iter().flat_map(|workload| {
        let rejecting_conditions =
            workload.conditions.iter().filter(|condition| condition.kind == "plaintext-rejected");
        rejecting_conditions.map(|condition| {
            let ConditionStatus { subject, reason, .. } = condition;
            let (member_clients, other_clients): (Vec<&str>, Vec<&str>) =
                reason.split(", ").partition(|name| is_member(name));
            let mut hints = Vec::new();
            if !member_clients.is_empty() {
                let hint = PlaintextClient::Member.hint();
                hints.push(format!("{} {BYPASS_EXPLANATION}: {hint}", member_clients.join(", ")));
            }
            if !other_clients.is_empty() {
                hints.push(PlaintextClient::Other.hint().to_owned());
            }
            Finding::notice(
                format!(
                    "{}: {subject} rejects clients without mutual TLS: {reason}",
                    workload.name
                ),
                hints.join("; for the other clients: "),
            )
        })
    });
    limit_findings(findings.collect(), "leno get workloads -o json")
}

/// The explanation of rejected clients that have a sidecar.
const BYPASS_EXPLANATION: &str = "bypass the mesh although they have a sidecar";

/// Reports data directories that cannot be written, and files of the authority that cannot be used.
fn check_directories(inputs: &FindingInputs) -> Vec<Finding> {
    let hint = "free disk space or make the directory writable: until then a restart loses certificates, tokens or the last configuration";
    let control_plane_findings = inputs
        .directory
        .iter()
        .filter_map(|directory| Some((&directory.directory, directory.problem.as_ref()?)))
        .map(|(directory, problem)| {
            let message =
                format!("the control plane cannot write its state in {directory}: {problem}");
            Finding::problem(message, hint)
        });
    let authority_problems =
        inputs.directory.iter().filter_map(|directory| directory.authority_problem.as_ref());
    let authority_findings = authority_problems.map(|problem| {
        Finding::problem(
            format!("the files of the authority cannot be used: {problem}"),
            "restore them: the control plane uses the previous authority until it stops, and cannot start again without \
             these files",
        )
    });
    let sidecar_findings = inputs.workloads.iter().flat_map(|workload| {
        let unwritable_conditions =
            workload.conditions.iter().filter(|condition| condition.kind == "state-unwritable");
        unwritable_conditions.map(|condition| {
            let ConditionStatus { subject, reason, .. } = condition;
            let name = &workload.name;
            let message =
                format!("the sidecar of {name} cannot write its state in {subject}: {reason}");
            Finding::problem(message, hint)
        })
    });
    limit_findings(
        control_plane_findings.chain(authority_findings).chain(sidecar_findings).collect(),
        "leno get workloads -o json",
    )
}

/// Reports conditions of kinds that a later release introduced.
fn check_unknown_conditions(inputs: &FindingInputs) -> Vec<Finding> {
    const KNOWN_KINDS: [&str; 8] = [
        "listener-closed",
        "dns-closed",
        "circuit-open",
        "detection-delayed",
        "plaintext-rejected",
        "state-unwritable",
        "table-full",
        "log-lines-dropped",
    ];
    let findings = inputs.workloads.iter().flat_map(|workload| {
        let unknown_conditions = workload
            .conditions
            .iter()
            .filter(|condition| !KNOWN_KINDS.contains(&condition.kind.as_str()));
        unknown_conditions.map(|condition| {
            let ConditionStatus { kind, subject, reason } = condition;
            let message = format!("{}: {kind} {subject}: {reason}", workload.name);
            Finding::problem(
                message,
                "its sidecar runs another release: see the documentation of that release",
            )
        })
    });
    limit_findings(findings.collect(), "leno get workloads -o json")
}

#[cfg(test)]
mod tests {
    use crate::status::DirectoryStatus;
    use leno_registry::NODE_NETWORK_LABEL;
    use serde_json::json;

    use super::super::tests::{healthy_inputs, workload_status};
    use super::*;

    fn running_application(ports: &[(u16, &str)]) -> ApplicationStatus {
        ApplicationStatus {
            state: "running".to_owned(),
            pid: Some(7),
            restarts: 0,
            crash_looping: false,
            last_exit: None,
            since_seconds: 1.0,
            ports: ports.iter().map(|(port, problem)| (*port, (*problem).to_owned())).collect(),
        }
    }

    #[test]
    fn each_condition_is_a_finding_with_its_severity() {
        let condition =
            |kind: &str| json!([{ "kind": kind, "subject": "somewhere", "reason": "some cause" }]);
        let application = |crash_looping: bool, ports: serde_json::Value| {
            json!({
                "state": "restarting", "pid": null, "restarts": 7, "crash_looping": crash_looping,
                "last_exit": "exit status: 1", "since_seconds": 1.0, "ports": ports,
            })
        };
        for (key, value, expected, severity) in [
            ("conditions", condition("listener-closed"), "somewhere is closed", Severity::Problem),
            (
                "conditions",
                condition("dns-closed"),
                "the DNS listener somewhere is closed",
                Severity::Problem,
            ),
            ("conditions", condition("circuit-open"), "to somewhere is open", Severity::Problem),
            ("conditions", condition("state-unwritable"), "in somewhere: some", Severity::Problem),
            ("conditions", condition("table-full"), "somewhere is full", Severity::Notice),
            (
                "conditions",
                condition("log-lines-dropped"),
                "drops log some cause",
                Severity::Notice,
            ),
            (
                "conditions",
                condition("detection-delayed"),
                "somewhere declares no protocol: some cause",
                Severity::Notice,
            ),
            (
                "conditions",
                condition("plaintext-rejected"),
                "somewhere rejects clients without mutual TLS: some cause",
                Severity::Notice,
            ),
            ("conditions", condition("new-kind"), "new-kind somewhere", Severity::Problem),
            ("application", application(true, json!({})), "restarts: 7", Severity::Problem),
            ("application", application(false, json!({})), "has exited", Severity::Notice),
            (
                "application",
                application(true, json!({"9080": "python3 (process 7) listens there"})),
                "port 9080",
                Severity::Problem,
            ),
        ] {
            let mut status = serde_json::to_value(workload_status("connected")).unwrap();
            status[key] = value;
            let mut inputs = healthy_inputs();
            inputs.workloads = vec![serde_json::from_value(status).unwrap()];
            let findings = check_conditions(&inputs);
            let matching_finding =
                findings.iter().find(|finding| finding.message.contains(expected));
            assert_eq!(
                matching_finding.map(|finding| finding.severity),
                Some(severity),
                "{expected}"
            );
        }
        assert!(check_conditions(&healthy_inputs()).is_empty());
    }

    #[test]
    fn a_rejected_client_with_a_sidecar_has_its_own_hint() {
        let hint = |address: &str, labels: serde_json::Value, reason: &str| {
            let mut client = serde_json::to_value(workload_status("connected")).unwrap();
            client["address"] = json!(address);
            client["labels"] = labels;
            let mut server = serde_json::to_value(workload_status("connected")).unwrap();
            server["conditions"] =
                json!([{ "kind": "plaintext-rejected", "subject": "port 8080", "reason": reason }]);
            let mut inputs = healthy_inputs();
            let status = |value| serde_json::from_value(value).unwrap();
            inputs.workloads = vec![status(client), status(server)];
            check_conditions(&inputs).pop().unwrap().hint
        };
        let hint_text = hint("10.0.0.1", json!({}), "10.0.0.1");
        assert!(hint_text.starts_with("10.0.0.1 bypass the mesh"), "{hint_text}");
        assert!(!hint_text.contains("start these clients"), "{hint_text}");
        let hint_text = hint("10.0.0.1", json!({}), "10.0.0.1, 10.0.0.2");
        assert!(
            hint_text.contains("10.0.0.1 bypass") && hint_text.contains("start these clients"),
            "{hint_text}"
        );
        for (address, labels) in [
            ("10.0.0.9", json!({})),
            ("127.0.0.1", json!({})),
            ("10.0.0.1", json!({NODE_NETWORK_LABEL: ""})),
        ] {
            let hint_text = hint(address, labels, "127.0.0.1, 10.0.0.1");
            assert!(hint_text.starts_with("start these clients"), "{address}: {hint_text}");
        }
    }

    /// A pod of a dual-stack cluster may call from either of its addresses.
    #[test]
    fn a_rejected_client_is_recognized_by_each_of_its_addresses() {
        let mut client = workload_status("connected");
        client.address = "10.0.0.1".to_owned();
        client.other_addresses = vec!["fd00::1".to_owned()];
        let mut server = serde_json::to_value(workload_status("connected")).unwrap();
        server["conditions"] =
            json!([{ "kind": "plaintext-rejected", "subject": "port 8080", "reason": "fd00::1" }]);
        let mut inputs = healthy_inputs();
        inputs.workloads = vec![client, serde_json::from_value(server).unwrap()];
        let hint_text = check_conditions(&inputs).pop().unwrap().hint;
        assert!(hint_text.starts_with("fd00::1 bypass the mesh"), "{hint_text}");
        assert!(hint_text.ends_with(PlaintextClient::Member.hint()), "{hint_text}");
    }

    #[test]
    fn each_problem_of_a_port_has_its_own_hint() {
        for (problem, hint) in [
            ("no process listens on the port", "make the application listen on this port"),
            ("the readiness check fails", "spec.readiness"),
            ("python3 (process 7) listens there", "stop that"),
        ] {
            let mut inputs = healthy_inputs();
            let mut workload = workload_status("connected");
            workload.application = Some(running_application(&[(9080, problem)]));
            inputs.workloads = vec![workload];
            let findings = check_conditions(&inputs);
            assert!(findings[0].hint.contains(hint), "{problem}: {}", findings[0].hint);
        }
    }

    #[test]
    fn a_rejected_join_is_a_problem_while_its_workload_has_no_sidecar() {
        let join = |exists: bool| RejectedJoinStatus {
            workload: "shop/cart-1".to_owned(),
            exists,
            count: 3,
            age_seconds: 1,
            reason: "the join token was used already".to_owned(),
        };
        for (exists, sidecar, severity) in [
            (true, "absent", Severity::Problem),
            (true, "connected", Severity::Notice),
            (false, "connected", Severity::Notice),
        ] {
            let mut inputs = healthy_inputs();
            inputs.workloads = vec![workload_status(sidecar)];
            inputs.rejected_joins = vec![join(exists)];
            let findings = check_conditions(&inputs);
            assert_eq!(findings[0].severity, severity, "{findings:?}");
            assert!(findings[0].hint.contains("leno token shop/cart-1"), "{findings:?}");
            // A token for another sidecar would replace the one of `leno up`.
            inputs.status.supervised = true;
            let hint = &check_conditions(&inputs)[0].hint;
            assert_eq!(hint.contains("leno token"), !exists, "{hint}");
            assert_eq!(hint.contains("stop the one"), exists && sidecar == "connected");
        }
    }

    #[test]
    fn a_data_directory_that_cannot_be_written_is_a_problem() {
        let mut inputs = healthy_inputs();
        let directory = "/data".to_owned();
        let problem = Some("full".to_owned());
        let authority_problem = Some("there is no `ca.pem`".to_owned());
        let status =
            DirectoryStatus { directory, problem, authority_problem, log_lines_dropped: 3 };
        inputs.directory = Some(status);
        let findings = check_conditions(&inputs);
        for (index, end, severity) in [
            (0, "/data: full", Severity::Problem),
            (1, "the authority cannot be used: there is no `ca.pem`", Severity::Problem),
            (2, "is blocked: 3", Severity::Notice),
        ] {
            assert!(findings[index].message.ends_with(end), "{findings:?}");
            assert_eq!(findings[index].severity, severity);
        }
    }
}
