//! Replays the corpus of the fuzz target for manifests through the same function, on stable Rust.

mod manifest;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn manifests_have_the_checked_properties() {
    replay::replay("manifest", manifest::check_manifest);
}
