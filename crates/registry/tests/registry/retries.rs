//! Tests of retry policies: accepted documents, rejections and warnings.

use std::time::Duration;

use expect_test::expect;
use leno_model::Object;
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

const OSM: &str = "policy.openservicemesh.io";
const FSM: &str = "policy.flomesh.io";

/// Returns a policy of `shop` for requests to `stock`.
fn retry_policy(group: &str, name: &str, policy_fields: &str) -> String {
    format!(
        "apiVersion: {group}/v1alpha1\nkind: Retry\nmetadata: {{name: {name}, namespace: store}}\n\
         spec: {{source: {{kind: ServiceAccount, name: shop, namespace: store}}, \
         destinations: [{{kind: Service, name: stock, namespace: stock}}], retryPolicy: {{{policy_fields}}}}}\n"
    )
}

#[test]
fn a_retry_is_read_from_both_api_groups() {
    let ms = Duration::from_millis;
    let all_fields = "retryOn: \"5xx, retriable-4xx\", perTryTimeout: 1s, numRetries: 3, \
                 retryBackoffBaseInterval: 50ms";
    let server_errors = || (500..=599).collect::<Vec<u16>>();
    for (policy_fields, codes, attempts, backoff, timeout) in [
        (all_fields, [vec![409], server_errors()].concat(), 3, ms(50), Some(ms(1_000))),
        ("retryOn: gateway-error", vec![502, 503, 504], 1, ms(25), None),
        ("retryOn: 503, numRetries: 0, perTryTimeout: 0s", vec![503], 0, ms(25), None),
        ("retryOn: \"reset,connect-failure\"", vec![], 1, ms(25), None),
    ] {
        for group in [OSM, FSM] {
            let (objects, rejected) = read_str("f.yaml", &retry_policy(group, "x", policy_fields));
            assert_eq!(rejected, []);
            let [(Object::Retry(policy), _)] = objects.as_slice() else { panic!("{objects:?}") };
            assert_eq!(policy.name.to_string(), "store/x");
            assert_eq!(policy.source.to_string(), "store/shop");
            let services: Vec<String> = policy.services.iter().map(ToString::to_string).collect();
            assert_eq!(services, ["stock/stock"]);
            assert_eq!(
                (&policy.rule.codes, policy.rule.attempts),
                (&codes, attempts),
                "{policy_fields}"
            );
            assert_eq!((policy.rule.backoff, policy.response_timeout), (backoff, timeout));
        }
    }
}

#[test]
fn invalid_retries_are_rejected() {
    let source = "source: {kind: ServiceAccount, name: a, namespace: default}";
    let destinations = "destinations: [{kind: Service, name: b, namespace: c}]";
    let specs = [
        "{}".to_owned(),
        format!(
            "{{source: {{kind: ServiceAccount, name: a, namespace: other}}, {destinations}, retryPolicy: {{retryOn: 5xx}}}}"
        ),
        format!("{{{source}, destinations: [], retryPolicy: {{retryOn: 5xx}}}}"),
        format!(
            "{{{source}, destinations: [{{kind: Pod, name: b, namespace: c}}], retryPolicy: {{retryOn: 5xx}}}}"
        ),
        format!(
            "{{{source}, {destinations}, retryPolicy: {{retryOn: \"5xx,retriable-headers\"}}}}"
        ),
        format!("{{{source}, {destinations}, retryPolicy: {{retryOn: 200}}}}"),
        format!("{{{source}, {destinations}, retryPolicy: {{retryOn: \"\"}}}}"),
        format!("{{{source}, {destinations}, retryPolicy: {{retryOn: 5xx, numRetries: 11}}}}"),
        format!("{{{source}, {destinations}, retryPolicy: {{retryOn: 5xx, perTryTimeout: soon}}}}"),
        format!("{{{source}, {destinations}, retryPolicy: {{retryOn: 5xx, hedge: true}}}}"),
    ];
    check_specs(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Retry\nmetadata: {name: x}",
        &specs.each_ref().map(String::as_str),
        &expect![[r#"
            spec.source: is missing; add `source`
            spec.destinations: is missing; add `destinations`
            spec.retryPolicy: is missing; add `retryPolicy`
            spec.source: is in the namespace other, not in default; put the policy into the namespace of its source
            spec.destinations: is empty; add an element
            spec.destinations[0].kind: "Pod" is not a supported value; use `Service`
            spec.retryPolicy.retryOn: "5xx,retriable-headers" has the unsupported condition "retriable-headers"; use statuses from 400 to 599, `5xx` or `4xx`, `gateway-error`, `retriable-4xx`, `connect-failure`, `refused-stream`, `reset`, or for gRPC `unavailable`, `deadline-exceeded`, `internal` or `resource-exhausted`
            spec.retryPolicy.retryOn: 200 has the unsupported condition "200"; use statuses from 400 to 599, `5xx` or `4xx`, `gateway-error`, `retriable-4xx`, `connect-failure`, `refused-stream`, `reset`, or for gRPC `unavailable`, `deadline-exceeded`, `internal` or `resource-exhausted`
            spec.retryPolicy.retryOn: "" has the unsupported condition ""; use statuses from 400 to 599, `5xx` or `4xx`, `gateway-error`, `retriable-4xx`, `connect-failure`, `refused-stream`, `reset`, or for gRPC `unavailable`, `deadline-exceeded`, `internal` or `resource-exhausted`
            spec.retryPolicy.numRetries: 11 is out of range; use a number from 0 to 10
            spec.retryPolicy.perTryTimeout: "soon" is not a duration; use a time with a unit, from 0s to 24h, such as "5s"
            spec.retryPolicy.hedge: is an unknown field; remove it, or use `retryOn`, `perTryTimeout`, `numRetries` or `retryBackoffBaseInterval`
        "#]],
    );
}

#[test]
fn missing_references_and_preceding_retries_cause_warnings() {
    let manifests = [
        retry_policy(OSM, "x", "retryOn: 5xx"),
        retry_policy(FSM, "y", "retryOn: 5xx, numRetries: 0"),
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {name: shops-1, namespace: store}\nspec: {serviceAccount: shops}\n"
            .to_owned(),
    ];
    let (objects, rejected) = read_str("f.yaml", &manifests.join("---\n"));
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let warnings: Vec<String> = lint_objects(&objects)
        .iter()
        .filter(|warning| warning.location.kind.as_deref() == Some("Retry"))
        .map(ToString::to_string)
        .collect();
    expect![[r#"
        Retry store/x: spec.source.name: no workload runs under the account store/shop; did you mean `shops`?
        Retry store/x: spec.destinations[0].name: there is no Service stock/stock; add the Service
        Retry store/y: spec.source.name: no workload runs under the account store/shop; did you mean `shops`?
        Retry store/y: spec.destinations[0].name: there is no Service stock/stock; add the Service
        Retry store/y: spec.destinations[0]: has no effect: Retry store/x applies to the same requests; remove one of the two
        Retry store/y: spec.retryPolicy.numRetries: is 0: no request is retried, including requests that were never sent; raise it, or remove the policy to retry requests that were never sent"#]].assert_eq(&warnings.join("\n"));
}
