//! A pod becomes a workload: a member of the mesh with a sidecar, and without one what gateways reach.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_model::{
    Admission, GATEWAY_LABEL, Name, Protocol, Service, ServiceAccount, TargetPort, Uid, Weight,
    Workload, WorkloadName, WorkloadPort,
};
use leno_registry::{NODE_NETWORK_LABEL, Rejected, Warning};

use super::choices::Choices;
use super::image::images_of_others;
use super::marks::unknown_marks;
use super::{AdmissionReading, SHOWN_CHARACTERS_MAX, is_tcp, place, selects, spoken};
use crate::words::{
    CONTROL, INTERCEPT_CONTAINER, MESHED, MESHED_BY_SIDECAR, PROXY_CONTAINER, SYSTEM_NAMESPACE,
    WEIGHT,
};

/// A pod that is a member of the mesh, or that gateways may reach in clear text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The workload, with the ports that its containers declare.
    pub workload: Workload,
    /// What its annotations say about who is let in, which is not in the workload yet.
    pub admission: AdmissionReading,
    /// The node that it runs on.
    pub node: Option<String>,
    /// What its annotations say and nobody heeds.
    pub warnings: Vec<Warning>,
    /// The choices of its author that a floor may overrule.
    pub choices: Choices,
}

/// The workload that a pod is: `None` when it has no address yet or has ended.
///
/// # Errors
/// Why it cannot be a workload although it has a sidecar.
pub fn member(pod: &Pod) -> Result<Option<Member>, Box<Rejected>> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    if is_meshed(pod, spec) {
        return read(pod, spec);
    }
    // A pod in the network of its node cannot have a sidecar: a floor that requires one is not about it.
    let choices = |choices: Choices| match spec.host_network {
        Some(true) => Choices::default(),
        Some(false) | None => Choices { images: BTreeSet::new(), ..choices },
    };
    // Who never asked for the mesh is told nothing of it.
    let plain = read(pod, spec).unwrap_or_default().map(|member| Member {
        workload: Workload { sidecar: false, ..member.workload },
        admission: AdmissionReading::NONE,
        node: member.node,
        warnings: Vec::new(),
        choices: choices(member.choices),
    });
    Ok(plain)
}

/// Where a pod is that has addresses of its own.
#[must_use]
pub fn addresses(pod: &Pod) -> BTreeSet<IpAddr> {
    let is_of_node = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let status = pod.status.as_ref().filter(|_| !is_of_node);
    status.map(addresses_in).unwrap_or_default()
}

/// All of a pod's addresses: of both versions of IP, where the cluster has both.
fn addresses_in(status: &PodStatus) -> BTreeSet<IpAddr> {
    let others = status.pod_ips.iter().flatten().map(|it| it.ip.as_str());
    let all = status.pod_ip.as_deref().into_iter().chain(others);
    all.filter_map(address_in).collect()
}

