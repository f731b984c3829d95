//! Reads the configuration and the metrics of a running sidecar from its admin endpoint.

use std::net::SocketAddr;

use serde_json::Value;

use crate::http::get_page;

/// The admin endpoint of a running sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminEndpoint {
    /// The process id of the sidecar.
    pub pid: u32,
    /// The address of the admin endpoint.
    pub address: SocketAddr,
}

impl AdminEndpoint {
    /// Returns the admin endpoint of a workload's sidecar, from the output of `leno get proxies`; `None` if it is not
    /// in the output.
    #[must_use]
    pub fn for_workload(proxies_json: &Value, workload: &str) -> Option<Self> {
        let proxies = proxies_json.as_array()?;
        let proxy = proxies.iter().find(|proxy| proxy["workload"] == workload)?;
        let pid = u32::try_from(proxy["pid"].as_u64()?).ok()?;
        Some(Self { pid, address: proxy["admin"].as_str()?.parse().ok()? })
    }

    /// Returns the complete configuration of the sidecar.
    ///
    /// # Panics
    /// If the admin endpoint does not respond.
    #[must_use]
    pub fn full_configuration(&self) -> Value {
        let response = get_page(self.address, "/config").expect("the admin endpoint responds");
        serde_json::from_slice(&response.body).expect("the configuration is JSON")
    }

    /// Returns the services in the sidecar's configuration.
    ///
    /// # Panics
    /// If the admin endpoint does not respond.
    #[must_use]
    pub fn configured_services(&self) -> Vec<String> {
        let config = self.full_configuration();
        let services = config["services"].as_array().into_iter().flatten();
        services.filter_map(|service| service["name"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the address of the inbound listener for an application port.
    ///
    /// # Panics
    /// If there is no such listener.
    #[must_use]
    pub fn inbound_listener(&self, port: u16) -> SocketAddr {
        let config = self.full_configuration();
        let address = config["open_listeners"][format!("inbound-{port}")].as_str();
        let address = address.unwrap_or_else(|| panic!("no inbound listener in {config}"));
        address.parse().expect("an address")
    }

    /// Returns the address of the sidecar's HTTP proxy listener.
    ///
    /// # Panics
    /// If the sidecar has no HTTP proxy listener.
    #[must_use]
    pub fn http_proxy(&self) -> SocketAddr {
        let config = self.full_configuration();
        let address = config["open_listeners"]["http-proxy"].as_str();
        address
            .unwrap_or_else(|| panic!("no HTTP proxy listener in {config}"))
            .parse()
            .expect("an address")
    }

    /// Returns the value of a metric series, given with its labels; 0 if it is absent.
    ///
    /// # Panics
    /// If the admin endpoint does not respond.
    #[must_use]
    pub fn metric_value(&self, series: &str) -> f64 {
        let response = get_page(self.address, "/metrics").expect("the admin endpoint responds");
        let metrics_text = String::from_utf8_lossy(&response.body).into_owned();
        let value =
            metrics_text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// Returns the number of connections rejected for a reason.
    ///
    /// # Panics
    /// If the admin endpoint does not respond.
    #[must_use]
    pub fn rejected_connections(&self, reason: &str) -> f64 {
        self.metric_value(&format!("leno_connections_rejected_total{{reason=\"{reason}\"}}"))
    }
}
