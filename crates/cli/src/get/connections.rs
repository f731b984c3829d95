//! The connections that sidecars hold, asked of each sidecar's own admin page.

use leno_control::status::ProxyStatus;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ask;
use crate::duration::short;
use crate::output::{Column, Listing};

/// The connections of one sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarConnections {
    workload: String,
    admin: Option<String>,
    #[serde(flatten)]
    found: Found,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    /// What it said.
    Open(Open),
    /// Why it said nothing.
    Unknown { error: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Open {
    /// How many there are; more may be open than are shown.
    open: usize,
    connections: Vec<Connection>,
}

/// One connection, as the admin page tells it.
#[derive(Debug, Serialize, Deserialize)]
struct Connection {
    direction: String,
    protocol: String,
    peer: String,
    identity: String,
    target: String,
    age_s: u64,
}

/// Asks every sidecar, many at a time. One that does not answer costs no more than its own lines.
pub(super) async fn of(proxies: &[ProxyStatus]) -> Vec<SidecarConnections> {
    let mut found: Vec<Option<Found>> = proxies.iter().map(|_| None).collect();
    let mut waiting = proxies.iter().enumerate();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < AT_ONCE_MAX
            && let Some((index, proxy)) = waiting.next()
        {
            let admin = proxy.admin.clone();
            asked.spawn(async move { (index, ask_one(admin).await) });
        }
        match asked.join_next().await {
            Some(Ok((index, answer))) => found[index] = Some(answer),
            Some(Err(error)) => tracing::error!(%error, "asking a sidecar failed"),
            None => break,
        }
    }
    let sidecar = |(proxy, found): (&ProxyStatus, Option<Found>)| SidecarConnections {
        workload: proxy.workload.clone(),
        admin: proxy.admin.clone(),
        found: found.unwrap_or_else(|| Found::Unknown { error: "was not asked".to_owned() }),
    };
    proxies.iter().zip(found).map(sidecar).collect()
}

async fn ask_one(admin: Option<String>) -> Found {
    let Some(admin) = admin else {
        return Found::Unknown { error: "it has no admin page".to_owned() };
    };
    let answer = async {
        let answer = ask::admin(admin.parse()?, "/connections").await?;
        anyhow::Ok(serde_json::from_slice(&answer)?)
    };
    match timeout(PATIENCE, answer).await {
        Ok(Ok(open)) => Found::Open(open),
        Ok(Err(error)) => Found::Unknown { error: format!("{error:#}") },
        Err(_) => Found::Unknown { error: format!("{admin} did not answer within {PATIENCE:?}") },
    }
}

/// All connections as one table.
pub(super) fn table(all: &[SidecarConnections]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for sidecar in all {
        let workload = || sidecar.workload.clone();
        match &sidecar.found {
            Found::Unknown { error } => {
                let nothing = std::iter::repeat_n(String::new(), 5);
                listing.row([workload()].into_iter().chain(nothing).chain([error.clone()]));
            }
            Found::Open(Open { connections, .. }) => {
                for connection in connections {
                    listing.row([
                        workload(),
                        connection.direction.clone(),
                        connection.protocol.clone(),
                        connection.peer.clone(),
                        connection.identity.clone(),
                        short(std::time::Duration::from_secs(connection.age_s)),
                        connection.target.clone(),
                    ]);
                }
            }
        }
    }
    listing
}

/// How many sidecars are asked at the same time.
const AT_ONCE_MAX: usize = 64;
/// How long one may take: it only has to look at what it holds.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

const COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("direction"),
    Column::always("protocol"),
    Column::always("peer"),
    Column::always("identity"),
    Column::always("age"),
    Column::always("target"),
];
