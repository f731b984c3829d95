//! Replays the corpora of the fuzz targets for heads of HTTP/2 and for DNS messages, on stable Rust.

mod dns;
mod http2_head;
#[path = "../../../wire/tests/corpus/replay.rs"]
mod replay;

#[test]
fn dns_messages_hold() {
    replay::replay("dns", dns::check);
}

#[test]
fn http2_heads_hold() {
    replay::replay("http2_head", http2_head::check);
}
