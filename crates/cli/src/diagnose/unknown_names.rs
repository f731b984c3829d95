//! Steps of a diagnosis for names that the application called and that no service has.

use std::collections::BTreeSet;

use super::steps::{DiagnosisStep, service_host};

/// Returns the steps for called names that are not services: information for the owner of the workload, not a
/// failure of the mesh. A name in a missing namespace is a host outside the mesh.
pub(super) fn unknown_name_steps(
    names: &[String],
    namespaces: &BTreeSet<&str>,
) -> Vec<DiagnosisStep> {
    let is_inside = |name: &&String| {
        name.split_once('/').is_none_or(|(namespace, _)| namespaces.contains(namespace))
    };
    let (unknown_services, external_hosts): (Vec<&String>, Vec<&String>) =
        names.iter().partition(is_inside);
    let unknown_services: Vec<String> = unknown_services.into_iter().cloned().collect();
    let external_hosts: Vec<String> =
        external_hosts.into_iter().map(|name| service_host(name)).collect();
    let service_message = match unknown_services.as_slice() {
        [] => None,
        [name] => Some(format!("it called {name}: no such service")),
        _ => Some(format!("it called {}: no such services", join_first_names(&unknown_services))),
    };
    let host_message = match external_hosts.as_slice() {
        [] => None,
        [name] => Some(format!(
            "it called {name}: a host outside the mesh, as there is no such namespace"
        )),
        _ => Some(format!(
            "it called {}: hosts outside the mesh, as there are no such namespaces",
            join_first_names(&external_hosts)
        )),
    };
    let service_hint =
        "check the host name in the application; list the services: leno get services";
    let host_hint = "spec.egress of the MeshConfig permits or denies hosts outside the mesh; for a service, \
                    check the namespace in the host name";
    let service_step =
        service_message.map(|message| DiagnosisStep::notice("names", message, service_hint));
    let host_step = host_message.map(|message| DiagnosisStep::notice("names", message, host_hint));
    service_step.into_iter().chain(host_step).collect()
}

/// Joins the first names of a list, with the number of omitted names.
fn join_first_names(names: &[String]) -> String {
    let first_names = names.get(..names.len().min(MAX_UNKNOWN_NAMES)).unwrap_or_default();
    match names.len() - first_names.len() {
        0 => first_names.join(", "),
        omitted_count => format!("{} and {omitted_count} more", first_names.join(", ")),
    }
}

/// The maximum number of unknown names in a list.
const MAX_UNKNOWN_NAMES: usize = 5;

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
