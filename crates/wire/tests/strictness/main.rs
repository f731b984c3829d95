//! Runs `tests/vectors/http1/strictness.json` through the parsers, whole and split in two.

mod document;
mod vector;
mod verdict;

use std::collections::BTreeSet;

use leno_wire::http1::Malformed;

use vector::{Outcome, Rule, Vector, rules};
use verdict::{LABELS, Verdict, parse_vector};

#[test]
fn every_vector_comes_out_as_it_says() {
    let mut wrong = Vec::new();
    for vector in all_vectors(&rules()) {
        let found = parse_vector(vector, &[vector.bytes.len()]);
        if let Some(difference) = find_difference(vector, &found) {
            wrong.push(difference);
        }
    }
    assert!(wrong.is_empty(), "{} vectors:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_cut_anywhere_changes_nothing() {
    for vector in all_vectors(&rules()) {
        let whole = parse_vector(vector, &[vector.bytes.len()]);
        let step = if vector.bytes.len() > EVERY_CUT_BYTES_MAX { COARSE_STEP } else { 1 };
        for cut in (0..vector.bytes.len()).step_by(step) {
            let found = parse_vector(vector, &[cut, vector.bytes.len()]);
            assert_eq!(found, whole, "{} cut at {cut}", vector.name);
        }
    }
}

#[test]
fn byte_by_byte_changes_nothing() {
    for vector in all_vectors(&rules()) {
        if vector.bytes.len() <= EVERY_CUT_BYTES_MAX {
            let cuts: Vec<usize> = (1..=vector.bytes.len()).collect();
            let whole = parse_vector(vector, &[vector.bytes.len()]);
            assert_eq!(parse_vector(vector, &cuts), whole, "{}", vector.name);
        }
    }
}

#[test]
fn every_way_to_be_malformed_has_a_vector() {
    let rules = rules();
    let refused: BTreeSet<&str> = all_vectors(&rules)
        .filter_map(|vector| match &vector.outcome {
            Outcome::Refused { label, .. } => Some(label.as_str()),
            Outcome::Accepted(_) => None,
        })
        .collect();
    let known: BTreeSet<&str> = LABELS.iter().copied().collect();
    assert_eq!(refused, known);
}

#[test]
fn names_are_unique_and_every_rule_has_vectors() {
    let rules = rules();
    let mut names = BTreeSet::new();
    for rule in &rules {
        assert!(!rule.vectors.is_empty(), "{}", rule.text);
        assert!(rule.text.ends_with('.') && rule.rfc.starts_with("RFC "), "{}", rule.text);
        for vector in &rule.vectors {
            assert!(names.insert(&vector.name), "{} is there twice", vector.name);
        }
    }
}

fn all_vectors(rules: &[Rule]) -> impl Iterator<Item = &Vector> {
    rules.iter().flat_map(|rule| &rule.vectors)
}

/// The difference from the vector, if any.
fn find_difference(vector: &Vector, found: &Verdict) -> Option<String> {
    let same = match (&vector.outcome, found) {
        (Outcome::Refused { label, status }, Verdict::Refused(fault)) => {
            *label == format!("{fault:?}") && status_fits(vector, *fault, *status)
        }
        (Outcome::Accepted(expected), Verdict::Accepted(found)) => expected == found,
        _ => false,
    };
    (!same).then(|| format!("{}: {:?}, not {found:?}", vector.name, vector.outcome))
}

/// A client receives a status for its own fault; a fault of an upstream is always 502. A client with a closed
/// connection receives none.
fn status_fits(vector: &Vector, fault: Malformed, status: Option<u64>) -> bool {
    match status {
        None => vector.ends && fault == Malformed::BodyTruncated,
        Some(status) if vector.of == "response" => status == 502,
        Some(status) => status == u64::from(fault.status()),
    }
}

/// Up to this length a vector is split at every byte; beyond it, each split would read all of it again.
const EVERY_CUT_BYTES_MAX: usize = 2048;
/// A prime without relation to any size limit.
const COARSE_STEP: usize = 1009;
