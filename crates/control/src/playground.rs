//! What would decide a request, on the mesh as it is: for the page, and for `leno explain`.
//!
//! Whoever assembles the program has the code that decides; the control plane only lends its objects.

use std::fmt;
use std::sync::Arc;

use hyper::StatusCode;
use leno_model::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::answering::decoded;

/// Explains requests on the objects that are in force.
#[derive(Clone)]
pub struct Playground(Arc<Explain>);

type Explain = dyn Fn(&[Object], &Asked) -> Result<Explained, String> + Send + Sync;

/// What would decide a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// For people, line by line; the last one is the verdict.
    pub text: String,
    /// The same for programs.
    pub decision: Value,
}

/// A request as it is asked about; nothing of it is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The workload that would make it, or an account.
    pub from: String,
    /// What it would ask for.
    pub url: String,
    /// Its method.
    pub method: String,
    /// Its headers, each as `NAME: VALUE`.
    pub headers: Vec<String>,
}

impl Playground {
    /// With what explains: the answer, or what is wrong with the question.
    pub fn new(
        explain: impl Fn(&[Object], &Asked) -> Result<Explained, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(explain))
    }
}

/// Where requests are explained: one at a time, whether or not somebody still waits for it.
#[derive(Debug, Clone)]
pub(crate) struct Explaining {
    playground: Option<Playground>,
    turns: Arc<Semaphore>,
}

impl Explaining {
    /// Without a playground nothing can be explained.
    pub(crate) fn with(playground: Option<Playground>) -> Self {
        Self { playground, turns: Arc::new(Semaphore::new(1)) }
    }

    /// What would decide the request that a query describes, on the objects that are in force when
    /// its turn comes; or the status and what is wrong.
    pub(crate) async fn explain(
        &self,
        query: &str,
        objects: impl Future<Output = Option<Vec<Object>>>,
    ) -> Result<Explained, (StatusCode, String)> {
        let refused = |reason| (StatusCode::BAD_REQUEST, reason);
        let stopping = || (StatusCode::SERVICE_UNAVAILABLE, STOPPING.to_owned());
        let Some(playground) = self.playground.clone() else {
            return Err((StatusCode::NOT_FOUND, UNABLE.to_owned()));
        };
        let asked = Asked::parse(query).map_err(refused)?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| stopping())?;
        let objects = objects.await.ok_or_else(stopping)?;
        // It compiles the whole mesh: nobody else is to wait for that.
        let explained = move || {
            let explained = (playground.0)(&objects, &asked);
            drop(turn);
            explained
        };
        let explained = tokio::task::spawn_blocking(explained).await;
        explained.map_err(|_| stopping())?.map_err(refused)
    }
}

#[cfg(test)]
impl Explaining {
    /// Whether nothing is explained now.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.available_permits() > 0
    }

    /// Waits until nothing is.
    pub(crate) async fn idle(&self) {
        drop(self.turns.acquire().await.unwrap());
    }
}

impl fmt::Debug for Playground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Playground")
    }
}

impl Asked {
    /// Reads `from=…&url=…&method=…&header=…`, percent-encoded; unknown parts are refused.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let method = "GET".to_owned();
        let mut asked =
            Self { from: String::new(), url: String::new(), method, headers: Vec::new() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value).ok_or_else(|| format!("`{name}` is not percent-encoded"))?;
            match name {
                "from" => asked.from = value,
                "url" => asked.url = value,
                "method" => asked.method = value,
                "header" if asked.headers.len() < HEADERS_MAX => asked.headers.push(value),
                "header" => return Err(format!("there are more than {HEADERS_MAX} headers")),
                _ => return Err(format!("`{name}` is not known: use from, url, method, header")),
            }
        }
        Ok(asked)
    }
}

const UNABLE: &str = "this control plane explains no requests\n";
const STOPPING: &str = "the control plane is shutting down\n";

/// More than anybody types.
const HEADERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_from_a_query() {
        let asked = Asked::parse("from=a%2Fb-1&url=http%3A%2F%2Fx%2F%3Fq%3D%C3%A9&header=a%3A%20b");
        let expected = Asked {
            from: "a/b-1".to_owned(),
            url: "http://x/?q=é".to_owned(),
            method: "GET".to_owned(),
            headers: vec!["a: b".to_owned()],
        };
        assert_eq!(asked, Ok(expected));
        for bad in ["from=%", "from=%2", "from=%zz", "from=%+1", "from=%ff", "to=a"] {
            assert!(Asked::parse(bad).is_err(), "{bad}");
        }
        assert!(Asked::parse(&"header=a&".repeat(HEADERS_MAX + 1)).is_err());
    }
}
