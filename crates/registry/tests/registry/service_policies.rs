//! Tests of service policies: documented examples, rejections, and policies without effect.

use std::time::Duration;

use expect_test::{Expect, expect};
use leno_model::{
    EjectionTime, FailureClasses, FailureRate, HealthCheck, HealthProbe, Object, OutlierDetection,
    PolicyScope, ServicePolicy, ServiceRule,
};
use leno_registry::{lint_objects, read_str};

/// Returns the only policy of an accepted text.
pub(crate) fn read_policy(text: &str) -> ServicePolicy {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    match objects.into_iter().map(|(object, _)| object).collect::<Vec<_>>().as_slice() {
        [Object::ServicePolicy(policy)] => policy.clone(),
        other => panic!("{other:?}"),
    }
}

fn check_rejections(kind: &str, specs: &[&str], expected: &Expect) {
    check_group_rejections("leno.dev", kind, specs, expected);
}

pub(crate) fn check_group_rejections(group: &str, kind: &str, specs: &[&str], expected: &Expect) {
    let mut lines = String::new();
    for spec in specs {
        let metadata =
            format!("{{apiVersion: {group}/v1alpha1, kind: {kind}, metadata: {{name: x}}");
        let (objects, rejected) = read_str("f.yaml", &format!("{metadata}, spec: {spec}}}"));
        assert!(objects.is_empty() && !rejected.is_empty(), "accepted: {spec}");
        for rejection in rejected {
            let line = rejection.to_string();
            let (_, detail) = line.split_once(" default/x: ").unwrap_or(("", &line));
            lines += &format!("{detail}\n");
        }
    }
    expected.assert_eq(&lines);
}

#[test]
fn the_documented_examples_are_read() {
    for page in [
        "outlier-detection.md",
        "sermant-removal.md",
        "circuit-breaker.md",
        "rate-limit.md",
        "external-authorization.md",
        "fault-injection.md",
        "load-balancing.md",
        "upstream-traffic-setting.md",
    ] {
        read_policy(&crate::pages::page_examples(page)[0]);
    }
}

#[test]
fn an_outlier_detection_is_read_with_all_fields() {
    let policy = read_policy(
        r#"
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: ratings, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: ratings, port: 9080}, {kind: Service, name: stock}]
  failures: [connect, timeout, reset, 5xx, gateway]
  grpcStatuses: [UNAVAILABLE, INTERNAL]
  window: 5s
  buckets: 5
  failureRate: {percent: 40, minimumRequests: 7}
  consecutiveFailures: 3
  maxEjectionPercent: 34
  minHealthy: 2
  baseEjectionTime: 1s
  maxEjectionTime: 1m
  ejectionJitterPercent: 0
  probeRequests: 4
  healthCheck: {httpGet: {path: /healthz}, interval: 2s, timeout: 500ms, failureThreshold: 2, successThreshold: 5}
"#,
    );
    let PolicyScope::Services(targets) = &policy.scope else { panic!("{policy:?}") };
    let targets: Vec<_> =
        targets.iter().map(|target| (target.service.to_string(), target.port)).collect();
    assert_eq!(targets, [("shop/ratings".to_owned(), Some(9080)), ("shop/stock".to_owned(), None)]);
    let expected = OutlierDetection {
        failures: FailureClasses {
            connect: true,
            timeout: true,
            reset: true,
            server_errors: true,
            gateway_errors: true,
            grpc: vec![13, 14],
        },
        window: Duration::from_secs(5),
        buckets: 5,
        failure_rate: Some(FailureRate { percent: 40, min_requests: 7 }),
        consecutive_failures: Some(3),
        max_ejection_percent: 34,
        min_healthy: 2,
        ejection_time: EjectionTime {
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
            jitter_percent: 0,
        },
        probe_requests: 4,
        health_check: Some(Box::new(HealthCheck {
            probe: HealthProbe::Http { path: "/healthz".to_owned() },
            interval: Duration::from_secs(2),
            timeout: Duration::from_millis(500),
            failures: 2,
            successes: 5,
        })),
    };
    assert_eq!(policy.rule, ServiceRule::OutlierDetection(expected));
}

