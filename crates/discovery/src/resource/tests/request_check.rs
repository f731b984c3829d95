//! Tests of external authorization and token policies: random round trips and rejected values.

use std::collections::BTreeMap;
use std::time::Duration;

use leno_model::{
    Authorization, BodyExcerpt, CheckService, CheckServiceAddress, ClaimHeader, Descriptor,
    DescriptorEntry, DescriptorValue, FailureMode, GlobalLimit, IssuerKeys, JwtAlgorithm,
    JwtIssuer, JwtLocation, JwtValidation, LongBodyAction, PortCheck, RequestCheck, Server,
    TokenRequirement,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::circuit_breaker::{any_fixed_response, any_policy_name};
use super::{any_request_match, any_service_name};
use crate::proto;
use crate::resource::request_check;

pub(super) fn any_port_checks() -> impl Strategy<Value = BTreeMap<u16, Vec<PortCheck>>> {
    let headers = prop::option::of(vec("x-[a-z]{1,5}", 0..3));
    let context_extensions = vec(("[a-z]{1,3}", ".{0,5}"), 0..3);
    let long_body = prop_oneof![Just(LongBodyAction::Reject), Just(LongBodyAction::SendPrefix)];
    let body = (1..=BodyExcerpt::MAX_BYTES, long_body, any::<bool>()).prop_map(
        |(max_bytes, long_body, pack_as_bytes)| BodyExcerpt { max_bytes, long_body, pack_as_bytes },
    );
    let rule = (
        any_check_service(),
        vec(any_request_match(), 0..3),
        headers,
        context_extensions,
        prop::option::of(body),
    )
        .prop_map(|(check_service, requests, headers, context_extensions, body)| {
            let rule = Authorization { check_service, requests, headers, context_extensions, body };
            RequestCheck::Authorization(Box::new(rule))
        });
    let rule = prop_oneof![
        rule,
        any_jwt_validation().prop_map(|rule| RequestCheck::Tokens(Box::new(rule)))
    ];
    let port_check =
        (any_policy_name(), rule).prop_map(|(policy, check)| PortCheck { policy, check });
    btree_map(1u16.., vec(port_check, 1..3), 0..3)
}

fn any_jwt_validation() -> impl Strategy<Value = JwtValidation> {
    let location = prop_oneof![
        ("x-[a-z]{1,5}", "[A-Z]{0,3} ?")
            .prop_map(|(name, prefix)| JwtLocation::Header { name, prefix }),
        "[a-z]{1,5}".prop_map(JwtLocation::Query),
    ];
    let claim_header =
        ("[a-z.]{1,5}", "x-[a-z]{1,5}").prop_map(|(claim, header)| ClaimHeader { claim, header });
    let keys = prop_oneof![
        Just(IssuerKeys::Pending),
        ".{1,9}".prop_map(|keys| IssuerKeys::Inline(keys.into()))
    ];
    let algorithms = prop::sample::subsequence(vec!["ES256", "RS256", "Ed25519"], 0..3);
    let texts = ("[a-z]{1,5}", vec("[a-z]{1,5}", 0..3), keys, algorithms);
    let max_age = prop::option::of((1..9999_u64).prop_map(Duration::from_secs));
    let times = (0..3600_u64, any::<bool>(), max_age);
    let issuer = (texts, vec(location, 1..3), times, vec(claim_header, 0..3), any::<bool>());
    let issuer =
        issuer.prop_map(|(texts, locations, times, claim_to_headers, forward_original_token)| {
            let ((issuer, aud, keys, algorithms), (clock_skew, requires_expiration, max_age)) =
                (texts, times);
            JwtIssuer {
                issuer,
                aud,
                algorithms: algorithms.into_iter().filter_map(JwtAlgorithm::from_name).collect(),
                keys,
                locations,
                clock_skew: Duration::from_secs(clock_skew),
                requires_expiration,
                max_age,
                claim_to_headers,
                forward_original_token,
            }
        });
    let required = prop_oneof![
        Just(TokenRequirement::Never),
        Just(TokenRequirement::Always),
        vec(any_request_match(), 1..3).prop_map(TokenRequirement::Matching),
    ];
    (vec(issuer, 1..3), required)
        .prop_map(|(issuers, required)| JwtValidation { issuers, required })
}

pub(super) fn any_global_limit() -> impl Strategy<Value = GlobalLimit> {
    let value = prop_oneof![
        ".{0,5}".prop_map(DescriptorValue::Text),
        "x-[a-z]{1,5}".prop_map(DescriptorValue::Header),
        Just(DescriptorValue::Path),
        Just(DescriptorValue::Method),
        Just(DescriptorValue::Client),
        Just(DescriptorValue::Address),
    ];
    let entry = ("[a-z]{1,5}", value).prop_map(|(key, value)| DescriptorEntry { key, value });
    let descriptor = (vec(any_request_match(), 0..2), vec(entry, 1..3), 1..9_u32)
        .prop_map(|(requests, entries, hits_addend)| Descriptor { requests, entries, hits_addend });
    (any_check_service(), "[a-z]{1,5}", vec(descriptor, 1..3), any_fixed_response(), any::<bool>())
        .prop_map(|(check_service, domain, descriptors, response, rate_limit_headers)| {
            GlobalLimit { check_service, domain, descriptors, response, rate_limit_headers }
        })
}

fn any_check_service() -> impl Strategy<Value = CheckService> {
    let url = ("https?", "[a-z]{1,9}|\\[::1\\]", 1u16..);
    let external = url.prop_map(|(scheme, host, port)| {
        CheckServiceAddress::External(Server::parse(&format!("{scheme}://{host}:{port}")).unwrap())
    });
    let in_mesh = (any_service_name(), 1u16..)
        .prop_map(|(service, port)| CheckServiceAddress::Service { service, port });
    let time = (1_000_000..60_000_000_000_u64).prop_map(Duration::from_nanos);
    (prop_oneof![external, in_mesh], time, any::<bool>()).prop_map(
        |(at, timeout, allows_on_failure)| {
            let failure_mode =
                if allows_on_failure { FailureMode::Allow } else { FailureMode::Deny };
            CheckService { address: at, timeout, failure_mode }
        },
    )
}

#[test]
fn an_invalid_request_check_is_rejected_with_its_field() {
    use proto::check_service::At;
    let url = |text: &str| Some(At::Url(text.to_owned()));
    let check_service = || proto::CheckService {
        at: url("http://a:1"),
        timeout_nanoseconds: 1_000_000,
        failure_mode_allow: false,
    };
    let rule = |check_service| proto::Authorization { check_service, ..Default::default() };
    let decode_guard = |guard: Option<proto::request_check::Guard>| {
        let policy = "ExternalAuthorization".to_owned();
        let policy = proto::ServicePolicy { kind: policy, name: "a/b".to_owned() };
        let guards = vec![proto::RequestCheck { policy: Some(policy), guard }];
        request_check::from_wire(proto::CheckedPort { port: 80, guards }).map(drop)
    };
    let decode_authorization =
        |rule| decode_guard(Some(proto::request_check::Guard::Authorization(rule)));
    assert_eq!(decode_guard(None).unwrap_err().field, "guards[0].guard");
    assert!(decode_authorization(rule(Some(check_service()))).is_ok());
    let uppercase = proto::HeaderNames { names: vec!["A".to_owned()] };
    let body = |max_bytes| {
        let body = Some(proto::BodyExcerpt { max_bytes, ..Default::default() });
        proto::Authorization { body, ..rule(Some(check_service())) }
    };
    assert!(decode_authorization(body(1)).is_ok());
    for (invalid_rule, field) in [
        (rule(None), "check_service"),
        (rule(Some(proto::CheckService { at: None, ..check_service() })), "check_service.at"),
        (
            rule(Some(proto::CheckService { at: url("a:1"), ..check_service() })),
            "check_service.url",
        ),
        (
            rule(Some(proto::CheckService { timeout_nanoseconds: 0, ..check_service() })),
            "check_service.timeout_nanoseconds",
        ),
        (
            proto::Authorization { headers: Some(uppercase), ..rule(Some(check_service())) },
            "headers.names[0].header",
        ),
        (body(0), "body.max_bytes"),
        (body(BodyExcerpt::MAX_BYTES + 1), "body.max_bytes"),
    ] {
        let invalid = decode_authorization(invalid_rule).unwrap_err();
        assert_eq!(invalid.field, format!("guards[0].authorization.{field}"));
    }
    let without_checks = proto::CheckedPort { port: 80, guards: Vec::new() };
    assert_eq!(request_check::from_wire(without_checks).map(drop).unwrap_err().field, "guards");
}
