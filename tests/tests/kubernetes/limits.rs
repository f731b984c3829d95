//! Rate limits and retries by OSM's policies.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, stdout_of};
use leno_tests::eventually;

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn requests_beyond_a_local_limit_get_429() {
    let namespace = TestNamespace::new("limited", SidecarInjection::Enabled);
    namespace.http_server("server", 1);
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let setting = |rest: &str| {
        format!(
            "{{apiVersion: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, metadata: {{name: server}}, \
             spec: {{host: server.{}.svc.cluster.local, {rest}}}}}",
            namespace.name()
        )
    };
    let once = "{requests: 1, unit: minute}";
    namespace.apply_manifests(&setting(&format!("rateLimit: {{local: {{http: {once}}}}}")));
    for path in ["", "status/200"] {
        namespace.expect_curl("client", &[&format!("http://server/{path}")], 0, 429);
    }
    // A limit for one route: the others have none.
    let of_route = format!("httpRoutes: [{{path: /status/200, rateLimit: {{local: {once}}}}}]");
    stdout_of(&namespace.kubectl(&[
        "delete",
        "upstreamtrafficsettings.policy.openservicemesh.io",
        "server",
    ]));
    namespace.expect_curl("client", &["http://server/status/200"], 0, 200);
    namespace.apply_manifests(&setting(&of_route));
    namespace.expect_curl("client", &["http://server/status/200"], 0, 429);
    namespace.expect_curl("client", &["http://server/"], 0, 200);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn metrics_of_a_pod_are_open_where_an_annotation_says_so() {
    let client = TestNamespace::new("scraper", SidecarInjection::Disabled);
    client.create_client("client");
    let metered = "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/metrics: enabled}";
    let meshed = "labels: {leno.dev/injection: enabled}";
    let namespaces = [(metered, 200), (meshed, 403)].map(|(metadata, status)| {
        let namespace = TestNamespace::with_metadata("scraped", metadata);
        namespace.create_client("client");
        (namespace, status)
    });
    client.wait_ready();
    for (namespace, status) in &namespaces {
        namespace.wait_ready();
        let address = ["get", "pod", "client", "-o", "jsonpath={.status.podIP}"];
        let address = stdout_of(&namespace.kubectl(&address));
        let at = |path: &str| format!("http://{}:15020{path}", address.trim());
        assert_eq!(client.curl("client", &[&at("/metrics")]).status, *status);
        assert_eq!(client.curl("client", &[&at("/readyz")]).status, 200);
    }
}

/// OSM's own values.
const RETRY: &str =
    "{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: retry}, spec: {
  source: {kind: ServiceAccount, name: client, namespace: NAMESPACE},
  destinations: [{kind: Service, name: server, namespace: NAMESPACE}],
  retryPolicy: {retryOn: '5xx', perTryTimeout: 1s, numRetries: 5, retryBackoffBaseInterval: 5ms}}}";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_request_that_fails_is_sent_as_often_as_a_retry_policy_says() {
    let metered = "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/metrics: enabled}";
    let namespace = TestNamespace::with_metadata("retried", metered);
    namespace.http_server("server", 1);
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let address = ["get", "pod", "client", "-o", "jsonpath={.status.podIP}"];
    let address = stdout_of(&namespace.kubectl(&address));
    let metrics = format!("http://{}:15020/metrics", address.trim());
    let retries = || {
        let metrics = namespace.curl("client", &[&metrics]).body;
        let line = metrics.lines().find(|line| line.starts_with("leno_retries_total "));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("no retries are counted in {metrics}"))
    };
    let failing = "http://server/status/503";
    let before = retries();
    assert_eq!(namespace.curl("client", &[failing]).status, 503);
    assert_eq!(retries(), before, "nobody asked for it");
    namespace.apply_manifests(&RETRY.replace("NAMESPACE", namespace.name()));
    let mut at = before;
    eventually("one request is sent six times", Duration::from_secs(60), || {
        let answer = namespace.curl("client", &[failing]);
        assert_eq!((answer.exit, answer.status), (0, 503), "what the last attempt was answered");
        let now = retries();
        let made = now - at;
        at = now;
        assert!(made == 0 || made == 5, "{made} retries");
        (made == 5).then_some(())
    });
    stdout_of(&namespace.kubectl(&["delete", "retries.policy.openservicemesh.io", "retry"]));
    eventually("it is sent once again", Duration::from_secs(60), || {
        assert_eq!(namespace.curl("client", &[failing]).status, 503);
        let now = retries();
        let made = now - at;
        at = now;
        (made == 0).then_some(())
    });
}
