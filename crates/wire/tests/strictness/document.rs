//! Generates the table in `docs/http-strictness.md` from the vectors, and compares it with the document.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::vector::{ExpectedOutcome, StrictnessRule, Vector, rules};

#[test]
fn the_table_of_the_document_is_generated_from_the_vectors() {
    let document_file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-strictness.md");
    let document_text =
        fs::read_to_string(&document_file).expect("the document is part of the repository");
    let (before_table, after_begin) =
        document_text.split_once(BEGIN).expect("the table has a beginning");
    let (_, after_table) = after_begin.split_once(END).expect("the table has an end");
    let rendered = format!("{before_table}{BEGIN}{}{END}{after_table}", render_table(&rules()));
    if document_text == rendered {
        return;
    }
    let draft_file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("http-strictness.md");
    fs::write(&draft_file, &rendered).expect("the directory for temporary files can be written");
    panic!(
        "{} is not up to date; put the new text in place with\n  cp {} {}",
        document_file.display(),
        draft_file.display(),
        document_file.display()
    );
}

fn render_table(rules: &[StrictnessRule]) -> String {
    let mut table = String::from(HEADING);
    for rule in rules {
        let kinds: BTreeSet<&str> =
            rule.vectors.iter().map(|vector| vector.message_kind.as_str()).collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let rejections: BTreeSet<String> =
            rule.vectors.iter().filter_map(describe_rejection).collect();
        let rejections: Vec<String> = rejections.into_iter().collect();
        let count_vectors = |is_rejected| {
            let counted = rule
                .vectors
                .iter()
                .filter(|vector| describe_rejection(vector).is_some() == is_rejected);
            counted.count()
        };
        writeln!(
            table,
            "| {} | {} | {} | {} | {} + {} |",
            rule.text.replace('|', "\\|"),
            rule.rfc,
            kinds.join(", "),
            if rejections.is_empty() { "accepted".to_owned() } else { rejections.join(", ") },
            count_vectors(false),
            count_vectors(true),
        )
        .expect("writing to a String never fails");
    }
    table
}

/// Returns the rejection of a vector in the form of the document, such as `LineEnd` 400.
fn describe_rejection(vector: &Vector) -> Option<String> {
    match &vector.outcome {
        ExpectedOutcome::Rejected { label, status: Some(status) } => {
            Some(format!("`{label}` {status}"))
        }
        ExpectedOutcome::Rejected { label, status: None } => Some(format!("`{label}` –")),
        ExpectedOutcome::Accepted(_) => None,
    }
}

const BEGIN: &str = "<!-- The table is generated; see crates/wire/tests/strictness. -->\n";
const END: &str = "<!-- End of the table. -->\n";
const HEADING: &str = "\
| rule | RFC | of | what breaks it | vectors |
|---|---|---|---|---|
";
