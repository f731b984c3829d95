//! Replays the corpora of the fuzz targets for messages of the discovery protocol and for joins, on stable Rust.

mod discovery;
mod join;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn discovery_messages_hold() {
    replay::replay("discovery", discovery::check);
}

#[test]
fn joins_hold() {
    replay::replay("join", join::check);
}
