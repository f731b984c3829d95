//! Compares the figures in `docs/limits.md` with the constants that the page names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use std::path::Path;

#[test]
fn every_figure_of_the_page_is_that_of_its_constant() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/limits.md")).unwrap();
    let mut compared = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains("::")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let constant = cells.last().unwrap().trim_matches('`');
        let value = value_of(&root, constant);
        assert_eq!(parse_figure(cells[1]), value, "{row}");
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn figures_and_expressions_are_read() {
    for (text, value) in [("64 KiB", 65_536), ("256", 256), ("500 ms", 500), ("10 min", 600_000)] {
        assert_eq!(parse_figure(text), value, "{text}");
    }
    for (text, value) in [
        ("64 * 1024", 65_536),
        ("16 << 10", 16_384),
        ("10_000", 10_000),
        ("Duration::from_secs(3)", 3_000),
    ] {
        assert_eq!(evaluate_expression(text), value, "{text}");
    }
}

/// Returns the value of `crate::module::NAME`, or of a field of the default limits, in bytes, milliseconds or
/// units.
fn value_of(root: &Path, constant: &str) -> u128 {
    let mut segments: Vec<&str> = constant.split("::").collect();
    let name = segments.pop().expect(constant);
    let (crate_name, module) = segments.split_first().expect(constant);
    let file = root.join(format!("crates/{crate_name}/src/{}.rs", module.join("/")));
    let text = std::fs::read_to_string(&file).expect(constant);
    if name.chars().all(|character| character.is_ascii_lowercase() || character == '_') {
        let default = text.split_once("impl Default for Limits").expect("the defaults").1;
        let (_, rest) = default.split_once(&format!("{name}: ")).expect(constant);
        return evaluate_expression(rest.split(",\n").next().expect(constant));
    }
    let (_, rest) = text.split_once(&format!("const {name}: ")).expect(constant);
    let (_, rest) = rest.split_once("= ").expect(constant);
    evaluate_expression(rest.split(';').next().expect(constant))
}

/// Returns the value of a product, a shift, a duration in milliseconds, or a number.
fn evaluate_expression(text: &str) -> u128 {
    let number = |text: &str| text.trim().replace('_', "").parse::<u128>().expect(text);
    if let Some((factor, rest)) = text.split_once(" * ") {
        return number(factor) * evaluate_expression(rest);
    }
    if let Some((value, bits)) = text.split_once(" << ") {
        return number(value) << number(bits);
    }
    if let Some(inner) =
        text.strip_prefix("Duration::from_").and_then(|text| text.strip_suffix(')'))
    {
        let (unit, value) = inner.split_once('(').expect(text);
        let milliseconds = [("secs", 1_000_u128), ("millis", 1)];
        let (_, factor) = milliseconds.iter().find(|(known, _)| *known == unit).expect(text);
        return number(value) * factor;
    }
    number(text)
}

fn parse_figure(text: &str) -> u128 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit).expect(text);
    number.parse::<u128>().expect(text) * factor
}

/// Units of figures, as factors of a count, of milliseconds or of bytes.
const UNITS: &[(&str, u128)] = &[
    ("", 1),
    ("ms", 1),
    ("s", 1_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
];
