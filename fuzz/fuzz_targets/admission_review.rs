//! Fuzzes the responses of the admission webhook. The test that replays the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/kubernetes/tests/corpus/admission_review.rs"]
mod admission_review;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| admission_review::check_review(bytes));
