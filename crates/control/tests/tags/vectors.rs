//! The vectors of `tests/vectors/tags`: from documents to the instances that receive a request, through reader,
//! mesh, compilation and decision.

use crate::group::{Group, read_vectors};

#[test]
fn published_rules_choose_as_the_service_router_does() {
    run("sermant.json", 70);
}

#[test]
fn native_rules_choose_as_they_say() {
    run("native.json", 80);
}

/// Runs the groups of a file, at least so many.
fn run(file: &str, least: usize) {
    let vectors = read_vectors(file);
    let groups = vectors["groups"].as_array().unwrap();
    assert!(groups.len() >= least, "{} groups", groups.len());
    let mut wrong = Vec::new();
    for group in groups {
        let group = Group { vectors: &vectors, group };
        wrong.extend(group.find_mismatches(&group.rule_manifests()));
    }
    assert!(wrong.is_empty(), "{} of {file}:\n{}", wrong.len(), wrong.join("\n"));
}
