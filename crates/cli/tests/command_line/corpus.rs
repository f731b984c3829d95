//! Replays the corpus of the fuzz target for `leno migrate`, on stable Rust.

#[path = "../corpus/migrate.rs"]
mod migrate;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn rewritten_manifests_are_valid() {
    replay::replay("migrate", migrate::check_migration);
}
