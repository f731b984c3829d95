//! Properties of the manifest reader for any file content.

use leno_registry::{lint_objects, read_str};

/// Checks that reading does not panic, accepted objects have a line of the text, rejections have location, problem and
/// hint, and a second reading has the same result.
pub(crate) fn check_manifest(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = u32::try_from(text.chars().filter(|c| "\r\n".contains(*c)).count() + 1);
    let lines = lines.expect("a text of less than 4 GiB");
    let (objects, rejected) = read_str(NAME, &text);
    for (_, line) in &objects {
        assert!((1..=lines).contains(line), "line {line} of {lines}");
    }
    for rejection in &rejected {
        assert_eq!(rejection.location.file.as_deref(), Some(NAME));
        // A field missing at the end is reported after the last line.
        assert!(
            rejection.location.line.is_none_or(|line| (1..=lines + 1).contains(&line)),
            "{rejection}"
        );
        assert!(!rejection.problem.is_empty() && !rejection.hint.is_empty(), "{rejection}");
        assert!(rejection.to_string().starts_with(NAME));
    }
    assert_eq!(read_str(NAME, &text), (objects.clone(), rejected));
    let objects: Vec<_> = objects.into_iter().map(|(object, _)| object).collect();
    for warning in lint_objects(&objects) {
        assert!(!warning.to_string().is_empty());
    }
}

const NAME: &str = "any.yaml";
