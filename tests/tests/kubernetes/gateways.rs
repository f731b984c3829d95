//! Gateways: what comes from outside the mesh, on its way to pods with and without sidecars.

use std::time::Duration;

use leno_tests::cluster::{Injection, Namespace, printed};
use leno_tests::eventually;

use super::under_load::Load;

/// A gateway of the namespace and a route from there to `server`; where strangers reach it.
pub(crate) fn gateway(namespace: &Namespace) -> String {
    namespace.apply(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: leno
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: server}
spec:
  parentRefs: [{name: front}]
  rules: [{backendRefs: [{name: server, port: 80}]}]
",
    );
    let programmed = ["wait", "--for=condition=Programmed", "gateway/front", "--timeout=90s"];
    printed(&namespace.kubectl(&programmed));
    let address = ["get", "gateway/front", "-o", "jsonpath={.status.addresses[0].value}"];
    printed(&namespace.kubectl(&address))
}

/// A namespace outside the mesh, from where a gateway is reached, and by which URL.
pub(crate) fn strangers_at(address: &str) -> (Namespace, String) {
    let strangers = Namespace::new("strangers", Injection::Disabled);
    strangers.client("stranger");
    strangers.wait_ready();
    let url = format!("http://{address}/");
    strangers.expect_curl("stranger", &[&url], 0, 200);
    (strangers, url)
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn strangers_come_in_by_a_gateway_alone() {
    let strangers = Namespace::new("strangers", Injection::Disabled);
    strangers.client("stranger");
    for injection in [Injection::Enabled, Injection::Disabled] {
        let namespace = Namespace::new("gateway", injection);
        namespace.http_server("server", 2);
        let address = gateway(&namespace);
        namespace.wait_ready();
        strangers.wait_ready();
        let url = format!("http://{address}/");
        eventually("the route is in force", Duration::from_secs(120), || {
            (strangers.curl("stranger", &[&url]).status == 200).then_some(())
        });
        let elsewhere = strangers.curl("stranger", &["-H", "x-a: b", &format!("{url}anything")]);
        assert_eq!((elsewhere.exit, elsewhere.status), (0, 200), "{injection:?}");
        let name = format!("http://server.{}/", namespace.name());
        let straight = strangers.curl("stranger", &[&name]);
        match injection {
            // Mutual TLS is expected there.
            Injection::Enabled => assert_ne!(straight.exit, 0),
            Injection::Disabled => assert_eq!((straight.exit, straight.status), (0, 200)),
        }
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_gateway_and_what_is_behind_it_are_replaced_without_a_failed_request() {
    let namespace = Namespace::new("replaced", Injection::Enabled);
    namespace.http_server("server", 2);
    let address = gateway(&namespace);
    namespace.wait_ready();
    let (strangers, url) = strangers_at(&address);
    let load = Load::start(&strangers, &url);
    for deployment in ["deployment/server", "deployment/leno-gateway-front"] {
        printed(&namespace.kubectl(&["rollout", "restart", deployment]));
        printed(&namespace.kubectl(&["rollout", "status", deployment, "--timeout=120s"]));
    }
    let (requests, failed) = load.end();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failed, serde_json::json!({}));
}
