//! Rate limit requests and responses.

use std::collections::BTreeMap;

use leno_model::{
    CheckService, CheckServiceAddress, Descriptor, DescriptorEntry, DescriptorValue, FailureMode,
    GlobalLimit, PortLimits, RateLimits, Server, ServicePolicyKind, ServicePolicyName,
};
use leno_traffic::CompiledChecks;
use leno_traffic::request_checks::CheckedClient;

use super::super::protobuf::{CurrentLimit, Time};
use super::*;
use crate::tests::fixture;

fn with_limit(
    tells: bool,
    check: impl Fn(&CompiledGlobalLimit, &RequestView<'_>, Vec<RequestDescriptor>),
) {
    let at = CheckServiceAddress::External(Server::parse("http://127.0.0.1:9000").unwrap());
    let timeout = Duration::from_millis(20);
    let entry = |key: &str, value| DescriptorEntry { key: key.to_owned(), value };
    let descriptor =
        |entries, hits| Descriptor { requests: Vec::new(), entries, hits_addend: hits };
    let global = GlobalLimit {
        check_service: CheckService { at, timeout, failure_mode: FailureMode::Allow },
        domain: "shop".to_owned(),
        descriptors: vec![
            descriptor(vec![entry("path", DescriptorValue::Path)], 1),
            descriptor(vec![entry("rule", DescriptorValue::Text("dear".to_owned()))], 3),
        ],
        response: FixedResponse { status: Some(503), ..FixedResponse::default() },
        rate_limit_headers: tells,
    };
    let limits = RateLimits { global: Some(Box::new(global)), ..RateLimits::default() };
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "shop", "all").unwrap();
    let mut plan = fixture::proxy_config("a", leno_model::Access::AllowAll);
    plan.limits = BTreeMap::from([(80, vec![PortLimits { policy, limits }])]);
    let guards = CompiledChecks::build(&plan).unwrap().unwrap();
    let fields: Vec<(String, String)> = Vec::new();
    let view =
        RequestView { method: "GET", path: "/a", query: None, authority: "a", fields: &fields };
    let asking = CheckedClient { account: None, address: [127, 0, 0, 1].into() };
    let (limit, described) =
        guards.for_port(80).unwrap().required_limits(&view, asking).next().unwrap();
    check(limit, &view, described);
}

#[test]
fn hits_are_said_once_where_they_are_the_same() {
    with_limit(false, |limit, _, described| {
        let one = build_request(limit, described[..1].to_vec());
        let one = RateLimitRequest::decode(&*one).unwrap();
        assert_eq!((one.domain.as_str(), one.hits_addend), ("shop", 1));
        assert_eq!(one.descriptors[0].hits_addend, None);
        let both = RateLimitRequest::decode(&*build_request(limit, described)).unwrap();
        let hits = both.descriptors.iter().map(|it| it.hits_addend.as_ref().unwrap().value);
        assert_eq!(hits.collect::<Vec<_>>(), [1, 3]);
    });
}

fn descriptor_status(code: i32, limit: u32, remaining: u32, seconds: i64) -> DescriptorStatus {
    DescriptorStatus {
        code,
        current_limit: Some(CurrentLimit {
            requests_per_unit: limit,
            unit: 2,
            name: if limit == 10 { "ten".to_owned() } else { String::new() },
        }),
        limit_remaining: remaining,
        duration_until_reset: Some(Time { seconds, nanos: 0 }),
    }
}

#[test]
fn clients_are_reported_the_limit_that_has_least_left() {
    let response = RateLimitResponse {
        overall_code: OK,
        statuses: vec![descriptor_status(OK, 10, 4, 7), descriptor_status(OK, 100, 90, 30)],
        ..RateLimitResponse::default()
    };
    for tells in [true, false] {
        with_limit(tells, |limit, view, _| {
            let verdict = parse_verdict(response.encode_to_vec().into(), limit, view).unwrap();
            let RateLimitResult::WithinLimit { response, .. } = verdict else {
                panic!("{verdict:?}")
            };
            let reported: Vec<_> =
                response.set.iter().map(|it| format!("{}: {}", it.name, it.value)).collect();
            let all = [
                "x-ratelimit-limit: 10, 10;w=60;name=\"ten\", 100;w=60",
                "x-ratelimit-remaining: 4",
                "x-ratelimit-reset: 7",
            ];
            assert_eq!(reported, if tells { &all[..] } else { &[] });
        });
    }
}

#[test]
fn what_is_too_much_is_answered_as_the_policy_says() {
    let response = RateLimitResponse {
        overall_code: OVER_LIMIT,
        statuses: vec![descriptor_status(OVER_LIMIT, 10, 0, 7), descriptor_status(OK, 100, 90, 30)],
        raw_body: b"slowly".to_vec(),
        ..RateLimitResponse::default()
    };
    with_limit(false, |limit, view, _| {
        let full = parse_verdict(response.encode_to_vec().into(), limit, view).unwrap();
        let RateLimitResult::OverLimit { answer, wait } = full else { panic!("{full:?}") };
        assert_eq!((answer.status, answer.body.as_deref()), (Some(503), Some("slowly")));
        assert_eq!(wait, Some(Duration::from_secs(7)));
        let unknown = RateLimitResponse::default();
        let unknown = parse_verdict(unknown.encode_to_vec().into(), limit, view);
        assert!(matches!(unknown, Err(CheckError::Unusable(_))));
        // Invalid headers do not lift the limit.
        let wrong = HeaderValue { key: "connection".to_owned(), ..HeaderValue::default() };
        let response = RateLimitResponse {
            overall_code: OVER_LIMIT,
            response_headers_to_add: vec![wrong],
            ..RateLimitResponse::default()
        };
        let full = parse_verdict(response.encode_to_vec().into(), limit, view);
        assert!(matches!(full, Ok(RateLimitResult::OverLimit { .. })), "{full:?}");
    });
}
