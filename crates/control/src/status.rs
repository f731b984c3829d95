//! What the control plane tells operators: the forms of its answers, in JSON.

mod traffic;

use std::collections::BTreeMap;

use leno_model::RouteName;
use serde::{Deserialize, Serialize};

pub use traffic::{
    EdgeStatus, HistoryStatus, NamedRateStatus, PlotStatus, RECENT_STEPS, RateStatus,
    RejectionStatus, RuleStatus, SidecarTraffic, TrafficStatus,
};

/// How the control plane stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Status {
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The mode of the mesh: `permissive`, `strict` or `audit`; namespaces and workloads may differ.
    pub traffic_mode: String,
    /// How many workloads there are.
    pub workloads: usize,
    /// How many of them have a sidecar that has opened every port.
    pub registered: usize,
    /// How many services there are.
    pub services: usize,
    /// How many proxies are connected.
    pub proxies: usize,
    /// The edition in which certificates are issued now, in hexadecimal: another signer or other
    /// roots make another.
    #[serde(default)]
    pub authority: String,
    /// How many of them have a certificate of another signer, or trust other roots, than would be
    /// issued now: they renew soon.
    #[serde(default)]
    pub outdated: usize,
    /// How many other control planes have told of theirs.
    #[serde(default)]
    pub peers: usize,
    /// The sidecars that other control planes have. Their state is not in the answers of this one.
    #[serde(default)]
    pub elsewhere: Vec<PeerStatus>,
    /// How many of them have not yet applied all they were told.
    pub behind: usize,
    /// How many of them refuse something.
    pub refusing: usize,
    /// Whether services whose sidecars have not all come back are still held back.
    pub settling: bool,
    /// How many documents are refused.
    pub rejected: usize,
    /// How long certificates live that are issued now.
    #[serde(default)]
    pub certificate_lifetime_seconds: u64,
    /// Where its page is, if it has one.
    #[serde(default)]
    pub page: Option<String>,
    /// What to open there for live requests.
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
    /// How long changes took from being seen to being applied by the last proxy they concern.
    pub convergence: ConvergenceStatus,
}

/// Another control plane of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its address, if this one follows it.
    pub address: Option<String>,
    /// The number of its sidecars.
    pub sidecars: usize,
}

/// What became of the newest change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// Its number.
    pub id: u64,
    /// How long ago it was seen.
    pub age_ms: f64,
    /// How many proxies it concerned.
    pub concerned: usize,
    /// How many of them have applied it.
    pub applied: usize,
    /// How long it took until all had; absent while some have not.
    pub converged_ms: Option<f64>,
}

/// How long changes took.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConvergenceStatus {
    /// How many changes were timed.
    pub changes: u64,
    /// Half of them took no longer than this.
    pub p50_ms: f64,
    /// One in a hundred took longer.
    pub p99_ms: f64,
}

/// A workload and its sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadStatus {
    /// `namespace/name`.
    pub name: String,
    /// The account it runs under, `namespace/name`.
    pub account: String,
    /// Where its application listens.
    pub address: String,
    /// Its addresses of the other version of IP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<String>,
    /// Its application's ports.
    pub ports: Vec<PortStatus>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The services that it is behind.
    pub services: Vec<String>,
    /// Its fixed doors.
    pub doors: Vec<DoorStatus>,
    /// `connected`, `elsewhere` (to another control plane), `missing` (it was there a moment ago) or `absent`.
    pub sidecar: String,
    /// True when an operator has revoked it: its sidecar gets no certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// Where its sidecar accepts mutual TLS, by port of the application.
    pub listeners: BTreeMap<u16, String>,
    /// Its application, where `leno up` runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationStatus>,
    /// The conditions that break traffic there, as its sidecar reports them.
    #[serde(default)]
    pub conditions: Vec<ConditionStatus>,
    /// The process of its sidecar, while that is connected.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The admin page of its sidecar.
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
        ["connected", "elsewhere"].contains(&self.sidecar.as_str())
    }
}

/// An application that `leno up` runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// `waiting` (for its sidecar), `starting`, `running`, `restarting` or `stopped`.
    pub state: String,
    /// Its process, while it has one.
    pub pid: Option<i32>,
    /// The number of times that it ended by itself and was started again.
    pub restarts: u64,
    /// It ends again and again soon after its start.
    pub keeps_exiting: bool,
    /// Its last exit.
    pub last_exit: Option<String>,
    /// The time since it has its state.
    pub since_seconds: f64,
    /// The ports that it does not serve, each with the cause.
    pub ports: BTreeMap<u16, String>,
}

