//! Reads request bodies from files, and generates bodies of a given size.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

/// The size of a body in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BodySize(usize);

/// Parses `512` (bytes), `10KiB` or `1MiB`. `k`, `kb`, `m` and `mb` are also powers of 1024.
///
/// # Errors
/// A message for users, if the text is not a size of at most 64 MiB.
pub(super) fn parse_body_size(text: &str) -> Result<BodySize, String> {
    let number_end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit_bytes = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        // An unknown unit, rejected below.
        _ => 0,
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit_bytes));
    match bytes {
        Some(bytes) if unit_bytes > 0 && bytes <= MAX_BODY_BYTES => Ok(BodySize(bytes)),
        Some(_) if unit_bytes > 0 => Err("use at most 64MiB".to_owned()),
        _ => Err("use for example 512, 10KiB or 1MiB".to_owned()),
    }
}

/// Generates a body of letters, which is valid text in any encoding.
pub(super) fn generate_body(size: BodySize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(size.0).collect()
}

/// Reads the content of a file.
///
/// # Errors
/// If the file cannot be read, or is larger than 64 MiB.
pub(super) fn read_body_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let display = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {display}"))?;
    let mut body = Vec::new();
    // One byte more than allowed detects a larger file.
    file.take(MAX_BODY_BYTES as u64 + 1)
        .read_to_end(&mut body)
        .with_context(|| format!("cannot read {display}"))?;
    ensure!(body.len() <= MAX_BODY_BYTES, "{display} is too large: use at most 64 MiB");
    Ok(body)
}

/// The maximum size of a body, in bytes. Larger bodies would only measure memory.
const MAX_BODY_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("10KiB", 10_240),
            ("10k", 10_240),
            ("1 MiB", 1 << 20),
            ("64MiB", 64 << 20),
        ] {
            assert_eq!(parse_body_size(text), Ok(BodySize(bytes)), "{text}");
        }
        for text in ["", "k", "-1", "1.5k", "1GiB", "65MiB", "99999999999999999999"] {
            assert!(parse_body_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn generated_bodies_have_the_requested_size() {
        for bytes in [0, 1, 26, 10_240] {
            assert_eq!(generate_body(BodySize(bytes)).len(), bytes);
        }
    }
}