/// An address in the one form in which addresses are compared.
fn address_in(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// The workload, as if it had a sidecar.
fn read(pod: &Pod, spec: &PodSpec) -> Result<Option<Member>, Box<Rejected>> {
    let meta = &pod.metadata;
    let Some(status) = &pod.status else { return Ok(None) };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(None);
    }
    let address = status.pod_ip.as_deref().and_then(address_in);
    let Some(address) = address else { return Ok(None) };
    let mut other_addresses = addresses_in(status);
    other_addresses.remove(&address);
    let refused = |field: &str, problem: String, remedy: &str| {
        Box::new(Rejected { at: place(meta, "Pod", field), problem, remedy: remedy.to_owned() })
    };
    let name = |text: Option<&str>, field: &str| {
        Name::new(text.unwrap_or_default())
            .map_err(|error| refused(field, error.to_string(), "use another name"))
    };
    let namespace = name(meta.namespace.as_deref(), "metadata.namespace")?;
    let account = spec.service_account_name.as_deref().filter(|text| !text.is_empty());
    let account = name(Some(account.unwrap_or(ACCOUNT_DEFAULT)), "spec.serviceAccountName")?;
    if namespace.as_str() == SYSTEM_NAMESPACE && account.as_str() == CONTROL {
        // Whoever has it is taken for the control plane by every sidecar.
        let problem = format!("{SYSTEM_NAMESPACE}/{CONTROL} is the account of the control plane");
        let remedy = "use another account, or no sidecar";
        return Err(refused("spec.serviceAccountName", problem, remedy));
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let says_ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
    let is_deleted = meta.deletion_timestamp.is_some();
    let (weight, warning) = weight(meta);
    let mut labels = meta.labels.clone().unwrap_or_default();
    if spec.host_network == Some(true) {
        labels.insert(NODE_NETWORK_LABEL.to_owned(), String::new());
    }
    let workload = Workload {
        account: ServiceAccount { namespace: namespace.clone(), name: account },
        name: WorkloadName { namespace, name: name(meta.name.as_deref(), "metadata.name")? },
        uid: meta.uid.as_deref().and_then(|uid| Uid::new(uid).ok()),
        labels,
        ports: declared_ports(spec),
        address,
        other_addresses,
        run: Vec::new(),
        run_options: Box::default(),
        doors: Vec::new(),
        admission: Admission::default(),
        weight,
        ready: says_ready && !is_deleted,
        terminating: says_ready && is_deleted,
        sidecar: true,
    };
    let node = spec.node_name.clone();
    let marks = images_of_others(meta, "Pod").into_iter().chain(unknown_marks(meta, "Pod"));
    let warnings = warning.into_iter().chain(marks).collect();
    let (admission, choices) = (AdmissionReading::of(meta, "Pod"), Choices::of_pod(pod));
    Ok(Some(Member { workload, admission, node, warnings, choices }))
}

/// By its annotation; one that says nothing sensible is none, and is told.
fn weight(meta: &ObjectMeta) -> (Weight, Option<Warning>) {
    let said = meta.annotations.as_ref().and_then(|annotations| annotations.get(WEIGHT));
    let Some(said) = said else { return (Weight::default(), None) };
    if let Some(weight) = said.parse().ok().and_then(Weight::new) {
        return (weight, None);
    }
    let shown: String = said.chars().take(SHOWN_CHARACTERS_MAX).collect();
    let usual = Weight::default();
    let warning = Warning {
        at: place(meta, "Pod", &format!("metadata.annotations[{WEIGHT:?}]")),
        problem: format!("{shown:?} is no weight, and {} is in force", usual.number()),
        remedy: "use a number from 1 to 1000, or remove it".to_owned(),
    };
    (usual, Some(warning))
}

/// The workload with the target ports, given as numbers, of the services that select it: a port
/// need not be declared by a container.
#[must_use]
pub fn with_target_ports<'a>(
    workload: &Workload,
    services: impl Iterator<Item = &'a Service>,
) -> Workload {
    let mut workload = workload.clone();
    // A gateway's proxy has no application: what it serves is for its gateway to say.
    if workload.sidecar && workload.labels.contains_key(GATEWAY_LABEL) {
        return workload;
    }
    for service in services {
        if service.name.namespace != workload.name.namespace
            || !selects(&service.selector, &workload.labels)
        {
            continue;
        }
        for port in &service.ports {
            if let TargetPort::Number(number) = port.target
                && !workload.ports.iter().any(|known| known.port == number)
            {
                let protocol = Protocol::Detect;
                workload.ports.push(WorkloadPort { name: None, port: number, protocol });
            }
        }
    }
    // In an order that does not hang on that of the services.
    workload.ports.sort_by_key(|port| port.port);
    workload
}

/// By its label, or because it has a sidecar's container. In the network namespace of a machine
/// there is no redirection, so that only who says so is a member.
fn is_meshed(pod: &Pod, spec: &PodSpec) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(MESHED));
    if label.is_some_and(|value| value == MESHED_BY_SIDECAR) {
        return true;
    }
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    spec.host_network != Some(true) && containers.any(|it| it.name == PROXY_CONTAINER)
}

/// The TCP ports of all containers that run as long as the application does.
fn declared_ports(spec: &PodSpec) -> Vec<WorkloadPort> {
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers =
        spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(stays));
    let of_application =
        containers.filter(|it| ![PROXY_CONTAINER, INTERCEPT_CONTAINER].contains(&&*it.name));
    let mut ports: Vec<WorkloadPort> = Vec::new();
    for port in of_application.flat_map(|container| container.ports.iter().flatten()) {
        let Ok(number) = u16::try_from(port.container_port) else { continue };
        if number == 0
            || !is_tcp(port.protocol.as_deref())
            || ports.iter().any(|known| known.port == number)
        {
            continue;
        }
        let written = port.name.as_deref();
        let name = written.and_then(|text| Name::new(text).ok());
        // The first container that has it gives a name its meaning.
        let name = name.filter(|name| !ports.iter().any(|known| known.name.as_ref() == Some(name)));
        let protocol = written.and_then(spoken).unwrap_or_default();
        ports.push(WorkloadPort { name, port: number, protocol });
    }
    ports.sort_by_key(|port| port.port);
    ports
}

/// The account of a pod that names none.
const ACCOUNT_DEFAULT: &str = "default";

#[cfg(test)]
mod tests;
