//! Replays the corpus of the fuzz target for AdmissionReviews, on stable Rust.

mod admission_review;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn responses_to_all_reviews_of_the_corpus_are_valid() {
    replay::replay("admission_review", admission_review::check_review);
}

#[test]
fn the_corpus_has_a_pod_that_gets_a_sidecar() {
    let review = include_bytes!("../../../../fuzz/corpus/admission_review/plain");
    assert!(admission_review::is_patched(review));
}
