//! Gateways: requests from outside the mesh to Pods with and without sidecars.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout};
use leno_tests::eventually;

use super::under_load::LoadPod;

/// Creates a gateway and a route to `server`; returns the gateway's external address.
pub(crate) fn create_gateway(namespace: &TestNamespace) -> String {
    namespace.apply_manifests(
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
    expect_stdout(&namespace.kubectl(&programmed));
    let address = ["get", "gateway/front", "-o", "jsonpath={.status.addresses[0].value}"];
    expect_stdout(&namespace.kubectl(&address))
}

/// Returns a namespace outside the mesh, and the URL of the gateway at an address once it responds there.
pub(crate) fn external_clients_at(address: &str) -> (TestNamespace, String) {
    let external_clients = TestNamespace::new("outsiders", SidecarInjection::Disabled);
    external_clients.create_client("outsider");
    external_clients.wait_ready();
    let url = format!("http://{address}/");
    external_clients.expect_curl("outsider", &[&url], 0, 200);
    (external_clients, url)
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn external_clients_reach_meshed_pods_only_through_a_gateway() {
    let external_clients = TestNamespace::new("outsiders", SidecarInjection::Disabled);
    external_clients.create_client("outsider");
    for injection in [SidecarInjection::Enabled, SidecarInjection::Disabled] {
        let namespace = TestNamespace::new("gateway", injection);
        namespace.create_http_server("server", 2);
        let address = create_gateway(&namespace);
        namespace.wait_ready();
        external_clients.wait_ready();
        let url = format!("http://{address}/");
        eventually("the route is in force", Duration::from_secs(120), || {
            (external_clients.curl("outsider", &[&url]).status == 200).then_some(())
        });
        let other_path =
            external_clients.curl("outsider", &["-H", "x-a: b", &format!("{url}anything")]);
        assert_eq!((other_path.exit, other_path.status), (0, 200), "{injection:?}");
        let server_url = format!("http://server.{}/", namespace.name());
        let direct_response = external_clients.curl("outsider", &[&server_url]);
        match injection {
            // Mutual TLS is required there.
            SidecarInjection::Enabled => assert_ne!(direct_response.exit, 0),
            SidecarInjection::Disabled => {
                assert_eq!((direct_response.exit, direct_response.status), (0, 200))
            }
        }
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_rollout_of_a_gateway_and_its_backend_fails_no_request() {
    let namespace = TestNamespace::new("replaced", SidecarInjection::Enabled);
    namespace.create_http_server("server", 2);
    let address = create_gateway(&namespace);
    namespace.wait_ready();
    let (external_clients, url) = external_clients_at(&address);
    let load = LoadPod::start(&external_clients, &url);
    for deployment in ["deployment/server", "deployment/leno-gateway-front"] {
        expect_stdout(&namespace.kubectl(&["rollout", "restart", deployment]));
        expect_stdout(&namespace.kubectl(&["rollout", "status", deployment, "--timeout=120s"]));
    }
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

/// A Service with required tokens, with one meshed and one unmeshed Pod.
const PARTLY_MESHED: &str = "apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {name: server}
spec:
  targetRefs: [{kind: Service, name: server}]
  required: true
  issuers:
  - issuer: https://issuer.test
    jwks:
      inline: |
        {\"keys\": [{\"kty\": \"EC\", \"crv\": \"P-256\", \"kid\": \"one\", \"use\": \"sig\",
                   \"x\": \"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\",
                   \"y\": \"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, labels: {app: server, leno.dev/injection: disabled}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: server, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http], ports: [{containerPort: 8080}]}
";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_gateway_does_not_use_a_pod_that_cannot_enforce_a_policy_of_its_service() {
    let namespace = TestNamespace::new("partly-meshed", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    let address = create_gateway(&namespace);
    namespace.wait_ready();
    let (external_clients, url) = external_clients_at(&address);
    namespace.apply_manifests(PARTLY_MESHED);
    namespace.wait_ready();
    let condition = ["get", "jwtvalidation.leno.dev/server", "-o"];
    let enforced = "jsonpath={.status.conditions[?(@.type==\"Enforced\")].status} {.status.conditions[?(@.type==\"Enforced\")].message}";
    eventually("the policy reports the pod", Duration::from_secs(60), || {
        let output = expect_stdout(&namespace.kubectl(&[&condition[..], &[enforced]].concat()));
        (output.starts_with("False ") && output.ends_with(&format!("{}/plain", namespace.name())))
            .then_some(())
    });
    external_clients.expect_curl("outsider", &[&url], 0, 401);
    let responses = external_clients.curl_repeatedly("outsider", 200, &[&url]);
    let unexpected: Vec<_> = responses.iter().filter(|response| response.status != 401).collect();
    assert_eq!((responses.len(), unexpected), (200, Vec::new()));
    // Without the meshed Pod, no endpoint is left.
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=0"]));
    external_clients.expect_curl("outsider", &[&url], 0, 503);
}
