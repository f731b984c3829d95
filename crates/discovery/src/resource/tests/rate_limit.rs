//! Tests of rate limits: random round trips and rejected values.

use std::collections::BTreeMap;
use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, Concurrency, NamePattern, PeerMatch, PortLimits, Rate, RateLimitKey,
    RateLimits, RateRule,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::any_request_match;
use super::circuit_breaker::{any_fixed_response, any_policy_name};
use super::request_check::any_global_limit;
use crate::proto;
use crate::resource::rate_limit;

pub(super) fn any_port_limits() -> impl Strategy<Value = BTreeMap<u16, Vec<PortLimits>>> {
    let global = prop::option::of(any_global_limit().prop_map(Box::new));
    let limits = (
        prop::option::of(any_rate()),
        vec(any_rate_rule(), 0..3),
        prop::option::of(any_concurrency()),
        global,
    )
        .prop_map(|(connections, rules, concurrency, global)| RateLimits {
            connections,
            rules,
            concurrency,
            global,
        })
        .prop_filter("has a limit", |limits| !limits.is_empty());
    let policies =
        (any_policy_name(), limits).prop_map(|(policy, limits)| PortLimits { policy, limits });
    btree_map(1u16.., vec(policies, 1..3), 0..3)
}

fn any_concurrency() -> impl Strategy<Value = Concurrency> {
    let requests = || 1..=Rate::MAX_TOKENS;
    let adaptive = prop::option::of((requests(), 1..=u16::MAX));
    (requests(), adaptive, any_fixed_response()).prop_map(|(requests, adaptive, response)| {
        let adaptive =
            adaptive.map(|(min_concurrency, latency_tolerance_percent)| AdaptiveConcurrency {
                min_concurrency: min_concurrency.min(requests),
                latency_tolerance_percent,
            });
        Concurrency { requests, adaptive, response }
    })
}

fn any_rate() -> impl Strategy<Value = Rate> {
    let time = (1..=24 * 3600_u64).prop_map(Duration::from_secs);
    (1..=Rate::MAX_TOKENS, time, 1..=Rate::MAX_BUCKET_SIZE).prop_map(|(count, time, size)| Rate {
        count,
        period: time,
        burst: size,
    })
}

fn any_rate_rule() -> impl Strategy<Value = RateRule> {
    let pattern = || "[a-z*.-]{1,9}".prop_map(|text| NamePattern::new(&text).unwrap());
    let peer = (pattern(), pattern());
    let peer = peer.prop_map(|(namespace, account)| PeerMatch { namespace, account });
    let buckets = || 1..=Rate::MAX_BUCKETS;
    let key = prop_oneof![
        Just(RateLimitKey::None),
        buckets().prop_map(|buckets| RateLimitKey::Client { buckets }),
        ("x-[a-z]{1,5}", buckets())
            .prop_map(|(name, buckets)| RateLimitKey::Header { name, buckets }),
    ];
    let selection = (vec(any_request_match(), 0..3), vec(peer, 0..3), key);
    (".{0,9}", selection, any_rate(), any::<bool>(), any_fixed_response()).prop_map(
        |(name, (requests, peers, key), rate, stop, response)| RateRule {
            name,
            requests,
            peers,
            key,
            rate,
            stop,
            response,
        },
    )
}

#[test]
fn an_invalid_rate_limit_is_rejected_with_its_field() {
    use proto::rate_rule::Key;
    let nothing = || Some(Key::Nothing(proto::Nothing {}));
    let rate = || proto::Rate { count: 1, time_nanoseconds: 1_000_000_000, size: 1 };
    let rule = || proto::RateRule { key: nothing(), rate: Some(rate()), ..Default::default() };
    let client = Some(Key::Client(proto::Nothing {}));
    let too_long = 86_400_000_000_001;
    for (invalid_rule, field) in [
        (proto::RateRule { key: None, ..rule() }, "key"),
        (proto::RateRule { buckets: 1, ..rule() }, "buckets"),
        (proto::RateRule { key: client.clone(), ..rule() }, "buckets"),
        (proto::RateRule { key: client, buckets: 100_001, ..rule() }, "buckets"),
        (
            proto::RateRule { key: Some(Key::Header("A".to_owned())), buckets: 1, ..rule() },
            "header",
        ),
        (proto::RateRule { rate: None, ..rule() }, "rate"),
        (
            proto::RateRule { rate: Some(proto::Rate { count: 0, ..rate() }), ..rule() },
            "rate.count",
        ),
        (
            proto::RateRule { rate: Some(proto::Rate { size: 2_000_001, ..rate() }), ..rule() },
            "rate.size",
        ),
        (
            proto::RateRule {
                rate: Some(proto::Rate { time_nanoseconds: too_long, ..rate() }),
                ..rule()
            },
            "rate.time_nanoseconds",
        ),
    ] {
        let invalid =
            rate_limit::from_wire(limited_port(vec![invalid_rule])).map(|_| ()).unwrap_err();
        assert_eq!(invalid.field, format!("policies[0].rules[0].{field}"), "{}", invalid.reason);
    }
    assert!(rate_limit::from_wire(limited_port(vec![rule()])).is_ok());
    assert_eq!(
        rate_limit::from_wire(limited_port(Vec::new())).map(|_| ()).unwrap_err().field,
        "policies[0]"
    );
    let none = proto::LimitedPort { port: 80, policies: Vec::new() };
    assert_eq!(rate_limit::from_wire(none).map(|_| ()).unwrap_err().field, "policies");
}

#[test]
fn an_invalid_concurrency_limit_is_rejected_with_its_field() {
    let adaptive = |min_concurrency, latency_tolerance_percent| {
        Some(proto::AdaptiveConcurrency { min_concurrency, latency_tolerance_percent })
    };
    for (requests, adaptive, field) in [
        (0, None, "policies[0].concurrency.requests"),
        (Rate::MAX_TOKENS + 1, None, "policies[0].concurrency.requests"),
        (4, adaptive(5, 50), "policies[0].concurrency.adaptive.min_concurrency"),
        (4, adaptive(0, 50), "policies[0].concurrency.adaptive.min_concurrency"),
        (4, adaptive(4, 0), "policies[0].concurrency.adaptive.latency_tolerance_percent"),
        (4, adaptive(4, 70_000), "policies[0].concurrency.adaptive.latency_tolerance_percent"),
    ] {
        let mut wire = limited_port(Vec::new());
        wire.policies[0].concurrency =
            Some(proto::Concurrency { requests, adaptive, response: None });
        assert_eq!(rate_limit::from_wire(wire).map(|_| ()).unwrap_err().field, field);
    }
}

fn limited_port(rules: Vec<proto::RateRule>) -> proto::LimitedPort {
    let policy = proto::ServicePolicy { kind: "RateLimit".to_owned(), name: "a/b".to_owned() };
    let limits = proto::RateLimits { policy: Some(policy), rules, ..proto::RateLimits::default() };
    proto::LimitedPort { port: 80, policies: vec![limits] }
}
