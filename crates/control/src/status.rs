//! JSON responses of the control plane for operators.

mod traffic;

use std::collections::BTreeMap;

use leno_model::RouteName;
use serde::{Deserialize, Serialize};

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
    /// Sidecars of other control planes. Their state is not in the responses of this one.
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
    /// The lifetime of new certificates.
    #[serde(default)]
    pub certificate_lifetime_seconds: u64,
    /// The URL of its page, if it has one.
    #[serde(default)]
    pub page: Option<String>,
    /// The URL of live requests.
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
    /// Convergence times: from noticing a change until the last affected proxy has applied it.
    pub convergence: ConvergenceStatus,
}

/// Another control plane of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its address, if this control plane follows it.
    pub address: Option<String>,
    /// The number of its sidecars.
    pub sidecars: usize,
}

/// The progress of the newest change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// Its number.
    pub id: u64,
    /// The time since the control plane processed it.
    pub age_ms: f64,
    /// The number of affected proxies.
    pub affected: usize,
    /// The number of proxies that have applied it.
    pub applied: usize,
    /// The time until all had applied it; absent while some have not.
    pub converged_ms: Option<f64>,
}

/// Convergence times of changes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConvergenceStatus {
    /// The number of timed changes.
    pub changes: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
}

/// A workload and its sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadStatus {
    /// `namespace/name`.
    pub name: String,
    /// The account that it runs under, `namespace/name`.
    pub account: String,
    /// The address of its application.
    pub address: String,
    /// Its addresses of the other IP family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<String>,
    /// Its application's ports.
    pub ports: Vec<PortStatus>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The services that select it.
    pub services: Vec<String>,
    /// Its fixed listeners.
    pub outbound_listeners: Vec<ListenerStatus>,
    /// `connected`, `other-replica` (connected to another control plane), `missing` (disconnected recently) or
    /// `absent`.
    pub sidecar: String,
    /// True if an operator has revoked it: its sidecar gets no certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// The mTLS addresses of its sidecar, by application port.
    pub listeners: BTreeMap<u16, String>,
    /// Its application, if `leno up` runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationStatus>,
    /// Conditions that break traffic there, as its sidecar reports them.
    #[serde(default)]
    pub conditions: Vec<ConditionStatus>,
    /// The process ID of its connected sidecar.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The admin endpoint of its sidecar.
    #[serde(default)]
    pub admin: Option<String>,
    /// The HTTP proxy of its sidecar, if it has one.
    #[serde(default)]
    pub http_proxy: Option<String>,
    /// Other addresses of its sidecar, by name.
    #[serde(default)]
    pub addresses: BTreeMap<String, String>,
}

impl WorkloadStatus {
    /// True if its sidecar is connected to this control plane or to another one.
    #[must_use]
    pub fn has_sidecar(&self) -> bool {
        ["connected", "other-replica"].contains(&self.sidecar.as_str())
    }
}

/// An application that `leno up` runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// `waiting` (for its sidecar), `starting`, `running`, `restarting` or `stopped`.
    pub state: String,
    /// Its process ID, while it runs.
    pub pid: Option<i32>,
    /// The number of restarts after it exited by itself.
    pub restarts: u64,
    /// True if it crash-loops: it exits repeatedly soon after its start.
    pub crash_looping: bool,
    /// Its last exit.
    pub last_exit: Option<String>,
    /// The time since it entered its state.
    pub since_seconds: f64,
    /// Ports that it does not serve, with the cause.
    pub ports: BTreeMap<u16, String>,
}

/// A condition that breaks traffic at a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStatus {
    /// Its kind: `listener-closed`, `dns-closed`, `state-unwritable`, `circuit-open`, `table-full`,
    /// `log-lines-dropped`, or another.
    pub kind: String,
    /// The listener, directory or service port that it concerns.
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
    /// The workload that they named, `namespace/name`.
    pub workload: String,
    /// True if the mesh has such a workload.
    pub exists: bool,
    /// Their number.
    pub count: u64,
    /// The time since the last one.
    pub age_seconds: u64,
    /// The reason for the rejection.
    pub reason: String,
}

