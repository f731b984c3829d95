//! `leno get ejected`: queries the sidecars for the endpoints that their outlier detection has ejected, and
//! lists them.

use leno_control::status::ProxyStatus;
use serde::{Deserialize, Serialize};

use super::{MeshSocket, sidecars};
use crate::duration::format_duration;
use crate::output::{Listing, ListingColumn};

/// The ejected endpoints of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarEjected {
    workload: String,
    #[serde(flatten)]
    result: EjectedResult,
}

/// The response of one sidecar to a query for its ejected endpoints.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EjectedResult {
    /// The sidecar's response.
    Listed(EjectedList),
    /// The sidecar did not respond, for this reason.
    Failed { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct EjectedList {
    ejected: Vec<EjectedEndpoint>,
}

/// An ejected endpoint, as the sidecar's admin endpoint `/ejected` lists it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EjectedEndpoint {
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) workload: String,
    address: String,
    pub(crate) policy: String,
    pub(crate) cause: String,
    /// The time since the ejection, in seconds.
    pub(crate) age_s: u64,
    /// The number of the sidecar's threads that have ejected the endpoint.
    threads: usize,
}

/// Returns the endpoints that one sidecar has ejected, or the reason why they are unknown.
pub(crate) async fn query_sidecar_ejected(
    mesh: &MeshSocket,
    proxy: &ProxyStatus,
) -> Result<Vec<EjectedEndpoint>, String> {
    let query_result =
        sidecars::query_sidecar::<EjectedList>(mesh, &proxy.workload, "/ejected").await;
    query_result.map(|list| list.ejected)
}

/// Queries the ejected endpoints of every sidecar; the results have the order of `proxies`.
pub(super) async fn query_ejected(
    mesh: &MeshSocket,
    proxies: &[ProxyStatus],
) -> Vec<SidecarEjected> {
    let results = sidecars::query_sidecars(mesh, proxies, "/ejected").await;
    let to_sidecar =
        |(proxy, result): (&ProxyStatus, Result<EjectedList, String>)| SidecarEjected {
            workload: proxy.workload.clone(),
            result: match result {
                Ok(ejected) => EjectedResult::Listed(ejected),
                Err(error) => EjectedResult::Failed { error },
            },
        };
    proxies.iter().zip(results).map(to_sidecar).collect()
}

/// Lists the endpoints of all sidecars in one table.
pub(super) fn ejected_table(sidecars: &[SidecarEjected]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for sidecar in sidecars {
        let workload = || sidecar.workload.clone();
        match &sidecar.result {
            EjectedResult::Failed { error } => {
                let empty_cells = std::iter::repeat_n(String::new(), COLUMNS.len() - 2);
                listing.add_row([workload()].into_iter().chain(empty_cells).chain([error.clone()]));
            }
            EjectedResult::Listed(EjectedList { ejected }) => {
                for endpoint in ejected {
                    listing.add_row([
                        workload(),
                        format!("{}:{}", endpoint.service, endpoint.port),
                        endpoint.workload.clone(),
                        endpoint.address.clone(),
                        endpoint.cause.clone(),
                        format_duration(std::time::Duration::from_secs(endpoint.age_s)),
                        endpoint.threads.to_string(),
                        endpoint.policy.clone(),
                    ]);
                }
            }
        }
    }
    listing
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("workload"),
    ListingColumn::always("service"),
    ListingColumn::always("endpoint"),
    ListingColumn::wide("address"),
    ListingColumn::always("cause"),
    ListingColumn::always("age"),
    ListingColumn::wide("threads"),
    ListingColumn::always("policy"),
];
