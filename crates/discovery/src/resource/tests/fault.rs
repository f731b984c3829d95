//! Tests of faults and load balancing: random round trips and rejected values.

use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, FaultAbort, FaultDelay, FaultRule, HashKey, HedgeMethod, HedgeRule,
    LoadBalancing, NamePattern, PeerMatch, PortFaults, PortHedging, PortLoadBalancing, SlowStart,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::any_request_match;
use super::circuit_breaker::{any_duration, any_fixed_response, any_policy_name};
use crate::proto;
use crate::resource::{balancing, fault, hedging};

pub(super) fn any_faults() -> impl Strategy<Value = PortFaults> {
    let share = || 0..=1_000_000_u32;
    let time = (1..=600_000_u64).prop_map(Duration::from_millis);
    let delay =
        (share(), time).prop_map(|(share_ppm, time)| FaultDelay { share_ppm, duration: time });
    let abort = (share(), any_fixed_response(), prop::option::of(1..=16_u8))
        .prop_map(|(share_ppm, response, grpc)| FaultAbort { share_ppm, response, grpc });
    let pattern = || "[a-z*.-]{1,9}".prop_map(|text| NamePattern::new(&text).unwrap());
    let peer = (pattern(), pattern());
    let peer = peer.prop_map(|(namespace, account)| PeerMatch { namespace, account });
    let delay_and_abort = (prop::option::of(delay), prop::option::of(abort))
        .prop_filter("delays or aborts", |(delay, abort)| delay.is_some() || abort.is_some());
    let rule = (".{0,9}", vec(any_request_match(), 0..3), vec(peer, 0..3), delay_and_abort)
        .prop_map(|(name, requests, peers, (delay, abort))| FaultRule {
            name,
            requests,
            peers,
            delay,
            abort,
        });
    (any_policy_name(), vec(rule, 1..3)).prop_map(|(policy, rules)| PortFaults { policy, rules })
}

pub(super) fn any_hedging() -> impl Strategy<Value = PortHedging> {
    let methods = prop::sample::subsequence(vec!["GET", "POST", "M-SEARCH"], 0..=3);
    (any_policy_name(), 1_000_000..u64::MAX, methods).prop_map(|(policy, after, methods)| {
        let methods = methods.into_iter().filter_map(HedgeMethod::new).collect();
        PortHedging { policy, rule: HedgeRule { after: Duration::from_nanos(after), methods } }
    })
}

pub(super) fn any_balancing() -> impl Strategy<Value = PortLoadBalancing> {
    let key = || {
        prop_oneof![
            "x-[a-z]{1,5}".prop_map(HashKey::Header),
            "[A-Za-z]{1,5}".prop_map(HashKey::Cookie),
            Just(HashKey::Source),
        ]
    };
    let algorithm = prop_oneof![
        (2..=16_u8).prop_map(|choices| BalanceAlgorithm::PeakEwma { choices }),
        (2..=16_u8).prop_map(|choices| BalanceAlgorithm::LeastRequest { choices }),
        Just(BalanceAlgorithm::RoundRobin),
        Just(BalanceAlgorithm::Random),
        key().prop_map(BalanceAlgorithm::RingHash),
        key().prop_map(BalanceAlgorithm::Maglev),
    ];
    let slow_start = (any_duration(), 1..=100_u8)
        .prop_map(|(time, min_percent)| SlowStart { duration: time, min_percent });
    (any_policy_name(), algorithm, prop::option::of(slow_start)).prop_map(
        |(policy, algorithm, slow_start)| {
            let slow_start = slow_start.filter(|_| algorithm.hash_key().is_none());
            PortLoadBalancing { policy, rule: LoadBalancing { algorithm, slow_start } }
        },
    )
}

fn policy_of_kind(kind: &str) -> Option<proto::ServicePolicy> {
    Some(proto::ServicePolicy { kind: kind.to_owned(), name: "a/b".to_owned() })
}

