//! Rate limits and retries by OSM's policies, and the exposure of a sidecar's metrics.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout};
use leno_tests::eventually;

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn requests_beyond_a_local_limit_get_429() {
    let namespace = TestNamespace::new("limited", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let traffic_setting = |fields: &str| {
        format!(
            "{{apiVersion: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, metadata: {{name: server}}, \
             spec: {{host: server.{}.svc.cluster.local, {fields}}}}}",
            namespace.name()
        )
    };
    let limit = "{requests: 1, unit: minute}";
    namespace
        .apply_manifests(&traffic_setting(&format!("rateLimit: {{local: {{http: {limit}}}}}")));
    for path in ["", "status/200"] {
        namespace.expect_curl("client", &[&format!("http://server/{path}")], 0, 429);
    }
    // A limit for one route: the others have none.
    let route_limit = format!("httpRoutes: [{{path: /status/200, rateLimit: {{local: {limit}}}}}]");
    expect_stdout(&namespace.kubectl(&[
        "delete",
        "upstreamtrafficsettings.policy.openservicemesh.io",
        "server",
    ]));
    namespace.expect_curl("client", &["http://server/status/200"], 0, 200);
    namespace.apply_manifests(&traffic_setting(&route_limit));
    namespace.expect_curl("client", &["http://server/status/200"], 0, 429);
    namespace.expect_curl("client", &["http://server/"], 0, 200);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn metrics_are_exposed_if_an_annotation_of_the_namespace_enables_them() {
    let client = TestNamespace::new("scraper", SidecarInjection::Disabled);
    client.create_client("client");
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/metrics: enabled}";
    let meshed = "labels: {leno.dev/injection: enabled}";
    let namespaces = [(metadata, 200), (meshed, 403)].map(|(metadata, status)| {
        let namespace = TestNamespace::with_metadata("scraped", metadata);
        namespace.create_client("client");
        (namespace, status)
    });
    client.wait_ready();
    for (namespace, status) in &namespaces {
        namespace.wait_ready();
        let address = ["get", "pod", "client", "-o", "jsonpath={.status.podIP}"];
        let address = expect_stdout(&namespace.kubectl(&address));
        let url = |path: &str| format!("http://{}:15020{path}", address.trim());
        assert_eq!(client.curl("client", &[&url("/metrics")]).status, *status);
        assert_eq!(client.curl("client", &[&url("/readyz")]).status, 200);
    }
}

/// A retry policy with OSM's default values.
const RETRY_POLICY: &str =
    "{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: retry}, spec: {
  source: {kind: ServiceAccount, name: client, namespace: NAMESPACE},
  destinations: [{kind: Service, name: server, namespace: NAMESPACE}],
  retryPolicy: {retryOn: '5xx', perTryTimeout: 1s, numRetries: 5, retryBackoffBaseInterval: 5ms}}}";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_failing_request_is_retried_as_often_as_the_policy_permits() {
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/metrics: enabled}";
    let namespace = TestNamespace::with_metadata("retried", metadata);
    namespace.create_http_server("server", 1);
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let address = ["get", "pod", "client", "-o", "jsonpath={.status.podIP}"];
    let address = expect_stdout(&namespace.kubectl(&address));
    let metrics_url = format!("http://{}:15020/metrics", address.trim());
    let count_retries = || {
        let metrics = namespace.curl("client", &[&metrics_url]).body;
        let line = metrics.lines().find(|line| line.starts_with("leno_retries_total "));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("no retries are counted in {metrics}"))
    };
    let failing_url = "http://server/status/503";
    let initial_retries = count_retries();
    assert_eq!(namespace.curl("client", &[failing_url]).status, 503);
    assert_eq!(count_retries(), initial_retries, "there is no retry without a policy");
    namespace.apply_manifests(&RETRY_POLICY.replace("NAMESPACE", namespace.name()));
    let mut retries_before = initial_retries;
    eventually("one request is sent six times", Duration::from_secs(60), || {
        let response = namespace.curl("client", &[failing_url]);
        assert_eq!((response.exit, response.status), (0, 503), "the response of the last attempt");
        let retries_after = count_retries();
        let new_retries = retries_after - retries_before;
        retries_before = retries_after;
        assert!(new_retries == 0 || new_retries == 5, "{new_retries} retries");
        (new_retries == 5).then_some(())
    });
    expect_stdout(&namespace.kubectl(&["delete", "retries.policy.openservicemesh.io", "retry"]));
    eventually("a request is sent only once again", Duration::from_secs(60), || {
        assert_eq!(namespace.curl("client", &[failing_url]).status, 503);
        let retries_after = count_retries();
        let new_retries = retries_after - retries_before;
        retries_before = retries_after;
        (new_retries == 0).then_some(())
    });
}
