//! Returns the findings of `leno status` to browsers. All browsers share a cached result.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::admin::{AdminQueries, parse_query, query_state_task, stopping_response};
use crate::data_directory::DataDirectory;
use crate::findings::{FindingInputs, UnparsableResponse, collect_findings};
use crate::http_server::typed_response;
use crate::query_share::QueryShare;
use crate::state_task::AdminResponse;

/// A cache of the latest findings as JSON, with the time at which they were collected.
#[derive(Debug)]
pub(super) struct FindingsCache {
    directory: Arc<DataDirectory>,
    /// `None` before the first request.
    cached_findings: Mutex<Option<(Instant, Bytes)>>,
}

/// The error if the findings cannot be collected, usually because the control plane is shutting down.
struct ShuttingDown;

impl From<UnparsableResponse> for ShuttingDown {
    fn from(error: UnparsableResponse) -> Self {
        tracing::error!(%error, "the findings of the mesh cannot be collected");
        Self
    }
}

impl FindingsCache {
    pub(super) fn new(directory: Arc<DataDirectory>) -> Self {
        Self { directory, cached_findings: Mutex::default() }
    }

    /// Returns the findings as JSON. Concurrent requests share one result.
    pub(super) async fn findings_response(
        &self,
        queries: &AdminQueries,
        query_share: &QueryShare,
    ) -> Response<Full<Bytes>> {
        let mut cached_findings = self.cached_findings.lock().await;
        let fresh_findings = cached_findings
            .as_ref()
            .filter(|(collected_at, _)| collected_at.elapsed() < CACHE_LIFETIME);
        if let Some((_, findings)) = fresh_findings {
            return typed_response(StatusCode::OK, "application/json", findings.clone());
        }
        let _turn = query_share.acquire_turn().await;
        match FindingInputs::collect(|path| self.query_json(queries, path)).await {
            Ok(inputs) => {
                let findings = Bytes::from(format!("{:#}\n", json!(collect_findings(&inputs))));
                *cached_findings = Some((Instant::now(), findings.clone()));
                typed_response(StatusCode::OK, "application/json", findings)
            }
            Err(ShuttingDown) => stopping_response(),
        }
    }

    /// Returns the JSON at a path of the admin socket.
    async fn query_json(
        &self,
        queries: &AdminQueries,
        path: String,
    ) -> Result<Value, ShuttingDown> {
        let (path, query_string) = match path.split_once('?') {
            Some((path, query_string)) => (path, Some(query_string)),
            None => (&*path, None),
        };
        if path == "/state" {
            return self
                .directory
                .directory_status()
                .await
                .map(|status| json!(status))
                .ok_or(ShuttingDown);
        }
        let admin_query = parse_query(path, query_string).ok_or(ShuttingDown)?;
        match query_state_task(queries, admin_query).await {
            Some(AdminResponse::Json(value)) => Ok(value),
            Some(
                AdminResponse::Metrics(..)
                | AdminResponse::Objects(_)
                | AdminResponse::Points(_)
                | AdminResponse::Sidecar(_),
            )
            | None => Err(ShuttingDown),
        }
    }
}

/// The lifetime of the cached findings. A page requests them every two seconds, and so receives newer ones each time.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);
