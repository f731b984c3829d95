//! Scrapes the application's own metrics. They are read with each request for the sidecar's metrics, validated, and
//! appended to the response.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST};
use hyper_util::rt::TokioIo;
use leno_outside::drive_exchange;
use leno_telemetry::InvalidExposition;
use tokio::time::timeout;

use crate::config::Config;
use crate::dial::dial_address;

/// The address of the application's own metrics: `PORT` or `PORT/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplicationMetrics {
    port: u16,
    /// The path, beginning with a slash.
    path: String,
}

impl FromStr for ApplicationMetrics {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (port, path) = match text.split_once('/') {
            Some((port, path)) => (port, format!("/{path}")),
            None => (text, "/metrics".to_owned()),
        };
        let port = port.parse().ok().filter(|port| *port != 0);
        let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
        let is_valid_path = path.len() <= MAX_PATH_BYTES && path.bytes().all(is_visible);
        match port.filter(|_| is_valid_path) {
            Some(port) => Ok(Self { port, path }),
            None => Err("use a port, or a port and a path, such as 9102/metrics"),
        }
    }
}

impl ApplicationMetrics {
    /// Scrapes the application's metrics, in a form that can be appended to the sidecar's own metrics.
    ///
    /// # Errors
    /// [`ScrapeError`] if the metrics are not read within [`SCRAPE_TIMEOUT`] or are not valid.
    pub(crate) async fn scrape(&self, config: &Config) -> Result<String, ScrapeError> {
        let address = SocketAddr::new(config.probe_address(), self.port);
        let fetch = self.fetch_metrics(address, config);
        let body = timeout(SCRAPE_TIMEOUT, fetch).await.unwrap_or(Err(ScrapeError::Timeout))?;
        let text = std::str::from_utf8(&body).map_err(|_| ScrapeError::InvalidUtf8)?;
        Ok(leno_telemetry::sanitize_exposition(text)?)
    }

    /// Fetches the metrics over HTTP/1.1, without validating them.
    async fn fetch_metrics(
        &self,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Bytes, ScrapeError> {
        let tcp =
            dial_address(address, &config.interception).await.map_err(ScrapeError::Unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(tcp)).await.map_err(unreadable_response)?;
        let request = Request::get(&self.path)
            .header(HOST, address.to_string())
            .header(ACCEPT, "text/plain;version=0.0.4")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new());
        let request = request.map_err(unreadable_response)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(unreadable_response)?;
            if response.status() != hyper::StatusCode::OK {
                return Err(ScrapeError::Status(response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), MAX_METRICS_BYTES).collect().await;
            Ok(body.map_err(|error| ScrapeError::Unreadable(error.to_string()))?.to_bytes())
        };
        drive_exchange(connection, exchange, unreadable_response).await
    }
}

/// The reason why the application's metrics cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrapeError {
    /// The connection to the application cannot be opened.
    #[error("no response: {0}")]
    Unreachable(std::io::Error),
    /// The scrape timed out.
    #[error("not received within {SCRAPE_TIMEOUT:?}")]
    Timeout,
    /// Too many scrapes are in progress.
    #[error("too many concurrent scrapes")]
    Busy,
    /// The response is not HTTP, or is larger than [`MAX_METRICS_BYTES`].
    #[error("the response cannot be read: {0}")]
    Unreadable(String),
    /// The response has a status other than 200.
    #[error("the response has status {0}")]
    Status(u16),
    /// The response is not UTF-8 text.
    #[error("the response is not UTF-8")]
    InvalidUtf8,
    /// The response is not in the exposition format.
    #[error(transparent)]
    InvalidFormat(#[from] InvalidExposition),
}

fn unreadable_response(error: impl std::fmt::Display) -> ScrapeError {
    ScrapeError::Unreadable(error.to_string())
}

/// The time limit of a scrape: less than Prometheus's default scrape timeout of 10 s.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of the application's metrics in bytes: they are held in memory while they are validated.
const MAX_METRICS_BYTES: usize = 8 << 20;
/// The maximum length of the path in bytes.
const MAX_PATH_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::{Application, closed_port, run};

    fn test_config() -> Config {
        let workload = leno_model::WorkloadName::new("shop", "web-1").unwrap();
        let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
        Config::for_sidecar(workload, domain, "/nowhere".into())
    }

    #[test]
    fn an_address_is_a_port_with_an_optional_path() {
        let parse = |text: &str| text.parse::<ApplicationMetrics>().ok();
        let expected = |port, path: &str| Some(ApplicationMetrics { port, path: path.to_owned() });
        assert_eq!(parse("9102"), expected(9102, "/metrics"));
        assert_eq!(parse("9102/"), expected(9102, "/"));
        assert_eq!(parse("9102/a/b?c=d"), expected(9102, "/a/b?c=d"));
        for invalid in ["", "0", "/metrics", "x/metrics", "70000", "1/a b", "1/a\r\nb", "1/#a"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_scraped_page_is_validated_and_errors_give_the_cause() {
        run(async {
            let page = |status: &str, body: &str| {
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            };
            for (response, expected) in [
                (page("200 OK", "a 1\nleno_connections 7\n"), "a 1\n"),
                (page("200 OK", "a 1\nb\n"), "line 2 is invalid"),
                (page("200 OK", "\u{e9}\n"), "line 1 is invalid"),
                (page("404 No", ""), "status 404"),
                ("nonsense\r\n\r\n".to_owned(), "cannot be read"),
            ] {
                let app = Application::respond_with(move |_| response.clone()).await;
                let metrics = format!("{}/m", app.address.port());
                let metrics: ApplicationMetrics = metrics.parse().unwrap();
                match metrics.scrape(&test_config()).await {
                    Ok(page) => assert_eq!(page, expected),
                    Err(error) => assert!(error.to_string().contains(expected), "{error}"),
                }
            }
            let unreachable: ApplicationMetrics = closed_port().port().to_string().parse().unwrap();
            let error = unreachable.scrape(&test_config()).await.unwrap_err();
            assert!(error.to_string().contains("no response"), "{error}");
        });
    }
}
