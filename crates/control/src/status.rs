//! Defines the JSON responses of the admin socket and the browser page: the status of the mesh, of its objects and of
//! its proxies.

mod policy;
mod traffic;

use std::collections::BTreeMap;

use leno_model::RouteName;
use serde::{Deserialize, Serialize};

pub(crate) use policy::is_service_or_port;
pub use policy::{MissingKeysStatus, PolicyStatus};
pub use traffic::{
    EdgeStatus, HistoryStatus, NamedRateStatus, PlotStatus, RECENT_STEPS, RateStatus,
    RejectionStatus, RuleStatus, SidecarTraffic, TrafficStatus,
};

/// The status of the control plane.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Status {
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The default policy of the mesh: `allow`, `deny` or `dry-run`; namespaces and workloads may differ.
    pub default_policy: String,
    /// The number of workloads.
    pub workloads: usize,
    /// The number of workloads with a sidecar that has opened every port.
    pub registered: usize,
    /// The number of services.
    pub services: usize,
    /// The number of connected proxies.
    pub proxies: usize,
    /// The CA generation of new certificates, in hexadecimal: it changes with the signing CA and the trust
    /// roots.
    #[serde(default)]
    pub ca_generation: String,
    /// The number of proxies with a certificate or roots of an earlier generation: they renew soon.
    #[serde(default)]
    pub outdated: usize,
    /// The number of other control planes that have reported their sidecars.
    #[serde(default)]
    pub peers: usize,
    /// The other control planes, each with its number of sidecars. The state of those sidecars is not in the
    /// responses of this control plane.
    #[serde(default)]
    pub other_replicas: Vec<PeerStatus>,
    /// The number of proxies that have not yet applied all updates (out of sync).
    pub out_of_sync: usize,
    /// The number of proxies with rejected resources.
    pub rejecting: usize,
    /// True during the startup grace period, while services wait for sidecars to reconnect.
    pub starting: bool,
    /// The number of rejected documents.
    pub rejected: usize,
    /// The lifetime of new certificates, in seconds.
    #[serde(default)]
    pub certificate_lifetime_seconds: u64,
    /// The URL of the control plane's browser page, if it has one.
    #[serde(default)]
    pub page: Option<String>,
    /// The URL of the browser page's view of live requests, if the control plane has a page.
    #[serde(default)]
    pub live: Option<String>,
    /// True under `leno up`, which runs the sidecar of each workload.
    #[serde(default)]
    pub supervised: bool,
    /// True in Kubernetes, where sidecars are containers of Pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kubernetes: bool,
    /// The newest change, if there was any since the start.
    pub change: Option<ChangeStatus>,
    /// The times from a change until the last affected proxy has applied it.
    pub convergence: ConvergenceStatus,
}

/// Another control plane of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The address of the control plane, if this one follows it.
    pub address: Option<String>,
    /// The number of sidecars that are connected to the control plane.
    pub sidecars: usize,
}

/// The progress of the newest change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// The number of the change.
    pub id: u64,
    /// The time since the control plane processed the change, in milliseconds.
    pub age_ms: f64,
    /// The number of proxies that received the change.
    pub affected: usize,
    /// The number of these proxies that have applied the change.
    pub applied: usize,
    /// The time until all proxies had applied the change, in milliseconds; absent while some have not.
    pub converged_ms: Option<f64>,
}

/// Convergence times of changes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConvergenceStatus {
    /// The number of timed changes.
    pub changes: u64,
    /// The median, in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: f64,
}

