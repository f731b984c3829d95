//! Tests of circuit breakers: native, and in the formats of OSM, osm-edge and FSM.

use std::time::Duration;

use expect_test::expect;
use leno_model::{
    CircuitLimits, FailureClasses, FixedResponse, Object, PolicyScope, RequestThreshold,
    ServiceRule, SlowRequests, TripConditions,
};
use leno_registry::{lint_objects, read_str};

use crate::service_policies::{check_group_rejections, read_policy};

const fn from_seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn threshold_of_share(share_ppm: u32) -> RequestThreshold {
    RequestThreshold { share_ppm: Some(share_ppm), count: None }
}

#[test]
fn a_circuit_breaker_is_read_with_all_fields() {
    let policy = read_policy(&crate::pages::page_examples("circuit-breaker.md")[0]);
    let ServiceRule::CircuitBreaker(rule) = policy.rule else { panic!("{policy:?}") };
    let limits = CircuitLimits {
        connections: None,
        requests: Some(100),
        pending: Some(20),
        retries: Some(10),
    };
    assert_eq!((rule.limits, rule.connect_timeout), (limits, Some(from_seconds(2))));
    let trip = TripConditions {
        failures: FailureClasses {
            connect: true,
            timeout: true,
            reset: true,
            server_errors: true,
            ..FailureClasses::default()
        },
        window: from_seconds(10),
        buckets: 10,
        min_requests: 20,
        failure_threshold: threshold_of_share(500_000),
        consecutive_failures: None,
        slow_requests: Some(SlowRequests {
            min_duration: from_seconds(3),
            threshold: threshold_of_share(800_000),
        }),
        open_duration: from_seconds(30),
        half_open_requests: 3,
    };
    assert_eq!(rule.trip, Some(trip));
    let body = Some("Ratings are busy.".to_owned());
    assert_eq!(rule.response, FixedResponse { status: Some(503), body, headers: Vec::new() });
}

#[test]
fn present_fields_replace_the_defaults() {
    let trip = |text: &str| {
        let policy = read_policy(&format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {{name: x}}, \
             spec: {{targetRefs: [{{kind: Service, name: a}}], trip: {text}}}}}"
        ));
        let ServiceRule::CircuitBreaker(rule) = policy.rule else { panic!() };
        rule.trip.unwrap()
    };
    assert_eq!(trip("{}").failure_threshold, threshold_of_share(500_000));
    let conditions = trip("{consecutiveFailures: 3}");
    assert_eq!(
        (conditions.failure_threshold, conditions.consecutive_failures),
        (RequestThreshold::default(), Some(3))
    );
    assert_eq!(trip("{slow: {threshold: 1s}}").failure_threshold, RequestThreshold::default());
    assert_eq!(
        trip("{slow: {threshold: 1s}, percent: 10}").failure_threshold,
        threshold_of_share(100_000)
    );
}

#[test]
fn settings_of_both_api_groups_become_a_circuit_breaker() {
    let text = "
apiVersion: GROUP/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: stock, namespace: stock}
spec:
  host: stock.stock.svc.cluster.local
  connectionSettings:
    tcp: {maxConnections: 4294967295, connectTimeout: 2s}
    http:
      maxRequests: 7
      maxRequestsPerConnection: 4294967295
      maxRetries: 0
      circuitBreaking:
        statTimeWindow: 1m
        minRequestAmount: 50
        degradedTimeWindow: 20s
        errorRatioThreshold: 0.305
        errorAmountThreshold: 9
        slowAmountThreshold: 4
";
    for group in ["policy.openservicemesh.io", "policy.flomesh.io"] {
        let policy = read_policy(&text.replace("GROUP", group));
        let PolicyScope::Services(targets) = &policy.scope else { panic!("{policy:?}") };
        assert_eq!(targets[0].service.to_string(), "stock/stock");
        let rule = policy.rule.circuit_breaker().expect("it bounds something");
        let limits = CircuitLimits { requests: Some(7), retries: Some(0), ..Default::default() };
        assert_eq!((rule.limits, rule.connect_timeout), (limits, Some(from_seconds(2))));
        let trip = rule.trip.as_ref().unwrap();
        assert_eq!(
            (trip.window, trip.buckets, trip.open_duration),
            (from_seconds(60), 60, from_seconds(20))
        );
        assert_eq!(trip.min_requests, 50);
        assert_eq!(
            trip.failure_threshold,
            RequestThreshold { share_ppm: Some(305_000), count: Some(9) }
        );
        let slow_threshold = RequestThreshold { share_ppm: None, count: Some(4) };
        assert_eq!(
            trip.slow_requests,
            Some(SlowRequests { min_duration: from_seconds(5), threshold: slow_threshold })
        );
        assert_eq!(rule.response.status, Some(409));
        assert_eq!(rule.response.body.as_deref(), Some("Coming soon ..."));
    }
}

