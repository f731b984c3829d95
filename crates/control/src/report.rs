//! Computes the status of the mesh, of its objects and of its proxies, as the admin socket and the browser page return
//! it.

mod changes;
mod keys;
mod policies;
mod rules;
mod shares;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use leno_discovery::condition::kind;
use leno_model::{
    HttpRoute, RouteKind, RouteName, RouteParent, RouteRule, Service, ServiceName, TlsRoute,
    WeightedBackend, Workload, WorkloadName, is_only_parent,
};
use leno_registry::{Warning, count_rejected_documents, lint_objects, locate_warnings};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::applications::Applications;
use crate::certify::Certifier;
use crate::compile::{ClientClass, PlaintextRestriction, compile_service, restricted_workloads};
use crate::history::ReportCounters;
use crate::keys::JwksFetches;
use crate::mesh::{AttachedRoute, Mesh};
use crate::peers::Peers;
use crate::presence::{Presence, StartupGrace};
use crate::publish::{ConnectedProxies, ConnectedProxy, GracePeriod};
use crate::state_task::QueueLengths;
use crate::status::{
    CertificateStatus, ChangeStatus, ConditionStatus, ConvergenceStatus, EndpointStatus,
    ExcludedStatus, ListenerStatus, PeerStatus, PortStatus, ProxyStatus, RejectedJoinStatus,
    RouteStatus, ServicePortStatus, ServiceStatus, Status, WorkloadStatus,
};
use crate::watch::Diagnostics;

/// The state of the control plane at one moment, from which reports are made.
#[derive(Clone, Copy)]
pub(crate) struct Report<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) connected_proxies: &'a ConnectedProxies,
    pub(crate) presence: &'a Presence,
    pub(crate) startup_grace: &'a StartupGrace,
    pub(crate) certifier: &'a Certifier,
    pub(crate) diagnostics: &'a Diagnostics,
    pub(crate) jwks_fetches: &'a JwksFetches,
    pub(crate) peers: &'a Peers,
    pub(crate) queues: QueueLengths,
    pub(crate) report_counters: ReportCounters,
    /// The URL of the browser page; `None` without a page.
    pub(crate) page_url: Option<&'a str>,
    /// The URL of the page's view of live requests; `None` without a page.
    pub(crate) live_url: Option<&'a str>,
    pub(crate) applications: &'a Applications,
    /// True if a supervisor in this process runs the sidecar of each workload.
    pub(crate) supervised: bool,
    /// True if the control plane runs in Kubernetes.
    pub(crate) kubernetes: bool,
    pub(crate) now: Instant,
    pub(crate) wall_time: SystemTime,
}

