//! What the control plane tells of traffic: rates of now, and plots of the last hour.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All traffic as it is now, as far as the sidecars of this control plane told of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// How often sidecars tell; absent when they are not asked to.
    pub report_every_ms: Option<u64>,
    /// How many messages they sent.
    pub reports: u64,
    /// How many of their series were not kept apart, for lack of room or since they are about no
    /// service of the mesh.
    pub folded: u64,
    /// By service, as its clients saw it.
    pub services: Vec<NamedRateStatus>,
    /// By route.
    pub routes: Vec<NamedRateStatus>,
    /// Who calls whom.
    pub edges: Vec<EdgeStatus>,
    /// What each sidecar takes and carries.
    pub sidecars: Vec<SidecarTraffic>,
    /// How often rules decided, of those that did within the last hour.
    #[serde(default)]
    pub rules: Vec<RuleStatus>,
    /// Requests that sidecars rejected within the last half minute, by service and reason.
    #[serde(default)]
    pub rejections: Vec<RejectionStatus>,
}

/// Requests to a service that sidecars rejected for one reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RejectionStatus {
    /// `namespace/name`; empty for the requests of one client to destinations that are no service of the mesh, and for those that its sidecar
    /// rejected before it knew a service.
    pub service: String,
    /// From the closed list.
    pub reason: String,
    /// Rejections that clients received within the last half minute.
    pub requests: u64,
    /// The share of the requests to the service, or of the client to such destinations, from 0 to 1.
    pub share: f64,
    /// `server`: sidecars of the service rejected them; `client`: those of its clients.
    pub by: String,
    /// The workloads of these sidecars; the latest where there are many.
    pub sidecars: Vec<String>,
    /// The workloads of their clients, as far as those have a sidecar; the latest where there are many.
    pub clients: Vec<String>,
    /// The policies that decided, kind and name, as far as sidecars report it.
    pub policies: Vec<String>,
}

impl RejectionStatus {
    /// The destination in words.
    #[must_use]
    pub fn destination(&self) -> &str {
        match self.service.as_str() {
            "" => "(no service)",
            service => service,
        }
    }
}

/// How often a rule decided.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RuleStatus {
    /// The kind of the object that holds it.
    pub kind: String,
    /// That object, `namespace/name`.
    pub name: String,
    /// The rule in it: its name, or its place from 0; empty where an object is one rule.
    pub rule: String,
    /// How often, over the last hour.
    pub hour: u64,
    /// How often since the control plane started, or since it was an hour without any.
    pub hits: u64,
}

/// How requests fare.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RateStatus {
    /// Requests a second, and TCP connections opened or rejected a second, over the last half minute.
    pub per_second: f64,
    /// The share of them that succeeded, from 0 to 1; absent when there was none.
    pub success: Option<f64>,
    /// Half of them took no longer.
    pub p50_ms: Option<f64>,
    /// One in a hundred took longer.
    pub p99_ms: Option<f64>,
    /// How many there were since the control plane started, or since it was an hour without any.
    pub requests: u64,
    /// How many of those failed.
    pub failed: u64,
    /// How many there were in each of the last steps of ten seconds, the oldest first.
    pub recent: Vec<u32>,
}

/// The same, of a service or route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NamedRateStatus {
    /// `namespace/name`.
    pub name: String,
    /// How its requests fare.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// Requests from somebody to a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// What `from` is: a `service`, a `workload` that is behind none, or the service whose `route`
    /// led its requests to another one.
    pub kind: String,
    /// `namespace/name`.
    pub from: String,
    /// The service that they are for.
    pub to: String,
    /// Whether they arrive with a verified certificate of their client; false while none arrived.
    pub mtls: bool,
    /// How they fare.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// What a sidecar takes and carries.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SidecarTraffic {
    /// Its workload.
    pub workload: String,
    /// CPU time for each second, in cores; 0 while it is idle.
    pub cpu_cores: f64,
    /// Its resident memory when it last told, without what is of files.
    pub memory_kib: u64,
    /// Requests a second that came to its workload.
    pub inbound_per_second: f64,
    /// Requests a second that its workload sent.
    pub outbound_per_second: f64,
}

/// What is kept of one service, route or edge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// How its requests fare now.
    pub rates: RateStatus,
    /// The last minutes in short steps, then the last hour in long ones.
    pub plots: Vec<PlotStatus>,
    /// How many requests ended with which reason, since it is known.
    pub reasons: BTreeMap<String, u64>,
    /// How many of those that are told of as *now*.
    #[serde(default)]
    pub recent_reasons: BTreeMap<String, u64>,
}

/// How many of the last steps of ten seconds are *now*, the one that has only begun included.
pub const RECENT_STEPS: usize = 4;

/// Steps of time, the oldest first; the last one is not over yet. All lists are as long.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlotStatus {
    /// How long a step is.
    pub step_seconds: u64,
    /// How many requests ended in it.
    pub requests: Vec<u32>,
    /// How many of them failed.
    pub failed: Vec<u32>,
    /// Half of them took no longer.
    pub p50_ms: Vec<Option<f64>>,
    /// One in a hundred took longer.
    pub p99_ms: Vec<Option<f64>>,
}
