//! Replays the corpus of the fuzz target for first bytes of TLS, on stable Rust.

mod client_hello;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn client_hellos_hold() {
    replay::replay("client_hello", client_hello::check);
}

#[test]
fn a_hello_that_a_sidecar_would_send_is_answered() {
    assert!(client_hello::is_answered(include_bytes!("../../../../fuzz/corpus/client_hello/link")));
    assert!(!client_hello::is_answered(b"GET / HTTP/1.1\r\n\r\n"));
}
