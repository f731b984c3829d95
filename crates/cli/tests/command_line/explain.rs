//! Tests of `leno explain`.

use expect_test::{Expect, expect};
use serde_json::Value;

use crate::run::{CommandResult, MESH, TestDirectory};

fn explain_request(arguments: &[&str]) -> CommandResult {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    test_directory.run_leno(&[&["explain", "-f", "mesh.yaml", "request"], arguments].concat())
}

fn check_output(arguments: &[&str], code: i32, expected: &Expect) {
    let result = explain_request(arguments);
    assert_eq!(result.exit_code, Some(code), "{result:?}");
    expected.assert_eq(&result.stdout);
}

#[test]
fn an_allowed_request_names_the_policy_that_allows_it() {
    let url = "http://ratings.shop:9080/ratings/1";
    check_output(
        &["--from", "shop/page-1", "--url", url],
        0,
        &expect![[r#"
            request   GET http://ratings.shop:9080/ratings/1
            from      shop/page-1 (account shop/page)
            service   shop/ratings port 9080 (HTTP)
            route     none: the service's own endpoints
            backend   shop/ratings port 9080, 100 % of such requests
                      shop/ratings-1 (account shop/ratings): allowed by the TrafficTarget shop/ratings
            verdict   200-range: allowed; the application responds
        "#]],
    );
}

#[test]
fn a_split_shows_every_backend_with_its_share() {
    check_output(
        &["--from", "shop/page-1", "--url", "http://reviews:9080/reviews/1?x=y"],
        0,
        &expect![[r#"
            request   GET http://reviews:9080/reviews/1?x=y
            from      shop/page-1 (account shop/page)
            service   shop/reviews port 9080 (HTTP)
            route     HTTPRoute shop/reviews: rules[1].matches[0] (path prefix /reviews)
            skipped   HTTPRoute shop/reviews: rules[0].matches[0] (path prefix /reviews, header end-user = jason): the header end-user does not match
            backend   shop/reviews-v1 port 9080, 90 % of such requests
                      shop/reviews-v1-1 (account shop/reviews): allowed by the TrafficTarget shop/reviews
            backend   shop/reviews-v2 port 9080, 10 % of such requests
                      shop/reviews-v2-1 (account shop/reviews): allowed by the TrafficTarget shop/reviews
            verdict   200-range: allowed; the application responds
        "#]],
    );
}

#[test]
fn a_header_selects_the_route() {
    check_output(
        &[
            "--from",
            "shop/page-1",
            "--url",
            "http://reviews.shop.svc:9080/reviews/1",
            "-H",
            "End-User: jason",
        ],
        0,
        &expect![[r#"
            request   GET http://reviews.shop.svc:9080/reviews/1
            from      shop/page-1 (account shop/page)
            service   shop/reviews port 9080 (HTTP)
            route     HTTPRoute shop/reviews: rules[0].matches[0] (path prefix /reviews, header end-user = jason)
            skipped   HTTPRoute shop/reviews: rules[1].matches[0] (path prefix /reviews): matches, but names fewer headers
            backend   shop/reviews-v2 port 9080, 100 % of such requests
                      shop/reviews-v2-1 (account shop/reviews): allowed by the TrafficTarget shop/reviews
            verdict   200-range: allowed; the application responds
        "#]],
    );
}

#[test]
fn a_rejection_has_a_reason_and_a_hint() {
    let ratings = "http://ratings.shop:9080/ratings/1";
    for (arguments, verdict) in [
        (
            &["--from", "shop/stranger-1", "--url", ratings][..],
            expect![
                "403 denied-outbound: No policy allows this client to use the service. Add {kind: ServiceAccount, name: stranger, namespace: shop} to spec.sources of a TrafficTarget with the account of the workloads of shop/ratings as its destination."
            ],
        ),
        (
            &["--from", "shop/page-1", "--url", ratings, "-X", "DELETE"],
            expect![
                "404 no-policy-route: Policies of the destination name this client, but no rule for any client matches the request. Add a match for DELETE /ratings/1 to an HTTPRouteGroup that a TrafficTarget for shop/ratings uses."
            ],
        ),
        (
            &["--from", "shop/page-1", "--url", "http://reviews.shop:9080/other"],
            expect![
                "404 no-route: The service has routes, and none of them matches the request. Add a match for the request to an HTTPRoute of the service."
            ],
        ),
        (
            &["--from", "shop/page-1", "--url", "http://ratings.shop:1/"],
            expect!["404 unknown-service: The Service shop/ratings has no port 1. Use port 9080."],
        ),
        (
            &["--from", "shop/page-1", "--url", "http://rating.shop:9080/"],
            expect![
                "404 unknown-service: There is no Service shop/rating. Correct the host name or the port, or add the Service."
            ],
        ),
    ] {
        let result = explain_request(arguments);
        assert_eq!(result.exit_code, Some(3), "{result:?}");
        let last = result.stdout.lines().last().unwrap_or_default();
        verdict.assert_eq(last.strip_prefix("verdict   ").unwrap_or(last));
    }
}

/// The HTTP proxy of a sidecar treats a host of two labels as external, unless the mesh has that namespace.
#[test]
fn hosts_outside_the_mesh_are_decided_as_by_the_http_proxy() {
    let deny = MESH.replace("defaultPolicy: deny}", "defaultPolicy: deny, egress: deny}");
    let egress = format!(
        "{deny}\n---\napiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress\n\
         metadata: {{name: out, namespace: shop}}\n\
         spec:\n  sources: [{{kind: ServiceAccount, name: page, namespace: shop}}]\n  \
         hosts: [example.com]\n  ports: [{{number: 80, protocol: http}}]\n"
    );
    let allowed = "200-range: allowed; the external host example.com responds. If the name does not resolve: 404 unknown-service";
    let denied = "403 egress-denied";
    let unknown = "404 unknown-service";
    for (mesh, url, code, verdict) in [
        (MESH, "http://example.com/", 0, allowed),
        (
            MESH,
            "http://127.0.0.1:8080/",
            0,
            "200-range: allowed; the external host 127.0.0.1 responds",
        ),
        // Misspelled service names.
        (MESH, "http://rating.shop:9080/", 3, unknown),
        (MESH, "http://ratings.shopp:9080/", 3, unknown),
        (MESH, "http://example.com.svc.cluster.local/", 3, unknown),
        (&deny, "http://example.com/", 3, denied),
        (&deny, "http://www.example.com/", 3, denied),
        (&deny, "http://rating.shop:9080/", 3, unknown),
        (&egress, "http://example.com/", 0, allowed),
        (&egress, "http://example.org/", 3, denied),
        (&egress, "http://example.com:8080/", 3, denied),
    ] {
        let test_directory = TestDirectory::with_files(&[("mesh.yaml", mesh)]);
        let request = ["explain", "-f", "mesh.yaml", "request", "--from", "shop/page-1"];
        let result = test_directory.run_leno(&[&request[..], &["--url", url]].concat());
        assert_eq!(result.exit_code, Some(code), "{url}: {result:?}");
        let last = result.stdout.lines().last().unwrap_or_default();
        let decision = last.strip_prefix("verdict   ").unwrap_or(last);
        assert!(decision.starts_with(verdict), "{url}: {decision}");
        let names_egress = result.stdout.contains("allowed by the Egress shop/out");
        assert_eq!(names_egress, code == 0 && mesh == egress, "{url}: {}", result.stdout);
    }
}

#[test]
fn json_has_the_same_decision() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    let explain = |from: &str| {
        let arguments = [
            "explain",
            "request",
            "-o",
            "json",
            "-f",
            "mesh.yaml",
            "--from",
            from,
            "--url",
            "http://reviews.shop:9080/reviews/1",
        ];
        let result = test_directory.run_leno(&arguments);
        let decision: Value = serde_json::from_str(&result.stdout).expect("JSON");
        (result.exit_code, decision)
    };
    let (code, decision) = explain("shop/page-1");
    assert_eq!((code, &decision["allowed"]), (Some(0), &Value::Bool(true)));
    assert_eq!(decision["route"]["name"], "shop/reviews");
    assert_eq!(decision["route"]["rule"], 1);
    assert_eq!(decision["backends"][0]["weight"], 90);
    let endpoint = &decision["backends"][1]["endpoints"][0];
    assert_eq!(endpoint["workload"], "shop/reviews-v2-1");
    assert_eq!(endpoint["policy"], "shop/reviews");
    let (code, decision) = explain("shop/stranger-1");
    assert_eq!((code, &decision["allowed"]), (Some(3), &Value::Bool(false)));
    assert_eq!(
        (&decision["status"], &decision["reason"]),
        (&403.into(), &"denied-outbound".into())
    );
}

#[test]
fn rejected_documents_are_reported_and_the_others_decide() {
    let invalid =
        MESH.replacen("rules: [{kind: HTTPRouteGroup, name: reading, matches: [ratings]}]", "", 1);
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", &invalid)]);
    let url = "http://ratings.shop:9080/ratings/1";
    let request = ["explain", "-f", "mesh.yaml", "request", "--from", "shop/page-1", "--url", url];
    let result = test_directory.run_leno(&request);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    assert!(result.stderr.contains("TrafficTarget shop/ratings"), "{result:?}");
}

#[test]
fn requests_that_cannot_be_explained_fail_with_the_known_names() {
    let result = explain_request(&["--from", "shop/nobody", "--url", "http://ratings.shop:9080/"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    assert!(result.stderr.starts_with("error: there is no Workload shop/nobody"), "{result:?}");
    assert!(result.stderr.contains("shop/page-1"), "{result:?}");
    let test_directory = TestDirectory::with_files(&[]);
    let url = "http://ratings.shop/";
    let nothing = ["explain", "-f", "absent", "request", "--from", "a/b", "--url", url];
    let result = test_directory.run_leno(&nothing);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    assert!(result.stderr.contains("does not exist"), "{result:?}");
}

#[test]
fn every_reason_is_explained() {
    let test_directory = TestDirectory::with_files(&[]);
    let reasons = test_directory.run_leno(&["explain", "-o", "json"]);
    let reasons: Vec<Value> = serde_json::from_str(&reasons.stdout).expect("JSON");
    assert!(reasons.len() > 20);
    for reason in &reasons {
        let label = reason["reason"].as_str().expect("a label");
        let result = test_directory.run_leno(&["explain", label]);
        assert_eq!(result.exit_code, Some(0), "{result:?}");
        assert!(result.stdout.starts_with(&format!("{label}: ")), "{result:?}");
        let code = reason["code"].as_str().expect("a code");
        let by_code = test_directory.run_leno(&["explain", &code.to_lowercase()]);
        assert_eq!(by_code.stdout, result.stdout, "{code}");
    }
    expect![[r#"
        denied-outbound: No policy allows this client to use the service.
          code      E3004
          status    403
          at fault  mesh: the sidecar, its rules or its limits
          retried   never: a retry would fail again, or the request may have taken effect
          hint      Add the client's account to the sources of a TrafficTarget for the account of the service.
    "#]]
    .assert_eq(&test_directory.run_leno(&["explain", "denied-outbound"]).stdout);
}

#[test]
fn service_policies_are_listed_with_their_effect() {
    let policy = "
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: ratings, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: ratings}]
  consecutiveFailures: 3
  minHealthy: 2
  healthCheck: {httpGet: {path: /healthz}, interval: 5s}
";
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("policy.yaml", policy)]);
    let url = "http://ratings.shop:9080/ratings/1";
    let arguments = ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url];
    let result = test_directory.run_leno(&arguments);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    let line = result.stdout.lines().find(|line| line.contains("OutlierDetection")).unwrap();
    expect!["OutlierDetection shop/ratings: ejects an endpoint when 3 in a row failed (connect, timeout, reset, 5xx, gRPC status 14), for 30s to 300s, and when 3 of its health checks in a row failed (GET /healthz every 5s, timeout 1s), until 1 in a row succeeded; at most 50 % are ejected, at least 2 stay"]
        .assert_eq(line.trim());
    let result = test_directory.run_leno(&[&arguments[..], &["-o", "json"]].concat());
    let json: Value = serde_json::from_str(&result.stdout).unwrap();
    let policies = &json["backends"][0]["policies"];
    assert_eq!(policies[0]["policy"], "OutlierDetection shop/ratings", "{json}");
}

#[test]
fn authorization_services_are_listed_with_the_body_bytes_they_receive() {
    let policy = "
apiVersion: leno.dev/v1alpha1
kind: ExternalAuthorization
metadata: {name: ratings, namespace: shop}
spec:
  targetRefs: [{name: ratings}]
  url: http://127.0.0.1:9000
";
    let url = "http://ratings.shop:9080/ratings/1";
    let arguments = ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url];
    let explanation_line = |body: &str| {
        let policy = format!("{policy}{body}");
        let result = TestDirectory::with_files(&[("mesh.yaml", MESH), ("policy.yaml", &policy)])
            .run_leno(&arguments);
        let line = result.stdout.lines().find(|line| line.contains("ExternalAuthorization"));
        line.unwrap_or_else(|| panic!("{result:?}")).trim().to_owned()
    };
    expect!["ExternalAuthorization shop/ratings: queries the authorization service http://127.0.0.1:9000; if it does not respond in 200ms, the request is denied"]
        .assert_eq(&explanation_line(""));
    expect!["ExternalAuthorization shop/ratings: queries the authorization service http://127.0.0.1:9000, with bodies of up to 65536 bytes (longer ones are rejected); if it does not respond in 200ms, the request is denied"]
        .assert_eq(&explanation_line("  body: {}\n"));
}

#[test]
fn the_endpoint_of_a_session_is_reported() {
    let route = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ratings, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: ratings}]
  rules:
  - backendRefs: [{name: ratings, port: 9080, weight: 0}, {name: reviews-v1, port: 9080}]
    sessionPersistence: {sessionName: x-cart, type: Header}
---
apiVersion: leno.dev/v1alpha1
kind: Hedging
metadata: {name: ratings, namespace: shop}
spec: {targetRefs: [{kind: Service, name: ratings}], after: 50ms}
"#;
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("more.yaml", route)]);
    let url = "http://ratings.shop:9080/ratings/1";
    let value = "x-cart: 27d7b65e899bf44b";
    let arguments =
        ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url, "-H", value];
    let result = test_directory.run_leno(&arguments);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    expect![[r#"
        request   GET http://ratings.shop:9080/ratings/1
        from      shop/page-1 (account shop/page)
        service   shop/ratings port 9080 (HTTP)
        route     HTTPRoute shop/ratings: rules[0].matches[0] (every request)
        filter    persist sessions with the header x-cart
        session   shop/ratings-1 of shop/ratings, by session persistence
        backend   shop/ratings port 9080, 100 % of such requests
                  Hedging shop/ratings: hedges requests with an idempotent method to a second endpoint after 50ms
                  shop/ratings-1 (account shop/ratings): allowed by the TrafficTarget shop/ratings
        verdict   200-range: allowed; the application responds
    "#]].assert_eq(&result.stdout);
}

#[test]
fn a_retry_policy_is_reported_where_no_route_sets_retries() {
    let policy = "
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: page, namespace: shop}
spec:
  source: {kind: ServiceAccount, name: page, namespace: shop}
  destinations: [{kind: Service, name: ratings, namespace: shop}]
  retryPolicy: {retryOn: \"5xx,retriable-4xx\", perTryTimeout: 2s, numRetries: 3}
";
    let route = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ratings, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: ratings}]
  rules: [{backendRefs: [{name: ratings, port: 9080}], retry: {codes: [503]}}]
