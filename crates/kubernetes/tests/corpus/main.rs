//! Replays the corpus of the fuzz target for AdmissionReviews, on stable Rust.

mod admission_review;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn admission_reviews_hold() {
    replay::replay("admission_review", admission_review::check);
}
