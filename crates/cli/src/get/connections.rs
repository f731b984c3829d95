//! `leno get connections`: queries the sidecars for their open connections, and lists them.

use leno_control::status::ProxyStatus;
use serde::{Deserialize, Serialize};

use super::{MeshSocket, sidecars};
use crate::duration::format_duration;
use crate::output::{Listing, ListingColumn};

/// The connections of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarConnectionList {
    workload: String,
    /// The address of the sidecar's admin endpoint; `None` if the sidecar does not report it.
    admin: Option<String>,
    #[serde(flatten)]
    result: ConnectionsResult,
}

/// The response of one sidecar to a query for its connections.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ConnectionsResult {
    /// The sidecar's response.
    Listed(ConnectionList),
    /// The sidecar did not respond, for this reason.
    Failed { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct ConnectionList {
    /// The number of open connections; `connections` may list fewer.
    open: usize,
    connections: Vec<ListedConnection>,
}

/// A connection, as the sidecar's admin endpoint `/connections` lists it.
#[derive(Debug, Serialize, Deserialize)]
struct ListedConnection {
    direction: String,
    protocol: String,
    peer: String,
    identity: String,
    target: String,
    /// The time since the connection was opened, in seconds.
    age_s: u64,
}

/// Queries the open connections of every sidecar; the results have the order of `proxies`.
pub(super) async fn query_connections(
    mesh: &MeshSocket,
    proxies: &[ProxyStatus],
) -> Vec<SidecarConnectionList> {
    let results = sidecars::query_sidecars(mesh, proxies, "/connections").await;
    let to_sidecar =
        |(proxy, result): (&ProxyStatus, Result<ConnectionList, String>)| SidecarConnectionList {
            workload: proxy.workload.clone(),
            admin: proxy.admin.clone(),
            result: match result {
                Ok(list) => ConnectionsResult::Listed(list),
                Err(error) => ConnectionsResult::Failed { error },
            },
        };
    proxies.iter().zip(results).map(to_sidecar).collect()
}

/// Lists all connections in one table.
pub(super) fn connection_table(sidecars: &[SidecarConnectionList]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for sidecar in sidecars {
        let workload = || sidecar.workload.clone();
        match &sidecar.result {
            ConnectionsResult::Failed { error } => {
                let empty_cells = std::iter::repeat_n(String::new(), COLUMNS.len() - 2);
                listing.add_row([workload()].into_iter().chain(empty_cells).chain([error.clone()]));
            }
            ConnectionsResult::Listed(ConnectionList { connections, .. }) => {
                for connection in connections {
                    listing.add_row([
                        workload(),
                        connection.direction.clone(),
                        connection.protocol.clone(),
                        connection.peer.clone(),
                        connection.identity.clone(),
                        format_duration(std::time::Duration::from_secs(connection.age_s)),
                        connection.target.clone(),
                    ]);
                }
            }
        }
    }
    listing
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("workload"),
    ListingColumn::always("direction"),
    ListingColumn::always("protocol"),
    ListingColumn::always("peer"),
    ListingColumn::always("identity"),
    ListingColumn::always("age"),
    ListingColumn::always("target"),
];