"#;
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("policy.yaml", policy)]);
    let url = "http://ratings.shop:9080/ratings/1";
    let arguments = ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url];
    let result = test_directory.run_leno(&arguments);
    let reported: Vec<&str> =
        result.stdout.lines().skip_while(|line| !line.starts_with("retry")).collect();
    expect![[r#"
        retry     Retry shop/page: up to 3 retries after failures and responses 409, 500 to 599, back-off from 25ms, within the retry budget
                  timeout of 2s per attempt, until the response begins"#]].assert_eq(&reported[..2].join("\n"));
    let result = test_directory.run_leno(&[&arguments[..], &["-o", "json"]].concat());
    let json: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(json["retry"]["policy"], "Retry shop/page", "{json}");
    let test_directory = TestDirectory::with_files(&[
        ("mesh.yaml", MESH),
        ("policy.yaml", policy),
        ("route.yaml", route),
    ]);
    let result = test_directory.run_leno(&arguments);
    assert!(!result.stdout.contains("\nretry "), "the route decides alone: {}", result.stdout);
    let unused = "no effect Retry shop/page: the rule of the route sets the retries";
    assert!(result.stdout.contains(unused), "{}", result.stdout);
}

/// A route that forwards to two services, with policies of the called service and of each backend.
const FORWARDED: &str = r#"
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: called, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews}], limits: {requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: OutlierDetection, metadata: {name: called, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews}], consecutiveFailures: 5}}
---
{apiVersion: leno.dev/v1alpha1, kind: OutlierDetection, metadata: {name: own, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews-v1}], consecutiveFailures: 3}}
---
{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: called, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews}], after: 50ms}}
---
{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: own, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews-v2}], after: 70ms}}
---
{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: second, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews}], after: 90ms}}
---
{apiVersion: leno.dev/v1alpha1, kind: FaultInjection, metadata: {name: slow, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: reviews}],
        rules: [{matches: [{path: {value: /slow}}], delay: {fixedDelay: 1s}}]}}
