//! Tests of `--help`, `--version` and completions.

use crate::run::TestDirectory;

#[test]
fn the_help_of_every_command_has_an_example() {
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
        let result = test_directory.run_leno(&[command, "--help"]);
        assert_eq!(result.exit_code, Some(0), "{result:?}");
        let (_, examples) = result.stdout.split_once("Examples:").expect(command);
        assert!(examples.contains(&format!("leno {command}")), "{examples}");
    }
}

#[test]
fn the_overview_hides_internal_commands() {
    let test_directory = TestDirectory::with_files(&[]);
    let result = test_directory.run_leno(&["--help"]);
    assert_eq!(result.exit_code, Some(0));
    for command in ["demo", "up", "check", "explain", "get", "token", "proxy", "control"] {
        assert!(result.stdout.contains(&format!("  {command}")), "{command}: {}", result.stdout);
    }
    for hidden in ["demo-service", "exec"] {
        assert!(!result.stdout.contains(hidden), "{hidden}: {}", result.stdout);
    }
    assert!(test_directory.run_leno(&["--version"]).stdout.starts_with("leno "));
}

#[test]
fn completions_exist_for_every_shell() {
    let test_directory = TestDirectory::with_files(&[]);
    for (shell, expected) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef leno"),
        ("fish", "complete -c leno"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let result = test_directory.run_leno(&["completions", shell]);
        assert_eq!(result.exit_code, Some(0), "{shell}: {}", result.stderr);
        assert!(result.stdout.contains(expected), "{shell}");
    }
    let bash = test_directory.run_leno(&["completions", "bash"]).stdout;
    assert!(bash.contains("denied-outbound"), "reasons are completed");
}

#[test]
fn the_readme_lists_every_topic() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(path).expect("the README");
    let test_directory = TestDirectory::with_files(&[]);
    let topics = test_directory.run_leno(&["get", "--help"]).stdout;
    let row = readme.lines().find(|line| line.starts_with("| `leno get RESOURCE`")).expect("a row");
    let (_, topic_list) = topics.split_once("Possible values:").expect("the topics");
    let topic_list = topic_list.split("\n\n").next().unwrap_or_default();
    let topic_names = topic_list.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let topic_names: Vec<&str> = topic_names.filter_map(|line| line.split(':').next()).collect();
    assert!(topic_names.len() > 10, "{topics}");
    for topic in topic_names {
        assert!(row.contains(&format!("`{topic}`")), "{topic} is not in: {row}");
    }
}
