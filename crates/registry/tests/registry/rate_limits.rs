//! Tests of rate limits: native, and in the formats of OSM, osm-edge and FSM.

use std::time::Duration;

use expect_test::expect;
use leno_model::{
    AdaptiveConcurrency, Descriptor, PathMatch, Rate, RateLimitKey, RateLimits, RateRule,
    RequestMatch, ServiceRule,
};

use crate::service_policies::{check_group_rejections, read_policy};

fn read_limits(text: &str) -> RateLimits {
    read_policy(text).rule.rate_limits().expect("it limits something").clone()
}

const fn new_rate(count: u32, seconds: u64, size: u32) -> Rate {
    Rate { count, period: Duration::from_secs(seconds), burst: size }
}

#[test]
fn the_documented_example_is_read_with_all_fields() {
    let limits = read_limits(&crate::pages::page_examples("rate-limit.md")[0]);
    assert_eq!(limits.connections, Some(new_rate(100, 1, 100)));
    let summary = |rule: &RateRule| (rule.name.clone(), rule.rate, rule.stop, rule.key.clone());
    let header = RateLimitKey::Header { name: "x-user".to_owned(), buckets: 5000 };
    let expected = [
        ("health".to_owned(), new_rate(1000, 1, 1000), true, RateLimitKey::None),
        ("writers".to_owned(), new_rate(10, 60, 20), false, RateLimitKey::Client { buckets: 1000 }),
        ("users".to_owned(), new_rate(5, 1, 5), false, header),
        ("all".to_owned(), new_rate(500, 1, 500), false, RateLimitKey::None),
    ];
    assert_eq!(limits.rules.iter().map(summary).collect::<Vec<_>>(), expected);
    let writers = &limits.rules[1];
    assert_eq!(writers.requests[0].path, PathMatch::Prefix("/ratings".to_owned()));
    assert_eq!(writers.requests[0].methods, ["POST"]);
    assert_eq!(writers.peers[0].to_string(), "bookinfo/reviews*");
    let response = &writers.response;
    assert_eq!((response.status, response.body.as_deref()), (Some(429), Some("One at a time.")));
    assert_eq!((&*response.headers[0].name, &*response.headers[0].value), ("x-limit", "writers"));
    assert!(limits.rules[3].requests.is_empty() && limits.rules[3].peers.is_empty());
    let concurrency = limits.concurrency.unwrap();
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 4, latency_tolerance_percent: 50 });
    assert_eq!((concurrency.requests, concurrency.adaptive), (200, adaptive));
}

#[test]
fn the_meaning_of_burst_depends_on_the_api_group() {
    let text = "
apiVersion: GROUP/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: stock, namespace: stock}
spec:
  host: stock.stock.svc.cluster.local
  rateLimit:
    local:
      tcp: {connections: 3, unit: minute, burst: 10}
      http: {requests: 5, unit: hour, burst: 0, responseStatusCode: 503, responseHeadersToAdd: [{name: X-A, value: b}]}
  httpRoutes:
  - path: /items/[0-9]+
    rateLimit: {local: {requests: 7, unit: second, burst: 2}}
";
    for (group, connections, route) in [
        ("policy.openservicemesh.io", new_rate(3, 60, 13), new_rate(7, 1, 9)),
        ("policy.flomesh.io", new_rate(3, 60, 10), new_rate(7, 1, 2)),
    ] {
        let text = text.replace("GROUP", group);
        let limits = read_limits(&text);
        assert_eq!(limits.connections, Some(connections), "{group}");
        let [path_rule, general_rule] = limits.rules.as_slice() else { panic!("{limits:?}") };
        assert_eq!((path_rule.rate, path_rule.stop), (route, true), "{group}");
        assert_eq!(path_rule.requests[0].path, PathMatch::Regex("/items/[0-9]+".to_owned()));
        assert_eq!(
            (general_rule.rate, general_rule.stop),
            (new_rate(5, 3600, 5), false),
            "{group}"
        );
        assert_eq!((general_rule.requests.len(), general_rule.response.status), (0, Some(503)));
        assert_eq!(
            (&*general_rule.response.headers[0].name, &*general_rule.response.headers[0].value),
            ("x-a", "b")
        );
        let policy = read_policy(&text);
        assert!(matches!(policy.rule, ServiceRule::UpstreamTrafficSetting(_)));
        assert_eq!(policy.rule.circuit_breaker(), None);
    }
}