"#;

#[test]
fn policies_of_the_called_service_and_its_backends_are_listed() {
    let test_directory =
        TestDirectory::with_files(&[("mesh.yaml", MESH), ("policies.yaml", FORWARDED)]);
    let url = "http://reviews:9080/reviews/1";
    let result = test_directory.run_leno(&[
        "explain",
        "-f",
        ".",
        "request",
        "--from",
        "shop/page-1",
        "--url",
        url,
    ]);
    let reported: Vec<&str> = result.stdout.lines().filter(|line| line.contains("shop/")).collect();
    let reported: Vec<&str> =
        reported.into_iter().skip_while(|line| !line.starts_with("backend")).collect();
    expect![[r#"
        backend   shop/reviews-v1 port 9080, 90 % of such requests
                  OutlierDetection shop/own: ejects an endpoint when 3 in a row failed (connect, timeout, reset, 5xx, gRPC status 14), for 30s to 300s; at most 50 % are ejected, at least 1 stays
                  CircuitBreaker shop/called: across all backends of the called service, limits concurrency to 2 requests
                  Hedging shop/called: hedges requests with an idempotent method to a second endpoint after 50ms
        no effect OutlierDetection shop/called: the backend shop/reviews-v1 has its own: OutlierDetection shop/own
        no effect FaultInjection shop/slow: no rule of the policy matches the request
        no effect Hedging shop/second: Hedging shop/called takes precedence at shop/reviews port 9080
                  shop/reviews-v1-1 (account shop/reviews): allowed by the TrafficTarget shop/reviews
        backend   shop/reviews-v2 port 9080, 10 % of such requests
                  OutlierDetection shop/called: ejects an endpoint when 5 in a row failed (connect, timeout, reset, 5xx, gRPC status 14), for 30s to 300s; at most 50 % are ejected, at least 1 stays
                  CircuitBreaker shop/called: across all backends of the called service, limits concurrency to 2 requests
                  Hedging shop/called: hedges requests with an idempotent method to a second endpoint after 50ms
        no effect FaultInjection shop/slow: no rule of the policy matches the request
        no effect Hedging shop/own: the called service shop/reviews has its own: Hedging shop/called
        no effect Hedging shop/second: Hedging shop/called takes precedence at shop/reviews port 9080
                  shop/reviews-v2-1 (account shop/reviews): allowed by the TrafficTarget shop/reviews"#]].assert_eq(&reported.join("\n"));
}

#[test]
fn a_fault_that_aborts_every_request_decides_the_verdict() {
    for (percent, expected, code) in [(100, "418 fault-injected: ", 3), (50, "200-range: ", 0)] {
        let fault = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: FaultInjection\nmetadata: {{name: broken, namespace: shop}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: reviews}}]\n  \
             rules: [{{abort: {{percent: {percent}, httpStatus: 418}}}}]\n"
        );
        let test_directory =
            TestDirectory::with_files(&[("mesh.yaml", MESH), ("fault.yaml", &fault)]);
        let url = "http://reviews:9080/reviews/1";
        let result = test_directory.run_leno(&[
            "explain",
            "-f",
            ".",
            "request",
            "--from",
            "shop/page-1",
            "--url",
            url,
        ]);
        let verdict = result.stdout.lines().last().unwrap_or_default();
        assert!(
            verdict.starts_with(&format!("verdict   {expected}")),
            "{percent}: {}",
            result.stdout
        );
        assert_eq!(result.exit_code, Some(code), "{percent}");
    }
}

