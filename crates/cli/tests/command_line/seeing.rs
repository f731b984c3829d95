//! Tests of `leno status` and `leno top` without a running mesh, and of rejected options.

use serde_json::Value;

use crate::run::TestDirectory;

#[test]
fn an_unreachable_mesh_is_unhealthy_and_status_has_a_hint() {
    let test_directory = TestDirectory::with_files(&[]);
    let done = test_directory.run_leno(&["status"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("no control plane has run on"), "{done:?}");
    // A mesh running on a directory leaves its lock file there.
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("lock"), "").unwrap();
    let done = test_directory.run_leno(&["status", "--data", data.path().to_str().unwrap()]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("no mesh responds at"), "{done:?}");
    assert!(done.out.contains("start the control plane again"), "{done:?}");
    let done = test_directory.run_leno(&["status", "-o", "json"]);
    let verdict: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &verdict["healthy"]), (Some(1), &Value::Bool(false)));
    assert_eq!(verdict["findings"][0]["severity"], "problem");
}

#[test]
fn top_requires_a_mesh_and_has_a_hint() {
    let done = TestDirectory::with_files(&[]).run_leno(&["top", "--once"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("no mesh responds at") && done.err.contains("leno up"), "{done:?}");
}

#[test]
fn invalid_addresses_and_times_are_rejected_with_an_example() {
    let test_directory = TestDirectory::with_files(&[]);
    for (arguments, expected) in [
        (["control", "-f", "x", "--page", "80"], "127.0.0.1:15080"),
        (["up", "-f", "x", "--page", "localhost:80"], "`off`"),
        (["control", "-f", "x", "--report-interval", "1ms"], "1s to 10s"),
        (["up", "-f", "x", "--report-interval", "1h"], "`off`"),
    ] {
        let done = test_directory.run_leno(&arguments);
        assert_eq!(done.code, Some(2), "{arguments:?} {done:?}");
        assert!(done.err.contains(expected), "{arguments:?} {done:?}");
    }
}
