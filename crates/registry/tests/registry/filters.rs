//! Tests of filters of rules and backends.

use expect_test::expect;
use leno_model::{
    AllowedNames, BackendEdits, Header, HeaderEdits, Name, Object, PathEdit, Redirect, RouteRule,
    RuleActions, Scheme, UrlRewrite,
};
use leno_registry::read_str;

fn route_with_filters(filters: &str, kind: &str) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: {kind}, metadata: {{name: x}}, spec: \
         {{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{{filters: [{filters}], \
         backendRefs: [{{name: a, port: 80}}]}}]}}}}"
    )
}

/// Returns the rules of the only route of a text without rejections.
fn read_rules(text: &str) -> Vec<RouteRule> {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, [], "{text}");
    let route = objects.into_iter().find_map(|(object, _)| match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => Some(route),
        _ => None,
    });
    route.expect("a route").rules
}

fn read_actions(filters: &str, kind: &str) -> RuleActions {
    read_rules(&route_with_filters(filters, kind)).remove(0).actions
}

fn mirror_filter(fields: &str) -> String {
    format!("{{type: RequestMirror, requestMirror: {{backendRef: {{name: b, port: 81}}{fields}}}}}")
}

#[test]
fn request_mirrors_are_read_with_their_shares() {
    for (fields, share_ppm) in [
        ("", 1_000_000),
        (", percent: 0", 0),
        (", percent: 7", 70_000),
        (", fraction: {numerator: 1}", 10_000),
        (", fraction: {numerator: 1, denominator: 3}", 333_333),
        (", fraction: {numerator: 2147483647, denominator: 2147483647}", 1_000_000),
    ] {
        for kind in ["HTTPRoute", "GRPCRoute"] {
            let mirrors = read_actions(&mirror_filter(fields), kind).mirrors;
            let [mirror] = mirrors.as_slice() else { panic!("{mirrors:?}") };
            let result = (mirror.service.to_string(), mirror.port, mirror.weight);
            assert_eq!(result, ("default/b".to_owned(), 81, share_ppm), "{fields}");
        }
    }
    assert_eq!(read_actions(&format!("{0}, {0}", mirror_filter("")), "HTTPRoute").mirrors.len(), 2);
}

#[test]
fn cors_filters_are_read_with_all_fields() {
    let cors = read_actions(
        "{type: CORS, cors: {allowOrigins: [\"https://*.a.example\", \"http://b:8080\"], \
         allowCredentials: true, allowMethods: [PUT], allowHeaders: [\"*\"], exposeHeaders: [X-A]}}",
        "HTTPRoute",
    )
    .cors
    .unwrap();
    let origins: Vec<&str> = cors.origins.iter().map(|origin| origin.as_str()).collect();
    assert_eq!(origins, ["https://*.a.example", "http://b:8080"]);
    assert!(cors.allows_credentials);
    assert_eq!(cors.methods, AllowedNames::Only(vec!["PUT".to_owned()]));
    assert_eq!(cors.headers, AllowedNames::Any);
    assert_eq!(cors.exposed_headers, AllowedNames::Only(vec!["x-a".to_owned()]));
    assert_eq!(cors.max_age_seconds, 5);
}

