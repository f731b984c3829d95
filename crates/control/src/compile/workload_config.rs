//! Compiles the proxy configuration of a sidecar: its workload, and the rules of its inbound listener.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    CallerAttributes, LaneRule, PortCheck, PortLimits, Protocol, RequestNeed, Service, ServiceName,
    ServicePort, ServiceRetry, TargetPort, Workload, WorkloadConfig, WorkloadPort, is_server_first,
};

use super::access::{compile_access, compile_inbound_policy};
use super::boundary::{compile_egress_rules, compile_ingress_rules};
use super::service::{select_labels, target_port};
use crate::mesh::Mesh;

/// Compiles the proxy configuration of a workload.
pub(crate) fn compile_workload_config(mesh: &Mesh, workload: &Workload) -> WorkloadConfig {
    WorkloadConfig {
        workload: workload.name.clone(),
        account: workload.account.clone(),
        trust_domain: mesh.config().trust_domain.clone(),
        address: workload.address,
        ports: application_ports(mesh, workload),
        port_services: port_services(mesh, workload),
        outbound_listeners: workload.outbound_listeners.clone(),
        access: compile_access(mesh, workload),
        revoked: mesh.config().revoked.clone(),
        revoked_workloads: mesh.revocations().workloads.clone(),
        ca_generation: mesh.ca_generation(),
        caller: caller_attributes(mesh, workload),
        lanes: port_lanes(mesh, workload),
        inbound: compile_inbound_policy(mesh, workload),
        limits: port_limits(mesh, workload),
        observability: (*mesh.config().observability).clone(),
        egress: mesh.config().egress,
        mtls: mesh.config().mtls_mode_of(workload),
        gateway: mesh.gateway_of(workload).cloned(),
        ingress_rules: compile_ingress_rules(mesh, workload),
        egress_rules: compile_egress_rules(mesh, workload),
        request_checks: port_checks(mesh, workload),
        retries: service_retries(mesh, workload),
    }
}

/// Returns the application's ports. In a cluster, ports need not be declared, so the target ports of services are
/// included. Elsewhere only declared ports are included. If a port declares no protocol, the services' protocol applies.
pub(super) fn application_ports(mesh: &Mesh, workload: &Workload) -> Vec<WorkloadPort> {
    let mut ports = workload.ports.clone();
    if !workload.address.is_loopback() {
        for port in mesh.services_of(&workload.name).flat_map(|service| &service.ports) {
            if let TargetPort::Number(port_number) = port.target
                && ports.iter().all(|listed| listed.port != port_number)
            {
                let protocol = Protocol::Detect;
                ports.push(WorkloadPort { name: None, port: port_number, protocol });
            }
        }
    }
    for port in ports.iter_mut().filter(|port| port.protocol == Protocol::Detect) {
        port.protocol = declared_protocol(mesh, workload, port.port);
        if port.protocol == Protocol::Detect
            && is_server_first_by_convention(mesh, workload, port)
            && !inspects_requests(mesh, workload, port.port)
        {
            port.protocol = Protocol::Tcp;
        }
    }
    ports
}

/// True if the server sends first by convention: by the name or number of the port, or of a service port that
/// forwards there.
fn is_server_first_by_convention(mesh: &Mesh, workload: &Workload, port: &WorkloadPort) -> bool {
    let services = mesh.services_of(&workload.name);
    let mut ports = services.flat_map(|service| &service.ports);
    is_server_first(port.name.as_ref(), port.port)
        || ports.any(|service_port| {
            service_port.is_server_first()
                && target_port(&service_port.target, workload) == Some(port.port)
        })
}

/// True if a policy inspects requests at a port of a workload. The protocol of such a port is detected, even if the
/// port's name or number is that of a server-first protocol.
fn inspects_requests(mesh: &Mesh, workload: &Workload, port_number: u16) -> bool {
    let services = mesh.services_of(&workload.name);
    let mut ports =
        services.flat_map(|service| service.ports.iter().map(move |port| (&service.name, port)));
    denies_requests(mesh, workload, port_number)
        || ports.any(|(service, port)| {
            let mut needs = mesh.inbound_needs(service, port.port);
            target_port(&port.target, workload) == Some(port_number)
                && needs.any(|need| need != RequestNeed::None)
        })
}

/// True if an access policy denies some requests at a port of a workload.
fn denies_requests(mesh: &Mesh, workload: &Workload, port_number: u16) -> bool {
    let mut rules = mesh.access_policies_of(workload).flat_map(|policy| &policy.rules);
    rules.any(|rule| rule.request_need() != RequestNeed::None && rule.ports.contains(port_number))
}

/// Returns the protocol of a port that declares none: TCP for well-known server-first protocols, unless a
/// policy inspects requests; otherwise detection.
pub(super) fn protocol_by_convention(
    mesh: &Mesh,
    service: &Service,
    port: &ServicePort,
) -> Protocol {
    let is_detected = || {
        let mut needs = mesh.request_needs(&service.name, port.port);
        let denies = |workload: &Workload| {
            let port_number = target_port(&port.target, workload);
            port_number.is_some_and(|port_number| denies_requests(mesh, workload, port_number))
        };
        needs.any(|need| need != RequestNeed::None)
            || mesh.service_workloads(&service.name).any(denies)
    };
    match port.is_server_first() && !is_detected() {
        true => Protocol::Tcp,
        false => Protocol::Detect,
    }
}

