//! Queries to all sidecars of a control plane, over their open streams.

use leno_control::status::ProxyStatus;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::MeshSocket;
use crate::output;

/// Queries `path` at each sidecar, several at a time. Returns the answers, or the reasons why there are none. A
/// sidecar that does not answer affects only its own row.
pub(super) async fn query_sidecars<T: DeserializeOwned + Send + 'static>(
    mesh: &MeshSocket,
    proxies: &[ProxyStatus],
    path: &'static str,
) -> Vec<Result<T, String>> {
    let mut found: Vec<Option<Result<T, String>>> = proxies.iter().map(|_| None).collect();
    let mut waiting = proxies.iter().enumerate();
    let mut queried = JoinSet::new();
    loop {
        while queried.len() < AT_ONCE_MAX
            && let Some((index, proxy)) = waiting.next()
        {
            let (mesh, workload) = (mesh.clone(), proxy.workload.clone());
            queried.spawn(async move { (index, ask_one(&mesh, &workload, path).await) });
        }
        match queried.join_next().await {
            Some(Ok((index, answer))) => found[index] = Some(answer),
            Some(Err(error)) => tracing::error!(%error, "the query to a sidecar failed"),
            None => break,
        }
    }
    let answer = |answer: Option<Result<T, String>>| {
        answer.unwrap_or_else(|| Err("the query failed".to_owned()))
    };
    found.into_iter().map(answer).collect()
}

/// Queries the sidecar of one workload.
pub(super) async fn ask_one<T: DeserializeOwned>(
    mesh: &MeshSocket,
    workload: &str,
    path: &str,
) -> Result<T, String> {
    let answer = async {
        let answer = mesh.sidecar_page(workload, path).await?;
        anyhow::Ok(serde_json::from_str(&answer)?)
    };
    answer.await.map_err(|error| output::format_error(&error))
}

/// The maximum of concurrent queries: half of the control plane's limit.
const AT_ONCE_MAX: usize = 8;
