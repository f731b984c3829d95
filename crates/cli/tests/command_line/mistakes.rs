//! Tests of user mistakes: one line with problem and hint, and the correct exit code.

use std::path::PathBuf;

use crate::run::{MESH, TestDirectory};

#[test]
fn usage_errors_have_their_own_exit_code() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    let cases: [(&[&str], &str); 18] = [
        (&[], "Usage"),
        (&["fly"], "fly"),
        (&["check"], "--file"),
        (&["explain", "no-such-reason"], "no-such-reason"),
        (&["explain", "denied-outbond"], "denied-outbound"),
        (&["explain", "E30044"], "E3004"),
        (&["explain", "request"], "--url"),
        (
            &["explain", "-f", "mesh.yaml", "request", "--from", "shop/page-1", "--url", "ratings"],
            "http://",
        ),
        (
            &["explain", "-f", "mesh.yaml", "request", "--from", "page-1", "--url", "http://a/"],
            "write NAMESPACE/page-1",
        ),
        (&["get", "weather"], "weather"),
        (&["up", "-f", "mesh.yaml", "--certificate-lifetime", "soon"], "24h"),
        (&["proxy", "--workload", "a/b", "--cores", "0"], "--cores"),
        (&["demo", "--duration", "0s"], "longer than zero"),
        (&["up", "-f", "mesh.yaml", "--listen", "localhost:80"], "use an address and a port"),
        (&["token", "shop/page-1", "--control", "192.0.2.1"], "such as 192.0.2.1:15010"),
        (&["proxy", "--workload", "a/b", "--inbound", "localhost"], "use an IP address"),
        (&["explain", "change", "x"], "\"x\" is not the ID of a change"),
        (&["explain", "change", "99999999999999999999"], "is not the ID of a change"),
    ];
    for (arguments, expected) in cases {
        let result = test_directory.run_leno(arguments);
        assert_eq!(result.exit_code, Some(2), "{arguments:?}: {result:?}");
        assert!(result.stderr.contains(expected), "{arguments:?}: {result:?}");
    }
}

#[test]
fn failures_have_one_line_with_a_hint() {
    let test_directory =
        TestDirectory::with_files(&[("mesh.yaml", MESH), ("bad.yaml", "kind: Nothing\n")]);
    let cases: [(&[&str], &str); 6] = [
        (&["get", "workloads"], "start one with `leno up`"),
        (
            &["explain", "request", "--from", "shop/page-1", "--url", "http://ratings.shop/"],
            "start one with `leno up`",
        ),
        (&["get", "workloads", "--data", "another"], "--data"),
        (&["token", "shop/page-1"], "start one with `leno up`"),
        (&["proxy", "--workload", "shop/page-1"], "leno token shop/page-1"),
        (&["proxy", "--workload", "shop/page-1", "--token-file", "absent"], "absent"),
    ];
    for (arguments, expected) in cases {
        let result = test_directory.run_leno(arguments);
        assert_eq!(result.exit_code, Some(1), "{arguments:?}: {result:?}");
        assert!(result.stderr.starts_with("error: "), "{arguments:?}: {result:?}");
        assert_eq!(result.stderr.lines().count(), 1, "{arguments:?}: {result:?}");
        assert!(result.stderr.contains(expected), "{arguments:?}: {result:?}");
    }
}

#[test]
fn a_mesh_without_a_valid_object_does_not_start() {
    let test_directory = TestDirectory::with_files(&[("bad.yaml", "kind: Nothing\n")]);
    for command in ["up", "control"] {
        for (path, expected, problem) in [
            ("bad.yaml", "rejected: bad.yaml:1", "no valid document"),
            ("absent", "No such file", "cannot read absent"),
        ] {
            let result = test_directory.run_leno(&[command, "-f", path, "--data", "state"]);
            assert_eq!(result.exit_code, Some(1), "{command} {path}: {result:?}");
            assert!(result.stderr.contains(expected), "{command} {path}: {result:?}");
            let last = result.stderr.lines().last().unwrap_or_default();
            assert!(last.starts_with(&format!("error: {problem}")), "{result:?}");
        }
    }
}

#[test]
fn a_mesh_does_not_start_while_one_of_its_paths_is_missing() {
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 1}]}\n";
    let test_directory = TestDirectory::with_files(&[("good.yaml", service)]);
    for command in ["up", "control"] {
        let result = test_directory.run_leno(&[
            command,
            "-f",
            "good.yaml",
            "-f",
            "absent",
            "--data",
            "state",
        ]);
        assert_eq!(result.exit_code, Some(1), "{command}: {result:?}");
        assert!(result.stderr.starts_with("error: cannot read absent"), "{command}: {result:?}");
    }
}

