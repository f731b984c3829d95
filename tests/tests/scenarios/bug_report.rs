//! `leno bug-report`: one file with the mesh's state, without secrets.

use std::path::Path;
use std::process::{Command, Output};

use leno_tests::{TestMesh, leno_command};

#[test]
fn a_report_contains_the_state_of_the_mesh_and_no_secret() {
    let manifests = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: one, namespace: shop, labels: {app: one, api-token: swordfish}}
spec: {ports: [{port: 9080}], run: [sleep, '60'], env: {PASSWORD: swordfish}}
";
    let mesh = TestMesh::up(manifests);
    let report = mesh.data_directory().with_file_name("report.tar.gz");
    let output = run_bug_report(&mesh, &report);
    assert!(output.status.success(), "{output:?}");
    let file_list = Command::new("tar").arg("-tzf").arg(&report).output().unwrap();
    let file_list = String::from_utf8(file_list.stdout).unwrap();
    for part in [
        "about.json",
        "control/status.json",
        "control/metrics.txt",
        "sidecars/shop.one/config.json",
    ] {
        assert!(file_list.contains(&format!("leno-bug-report/{part}")), "{part}: {file_list}");
    }
    let report_content = Command::new("tar").arg("-xzOf").arg(&report).output().unwrap();
    let report_content = String::from_utf8_lossy(&report_content.stdout);
    for secret in ["swordfish", "PRIVATE KEY", "leno-join-"] {
        assert!(!report_content.contains(secret), "{secret} is in the report");
    }
    assert!(
        report_content.contains("\"api-token\": \"[redacted]\""),
        "the name is kept: {report_content}"
    );
    assert!(!run_bug_report(&mesh, &report).status.success(), "an existing file is overwritten");
}

#[test]
fn a_report_without_a_control_plane_names_the_missing_part_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.tar.gz");
    let mut command = leno_command();
    command.args(["bug-report", "--data"]).arg(folder.path()).arg("--out").arg(&report);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("missing: control: no mesh responds at"), "{stdout}");
    // Information available without the mesh is included.
    let file_list = Command::new("tar").arg("-tzf").arg(&report).output().unwrap();
    assert!(String::from_utf8(file_list.stdout).unwrap().contains("about.json"));
}

fn run_bug_report(mesh: &TestMesh, report: &Path) -> Output {
    let mut command = leno_command();
    command.args(["bug-report", "--data"]).arg(mesh.data_directory()).arg("--out").arg(report);
    command.output().unwrap()
}
