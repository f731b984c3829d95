//! The vectors of `tests/vectors/tags`: from documents to the instances that receive a request, through reader,
//! mesh, compilation and decision.

use crate::group::{Group, read_vectors};

#[test]
fn published_rules_select_the_same_instances_as_the_service_router() {
    run("sermant.json", 70);
}

#[test]
fn native_rules_match_the_vectors() {
    run("native.json", 80);
}

/// Runs the groups of a file, at least `min_groups`.
fn run(file: &str, min_groups: usize) {
    let vectors = read_vectors(file);
    let groups = vectors["groups"].as_array().unwrap();
    assert!(groups.len() >= min_groups, "{} groups", groups.len());
    let mut mismatches = Vec::new();
    for group in groups {
        let group = Group { vectors: &vectors, group };
        mismatches.extend(group.find_mismatches(&group.rule_manifests()));
    }
    assert!(mismatches.is_empty(), "{} of {file}:\n{}", mismatches.len(), mismatches.join("\n"));
}