impl Report<'_> {
    pub(crate) fn status(&self) -> Status {
        let proxies =
            || self.connected_proxies.proxies().map(|(_, connected_proxy)| connected_proxy);
        let mesh = self.mesh;
        let change = self.connected_proxies.pushes.latest_progress().map(|latest| ChangeStatus {
            id: latest.change.0,
            age_ms: to_milliseconds(self.now.duration_since(latest.processed_at)),
            affected: latest.recipient_count,
            applied: latest.applied,
            converged_ms: latest.convergence_time.map(to_milliseconds),
        });
        let convergence = self.connected_proxies.pushes.convergence_times();
        Status {
            trust_domain: mesh.config().trust_domain.to_string(),
            default_policy: mesh.config().default_policy.as_str().to_owned(),
            workloads: mesh.workloads().len(),
            registered: mesh.workloads().filter(|workload| mesh.is_registered(workload)).count(),
            services: mesh.services().len(),
            proxies: self.connected_proxies.len(),
            ca_generation: format!("{:016x}", mesh.ca_generation()),
            outdated: proxies()
                .filter(|connected_proxy| connected_proxy.ca_generation != mesh.ca_generation())
                .count(),
            peers: self.peers.peer_count(),
            other_replicas: self.peer_statuses(),
            out_of_sync: proxies()
                .filter(|connected_proxy| connected_proxy.is_out_of_sync())
                .count(),
            rejecting: proxies()
                .filter(|connected_proxy| connected_proxy.rejected_count > 0)
                .count(),
            starting: self.startup_grace.grace_state() == GracePeriod::Active,
            rejected: count_rejected_documents(&self.diagnostics.rejected),
            certificate_lifetime_seconds: self.certifier.certificate_lifetime().as_secs(),
            page: self.page_url.map(str::to_owned),
            live: self.live_url.map(str::to_owned),
            supervised: self.supervised,
            kubernetes: self.kubernetes,
            change,
            convergence: ConvergenceStatus {
                changes: convergence.count(),
                p50_ms: to_milliseconds(convergence.quantile(0.5)),
                p99_ms: to_milliseconds(convergence.quantile(0.99)),
            },
        }
    }

    /// Returns the other control planes, each with the number of its sidecars.
    fn peer_statuses(&self) -> Vec<PeerStatus> {
        let is_connected_here =
            |name: &WorkloadName| self.connected_proxies.workload_proxy(name).is_some();
        let peer_status = |(address, sidecars): (Option<SocketAddr>, usize)| PeerStatus {
            address: address.map(|address| address.to_string()),
            sidecars,
        };
        self.peers.other_control_planes(is_connected_here).into_iter().map(peer_status).collect()
    }

    pub(crate) fn workload_statuses(&self) -> Vec<WorkloadStatus> {
        self.mesh.workloads().map(|workload| self.workload_status(workload)).collect()
    }

    fn workload_status(&self, workload: &Workload) -> WorkloadStatus {
        let name = &workload.name;
        let connected_proxy = self.connected_proxies.workload_proxy(name);
        let sidecar = match connected_proxy {
            Some(_) => "connected",
            None if self.peers.newest_registration(name).is_some() => "other-replica",
            None if self.presence.is_missing(name) => "missing",
            None => "absent",
        };
        let ports = workload.ports.iter().map(|port| PortStatus {
            name: port.name.as_ref().map(ToString::to_string),
            port: port.port,
            protocol: port.protocol.to_string(),
        });
        let outbound_listeners =
            workload.outbound_listeners.iter().map(|listener| ListenerStatus {
                service: listener.service.to_string(),
                port: listener.port,
                listen: listener.listen.to_string(),
                ..listener_state(connected_proxy, &format!("listener-{}", listener.listen))
            });
        let conditions =
            connected_proxy.iter().flat_map(|connected_proxy| &connected_proxy.report.conditions);
        let addresses = connected_proxy
            .map(|connected_proxy| connected_proxy.report.addresses.clone())
            .unwrap_or_default();
        let services = self.mesh.services_of(name);
        let listeners = self.mesh.sidecar_listeners(name).into_iter().flatten();
        WorkloadStatus {
            name: name.to_string(),
            account: workload.account.to_string(),
            address: workload.address.to_string(),
            other_addresses: workload.other_addresses.iter().map(ToString::to_string).collect(),
            ports: ports.collect(),
            labels: workload.labels.clone(),
            services: services.map(|service| service.name.to_string()).collect(),
            outbound_listeners: outbound_listeners.collect(),
            sidecar: sidecar.to_owned(),
            revoked: self.mesh.is_revoked(workload),
            listeners: listeners.map(|(port, address)| (*port, address.to_string())).collect(),
            application: self.applications.application_status(name, self.now),
            conditions: conditions.map(ConditionStatus::from).collect(),
            pid: connected_proxy.map(|connected_proxy| connected_proxy.pid),
            admin: connected_proxy
                .and_then(|connected_proxy| connected_proxy.admin_address)
                .map(|address| address.to_string()),
            http_proxy: addresses.get("http-proxy").map(ToString::to_string),
            addresses: addresses
                .iter()
                .map(|(name, address)| (name.clone(), address.to_string()))
                .collect(),
        }
    }

    /// Returns the number of current conditions that break traffic, by kind.
    pub(crate) fn condition_counts(&self) -> [(&'static str, u64); 7] {
        let mut counts = [
            (kind::LISTENER_CLOSED, 0),
            (kind::DNS_CLOSED, 0),
            (kind::STATE_UNWRITABLE, 0),
            (kind::CIRCUIT_OPEN, 0),
            ("application-exiting", 0),
            ("application-port", 0),
            ("join-rejected", 0),
        ];
        let mut add_count = |kind: &str, count: usize| {
            // Kinds of a later release have no name here.
            if let Some((_, kind_count)) =
                counts.iter_mut().find(|(known_kind, _)| *known_kind == kind)
            {
                *kind_count += count as u64;
            }
        };
        for workload in self.mesh.workloads() {
            let name = &workload.name;
            let connected_proxy = self.connected_proxies.workload_proxy(name);
            for condition in connected_proxy
                .iter()
                .flat_map(|connected_proxy| &connected_proxy.report.conditions)
            {
                add_count(&condition.kind, 1);
            }
            if let Some(application) = self.applications.application_status(name, self.now) {
                add_count("application-exiting", usize::from(application.crash_looping));
                add_count("application-port", application.ports.len());
            }
        }
        // If a workload has a connected sidecar, the rejection of another sidecar of the workload breaks no traffic.
        let joins = self.rejected_joins().into_iter().filter(|join| join.exists);
        let is_connected = |name: &str| {
            let name = name
                .split_once('/')
                .and_then(|(namespace, name)| WorkloadName::new(namespace, name).ok());
            name.is_some_and(|name| self.connected_proxies.workload_proxy(&name).is_some())
        };
        add_count("join-rejected", joins.filter(|join| !is_connected(&join.workload)).count());
        counts
    }

    /// Returns the joins rejected in the last minute.
    pub(crate) fn rejected_joins(&self) -> Vec<RejectedJoinStatus> {
        self.certifier.rejected_joins().recent_rejections(self.now)
    }

    pub(crate) fn service_statuses(&self) -> Vec<ServiceStatus> {
        self.mesh.services().map(|service| self.service_status(service)).collect()
    }

    /// Returns the status of a service, with the endpoints for clients that may call all of them.
    fn service_status(&self, service: &Service) -> ServiceStatus {
        let service_config = compile_service(self.mesh, &ClientClass::AllClients, service);
        let ports = service_config.ports.iter().map(|(port_number, port)| ServicePortStatus {
            name: port.name.as_ref().map(ToString::to_string),
            port: *port_number,
            protocol: port.protocol.to_string(),
            endpoints: port
                .endpoints
                .iter()
                .map(|endpoint| EndpointStatus {
                    workload: endpoint.id.workload.to_string(),
                    address: endpoint.address.to_string(),
                })
                .collect(),
        });
        let workloads = self.mesh.service_workloads(&service.name);
        let (name, mesh) = (&service.name, self.mesh);
        let http_routes = mesh.http_routes().attached_to(name).map(|route| &route.name);
        let tls_routes = mesh.tls_routes().attached_to(name).map(|route| &route.rule.route);
        let tcp_routes = mesh.gateway_tcp_routes().attached_to(name).map(|route| &route.rule.route);
        let splits = mesh.traffic_splits().attached_to(name).map(|split| &split.name);
        let routes = http_routes.chain(tls_routes).chain(tcp_routes).chain(splits);
        ServiceStatus {
            name: service.name.to_string(),
            selector: service.selector.clone(),
            workloads: workloads.map(|workload| workload.name.to_string()).collect(),
            ports: ports.collect(),
            routes: routes.map(ToString::to_string).collect(),
            excluded: restricted_workloads(self.mesh, service).map(
                |(endpoints, plaintext_restriction)| ExcludedStatus {
                    endpoints,
                    setting: match plaintext_restriction {
                        PlaintextRestriction::DefaultPolicy => "defaultPolicy: deny".to_owned(),
                        PlaintextRestriction::Egress => "egress: deny".to_owned(),
                    },
                },
            ),
        }
    }

    /// Returns the number of namespaces with workloads or services of the mesh.
    pub(crate) fn namespace_count(&self) -> usize {
        let workloads = self.mesh.workloads().map(|workload| &workload.name.namespace);
        let services = self.mesh.services().map(|service| &service.name.namespace);
        workloads.chain(services).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn certificate_statuses(&self) -> Vec<CertificateStatus> {
        let status = |certificate: &crate::certify::SignedCertificate| {
            let remaining_time = certificate.not_after.duration_since(self.wall_time);
            let age = self.wall_time.duration_since(certificate.issued);
            let since_epoch =
                |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            CertificateStatus {
                workload: certificate.workload.to_string(),
                identity: certificate.id.to_string(),
                issued: since_epoch(certificate.issued),
                age_seconds: age.unwrap_or_default().as_secs(),
                not_after: since_epoch(certificate.not_after),
                valid_for_seconds: remaining_time.unwrap_or_default().as_secs(),
            }
        };
        self.certifier.latest_certificates().map(status).collect()
    }

    pub(crate) fn proxy_statuses(&self) -> Vec<ProxyStatus> {
        let proxy_status =
            |(connection, connected_proxy): (leno_discovery::ConnectionId, &ConnectedProxy)| {
                let last_update = connected_proxy.last_update.as_ref();
                ProxyStatus {
                    workload: connected_proxy.workload.to_string(),
                    connection: connection.0,
                    connected_seconds: self
                        .now
                        .duration_since(connected_proxy.connected_at)
                        .as_secs_f64(),
                    pid: connected_proxy.pid,
                    version: connected_proxy.version.clone(),
                    admin: connected_proxy.admin_address.map(|address| address.to_string()),
                    reported_admin: connected_proxy
                        .reported_admin_address
                        .map(|address| address.to_string()),
                    subscriptions: connected_proxy
                        .subscriptions
                        .iter()
                        .map(ToString::to_string)
                        .collect(),
                    services: last_update
                        .map_or(0, |last_update| last_update.snapshot.services.len()),
                    config_age_seconds: connected_proxy.applied_at.map(|at| self.seconds_since(at)),
                    out_of_sync_seconds: match connected_proxy.is_out_of_sync() {
                        false => None,
                        true => {
                            // The time is unknown for responses to queries, and for old pushes that are no longer recorded.
                            let since =
                                self.connected_proxies.pushes.unacknowledged_since(connection);
                            Some(since.map_or(0.0, |since| self.seconds_since(since)))
                        }
                    },
                    sent: last_update.map(|last_update| last_update.change.0),
                    applied: connected_proxy.applied_change.map(|change| change.0),
                    rejected: connected_proxy.rejected_count,
                    rejections: connected_proxy
                        .rejections
                        .iter()
                        .map(ToString::to_string)
                        .collect(),
                }
            };
        let mut proxies: Vec<ProxyStatus> =
            self.connected_proxies.proxies().map(proxy_status).collect();
        proxies.sort_by(|a, b| a.workload.cmp(&b.workload));
        proxies
    }

    fn seconds_since(&self, at: Instant) -> f64 {
        self.now.duration_since(at).as_secs_f64()
    }

    pub(crate) fn route_statuses(&self) -> Vec<RouteStatus> {
        let http_statuses = self.mesh.http_routes().all_routes().map(|route| {
            let (kind, name) = (route.kind.as_str(), &route.name);
            let backends: Vec<_> = route.rules.iter().flat_map(|rule| &rule.backends).collect();
            let mut status =
                self.route_status(kind, name, route.rules.len(), &route.parents, &backends);
            status.rule_texts = route.rules.iter().map(rule_text).collect();
            for (index, parent) in route.parents.iter().enumerate() {
                status.add_overrides(index, self.overriding_grpc_routes(route, parent));
            }
            status.add_unresolved(self.ungranted_services((route.kind, &route.name), route));
            status
        });
        let tls_statuses = self.mesh.tls_routes().all_routes().map(|route| {
            let backends: Vec<_> = route.rule.backends.iter().collect();
            let name = &route.rule.route;
            let kind = RouteKind::Tls.as_str();
            let mut status = self.route_status(kind, name, 1, &route.parents, &backends);
            status.add_unresolved(self.ungranted_services((RouteKind::Tls, name), route));
            for (index, parent) in route.parents.iter().enumerate() {
                status.add_overrides(index, self.conflicting_tls_routes(route, parent));
            }
            status
        });
        let tcp_statuses = self
            .mesh
            .gateway_tcp_routes()
            .all_routes()
            .map(|route| self.gateway_tcp_route_status(route));
        let split_statuses =
            self.mesh.traffic_splits().all_routes().map(|split| self.split_status(split));
        http_statuses.chain(tls_statuses).chain(tcp_statuses).chain(split_statuses).collect()
    }

    fn route_status(
        &self,
        kind: &str,
        name: &RouteName,
        rules: usize,
        parents: &[RouteParent],
        backends: &[&WeightedBackend],
    ) -> RouteStatus {
        let parent_text = |parent: &RouteParent| match parent.port {
            Some(port) => format!("{}:{port}", parent.service),
            None => parent.service.to_string(),
        };
        let shares = backends.iter().map(|backend| {
            format!("{}:{} weight {}", backend.service, backend.port, backend.weight)
        });
        let mut status =
            RouteStatus::new(kind, name, parents.iter().map(parent_text), rules, shares.collect());
        for (index, parent) in parents.iter().enumerate() {
            status.reject_parent(index, self.missing_reference(&parent.service, parent.port));
        }
        let missing_references = backends
            .iter()
            .filter_map(|backend| self.missing_reference(&backend.service, Some(backend.port)));
        status.add_unresolved(missing_references);
        status
    }

    /// Returns the result of the function [`missing_reference`] for the mesh of this report.
    fn missing_reference(&self, service: &ServiceName, port: Option<u16>) -> Option<String> {
        missing_reference(self.mesh, service, port)
    }

    /// Returns the services of other namespaces that a route may not refer to, as sentences.
    fn ungranted_services(
        &self,
        key: (RouteKind, &RouteName),
        route: &impl AttachedRoute,
    ) -> Vec<String> {
        let mut sentences: Vec<String> = route
            .backend_names()
            .filter(|service| {
                !self.mesh.may_refer_to(key, service) && !is_only_parent(route.parents(), service)
            })
            .map(|service| format!("no ReferenceGrant permits the Service {service}"))
            .collect();
        sentences.dedup();
        sentences
    }

    /// Returns the ports that a route attaches to at a parent: all of the service, or the one that the parent
    /// names.
    fn parent_ports(&self, parent: &RouteParent) -> Vec<u16> {
        let service = self.mesh.service(&parent.service);
        let ports = service.into_iter().flat_map(|service| &service.ports).map(|port| port.port);
        ports.filter(|port| parent.port.is_none_or(|only_port| only_port == *port)).collect()
    }

    /// Returns, for each port of a parent, the `GRPCRoute`s that override an `HTTPRoute` there.
    fn overriding_grpc_routes(&self, route: &HttpRoute, parent: &RouteParent) -> Vec<Vec<String>> {
        let attached = self.mesh.http_routes().attached_to(&parent.service);
        let preceding_routes: Vec<&HttpRoute> =
            attached.filter(|other| other.precedes(route)).collect();
        let overrides_at = |port: u16| {
            let is_attached =
                |candidate: &RouteParent| candidate.includes_port(&parent.service, port);
            let preceding_routes =
                preceding_routes.iter().filter(move |other| other.parents.iter().any(is_attached));
            let sentences = preceding_routes.map(|other| {
                let (kind, name) = (other.kind.as_str(), &other.name);
                format!("{kind} {name} is attached to the same port and takes precedence")
            });
            sentences.collect()
        };
        self.parent_ports(parent).into_iter().map(overrides_at).collect()
    }

    /// Returns, for each port of a parent, the `TLSRoute` that takes precedence for all host names of a route.
    fn conflicting_tls_routes(&self, route: &TlsRoute, parent: &RouteParent) -> Vec<Vec<String>> {
        let conflicts_at = |port: u16| {
            let consumer = Some(&route.rule.route.namespace);
            let routes: Vec<_> =
                self.mesh.tls_routes().routes_at_port(&parent.service, port, consumer).collect();
            let conflict =
                route.find_conflict(routes.into_iter()).map(|candidate| &candidate.rule.route);
            let sentences = conflict.map(|name| {
                format!(
                    "TLSRoute {name} has the same host names at port {port} and takes precedence"
                )
            });
            sentences.into_iter().collect()
        };
        self.parent_ports(parent).into_iter().map(conflicts_at).collect()
    }

    /// Returns rejected documents, warnings about documents and about all objects together, and the reason why
    /// the trust domain differs from the configured one.
    pub(crate) fn diagnostics_json(&self) -> Value {
        let mut warnings: Vec<Warning> = self.diagnostics.warnings.clone();
        warnings.extend(
            lint_objects(&self.mesh.explained_objects())
                .into_iter()
                .filter(|warning| self.is_relevant(warning)),
        );
        locate_warnings(&mut warnings, &self.diagnostics.locations);
        warnings.extend(self.missing_key_warnings());
        warnings.sort();
        warnings.dedup();
        json!({
            "rejected": self.diagnostics.rejected,
            "warnings": warnings,
            "trust_domain": self.diagnostics.trust_domain_problem,
        })
    }
}

impl Report<'_> {
    /// True if a warning concerns the mesh. False for a Service of a cluster in a namespace without a pod of
    /// the mesh: most Services of a cluster are unrelated to it. Objects of a cluster have no file location.
    fn is_relevant(&self, warning: &Warning) -> bool {
        let location = &warning.location;
        let is_same_namespace = |workload: &Workload| {
            Some(workload.name.namespace.as_str()) == location.namespace.as_deref()
        };
        !self.diagnostics.locations.is_empty()
            || location.kind.as_deref() != Some("Service")
            || self.mesh.workloads().any(is_same_namespace)
    }
}

