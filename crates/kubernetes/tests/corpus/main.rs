//! Replays the corpus of the fuzz target for AdmissionReviews, on stable Rust.

mod admission_review;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn admission_reviews_hold() {
    replay::replay("admission_review", admission_review::check_review);
}

#[test]
fn a_pod_that_gets_a_sidecar_is_in_the_corpus() {
    let review = include_bytes!("../../../../fuzz/corpus/admission_review/plain");
    assert!(admission_review::is_patched(review));
}