#[test]
fn an_invalid_fault_is_rejected_with_its_field() {
    let delay = || proto::FaultDelay { share_ppm: 1, time_nanoseconds: 1_000_000 };
    let rule = || proto::FaultRule { delay: Some(delay()), ..Default::default() };
    let faults_with = |rules| proto::Faults { policy: policy_of_kind("FaultInjection"), rules };
    let too_long = proto::FaultDelay { time_nanoseconds: 600_000_000_001, ..delay() };
    let too_much = proto::FaultDelay { share_ppm: 1_000_001, ..delay() };
    let abort = proto::FaultAbort { grpc: 17, ..Default::default() };
    for (invalid_rule, field) in [
        (proto::FaultRule { delay: None, ..rule() }, "rules[0]"),
        (proto::FaultRule { delay: Some(too_long), ..rule() }, "rules[0].delay.time_nanoseconds"),
        (proto::FaultRule { delay: Some(too_much), ..rule() }, "rules[0].delay.share_ppm"),
        (proto::FaultRule { abort: Some(abort), ..rule() }, "rules[0].abort.grpc"),
    ] {
        let invalid = fault::from_wire(faults_with(vec![invalid_rule])).unwrap_err();
        assert_eq!(invalid.field, field, "{}", invalid.reason);
    }
    assert_eq!(fault::from_wire(faults_with(vec![rule()])).unwrap().rules.len(), 1);
    assert_eq!(fault::from_wire(faults_with(Vec::new())).unwrap_err().field, "rules");
}

#[test]
fn an_invalid_algorithm_is_rejected_with_its_field() {
    use proto::balancing::Algorithm;
    use proto::hash_key::Key;
    let balancing_with = |algorithm| proto::Balancing {
        policy: policy_of_kind("LoadBalancing"),
        algorithm,
        ..proto::Balancing::default()
    };
    let key = |key| Some(Algorithm::Maglev(proto::HashKey { key }));
    let slow_start = proto::SlowStart { time_nanoseconds: 1_000_000, min_percent: 1 };
    let hashed = || balancing_with(key(Some(Key::Source(proto::Nothing {}))));
    for (invalid_balancing, field) in [
        (balancing_with(None), "algorithm"),
        (balancing_with(Some(Algorithm::LeastRequest(1))), "least_request"),
        (balancing_with(Some(Algorithm::LeastRequest(17))), "least_request"),
        (balancing_with(key(None)), "key"),
        (balancing_with(key(Some(Key::Header("A".to_owned())))), "key.header"),
        (balancing_with(key(Some(Key::Cookie(String::new())))), "key.cookie"),
        (proto::Balancing { warm_up: Some(slow_start), ..hashed() }, "warm_up"),
        (proto::Balancing { by_latency: true, ..hashed() }, "by_latency"),
    ] {
        let invalid = balancing::from_wire(invalid_balancing).unwrap_err();
        assert_eq!(invalid.field, field, "{}", invalid.reason);
    }
    assert!(balancing::from_wire(hashed()).is_ok());
}

#[test]
fn hedging_is_not_encoded_in_the_traffic_policy() {
    let hedging = PortHedging {
        policy: leno_model::ServicePolicyName::new(
            leno_model::ServicePolicyKind::Hedging,
            "shop",
            "one",
        )
        .unwrap(),
        rule: HedgeRule { after: Duration::from_millis(50), methods: [].into() },
    };
    // A sidecar would reject an empty traffic policy.
    let hedging_only =
        leno_model::TrafficPolicy { hedging: Some(hedging.clone()), ..Default::default() };
    assert_eq!(crate::resource::traffic_policy::to_wire(&hedging_only), None);
    let wire = || hedging::to_wire(&hedging);
    assert_eq!(hedging::from_wire(wire()).unwrap(), hedging);
    for (invalid_hedging, field) in [
        (proto::Hedging { after_nanoseconds: 0, ..wire() }, "after_nanoseconds"),
        (proto::Hedging { methods: vec!["get".to_owned()], ..wire() }, "methods[0]"),
        (proto::Hedging { policy: None, ..wire() }, "policy"),
    ] {
        let invalid = hedging::from_wire(invalid_hedging).unwrap_err();
        assert_eq!(invalid.field, field, "{}", invalid.reason);
    }
}
