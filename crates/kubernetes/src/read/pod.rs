//! Converts a pod into a workload: a mesh member with a sidecar, or an unmeshed endpoint that gateways may
//! route to.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_model::{
    AdmissionSettings, GATEWAY_LABEL, Name, Protocol, Service, ServiceAccount, TargetPort, Uid,
    Weight, Workload, WorkloadName, WorkloadPort,
};
use leno_registry::{NODE_NETWORK_LABEL, RejectedDocument, Warning};

use super::image::foreign_image_warnings;
use super::sidecar_settings::SidecarSettings;
use super::unknown_annotations::unknown_annotation_warnings;
use super::{
    AdmissionReading, MAX_QUOTED_CHARACTERS, field_location, is_tcp, matches_selector,
    named_protocol,
};
use crate::well_known::{
    CONTROL, INIT_CONTAINER, MESHED, MESHED_BY_SIDECAR, PROXY_CONTAINER, SYSTEM_NAMESPACE, WEIGHT,
};

/// A pod that is a member of the mesh, or that gateways may reach in plaintext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshPod {
    /// The workload, with the ports that its containers declare.
    pub workload: Workload,
    /// The admission annotations, which are not in the workload yet.
    pub admission: AdmissionReading,
    /// The name of the node on which the pod runs; `None` before it is scheduled.
    pub node: Option<String>,
    /// Warnings about annotations without effect.
    pub warnings: Vec<Warning>,
    /// The settings that the mesh floor (`spec.floor` of the MeshConfig) may override.
    pub sidecar_settings: SidecarSettings,
}

/// Converts a pod. Returns `None` if it has no address yet or has terminated.
///
/// # Errors
/// The reason that it cannot be a workload although it has a sidecar.
pub fn read_pod(pod: &Pod) -> Result<Option<MeshPod>, Box<RejectedDocument>> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    if is_meshed(pod, spec) {
        return convert_pod(pod, spec);
    }
    // A pod in the host network cannot have a sidecar, so a floor that requires one does not apply.
    let unmeshed_settings = |sidecar_settings: SidecarSettings| match spec.host_network {
        Some(true) => SidecarSettings::default(),
        Some(false) | None => SidecarSettings { images: BTreeSet::new(), ..sidecar_settings },
    };
    // Unmeshed pods cause neither rejections nor warnings.
    let unmeshed = convert_pod(pod, spec).unwrap_or_default().map(|mesh_pod| MeshPod {
        workload: Workload { sidecar: false, ..mesh_pod.workload },
        admission: AdmissionReading::NONE,
        node: mesh_pod.node,
        warnings: Vec::new(),
        sidecar_settings: unmeshed_settings(mesh_pod.sidecar_settings),
    });
    Ok(unmeshed)
}

/// Returns the addresses of a pod that has its own network; empty for a pod in the network of its node.
#[must_use]
pub fn pod_addresses(pod: &Pod) -> BTreeSet<IpAddr> {
    let is_host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let status = pod.status.as_ref().filter(|_| !is_host_network);
    status.map(all_addresses).unwrap_or_default()
}

/// Returns all addresses of a pod: both IP families in a dual-stack cluster.
fn all_addresses(status: &PodStatus) -> BTreeSet<IpAddr> {
    let other_ips = status.pod_ips.iter().flatten().map(|pod_ip| pod_ip.ip.as_str());
    let ips = status.pod_ip.as_deref().into_iter().chain(other_ips);
    ips.filter_map(parse_address).collect()
}

/// Parses an address into the canonical form that is used for comparison.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Converts a pod as if it had a sidecar.
fn convert_pod(pod: &Pod, spec: &PodSpec) -> Result<Option<MeshPod>, Box<RejectedDocument>> {
    let meta = &pod.metadata;
    let Some(status) = &pod.status else { return Ok(None) };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(None);
    }
    let address = status.pod_ip.as_deref().and_then(parse_address);
    let Some(address) = address else { return Ok(None) };
    let mut other_addresses = all_addresses(status);
    other_addresses.remove(&address);
    let rejection = |field: &str, problem: String, hint: &str| {
        Box::new(RejectedDocument {
            location: field_location(meta, "Pod", field),
            problem,
            hint: hint.to_owned(),
        })
    };
    let parse_name = |text: Option<&str>, field: &str| {
        Name::new(text.unwrap_or_default())
            .map_err(|error| rejection(field, error.to_string(), "use another name"))
    };
    let namespace = parse_name(meta.namespace.as_deref(), "metadata.namespace")?;
    let account_name = spec.service_account_name.as_deref().filter(|text| !text.is_empty());
    let account =
        parse_name(Some(account_name.unwrap_or(DEFAULT_ACCOUNT)), "spec.serviceAccountName")?;
    if namespace.as_str() == SYSTEM_NAMESPACE && account.as_str() == CONTROL {
        // Every sidecar would accept this account as the control plane.
        let problem = format!("{SYSTEM_NAMESPACE}/{CONTROL} is the account of the control plane");
        let hint = "use another account, or no sidecar";
        return Err(rejection("spec.serviceAccountName", problem, hint));
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_ready =
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_deleted = meta.deletion_timestamp.is_some();
    let (weight, weight_warning) = read_weight(meta);
    let mut labels = meta.labels.clone().unwrap_or_default();
    if spec.host_network == Some(true) {
        labels.insert(NODE_NETWORK_LABEL.to_owned(), String::new());
    }
    let workload = Workload {
        account: ServiceAccount { namespace: namespace.clone(), name: account },
        name: WorkloadName { namespace, name: parse_name(meta.name.as_deref(), "metadata.name")? },
        uid: meta.uid.as_deref().and_then(|uid| Uid::new(uid).ok()),
        labels,
        ports: declared_ports(spec),
        address,
        other_addresses,
        run: Vec::new(),
        run_options: Box::default(),
        outbound_listeners: Vec::new(),
        admission: AdmissionSettings::default(),
        weight,
        ready: is_ready && !is_deleted,
        terminating: is_ready && is_deleted,
        sidecar: true,
    };
    let node = spec.node_name.clone();
    let annotation_warnings = foreign_image_warnings(meta, "Pod")
        .into_iter()
        .chain(unknown_annotation_warnings(meta, "Pod"));
    let warnings = weight_warning.into_iter().chain(annotation_warnings).collect();
    let (admission, sidecar_settings) =
        (AdmissionReading::from_annotations(meta, "Pod"), SidecarSettings::from_pod(pod));
    Ok(Some(MeshPod { workload, admission, node, warnings, sidecar_settings }))
}

