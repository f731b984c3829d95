//! The application's own metrics, scraped with the sidecar's and appended to them.

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
        let visible = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
        let fits = path.len() <= PATH_BYTES_MAX && path.bytes().all(visible);
        match port.filter(|_| fits) {
            Some(port) => Ok(Self { port, path }),
            None => Err("use a port, or a port and a path, such as 9102/metrics"),
        }
    }
}

impl ApplicationMetrics {
    /// Scrapes the application's metrics, in a form that can be appended to ours.
    ///
    /// # Errors
    /// [`ScrapeError`], within [`READ_MAX`].
    pub(crate) async fn read(&self, config: &Config) -> Result<String, ScrapeError> {
        let address = SocketAddr::new(config.probed_at(), self.port);
        let asked = self.fetch_metrics(address, config);
        let page = timeout(READ_MAX, asked).await.unwrap_or(Err(ScrapeError::Timeout))?;
        let page = std::str::from_utf8(&page).map_err(|_| ScrapeError::Text)?;
        Ok(leno_telemetry::adopt_page(page)?)
    }

    async fn fetch_metrics(
        &self,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Bytes, ScrapeError> {
        let tcp =
            dial_address(address, &config.interception).await.map_err(ScrapeError::Unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(tcp)).await.map_err(broken_response)?;
        let request = Request::get(&self.path)
            .header(HOST, address.to_string())
            .header(ACCEPT, "text/plain;version=0.0.4")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new());
        let request = request.map_err(broken_response)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(broken_response)?;
            if response.status() != hyper::StatusCode::OK {
                return Err(ScrapeError::Status(response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
            Ok(body.map_err(|error| ScrapeError::Broken(error.to_string()))?.to_bytes())
        };
        drive_exchange(connection, exchange, broken_response).await
    }
}

/// The reason why the application's metrics cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrapeError {
    /// The application does not accept the connection.
    #[error("no response: {0}")]
    Unreachable(std::io::Error),
    /// The scrape timed out.
    #[error("not received within {READ_MAX:?}")]
    Timeout,
    /// Too many scrapes are in progress.
    #[error("too many concurrent scrapes")]
    Busy,
    /// The response is not HTTP, or is too large.
    #[error("the response cannot be read: {0}")]
    Broken(String),
    /// The response has a status other than 200.
    #[error("the response has status {0}")]
    Status(u16),
    /// The response is not UTF-8 text.
    #[error("the response is not UTF-8")]
    Text,
    /// The response is not in the exposition format.
    #[error(transparent)]
    Unfit(#[from] InvalidExposition),
}

fn broken_response(error: impl std::fmt::Display) -> ScrapeError {
    ScrapeError::Broken(error.to_string())
}

/// Less than Prometheus's default scrape timeout of 10 s.
const READ_MAX: Duration = Duration::from_secs(5);
/// The maximum size of a page: more than an application exposes that is scraped every few seconds.
const PAGE_BYTES_MAX: usize = 8 << 20;
const PATH_BYTES_MAX: usize = 1024;

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
    fn a_port_and_a_path_are_read() {
        let read = |text: &str| text.parse::<ApplicationMetrics>().ok();
        let expected = |port, path: &str| Some(ApplicationMetrics { port, path: path.to_owned() });
        assert_eq!(read("9102"), expected(9102, "/metrics"));
        assert_eq!(read("9102/"), expected(9102, "/"));
        assert_eq!(read("9102/a/b?c=d"), expected(9102, "/a/b?c=d"));
        for bad in ["", "0", "/metrics", "x/metrics", "70000", "1/a b", "1/a\r\nb", "1/#a"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_read_is_looked_at_and_a_failure_says_why() {
        run(async {
            let page = |status: &str, body: &str| {
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            };
            for (answer, expected) in [
                (page("200 OK", "a 1\nleno_connections 7\n"), "a 1\n"),
                (page("200 OK", "a 1\nb\n"), "line 2 is invalid"),
                (page("200 OK", "\u{e9}\n"), "line 1 is invalid"),
                (page("404 No", ""), "status 404"),
                ("nonsense\r\n\r\n".to_owned(), "cannot be read"),
            ] {
                let app = Application::respond_with(move |_| answer.clone()).await;
                let of_application = format!("{}/m", app.address.port());
                let of_application: ApplicationMetrics = of_application.parse().unwrap();
                match of_application.read(&test_config()).await {
                    Ok(page) => assert_eq!(page, expected),
                    Err(unread) => assert!(unread.to_string().contains(expected), "{unread}"),
                }
            }
            let nobody: ApplicationMetrics = closed_port().port().to_string().parse().unwrap();
            let unread = nobody.read(&test_config()).await.unwrap_err();
            assert!(unread.to_string().contains("no response"), "{unread}");
        });
    }
}
