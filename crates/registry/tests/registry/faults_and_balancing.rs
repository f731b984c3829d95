//! Tests of fault injection and load balancing.

use std::time::Duration;

use expect_test::expect;
use leno_model::{
    BalanceAlgorithm, FaultAbort, FaultDelay, HashKey, HedgeMethod, HedgeRule, LoadBalancing,
    PolicyScope, ServiceRule, SlowStart,
};

use crate::service_policies::{check_group_rejections, read_policy};

#[test]
fn a_fault_injection_is_read_with_all_fields() {
    let policy = read_policy(&crate::pages::page_examples("fault-injection.md")[0]);
    let ServiceRule::FaultInjection(rules) = &policy.rule else { panic!("{policy:?}") };
    let [first, second] = rules.as_slice() else { panic!("{rules:?}") };
    assert_eq!((&*first.name, first.requests[0].headers[0].name.as_str()), ("jason", "end-user"));
    let all_requests = 1_000_000;
    assert_eq!(
        first.delay,
        Some(FaultDelay { share_ppm: all_requests, duration: Duration::from_secs(7) })
    );
    assert_eq!(first.abort, None);
    assert_eq!(
        second.delay,
        Some(FaultDelay { share_ppm: 100_000, duration: Duration::from_millis(200) })
    );
    let Some(FaultAbort { share_ppm, response, grpc }) = &second.abort else {
        panic!("{second:?}")
    };
    assert_eq!((*share_ppm, response.status, *grpc), (5_000, Some(503), Some(14)));
    assert_eq!(response.body.as_deref(), Some("not now"));
    assert_eq!(second.peers[0].to_string(), "bookinfo/reviews*");
}