/// Only the sidecar of the endpoint verifies a token.
#[test]
fn a_missing_required_token_decides_the_verdict() {
    let policy = "
apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {name: signed, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: ratings}]
  requiredFor: [{path: {value: /ratings}}]
  issuers:
  - issuer: https://accounts.example
    jwks: {url: 'https://accounts.example/jwks'}
    from: [{header: authorization, prefix: 'Bearer '}, {query: token}]
";
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("policy.yaml", policy)]);
    let missing = "401 token-missing: The request has no JSON web token although one is required.";
    let depends = "it depends on the token (allowed, token-invalid): ";
    for (path, header, code, expected) in [
        ("/ratings/1", "x-a: b", 3, missing),
        ("/ratings/1", "authorization: Basic YTpi", 3, missing),
        ("/ratings/1", "authorization: bearer abc", 3, depends),
        ("/ratings/1?token=abc", "x-a: b", 3, depends),
        ("/ratings/1?other=abc", "x-a: b", 3, missing),
        ("/health", "x-a: b", 3, "404 no-policy-route: "),
    ] {
        let url = format!("http://ratings.shop:9080{path}");
        let arguments =
            ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", &url, "-H", header];
        let result = test_directory.run_leno(&arguments);
        let verdict = result.stdout.lines().last().unwrap_or_default();
        assert!(
            verdict.starts_with(&format!("verdict   {expected}")),
            "{path} {header}: {result:?}"
        );
        assert_eq!(result.exit_code, Some(code), "{path} {header}");
        let names_issuer = result.stdout.contains("requires a token of https://accounts.example");
        assert_eq!(names_issuer, path != "/health", "{result:?}");
        let json = test_directory.run_leno(&[&arguments[..], &["-o", "json"]].concat());
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json["allowed"], false, "{json}");
    }
}

#[test]
fn a_circuit_breaker_is_reported_with_its_limits_and_conditions() {
    let policy = "
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: ratings, namespace: shop}
spec:
  host: ratings.shop.svc.cluster.local
  connectionSettings:
    tcp: {connectTimeout: 2s}
    http:
      maxRequests: 9
      maxRetries: 2
      circuitBreaking:
        {statTimeWindow: 1m, minRequestAmount: 50, degradedTimeWindow: 20s, errorRatioThreshold: 0.3, slowAmountThreshold: 4}
