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
    reports_limits: bool,
    check: impl Fn(&CompiledGlobalLimit, &RequestView<'_>, Vec<RequestDescriptor>),
) {
    let check_service_address =
        CheckServiceAddress::External(Server::parse("http://127.0.0.1:9000").unwrap());
    let timeout = Duration::from_millis(20);
    let entry = |key: &str, value| DescriptorEntry { key: key.to_owned(), value };
    let descriptor =
        |entries, hits| Descriptor { requests: Vec::new(), entries, hits_addend: hits };
    let global_limit = GlobalLimit {
        check_service: CheckService {
            address: check_service_address,
            timeout,
            failure_mode: FailureMode::Allow,
        },
        domain: "shop".to_owned(),
        descriptors: vec![
            descriptor(vec![entry("path", DescriptorValue::Path)], 1),
            descriptor(vec![entry("rule", DescriptorValue::Text("dear".to_owned()))], 3),
        ],
        response: FixedResponse { status: Some(503), ..FixedResponse::default() },
        rate_limit_headers: reports_limits,
    };
    let limits = RateLimits { global: Some(Box::new(global_limit)), ..RateLimits::default() };
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "shop", "all").unwrap();
    let mut workload_config = fixture::proxy_config("a", leno_model::Access::AllowAll);
    workload_config.limits = BTreeMap::from([(80, vec![PortLimits { policy, limits }])]);
    let checks = CompiledChecks::build(&workload_config).unwrap().unwrap();
    let fields: Vec<(String, String)> = Vec::new();
    let request_view =
        RequestView { method: "GET", path: "/a", query: None, authority: "a", fields: &fields };
    let client = CheckedClient { account: None, address: [127, 0, 0, 1].into() };
    let (limit, requested_descriptors) =
        checks.for_port(80).unwrap().required_limits(&request_view, client).next().unwrap();
    check(limit, &request_view, requested_descriptors);
}

#[test]
fn equal_hits_are_set_on_the_request() {
    with_limit(false, |limit, _, requested_descriptors| {
        let single_descriptor_request = build_request(limit, requested_descriptors[..1].to_vec());
        let single_descriptor_request =
            RateLimitRequest::decode(&*single_descriptor_request).unwrap();
        assert_eq!(
            (single_descriptor_request.domain.as_str(), single_descriptor_request.hits_addend),
            ("shop", 1)
        );
        assert_eq!(single_descriptor_request.descriptors[0].hits_addend, None);
        let request =
            RateLimitRequest::decode(&*build_request(limit, requested_descriptors)).unwrap();
        let hits = request
            .descriptors
            .iter()
            .map(|descriptor| descriptor.hits_addend.as_ref().unwrap().value);
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
fn clients_receive_the_limit_with_the_fewest_remaining_requests() {
    let response = RateLimitResponse {
        overall_code: OK,
        statuses: vec![descriptor_status(OK, 10, 4, 7), descriptor_status(OK, 100, 90, 30)],
        ..RateLimitResponse::default()
    };
    for reports_limits in [true, false] {
        with_limit(reports_limits, |limit, request_view, _| {
            let decision =
                parse_decision(response.encode_to_vec().into(), limit, request_view).unwrap();
            let RateLimitResult::WithinLimit { response, .. } = decision else {
                panic!("{decision:?}")
            };
            let reported: Vec<_> = response
                .set
                .iter()
                .map(|header| format!("{}: {}", header.name, header.value))
                .collect();
            let descriptors = [
                "x-ratelimit-limit: 10, 10;w=60;name=\"ten\", 100;w=60",
                "x-ratelimit-remaining: 4",
                "x-ratelimit-reset: 7",
            ];
            assert_eq!(reported, if reports_limits { &descriptors[..] } else { &[] });
        });
    }
}

#[test]
fn a_request_over_the_limit_gets_the_response_of_the_policy() {
    let response = RateLimitResponse {
        overall_code: OVER_LIMIT,
        statuses: vec![descriptor_status(OVER_LIMIT, 10, 0, 7), descriptor_status(OK, 100, 90, 30)],
        raw_body: b"slowly".to_vec(),
        ..RateLimitResponse::default()
    };
    with_limit(false, |limit, request_view, _| {
        let over_limit_decision =
            parse_decision(response.encode_to_vec().into(), limit, request_view).unwrap();
        let RateLimitResult::OverLimit { response: reply, wait } = over_limit_decision else {
            panic!("{over_limit_decision:?}")
        };
        assert_eq!((reply.status, reply.body.as_deref()), (Some(503), Some("slowly")));
        assert_eq!(wait, Some(Duration::from_secs(7)));
        let unknown_code_response = RateLimitResponse::default();
        let unknown_code_response =
            parse_decision(unknown_code_response.encode_to_vec().into(), limit, request_view);
        assert!(matches!(unknown_code_response, Err(CheckError::Unusable(_))));
        // Invalid headers do not lift the limit.
        let forbidden_header =
            HeaderValue { key: "connection".to_owned(), ..HeaderValue::default() };
        let response = RateLimitResponse {
            overall_code: OVER_LIMIT,
            response_headers_to_add: vec![forbidden_header],
            ..RateLimitResponse::default()
        };
        let over_limit_decision =
            parse_decision(response.encode_to_vec().into(), limit, request_view);
        assert!(
            matches!(over_limit_decision, Ok(RateLimitResult::OverLimit { .. })),
            "{over_limit_decision:?}"
        );
    });
}