/// The directory that stores the control plane's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// Its path.
    pub directory: String,
    /// The error of a test write, if it failed.
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
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number.
    pub port: u16,
    /// Its protocol.
    pub protocol: String,
}

/// A fixed listener.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its destination service.
    pub service: String,
    /// The service's port.
    pub port: u16,
    /// Its listen address.
    pub listen: String,
    /// `open`, `closed`, or `unknown` while no sidecar reports it.
    #[serde(default)]
    pub state: String,
    /// The reason why it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A service, as operators see it: its workloads, ports and routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// `namespace/name`.
    pub name: String,
    /// The labels of its selector.
    pub selector: BTreeMap<String, String>,
    /// The workloads that it selects.
    pub workloads: Vec<String>,
    /// Its ports.
    pub ports: Vec<ServicePortStatus>,
    /// The routes attached to it.
    pub routes: Vec<String>,
    /// Its ready unmeshed endpoints that sidecars send no requests to, if another workload of it has a sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<ExcludedStatus>,
}

/// Ready unmeshed endpoints that sidecars send no requests to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedStatus {
    /// Their number.
    pub endpoints: usize,
    /// The setting that excludes them: `defaultPolicy: deny` or `egress: deny`.
    pub setting: String,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePortStatus {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number.
    pub port: u16,
    /// Its protocol.
    pub protocol: String,
    /// Its endpoints.
    pub endpoints: Vec<EndpointStatus>,
}

/// An endpoint of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its workload.
    pub workload: String,
    /// The mTLS address of its sidecar, or the address of the application without a sidecar.
    pub address: String,
}

/// The last known certificate of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// `namespace/name`.
    pub workload: String,
    /// The SPIFFE id.
    pub identity: String,
    /// The time of issue, in seconds since 1970.
    #[serde(default)]
    pub issued: u64,
    /// The time since it was issued.
    #[serde(default)]
    pub age_seconds: u64,
    /// The time of expiry, in seconds since 1970.
    pub not_after: u64,
    /// The remaining validity.
    pub valid_for_seconds: u64,
}

/// A connected proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Its workload, `namespace/name`.
    pub workload: String,
    /// The number of its connection.
    pub connection: u64,
    /// The time since it connected.
    pub connected_seconds: f64,
    /// Its process ID, on its own machine.
    pub pid: u32,
    /// Its software version.
    pub version: String,
    /// Its admin endpoint, if it is at the proxy's own address.
    pub admin: Option<String>,
    /// The reported address of its admin endpoint, if it is not the proxy's own or is on loopback of another
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_admin: Option<String>,
    /// The services that it subscribed to.
    pub subscriptions: Vec<String>,
    /// The number of services in its configuration.
    pub services: usize,
    /// The time since it last applied an update; absent before the first one.
    pub config_age_seconds: Option<f64>,
    /// The time for which it has been out of sync; absent if it is in sync.
    pub out_of_sync_seconds: Option<f64>,
    /// The newest change that was sent to it.
    pub sent: Option<u64>,
    /// The newest change that it has applied.
    pub applied: Option<u64>,
    /// The number of resources that it rejects.
    pub rejected: usize,
    /// Its last rejections.
    pub rejections: Vec<String>,
}

impl ProxyStatus {
    /// True if it is out of sync or rejects resources.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.rejected > 0 || self.applied < self.sent
    }
}

