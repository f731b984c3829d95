//! Tests of `--help`, `--version` and completions.

use crate::run::TestDirectory;

#[test]
fn every_command_explains_itself_with_an_example() {
    let test_directory = TestDirectory::with_files(&[]);
    for command in [
        "demo",
        "up",
        "check",
        "explain",
        "migrate",
        "get",
        "token",
        "proxy",
        "gateway",
        "control",
        "completions",
    ] {
        let done = test_directory.run_leno(&[command, "--help"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let (_, examples) = done.out.split_once("Examples:").expect(command);
        assert!(examples.contains(&format!("leno {command}")), "{examples}");
    }
}

#[test]
fn the_overview_hides_internal_commands() {
    let test_directory = TestDirectory::with_files(&[]);
    let done = test_directory.run_leno(&["--help"]);
    assert_eq!(done.code, Some(0));
    for command in ["demo", "up", "check", "explain", "get", "token", "proxy", "control"] {
        assert!(done.out.contains(&format!("  {command}")), "{command}: {}", done.out);
    }
    for hidden in ["demo-service", "exec"] {
        assert!(!done.out.contains(hidden), "{hidden}: {}", done.out);
    }
    assert!(test_directory.run_leno(&["--version"]).out.starts_with("leno "));
}

#[test]
fn shells_get_completions() {
    let test_directory = TestDirectory::with_files(&[]);
    for (shell, mark) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef leno"),
        ("fish", "complete -c leno"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let done = test_directory.run_leno(&["completions", shell]);
        assert_eq!(done.code, Some(0), "{shell}: {}", done.err);
        assert!(done.out.contains(mark), "{shell}");
    }
    let bash = test_directory.run_leno(&["completions", "bash"]).out;
    assert!(bash.contains("denied-outbound"), "reasons are completed");
}

#[test]
fn the_table_of_commands_in_the_readme_is_that_of_the_program() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(path).expect("the README");
    let test_directory = TestDirectory::with_files(&[]);
    let topics = test_directory.run_leno(&["get", "--help"]).out;
    let row = readme.lines().find(|line| line.starts_with("| `leno get TOPIC`")).expect("a row");
    let (_, listed) = topics.split_once("Possible values:").expect("the topics");
    let listed = listed.split("\n\n").next().unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let names: Vec<&str> = names.filter_map(|line| line.split(':').next()).collect();
    assert!(names.len() > 10, "{topics}");
    for name in names {
        assert!(row.contains(&format!("`{name}`")), "{name} is not in: {row}");
    }
}
