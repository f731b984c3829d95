//! A workload's sidecar under test: its process, listeners, memory and metrics.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::eventually;
use crate::http::get_page;
use crate::mesh::TestMesh;

/// A workload's sidecar.
#[derive(Debug, Clone)]
pub struct RunningSidecar {
    /// The process id.
    pub pid: u32,
    /// The address of the admin endpoint.
    pub admin: SocketAddr,
    /// The address of the HTTP proxy listener.
    pub proxy: SocketAddr,
    /// The address of the inbound listener for the application's first port, if any.
    pub inbound: Option<SocketAddr>,
}

impl TestMesh {
    /// Returns the sidecar of a workload, `namespace/name`.
    ///
    /// # Panics
    /// If the sidecar does not exist.
    #[must_use]
    pub fn sidecar(&self, workload: &str) -> RunningSidecar {
        let condition = format!("the sidecar of {workload} is there");
        eventually(&condition, Duration::from_secs(20), || self.find_sidecar(workload)).0
    }

    fn find_sidecar(&self, workload: &str) -> Option<RunningSidecar> {
        let proxies = self.get_json("proxies");
        let proxy = find_named(&proxies, "workload", workload)?;
        let workloads = self.get_json("workloads");
        let listeners = find_named(&workloads, "name", workload)?["listeners"].as_object()?;
        let admin = parse_address(&proxy["admin"])?;
        let config = get_page(admin, "/config").ok()?;
        let config: Value = serde_json::from_slice(&config.body).ok()?;
        Some(RunningSidecar {
            pid: u32::try_from(proxy["pid"].as_u64()?).ok()?,
            admin,
            proxy: parse_address(&config["open_listeners"]["http-proxy"])?,
            inbound: listeners.values().next().and_then(parse_address),
        })
    }
}

impl RunningSidecar {
    /// Returns the private dirty memory of the sidecar in KiB. Clean program pages are excluded: the kernel counts them
    /// as private once no other process runs the same program, such as a concurrent test.
    ///
    /// # Panics
    /// If the process has exited.
    #[must_use]
    pub fn private_kib(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.pid);
        let smaps_text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let private_dirty = smaps_text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
        let kib = private_dirty.and_then(|kib| kib.strip_suffix("kB")?.trim().parse().ok());
        kib.unwrap_or_else(|| panic!("{path} has no value: {smaps_text}"))
    }

    /// Returns the sum of the metrics with lines that begin with `series_prefix`; 0 if there are none.
    ///
    /// # Panics
    /// If the admin endpoint does not respond.
    #[must_use]
    pub fn sum_metrics(&self, series_prefix: &str) -> f64 {
        let page = get_page(self.admin, "/metrics").expect("the admin endpoint responds");
        let metrics_text = String::from_utf8_lossy(&page.body).into_owned();
        let lines = metrics_text.lines().filter(|line| line.starts_with(series_prefix));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }
}

fn find_named<'a>(objects: &'a Value, key: &str, name: &str) -> Option<&'a Value> {
    objects.as_array()?.iter().find(|object| object[key] == name)
}

fn parse_address(value: &Value) -> Option<SocketAddr> {
    value.as_str()?.parse().ok()
}
