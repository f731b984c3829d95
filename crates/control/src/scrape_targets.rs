//! Lists the metrics addresses of all sidecars for the HTTP service discovery of Prometheus.

use leno_listen::ConnectionSource;
use serde_json::{Value, json};

use crate::status::ProxyStatus;

/// The location of a Prometheus server. A server reaches the loopback addresses only of its own machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scraper {
    /// On the machine of the control plane.
    Local,
    /// On another machine, by its address.
    Remote,
}

impl Scraper {
    pub(crate) const fn from_source(source: ConnectionSource) -> Self {
        if source.is_local() { Self::Local } else { Self::Remote }
    }
}

/// Returns one target group for each sidecar with an admin endpoint that the scraper can reach. A sidecar whose
/// reported admin address is not its own has no group.
pub(crate) fn target_groups(proxies: &[ProxyStatus], scraper: Scraper) -> Value {
    let groups = proxies.iter().filter_map(|proxy| {
        let (namespace, name) = proxy.workload.split_once('/')?;
        let target = proxy.admin.as_ref().filter(|address| scraper.can_reach(address))?;
        let labels = json!({ "workload_namespace": namespace, "workload": name });
        Some(json!({ "targets": [target], "labels": labels }))
    });
    groups.collect()
}

impl Scraper {
    /// True if the scraper can connect to this address of a sidecar.
    fn can_reach(self, target: &str) -> bool {
        let address =
            target.parse().map(|address: std::net::SocketAddr| address.ip().to_canonical());
        self == Self::Local || !address.is_ok_and(|address| address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_status(workload: &str, admin: Option<&str>, reported: Option<&str>) -> ProxyStatus {
        serde_json::from_value(json!({
            "workload": workload, "connection": 1, "connected_seconds": 1.0, "pid": 1, "version": "",
            "admin": admin, "reported_admin": reported, "subscriptions": [], "services": 0, "rejected": 0,
            "rejections": [],
        }))
        .unwrap()
    }

    #[test]
    fn sidecars_with_an_admin_endpoint_that_the_scraper_reaches_are_targets() {
        let proxies = [
            proxy_status("shop/a-1", Some("127.0.0.1:4000"), None),
            proxy_status("shop/b-1", None, None),
            proxy_status("shop/c-1", Some("192.0.2.7:4000"), None),
            proxy_status("shop/d-1", None, Some("127.0.0.1:4000")),
            proxy_status("shop/e-1", Some("[::1]:4000"), None),
        ];
        let targets = |source: &str| {
            let source = ConnectionSource::from(source.parse::<std::net::IpAddr>().unwrap());
            let target_list = target_groups(&proxies, Scraper::from_source(source));
            let groups = target_list.as_array().unwrap().iter();
            let texts = groups
                .map(|group| format!("{} {}", group["labels"]["workload"], group["targets"][0]));
            texts.collect::<Vec<_>>().join(", ").replace('"', "")
        };
        let reachable = "a-1 127.0.0.1:4000, c-1 192.0.2.7:4000, e-1 [::1]:4000";
        assert_eq!(
            (targets("127.0.0.1"), targets("::1")),
            (reachable.to_owned(), reachable.to_owned())
        );
        assert_eq!(targets("192.0.2.9"), "c-1 192.0.2.7:4000");
        let target_list = target_groups(&proxies[..1], Scraper::Local);
        let labels = json!({ "workload_namespace": "shop", "workload": "a-1" });
        assert_eq!(target_list, json!([{ "targets": ["127.0.0.1:4000"], "labels": labels }]));
    }
}