#[test]
fn outlier_detections_without_effect_are_rejected() {
    let targets = "targetRefs: [{kind: Service, name: a}]";
    let spec_with = |fields: &str| format!("{{{targets}, {fields}}}");
    let specs = [
        "{}".to_owned(),
        "{targetRefs: []}".to_owned(),
        "{targetRefs: [{kind: Gateway, name: a}]}".to_owned(),
        "{targetRefs: [{kind: Service, name: a, namespace: b}]}".to_owned(),
        "{targetRefs: [{kind: Service, name: a}, {kind: Service, name: a}]}".to_owned(),
        spec_with("failures: [4xx]"),
        spec_with("failures: []"),
        spec_with("grpcStatuses: [OK]"),
        spec_with("window: 10"),
        spec_with("window: 1ms"),
        spec_with("buckets: 0"),
        spec_with("failureRate: {percent: 101}"),
        spec_with("failureRate: {}"),
        spec_with("consecutiveFailures: 0"),
        spec_with("maxEjectionPercent: 0"),
        spec_with("minHealthy: 0"),
        spec_with("baseEjectionTime: 2s, maxEjectionTime: 1s"),
        spec_with("probeRequests: 0"),
        spec_with("healthCheck: {}"),
        spec_with("healthCheck: {httpGet: {path: /a}, grpc: {}}"),
        spec_with("healthCheck: {httpGet: {}}"),
        spec_with("healthCheck: {httpGet: {path: a}}"),
        spec_with("healthCheck: {grpc: {service: a b}}"),
        spec_with("healthCheck: {grpc: {}, interval: 1ms}"),
        spec_with("healthCheck: {grpc: {}, interval: 1s, timeout: 2s}"),
        spec_with("healthCheck: {grpc: {}, failureThreshold: 0}"),
        spec_with("healthCheck: {grpc: {}, successThreshold: 0}"),
        spec_with("enforcing: 1"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_rejections(
        "OutlierDetection",
        &specs,
        &expect![[r#"
            spec.targetRefs: is missing; add `targetRefs`
            spec.targetRefs: is empty; add an element
            spec.targetRefs[0].kind: "Gateway" is not a supported value; use `Service`
            spec.targetRefs[0].namespace: "b" is not the policy's namespace, default; put the policy into the namespace of the service
            spec.targetRefs[1]: is listed twice; remove one of the two
            spec.failures[0]: "4xx" is not a supported value; did you mean `5xx`?
            spec: has no failure conditions; list classes in `failures` or `grpcStatuses`, or remove both for the default
            spec.grpcStatuses[0]: "OK" is not a supported value; use `CANCELLED`, `UNKNOWN`, `INVALID_ARGUMENT`, `DEADLINE_EXCEEDED`, `NOT_FOUND`, `ALREADY_EXISTS`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`, `FAILED_PRECONDITION`, `ABORTED`, `OUT_OF_RANGE`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS` or `UNAUTHENTICATED`
            spec.window: 10 is not a duration; write `10s`
            spec.window: "1ms" is out of range; use a time with a unit, from 100ms to 24h, such as "5s"
            spec.buckets: 0 is out of range; use a number from 1 to 60
            spec.failureRate.percent: 101 is out of range; use a number from 1 to 100
            spec.failureRate.percent: is missing; add `percent`
            spec.consecutiveFailures: 0 is out of range; use a number from 1 to 1000000
            spec.maxEjectionPercent: 0 is out of range; use a number from 1 to 100
            spec.minHealthy: 0 is out of range; use a number from 1 to 1000000
            spec.maxEjectionTime: is below `baseEjectionTime`; raise `maxEjectionTime`, or lower `baseEjectionTime`
            spec.probeRequests: 0 is out of range; use a number from 1 to 1000
            spec.healthCheck: has no probe; add `httpGet` or `grpc`
            spec.healthCheck: has `httpGet` and `grpc` together; keep one of them
            spec.healthCheck.httpGet.path: is missing; add `path`
            spec.healthCheck.httpGet.path: "a" does not start with `/`; use a path such as "/ratings"
            spec.healthCheck.grpc.service: "a b" is not the name of a gRPC service; write it as its `.proto` file does, such as "shop.v1.Ratings"
            spec.healthCheck.interval: "1ms" is out of range; use a time with a unit, from 100ms to 1h, such as "5s"
            spec.healthCheck: has a `timeout` above its `interval`; lower `timeout`, or raise `interval`
            spec.healthCheck.failureThreshold: 0 is out of range; use a number from 1 to 1000
            spec.healthCheck.successThreshold: 0 is out of range; use a number from 1 to 1000
            spec.enforcing: is an unknown field; remove it, or use `targetRefs`, `failures`, `grpcStatuses`, `window`, `buckets`, `failureRate`, `consecutiveFailures`, `maxEjectionPercent`, `minHealthy`, `baseEjectionTime`, `maxEjectionTime`, `ejectionJitterPercent`, `probeRequests` or `healthCheck`
        "#]],
    );
}

#[test]
fn all_problems_of_a_policy_are_reported_at_once() {
    let spec = "{targetRefs: [{name: a.b}, {name: web, port: 0}], failures: [4xx], window: 10, \
                failureRate: {}, baseEjectionTime: 10s, maxEjectionTime: 1s, \
                healthCheck: {grpc: {service: a b}, interval: 1s, timeout: 2s}, enforcing: 1}";
    check_rejections(
        "OutlierDetection",
        &[spec],
        &expect![[r#"
        spec.enforcing: is an unknown field; remove it, or use `targetRefs`, `failures`, `grpcStatuses`, `window`, `buckets`, `failureRate`, `consecutiveFailures`, `maxEjectionPercent`, `minHealthy`, `baseEjectionTime`, `maxEjectionTime`, `ejectionJitterPercent`, `probeRequests` or `healthCheck`
        spec.targetRefs[0].name: "a.b" has a dot; use at most 63 lower-case letters, digits or `-`
        spec.targetRefs[1].port: 0 is out of range; use a number from 1 to 65535
        spec.failures[0]: "4xx" is not a supported value; did you mean `5xx`?
        spec.window: 10 is not a duration; write `10s`
        spec.failureRate.percent: is missing; add `percent`
        spec.healthCheck.grpc.service: "a b" is not the name of a gRPC service; write it as its `.proto` file does, such as "shop.v1.Ratings"
        spec.maxEjectionTime: is below `baseEjectionTime`; raise `maxEjectionTime`, or lower `baseEjectionTime`
    "#]],
    );
}

#[test]
fn the_configuration_of_sermant_is_read() {
    let policy = read_policy(
        r"
apiVersion: leno.dev/v1alpha1
kind: SermantRemoval
metadata: {name: removal, namespace: shop}
spec:
  compat: sermant
  config: |
    enableRemoval: true
    exceptions: [java.net.ConnectException]
    windowsNum: 5
    rules:
    - {key: default-rule, scaleUpLimit: 0.25, minInstanceNum: 2, errorRate: 1.0}
    - {key: DEFAULT_GROUP@@ratings}
",
    );
    assert_eq!(policy.scope, PolicyScope::Namespace);
    let ServiceRule::SermantRemoval(config) = &policy.rule else { panic!("{policy:?}") };
    let policy_of = |name: &str| config.for_service(&name.parse().unwrap()).unwrap();
    let common = &policy_of("ratings").common;
    assert_eq!(common.failures, FailureClasses { connect: true, ..FailureClasses::default() });
    assert_eq!((common.windows, common.window), (5, Duration::from_secs(1)));
    assert_eq!(
        (common.expire, common.recovery),
        (Duration::from_secs(60), Duration::from_secs(30))
    );
    let rule = policy_of("ratings").rule;
    let limits = (rule.scale_up_limit_ppm, rule.min_instances, rule.error_rate_ppm);
    assert_eq!(limits, (600_000, 1, 600_000));
    let rule = policy_of("other").rule;
    let limits = (rule.scale_up_limit_ppm, rule.min_instances, rule.error_rate_ppm);
    assert_eq!(limits, (250_000, 2, 1_000_000));
}

#[test]
fn a_disabled_sermant_configuration_ejects_no_endpoint() {
    let text = "{apiVersion: leno.dev/v1alpha1, kind: SermantRemoval, metadata: {name: x}, \
                spec: {compat: sermant, config: \"windowsNum: 3\"}}";
    let ServiceRule::SermantRemoval(config) = read_policy(text).rule else { panic!() };
    assert_eq!(config.for_service(&"a".parse().unwrap()), None);
}

#[test]
fn unsupported_sermant_settings_are_rejected() {
    check_rejections(
        "SermantRemoval",
        &[
            "{config: \"{}\"}",
            "{compat: istio, config: \"{}\"}",
            "{compat: sermant}",
            "{compat: sermant, config: \"a: b: c\"}",
            "{compat: sermant, config: \"\"}",
            "{compat: sermant, config: \"[]\"}",
            "{compat: sermant, config: \"{enableRemoval: yes please}\"}",
            "{compat: sermant, config: \"{enableRemoval: true, exceptions: [java.lang.Error]}\"}",
            "{compat: sermant, config: \"{windowsTime: 0}\"}",
            "{compat: sermant, config: \"{rules: [{errorRate: 0.5}]}\"}",
            "{compat: sermant, config: \"{rules: [{key: a, errorRate: 1.5}]}\"}",
            "{compat: sermant, config: \"{rules: [{key: a}, {key: a}]}\"}",
            "{compat: sermant, config: \"{rules: [{key: A_b}]}\"}",
            "{compat: sermant, config: \"{rule: []}\"}",
        ],
        &expect![[r#"
            spec.compat: is missing; add `compat`
            spec.compat: "istio" is not a supported value; use `sermant`
            spec.config: is missing; add `config`
            spec.config: is not YAML (mapping values are not allowed in this context); correct the syntax
            spec.config: is not one document; write the content of sermant.removal.config
            spec.config: is a list, not a map; write a map; its fields are `enableRemoval`, `expireTime`, `exceptions`, `recoveryTime`, `windowsTime`, `windowsNum` and `rules`
            spec.config.enableRemoval: "yes please" is not a boolean; use true or false
            spec.config.exceptions[0]: "java.lang.Error" is not a supported value; use `com.alibaba.dubbo.remoting.TimeoutException`, `org.apache.dubbo.remoting.TimeoutException`, `java.util.concurrent.TimeoutException`, `java.net.SocketTimeoutException`, `java.net.ConnectException`, `java.net.NoRouteToHostException` or `java.net.SocketException`
            spec.config.windowsTime: 0 is out of range; use a number from 1 to 86400000
            spec.config.rules[0].key: is missing; add `key`
            spec.config.rules[0].errorRate: 1.5 is not a share; use a number from 0 to 1 with at most six decimals, such as 0.6
            spec.config.rules[1]: has the key of another rule; remove one of the two
            spec.config.rules[0].key: "A_b" is not the name of a service here; use the name of a Service of this namespace, or `default-rule`
            spec.config.rule: is an unknown field; did you mean `rules`?
        "#]],
    );
}

#[test]
fn a_problem_in_an_embedded_text_has_its_line_in_the_file() {
    let text = "apiVersion: leno.dev/v1alpha1
kind: SermantRemoval
metadata: {name: x}
spec:
  compat: sermant
  config: |
    enableRemoval: true
    windowsTime: 0
";
    let (_, rejected) = read_str("f.yaml", text);
    let lines: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    expect!["f.yaml:8:14: SermantRemoval default/x: spec.config.windowsTime: 0 is out of range; use a number from 1 to 86400000"].assert_eq(&lines.join("\n"));
}

#[test]
fn policies_without_targets_or_effect_cause_warnings() {
    let outlier_detection = |name: &str, target: &str| {
        format!(
            "---\n{{apiVersion: leno.dev/v1alpha1, kind: OutlierDetection, metadata: {{name: {name}}}, \
             spec: {{targetRefs: [{{kind: Service, name: {target}}}]}}}}\n"
        )
    };
    let sermant = "---\n{apiVersion: leno.dev/v1alpha1, kind: SermantRemoval, metadata: {name: s}, \
         spec: {compat: sermant, config: \"{enableRemoval: true, rules: [{key: wbe}]}\"}}\n";
    let manifests = [
        "---\n{apiVersion: v1, kind: Service, metadata: {name: web}, \
         spec: {selector: {app: web}, ports: [{port: 80}]}}\n"
            .to_owned(),
        "---\n{apiVersion: leno.dev/v1alpha1, kind: Workload, \
         metadata: {name: web, labels: {app: web}}, spec: {ports: [{port: 80}]}}\n"
            .to_owned(),
        outlier_detection("a", "web"),
        outlier_detection("b", "web"),
        outlier_detection("c", "wbe"),
        outlier_detection("d", "web, port: 81"),
        sermant.to_owned(),
    ];
    let (objects, rejected) = read_str("f.yaml", &manifests.concat());
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        OutlierDetection default/b: metadata.name: has no effect: OutlierDetection default/a takes precedence at all of its targets; attach it to other services or ports, or remove one of the two
        OutlierDetection default/c: spec.targetRefs[0].name: there is no Service default/wbe; did you mean `web`?
        OutlierDetection default/d: spec.targetRefs[0].port: the Service default/web has no port 81; use `80`
        SermantRemoval default/s: spec.config: has a rule for wbe, but there is no Service default/wbe; did you mean `web`?
    "#]].assert_eq(&lines.concat());
}
