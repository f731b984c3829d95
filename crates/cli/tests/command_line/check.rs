//! Tests of `leno check`.

use expect_test::expect;
use serde_json::Value;

use crate::run::{MESH, TestDirectory};

#[test]
fn check_accepts_a_valid_mesh_with_warnings() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    let result = test_directory.run_leno(&["check", "-f", "mesh.yaml"]);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    expect![[r#"
        warning: mesh.yaml:18: Workload shop/stranger-1: spec.serviceAccount: no policy mentions the account shop/stranger: with default policy deny the workload may call no service and no client may call it; add it as a source or destination of a TrafficTarget, or in an AccessPolicy
        ok: 14 objects, 0 rejected, 1 warning
    "#]]
    .assert_eq(&result.stdout);
    let strict = test_directory.run_leno(&["check", "-f", "mesh.yaml", "-W"]);
    assert_eq!(strict.exit_code, Some(1), "{strict:?}");
}

#[test]
fn rejections_have_file_line_field_and_hint() {
    let invalid = MESH.replace("weight: 10}", "wait: 10}");
    let test_directory =
        TestDirectory::with_files(&[("mesh/all.yaml", &invalid), ("mesh/notes.txt", "not ours")]);
    let result = test_directory.run_leno(&["check", "-f", "mesh"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    let rejected = result.stdout.lines().next().unwrap_or_default();
    expect!["rejected: mesh/all.yaml:66:44: HTTPRoute shop/reviews: spec.rules[1].backendRefs[1].wait: is an unknown field; remove it, or use `group`, `kind`, `name`, `namespace`, `port`, `weight` or `filters`"]
    .assert_eq(rejected);
    assert!(result.stdout.contains("not ok: 13 objects, 1 rejected"), "{}", result.stdout);
}

#[test]
fn json_has_the_same_findings() {
    let invalid = MESH.replace("defaultPolicy: deny", "defaultPolicy: denny");
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", &invalid)]);
    let result = test_directory.run_leno(&["check", "-f", "mesh.yaml", "-o", "json"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    let report: Value = serde_json::from_str(&result.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["objects"], 13);
    let rejected = &report["rejected"][0];
    assert_eq!(rejected["file"], "mesh.yaml");
    assert_eq!(rejected["line"], 5);
    assert_eq!(rejected["kind"], "MeshConfig");
    assert_eq!(rejected["field"], "spec.defaultPolicy");
    assert!(rejected["hint"].as_str().is_some_and(|hint| hint.contains("deny")));
}

#[test]
fn an_empty_input_is_not_ok() {
    let test_directory = TestDirectory::with_files(&[("empty/README", "nothing here")]);
    for (path, expected) in [("empty", "nothing to check: 0 objects"), ("absent", "does not exist")]
    {
        let result = test_directory.run_leno(&["check", "-f", path]);
        assert_eq!(result.exit_code, Some(1), "{result:?}");
        assert!(result.stdout.contains(expected), "{result:?}");
    }
}
