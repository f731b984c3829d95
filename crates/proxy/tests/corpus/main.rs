//! Corpus replay of the fuzz targets for HTTP/2 heads and DNS messages, on stable Rust.

mod dns;
mod http2_head;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn dns_messages_satisfy_the_invariants() {
    replay::replay("dns", dns::check);
}

#[test]
fn http2_heads_satisfy_the_invariants() {
    replay::replay("http2_head", http2_head::check);
}

#[test]
fn a_query_that_the_mesh_answers_is_in_the_corpus() {
    assert!(dns::is_answered(include_bytes!("../../../../fuzz/corpus/dns/a")));
    assert!(!dns::is_answered(include_bytes!("../../../../fuzz/corpus/dns/foreign")));
}

#[test]
fn a_forwarded_request_is_in_the_corpus() {
    let request = include_bytes!("../../../../fuzz/corpus/http2_head/request_0");
    assert!(http2_head::is_accepted(request));
    let two_authorities = include_bytes!("../../../../fuzz/corpus/http2_head/request_5");
    assert!(!http2_head::is_accepted(two_authorities));
}
