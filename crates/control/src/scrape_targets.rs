//! The addresses of all sidecars' metrics, as Prometheus reads them from an HTTP service discovery.

use serde_json::{Value, json};

use crate::status::ProxyStatus;

/// One group for each sidecar with an admin page at an address of its own.
pub(crate) fn of(proxies: &[ProxyStatus]) -> Value {
    let groups = proxies.iter().filter_map(|proxy| {
        let (namespace, name) = proxy.workload.split_once('/')?;
        let labels = json!({ "workload_namespace": namespace, "workload": name });
        Some(json!({ "targets": [proxy.admin.as_ref()?], "labels": labels }))
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_with_an_admin_page_are_targets() {
        let proxy = |workload: &str, admin: Option<&str>| {
            serde_json::from_value::<ProxyStatus>(json!({
                "workload": workload, "connection": 1, "connected_seconds": 1.0, "pid": 1, "version": "",
                "admin": admin, "subscriptions": [], "services": 0, "refused": 0, "refusals": [],
            }))
            .unwrap()
        };
        let found = of(&[proxy("shop/a-1", Some("127.0.0.1:4000")), proxy("shop/b-1", None)]);
        let labels = json!({ "workload_namespace": "shop", "workload": "a-1" });
        assert_eq!(found, json!([{ "targets": ["127.0.0.1:4000"], "labels": labels }]));
    }
}
