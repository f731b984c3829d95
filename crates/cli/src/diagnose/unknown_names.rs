//! Builds the diagnosis steps for host names that the application called and that match no service.

use std::collections::BTreeSet;

use super::steps::{DiagnosisStep, to_host_name};

/// Returns the steps for called services that do not exist. They are notices for the owner of the workload, because
/// the mesh works. At most two steps: one for names in existing namespaces, which may be mistyped, and one for all
/// other names, which are hosts outside the mesh.
///
/// Each name has the form `namespace/service`, because sidecars read a host name as `service.namespace`: the host
/// `example.com` arrives as `com/example`.
pub(super) fn unknown_name_steps(
    called_services: &[String],
    namespaces: &BTreeSet<&str>,
) -> Vec<DiagnosisStep> {
    let has_known_namespace = |name: &&String| {
        name.split_once('/').is_none_or(|(namespace, _)| namespaces.contains(namespace))
    };
    let (missing_services, external_names): (Vec<&String>, Vec<&String>) =
        called_services.iter().partition(has_known_namespace);
    let external_hosts: Vec<String> =
        external_names.into_iter().map(|name| to_host_name(name)).collect();
    let service_message = match missing_services.as_slice() {
        [] => None,
        [service] => Some(format!("it called {service}: no such service")),
        _ => Some(format!("it called {}: no such services", join_first_names(&missing_services))),
    };
    let host_message = match external_hosts.as_slice() {
        [] => None,
        [host] => Some(format!(
            "it called {host}: a host outside the mesh, as there is no such namespace"
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

/// Joins the first names of a list, and adds the number of omitted names.
fn join_first_names<S: AsRef<str>>(names: &[S]) -> String {
    let first_names: Vec<&str> = names.iter().take(MAX_LISTED_NAMES).map(S::as_ref).collect();
    match names.len() - first_names.len() {
        0 => first_names.join(", "),
        omitted_count => format!("{} and {omitted_count} more", first_names.join(", ")),
    }
}

/// The maximum number of names in a message.
const MAX_LISTED_NAMES: usize = 5;

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
