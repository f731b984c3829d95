//! Replays the corpora of the fuzz targets for messages of the discovery protocol and for joins, on stable Rust.

mod discovery;
mod join;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn discovery_messages_hold() {
    replay::replay("discovery", discovery::check_input);
}

#[test]
fn joins_hold() {
    replay::replay("join", join::check_input);
}

#[test]
fn a_world_that_is_accepted_is_in_the_corpus() {
    let world = include_bytes!("../../../../fuzz/corpus/discovery/world_bare");
    assert!(discovery::is_accepted(world));
}

#[test]
fn a_request_that_can_be_signed_is_in_the_corpus() {
    assert!(join::is_request(include_bytes!("../../../../fuzz/corpus/join/csr")));
    assert!(!join::is_request(include_bytes!("../../../../fuzz/corpus/join/csr_rsa")));
}
