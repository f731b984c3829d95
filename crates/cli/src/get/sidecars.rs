//! Queries the admin endpoints of all sidecars that are connected to a control plane, over their streams to it.

use leno_control::status::ProxyStatus;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::MeshSocket;
use crate::output;

/// Queries `path` at each sidecar, several at a time. Returns the responses in the order of `proxies`. For a
/// sidecar that does not respond, the error is the reason.
pub(super) async fn query_sidecars<T: DeserializeOwned + Send + 'static>(
    mesh: &MeshSocket,
    proxies: &[ProxyStatus],
    path: &'static str,
) -> Vec<Result<T, String>> {
    let mut responses: Vec<Option<Result<T, String>>> = proxies.iter().map(|_| None).collect();
    let mut remaining_proxies = proxies.iter().enumerate();
    let mut query_tasks = JoinSet::new();
    loop {
        while query_tasks.len() < MAX_CONCURRENT_QUERIES
            && let Some((index, proxy)) = remaining_proxies.next()
        {
            let (mesh, workload) = (mesh.clone(), proxy.workload.clone());
            query_tasks.spawn(async move { (index, query_sidecar(&mesh, &workload, path).await) });
        }
        match query_tasks.join_next().await {
            Some(Ok((index, response))) => responses[index] = Some(response),
            Some(Err(error)) => tracing::error!(%error, "the query to a sidecar failed"),
            None => break,
        }
    }
    let or_failed = |response: Option<Result<T, String>>| {
        response.unwrap_or_else(|| Err("the query failed".to_owned()))
    };
    responses.into_iter().map(or_failed).collect()
}

/// Queries the sidecar of one workload.
pub(super) async fn query_sidecar<T: DeserializeOwned>(
    mesh: &MeshSocket,
    workload: &str,
    path: &str,
) -> Result<T, String> {
    let query = async {
        let page = mesh.query_sidecar_page(workload, path).await?;
        anyhow::Ok(serde_json::from_str(&page)?)
    };
    query.await.map_err(|error| output::format_error(&error))
}

/// The maximum number of concurrent queries: half of the control plane's limit.
const MAX_CONCURRENT_QUERIES: usize = 8;
