//! Endpoints ejected by outlier detection, per sidecar.

use leno_control::status::ProxyStatus;
use serde::{Deserialize, Serialize};

use super::{Mesh, sidecars};
use crate::duration::format_duration;
use crate::output::{Column, Listing};

/// The ejected endpoints of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarRemoved {
    workload: String,
    #[serde(flatten)]
    found: Found,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    /// The sidecar's answer.
    Known(Removed),
    /// The reason why there is no answer.
    Unknown { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Removed {
    removed: Vec<Endpoint>,
}

/// One endpoint, as the admin page lists it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) workload: String,
    address: String,
    pub(crate) policy: String,
    pub(crate) cause: String,
    pub(crate) age_s: u64,
    threads: usize,
}

/// Returns the endpoints that one sidecar has ejected, or the reason why they are unknown.
pub(crate) async fn of_one(mesh: &Mesh, proxy: &ProxyStatus) -> Result<Vec<Endpoint>, String> {
    let found = sidecars::ask_one::<Removed>(mesh, &proxy.workload, "/removed").await;
    found.map(|found| found.removed)
}

/// Queries every sidecar.
pub(super) async fn query_ejected(mesh: &Mesh, proxies: &[ProxyStatus]) -> Vec<SidecarRemoved> {
    let found = sidecars::query_sidecars(mesh, proxies, "/removed").await;
    let sidecar = |(proxy, found): (&ProxyStatus, Result<Removed, String>)| SidecarRemoved {
        workload: proxy.workload.clone(),
        found: match found {
            Ok(removed) => Found::Known(removed),
            Err(error) => Found::Unknown { error },
        },
    };
    proxies.iter().zip(found).map(sidecar).collect()
}

/// Lists the endpoints of all sidecars in one table.
pub(super) fn ejected_table(all: &[SidecarRemoved]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for sidecar in all {
        let workload = || sidecar.workload.clone();
        match &sidecar.found {
            Found::Unknown { error } => {
                let nothing = std::iter::repeat_n(String::new(), 6);
                listing.add_row([workload()].into_iter().chain(nothing).chain([error.clone()]));
            }
            Found::Known(Removed { removed }) => {
                for endpoint in removed {
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

const COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("service"),
    Column::always("removed"),
    Column::wide("address"),
    Column::always("cause"),
    Column::always("age"),
    Column::wide("threads"),
    Column::always("policy"),
];
