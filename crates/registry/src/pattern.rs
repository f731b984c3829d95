//! Validation of regular expressions that sidecars compile.

use regex::RegexBuilder;

/// Compiles an expression in both forms in use: alone, and anchored to the full value.
///
/// # Errors
/// A short description of the problem.
pub(crate) fn check_pattern(text: &str) -> Result<(), String> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(format!("longer than {PATTERN_BYTES_MAX} bytes"));
    }
    // Alone first: `a)(b` is valid only inside the parentheses of the anchored form.
    for form in [text.to_owned(), format!("^(?:{text})$")] {
        RegexBuilder::new(&form)
            .size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| short_description(&error))?;
    }
    Ok(())
}

/// Returns the last line of the error, without the marker drawing.
fn short_description(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(bytes) => {
            format!("larger than {bytes} bytes when compiled")
        }
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or("invalid").trim();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

/// Length limit of an expression; a longer one is a mistake or an attack.
const PATTERN_BYTES_MAX: usize = 4096;
/// Size limit of a compiled expression; the same as in sidecars.
const COMPILED_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_a_sidecar_could_not_compile() {
        for good in ["", "/ratings/[0-9]+", ".*", "(?i)chrome", "a|b"] {
            assert_eq!(check_pattern(good), Ok(()), "{good}");
        }
        for (bad, reason) in [
            ("(", "unclosed group"),
            ("a)(b", "unopened group"),
            ("(?=x)", "look-around"),
            ("(?x) a # b", "unclosed group"),
            ("(\\w{100}){100}", "larger than"),
            (&"a".repeat(5000), "longer than"),
        ] {
            let error = check_pattern(bad).unwrap_err();
            assert!(error.contains(reason), "{bad}: {error}");
        }
    }
}
