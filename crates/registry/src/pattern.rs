//! Regular expressions: whether a sidecar will be able to compile one.

use regex::RegexBuilder;

/// Checks an expression as it will be used: alone, and wrapped so that it must match in full.
///
/// # Errors
/// What is wrong with it, in a few words.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(format!("longer than {PATTERN_BYTES_MAX} bytes"));
    }
    // Alone first: `a)(b` is only an expression inside the parentheses of the wrapped form.
    for form in [text.to_owned(), format!("^(?:{text})$")] {
        RegexBuilder::new(&form)
            .size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| caption(&error))?;
    }
    Ok(())
}

/// The last line of the error, without the drawing above it.
fn caption(error: &regex::Error) -> String {
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

/// The longest expression; a longer one is a mistake or an attack.
const PATTERN_BYTES_MAX: usize = 4096;
/// The largest compiled expression; sidecars hold to the same.
const COMPILED_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_a_sidecar_could_not_compile() {
        for good in ["", "/ratings/[0-9]+", ".*", "(?i)chrome", "a|b"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("(", "unclosed group"),
            ("a)(b", "unopened group"),
            ("(?=x)", "look-around"),
            ("(?x) a # b", "unclosed group"),
            ("(\\w{100}){100}", "larger than"),
            (&"a".repeat(5000), "longer than"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
