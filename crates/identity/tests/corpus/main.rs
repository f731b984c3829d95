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

#[test]
fn a_hello_that_names_a_server_is_in_the_corpus() {
    let hello = include_bytes!("../../../../fuzz/corpus/client_hello/link");
    assert!(matches!(client_hello::named(hello, 1), leno_identity::ClientHello::Named(_)));
}