/// A workload and its sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadStatus {
    /// The name, as `namespace/name`.
    pub name: String,
    /// The account that the workload runs under, as `namespace/name`.
    pub account: String,
    /// The address of the application.
    pub address: String,
    /// The addresses of the workload in the other IP family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<String>,
    /// The ports of the application.
    pub ports: Vec<PortStatus>,
    /// The labels of the workload.
    pub labels: BTreeMap<String, String>,
    /// The services that select the workload.
    pub services: Vec<String>,
    /// The outbound listeners that the Workload configures.
    pub outbound_listeners: Vec<ListenerStatus>,
    /// The state of the sidecar: `connected`, `other-replica` (connected to another control plane), `missing`
    /// (disconnected recently) or `absent`.
    pub sidecar: String,
    /// True if an operator has revoked the workload: its sidecar gets no certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// The mTLS addresses of the sidecar, by application port.
    pub listeners: BTreeMap<u16, String>,
    /// The state of the application, if `leno up` runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationStatus>,
    /// The conditions that break traffic of the workload or need attention, as its sidecar reports them.
    #[serde(default)]
    pub conditions: Vec<ConditionStatus>,
    /// The process ID of the connected sidecar.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The address of the sidecar's admin endpoint.
    #[serde(default)]
    pub admin: Option<String>,
    /// The address of the sidecar's HTTP proxy, if it has one.
    #[serde(default)]
    pub http_proxy: Option<String>,
    /// The addresses of the sidecar, by name.
    #[serde(default)]
    pub addresses: BTreeMap<String, String>,
}

impl WorkloadStatus {
    /// True if the sidecar is connected to this control plane or to another one.
    #[must_use]
    pub fn has_sidecar(&self) -> bool {
        ["connected", "other-replica"].contains(&self.sidecar.as_str())
    }
}

/// An application that `leno up` runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// The state: `waiting` (for its sidecar), `starting`, `running`, `restarting` or `stopped`.
    pub state: String,
    /// The process ID, while the application runs.
    pub pid: Option<i32>,
    /// The number of restarts after the application exited by itself.
    pub restarts: u64,
    /// True if the application crash-loops: it exits repeatedly soon after its start.
    pub crash_looping: bool,
    /// The exit status of the last exit, as text; absent before the first one.
    pub last_exit: Option<String>,
    /// The time since the application entered this state, in seconds.
    pub since_seconds: f64,
    /// The ports that the application does not serve, each with the cause.
    pub ports: BTreeMap<u16, String>,
}

/// A condition that breaks traffic at a sidecar, or needs attention there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStatus {
    /// The kind: `listener-closed`, `dns-closed`, `state-unwritable`, `circuit-open`, `table-full`,
    /// `log-lines-dropped`, `detection-delayed`, `plaintext-rejected`, or one of a later release.
    pub kind: String,
    /// The listener, directory or service port that the condition concerns.
    pub subject: String,
    /// The cause.
    pub reason: String,
}

impl From<&leno_discovery::ProxyCondition> for ConditionStatus {
    fn from(condition: &leno_discovery::ProxyCondition) -> Self {
        let leno_discovery::ProxyCondition { kind, subject, reason } = condition.clone();
        Self { kind, subject, reason }
    }
}

/// Recently rejected joins of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedJoinStatus {
    /// The workload that the joining sidecars named, as `namespace/name`.
    pub workload: String,
    /// True if the mesh has a workload of this name.
    pub exists: bool,
    /// The number of rejected joins.
    pub count: u64,
    /// The time since the last rejected join, in seconds.
    pub age_seconds: u64,
    /// The reason for the last rejection.
    pub reason: String,
}

/// The directory that stores the control plane's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// The path of the directory.
    pub directory: String,
    /// The error of the test write, if it failed.
    pub problem: Option<String>,
    /// The error of the authority's files, if they cannot be used.
    #[serde(default)]
    pub authority_problem: Option<String>,
    /// Log lines that the control plane dropped recently because its output blocked.
    #[serde(default)]
    pub log_lines_dropped: u64,
}

/// A port of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The name of the port, if it has one.
    pub name: Option<String>,
    /// The port number.
    pub port: u16,
    /// The protocol of the port.
    pub protocol: String,
}

