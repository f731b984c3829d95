//! Endpoints ejected by outlier detection, per sidecar.

use leno_control::status::ProxyStatus;
use serde::{Deserialize, Serialize};

use super::{Mesh, sidecars};
use crate::duration::format_duration;
use crate::output::{Column, Listing};

/// The ejected endpoints of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarEjected {
    workload: String,
    #[serde(flatten)]
    found: Found,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    /// The sidecar's answer.
    Known(Ejected),
    /// The reason why there is no answer.
    Unknown { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Ejected {
    ejected: Vec<Endpoint>,
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
    let found = sidecars::ask_one::<Ejected>(mesh, &proxy.workload, "/ejected").await;
    found.map(|found| found.ejected)
}

/// Queries every sidecar.
pub(super) async fn query_ejected(mesh: &Mesh, proxies: &[ProxyStatus]) -> Vec<SidecarEjected> {
    let found = sidecars::query_sidecars(mesh, proxies, "/ejected").await;
    let sidecar = |(proxy, found): (&ProxyStatus, Result<Ejected, String>)| SidecarEjected {
        workload: proxy.workload.clone(),
        found: match found {
            Ok(ejected) => Found::Known(ejected),
            Err(error) => Found::Unknown { error },
        },
    };
    proxies.iter().zip(found).map(sidecar).collect()
}

/// Lists the endpoints of all sidecars in one table.
pub(super) fn ejected_table(all: &[SidecarEjected]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for sidecar in all {
        let workload = || sidecar.workload.clone();
        match &sidecar.found {
            Found::Unknown { error } => {
                let nothing = std::iter::repeat_n(String::new(), 6);
                listing.add_row([workload()].into_iter().chain(nothing).chain([error.clone()]));
            }
            Found::Known(Ejected { ejected }) => {
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

const COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("service"),
    Column::always("endpoint"),
    Column::wide("address"),
    Column::always("cause"),
    Column::always("age"),
    Column::wide("threads"),
    Column::always("policy"),
];
