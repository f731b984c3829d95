//! The table in `docs/http-strictness.md` is generated from the vectors.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::vector::{Outcome, Rule, Vector, rules};

#[test]
fn the_table_of_the_document_is_made_of_the_vectors() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-strictness.md");
    let found = fs::read_to_string(&document).expect("the document is part of the repository");
    let (before, rest) = found.split_once(BEGIN).expect("the table has a beginning");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let rendered = format!("{before}{BEGIN}{}{END}{after}", render_table(&rules()));
    if found == rendered {
        return;
    }
    let draft = Path::new(env!("CARGO_TARGET_TMPDIR")).join("http-strictness.md");
    fs::write(&draft, &rendered).expect("the folder for temporary files can be written");
    panic!(
        "{} is not up to date; put the new text in place with\n  cp {} {}",
        document.display(),
        draft.display(),
        document.display()
    );
}

fn render_table(rules: &[Rule]) -> String {
    let mut text = String::from(HEADING);
    for rule in rules {
        let of: BTreeSet<&str> = rule.vectors.iter().map(|vector| vector.of.as_str()).collect();
        let of: Vec<&str> = of.into_iter().collect();
        let refused: BTreeSet<String> =
            rule.vectors.iter().filter_map(describe_rejection).collect();
        let refused: Vec<String> = refused.into_iter().collect();
        let count = |of_refused| {
            let counted = rule
                .vectors
                .iter()
                .filter(|vector| describe_rejection(vector).is_some() == of_refused);
            counted.count()
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} + {} |",
            rule.text.replace('|', "\\|"),
            rule.rfc,
            of.join(", "),
            if refused.is_empty() { "accepted".to_owned() } else { refused.join(", ") },
            count(false),
            count(true),
        )
        .expect("writing to a String never fails");
    }
    text
}

/// Such as `LineEnd` 400.
fn describe_rejection(vector: &Vector) -> Option<String> {
    match &vector.outcome {
        Outcome::Refused { label, status: Some(status) } => Some(format!("`{label}` {status}")),
        Outcome::Refused { label, status: None } => Some(format!("`{label}` –")),
        Outcome::Accepted(_) => None,
    }
}

const BEGIN: &str = "<!-- The table is generated; see crates/wire/tests/strictness. -->\n";
const END: &str = "<!-- End of the table. -->\n";
const HEADING: &str = "\
| rule | RFC | of | what breaks it | vectors |
|---|---|---|---|---|
";