/// An outbound listener that a Workload configures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// The destination service.
    pub service: String,
    /// The service's port.
    pub port: u16,
    /// The listen address.
    pub listen: String,
    /// The state: `open`, `closed`, or `unknown` while no sidecar reports it.
    #[serde(default)]
    pub state: String,
    /// The reason why the listener is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A service, as operators see it: its workloads, ports and routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The name, as `namespace/name`.
    pub name: String,
    /// The labels of the selector.
    pub selector: BTreeMap<String, String>,
    /// The workloads that the service selects.
    pub workloads: Vec<String>,
    /// The ports of the service.
    pub ports: Vec<ServicePortStatus>,
    /// The routes attached to the service.
    pub routes: Vec<String>,
    /// The ready unmeshed endpoints that sidecars send no requests to, if another workload of the service has a
    /// sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<ExcludedStatus>,
}

/// Ready unmeshed endpoints (workloads without a sidecar) that sidecars send no requests to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedStatus {
    /// The number of these endpoints.
    pub endpoints: usize,
    /// The setting that excludes them: `defaultPolicy: deny` or `egress: deny`.
    pub setting: String,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePortStatus {
    /// The name of the port, if it has one.
    pub name: Option<String>,
    /// The port number.
    pub port: u16,
    /// The protocol of the port.
    pub protocol: String,
    /// The endpoints of the port.
    pub endpoints: Vec<EndpointStatus>,
}

/// An endpoint of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The workload of the endpoint.
    pub workload: String,
    /// The mTLS address of the sidecar; without a sidecar, the address of the application.
    pub address: String,
}

/// The last known certificate of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The workload, as `namespace/name`.
    pub workload: String,
    /// The SPIFFE ID of the certificate.
    pub identity: String,
    /// The time of issue, in seconds since 1970.
    #[serde(default)]
    pub issued: u64,
    /// The time since the certificate was issued, in seconds.
    #[serde(default)]
    pub age_seconds: u64,
    /// The time of expiry, in seconds since 1970.
    pub not_after: u64,
    /// The remaining validity, in seconds; 0 after the expiry.
    pub valid_for_seconds: u64,
}

/// A connected proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// The workload of the proxy, as `namespace/name`.
    pub workload: String,
    /// The number of the connection.
    pub connection: u64,
    /// The time since the proxy connected, in seconds.
    pub connected_seconds: f64,
    /// The process ID of the proxy, on its own machine.
    pub pid: u32,
    /// The software version of the proxy.
    pub version: String,
    /// The address of the admin endpoint, if it is the proxy's own address.
    pub admin: Option<String>,
    /// The reported address of the admin endpoint, if it is not the proxy's own or is on loopback of another
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_admin: Option<String>,
    /// The services that the proxy subscribed to.
    pub subscriptions: Vec<String>,
    /// The number of services in the proxy's configuration.
    pub services: usize,
    /// The time since the proxy last applied an update, in seconds; absent before the first one.
    pub config_age_seconds: Option<f64>,
    /// The time for which the proxy has been out of sync, in seconds; absent if it is in sync.
    pub out_of_sync_seconds: Option<f64>,
    /// The number of the newest change that was sent to the proxy.
    pub sent: Option<u64>,
    /// The number of the newest change that the proxy has applied.
    pub applied: Option<u64>,
    /// The number of resources that the proxy rejects.
    pub rejected: usize,
    /// The last rejections, newest last.
    pub rejections: Vec<String>,
}

impl ProxyStatus {
    /// True if the proxy is out of sync or rejects resources.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.rejected > 0 || self.applied < self.sent
    }
}

/// A route, as operators see it: its parents, rules, backends and problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The kind: `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute` or `TrafficSplit`.
    pub kind: String,
    /// The name, as `namespace/name`.
    pub name: String,
    /// The services or service ports that the route is attached to.
    pub parents: Vec<String>,
    /// The number of rules.
    pub rules: usize,
    /// The rules as text, for kinds of routes with matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_texts: Vec<String>,
    /// The backends, each with its weight, as text.
    pub backends: Vec<String>,
    /// The problems of the route, such as missing references, as sentences.
    pub problems: Vec<String>,
    /// The status of the route at each of its parents, in the order of `parents`.
    #[serde(default)]
    pub attached: Vec<ParentStatus>,
}