#[test]
fn rate_limits_without_effect_are_rejected() {
    let rule = |rule: &str| format!("{{targetRefs: [{{name: a}}], rules: [{{{rule}}}]}}");
    let concurrency = |rule: &str| format!("{{targetRefs: [{{name: a}}], concurrency: {rule}}}");
    let specs = [
        "{targetRefs: [{name: a}]}".to_owned(),
        "{targetRefs: [{name: a}], rules: []}".to_owned(),
        "{rules: [{requests: 1, per: 1s}]}".to_owned(),
        "{targetRefs: [{name: a}], connections: {count: 0, per: 1s}}".to_owned(),
        rule("requests: 1"),
        rule("per: 1s"),
        rule("requests: 1000001, per: 1s"),
        rule("requests: 1, per: 500ms"),
        rule("requests: 1, per: 25h"),
        rule("requests: 1, per: 1s, burst: 0"),
        rule("requests: 1, per: 1s, maxKeys: 3"),
        rule("requests: 1, per: 1s, key: peer"),
        rule("requests: 1, per: 1s, key: {header: \"a b\"}"),
        rule("requests: 1, per: 1s, key: client, maxKeys: 0"),
        rule("requests: 1, per: 1s, matches: []"),
        rule("requests: 1, per: 1s, from: [{}]"),
        rule("requests: 1, per: 1s, response: {status: 200}"),
        rule("requests: 1, per: 1s, response: {headers: [{name: host, value: a}]}"),
        rule(
            "requests: 1, per: 1s, response: {headers: [{name: a, value: a}, {name: A, value: b}]}",
        ),
        rule("requests: 1, per: 1s, name: a}, {requests: 1, per: 1s, name: a"),
        concurrency("{}"),
        concurrency("{requests: 0}"),
        concurrency("{requests: 5, adaptive: {minConcurrency: 6}}"),
        concurrency("{requests: 5, adaptive: {minConcurrency: 0}}"),
        concurrency("{requests: 5, adaptive: {latencyTolerancePercent: 1001}}"),
        concurrency("{requests: 5, response: {status: 200}}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "RateLimit",
        &specs,
        &expect![[r#"
            spec: has no limits; add `rules`, `connections`, `concurrency` or `global`
            spec: has no limits; add `rules`, `connections`, `concurrency` or `global`
            spec.targetRefs: is missing; add `targetRefs`
            spec.connections.count: 0 is out of range; use a number from 1 to 1000000
            spec.rules[0].per: is missing; add `per`
            spec.rules[0].requests: is missing; add `requests`
            spec.rules[0].requests: 1000001 is out of range; use a number from 1 to 1000000
            spec.rules[0].per: "500ms" is out of range; use a time with a unit, from 1s to 24h, such as "5s"
            spec.rules[0].per: "25h" is out of range; use a time with a unit, from 1s to 24h, such as "5s"
            spec.rules[0].burst: 0 is out of range; use a number from 1 to 2000000
            spec.rules[0].maxKeys: requires several buckets, but there is only one; add `key`, or remove it
            spec.rules[0].key: "peer" is not a supported value; use `client`
            spec.rules[0].key.header: "a b" is not the name of a header; use letters, digits and `-`
            spec.rules[0].maxKeys: 0 is out of range; use a number from 1 to 100000
            spec.rules[0].matches: is empty, which is ambiguous; add an element, or omit it for all requests
            spec.rules[0].from[0]: names no client; add `namespace` or `serviceAccount`
            spec.rules[0].response.status: 200 is out of range; use a number from 400 to 599
            spec.rules[0].response.headers[0].name: "host" is a header of the protocol and cannot be changed; use a URLRewrite with `hostname`
            spec.rules[0].response.headers[1]: has the name of another header; join their values, separated by commas
            spec.rules[1]: has the name of another rule; use another name
            spec.concurrency.requests: is missing; add `requests`
            spec.concurrency.requests: 0 is out of range; use a number from 1 to 1000000
            spec.concurrency.adaptive.minConcurrency: 6 is above `requests`, 5; lower it, or raise `requests`
            spec.concurrency.adaptive.minConcurrency: 0 is out of range; use a number from 1 to 1000000
            spec.concurrency.adaptive.latencyTolerancePercent: 1001 is out of range; use a number from 1 to 1000
            spec.concurrency.response.status: 200 is out of range; use a number from 400 to 599
        "#]],
    );
}

#[test]
fn unsupported_rate_limits_of_a_setting_are_rejected() {
    let specs = [
        "{host: a.default}",
        "{host: a.default, rateLimit: {}}",
        "{host: a.default, rateLimit: {local: {}}}",
        "{host: a.default, rateLimit: {global: {http: {domain: a}}, local: {http: {requests: 1, unit: second}}}}",
        "{host: a.default, rateLimit: {local: {http: {requests: 1, unit: day}}}}",
        "{host: a.default, rateLimit: {local: {http: {requests: 0, unit: second}}}}",
        "{host: a.default, rateLimit: {local: {http: {requests: 1, unit: second, responseStatusCode: 200}}}}",
        "{host: a.default, rateLimit: {local: {tcp: {requests: 1, unit: second}}}}",
        "{host: a.default, httpRoutes: [{path: /a}]}",
        "{host: a.default, httpRoutes: [{path: \"/a[\", rateLimit: {local: {requests: 1, unit: second}}}]}",
        "{host: a.default, httpRoutes: [{path: /a, rateLimit: {local: {requests: 1, unit: second}}}, {path: /a, rateLimit: {local: {requests: 2, unit: second}}}]}",
    ];
    check_group_rejections(
        "policy.openservicemesh.io",
        "UpstreamTrafficSetting",
        &specs,
        &expect![[r#"
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
            spec.rateLimit: has no limits; add `local` or `global`
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
            spec.rateLimit.local: has no limits; add `http` or `tcp`
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
            spec.rateLimit.global.http.rateLimitService: is missing; add `rateLimitService`
            spec.rateLimit.local.http.unit: "day" is not a supported value; use `second`, `minute` or `hour`
            spec.rateLimit.local.http.requests: 0 is out of range; use a number from 1 to 1000000
            spec.rateLimit.local.http.responseStatusCode: 200 is not an error status; use 400 to 599
            spec.rateLimit.local.tcp.requests: is an unknown field; remove it, or use `connections`, `unit` or `burst`
            spec.rateLimit.local.tcp.connections: is missing; add `connections`
            spec.httpRoutes[0]: has no limits; add `rateLimit`, or remove the route
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
            spec.httpRoutes[0].path: "/a[" is not a regular expression (unclosed character class); correct it; the syntax is RE2's, without look-around or back references
            spec.httpRoutes[1].path: has a limit in an earlier route; remove one of the two
        "#]],
    );
}

#[test]
fn a_global_limit_of_osm_names_its_rate_limit_service() {
    let text = &crate::pages::page_examples("upstream-traffic-setting.md")[1];
    let policy = read_policy(text);
    let global = policy.rule.rate_limits().unwrap().global.as_deref().unwrap();
    assert_eq!(
        global.check_service.address.to_string(),
        "http://rls.limits.svc.cluster.local:8081"
    );
    assert_eq!(global.check_service.timeout, Duration::from_millis(50));
    assert_eq!(global.check_service.failure_mode, leno_model::FailureMode::Deny);
    assert_eq!((global.domain.as_str(), global.rate_limit_headers), ("stock", true));
    let descriptors: Vec<String> = global.descriptors.iter().map(format_descriptor).collect();
    expect![[r#"
        generic_key: Text("items"), remote_address: Address
            of Regex("/items/[0-9]+")
        user: Header("x-user")
            of Regex("/items/[0-9]+")
        header_match: Text("mobile")
            of Regex("/items/[0-9]+") with [FieldMatch { name: "user-agent", value: Regex("app/.*") }]
    "#]]
    .assert_eq(&descriptors.concat());
}

/// Returns a descriptor's entries and request match as text.
fn format_descriptor(descriptor: &Descriptor) -> String {
    let entries =
        descriptor.entries.iter().map(|entry| format!("{}: {:?}", entry.key, entry.value));
    let entries = entries.collect::<Vec<_>>().join(", ");
    let format_request = |request: &RequestMatch| {
        assert!(request.methods.is_empty() && request.query.is_empty(), "{request:?}");
        match &request.headers[..] {
            [] => format!("    of {:?}\n", request.path),
            headers => format!("    of {:?} with {headers:?}\n", request.path),
        }
    };
    format!("{entries}\n{}", descriptor.requests.iter().map(format_request).collect::<String>())
}

#[test]
fn unsupported_global_limits_are_rejected() {
    let service = "rateLimitService: {host: rls, port: 8081}, domain: d";
    let entry = "descriptors: [{entries: [{remoteAddress: {}}]}]";
    let route = "httpRoutes: [{path: /a, rateLimit: {global: {descriptors: [{entries: [{genericKey: {value: a}}]}]}}}]";
    let specs = [
        format!(
            "{{host: a.default, rateLimit: {{global: {{tcp: {{domain: d}}, http: {{{service}, {entry}}}}}}}}}"
        ),
        format!("{{host: a.default, rateLimit: {{global: {{http: {{{service}}}}}}}}}"),
        format!(
            "{{host: a.default, rateLimit: {{global: {{http: {{{service}, {entry}}}}}}}, {route}}}"
        ),
        format!("{{host: a.default, {route}}}"),
        format!(
            "{{host: a.default, rateLimit: {{global: {{http: {{{service}, descriptors: [{{entries: [{{headerValueMatch: {{value: v, expectMatch: false, headers: [{{name: a, exact: b}}]}}}}]}}]}}}}}}}}"
        ),
        "{host: a.default, rateLimit: {}}".to_owned(),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "policy.openservicemesh.io",
        "UpstreamTrafficSetting",
        &specs,
        &expect![[r#"
            spec.rateLimit.global.tcp: is not supported: a rate limit service counts only requests; remove it, and limit connections with `local.tcp`
            spec: names a rate limit service, but has no descriptors; add `descriptors` to `rateLimit.global.http`, or to routes
            spec.rateLimit.global: describes all requests, but routes have their own descriptors, which Envoy sends instead; describe either all requests or those of routes
            spec: has descriptors for routes, but no rate limit service; add `rateLimit.global.http`
            spec.rateLimit.global.http.descriptors[0].entries[0].headerValueMatch: describes requests without the headers, which is not supported; remove `expectMatch`, and list headers that the requests have
            spec.rateLimit: has no limits; add `local` or `global`
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
        "#]],
    );
}
