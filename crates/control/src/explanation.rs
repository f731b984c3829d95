//! Explains the decisions for a request on the current mesh without sending it, for the browser page and
//! `leno explain`.
//!
//! The program that contains the control plane supplies the decision code; the control plane only provides its objects.

use std::fmt;
use std::sync::Arc;

use hyper::StatusCode;
use leno_model::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::http_server::decode_percent;

/// A function that explains requests on the objects of the mesh.
#[derive(Clone)]
pub struct Explainer(Arc<ExplainFn>);

type ExplainFn = dyn Fn(&[Object], &ExplainRequest) -> Result<Explanation, String> + Send + Sync;

/// The explanation of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Text for people, line by line; the last line is the verdict.
    pub text: String,
    /// The decision as JSON.
    pub decision: Value,
}

/// A request to explain, not validated yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRequest {
    /// The client workload, or an account.
    pub from: String,
    /// The requested URL.
    pub url: String,
    /// The method of the request.
    pub method: String,
    /// The headers of the request, each as `NAME: VALUE`.
    pub headers: Vec<String>,
}

impl Explainer {
    /// Creates an explainer from a function that returns the explanation, or the problem with the request.
    pub fn new(
        explain: impl Fn(&[Object], &ExplainRequest) -> Result<Explanation, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(explain))
    }
}

/// Runs one explanation at a time. An explanation that has started runs to its end, even if its client
/// disconnects.
#[derive(Debug, Clone)]
pub(crate) struct ExplainRunner {
    explainer: Option<Explainer>,
    /// A single permit, held while an explanation runs.
    run_permit: Arc<Semaphore>,
}

impl ExplainRunner {
    /// Creates a runner; without an explainer, explanations are unavailable.
    pub(crate) fn with_explainer(explainer: Option<Explainer>) -> Self {
        Self { explainer, run_permit: Arc::new(Semaphore::new(1)) }
    }

    /// Explains the request that `query` describes. Waits until no other explanation is running, and only then reads
    /// the objects of the mesh. On error, returns the status and the problem.
    pub(crate) async fn explain_query(
        &self,
        query: &str,
        objects: impl Future<Output = Option<Vec<Object>>>,
    ) -> Result<Explanation, (StatusCode, String)> {
        let bad_request = |reason| (StatusCode::BAD_REQUEST, reason);
        let shutting_down_error = || (StatusCode::SERVICE_UNAVAILABLE, STOPPING_REASON.to_owned());
        let Some(explainer) = self.explainer.clone() else {
            return Err((StatusCode::NOT_FOUND, NO_EXPLAINER_REASON.to_owned()));
        };
        let request = ExplainRequest::parse(query).map_err(bad_request)?;
        let permit = Arc::clone(&self.run_permit)
            .acquire_owned()
            .await
            .map_err(|_| shutting_down_error())?;
        let objects = objects.await.ok_or_else(shutting_down_error)?;
        // An explanation compiles the whole mesh, so it runs on a blocking thread.
        let explain = move || {
            let explanation = (explainer.0)(&objects, &request);
            drop(permit);
            explanation
        };
        let explanation = tokio::task::spawn_blocking(explain).await;
        explanation.map_err(|_| shutting_down_error())?.map_err(bad_request)
    }
}

#[cfg(test)]
impl ExplainRunner {
    /// True if no explanation is running.
    pub(crate) fn is_idle(&self) -> bool {
        self.run_permit.available_permits() > 0
    }

    /// Waits until no explanation is running.
    pub(crate) async fn wait_until_idle(&self) {
        drop(self.run_permit.acquire().await.unwrap());
    }
}

impl fmt::Debug for Explainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Explainer")
    }
}

impl ExplainRequest {
    /// Parses `from=…&url=…&method=…&header=…`, percent-encoded; unknown parameters are rejected.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let method = "GET".to_owned();
        let mut request =
            Self { from: String::new(), url: String::new(), method, headers: Vec::new() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value =
                decode_percent(value).ok_or_else(|| format!("`{name}` is not percent-encoded"))?;
            match name {
                "from" => request.from = value,
                "url" => request.url = value,
                "method" => request.method = value,
                "header" if request.headers.len() < MAX_HEADERS => request.headers.push(value),
                "header" => return Err(format!("there are more than {MAX_HEADERS} headers")),
                _ => return Err(format!("`{name}` is unknown: use from, url, method, header")),
            }
        }
        Ok(request)
    }
}

const NO_EXPLAINER_REASON: &str = "this control plane does not explain requests\n";
const STOPPING_REASON: &str = "the control plane is shutting down\n";

/// Maximum headers of an explained request.
const MAX_HEADERS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explain_request_is_parsed_from_a_query() {
        let request = ExplainRequest::parse(
            "from=a%2Fb-1&url=http%3A%2F%2Fx%2F%3Fq%3D%C3%A9&header=a%3A%20b",
        );
        let expected = ExplainRequest {
            from: "a/b-1".to_owned(),
            url: "http://x/?q=é".to_owned(),
            method: "GET".to_owned(),
            headers: vec!["a: b".to_owned()],
        };
        assert_eq!(request, Ok(expected));
        for invalid in ["from=%", "from=%2", "from=%zz", "from=%+1", "from=%ff", "to=a"] {
            assert!(ExplainRequest::parse(invalid).is_err(), "{invalid}");
        }
        assert!(ExplainRequest::parse(&"header=a&".repeat(MAX_HEADERS + 1)).is_err());
    }
}
