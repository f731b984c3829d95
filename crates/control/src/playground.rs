//! The playground of the page: what would decide a request, on the mesh as it is.
//!
//! Whoever assembles the program has the code that decides; the control plane only lends its objects.

use std::fmt;
use std::sync::Arc;

use leno_model::Object;

use crate::answering::decoded;

/// Explains requests on the objects that are in force.
#[derive(Clone)]
pub struct Playground(Arc<Explain>);

type Explain = dyn Fn(&[Object], &Asked) -> Result<String, String> + Send + Sync;

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
    /// With what explains: the text of the answer, or what is wrong with the question.
    pub fn new(
        explain: impl Fn(&[Object], &Asked) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(explain))
    }

    pub(crate) fn explain(&self, objects: &[Object], asked: &Asked) -> Result<String, String> {
        (self.0)(objects, asked)
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
