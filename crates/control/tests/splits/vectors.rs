//! The vectors of `tests/vectors/splits`: from documents to the backend of a request or a connection, through
//! reader, mesh, compilation and decision.

use std::path::Path;
use std::sync::Arc;

use leno_control::snapshot_for;
use leno_model::{Object, Reason, ServiceName, WeightedBackend, WorkloadName};
use leno_registry::{RejectedDocument, read_str};
use leno_traffic::{CompiledSnapshot, RequestView, RouteChoice, select_tcp_backend};
use serde_json::Value;

#[test]
fn splits_match_the_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/splits/splits.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = vectors["groups"].as_array().unwrap();
    assert!(groups.len() >= 33, "{} groups", groups.len());
    let mismatches: Vec<String> = groups.iter().flat_map(find_mismatches).collect();
    assert!(mismatches.is_empty(), "{}:\n{}", mismatches.len(), mismatches.join("\n"));
}

/// Returns the mismatches of a group.
fn find_mismatches(group: &Value) -> Vec<String> {
    let name = group["name"].as_str().unwrap();
    let (objects, rejected) = group_objects(&group["documents"]);
    if group["refused"].as_bool().unwrap_or(false) {
        return match rejected.is_empty() {
            true => vec![format!("{name}: is not rejected")],
            false => Vec::new(),
        };
    }
    if !rejected.is_empty() {
        return vec![format!("{name}: {rejected:?}")];
    }
    let root: ServiceName = "shop/stock".parse().unwrap();
    let caller = WorkloadName::new("shop", "caller").unwrap();
    let compiled =
        CompiledSnapshot::build(Arc::new(snapshot_for(&objects, &caller, &[root]).unwrap()), None);
    let compiled = compiled.unwrap();
    let mut mismatches = Vec::new();
    for case in group["cases"].as_array().unwrap() {
        for (random, expected) in (0..).zip(case["expect"].as_array().unwrap()) {
            let backend = selected_backend(&compiled, case, random);
            if expected != &backend {
                let case = case["name"].as_str().unwrap();
                mismatches.push(format!("{name}, {case}, {random}: {backend}, not {expected}"));
            }
        }
    }
    mismatches
}

/// Returns the backend that the root's sidecar selects, `own` for the root's own endpoints, or the reason.
fn selected_backend(compiled: &CompiledSnapshot, case: &Value, random: u64) -> String {
    let root = compiled.service(&"shop/stock".parse().unwrap()).unwrap();
    let port = u16::try_from(case["port"].as_u64().unwrap()).unwrap();
    let port = &root.ports[&port];
    let request = &case["request"];
    if request.is_null() {
        return match &port.tcp_rule {
            None => "own".to_owned(),
            Some(rule) => existing_backend(compiled, select_tcp_backend(rule, random)),
        };
    }
    let headers = request["headers"].as_array().unwrap().iter();
    let headers: Vec<(String, String)> = headers
        .map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned()))
        .collect();
    let view = RequestView {
        method: request["method"].as_str().unwrap(),
        path: request["path"].as_str().unwrap(),
        query: request["query"].as_str(),
        authority: request["authority"].as_str().unwrap_or("stock"),
        fields: &headers,
    };
    match port.routes.choose_backend(&view, random) {
        RouteChoice::Direct => "own".to_owned(),
        RouteChoice::To { backend, .. } => existing_backend(compiled, Some(backend)),
        RouteChoice::InvalidBackend { .. } => existing_backend(compiled, None),
        RouteChoice::NoRoute => Reason::NoRoute.label().to_owned(),
        RouteChoice::Redirect { .. } => "elsewhere".to_owned(),
    }
}

/// Returns a backend that exists with its port; a sidecar rejects requests for others.
fn existing_backend(compiled: &CompiledSnapshot, backend: Option<&WeightedBackend>) -> String {
    let existing = backend.filter(|backend| {
        let service = compiled.service(&backend.service);
        service.is_some_and(|service| service.ports.contains_key(&backend.port))
    });
    let name = existing.map(|backend| backend.service.to_string());
    name.unwrap_or_else(|| Reason::InvalidBackend.label().to_owned())
}

/// Returns the caller, the services with a workload each, and the documents of the group.
fn group_objects(documents: &Value) -> (Vec<Object>, Vec<RejectedDocument>) {
    let both_ports =
        "{name: web, port: 9080, appProtocol: http}, {name: db, port: 5432, appProtocol: tcp}";
    let web_port = "{name: web, port: 9080, appProtocol: http}";
    let mut manifests = vec![workload_manifest("shop", "caller")];
    for (namespace, name, ports) in [
        ("shop", "stock", both_ports),
        ("shop", "stock-v1", both_ports),
        ("shop", "stock-v2", both_ports),
        ("shop", "stock-v3", both_ports),
        ("shop", "web-only", web_port),
        ("other", "stock-v9", both_ports),
    ] {
        manifests.push(workload_manifest(namespace, name));
        manifests.push(format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{ports}]}}\n"
        ));
    }
    manifests.extend(documents.as_array().unwrap().iter().map(Value::to_string));
    let (objects, rejected) = read_str("vectors", &manifests.join("\n---\n"));
    (objects.into_iter().map(|(object, _)| object).collect(), rejected)
}

fn workload_manifest(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}\n\
         spec: {{ports: [{{port: 9080}}, {{port: 5432}}]}}\n"
    )
}