/// Returns the weight from the annotation. An invalid value is ignored, with a warning.
fn read_weight(meta: &ObjectMeta) -> (Weight, Option<Warning>) {
    let annotation = meta.annotations.as_ref().and_then(|annotations| annotations.get(WEIGHT));
    let Some(annotation) = annotation else { return (Weight::default(), None) };
    if let Some(weight) = annotation.parse().ok().and_then(Weight::new) {
        return (weight, None);
    }
    let quoted: String = annotation.chars().take(MAX_QUOTED_CHARACTERS).collect();
    let default = Weight::default();
    let warning = Warning {
        location: field_location(meta, "Pod", &format!("metadata.annotations[{WEIGHT:?}]")),
        problem: format!("{quoted:?} is not a weight; {} is in force", default.as_u16()),
        hint: "use a number from 1 to 1000, or remove it".to_owned(),
    };
    (default, Some(warning))
}

/// Returns the workload with the numeric target ports of the services that select it, because containers need not
/// declare their ports.
#[must_use]
pub fn with_target_ports<'a>(
    workload: &Workload,
    services: impl Iterator<Item = &'a Service>,
) -> Workload {
    let mut workload = workload.clone();
    // The proxy of a gateway has no application; its gateway determines its ports.
    if workload.sidecar && workload.labels.contains_key(GATEWAY_LABEL) {
        return workload;
    }
    for service in services {
        if service.name.namespace != workload.name.namespace
            || !matches_selector(&service.selector, &workload.labels)
        {
            continue;
        }
        for port in &service.ports {
            if let TargetPort::Number(number) = port.target
                && !workload.ports.iter().any(|declared| declared.port == number)
            {
                let protocol = Protocol::Detect;
                workload.ports.push(WorkloadPort { name: None, port: number, protocol });
            }
        }
    }
    // Sort, to be independent of the order of services.
    workload.ports.sort_by_key(|port| port.port);
    workload
}

/// Returns true if the pod has the sidecar label or a sidecar container. In the host network only the label
/// counts, because there is no redirection.
fn is_meshed(pod: &Pod, spec: &PodSpec) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(MESHED));
    if label.is_some_and(|value| value == MESHED_BY_SIDECAR) {
        return true;
    }
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    spec.host_network != Some(true) && containers.any(|container| container.name == PROXY_CONTAINER)
}

/// Returns the TCP ports of all containers that run as long as the application: regular containers and native
/// sidecars.
fn declared_ports(spec: &PodSpec) -> Vec<WorkloadPort> {
    let is_native_sidecar =
        |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten().filter(is_native_sidecar));
    let application_containers = containers
        .filter(|container| ![PROXY_CONTAINER, INIT_CONTAINER].contains(&&*container.name));
    let mut ports: Vec<WorkloadPort> = Vec::new();
    for port in application_containers.flat_map(|container| container.ports.iter().flatten()) {
        let Ok(port_number) = u16::try_from(port.container_port) else { continue };
        if port_number == 0
            || !is_tcp(port.protocol.as_deref())
            || ports.iter().any(|declared| declared.port == port_number)
        {
            continue;
        }
        let port_name = port.name.as_deref();
        let parsed_name = port_name.and_then(|text| Name::new(text).ok());
        // The first container with a port name defines it.
        let name = parsed_name
            .filter(|name| !ports.iter().any(|declared| declared.name.as_ref() == Some(name)));
        let protocol = port_name.and_then(named_protocol).unwrap_or_default();
        ports.push(WorkloadPort { name, port: port_number, protocol });
    }
    ports.sort_by_key(|port| port.port);
    ports
}

/// The default service account of pods.
const DEFAULT_ACCOUNT: &str = "default";

#[cfg(test)]
mod tests;