/// A condition that breaks traffic at a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionStatus {
    /// Its kind: `listener-closed`, `dns-closed`, `state-unwritable`, `circuit-open`, `table-full`, `log-lines-dropped`, or another.
    pub kind: String,
    /// The listener, directory or service port that it concerns.
    pub subject: String,
    /// The cause.
    pub reason: String,
}

impl From<&leno_discovery::Condition> for ConditionStatus {
    fn from(condition: &leno_discovery::Condition) -> Self {
        let leno_discovery::Condition { kind, subject, reason } = condition.clone();
        Self { kind, subject, reason }
    }
}

/// Joins of one workload that were rejected a moment ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedJoinStatus {
    /// The workload that they named, `namespace/name`.
    pub workload: String,
    /// The mesh has such a workload.
    pub exists: bool,
    /// Their number.
    pub count: u64,
    /// The time since the last one.
    pub age_seconds: u64,
    /// Why it was rejected.
    pub reason: String,
}

/// The directory in which the control plane keeps its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// Its path.
    pub directory: String,
    /// The error of a test write, if that failed.
    pub problem: Option<String>,
    /// The error of the files of the authority, if they cannot be used.
    #[serde(default)]
    pub authority_problem: Option<String>,
    /// The log lines that the control plane has dropped lately, since its output took no more.
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
    /// What is spoken there.
    pub protocol: String,
}

/// A fixed door.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DoorStatus {
    /// The service behind it.
    pub service: String,
    /// The service's port.
    pub port: u16,
    /// Where it is.
    pub listen: String,
    /// `open`, `closed`, or `unknown` while no sidecar reports it.
    #[serde(default)]
    pub state: String,
    /// Why it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// `namespace/name`.
    pub name: String,
    /// The labels it chooses by.
    pub selector: BTreeMap<String, String>,
    /// The workloads behind it.
    pub workloads: Vec<String>,
    /// Its ports.
    pub ports: Vec<ServicePortStatus>,
    /// The routes attached to it.
    pub routes: Vec<String>,
    /// Its ready endpoints without a sidecar to which sidecars send no request, where another workload behind it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<ExcludedStatus>,
}

/// Ready endpoints without a sidecar to which sidecars send no request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedStatus {
    /// Their number.
    pub endpoints: usize,
    /// The setting that excludes them: `trafficMode: strict` or `egress: deny`.
    pub setting: String,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePortStatus {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number.
    pub port: u16,
    /// What is spoken there.
    pub protocol: String,
    /// Where it is reached.
    pub endpoints: Vec<EndpointStatus>,
}

/// One place where a port is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The workload there.
    pub workload: String,
    /// The address at which its sidecar accepts mutual TLS, or that of the application without a sidecar.
    pub address: String,
}

/// The last certificate of a workload that the control plane knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// `namespace/name`.
    pub workload: String,
    /// The SPIFFE id.
    pub identity: String,
    /// When it was issued, in seconds since 1970.
    #[serde(default)]
    pub issued: u64,
    /// How long ago that was.
    #[serde(default)]
    pub age_seconds: u64,
    /// When it expires, in seconds since 1970.
    pub not_after: u64,
    /// For how long it is still valid.
    pub valid_for_seconds: u64,
}

/// A connected proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Its workload, `namespace/name`.
    pub workload: String,
    /// The number of its connection.
    pub connection: u64,
    /// For how long it has been connected.
    pub connected_seconds: f64,
    /// Its process, on its own machine.
    pub pid: u32,
    /// Its software version.
    pub version: String,
    /// Its admin page, if it has one at an address of its own.
    pub admin: Option<String>,
    /// The address that it reports for its admin page, where that is not one of its own, or is on loopback of
    /// another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_admin: Option<String>,
    /// The services it subscribed to.
    pub subscriptions: Vec<String>,
    /// How many services it was told of.
    pub services: usize,
    /// How long ago it last applied something; absent when it has not yet.
    pub world_age_seconds: Option<f64>,
    /// For how long it has not applied what it was told; absent when it has.
    pub behind_seconds: Option<f64>,
    /// The newest change it was told of.
    pub told: Option<u64>,
    /// The newest change it has applied.
    pub applied: Option<u64>,
    /// How many resources it refuses.
    pub refused: usize,
    /// Its last refusals.
    pub refusals: Vec<String>,
}

