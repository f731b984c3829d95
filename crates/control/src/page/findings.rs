//! The findings of `leno status` for browsers, collected once and shared by all of them.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::admin::{Questions, parse_query, query_owner, stopping_response};
use crate::answering::typed_response;
use crate::findings::{Facts, NotUnderstood, collect_findings};
use crate::owner::Answer;
use crate::share::Share;
use crate::writable::DataDirectory;

/// The latest findings.
#[derive(Debug)]
pub(super) struct Findings {
    directory: Arc<DataDirectory>,
    latest: Mutex<Option<(Instant, Bytes)>>,
}

/// The control plane is shutting down.
struct Stopping;

impl From<NotUnderstood> for Stopping {
    fn from(error: NotUnderstood) -> Self {
        tracing::error!(%error, "the findings of the mesh cannot be collected");
        Self
    }
}

impl Findings {
    pub(super) fn new(directory: Arc<DataDirectory>) -> Self {
        Self { directory, latest: Mutex::default() }
    }

    /// Returns the findings as JSON. Concurrent requests share one result.
    pub(super) async fn findings_response(
        &self,
        questions: &Questions,
        asking: &Share,
    ) -> Response<Full<Bytes>> {
        let mut latest = self.latest.lock().await;
        let fresh = latest.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR);
        if let Some((_, found)) = fresh {
            return typed_response(StatusCode::OK, "application/json", found.clone());
        }
        let _turn = asking.acquire_turn().await;
        match Facts::collect(|path| self.query_json(questions, path)).await {
            Ok(facts) => {
                let found = Bytes::from(format!("{:#}\n", json!(collect_findings(&facts))));
                *latest = Some((Instant::now(), found.clone()));
                typed_response(StatusCode::OK, "application/json", found)
            }
            Err(Stopping) => stopping_response(),
        }
    }

    /// Returns the JSON at a path of the admin socket.
    async fn query_json(&self, questions: &Questions, path: String) -> Result<Value, Stopping> {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*path, None),
        };
        if path == "/state" {
            return self
                .directory
                .directory_status()
                .await
                .map(|status| json!(status))
                .ok_or(Stopping);
        }
        let question = parse_query(path, query).ok_or(Stopping)?;
        match query_owner(questions, question).await {
            Some(Answer::Json(value)) => Ok(value),
            Some(
                Answer::Metrics(..) | Answer::Objects(_) | Answer::Points(_) | Answer::Sidecar(_),
            )
            | None => Err(Stopping),
        }
    }
}

/// The cache lifetime: findings change within seconds at most, and a page requests them every two seconds.
const FRESH_FOR: Duration = Duration::from_secs(1);
