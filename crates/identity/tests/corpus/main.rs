//! Replays the corpora of the fuzz targets for first bytes of TLS and for JSON web tokens, on stable Rust.

mod client_hello;
mod jwt;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn client_hellos_hold() {
    replay::replay("client_hello", client_hello::check_input);
}

#[test]
fn a_hello_that_a_sidecar_would_send_is_answered() {
    assert!(client_hello::is_answered(include_bytes!("../../../../fuzz/corpus/client_hello/link")));
    assert!(!client_hello::is_answered(b"GET / HTTP/1.1\r\n\r\n"));
}

#[test]
fn a_hello_that_names_a_server_is_in_the_corpus() {
    let hello = include_bytes!("../../../../fuzz/corpus/client_hello/link");
    assert!(matches!(
        client_hello::read_server_name(hello, 1),
        leno_identity::ClientHello::Named(_)
    ));
}

#[test]
fn json_web_tokens_hold() {
    replay::replay("jwt", jwt::check_input);
}

#[test]
fn a_token_of_the_issuer_is_in_the_corpus() {
    for input in [
        include_str!("../../../../fuzz/corpus/jwt/ec"),
        include_str!("../../../../fuzz/corpus/jwt/ed"),
        include_str!("../../../../fuzz/corpus/jwt/rsa"),
    ] {
        assert!(jwt::is_verified(input), "{input}");
    }
}
