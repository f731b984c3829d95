//! Defines the JSON responses about traffic: current rates, and plots of the last hour.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All current traffic, as reported by the sidecars of this control plane.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// The report interval of sidecars, in milliseconds; absent if reports are disabled.
    pub report_interval_ms: Option<u64>,
    /// The number of reports received.
    pub reports: u64,
    /// The number of series that were dropped: the sidecar had no room for them, they refer to missing objects, or the
    /// control plane evicted them for newer ones.
    pub series_dropped: u64,
    /// The rates of each service, as its clients measured them.
    pub services: Vec<NamedRateStatus>,
    /// The rates of each route.
    pub routes: Vec<NamedRateStatus>,
    /// The rates of each pair of a client and a service.
    pub edges: Vec<EdgeStatus>,
    /// The resource usage and traffic of each sidecar.
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
    /// The service, as `namespace/name`. Empty for the requests of one client to destinations outside the mesh's
    /// services, and for requests that the client's sidecar rejected before it knew the service.
    pub service: String,
    /// The failure reason, such as `denied`.
    pub reason: String,
    /// The number of rejections that clients received within the last half minute.
    pub requests: u64,
    /// The share of rejected requests among all requests to the service, or among all requests of the client to
    /// destinations outside the mesh's services, from 0 to 1.
    pub share: f64,
    /// `server` if sidecars of the service rejected the requests, `client` if those of its clients did.
    pub side: String,
    /// The workloads of the rejecting sidecars; the latest ones if there are many.
    pub sidecars: Vec<String>,
    /// The workloads of clients with a sidecar; the latest ones if there are many.
    pub clients: Vec<String>,
    /// The kinds and names of the policies that decided, if sidecars report them.
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
    /// The kind of the object that contains the rule.
    pub kind: String,
    /// The name of the object, as `namespace/name`.
    pub name: String,
    /// The rule within the object: its name, or its index from 0; empty if the object is one rule.
    pub rule: String,
    /// The number of matches over the last hour.
    pub matches_1h: u64,
    /// The number of matches since the control plane started, or since an hour without matches.
    pub matches: u64,
}

/// Request rates and latencies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RateStatus {
    /// Requests per second, and TCP connections opened or rejected per second, over the last half minute.
    pub per_second: f64,
    /// The success rate, from 0 to 1; absent without requests.
    pub success: Option<f64>,
    /// The median latency, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The 99th percentile of latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// The number of requests since the control plane started, or since an hour without requests.
    pub requests: u64,
    /// The number of failed requests.
    pub failed: u64,
    /// The number of requests in each of the last steps of ten seconds, the oldest first.
    pub recent: Vec<u32>,
}

/// Rates of a service or route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NamedRateStatus {
    /// The name, as `namespace/name`.
    pub name: String,
    /// The rates of the service or route.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// Requests from one source to a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// The kind of `from`: a `service`, a `workload` without a service, or the service with the `route` that
    /// forwarded the requests to another service.
    pub kind: String,
    /// The name, as `namespace/name`.
    pub from: String,
    /// The destination service.
    pub to: String,
    /// True if requests arrive with a verified client certificate; false while no request arrived.
    pub mtls: bool,
    /// The rates of the requests.
    #[serde(flatten)]
    pub rates: RateStatus,
}

/// The resource usage and traffic of a sidecar.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SidecarTraffic {
    /// The workload of the sidecar.
    pub workload: String,
    /// The CPU time per second, in cores; 0 while the sidecar is idle.
    pub cpu_cores: f64,
    /// The resident memory without file mappings in the last report, in KiB.
    pub memory_kib: u64,
    /// The number of requests per second that the workload received.
    pub inbound_per_second: f64,
    /// The number of requests per second that the workload sent.
    pub outbound_per_second: f64,
}

/// The history of one service or route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// The current rates.
    pub rates: RateStatus,
    /// The plots of the last minutes in short steps, and of the last hour in long ones.
    pub plots: Vec<PlotStatus>,
    /// The number of requests by failure reason, since the first report.
    pub reasons: BTreeMap<String, u64>,
    /// The number of requests by failure reason, in the period of the current rates.
    #[serde(default)]
    pub recent_reasons: BTreeMap<String, u64>,
}

/// The number of recent ten-second steps in the current rates, including the unfinished one.
pub const RECENT_STEPS: usize = 4;

/// A plot over time steps, the oldest first; the last one is unfinished. All lists have the same length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlotStatus {
    /// The length of a step, in seconds.
    pub step_seconds: u64,
    /// The number of requests completed in each step.
    pub requests: Vec<u32>,
    /// The number of failed requests.
    pub failed: Vec<u32>,
    /// The median latency, in milliseconds.
    pub p50_ms: Vec<Option<f64>>,
    /// The 99th percentile of latency, in milliseconds.
    pub p99_ms: Vec<Option<f64>>,
}