/// The command accepts the path if the hint is followed literally.
#[test]
fn hints_about_paths_can_be_followed_literally() {
    let test_directory = TestDirectory::with_files(&[("mesh.yaml", MESH)]);
    for (files, hint) in [
        (&["-f", "absent"][..], "or set another path with -f"),
        (&["-f", "mesh.yaml", "-f", "absent"][..], "or start without this -f"),
    ] {
        let result = test_directory.run_leno(&[&["up", "--data", "state"][..], files].concat());
        assert!(result.exit_code == Some(1) && result.stderr.contains(hint), "{result:?}");
    }
    let result = test_directory.run_leno(&["status", "--data", "else where"]);
    let directory = test_directory.path().join("else where");
    let hint = format!("leno up -f DIR --data '{}'", directory.display());
    assert!(result.exit_code == Some(1) && result.stdout.contains(&hint), "{result:?}");
}

#[test]
fn a_mesh_does_not_start_while_its_configuration_may_be_rejected() {
    let workload = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {}\n";
    let config = "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
                  spec: {defaultPolicy: Deny}\n";
    let test_directory =
        TestDirectory::with_files(&[("mesh/a.yaml", workload), ("mesh/config.yaml", config)]);
    for command in ["up", "control"] {
        let result = test_directory.run_leno(&[command, "-f", "mesh", "--data", "state"]);
        assert_eq!(result.exit_code, Some(1), "{command}: {result:?}");
        assert!(result.stderr.contains("mesh/config.yaml:4:23: MeshConfig mesh: "), "{result:?}");
        let last = result.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: a rejected document may be the MeshConfig"), "{result:?}");
    }
}

#[test]
fn the_default_data_directory_is_private_and_in_the_home_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let test_directory = TestDirectory::with_files(&[("bad.yaml", "kind: Nothing\n")]);
    let result = test_directory.run_leno(&["up", "-f", "bad.yaml"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    let state: PathBuf = test_directory.path().join(".local/state/leno/default");
    let mode = std::fs::metadata(&state).expect("the data directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn new_data_directories_are_private_and_shared_ones_are_rejected() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    let test_directory = TestDirectory::with_files(&[("bad.yaml", "kind: Nothing\n")]);
    for umask in ["000", "002", "177"] {
        let state = format!("under-{umask}/state");
        let line = format!("umask {umask}; exec \"$0\" control -f bad.yaml --data {state}");
        let result = test_directory.run_shell(&line);
        assert!(result.stderr.contains("no valid document"), "{umask}: {result:?}");
        for path in [state.as_str(), &format!("under-{umask}")] {
            let mode = std::fs::metadata(test_directory.path().join(path))
                .expect(path)
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o700, "{umask}: {path}");
        }
    }
    let shared = test_directory.path().join("shared");
    std::fs::create_dir(&shared).expect("a directory");
    std::fs::set_permissions(&shared, Permissions::from_mode(0o775)).expect("a mode");
    let result = test_directory.run_leno(&["control", "-f", "bad.yaml", "--data", "shared"]);
    assert_eq!(result.exit_code, Some(1), "{result:?}");
    let hint = format!("`chmod 700 {}`", shared.display());
    assert!(result.stderr.contains(&hint) && result.stderr.lines().count() == 1, "{result:?}");
}

#[test]
fn a_command_under_exec_does_not_outlive_its_parent() {
    let test_directory = TestDirectory::with_files(&[]);
    // Process 1 is not the parent of this process.
    let orphan = test_directory.run_leno(&["exec", "--parent", "1", "--", "/bin/echo", "alive"]);
    assert_eq!(orphan.exit_code, Some(1), "{orphan:?}");
    assert!(orphan.stderr.contains("has exited") && orphan.stdout.is_empty(), "{orphan:?}");
    let parent = std::process::id().to_string();
    let child = test_directory.run_leno(&["exec", "--parent", &parent, "--", "/bin/echo", "alive"]);
    assert_eq!((child.exit_code, child.stdout.as_str()), (Some(0), "alive\n"), "{child:?}");
    let absent = test_directory.run_leno(&["exec", "--parent", &parent, "--", "./no-such-program"]);
    assert_eq!(absent.exit_code, Some(1), "{absent:?}");
    assert!(absent.stderr.contains("spec.run"), "{absent:?}");
}