/// Returns the protocol that the services forwarding to a port declare, if they agree; otherwise detection. HTTP/2
/// and gRPC agree, because gRPC uses HTTP/2.
fn declared_protocol(mesh: &Mesh, workload: &Workload, port_number: u16) -> Protocol {
    let ports = mesh.services_of(&workload.name).flat_map(|service| &service.ports);
    let forwarding_ports =
        ports.filter(|port| target_port(&port.target, workload) == Some(port_number));
    let protocols: BTreeSet<Protocol> = forwarding_ports.filter_map(|port| port.protocol).collect();
    let is_http2 = |protocol: &Protocol| matches!(protocol, Protocol::Http2 | Protocol::Grpc);
    let first_protocol = protocols.first().copied();
    first_protocol
        .filter(|_| protocols.len() == 1 || protocols.iter().all(is_http2))
        .unwrap_or_default()
}

/// Returns the attributes of a workload that tag rules match; empty if no rule matches attributes.
fn caller_attributes(mesh: &Mesh, workload: &Workload) -> CallerAttributes {
    let matched_attributes = mesh.tags().matched_attributes();
    if !matched_attributes.has_rules() {
        return CallerAttributes::default();
    }
    let services = mesh.services_of(&workload.name).map(|service| service.name.clone());
    // Sermant has a separate field for each of these two labels; all other labels are parameters.
    let is_parameter = |label: &String| !matches!(label.as_str(), "version" | "zone");
    CallerAttributes {
        services: services.collect(),
        tags: select_labels(workload, |label| matched_attributes.matches_label(label)),
        has_parameters: workload.labels.keys().any(is_parameter),
    }
}

/// Returns the lane rules at each port of the application: those of all services that forward there, the highest
/// priority first.
fn port_lanes(mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, Vec<LaneRule>> {
    let mut lanes: BTreeMap<u16, Vec<LaneRule>> = BTreeMap::new();
    for service in mesh.services_of(&workload.name) {
        let rules = mesh.tags().lanes_of(&service.name);
        let ports: BTreeSet<u16> = service
            .ports
            .iter()
            .filter_map(|port| target_port(&port.target, workload))
            .filter(|_| !rules.is_empty())
            .collect();
        for port in ports {
            lanes.entry(port).or_default().extend(rules.iter().cloned());
        }
    }
    for rules in lanes.values_mut() {
        rules.sort_by_key(|rule| Reverse(rule.priority));
    }
    lanes
}

/// Returns the limits of each port of the application: one entry for each policy of the services that forward
/// to the port.
fn port_limits(mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, Vec<PortLimits>> {
    let mut limits: BTreeMap<u16, Vec<PortLimits>> = BTreeMap::new();
    for service in mesh.services_of(&workload.name) {
        for port in &service.ports {
            let Some(port_limits) = mesh.port_limits(&service.name, port.port) else { continue };
            let Some(port_number) = target_port(&port.target, workload) else { continue };
            let port_limits_list = limits.entry(port_number).or_default();
            if !port_limits_list.contains(&port_limits) {
                port_limits_list.push(port_limits);
            }
        }
    }
    limits
}

/// Returns the external checks at each port of the application: one entry for each policy of the services that
/// forward to the port.
fn port_checks(mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, Vec<PortCheck>> {
    let mut checks: BTreeMap<u16, Vec<PortCheck>> = BTreeMap::new();
    for service in mesh.services_of(&workload.name) {
        for port in &service.ports {
            let port_checks = mesh.port_checks(&service.name, port.port);
            let Some(port_number) = target_port(&port.target, workload) else { continue };
            for port_check in port_checks {
                let port_checks_list = checks.entry(port_number).or_default();
                if !port_checks_list.contains(&port_check) {
                    port_checks_list.push(port_check);
                }
            }
        }
    }
    checks
}

/// Returns the retries of a workload's requests, by service. They are from the oldest policy that names the service; of
/// policies of the same age, from the first by name.
fn service_retries(mesh: &Mesh, workload: &Workload) -> BTreeMap<ServiceName, ServiceRetry> {
    let mut retries = BTreeMap::new();
    for policy in mesh.retries_of(&workload.account) {
        for service in &policy.services {
            retries.entry(service.clone()).or_insert_with(|| policy.to_service_retry());
        }
    }
    retries
}

/// Returns the service under which each port of the application is counted: if several forward there, the one
/// with the fewest selector labels (`reviews` rather than `reviews-v1`), then the first by name.
fn port_services(mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, ServiceName> {
    let mut services: Vec<&Service> = mesh.services_of(&workload.name).collect();
    // The sort is stable, and services are ordered by name.
    services.sort_by_key(|service| service.selector.len());
    let mut port_services = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            if let Some(port_number) = target_port(&port.target, workload) {
                port_services.entry(port_number).or_insert_with(|| service.name.clone());
            }
        }
    }
    port_services
}
