//! Tests of `leno status` and `leno top` without a running mesh, and of rejected options.

use serde_json::Value;

use crate::run::TestDirectory;

#[test]
fn an_unreachable_mesh_is_unhealthy_and_status_has_a_hint() {
    let test_directory = TestDirectory::with_files(&[]);
    let result = test_directory.run_leno(&["status"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    assert!(result.stdout.contains("no control plane has run on"), "{result:?}");
    // A mesh running on a directory leaves its lock file there.
    let data_directory = tempfile::tempdir().unwrap();
    std::fs::write(data_directory.path().join("lock"), "").unwrap();
    let result =
        test_directory.run_leno(&["status", "--data", data_directory.path().to_str().unwrap()]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    assert!(result.stdout.contains("no mesh responds at"), "{result:?}");
    assert!(result.stdout.contains("start the control plane again"), "{result:?}");
    let result = test_directory.run_leno(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!((result.exit_code, &status["healthy"]), (Some(1), &Value::Bool(false)));
    assert_eq!(status["findings"][0]["severity"], "problem");
}

#[test]
fn top_requires_a_mesh_and_has_a_hint() {
    let result = TestDirectory::with_files(&[]).run_leno(&["top", "--once"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    assert!(
        result.stderr.contains("no mesh responds at") && result.stderr.contains("leno up"),
        "{result:?}"
    );
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
        let result = test_directory.run_leno(&arguments);
        assert_eq!(result.exit_code, Some(2), "{arguments:?} {result:?}");
        assert!(result.stderr.contains(expected), "{arguments:?} {result:?}");
    }
}
