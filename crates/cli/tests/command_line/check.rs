//! Tests of `leno check`.

use expect_test::expect;
use serde_json::Value;

use crate::run::{MESH, TestDirectory};

#[test]
fn check_accepts_a_valid_mesh_with_warnings() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    let done = test_directory.run_leno(&["check", "-f", "mesh.yaml"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    expect![[r#"
        warning: mesh.yaml:18: Workload shop/stranger-1: spec.serviceAccount: no policy mentions the account shop/stranger: with default policy deny the workload may call no service and no client may call it; add it as a source or destination of a TrafficTarget, or in an AccessPolicy
        ok: 14 objects, 0 rejected, 1 warning
    "#]]
    .assert_eq(&done.out);
    let strict = test_directory.run_leno(&["check", "-f", "mesh.yaml", "-W"]);
    assert_eq!(strict.code, Some(1), "{strict:?}");
}

#[test]
fn rejections_have_file_line_field_and_hint() {
    let bad = MESH.replace("weight: 10}", "wait: 10}");
    let test_directory =
        TestDirectory::with_files(&[("mesh/all.yaml", &bad), ("mesh/notes.txt", "not ours")]);
    let done = test_directory.run_leno(&["check", "-f", "mesh"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let rejected = done.out.lines().next().unwrap_or_default();
    expect!["rejected: mesh/all.yaml:66:44: HTTPRoute shop/reviews: spec.rules[1].backendRefs[1].wait: is an unknown field; remove it, or use `group`, `kind`, `name`, `namespace`, `port`, `weight` or `filters`"]
    .assert_eq(rejected);
    assert!(done.out.contains("not ok: 13 objects, 1 rejected"), "{}", done.out);
}

#[test]
fn json_has_the_same_findings() {
    let bad = MESH.replace("defaultPolicy: deny", "defaultPolicy: denny");
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", &bad)]);
    let done = test_directory.run_leno(&["check", "-f", "mesh.yaml", "-o", "json"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let answer: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(answer["ok"], false);
    assert_eq!(answer["objects"], 13);
    let rejected = &answer["rejected"][0];
    assert_eq!(rejected["file"], "mesh.yaml");
    assert_eq!(rejected["line"], 5);
    assert_eq!(rejected["kind"], "MeshConfig");
    assert_eq!(rejected["field"], "spec.defaultPolicy");
    assert!(rejected["hint"].as_str().is_some_and(|hint| hint.contains("deny")));
}

#[test]
fn an_empty_input_is_not_ok() {
    let test_directory = TestDirectory::with_files(&[("empty/README", "nothing here")]);
    for (path, said) in [("empty", "nothing to check: 0 objects"), ("absent", "does not exist")] {
        let done = test_directory.run_leno(&["check", "-f", path]);
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.out.contains(said), "{done:?}");
    }
}