";
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("policy.yaml", policy)]);
    let url = "http://ratings.shop:9080/ratings/1";
    let result = test_directory.run_leno(&[
        "explain",
        "-f",
        ".",
        "request",
        "--from",
        "shop/page-1",
        "--url",
        url,
    ]);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    let line = result.stdout.lines().find(|line| line.contains("UpstreamTraffic")).unwrap();
    expect![[r#"UpstreamTrafficSetting shop/ratings: limits concurrency to 9 requests, 2 retries; connect timeout 2s; opens the circuit for 20s when 30 % of at least 50 requests in 60s failed or 4 requests in 60s took 5s or longer (connect, timeout, reset, 5xx); responds with 409 while open"#]]
        .assert_eq(line.trim());
}

/// Two versions of `orders`; one receives the requests of gold users.
const TAGGED: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: orders, namespace: shop}
spec: {selector: {app: orders}, ports: [{port: 80, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: orders-1, namespace: shop, labels: {app: orders, version: "1"}}
spec: {ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: orders-2, namespace: shop, labels: {app: orders, version: "2"}}
spec: {ports: [{port: 80}], address: 127.0.0.2}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders, namespace: shop}
spec:
  service: orders
  fallbackPolicy: default
  rules:
  - {match: {headers: {x-none: "1"}}, split: [{tags: {version: "3"}}], fallbackPolicy: fail}
  - match: {headers: {x-user-tier: gold}}
    split: [{weight: 10, tags: {version: "2"}}, {weight: 90, instances: default}]
"#;

fn check_tagged(headers: &[&str], code: i32, expected: &Expect) {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", TAGGED)]);
    let request = ["explain", "-f", "mesh.yaml", "request", "--from", "shop/web-1", "--url"];
    let mut arguments = [&request[..], &["http://orders.shop:80/a"]].concat();
    for header in headers {
        arguments.extend(["-H", *header]);
    }
    let result = test_directory.run_leno(&arguments);
    assert_eq!(result.exit_code, Some(code), "{result:?}");
    expected.assert_eq(&result.stdout);
}

#[test]
fn tag_rules_show_their_sets_and_the_remaining_endpoints() {
    check_tagged(
        &["x-user-tier: gold"],
        0,
        &expect![[r#"
            request   GET http://orders.shop:80/a
            from      shop/web-1 (account shop/default)
            service   shop/orders port 80 (HTTP)
            route     none: the service's own endpoints
            backend   shop/orders port 80, 100 % of such requests
            tag rule  TagRoute shop/orders rule 1 (precedence 0), after 1 that does not match
            tag set   10 %: version=2: shop/orders-2
            tag set   90 %: none of (version=2), (version=3): shop/orders-1
                      shop/orders-1 (account shop/default): allowed for every member of the mesh
                      shop/orders-2 (account shop/default): allowed for every member of the mesh
            verdict   200-range: allowed; the application responds
        "#]],
    );
}

#[test]
fn excluded_endpoints_are_named_with_their_tags() {
    check_tagged(
        &[],
        0,
        &expect![[r#"
            request   GET http://orders.shop:80/a
            from      shop/web-1 (account shop/default)
            service   shop/orders port 80 (HTTP)
            route     none: the service's own endpoints
            backend   shop/orders port 80, 100 % of such requests
            tag rule  none of 2 matches
            tag set   100 %: none of (version=2), (version=3): shop/orders-1
                      shop/orders-2 is excluded: it has version=2
                      shop/orders-1 (account shop/default): allowed for every member of the mesh
            verdict   200-range: allowed; the application responds
        "#]],
    );
}

#[test]
fn without_an_endpoint_with_the_tags_requests_are_rejected() {
    check_tagged(
        &["x-none: 1"],
        3,
        &expect![[r#"
            request   GET http://orders.shop:80/a
            from      shop/web-1 (account shop/default)
            service   shop/orders port 80 (HTTP)
            route     none: the service's own endpoints
            backend   shop/orders port 80, 100 % of such requests: 503 no-tagged-endpoint
            tag rule  TagRoute shop/orders rule 0 (precedence 0)
            tag set   100 %: no endpoint: 503 no-tagged-endpoint
                      shop/orders-1 is excluded: it has version=1
                      shop/orders-2 is excluded: it has version=2
            verdict   503 no-tagged-endpoint: No instance has the tags that a tag rule requires for the request. Start a workload with these labels, or set a fallback in `fallbackPolicy` of the TagRoute; `leno explain request` shows the rule and the instances.
        "#]],
    );
}

#[test]
fn tag_rules_of_the_called_service_have_no_effect_on_other_backends() {
    let forwarding = "
---
apiVersion: v1
kind: Service
metadata: {name: store, namespace: shop}
spec: {selector: {app: orders}, ports: [{port: 80}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: orders, namespace: shop}
spec: {service: orders, backends: [{service: store, weight: 1}]}
";
    let test_directory =
        TestDirectory::with_files(&[("mesh.yaml", &format!("{TAGGED}{forwarding}"))]);
    let url = "http://orders.shop:80/a";
    let result = test_directory.run_leno(&[
        "explain",
        "-f",
        ".",
        "request",
        "--from",
        "shop/web-1",
        "--url",
        url,
    ]);
    let lines: Vec<&str> = result.stdout.lines().filter(|line| line.contains("TagRoute")).collect();
    let reason =
        "it selects among the endpoints of shop/orders, but the request is forwarded to shop/store";
    assert_eq!(lines, [format!("no effect TagRoute shop/orders: {reason}")], "{}", result.stdout);
}

#[test]
fn a_traffic_split_decides_matching_requests_only() {
    let splits = "---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: ratings, namespace: shop}
spec: {service: ratings, backends: [{service: reviews-v2, weight: 1}, {service: nobody, weight: 3}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: gold, namespace: shop}
spec: {matches: [{name: gold, headers: {x-tier: gold}}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: gold, namespace: shop}
spec:
  service: ratings
  matches: [{kind: HTTPRouteGroup, name: gold}]
  backends: [{service: ratings, weight: 1}]
";
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("splits.yaml", splits)]);
    let explain = |headers: &[&str]| {
        let url = "http://ratings:9080/ratings/1";
        let files = ["-f", "mesh.yaml", "-f", "splits.yaml", "request", "--from", "shop/page-1"];
        test_directory
            .run_leno(&[&["explain"], &files[..], &["--url", url], headers].concat())
            .stdout
    };
    expect![[r#"
        request   GET http://ratings:9080/ratings/1
        from      shop/page-1 (account shop/page)
        service   shop/ratings port 9080 (HTTP)
        route     TrafficSplit shop/ratings: (every request)
        skipped   TrafficSplit shop/gold: (header x-tier matches gold): the header x-tier does not match
        backend   shop/reviews-v2 port 9080, 25 % of such requests
                  shop/reviews-v2-1 (account shop/reviews): 404 no-policy-route
        backend   shop/nobody port 9080, 75 % of such requests: 500 invalid-backend
        verdict   it depends on the endpoint (no-policy-route, invalid-backend): see the lines above
    "#]].assert_eq(&explain(&[]));
    expect![[r#"
        request   GET http://ratings:9080/ratings/1
        from      shop/page-1 (account shop/page)
        service   shop/ratings port 9080 (HTTP)
        route     TrafficSplit shop/gold: (header x-tier matches gold)
        skipped   TrafficSplit shop/ratings: (every request): matches, but names fewer headers
        backend   shop/ratings port 9080, 100 % of such requests
                  shop/ratings-1 (account shop/ratings): allowed by the TrafficTarget shop/ratings
        verdict   200-range: allowed; the application responds
    "#]]
    .assert_eq(&explain(&["-H", "x-tier: gold"]));
}

#[test]
fn connections_are_split_on_tcp_ports() {
    let documents = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: db-1, namespace: shop, labels: {app: db}}
spec: {ports: [{port: 5432, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: db, namespace: shop}
spec: {service: db, backends: [{service: db, weight: 3}, {service: other/db, weight: 1}]}
";
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", documents)]);
    let arguments = ["explain", "-f", "mesh.yaml", "request", "--from", "shop/client", "--url"];
    let result = test_directory.run_leno(&[&arguments[..], &["http://db.shop:5432/"]].concat());
    expect![[r#"
        request   GET http://db.shop:5432/
        from      shop/client (account shop/default)
        service   shop/db port 5432 (TCP)
                  opaque: requests are not parsed, and only TCP rules apply
        route     TrafficSplit shop/db: (every request)
        backend   shop/db port 5432, 75 % of such requests
                  shop/db-1 (account shop/default): allowed for every member of the mesh
        backend   other/db port 5432, 25 % of such requests: 500 invalid-backend (no ReferenceGrant permits it)
        verdict   it depends on the endpoint (allowed, invalid-backend): see the lines above
    "#]].assert_eq(&result.stdout);
}

#[test]
fn yaml_has_the_content_of_json() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    let request =
        "request -f mesh.yaml --from shop/page-1 --url http://reviews.shop:9080/reviews/1";
    for arguments in ["", "denied", request] {
        let reported = |format: &str| {
            let arguments = format!("explain {arguments} -o {format}");
            let result = test_directory.run_leno(&arguments.split_whitespace().collect::<Vec<_>>());
            assert_eq!(result.exit_code, Some(0), "{result:?}");
            result.stdout
        };
        let json: Value = serde_json::from_str(&reported("json")).expect("JSON");
        let yaml: Value = serde_saphyr::from_str(&reported("yaml")).expect("YAML");
        assert_eq!(yaml, json, "{arguments}");
    }
}

/// A service with a port that carries TCP, and a policy of each kind.
const BYTES: &str = r#"
{apiVersion: v1, kind: Service, metadata: {name: bytes, namespace: shop},
 spec: {selector: {app: bytes}, ports: [{port: 9000, appProtocol: tcp}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: bytes-1, namespace: shop, labels: {app: bytes}},
 spec: {serviceAccount: bytes, defaultPolicy: allow, ports: [{port: 9000, protocol: TCP}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: CircuitBreaker, metadata: {name: breaker, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], limits: {connections: 3, requests: 2}}}
---
{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {name: hedging, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], after: 50ms}}
---
{apiVersion: leno.dev/v1alpha1, kind: LoadBalancing, metadata: {name: balancing, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], algorithm: Maglev, key: {header: x}}}
---
{apiVersion: leno.dev/v1alpha1, kind: FaultInjection, metadata: {name: faults, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], rules: [{abort: {httpStatus: 503}}]}}
---
{apiVersion: leno.dev/v1alpha1, kind: RateLimit, metadata: {name: limit, namespace: shop},
 spec: {targetRefs: [{kind: Service, name: bytes}], rules: [{requests: 1, per: 1h}]}}
---
{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: retry, namespace: shop},
 spec: {source: {kind: ServiceAccount, name: page, namespace: shop},
        destinations: [{kind: Service, name: bytes, namespace: shop}],
        retryPolicy: {retryOn: 5xx, numRetries: 2}}}
"#;

#[test]
fn connections_to_tcp_ports_are_decided_without_a_request() {
    // The limit applies to requests, and rejects opaque bytes.
    let allowing = BYTES.split("---\n").filter(|document| !document.contains("kind: RateLimit"));
    let allowing = allowing.collect::<Vec<_>>().join("---\n");
    let denying = allowing.replace("defaultPolicy: allow, ", "");
    let denied = "reset denied-outbound: ";
    for (documents, url, code, expected) in [
        (
            allowing.as_str(),
            "tcp://bytes.shop:9000",
            0,
            "allowed: the connection reaches the application",
        ),
        (BYTES, "tcp://bytes.shop:9000", 3, "reset denied-by-policy: "),
        (denying.as_str(), "tcp://bytes.shop:9000", 3, denied),
        (BYTES, "tcp://bytes.shop:9001", 3, "reset unknown-service: "),
        (BYTES, "tcp://missing.shop:9000", 3, "reset unknown-service: "),
        (BYTES, "tcp://example.com:9000", 3, "reset unknown-service: "),
        (BYTES, "tcp://ratings.shop:9080", 1, "port 9080 of ratings.shop is HTTP, not TCP"),
    ] {
        let test_directory =
            TestDirectory::with_files(&[("mesh.yaml", MESH), ("bytes.yaml", documents)]);
        let arguments = ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url];
        let result = test_directory.run_leno(&arguments);
        assert_eq!(result.exit_code, Some(code), "{result:?}");
        if code == 1 {
            assert!(result.stderr.contains(expected), "{result:?}");
            continue;
        }
        let verdict = result.stdout.lines().last().unwrap_or_default();
        assert!(verdict.starts_with(&format!("verdict   {expected}")), "{result:?}");
        assert!(result.stdout.starts_with(&format!("request   {url}\n")), "{result:?}");
        let json = test_directory.run_leno(&[&arguments[..], &["-o", "json"]].concat());
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json["allowed"], code == 0, "{json}");
        assert!(json["status"].is_null() && json["request"]["method"].is_null(), "{json}");
    }
}

/// Returns the lines of an explanation that name a policy of this kind, or each policy.
fn policy_lines(test_directory: &TestDirectory, url: &str) -> String {
    let result = test_directory.run_leno(&[
        "explain",
        "-f",
        ".",
        "request",
        "--from",
        "shop/page-1",
        "--url",
        url,
    ]);
    let lines = result.stdout.lines().filter(|line| {
        line.starts_with("no effect") || line.starts_with("          ") && line.contains(": ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn policies_about_requests_have_no_effect_on_tcp_ports() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH), ("bytes.yaml", BYTES)]);
    expect![[r#"
                  opaque: requests are not parsed, and only TCP rules apply
                  CircuitBreaker shop/breaker: limits concurrency to 3 TCP connections
        no effect FaultInjection shop/faults: port 9000 of shop/bytes carries TCP, in which requests are not visible
        no effect LoadBalancing shop/balancing: port 9000 of shop/bytes carries TCP, in which requests are not visible
        no effect Hedging shop/hedging: port 9000 of shop/bytes carries TCP, in which requests are not visible
        no effect Retry shop/retry: port 9000 of shop/bytes carries TCP, in which requests are not visible
                  shop/bytes-1 (account shop/bytes): 403 denied-by-policy (the RateLimit shop/limit denies it)"#]].assert_eq(&policy_lines(&test_directory, "http://bytes:9000/"));
}

#[test]
fn policies_without_effect_are_listed_where_the_client_sidecar_responds() {
    let policies = FORWARDED.replace("name: reviews}", "name: ratings}");
    let redirect = r#"
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: ratings, namespace: shop},
 spec: {parentRefs: [{group: "", kind: Service, name: ratings}],
        rules: [{matches: [{path: {value: /ratings}}],
                 filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org}}]}]}}
"#;
    let test_directory = TestDirectory::with_files(&[
        ("mesh.yaml", MESH),
        ("policies.yaml", &policies),
        ("r.yaml", redirect),
    ]);
    expect![[r#"
        no effect OutlierDetection shop/called: HTTPRoute shop/ratings answers the request without forwarding it
        no effect CircuitBreaker shop/called: HTTPRoute shop/ratings answers the request without forwarding it
        no effect FaultInjection shop/slow: HTTPRoute shop/ratings answers the request without forwarding it
        no effect Hedging shop/called: HTTPRoute shop/ratings answers the request without forwarding it
        no effect Hedging shop/second: HTTPRoute shop/ratings answers the request without forwarding it"#]].assert_eq(&policy_lines(&test_directory, "http://ratings:9080/ratings/1"));
    expect![[r#"
        no effect OutlierDetection shop/called: no rule of the attached routes matches, and the client's sidecar rejects the request
        no effect CircuitBreaker shop/called: no rule of the attached routes matches, and the client's sidecar rejects the request
        no effect FaultInjection shop/slow: no rule of the attached routes matches, and the client's sidecar rejects the request
        no effect Hedging shop/called: no rule of the attached routes matches, and the client's sidecar rejects the request
        no effect Hedging shop/second: no rule of the attached routes matches, and the client's sidecar rejects the request"#]].assert_eq(&policy_lines(&test_directory, "http://ratings:9080/other"));
    let url = "http://ratings:9080/ratings/1";
    let arguments = ["explain", "-f", ".", "request", "--from", "shop/page-1", "--url", url];
    let result = test_directory.run_leno(&[&arguments[..], &["-o", "json"]].concat());
    let json: Value = serde_json::from_str(&result.stdout).unwrap();
    let reason = "HTTPRoute shop/ratings answers the request without forwarding it";
    assert_eq!(json["not_applied"][0]["reason"], reason, "{json}");
}

#[test]
fn a_backend_without_the_port_is_the_reason_for_policies_without_effect() {
    let split = r#"
{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop},
 spec: {selector: {app: ratings}, ports: [{port: 81}]}}
---
{apiVersion: split.smi-spec.io/v1alpha4, kind: TrafficSplit, metadata: {name: ratings, namespace: shop},
 spec: {service: ratings, backends: [{service: other, weight: 1}, {service: missing, weight: 1}]}}
"#;
    let policies = FORWARDED.replace("name: reviews}", "name: ratings}");
    let test_directory = TestDirectory::with_files(&[
        ("mesh.yaml", MESH),
        ("policies.yaml", &policies),
        ("s.yaml", split),
    ]);
    expect![[r#"
        no effect OutlierDetection shop/called: no request is sent to shop/other: it has no port 9080
        no effect CircuitBreaker shop/called: no request is sent to shop/other: it has no port 9080
        no effect FaultInjection shop/slow: no request is sent to shop/other: it has no port 9080
        no effect Hedging shop/called: no request is sent to shop/other: it has no port 9080
        no effect Hedging shop/second: Hedging shop/called takes precedence at shop/ratings port 9080
        no effect OutlierDetection shop/called: no request is sent to shop/missing: there is no such Service
        no effect CircuitBreaker shop/called: no request is sent to shop/missing: there is no such Service
        no effect FaultInjection shop/slow: no request is sent to shop/missing: there is no such Service
        no effect Hedging shop/called: no request is sent to shop/missing: there is no such Service
        no effect Hedging shop/second: Hedging shop/called takes precedence at shop/ratings port 9080"#]].assert_eq(&policy_lines(&test_directory, "http://ratings:9080/ratings/1"));
}

/// Runs `leno explain kind` with these arguments.
fn explain_kind(arguments: &[&str]) -> CommandResult {
    let test_directory = TestDirectory::with_files(&[]);
    test_directory.run_leno(&[&["explain", "kind"], arguments].concat())
}

/// Returns the paths of the fields that `leno explain kind` describes.
fn explained_paths(arguments: &[&str]) -> Vec<String> {
    let result = explain_kind(arguments);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    let lines = result.stdout.lines().filter(|line| line.starts_with("spec."));
    lines.map(str::to_owned).collect()
}

#[test]
fn kinds_are_listed_with_their_short_names() {
    let listing = explain_kind(&[]).stdout;
    let rows: Vec<Vec<&str>> =
        listing.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KIND", "SHORT", "NAME", "API", "VERSION", "DESCRIPTION"]);
    assert!(rows.iter().any(|row| row.starts_with(&["Hedging", "lhg", "leno.dev/v1alpha1"])));
    let json: Value = serde_json::from_str(&explain_kind(&["-o", "json"]).stdout).unwrap();
    let kinds = json.as_array().unwrap();
    assert_eq!(kinds.len(), rows.len() - 1);
    let retry = kinds.iter().find(|kind| kind["kind"] == "Retry").unwrap();
    assert!(retry["short_name"].is_null(), "{retry}");
}

#[test]
fn a_kind_is_found_by_each_of_its_names() {
    let expected = explain_kind(&["Hedging"]).stdout;
    assert!(expected.starts_with("Hedging (leno.dev/v1alpha1, short name lhg)\n"), "{expected}");
    let after = "\nspec.after\n  duration, `1ms` to `1m`; required\n  Time to wait";
    assert!(expected.contains(after), "{expected}");
    for name in ["hedging", "hedgings", "lhg", "Hedging.spec"] {
        assert_eq!(explain_kind(&[name]).stdout, expected, "{name}");
    }
}

#[test]
fn a_field_is_described_with_the_fields_below_it() {
    let top = explained_paths(&["OutlierDetection"]);
    assert!(top.contains(&"spec.targetRefs[]".to_owned()), "{top:?}");
    assert!(top.contains(&"spec.healthCheck".to_owned()), "{top:?}");
    assert!(top.iter().all(|path| path.matches('.').count() == 1), "{top:?}");

    let direct = explained_paths(&["OutlierDetection.healthCheck"]);
    assert_eq!(direct[0], "spec.healthCheck");
    assert!(direct.contains(&"spec.healthCheck.httpGet".to_owned()), "{direct:?}");
    assert!(!direct.contains(&"spec.healthCheck.httpGet.path".to_owned()), "{direct:?}");

    let all = explained_paths(&["OutlierDetection.healthCheck", "--recursive"]);
    assert!(all.contains(&"spec.healthCheck.httpGet.path".to_owned()), "{all:?}");
    assert_eq!(explained_paths(&["lod.spec.healthCheck.interval"]), ["spec.healthCheck.interval"]);
}

#[test]
fn paths_of_messages_and_tables_name_fields() {
    let expected = explained_paths(&["TagRoute.rules.match"]);
    assert_eq!(expected[0], "spec.rules[].match");
    assert!(expected.contains(&"spec.rules[].match.headers.NAME".to_owned()), "{expected:?}");
    for path in ["TagRoute.spec.rules[].match", "TagRoute.spec.rules[0].match"] {
        assert_eq!(explained_paths(&[path]), expected, "{path}");
    }
    for path in ["headers", "headers.NAME", "headers.x-user"] {
        let exact = format!("TagRoute.rules.match.{path}.exact");
        assert_eq!(explained_paths(&[&exact]), ["spec.rules[].match.headers.NAME.exact"]);
    }
}

#[test]
fn a_map_that_the_table_abbreviates_is_described_on_request() {
    let fields = explained_paths(&["Lane.rules.match.cookies"]);
    assert!(fields.contains(&"spec.rules[].match.cookies.NAME.exact".to_owned()), "{fields:?}");
}

#[test]
fn unknown_kinds_and_fields_have_a_hint() {
    for (path, expected) in [
        ("Hedgin", "unknown kind `Hedgin`: did you mean `Hedging`?"),
        ("HTTPRoute", "no description of the kind `HTTPRoute`: `leno explain kind` lists"),
        ("Hedging.afer", "`spec` of Hedging has no field `afer`: did you mean `after`?"),
        ("Hedging.after.x", "`spec.after` of Hedging has no field `x`: `leno explain kind Hedging"),
        ("Hedging.status", "`spec` of Hedging has no field `status`: `leno explain kind Hedging"),
    ] {
        let result = explain_kind(&[path]);
        assert_eq!(result.exit_code, Some(1), "{result:?}");
        assert!(result.stderr.contains(expected), "{result:?}");
    }
}

#[test]
fn fields_have_the_same_content_in_json() {
    let arguments = ["Hedging.methods", "-o", "json"];
    let json: Value = serde_json::from_str(&explain_kind(&arguments).stdout).unwrap();
    assert_eq!(json["page"], "docs/rules/hedging.md");
    let fields = json["fields"].as_array().unwrap();
    assert_eq!(fields.len(), 1, "{json}");
    assert_eq!(fields[0]["field"], "spec.methods[]");
    assert_eq!(fields[0]["required"], false);
    assert_eq!(fields[0]["default"], "GET, HEAD, OPTIONS, TRACE, PUT and DELETE");
}
