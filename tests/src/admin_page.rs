//! A running sidecar as its admin page shows it.

use std::net::SocketAddr;

use serde_json::Value;

use crate::http::get_page;

/// The admin page of a running sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminPage {
    /// The sidecar's process.
    pub pid: u32,
    /// Where the page is.
    pub address: SocketAddr,
}

impl AdminPage {
    /// That of a workload's sidecar, of those that `leno get proxies` lists.
    #[must_use]
    pub fn of(proxies: &Value, workload: &str) -> Option<Self> {
        let proxies = proxies.as_array()?;
        let proxy = proxies.iter().find(|proxy| proxy["workload"] == workload)?;
        let pid = u32::try_from(proxy["pid"].as_u64()?).ok()?;
        Some(Self { pid, address: proxy["admin"].as_str()?.parse().ok()? })
    }

    /// All that it knows.
    ///
    /// # Panics
    /// When its admin page does not answer.
    #[must_use]
    pub fn world(&self) -> Value {
        let response = get_page(self.address, "/world").expect("the admin page answers");
        serde_json::from_slice(&response.body).expect("the world is JSON")
    }

    /// The services that it knows.
    ///
    /// # Panics
    /// When its admin page does not answer.
    #[must_use]
    pub fn services(&self) -> Vec<String> {
        let world = self.world();
        let services = world["services"].as_array().into_iter().flatten();
        services.filter_map(|service| service["name"].as_str().map(str::to_owned)).collect()
    }

    /// Where it accepts mutual TLS for a port of its application.
    ///
    /// # Panics
    /// When there is no such listener.
    #[must_use]
    pub fn inbound(&self, port: u16) -> SocketAddr {
        let world = self.world();
        let address = world["doors"][format!("inbound-{port}")].as_str();
        let address = address.unwrap_or_else(|| panic!("no inbound listener in {world}"));
        address.parse().expect("an address")
    }

    /// Its HTTP proxy door.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn http_proxy(&self) -> SocketAddr {
        let world = self.world();
        let address = world["doors"]["http-proxy"].as_str();
        address
            .unwrap_or_else(|| panic!("no HTTP proxy door in {world}"))
            .parse()
            .expect("an address")
    }

    /// The value of a series of its metrics, named with its labels; 0 when it is not there.
    ///
    /// # Panics
    /// When its admin page does not answer.
    #[must_use]
    pub fn metric(&self, series: &str) -> f64 {
        let response = get_page(self.address, "/metrics").expect("the admin page answers");
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// How many connections it refused for a reason.
    ///
    /// # Panics
    /// When its admin page does not answer.
    #[must_use]
    pub fn refused(&self, reason: &str) -> f64 {
        self.metric(&format!("leno_connections_refused_total{{reason=\"{reason}\"}}"))
    }
}
