//! Tests of check services: external authorization and rate limit services.

use std::time::Duration;

use expect_test::expect;
use leno_model::{
    BodyExcerpt, CheckServiceAddress, DescriptorValue, FailureMode, FixedResponse, LongBodyAction,
    PathMatch, RequestCheck, ServiceRule,
};

use crate::service_policies::{check_group_rejections, read_policy};

#[test]
fn the_documented_authorization_is_read_with_all_fields() {
    let policy = read_policy(&crate::pages::page_examples("external-authorization.md")[0]);
    assert_eq!(policy.name.to_string(), "ExternalAuthorization bookinfo/ratings");
    let ServiceRule::RequestCheck(RequestCheck::Authorization(rule)) = policy.rule else {
        panic!("no authorization")
    };
    assert_eq!(rule.check_service.address.to_string(), "security/authz port 9000");
    assert_eq!(rule.check_service.timeout, Duration::from_millis(200));
    assert_eq!(rule.check_service.failure_mode, FailureMode::Deny);
    assert_eq!(rule.requests[0].path, PathMatch::Prefix("/ratings".to_owned()));
    assert_eq!(rule.requests[0].methods, ["POST"]);
    assert_eq!(rule.headers.unwrap(), ["authorization", "x-request-id"]);
    assert_eq!(rule.context_extensions, [("policy".to_owned(), "writers".to_owned())]);
    let body =
        BodyExcerpt { max_bytes: 16384, long_body: LongBodyAction::Reject, pack_as_bytes: false };
    assert_eq!(rule.body, Some(body));
}

#[test]
fn omitted_fields_have_the_defaults_of_envoy() {
    let text = "{apiVersion: leno.dev/v1alpha1, kind: KIND, metadata: {name: a}, spec: SPEC}";
    let read_kind =
        |kind: &str, spec: &str| read_policy(&text.replace("KIND", kind).replace("SPEC", spec));
    let spec = "{targetRefs: [{name: a}], url: \"https://authz.example:9001\"}";
    let ServiceRule::RequestCheck(RequestCheck::Authorization(rule)) =
        read_kind("ExternalAuthorization", spec).rule
    else {
        panic!("no authorization")
    };
    assert_eq!(rule.check_service.address.to_string(), "https://authz.example:9001");
    assert_eq!(rule.check_service.timeout, Duration::from_millis(200));
    assert_eq!(rule.check_service.failure_mode, FailureMode::Deny);
    assert_eq!((rule.headers, rule.requests.len(), rule.context_extensions.len()), (None, 0, 0));
    assert_eq!(rule.body, None);
    for (body, max_bytes, long_body, pack_as_bytes) in [
        ("{}", 65536, LongBodyAction::Reject, false),
        (
            "{maxRequestBytes: 1, allowPartialMessage: true, packAsBytes: true}",
            1,
            LongBodyAction::SendPrefix,
            true,
        ),
    ] {
        let spec = format!("{{targetRefs: [{{name: a}}], url: \"http://a:1\", body: {body}}}");
        let rule = read_kind("ExternalAuthorization", &spec).rule;
        let Some(RequestCheck::Authorization(rule)) = rule.server_check() else {
            panic!("no authorization")
        };
        assert_eq!(rule.body, Some(BodyExcerpt { max_bytes, long_body, pack_as_bytes }));
    }

    let spec = "{targetRefs: [{name: a}], global: {service: {name: rl, port: 8081}, domain: d, \
                descriptors: [{entries: [{key: k, from: path}]}]}}";
    let limits = read_kind("RateLimit", spec).rule.rate_limits().unwrap().clone();
    let global = limits.global.unwrap();
    assert_eq!(global.check_service.address.to_string(), "default/rl port 8081");
    assert_eq!(global.check_service.timeout, Duration::from_millis(20));
    assert_eq!(global.check_service.failure_mode, FailureMode::Allow);
    assert_eq!((global.descriptors[0].hits_addend, global.rate_limit_headers), (1, false));
    assert_eq!(global.response, FixedResponse::default());
}

#[test]
fn the_documented_global_limit_is_read_with_all_fields() {
    let policy = read_policy(&crate::pages::page_examples("rate-limit.md")[1]);
    let limits = policy.rule.rate_limits().unwrap();
    assert!(limits.rules.is_empty() && limits.connections.is_none());
    let global = limits.global.as_ref().unwrap();
    assert!(matches!(
        &global.check_service.address,
        CheckServiceAddress::Service { port: 8081, .. }
    ));
    assert_eq!((global.domain.as_str(), global.rate_limit_headers), ("bookinfo", true));
    let [clients, writes] = &global.descriptors[..] else { panic!("two descriptors") };
    let values: Vec<_> =
        clients.entries.iter().map(|entry| (&*entry.key, entry.value.clone())).collect();
    assert_eq!(values, [("client", DescriptorValue::Client), ("path", DescriptorValue::Path)]);
    assert_eq!((writes.hits_addend, writes.requests[0].methods.len()), (5, 1));
    let values: Vec<_> = writes.entries.iter().map(|entry| entry.value.clone()).collect();
    let header = DescriptorValue::Header("x-user".to_owned());
    assert_eq!(values, [DescriptorValue::Text("writes".to_owned()), header]);
    assert_eq!(global.response.body.as_deref(), Some("Later, please."));
}