/// A route, as operators see it: its parents, rules, backends and problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute` or `TrafficSplit`.
    pub kind: String,
    /// `namespace/name`.
    pub name: String,
    /// The services or service ports that it is attached to.
    pub parents: Vec<String>,
    /// The number of its rules.
    pub rules: usize,
    /// Its rules as text, for kinds of routes with conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_texts: Vec<String>,
    /// Its backends, each with its share as text.
    pub backends: Vec<String>,
    /// Its missing references.
    pub problems: Vec<String>,
    /// Its status at each of its parents, in their order.
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
        let attached = parents.iter().cloned().map(|parent| ParentStatus {
            parent,
            accepted: true,
            resolved: true,
            reasons: Vec::new(),
        });
        let attached = attached.collect();
        let (kind, name) = (kind.to_owned(), name.to_string());
        let (rule_texts, problems) = (Vec::new(), Vec::new());
        Self { kind, name, parents, rules, rule_texts, backends, problems, attached }
    }

    /// Adds the reasons why it has no effect at one of its parents.
    pub(crate) fn reject_parent(&mut self, parent: usize, cause: impl IntoIterator<Item = String>) {
        for cause in cause {
            if let Some(parent) = self.attached.get_mut(parent) {
                parent.accepted = false;
                if !parent.reasons.contains(&cause) {
                    parent.reasons.push(cause.clone());
                }
            }
            self.add_problem(cause);
        }
    }

    /// Adds the objects that override it at each port of one of its parents: it is accepted there unless it is
    /// overridden at all ports.
    pub(crate) fn add_overrides(&mut self, parent: usize, ports: Vec<Vec<String>>) {
        let is_overridden = !ports.iter().any(Vec::is_empty);
        for cause in ports.into_iter().flatten() {
            match is_overridden {
                true => self.reject_parent(parent, [cause]),
                false => self.add_problem(cause),
            }
        }
    }

    /// Adds the reasons why backends are missing or not permitted.
    pub(crate) fn add_unresolved(&mut self, cause: impl IntoIterator<Item = String>) {
        for cause in cause {
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
    /// The service or service port.
    pub parent: String,
    /// True if the parent exists and the route is in effect there.
    pub accepted: bool,
    /// True if all backends of the route exist and are permitted.
    pub resolved: bool,
    /// The reasons if either is false.
    pub reasons: Vec<String>,
}

/// A policy, or rules other than routes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its kind, such as `TrafficTarget` or `OutlierDetection`.
    #[serde(default)]
    pub kind: String,
    /// `namespace/name`.
    pub name: String,
    /// Its destination.
    pub destination: String,
    /// Its sources.
    pub sources: Vec<String>,
    /// Its contents, a line for each rule.
    pub rules: Vec<String>,
    /// True if it has an effect.
    pub in_force: bool,
    /// The reason why it has no effect: the default policy, an overriding object, a missing destination.
    #[serde(default)]
    pub reason: Option<String>,
    /// Its missing references; these parts have no effect.
    pub problems: Vec<String>,
    /// Keys that a JWT policy needs and that could not be read.
    #[serde(default)]
    pub missing_keys: Option<MissingKeysStatus>,
}

/// JWKS that could not be read since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MissingKeysStatus {
    /// The requests that fail because of it, such as `every request`.
    pub requests: String,
    /// Each issuer with its JWKS endpoint and the reason.
    pub issuers: Vec<String>,
}

/// The progress of a change, from its source to the last proxy that applied it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// Its number.
    pub id: u64,
    /// A description of its cause.
    pub cause: String,
    /// The time since its source noticed it.
    pub age_ms: f64,
    /// The time from the notice of its source until the control plane processed it.
    pub processed_after_ms: f64,
    /// The time from that notice until it was sent; absent during the debounce time.
    pub sent_after_ms: Option<f64>,
    /// The time from that notice until the last affected proxy applied it; absent while one has not.
    pub applied_after_ms: Option<f64>,
    /// The number of changes in its push, including itself.
    pub push_size: usize,
    /// The number of proxies that it may affect.
    pub affected: usize,
    /// The number of proxies that received an update.
    pub recipients: usize,
    /// The number of these that have applied it, or disconnected.
    pub applied: usize,
    /// The number of rejections (NACKs).
    pub rejected: u64,
    /// Bytes of the updates that were applied.
    pub bytes: u64,
    /// Workloads with sidecars that have not applied it; the first ones if there are many.
    pub waiting: Vec<String>,
    /// True if its progress is no longer recorded.
    pub expired: bool,
}
