//! Replays the corpora of the fuzz targets for messages of the discovery protocol and for joins, on stable
//! Rust.

mod discovery;
mod join;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn discovery_messages_satisfy_the_properties() {
    replay::replay("discovery", discovery::check_input);
}

#[test]
fn joins_satisfy_the_properties() {
    replay::replay("join", join::check_input);
}

#[test]
fn an_accepted_config_is_in_the_corpus() {
    let config = include_bytes!("../../../../fuzz/corpus/discovery/world_bare");
    assert!(discovery::is_accepted(config));
}

#[test]
fn a_request_that_can_be_signed_is_in_the_corpus() {
    assert!(join::is_request(include_bytes!("../../../../fuzz/corpus/join/csr")));
    assert!(!join::is_request(include_bytes!("../../../../fuzz/corpus/join/csr_rsa")));
}