/// Returns the matches of a rule and its backends as text.
fn rule_text(rule: &RouteRule) -> String {
    let matches = rule.matches.iter().take(MAX_MATCHES_IN_TEXT).map(ToString::to_string);
    let mut conditions = matches.collect::<Vec<_>>().join(", or ");
    if let Some(hidden_count @ 1..) = rule.matches.len().checked_sub(MAX_MATCHES_IN_TEXT) {
        conditions.push_str(&format!(", or one of {hidden_count} more"));
    }
    let backends: Vec<String> = rule
        .backends
        .iter()
        .filter(|backend| backend.weight > 0)
        .take(MAX_BACKENDS_IN_TEXT)
        .map(|backend| format!("{}:{} weight {}", backend.service, backend.port, backend.weight))
        .collect();
    match backends.is_empty() {
        true => conditions,
        false => format!("{conditions} → {}", backends.join(", ")),
    }
}

/// Returns a sentence about a service that does not exist, or that does not have this port; `None` if both exist.
fn missing_reference(mesh: &Mesh, service: &ServiceName, port: Option<u16>) -> Option<String> {
    match (mesh.service(service), port) {
        (None, _) => {
            Some(format!("Service {service} does not exist{}", other_namespaces(mesh, service)))
        }
        (Some(service_object), Some(port))
            if !service_object.ports.iter().any(|candidate| candidate.port == port) =>
        {
            Some(format!("Service {service} has no port {port}"))
        }
        _ => None,
    }
}

