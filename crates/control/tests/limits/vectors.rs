//! The vectors of `tests/vectors/limits`: from documents to allowed requests, through reader, mesh, compilation
//! and decision.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leno_control::snapshot_for;
use leno_model::{Object, Reason, ServiceAccount, WorkloadName};
use leno_registry::read_str;
use leno_traffic::{CompiledLimits, CompiledSnapshot, RequestView};
use serde_json::Value;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock-1, namespace: shop, labels: {app: stock}}
spec: {serviceAccount: stock, ports: [{name: main, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{name: main, port: 9080, targetPort: main}]}
---
";

#[test]
fn limits_allow_the_requests_of_the_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/limits/limits.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = vectors["groups"].as_array().unwrap();
    assert!(groups.len() >= 9, "{} groups", groups.len());
    let mismatches: Vec<String> = groups.iter().flat_map(find_mismatches).collect();
    assert!(mismatches.is_empty(), "{}:\n{}", mismatches.len(), mismatches.join("\n"));
}

/// Returns the mismatches of a group. Its cases follow one another in time.
fn find_mismatches(group: &Value) -> Vec<String> {
    let (objects, rejected) = read_str("vectors", &format!("{MESH}{}", group["document"]));
    assert_eq!(rejected, [], "{}", group["name"]);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let stock = WorkloadName::new("shop", "stock-1").unwrap();
    let snapshot = Arc::new(snapshot_for(&objects, &stock, &[]).unwrap());
    let compiled = CompiledSnapshot::build(snapshot, None).unwrap();
    let mut mismatches = Vec::new();
    for case in group["cases"].as_array().unwrap() {
        let decision = decide_requests(&compiled.limits, case);
        let number = |key: &str| case[key].as_u64();
        let expected = (number("admitted").unwrap(), number("status"), number("retry_after"));
        if decision != expected {
            let (group, case) = (&group["name"], &case["name"]);
            mismatches.push(format!("{group}, {case}: {decision:?}, not {expected:?}"));
        }
    }
    mismatches
}

/// Returns the number of allowed requests, and the response to the others: a status, and the retry time.
fn decide_requests(limits: &CompiledLimits, case: &Value) -> (u64, Option<u64>, Option<u64>) {
    let now = Duration::from_millis(case["at_ms"].as_u64().unwrap());
    let caller = case["from"].as_str().unwrap_or("web");
    let caller = ServiceAccount::new("shop", caller).unwrap();
    let request = &case["request"];
    let headers = request["headers"].as_array().into_iter().flatten();
    let headers: Vec<(String, String)> = headers
        .map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned()))
        .collect();
    let (mut admitted, mut status, mut retry_after) = (0, None, None);
    for _ in 0..case["times"].as_u64().unwrap() {
        let outcome = if request.is_null() {
            limits.admit_connection(PORT, now)
        } else {
            let view = RequestView {
                method: request["method"].as_str().unwrap(),
                path: request["path"].as_str().unwrap(),
                query: None,
                authority: "stock.shop",
                fields: &headers,
            };
            limits.admit_request(PORT, &view, Some(&caller), now)
        };
        match outcome {
            Ok(()) => admitted += 1,
            Err(exceeded) => {
                let response_status =
                    exceeded.response.as_ref().and_then(|response| response.status);
                let status_code = response_status.unwrap_or(Reason::RateLimited.status());
                status = Some(u64::from(status_code));
                retry_after = Some(exceeded.retry_after());
            }
        }
    }
    (admitted, status, retry_after)
}

const PORT: u16 = 8080;
