//! Asking every sidecar's own admin page.

use leno_control::status::ProxyStatus;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ask;
use crate::output;

/// What each sidecar says at `path`, or why it says nothing; many are asked at a time. One that
/// does not answer costs no more than its own lines.
pub(super) async fn ask<T: DeserializeOwned + Send + 'static>(
    proxies: &[ProxyStatus],
    path: &'static str,
) -> Vec<Result<T, String>> {
    let mut found: Vec<Option<Result<T, String>>> = proxies.iter().map(|_| None).collect();
    let mut waiting = proxies.iter().enumerate();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < AT_ONCE_MAX
            && let Some((index, proxy)) = waiting.next()
        {
            let proxy = proxy.clone();
            asked.spawn(async move { (index, ask_one(&proxy, path).await) });
        }
        match asked.join_next().await {
            Some(Ok((index, answer))) => found[index] = Some(answer),
            Some(Err(error)) => tracing::error!(%error, "asking a sidecar failed"),
            None => break,
        }
    }
    let answer = |answer: Option<Result<T, String>>| {
        answer.unwrap_or_else(|| Err("was not asked".to_owned()))
    };
    found.into_iter().map(answer).collect()
}

async fn ask_one<T: DeserializeOwned>(proxy: &ProxyStatus, path: &str) -> Result<T, String> {
    let answer = async {
        let answer = ask::sidecar(proxy, path).await?;
        anyhow::Ok(serde_json::from_slice(&answer)?)
    };
    match timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(output::failure(&error)),
        Err(_) => Err(format!("its admin page did not answer within {PATIENCE:?}")),
    }
}

/// How many sidecars are asked at the same time.
const AT_ONCE_MAX: usize = 64;
/// How long one may take: it only has to look at what it holds.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
