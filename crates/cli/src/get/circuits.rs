//! `leno get circuits`: queries the sidecars for circuit breakers that are not closed, and lists them.

use std::time::Duration;

use leno_control::status::ProxyStatus;
use leno_model::Reason;
use serde::{Deserialize, Serialize};

use super::{MeshSocket, sidecars};
use crate::duration::format_duration;
use crate::output::{Listing, ListingColumn};

/// The circuit breakers of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarCircuits {
    workload: String,
    #[serde(flatten)]
    result: CircuitsResult,
}

/// The response of one sidecar to a query for its circuit breakers.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum CircuitsResult {
    /// The sidecar's response.
    Listed(CircuitList),
    /// The sidecar did not respond, for this reason.
    Failed { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct CircuitList {
    circuits: Vec<ListedCircuit>,
}

/// A circuit breaker that is not closed, as the sidecar's admin endpoint `/circuits` lists it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListedCircuit {
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) policy: String,
    /// The state: `open` or `half-open`.
    state: String,
    /// The condition that opened the circuit.
    pub(crate) trigger: String,
    /// The time since the circuit entered its state, in seconds.
    pub(crate) age_s: u64,
    /// The time for which the circuit rejects requests before it becomes half-open, in milliseconds.
    open_duration_ms: u64,
    /// The status of rejected requests. A sidecar of an earlier release does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The number of the sidecar's threads in which the circuit is in this state.
    threads: usize,
    /// The number of the sidecar's threads. A sidecar of an earlier release does not report it.
    #[serde(default)]
    total_threads: usize,
}

impl ListedCircuit {
    /// True while a thread of the sidecar rejects requests.
    pub(crate) fn is_open(&self) -> bool {
        self.state == "open"
    }

    /// Returns the status of rejected requests while the circuit is open.
    pub(crate) fn rejection_status(&self) -> u16 {
        self.status.unwrap_or(Reason::CircuitOpen.status())
    }

    /// True while every thread rejects requests.
    pub(crate) fn is_open_everywhere(&self) -> bool {
        self.is_open() && self.threads == self.total_threads
    }
}

/// Returns the circuit breakers of one sidecar that are not closed, or the reason why they are unknown.
pub(crate) async fn query_sidecar_circuits(
    mesh: &MeshSocket,
    proxy: &ProxyStatus,
) -> Result<Vec<ListedCircuit>, String> {
    let query_result =
        sidecars::query_sidecar::<CircuitList>(mesh, &proxy.workload, "/circuits").await;
    query_result.map(|list| list.circuits)
}

/// Queries the circuit breakers of every sidecar; the results have the order of `proxies`.
pub(super) async fn query_circuits(
    mesh: &MeshSocket,
    proxies: &[ProxyStatus],
) -> Vec<SidecarCircuits> {
    let results = sidecars::query_sidecars(mesh, proxies, "/circuits").await;
    let to_sidecar =
        |(proxy, result): (&ProxyStatus, Result<CircuitList, String>)| SidecarCircuits {
            workload: proxy.workload.clone(),
            result: match result {
                Ok(circuits) => CircuitsResult::Listed(circuits),
                Err(error) => CircuitsResult::Failed { error },
            },
        };
    proxies.iter().zip(results).map(to_sidecar).collect()
}

/// Lists the circuit breakers of all sidecars in one table.
pub(super) fn circuit_table(sidecars: &[SidecarCircuits]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for SidecarCircuits { workload, result } in sidecars {
        let circuits = match result {
            CircuitsResult::Listed(CircuitList { circuits }) => circuits,
            CircuitsResult::Failed { error } => {
                let empty_cells = std::iter::repeat_n(String::new(), COLUMNS.len() - 2);
                listing.add_row(
                    [workload.clone()].into_iter().chain(empty_cells).chain([error.clone()]),
                );
                continue;
            }
        };
        for circuit in circuits {
            listing.add_row([
                workload.clone(),
                format!("{}:{}", circuit.service, circuit.port),
                circuit.state.clone(),
                circuit.trigger.clone(),
                format_duration(Duration::from_secs(circuit.age_s)),
                format_duration(Duration::from_millis(circuit.open_duration_ms)),
                circuit.threads.to_string(),
                circuit.policy.clone(),
            ]);
        }
    }
    listing
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("workload"),
    ListingColumn::always("service"),
    ListingColumn::always("state"),
    ListingColumn::always("cause"),
    ListingColumn::always("age"),
    ListingColumn::always("open duration"),
    ListingColumn::wide("threads"),
    ListingColumn::always("policy"),
];
