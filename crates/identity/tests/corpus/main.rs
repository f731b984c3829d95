//! Replays the corpora of the fuzz targets for first bytes of TLS and for JSON web tokens, on stable Rust.

mod client_hello;
mod jwt;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn client_hellos_have_the_checked_properties() {
    replay::replay("client_hello", client_hello::check_input);
}

#[test]
fn the_client_hello_of_a_sidecar_is_accepted() {
    assert!(client_hello::starts_handshake(include_bytes!(
        "../../../../fuzz/corpus/client_hello/link"
    )));
    assert!(!client_hello::starts_handshake(b"GET / HTTP/1.1\r\n\r\n"));
}

#[test]
fn the_corpus_contains_a_client_hello_with_a_server_name() {
    let hello = include_bytes!("../../../../fuzz/corpus/client_hello/link");
    assert!(matches!(
        client_hello::read_server_name(hello, 1),
        leno_identity::ClientHello::ServerName(_)
    ));
}

#[test]
fn json_web_tokens_have_the_checked_properties() {
    replay::replay("jwt", jwt::check_input);
}

#[test]
fn the_corpus_contains_valid_tokens() {
    for input in [
        include_str!("../../../../fuzz/corpus/jwt/ec"),
        include_str!("../../../../fuzz/corpus/jwt/ed"),
        include_str!("../../../../fuzz/corpus/jwt/rsa"),
    ] {
        assert!(jwt::is_verified(input), "{input}");
    }
}
