//! The vectors of `tests/vectors/retry`: retries of failed requests, and the total load on a service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_control::snapshot_for;
use leno_model::{Object, Reason};
use leno_traffic::retry::{is_idempotent, retry_pause};
use leno_traffic::{
    AttemptFailure, CompiledActions, CompiledSnapshot, FailedAttempt, PortRoutes, RequestView,
    RetryBudget, RouteChoice, SentPart, may_retry, may_retry_by_rule,
};
use serde_json::{Value, json};

use crate::case::{parse_workload, read_vectors, request_headers, request_view, run};

#[test]
fn retries_match_the_vectors() {
    run("retry/retries.json", 15, find_mismatches);
}

#[test]
fn a_budget_limits_retries() {
    let vectors = read_vectors("retry/budget.json");
    let cases = vectors["cases"].as_array().unwrap();
    assert!(cases.len() >= 4, "{} cases", cases.len());
    for case in cases {
        let start = Instant::now();
        let mut budget = RetryBudget::new(start);
        for step in case["steps"].as_array().unwrap() {
            let now = start + Duration::from_millis(step["at"].as_u64().unwrap());
            (0..step["requests"].as_u64().unwrap_or(0)).for_each(|_| budget.record_request());
            let requested = 0..step["retries"].as_u64().unwrap_or(0);
            let granted = requested.filter(|_| budget.withdraw_retry(now)).count();
            assert_eq!(json!(granted), step["granted"], "{} {step}", case["name"]);
        }
    }
}

/// Returns the mismatches of a group.
fn find_mismatches(objects: &[Object], group: &Value) -> Vec<String> {
    let client = parse_workload("shop/web");
    let service = || "shop/stock".parse().unwrap();
    let snapshot = snapshot_for(objects, &client, &[service()]).unwrap();
    let compiled = CompiledSnapshot::build(Arc::new(snapshot), None).unwrap();
    let routes = &compiled.service(&service()).unwrap().ports[&9080].routes;
    let mut mismatches = Vec::new();
    for case in group["cases"].as_array().unwrap() {
        let headers = request_headers(&case["request"]);
        let request = request_view(&case["request"], &headers).unwrap();
        let pauses = retry_pauses(routes, &request, case);
        if pauses != case["expect"] {
            mismatches.push(format!("{}: {pauses}, not {}", case["name"], case["expect"]));
        }
    }
    mismatches
}

/// Returns the minimum pause in milliseconds before each further attempt, and false at the end.
fn retry_pauses(routes: &PortRoutes, request: &RequestView<'_>, case: &Value) -> Value {
    let actions: Option<&Arc<CompiledActions>> = match routes.choose_backend(request, 0) {
        RouteChoice::To { rule, index, .. } => rule.actions_at(index),
        _ => routes.direct_actions(),
    };
    let rule = actions.and_then(|actions| actions.retry.as_ref());
    let mut pauses = Vec::new();
    for (number, failure) in (0..).zip(case["setbacks"].as_array().unwrap()) {
        let was_sent = failure["sent"].as_bool().unwrap_or(true);
        let attempt = FailedAttempt {
            sent: if was_sent { SentPart::HeadOrMore } else { SentPart::None },
            idempotent: is_idempotent(request.method),
            body_replayable: case["body"].as_str() != Some("lost"),
            response_started: failure["started"].as_bool().unwrap_or(false),
            earlier_attempts: number,
            other_endpoints: 0,
            waited: Duration::ZERO,
        };
        let failure_reason =
            failure["reason"].as_str().map(|label| Reason::from_label(label).unwrap());
        let failure = match failure_reason {
            Some(reason) => AttemptFailure::Failed(reason),
            None => AttemptFailure::Response(
                u16::try_from(failure["status"].as_u64().unwrap()).unwrap(),
            ),
        };
        let retries = match (rule, failure) {
            (Some(rule), _) => may_retry_by_rule(rule, failure, &attempt),
            (None, AttemptFailure::Failed(reason)) => may_retry(reason, &attempt),
            // Without a rule, responses are not retried.
            (None, AttemptFailure::Response(_)) => false,
        };
        if !retries {
            pauses.push(json!(false));
            break;
        }
        let pause = rule.map_or(Duration::ZERO, |rule| retry_pause(rule, number, 0));
        pauses.push(json!(u64::try_from(pause.as_millis()).unwrap()));
    }
    json!(pauses)
}