impl RouteStatus {
    /// Creates the status of a route without problems.
    pub(crate) fn new(
        kind: &str,
        name: &RouteName,
        parents: impl Iterator<Item = String>,
        rules: usize,
        backends: Vec<String>,
    ) -> Self {
        let parents: Vec<String> = parents.collect();
        let attached = parents
            .iter()
            .cloned()
            .map(|parent| ParentStatus {
                parent,
                accepted: true,
                resolved: true,
                reasons: Vec::new(),
            })
            .collect();
        let (kind, name) = (kind.to_owned(), name.to_string());
        let (rule_texts, problems) = (Vec::new(), Vec::new());
        Self { kind, name, parents, rules, rule_texts, backends, problems, attached }
    }

    /// Adds the reasons why the route has no effect at the parent with this index.
    pub(crate) fn reject_parent(
        &mut self,
        parent_index: usize,
        causes: impl IntoIterator<Item = String>,
    ) {
        for cause in causes {
            if let Some(parent) = self.attached.get_mut(parent_index) {
                parent.accepted = false;
                if !parent.reasons.contains(&cause) {
                    parent.reasons.push(cause.clone());
                }
            }
            self.add_problem(cause);
        }
    }

    /// Adds the objects that override the route at each port of the parent with this index. The route is
    /// accepted there unless it is overridden at all ports.
    pub(crate) fn add_overrides(
        &mut self,
        parent_index: usize,
        overrides_by_port: Vec<Vec<String>>,
    ) {
        let is_overridden = !overrides_by_port.iter().any(Vec::is_empty);
        for cause in overrides_by_port.into_iter().flatten() {
            match is_overridden {
                true => self.reject_parent(parent_index, [cause]),
                false => self.add_problem(cause),
            }
        }
    }

    /// Adds the reasons why backends are missing or not permitted.
    pub(crate) fn add_unresolved(&mut self, causes: impl IntoIterator<Item = String>) {
        for cause in causes {
            for parent in &mut self.attached {
                parent.resolved = false;
                if !parent.reasons.contains(&cause) {
                    parent.reasons.push(cause.clone());
                }
            }
            self.add_problem(cause);
        }
    }

    fn add_problem(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// The status of a route at one of its parents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentStatus {
    /// The service or service port, as text.
    pub parent: String,
    /// True if the parent exists and the route is in effect there.
    pub accepted: bool,
    /// True if all backends of the route exist and are permitted.
    pub resolved: bool,
    /// The reasons why `accepted` or `resolved` is false.
    pub reasons: Vec<String>,
}

/// The progress of a change, from its source to the last proxy that applied it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// The number of the change.
    pub id: u64,
    /// A description of the cause.
    pub cause: String,
    /// The time since the source noticed the change, in milliseconds. The following times start at that moment.
    pub age_ms: f64,
    /// The time until the control plane processed the change, in milliseconds.
    pub processed_after_ms: f64,
    /// The time until the change was sent, in milliseconds; absent during the debounce time.
    pub sent_after_ms: Option<f64>,
    /// The time until the last affected proxy applied the change, in milliseconds; absent while a proxy has not
    /// applied it.
    pub applied_after_ms: Option<f64>,
    /// The number of changes in the push, including this one.
    pub push_size: usize,
    /// The number of proxies that the push may affect.
    pub affected: usize,
    /// The number of proxies that received an update.
    pub recipients: usize,
    /// The number of these proxies that have applied the update, or disconnected.
    pub applied: usize,
    /// The number of rejections (NACKs).
    pub rejected: u64,
    /// Bytes of the updates that were applied.
    pub bytes: u64,
    /// The workloads with sidecars that have not applied the update; the first ones if there are many.
    pub waiting: Vec<String>,
    /// True if the progress of the change is no longer recorded.
    pub expired: bool,
}
