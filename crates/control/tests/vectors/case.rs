//! Common parts of vector files: a mesh, groups with documents, and requests.

use std::path::Path;

use leno_model::{Object, WorkloadName};
use leno_registry::{RejectedDocument, read_str};
use leno_traffic::RequestView;
use serde_json::{Value, json};

/// Reads a file of vectors.
pub(crate) fn read_vectors(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs the groups of a file, at least `min_groups`; `mismatches` returns the mismatches of a group, given the
/// objects of its documents and of the file's mesh.
pub(crate) fn run(
    file: &str,
    min_groups: usize,
    mismatches: impl Fn(&[Object], &Value) -> Vec<String>,
) {
    let vectors = read_vectors(file);
    let groups = vectors["groups"].as_array().unwrap();
    assert!(groups.len() >= min_groups, "{} groups", groups.len());
    let group_mismatches = |group: &Value| -> Vec<String> {
        let with_group_name = |text: String| format!("{}: {text}", group["name"]);
        let (objects, rejected) = group_objects(&vectors, group);
        let is_rejected = group["refused"].as_bool().unwrap_or(false);
        if is_rejected || !rejected.is_empty() {
            let is_expected = is_rejected && !rejected.is_empty();
            return if is_expected {
                Vec::new()
            } else {
                vec![with_group_name(format!("{rejected:?}"))]
            };
        }
        mismatches(&objects, group).into_iter().map(with_group_name).collect()
    };
    let mismatches: Vec<String> = groups.iter().flat_map(group_mismatches).collect();
    assert!(mismatches.is_empty(), "{}:\n{}", mismatches.len(), mismatches.join("\n"));
}

/// Returns the mesh of all groups, the settings of the group if any, and its documents.
fn group_objects(vectors: &Value, group: &Value) -> (Vec<Object>, Vec<RejectedDocument>) {
    let config = group.get("config").map(|spec| {
        json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "MeshConfig",
            "metadata": {"name": "mesh"},
            "spec": spec,
        })
    });
    let documents = group["documents"].as_array().unwrap();
    let manifests = vectors["mesh"].as_array().unwrap().iter().chain(documents).chain(&config);
    let text: Vec<String> = manifests.map(Value::to_string).collect();
    let (objects, rejected) = read_str("vectors", &text.join("\n---\n"));
    (objects.into_iter().map(|(object, _)| object).collect(), rejected)
}

/// Returns the headers of a request.
pub(crate) fn request_headers(request: &Value) -> Vec<(String, String)> {
    let headers = request["headers"].as_array().into_iter().flatten();
    headers
        .map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned()))
        .collect()
}

/// Returns a request with its headers; `None` if no request is detected.
pub(crate) fn request_view<'a>(
    request: &'a Value,
    headers: &'a Vec<(String, String)>,
) -> Option<RequestView<'a>> {
    (!request.is_null()).then(|| RequestView {
        method: request["method"].as_str().unwrap(),
        path: request["path"].as_str().unwrap(),
        query: request["query"].as_str(),
        authority: request["authority"].as_str().unwrap_or("stock.shop"),
        fields: headers,
    })
}

/// Parses a workload name `NAMESPACE/NAME`.
pub(crate) fn parse_workload(name: &str) -> WorkloadName {
    let (namespace, name) = name.split_once('/').unwrap();
    WorkloadName::new(namespace, name).unwrap()
}