#[test]
fn circuit_breakers_without_effect_are_rejected() {
    let targets = "targetRefs: [{kind: Service, name: a}]";
    let spec_with = |fields: &str| format!("{{{targets}, {fields}}}");
    let specs = [
        format!("{{{targets}}}"),
        "{limits: {requests: 1}}".to_owned(),
        spec_with("limits: {requests: 0}"),
        spec_with("limits: {pending: 0}"),
        spec_with("limits: {streams: 1}"),
        spec_with("connectTimeout: 0s"),
        spec_with("trip: {openDuration: 0s}"),
        spec_with("trip: {percent: 0}"),
        spec_with("trip: {slow: {}}"),
        spec_with("trip: {slow: {threshold: 1s, percent: 101}}"),
        spec_with("trip: {failures: []}"),
        spec_with("trip: {}, response: {status: 200}"),
        spec_with("limits: {requests: 1}, response: {status: 429}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "CircuitBreaker",
        &specs,
        &expect![[r#"
            spec: has no effect; add `limits`, `connectTimeout` or `trip`
            spec.targetRefs: is missing; add `targetRefs`
            spec.limits.requests: 0 is out of range; use a number from 1 to 4294967295
            spec.limits.pending: 0 is out of range; use a number from 1 to 4294967295
            spec.limits.streams: is an unknown field; remove it, or use `connections`, `requests`, `pending` or `retries`
            spec: has no effect; add `limits`, `connectTimeout` or `trip`
            spec.connectTimeout: "0s" is out of range; use a time with a unit, from 1ms to 1h, such as "5s"
            spec.trip.openDuration: "0s" is out of range; use a time with a unit, from 10ms to 24h, such as "5s"
            spec.trip.percent: 0 is out of range; use a number from 1 to 100
            spec.trip.slow.threshold: is missing; add `threshold`
            spec.trip.slow.percent: 101 is out of range; use a number from 1 to 100
            spec.trip: has no failure conditions; list classes in `failures` or `grpcStatuses`, or remove both for the default
            spec.response.status: 200 is out of range; use a number from 400 to 599
            spec.response: has no effect without `trip`; add `trip`, or remove `response`
        "#]],
    );
}

#[test]
fn unsupported_upstream_traffic_settings_are_rejected() {
    let spec_with = |settings: &str| format!("{{host: a.default, connectionSettings: {settings}}}");
    let circuit_breaking = |fields: &str| {
        spec_with(&format!(
            "{{http: {{circuitBreaking: {{statTimeWindow: 1s, minRequestAmount: 1, \
             degradedTimeWindow: 1s{fields}}}}}}}"
        ))
    };
    let specs = [
        "{host: a.default}".to_owned(),
        "{host: a, connectionSettings: {tcp: {maxConnections: 1}}}".to_owned(),
        "{host: a.other, connectionSettings: {tcp: {maxConnections: 1}}}".to_owned(),
        spec_with("{}"),
        spec_with("{tcp: {connectTimeout: 2}}"),
        spec_with("{http: {maxRequests: 1, maxRequestsPerConnection: 1}}"),
        spec_with("{http: {maxPendingRequests: 0}}"),
        spec_with("{http: {circuitBreaking: {}}}"),
        circuit_breaking(""),
        circuit_breaking(", errorRatioThreshold: 0"),
        circuit_breaking(", errorRatioThreshold: 0.5, slowTimeThreshold: 1s"),
        circuit_breaking(", errorRatioThreshold: 0.5, degradedStatusCode: 204"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let kind = "UpstreamTrafficSetting";
    check_group_rejections(
        "policy.flomesh.io",
        kind,
        &specs,
        &expect![[r#"
            spec: has no limits; add `connectionSettings`, `rateLimit` or `httpRoutes`
            spec.host: "a" is not the host name of a service; use NAME.NAMESPACE.svc.cluster.local
            spec.host: is in the namespace other, not in default; put the policy into the namespace of the service
            spec.connectionSettings: has no limits; add a limit, or remove it
            spec.connectionSettings.tcp.connectTimeout: 2 is not a duration; write `2s`
            spec.connectionSettings.http.maxRequestsPerConnection: is not supported: requests to an endpoint share one link; remove it; `maxRequests` limits concurrent requests
            spec.connectionSettings.http.maxPendingRequests: 0 is out of range; use a number from 1 to 4294967295
            spec.connectionSettings.http.circuitBreaking.statTimeWindow: is missing; add `statTimeWindow`
            spec.connectionSettings.http.circuitBreaking.degradedTimeWindow: is missing; add `degradedTimeWindow`
            spec.connectionSettings.http.circuitBreaking.minRequestAmount: is missing; add `minRequestAmount`
            spec.connectionSettings.http.circuitBreaking: never opens; add `errorRatioThreshold` or another threshold
            spec.connectionSettings.http.circuitBreaking: never opens; add `errorRatioThreshold` or another threshold
            spec.connectionSettings.http.circuitBreaking.errorRatioThreshold: is 0; use a ratio above 0
            spec.connectionSettings.http.circuitBreaking.slowTimeThreshold: has no effect alone; add `slowRatioThreshold`, or remove it
            spec.connectionSettings.http.circuitBreaking.degradedStatusCode: has no body; use a status that permits a body, such as 409
        "#]],
    );
}

#[test]
fn a_connection_limit_for_requests_over_links_causes_a_warning() {
    let text = "
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}, {port: 81}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: web, labels: {app: web}},
 spec: {ports: [{port: 80, protocol: HTTP}, {port: 81, protocol: TCP}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: a},
 spec: {targetRefs: [{kind: Service, name: web, port: 80}], limits: {connections: 1}}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: b},
 spec: {targetRefs: [{kind: Service, name: web, port: 81}], limits: {connections: 1}}}
---
{apiVersion: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, metadata: {name: c},
 spec: {host: web.default, connectionSettings: {http: {maxRequests: 1}}}}
";
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        CircuitBreaker default/a: spec.limits.connections: has no effect: requests of these ports share links; limit concurrent requests instead
        UpstreamTrafficSetting default/c: metadata.name: has no effect: CircuitBreaker default/b takes precedence at all of its targets; attach it to other services or ports, or remove one of the two
    "#]].assert_eq(&lines.concat());
}