impl ProxyStatus {
    /// Whether it has not applied all it was told, or refuses something.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.refused > 0 || self.applied < self.told
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute` or `TrafficSplit`.
    pub kind: String,
    /// `namespace/name`.
    pub name: String,
    /// The services, or ports of them, that it is attached to.
    pub parents: Vec<String>,
    /// How many rules it has.
    pub rules: usize,
    /// The rules in words, for kinds of routes with conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_texts: Vec<String>,
    /// Where it leads, each with its share in words.
    pub backends: Vec<String>,
    /// What it refers to and is not there.
    pub problems: Vec<String>,
    /// How it stands with each of its parents, in their order.
    #[serde(default)]
    pub attached: Vec<ParentStatus>,
}

impl RouteStatus {
    /// A route of which nothing bad is known yet.
    pub(crate) fn new(
        (kind, name): (&str, &RouteName),
        parents: impl Iterator<Item = String>,
        (rules, backends): (usize, Vec<String>),
    ) -> Self {
        let parents: Vec<String> = parents.collect();
        let attached = parents.iter().cloned().map(|parent| ParentStatus {
            parent,
            accepted: true,
            resolved: true,
            why: Vec::new(),
        });
        let attached = attached.collect();
        let (kind, name) = (kind.to_owned(), name.to_string());
        let (rule_texts, problems) = (Vec::new(), Vec::new());
        Self { kind, name, parents, rules, rule_texts, backends, problems, attached }
    }

    /// Takes in why it has no say at one of its parents.
    pub(crate) fn refuse(&mut self, parent: usize, why: impl IntoIterator<Item = String>) {
        for why in why {
            if let Some(parent) = self.attached.get_mut(parent) {
                parent.accepted = false;
                if !parent.why.contains(&why) {
                    parent.why.push(why.clone());
                }
            }
            self.add(why);
        }
    }

    /// Takes in what decides instead of it at each port of one of its parents: it has a say there unless
    /// something does at all of them.
    pub(crate) fn contest(&mut self, parent: usize, ports: Vec<Vec<String>>) {
        let is_shut_out = !ports.iter().any(Vec::is_empty);
        for why in ports.into_iter().flatten() {
            match is_shut_out {
                true => self.refuse(parent, [why]),
                false => self.add(why),
            }
        }
    }

    /// Takes in what it leads to and may not, or cannot.
    pub(crate) fn unresolve(&mut self, why: impl IntoIterator<Item = String>) {
        for why in why {
            for parent in &mut self.attached {
                parent.resolved = false;
                if !parent.why.contains(&why) {
                    parent.why.push(why.clone());
                }
            }
            self.add(why);
        }
    }

    fn add(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// How it stands with a route at one of its parents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentStatus {
    /// The service, or port of it.
    pub parent: String,
    /// Whether the parent is there and the route has a say at it.
    pub accepted: bool,
    /// Whether all that the route leads to is there and may be led to.
    pub resolved: bool,
    /// Why not, where one of both is not so.
    pub why: Vec<String>,
}

/// A policy, or other rules that are no routes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its kind, such as `TrafficTarget` or `OutlierRemoval`.
    #[serde(default)]
    pub kind: String,
    /// `namespace/name`.
    pub name: String,
    /// Whose traffic it is about.
    pub destination: String,
    /// Who is named.
    pub sources: Vec<String>,
    /// What it says, a line for each rule.
    pub rules: Vec<String>,
    /// Whether it decides anything.
    pub in_force: bool,
    /// Why it does not: the mode, another object that decides instead, nothing that it is about.
    #[serde(default)]
    pub why: Option<String>,
    /// What it refers to and is not there; that part does nothing.
    pub problems: Vec<String>,
    /// The keys that a policy about tokens needs and that could not be read.
    #[serde(default)]
    pub missing_keys: Option<MissingKeysStatus>,
}

/// Keys of issuers that could not be read since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MissingKeysStatus {
    /// The requests that fail because of it, such as `every request`.
    pub requests: String,
    /// Each issuer with the place of its keys and the reason.
    pub issuers: Vec<String>,
}

/// A change, followed from where it came from to the last proxy that applied it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// Its number.
    pub id: u64,
    /// What it was, in words.
    pub cause: String,
    /// How long ago its source noticed it.
    pub age_ms: f64,
    /// From there until the control plane took it in.
    pub seen_after_ms: f64,
    /// From there until it was sent; absent while it waits for the quiet time.
    pub sent_after_ms: Option<f64>,
    /// From there until the last proxy that it concerns applied it; absent while one has not.
    pub applied_after_ms: Option<f64>,
    /// How many changes were sent with it, itself included.
    pub together: usize,
    /// How many proxies it may have concerned.
    pub concerned: usize,
    /// How many of them were told something new.
    pub told: usize,
    /// How many of those have applied it, or are gone.
    pub applied: usize,
    /// How many refusals there were.
    pub refused: u64,
    /// How many bytes those were sent that have applied it.
    pub bytes: u64,
    /// The workloads whose sidecars have not applied it; the first ones when there are many.
    pub waiting: Vec<String>,
    /// Whether what became of it is forgotten by now.
    pub forgotten: bool,
}
