//! Replays the fuzz corpora through the functions that the fuzz targets call, on stable Rust.

mod http1_body;
mod http1_request;
mod http1_response;
mod link;
mod replay;
mod sniff;

use replay::replay;

#[test]
fn request_heads_satisfy_their_invariants() {
    replay("http1_request", http1_request::check);
}

#[test]
fn response_heads_satisfy_their_invariants() {
    replay("http1_response", http1_response::check);
}

#[test]
fn bodies_satisfy_their_invariants() {
    replay("http1_body", http1_body::check);
}

#[test]
fn first_bytes_satisfy_their_invariants() {
    replay("sniff", sniff::check);
}

#[test]
fn links_satisfy_their_invariants() {
    replay("link", link::check);
}