#[test]
fn fault_injections_without_effect_are_rejected() {
    let rule = |rule: &str| format!("{{targetRefs: [{{name: a}}], rules: [{{{rule}}}]}}");
    let specs = [
        "{targetRefs: [{name: a}]}".to_owned(),
        "{targetRefs: [{name: a}], rules: []}".to_owned(),
        rule("name: a"),
        rule("delay: {}"),
        rule("delay: {fixedDelay: 0s}"),
        rule("delay: {fixedDelay: 11m}"),
        rule("delay: {fixedDelay: 1s, percent: 0}"),
        rule("delay: {fixedDelay: 1s, percent: 100.1}"),
        rule("delay: {fixedDelay: 1s, percent: \"5\"}"),
        rule("abort: {}"),
        rule("abort: {httpStatus: 204}"),
        rule("abort: {httpStatus: 600}"),
        rule("abort: {grpcStatus: OK}"),
        rule("abort: {httpStatus: 503}, matches: []"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "FaultInjection",
        &specs,
        &expect![[r#"
            spec.rules: is missing; add `rules`
            spec.rules: is empty; add an element
            spec.rules[0]: injects no fault; add `delay` or `abort`
            spec.rules[0].delay.fixedDelay: is missing; add `fixedDelay`
            spec.rules[0].delay.fixedDelay: "0s" is out of range; use a time with a unit, from 1ms to 10m, such as "5s"
            spec.rules[0].delay.fixedDelay: "11m" is out of range; use a time with a unit, from 1ms to 10m, such as "5s"
            spec.rules[0].delay.percent: 0 is not a percentage; use a number above 0, up to 100, with at most four decimals, such as 12.5
            spec.rules[0].delay.percent: 100.1 is not a percentage; use a number above 0, up to 100, with at most four decimals, such as 12.5
            spec.rules[0].delay.percent: "5" is not a percentage; write 5, without quotes or a tag
            spec.rules[0].abort: has no status; add `httpStatus`, `grpcStatus` or both
            spec.rules[0].abort.httpStatus: has no body; use a status that permits a body, such as 503
            spec.rules[0].abort.httpStatus: 600 is out of range; use a number from 200 to 599
            spec.rules[0].abort.grpcStatus: "OK" is not a supported value; use `CANCELLED`, `UNKNOWN`, `INVALID_ARGUMENT`, `DEADLINE_EXCEEDED`, `NOT_FOUND`, `ALREADY_EXISTS`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`, `FAILED_PRECONDITION`, `ABORTED`, `OUT_OF_RANGE`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS` or `UNAUTHENTICATED`
            spec.rules[0].matches: is empty, which is ambiguous; add an element, or omit it for all requests
        "#]],
    );
}

fn read_balancing(spec: &str) -> LoadBalancing {
    let text = format!(
        "{{apiVersion: leno.dev/v1alpha1, kind: LoadBalancing, metadata: {{name: x}}, \
         spec: {{targetRefs: [{{name: a}}]{spec}}}}}"
    );
    let ServiceRule::LoadBalancing(rule) = read_policy(&text).rule else { panic!("{text}") };
    rule
}

#[test]
fn all_balancing_algorithms_are_read() {
    let without_slow_start = |algorithm| LoadBalancing { algorithm, slow_start: None };
    let cookie = || HashKey::Cookie("session".to_owned());
    for (spec, expected) in [
        ("", BalanceAlgorithm::PeakEwma { choices: 2 }),
        (", choiceCount: 3", BalanceAlgorithm::PeakEwma { choices: 3 }),
        (", algorithm: PeakEwma", BalanceAlgorithm::PeakEwma { choices: 2 }),
        (", algorithm: LeastRequest", BalanceAlgorithm::LeastRequest { choices: 2 }),
        (
            ", algorithm: LeastRequest, choiceCount: 16",
            BalanceAlgorithm::LeastRequest { choices: 16 },
        ),
        (", algorithm: RoundRobin", BalanceAlgorithm::RoundRobin),
        (", algorithm: Random", BalanceAlgorithm::Random),
        (", algorithm: RingHash, key: {cookie: session}", BalanceAlgorithm::RingHash(cookie())),
        (", algorithm: Maglev, key: {source: true}", BalanceAlgorithm::Maglev(HashKey::Source)),
        (
            ", algorithm: Maglev, key: {header: Host}",
            BalanceAlgorithm::Maglev(HashKey::Header(":authority".to_owned())),
        ),
    ] {
        assert_eq!(read_balancing(spec), without_slow_start(expected), "{spec}");
    }
    let slow_start = Some(SlowStart { duration: Duration::from_secs(60), min_percent: 10 });
    assert_eq!(
        read_balancing(", algorithm: Random, warmup: {duration: 1m}").slow_start,
        slow_start
    );
}

#[test]
fn options_of_other_algorithms_are_rejected() {
    let specs = [
        "{algorithm: Random}",
        "{targetRefs: [{name: a}], algorithm: Fair}",
        "{targetRefs: [{name: a}], choiceCount: 1}",
        "{targetRefs: [{name: a}], algorithm: Random, choiceCount: 2}",
        "{targetRefs: [{name: a}], algorithm: Random, key: {source: true}}",
        "{targetRefs: [{name: a}], algorithm: Maglev}",
        "{targetRefs: [{name: a}], algorithm: Maglev, key: {}}",
        "{targetRefs: [{name: a}], algorithm: Maglev, key: {header: a, cookie: b}}",
        "{targetRefs: [{name: a}], algorithm: Maglev, key: {cookie: \"a b\"}}",
        "{targetRefs: [{name: a}], algorithm: Maglev, key: {source: false}}",
        "{targetRefs: [{name: a}], algorithm: RingHash, key: {source: true}, warmup: {duration: 1s}}",
        "{targetRefs: [{name: a}], warmup: {duration: 0s}}",
        "{targetRefs: [{name: a}], warmup: {duration: 1s, minimumPercent: 0}}",
    ];
    check_group_rejections(
        "leno.dev",
        "LoadBalancing",
        &specs,
        &expect![[r#"
            spec.targetRefs: is missing; add `targetRefs`
            spec.algorithm: "Fair" is not a supported value; use `PeakEwma`, `LeastRequest`, `RoundRobin`, `Random`, `RingHash` or `Maglev`
            spec.choiceCount: 1 is out of range; use a number from 2 to 16
            spec.choiceCount: requires PeakEwma or LeastRequest; remove it, or use one of these
            spec.key: requires RingHash or Maglev; remove it, or use one of these
            spec: has no `key`, which RingHash and Maglev require; add `key`
            spec.key: has no key; add `header`, `cookie` or `source`
            spec.key: has `header` and `cookie` together; keep one of them
            spec.key.cookie: "a b" is not the name of a cookie; use letters, digits and `-`
            spec.key.source: has no key; use `source: true`, or another key
            spec.warmup: is not supported with a key, which selects its endpoint regardless of age; remove it, or use another algorithm
            spec.warmup.duration: "0s" is out of range; use a time with a unit, from 1s to 24h, such as "5s"
            spec.warmup.minimumPercent: 0 is out of range; use a number from 1 to 100
        "#]],
    );
}

#[test]
fn a_hedging_is_read_with_all_fields() {
    let read_hedging = |text: &str| match read_policy(text).rule {
        ServiceRule::Hedging(rule) => rule,
        other => panic!("{other:?}"),
    };
    let after = Duration::from_millis(50);
    assert_eq!(
        read_hedging(&crate::pages::page_examples("hedging.md")[0]),
        HedgeRule { after, methods: [].into() }
    );
    let text = "apiVersion: leno.dev/v1alpha1\nkind: Hedging\nmetadata: {name: x}\n\
                spec: {targetRefs: [{name: a, port: 80}], after: 50ms, methods: [POST, GET]}\n";
    assert_eq!(
        read_hedging(text),
        HedgeRule {
            after,
            methods: ["POST", "GET"].into_iter().filter_map(HedgeMethod::new).collect()
        }
    );
}

#[test]
fn hedgings_without_effect_are_rejected() {
    check_group_rejections(
        "leno.dev",
        "Hedging",
        &[
            "{targetRefs: [{name: a}]}",
            "{targetRefs: [{name: a}], after: 0s}",
            "{targetRefs: [{name: a}], after: 61s}",
            "{targetRefs: [{name: a}], after: 1s, methods: []}",
            "{targetRefs: [{name: a}], after: 1s, methods: [get]}",
            "{targetRefs: [{name: a}], after: 1s, methods: [CONNECT]}",
            "{targetRefs: [{name: a}], after: 1s, methods: [GET, GET]}",
            "{targetRefs: [{name: a}], after: 1s, percent: 5}",
            "{after: 1s}",
        ],
        &expect![[r#"
            spec.after: is missing; add `after`
            spec.after: "0s" is out of range; use a time with a unit, from 1ms to 1m, such as "5s"
            spec.after: "61s" is out of range; use a time with a unit, from 1ms to 1m, such as "5s"
            spec.methods: is empty, which is ambiguous; add an element, or omit it for GET, HEAD, OPTIONS, TRACE, PUT and DELETE
            spec.methods[0]: "get" is not a method that can be sent twice; use one such as GET or POST
            spec.methods[0]: "CONNECT" is not a method that can be sent twice; use one such as GET or POST
            spec.methods[1]: is listed twice; remove one of the two
            spec.percent: is an unknown field; remove it, or use `targetRefs`, `after` or `methods`
            spec.targetRefs: is missing; add `targetRefs`
        "#]],
    );
}

#[test]
fn a_traffic_warmup_applies_to_the_service_of_its_name() {
    let [text] = &crate::pages::page_examples("traffic-warmup.md")[..] else {
        panic!("one example")
    };
    let policy = read_policy(text);
    let ServiceRule::LoadBalancing(rule) = policy.rule else { panic!("{text}") };
    let slow_start = Some(SlowStart { duration: Duration::from_secs(120), min_percent: 5 });
    // A migrated warm-up equals a LoadBalancing with only that setting.
    let equal_policy = read_policy(
        "{apiVersion: leno.dev/v1alpha1, kind: LoadBalancing, metadata: {name: stock}, \
         spec: {targetRefs: [{kind: Service, name: stock}], warmup: {duration: 2m, minimumPercent: 5}}}",
    );
    let ServiceRule::LoadBalancing(balancing) = equal_policy.rule else {
        panic!("{equal_policy:?}")
    };
    assert_eq!(
        balancing,
        LoadBalancing { algorithm: BalanceAlgorithm::PeakEwma { choices: 2 }, slow_start }
    );
    assert_eq!(rule, balancing);
    assert!(matches!(&policy.scope, PolicyScope::Services(targets)
        if targets.len() == 1 && targets[0].service.to_string() == "stock/stock"));
    let slow_start_of = |spec: &str| {
        let text = format!(
            "{{apiVersion: policy.flomesh.io/v1alpha1, kind: TrafficWarmup, metadata: {{name: x}}, \
             spec: {spec}}}"
        );
        let ServiceRule::LoadBalancing(rule) = read_policy(&text).rule else { panic!("{text}") };
        rule.slow_start
    };
    let default_slow_start = SlowStart { duration: Duration::from_secs(90), min_percent: 10 };
    assert_eq!(slow_start_of("{aggression: 1.0, maxWeight: 100}"), Some(default_slow_start));
    assert_eq!(slow_start_of("{enable: false}"), None);
}

#[test]
fn a_traffic_warmup_with_other_growth_is_rejected() {
    let specs =
        ["{aggression: 2}", "{maxWeight: 80}", "{minWeight: 0}", "{duration: 10ms}", "{curve: 2}"];
    check_group_rejections(
        "policy.flomesh.io",
        "TrafficWarmup",
        &specs,
        &expect![[r#"
            spec.aggression: 2 is not linear growth, and no other growth is supported; use 1, or remove it
            spec.maxWeight: is not 100: an endpoint after slow start always gets its full share; use 100, or give the service fewer requests with a route
            spec.minWeight: 0 is out of range; use a number from 1 to 100
            spec.duration: "10ms" is out of range; use a time with a unit, from 1s to 24h, such as "5s"
            spec.curve: is an unknown field; remove it, or use `enable`, `duration`, `minWeight`, `maxWeight` or `aggression`
        "#]],
    );
}
