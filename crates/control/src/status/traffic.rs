//! Traffic reports for operators: current rates, and plots of the last hour.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All current traffic, as reported by the sidecars of this control plane.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// The report interval of sidecars; absent if reports are disabled.
    pub report_interval_ms: Option<u64>,
    /// The number of reports received.
    pub reports: u64,
    /// The number of their series that were merged into the overflow series, for lack of room or because they
    /// refer to no service of the mesh.
    pub series_dropped: u64,
    /// By service, as its clients measured it.
    pub services: Vec<NamedRateStatus>,
    /// By route.
    pub routes: Vec<NamedRateStatus>,
    /// By client and service.
    pub edges: Vec<EdgeStatus>,
    /// Resources and traffic of each sidecar.
    pub sidecars: Vec<SidecarTraffic>,
    /// Match counts of rules that matched within the last hour.
    #[serde(default)]
    pub rules: Vec<RuleStatus>,
    /// Requests that sidecars rejected within the last half minute, by service and reason.
    #[serde(default)]
    pub rejections: Vec<RejectionStatus>,
}

/// Requests to a service that sidecars rejected for one reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RejectionStatus {
    /// `namespace/name`; empty for the requests of one client to destinations outside the mesh's services, and
    /// for those that its sidecar rejected before it knew a service.
    pub service: String,
    /// From the closed list.
    pub reason: String,
    /// Rejections that clients received within the last half minute.
    pub requests: u64,
    /// The share of the requests to the service, or of the client to such destinations, from 0 to 1.
    pub share: f64,
    /// `server` if sidecars of the service rejected them, `client` if those of its clients did.
    pub side: String,
    /// The workloads of these sidecars; the latest ones if there are many.
    pub sidecars: Vec<String>,
    /// The workloads of their clients, if those have a sidecar; the latest ones if there are many.
    pub clients: Vec<String>,
    /// The policies that decided, kind and name, if sidecars report them.
    pub policies: Vec<String>,
}

impl RejectionStatus {
    /// Returns the destination as text.
    #[must_use]
    pub fn destination(&self) -> &str {
        match self.service.as_str() {
            "" => "(no service)",
            service => service,
        }
    }
}

/// The match counts of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RuleStatus {
    /// The kind of the object that contains it.
    pub kind: String,
    /// The object's name, `namespace/name`.
    pub name: String,
    /// The rule within it: its name, or its index from 0; empty if the object is one rule.
    pub rule: String,
    /// Matches over the last hour.
    pub matches_1h: u64,
    /// Matches since the control plane started, or since an hour without any.
    pub matches: u64,
}

/// Request rates and latencies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RateStatus {
    /// Requests per second, and TCP connections opened or rejected per second, over the last half minute.
    pub per_second: f64,
    /// The success rate, from 0 to 1; absent without requests.
    pub success: Option<f64>,
    /// The median latency.
    pub p50_ms: Option<f64>,
    /// The 99th percentile of latency.
    pub p99_ms: Option<f64>,
    /// Requests since the control plane started, or since an hour without any.
    pub requests: u64,
    /// The number of these that failed.
    pub failed: u64,
    /// Requests in each of the last steps of ten seconds, the oldest first.
    pub recent: Vec<u32>,
}

/// Rates of a service or route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NamedRateStatus {
    /// `namespace/name`.
    pub name: String,
    /// Its rates.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// Requests from one source to a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// The kind of `from`: a `service`, a `workload` that belongs to none, or the service with the `route` that
    /// forwarded its requests to another one.
    pub kind: String,
    /// `namespace/name`.
    pub from: String,
    /// The destination service.
    pub to: String,
    /// True if they arrive with a verified client certificate; false while none arrived.
    pub mtls: bool,
    /// Their rates.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// Resources and traffic of a sidecar.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SidecarTraffic {
    /// Its workload.
    pub workload: String,
    /// CPU time per second, in cores; 0 while it is idle.
    pub cpu_cores: f64,
    /// Its resident memory in its last report, without file mappings.
    pub memory_kib: u64,
    /// Requests per second received by its workload.
    pub inbound_per_second: f64,
    /// Requests per second sent by its workload.
    pub outbound_per_second: f64,
}

/// The history of one service, route or edge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// Its current rates.
    pub rates: RateStatus,
    /// The last minutes in short steps, and the last hour in long ones.
    pub plots: Vec<PlotStatus>,
    /// The number of requests by reason, since it was first reported.
    pub reasons: BTreeMap<String, u64>,
    /// The number of these in the period of the current rates.
    #[serde(default)]
    pub recent_reasons: BTreeMap<String, u64>,
}

/// The number of recent ten-second steps in the current rates, including the unfinished one.
pub const RECENT_STEPS: usize = 4;

/// Time steps, the oldest first; the last one is unfinished. All lists have the same length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlotStatus {
    /// The length of a step.
    pub step_seconds: u64,
    /// Requests completed in each step.
    pub requests: Vec<u32>,
    /// The number of these that failed.
    pub failed: Vec<u32>,
    /// The median latency.
    pub p50_ms: Vec<Option<f64>>,
    /// The 99th percentile of latency.
    pub p99_ms: Vec<Option<f64>>,
}