#[test]
fn invalid_check_services_are_rejected() {
    let specs = [
        "{targetRefs: [{name: a}]}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", service: {name: a, port: 1}}",
        "{targetRefs: [{name: a}], url: \"a:1\"}",
        "{targetRefs: [{name: a}], url: \"http://a:1/check\"}",
        "{targetRefs: [{name: a}], service: {name: a}}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", timeout: 2m}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", failureMode: open}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", matches: []}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", headers: [\"a b\"]}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", headers: [a, A]}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", contextExtensions: [a]}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", tokens: true}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", body: true}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", body: {maxRequestBytes: 1048577}}",
        "{targetRefs: [{name: a}], url: \"http://a:1\", body: {allowPartialMessage: 1, packAsBytes: yes}}",
        "{url: \"http://a:1\"}",
    ];
    check_group_rejections(
        "leno.dev",
        "ExternalAuthorization",
        &specs,
        &expect![[r#"
            spec: has no server; add `service` or `url`
            spec: has `service` and `url` together; keep one of them
            spec.url: "a:1" is not a valid server: an endpoint has the form `http://HOST:PORT`, or `https://HOST:PORT` for TLS; correct it, as in `http://127.0.0.1:9000`
            spec.url: "http://a:1/check" is not a valid server: a path may contain only visible characters without `?` and `#`, and gRPC has no path; correct it, as in `http://127.0.0.1:9000`
            spec.service.port: is missing; add `port`
            spec.timeout: "2m" is out of range; use a time with a unit, from 1ms to 1m, such as "5s"
            spec.failureMode: "open" is not a supported value; use `deny` or `allow`
            spec.matches: is empty, which is ambiguous; add an element, or omit it for all requests
            spec.headers[0]: "a b" is not the name of a header; use letters, digits and `-`
            spec.headers[1]: is listed twice; remove one of the two
            spec.contextExtensions: is a list, not a map; write a map of names and values
            spec.tokens: is an unknown field; remove it, or use `targetRefs`, `service`, `url`, `timeout`, `failureMode`, `matches`, `headers`, `contextExtensions` or `body`
            spec.body: is true, not a map; write a map, such as {allowPartialMessage: true}
            spec.body.maxRequestBytes: 1048577 is out of range; use a number from 1 to 1048576
            spec.body.allowPartialMessage: 1 is neither true nor false; use true or false
            spec.body.packAsBytes: "yes" is neither true nor false; use true or false
            spec.targetRefs: is missing; add `targetRefs`
        "#]],
    );
}

#[test]
fn invalid_descriptors_are_rejected() {
    let common_fields = "url: \"http://a:1\", domain: d";
    let specs = [
        "{}".to_owned(),
        format!("{{{common_fields}}}"),
        format!("{{{common_fields}, descriptors: []}}"),
        format!("{{{common_fields}, descriptors: [{{}}]}}"),
        format!("{{{common_fields}, descriptors: [{{entries: []}}]}}"),
        format!("{{{common_fields}, descriptors: [{{entries: [{{key: a}}]}}]}}"),
        format!(
            "{{{common_fields}, descriptors: [{{entries: [{{key: a, value: b, from: path}}]}}]}}"
        ),
        format!("{{{common_fields}, descriptors: [{{entries: [{{key: a, from: query}}]}}]}}"),
        format!("{{{common_fields}, descriptors: [{{entries: [{{value: b}}]}}]}}"),
        format!("{{{common_fields}, descriptors: [{{entries: [{{key: a, value: \"\"}}]}}]}}"),
        format!(
            "{{{common_fields}, descriptors: [{{entries: [{{key: a, value: b}}], hitsAddend: 0}}]}}"
        ),
    ];
    let specs = specs.map(|spec| format!("{{targetRefs: [{{name: a}}], global: {spec}}}"));
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_group_rejections(
        "leno.dev",
        "RateLimit",
        &specs,
        &expect![[r#"
            spec.global: has no server; add `service` or `url`
            spec.global.domain: is missing; add `domain`
            spec.global.descriptors: is missing; add `descriptors`
            spec.global.descriptors: is missing; add `descriptors`
            spec.global.descriptors: is empty; add an element
            spec.global.descriptors[0].entries: is missing; add `entries`
            spec.global.descriptors[0].entries: is empty; add an element
            spec.global.descriptors[0].entries[0]: has no value; add `value`, `header` or `from`
            spec.global.descriptors[0].entries[0]: has `value` and `from` together; keep one of them
            spec.global.descriptors[0].entries[0].from: "query" is not a supported value; use `client`, `path`, `method` or `address`
            spec.global.descriptors[0].entries[0].key: is missing; add `key`
            spec.global.descriptors[0].entries[0].value: "" is not a text to send; use 1 to 256 bytes without control characters
            spec.global.descriptors[0].hitsAddend: 0 is out of range; use a number from 1 to 1000000
        "#]],
    );
}