/// Returns the namespaces that have a service of this name, in parentheses; empty if there is none.
fn other_namespaces(mesh: &Mesh, service: &ServiceName) -> String {
    let other_services =
        mesh.services().map(|other| &other.name).filter(|other| other.name == service.name);
    let mut namespaces: Vec<&str> = other_services.map(|other| other.namespace.as_str()).collect();
    namespaces.sort_unstable();
    match namespaces.get(..namespaces.len().min(MAX_NAMESPACES)).unwrap_or_default() {
        [] => String::new(),
        [namespace] => format!(" (there is one in the namespace {namespace})"),
        several => format!(" (there is one in each of the namespaces {})", several.join(", ")),
    }
}

/// Maximum namespaces in a sentence.
const MAX_NAMESPACES: usize = 5;
/// Maximum matches in the text of a rule.
const MAX_MATCHES_IN_TEXT: usize = 4;
/// Maximum backends in the text of a rule.
const MAX_BACKENDS_IN_TEXT: usize = 8;

/// Returns the state of a listener by its name; other fields are empty.
fn listener_state(connected_proxy: Option<&ConnectedProxy>, name: &str) -> ListenerStatus {
    let mut status = ListenerStatus { state: "unknown".to_owned(), ..ListenerStatus::default() };
    let Some(connected_proxy) =
        connected_proxy.filter(|connected_proxy| connected_proxy.applied_change.is_some())
    else {
        return status;
    };
    let mut closed_conditions =
        connected_proxy.report.conditions.iter().filter(|condition| {
            condition.kind == kind::LISTENER_CLOSED && condition.subject == name
        });
    status.problem = closed_conditions.next().map(|condition| condition.reason.clone());
    status.state = if status.problem.is_some() { "closed" } else { "open" }.to_owned();
    status
}

fn to_milliseconds(duration: std::time::Duration) -> f64 {
    // Fractions of a microsecond are not significant.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BOOKINFO, mesh_with_sidecars};

    #[test]
    fn a_missing_service_is_named_with_the_namespaces_that_have_it() {
        let added_objects = "
---
{apiVersion: v1, kind: Service, metadata: {name: reviews, namespace: shop},
 spec: {selector: {app: reviews}, ports: [{name: http, port: 9080}]}}
";
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{added_objects}"));
        for (service, port, expected) in [
            (
                "default/details",
                None,
                Some(
                    "Service default/details does not exist (there is one in the namespace bookinfo)",
                ),
            ),
            (
                "default/reviews",
                Some(9080),
                Some(
                    "Service default/reviews does not exist (there is one in each of the namespaces bookinfo, shop)",
                ),
            ),
            ("default/api", None, Some("Service default/api does not exist")),
            ("bookinfo/details", Some(1), Some("Service bookinfo/details has no port 1")),
            ("bookinfo/details", Some(9080), None),
        ] {
            let reference = missing_reference(&mesh, &service.parse().unwrap(), port);
            assert_eq!(reference.as_deref(), expected, "{service}");
        }
    }
}
