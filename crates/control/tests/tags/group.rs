//! One group of the vectors of `tests/vectors/tags`: rules, and their effect on requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use leno_control::snapshot_for;
use leno_model::{Endpoint, Object, ServiceName, WorkloadName};
use leno_registry::{RejectedDocument, read_str};
use leno_traffic::{ChoicePurpose, CompiledSnapshot, RandomChoice, RequestView, WeightedTargets};
use serde_json::{Value, json};

/// Reads a file of vectors.
pub(crate) fn read_vectors(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/tags").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) struct Group<'a> {
    pub(crate) vectors: &'a Value,
    pub(crate) group: &'a Value,
}

impl Group<'_> {
    /// Returns the rules of the group, as manifests.
    pub(crate) fn rule_manifests(&self) -> Vec<String> {
        let rules = self.group["documents"].as_array().unwrap().iter().enumerate();
        rules.map(|(index, rules)| rule_document(index, rules).to_string()).collect()
    }

    /// Returns the differences from the expectations under these rules.
    pub(crate) fn find_mismatches(&self, rules: &[String]) -> Vec<String> {
        let name = self.group["name"].as_str().unwrap();
        if self.group["agent"].as_bool() == Some(true) {
            return Vec::new();
        }
        let (objects, rejected) = self.mesh_objects(rules);
        let is_rejected = self.group["refused"].as_bool().unwrap_or(false);
        if is_rejected == rejected.is_empty() {
            return vec![format!("{name}: rejected: {rejected:?}")];
        }
        if is_rejected {
            return Vec::new();
        }
        let service: ServiceName = "shop/orders".parse().unwrap();
        let caller: WorkloadName = match self.group.get("lane") {
            Some(lane_workload) => workload_name(lane_workload.as_str().unwrap()),
            None => workload_name("caller"),
        };
        let snapshot = snapshot_for(&objects, &caller, &[service]).unwrap();
        let compiled = CompiledSnapshot::build(Arc::new(snapshot), None).unwrap();
        let mut mismatches = Vec::new();
        for case in self.group["cases"].as_array().unwrap() {
            for expected in case["expect"].as_array().unwrap() {
                let decision = decide_request(&compiled, &case["request"], expected);
                let draws = expected.get("draws").cloned().unwrap_or_default();
                if decision != without_draws(expected) {
                    let case = case["name"].as_str().unwrap();
                    mismatches.push(format!("{name}, {case}, {draws}: {decision}, not {expected}"));
                }
            }
        }
        mismatches
    }

    /// Returns the mesh of the group: the instances of `orders`, the caller, and the rules.
    fn mesh_objects(&self, rules: &[String]) -> (Vec<Object>, Vec<RejectedDocument>) {
        let instances = match &self.group["fleet"] {
            Value::String(name) => &self.vectors["fleets"][name],
            instances => instances,
        };
        let mut documents = Vec::new();
        for (name, tags) in instances.as_object().unwrap() {
            documents.push(instance_manifest(name, "orders", tags));
        }
        let caller = &self.group["caller"];
        // Labels other than version and zone would be parameters.
        let app = caller["service"].as_str().unwrap_or_default();
        documents.push(instance_manifest("caller", app, &caller["tags"]));
        for name in ["orders", "web", "other"] {
            documents.push(service_manifest(name));
        }
        if let Some(lane_workload) = self.group.get("lane") {
            let name = lane_workload.as_str().unwrap();
            documents.push(instance_manifest(name, name, &json!({})));
        }
        let documents = documents.iter().map(Value::to_string);
        let manifests: Vec<String> = documents.chain(rules.iter().cloned()).collect();
        let (objects, rejected) = read_str("vectors", &manifests.join("\n---\n"));
        (objects.into_iter().map(|(object, _)| object).collect(), rejected)
    }
}

fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("shop", name).unwrap()
}

fn instance_manifest(name: &str, app: &str, tags: &Value) -> Value {
    let mut labels = tags.as_object().cloned().unwrap_or_default();
    if !app.is_empty() {
        labels.insert("app".to_owned(), app.into());
    }
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {"ports": [{"port": PORT, "protocol": "HTTP"}]},
    })
}

fn service_manifest(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"app": name}, "ports": [{"port": PORT, "appProtocol": "http"}]},
    })
}

/// Formats a native document by its kind; rules with a key are items of a configuration center.
fn rule_document(index: usize, rules: &Value) -> Value {
    let (kind, spec) = match rules.get("key") {
        Some(key) => {
            let content = rules["content"].to_string();
            ("SermantRouteRule", json!({"compat": "sermant", "key": key, "rules": content}))
        }
        None => (rules["kind"].as_str().unwrap(), rules["spec"].clone()),
    };
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": format!("rules-{index}"), "namespace": "shop"},
        "spec": spec,
    })
}

/// Returns the result for a request, in the form of an expectation.
fn decide_request(compiled: &CompiledSnapshot, request: &Value, expected: &Value) -> Value {
    let headers: Vec<(String, String)> = request["headers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned()))
        .collect();
    let view = RequestView {
        method: request["method"].as_str().unwrap_or_default(),
        path: request["path"].as_str().unwrap_or_default(),
        query: request["query"].as_str(),
        authority: "orders",
        fields: &headers,
    };
    let mut draws = FixedChoices(expected.get("draws"));
    if expected.get("headers").is_some() {
        let lane_headers = compiled.lanes.headers_for_request(PORT, &view, &mut draws);
        let lane_headers: BTreeMap<&str, &str> = lane_headers.missing_headers(&view).collect();
        return json!({"headers": lane_headers});
    }
    let service = compiled.service(&"shop/orders".parse().unwrap()).unwrap();
    let port = &service.ports[&PORT];
    let endpoints = match &port.tags {
        None => Some(&port.endpoints),
        Some(tags) if request.is_null() => tags.choose_without_request(&mut draws).endpoints,
        Some(tags) => tags.choose_instances(&view, &mut draws).endpoints,
    };
    match endpoints {
        Some(endpoints) => json!({"instances": endpoint_names(endpoints)}),
        None => json!({"reason": leno_model::Reason::NoTaggedEndpoint.label()}),
    }
}

fn endpoint_names(endpoints: &[Arc<Endpoint>]) -> BTreeSet<&str> {
    endpoints.iter().map(|endpoint| endpoint.id.workload.name.as_str()).collect()
}

fn without_draws(expected: &Value) -> Value {
    let mut expected = expected.clone();
    if let Some(object) = expected.as_object_mut() {
        object.remove("draws");
        if let Some(instances) = object.get_mut("instances").and_then(Value::as_array_mut) {
            instances.sort_by_key(ToString::to_string);
        }
    }
    expected
}

/// The random numbers of an expectation by purpose, each from 1 to the total of the weights.
struct FixedChoices<'a>(Option<&'a Value>);

impl RandomChoice for FixedChoices<'_> {
    fn pick_target(&mut self, purpose: ChoicePurpose, shares: &WeightedTargets) -> usize {
        let name = match purpose {
            ChoicePurpose::Route => "route",
            ChoicePurpose::Fallback => "fallback",
            ChoicePurpose::Caller => "tag",
            ChoicePurpose::Lane => "lane",
        };
        let number = self.0.and_then(|draws| draws[name].as_u64());
        let number = number.unwrap_or_else(|| panic!("{name} is drawn, and no draw is given"));
        assert!(
            (1..=shares.total_points()).contains(&number),
            "{number} of {}",
            shares.total_points()
        );
        shares.target_at(number - 1)
    }
}

const PORT: u16 = 8080;
