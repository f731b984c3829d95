//! The vectors of `tests/vectors/routes`: the rule for each request, and CORS responses.

use std::sync::Arc;

use leno_control::snapshot_for;
use leno_model::{Object, Reason};
use leno_traffic::cors::{CrossOrigin, apply_cors};
use leno_traffic::{CompiledSnapshot, FieldEdits, RequestView, RouteChoice};
use serde_json::{Map, Value, json};

use crate::case::{parse_workload, request_headers, request_view, run};

#[test]
fn routes_apply_in_the_order_of_the_gateway_api() {
    run("routes/precedence.json", 30, |objects, group| {
        find_mismatches(objects, group, chosen_backend)
    });
}

#[test]
fn cors_responses_match_the_vectors() {
    run("routes/cors.json", 10, |objects, group| find_mismatches(objects, group, response_changes));
}

/// Decides a request, in the form of an expectation.
type Decision = fn(&RouteChoice<'_>, &RequestView<'_>) -> Value;

/// Returns the mismatches of a group.
fn find_mismatches(objects: &[Object], group: &Value, decide: Decision) -> Vec<String> {
    let mut mismatches = Vec::new();
    for case in group["cases"].as_array().unwrap() {
        let client = parse_workload(case["from"].as_str().unwrap_or("shop/web"));
        let service = "shop/stock".parse().unwrap();
        let snapshot = snapshot_for(objects, &client, &[service]).unwrap();
        let compiled = CompiledSnapshot::build(Arc::new(snapshot), None).unwrap();
        let stock = compiled.service(&"shop/stock".parse().unwrap()).unwrap();
        let port = u16::try_from(case["port"].as_u64().unwrap_or(9080)).unwrap();
        let headers = request_headers(&case["request"]);
        let request = request_view(&case["request"], &headers).unwrap();
        let decision = decide(&stock.ports[&port].routes.choose_backend(&request, 0), &request);
        if decision != case["expect"] {
            mismatches.push(format!("{}: {decision}, not {}", case["name"], case["expect"]));
        }
    }
    mismatches
}

/// Returns the backend, `own` for the service's own endpoints, or the reason.
fn chosen_backend(choice: &RouteChoice<'_>, _: &RequestView<'_>) -> Value {
    match choice {
        RouteChoice::Direct => json!("own"),
        RouteChoice::To { backend, .. } => json!(backend.service.to_string()),
        RouteChoice::Redirect { .. } => json!("elsewhere"),
        RouteChoice::NoRoute => json!(Reason::NoRoute.label()),
        RouteChoice::InvalidBackend { .. } => json!(Reason::InvalidBackend.label()),
    }
}

/// Returns the CORS response, or the changes of the response, for a request's origin.
fn response_changes(choice: &RouteChoice<'_>, request: &RequestView<'_>) -> Value {
    let RouteChoice::To { rule, index, .. } = choice else { panic!("{choice:?}") };
    let Some(cors) = rule.actions_at(*index).and_then(|actions| actions.cors.as_ref()) else {
        return json!("passes");
    };
    match apply_cors(cors, request, &FieldEdits::default()) {
        None => json!("passes"),
        Some(CrossOrigin::Preflight(fields)) => {
            let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
            json!({"answer": fields.collect::<Map<_, _>>()})
        }
        Some(CrossOrigin::Actual(edits)) => {
            let lines = edits.lines.lines().filter_map(|line| line.split_once(": "));
            let set = lines.map(|(name, value)| (name.to_owned(), value.into()));
            json!({"passes": set.collect::<Map<_, _>>()})
        }
    }
}
