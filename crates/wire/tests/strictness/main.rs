//! Runs `tests/vectors/http1/strictness.json` through the parsers, whole and split in two.

mod document;
mod vector;
mod verdict;

use std::collections::BTreeSet;

use leno_wire::http1::Malformed;

use vector::{ExpectedOutcome, StrictnessRule, Vector, rules};
use verdict::{LABELS, Verdict, parse_vector};

#[test]
fn every_vector_has_its_expected_outcome() {
    let mut differences = Vec::new();
    for vector in all_vectors(&rules()) {
        let actual = parse_vector(vector, &[vector.bytes.len()]);
        if let Some(difference) = find_difference(vector, &actual) {
            differences.push(difference);
        }
    }
    assert!(differences.is_empty(), "{} vectors:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    for vector in all_vectors(&rules()) {
        let whole_verdict = parse_vector(vector, &[vector.bytes.len()]);
        let step = if vector.bytes.len() > MAX_EVERY_CUT_BYTES { COARSE_STEP } else { 1 };
        for cut in (0..vector.bytes.len()).step_by(step) {
            let actual = parse_vector(vector, &[cut, vector.bytes.len()]);
            assert_eq!(actual, whole_verdict, "{} cut at {cut}", vector.name);
        }
    }
}

#[test]
fn parsing_byte_by_byte_changes_nothing() {
    for vector in all_vectors(&rules()) {
        if vector.bytes.len() <= MAX_EVERY_CUT_BYTES {
            let cuts: Vec<usize> = (1..=vector.bytes.len()).collect();
            let whole_verdict = parse_vector(vector, &[vector.bytes.len()]);
            assert_eq!(parse_vector(vector, &cuts), whole_verdict, "{}", vector.name);
        }
    }
}

#[test]
fn every_malformed_variant_has_a_vector() {
    let rules = rules();
    let rejections: BTreeSet<&str> = all_vectors(&rules)
        .filter_map(|vector| match &vector.outcome {
            ExpectedOutcome::Rejected { label, .. } => Some(label.as_str()),
            ExpectedOutcome::Accepted(_) => None,
        })
        .collect();
    let labels: BTreeSet<&str> = LABELS.iter().copied().collect();
    assert_eq!(rejections, labels);
}

#[test]
fn names_are_unique_and_every_rule_has_vectors() {
    let rules = rules();
    let mut names = BTreeSet::new();
    for rule in &rules {
        assert!(!rule.vectors.is_empty(), "{}", rule.text);
        assert!(rule.text.ends_with('.') && rule.rfc.starts_with("RFC "), "{}", rule.text);
        for vector in &rule.vectors {
            assert!(names.insert(&vector.name), "{} is defined twice", vector.name);
        }
    }
}

fn all_vectors(rules: &[StrictnessRule]) -> impl Iterator<Item = &Vector> {
    rules.iter().flat_map(|rule| &rule.vectors)
}

/// Describes the difference from the vector, if there is one.
fn find_difference(vector: &Vector, actual: &Verdict) -> Option<String> {
    let is_equal = match (&vector.outcome, actual) {
        (ExpectedOutcome::Rejected { label, status }, Verdict::Rejected(fault)) => {
            *label == format!("{fault:?}") && status_matches(vector, *fault, *status)
        }
        (ExpectedOutcome::Accepted(expected), Verdict::Accepted(actual)) => expected == actual,
        _ => false,
    };
    (!is_equal).then(|| format!("{}: {:?}, not {actual:?}", vector.name, vector.outcome))
}

/// True if the expected status is that of the fault. A client receives a status for its own fault; a fault of an
/// upstream is always 502. A client with a closed connection receives none.
fn status_matches(vector: &Vector, fault: Malformed, status: Option<u64>) -> bool {
    match status {
        None => vector.closes_connection && fault == Malformed::BodyTruncated,
        Some(status) if vector.message_kind == "response" => status == 502,
        Some(status) => status == u64::from(fault.status()),
    }
}

/// The maximum length of a vector that is split at every byte: each split reads the whole vector again.
const MAX_EVERY_CUT_BYTES: usize = 2048;
/// The step between the splits of longer vectors: a prime without relation to any size limit.
const COARSE_STEP: usize = 1009;
