//! Checks patterns, which are regular expressions, before sidecars compile them.

use regex::RegexBuilder;

/// Checks that a pattern compiles in both forms that sidecars use: as written, and anchored to the full value.
///
/// # Errors
/// A short description of the problem.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("longer than {MAX_PATTERN_BYTES} bytes"));
    }
    // The pattern is first compiled as written: `a)(b` would be valid only within the parentheses added for anchoring.
    for expression in [pattern.to_owned(), format!("^(?:{pattern})$")] {
        RegexBuilder::new(&expression)
            .size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|error| describe_error(&error))?;
    }
    Ok(())
}

/// Returns the last line of an error message, without the lines that mark the position.
fn describe_error(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(bytes) => {
            format!("larger than {bytes} bytes when compiled")
        }
        error => {
            let text = error.to_string();
            let last_line = text.lines().last().unwrap_or("invalid").trim();
            last_line.trim_start_matches("error: ").to_owned()
        }
    }
}

/// Maximum length of a pattern in bytes, to bound the work of compiling it.
const MAX_PATTERN_BYTES: usize = 4096;
/// Maximum size of a compiled pattern in bytes, the same as in sidecars.
const MAX_COMPILED_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_sidecars_cannot_compile_are_rejected() {
        for valid in ["", "/ratings/[0-9]+", ".*", "(?i)chrome", "a|b"] {
            assert_eq!(check_pattern(valid), Ok(()), "{valid}");
        }
        for (invalid, reason) in [
            ("(", "unclosed group"),
            ("a)(b", "unopened group"),
            ("(?=x)", "look-around"),
            ("(?x) a # b", "unclosed group"),
            ("(\\w{100}){100}", "larger than"),
            (&"a".repeat(5000), "longer than"),
        ] {
            let error = check_pattern(invalid).unwrap_err();
            assert!(error.contains(reason), "{invalid}: {error}");
        }
    }
}