#[test]
fn invalid_filters_are_rejected() {
    let cors = |cors: &str| format!("{{type: CORS, cors: {{{cors}}}}}");
    let mut lines = String::new();
    for (filters, kind) in [
        (mirror_filter(", percent: 101"), "HTTPRoute"),
        (mirror_filter(", percent: 1, fraction: {numerator: 1}"), "HTTPRoute"),
        (mirror_filter(", fraction: {numerator: 3, denominator: 2}"), "HTTPRoute"),
        (mirror_filter(", fraction: {numerator: 0, denominator: 0}"), "HTTPRoute"),
        (mirror_filter(", fraction: {numerator: 1, denominator: 2000000}"), "HTTPRoute"),
        ("{type: RequestMirror, requestMirror: {}}".to_owned(), "HTTPRoute"),
        ("{type: RequestMirror, requestMirror: {backendRef: {name: b}}}".to_owned(), "GRPCRoute"),
        ([(); 5].map(|()| mirror_filter("")).join(", "), "HTTPRoute"),
        (cors(""), "HTTPRoute"),
        (cors("allowOrigins: []"), "HTTPRoute"),
        (cors("allowOrigins: [example.com]"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\", \"https://*example.com\"]"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\"], allowMethods: [\"*\", GET]"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\"], allowMethods: [get]"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\"], allowHeaders: [\"a b\"]"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\"], maxAge: 0"), "HTTPRoute"),
        (cors("allowOrigins: [\"*\"]"), "GRPCRoute"),
    ] {
        let (objects, rejected) = read_str("f.yaml", &route_with_filters(&filters, kind));
        assert!(objects.is_empty() && !rejected.is_empty(), "accepted: {filters}");
        for rejection in rejected {
            let line = rejection.to_string();
            let (_, detail) = line.split_once(" default/x: ").unwrap_or(("", &line));
            lines += &format!("{detail}\n");
        }
    }
    expect![[r#"
        spec.rules[0].filters[0].requestMirror.percent: 101 is out of range; use a number from 0 to 100
        spec.rules[0].filters[0].requestMirror.fraction: repeats `percent`; remove one of the two
        spec.rules[0].filters[0].requestMirror.fraction.numerator: 3 is out of range; use a number from 0 to 2
        spec.rules[0].filters[0].requestMirror.fraction.denominator: 0 is out of range; use a number from 1 to 2147483647
        spec.rules[0].filters[0].requestMirror.fraction: is less than a millionth: no request would be copied; use a fraction of 1/1000000 or more
        spec.rules[0].filters[0].requestMirror.backendRef: is missing; add `backendRef`
        spec.rules[0].filters[0].requestMirror.backendRef.port: is missing; add `port`
        spec.rules[0].filters: has 5 RequestMirrors; use at most 4
        spec.rules[0].filters[0].cors.allowOrigins: is missing; add `allowOrigins`
        spec.rules[0].filters[0].cors.allowOrigins: names no origin; add one, or remove the filter
        spec.rules[0].filters[0].cors.allowOrigins[0]: "example.com" is not an origin; use `*`, or one such as https://www.example.com or https://*.example.com
        spec.rules[0].filters[0].cors.allowOrigins: names no origin; add one, or remove the filter
        spec.rules[0].filters[0].cors.allowOrigins[1]: "https://*example.com" is not an origin; write `https://*.example.com`
        spec.rules[0].filters[0].cors.allowMethods: has other values in addition to `*`; use only `*`, or list all values
        spec.rules[0].filters[0].cors.allowMethods[0]: "get" is not a method; use one such as PUT, or `*`
        spec.rules[0].filters[0].cors.allowHeaders[0]: "a b" is not the name of a header; use letters, digits and `-`
        spec.rules[0].filters[0].cors.maxAge: 0 is out of range; use a number from 1 to 2678400
        spec.rules[0].filters[0].type: "CORS" is not a supported value; use `RequestHeaderModifier`, `ResponseHeaderModifier` or `RequestMirror`
    "#]].assert_eq(&lines);
}

#[test]
fn filters_for_requests_and_responses_are_read() {
    let rules = read_rules(FILTERED_ROUTE);
    let header = |name: &str, value: &str| Header { name: name.into(), value: value.into() };
    let name = |name| Some(Name::new(name).unwrap());
    let [modified, rewritten, redirected, default_redirect] = rules.as_slice() else {
        panic!("{rules:?}")
    };
    let expected = RuleActions {
        request_headers: HeaderEdits {
            set: vec![header("x-set", "1")],
            add: vec![header("x-add", "a, b")],
            remove: vec!["x-gone".to_owned()],
        },
        response_headers: HeaderEdits {
            set: vec![header("server", "none")],
            ..HeaderEdits::default()
        },
        rewrite: Some(UrlRewrite {
            hostname: name("inner.example"),
            path: Some(PathEdit::Full("/all".to_owned())),
        }),
        ..RuleActions::default()
    };
    assert_eq!(modified.actions, expected);
    let backend_edits: Vec<_> =
        modified.backends.iter().map(|backend| backend.edits.as_deref().cloned()).collect();
    let set = HeaderEdits { set: vec![header("x-beta", "1")], ..HeaderEdits::default() };
    let remove = HeaderEdits { remove: vec!["server".to_owned()], ..HeaderEdits::default() };
    let path = Some(PathEdit::Full("/beta".to_owned()));
    let expected = BackendEdits {
        request_headers: set,
        response_headers: remove,
        rewrite: Some(UrlRewrite { hostname: None, path }),
    };
    assert_eq!(backend_edits, [None, Some(expected)]);
    let path = Some(PathEdit::Prefix(String::new()));
    let expected = RuleActions {
        rewrite: Some(UrlRewrite { hostname: None, path }),
        ..RuleActions::default()
    };
    assert_eq!(rewritten.actions, expected);
    let redirect = Redirect {
        scheme: Some(Scheme::Https),
        hostname: name("b.example"),
        path: Some(PathEdit::Prefix("/new".to_owned())),
        port: Some(8443),
        status: 308,
    };
    assert_eq!(redirected.actions.redirect, Some(redirect));
    assert_eq!(redirected.backends, []);
    let redirect = default_redirect.actions.redirect.as_ref().unwrap();
    assert_eq!((redirect.status, redirect.port), (302, None));
}

/// A route with rules that have filters.
const FILTERED_ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews}]
  rules:
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Set, value: "1"}]
        add: [{name: X-Add, value: "a, b"}]
        remove: [X-Gone]
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: server, value: none}]}
    - type: URLRewrite
      urlRewrite: {hostname: inner.example, path: {type: ReplaceFullPath, replaceFullPath: /all}}
    backendRefs:
    - {name: reviews-v1, port: 9080}
    - name: reviews-v2
      port: 9080
      filters:
      - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Beta, value: "1"}]}}
      - {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [server]}}
      - {type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /beta}}}
  - matches: [{path: {value: /old}}]
    filters:
    - type: URLRewrite
      urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: ""}}
    backendRefs: [{name: reviews-v1, port: 9080}]
  - matches: [{path: {value: /gone}}]
    filters:
    - type: RequestRedirect
      requestRedirect:
        scheme: https
        hostname: b.example
        port: 8443
        statusCode: 308
        path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}
  - filters: [{type: RequestRedirect, requestRedirect: {}}]
"#;
