//! Replays the corpora of the fuzz targets through the same functions, on stable Rust.

mod http1_body;
mod http1_request;
mod http1_response;
mod link;
mod sniff;

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

#[test]
fn request_heads_hold() {
    replay("http1_request", http1_request::check);
}

#[test]
fn response_heads_hold() {
    replay("http1_response", http1_response::check);
}

#[test]
fn bodies_hold() {
    replay("http1_body", http1_body::check);
}

#[test]
fn first_bytes_hold() {
    replay("sniff", sniff::check);
}

#[test]
fn links_hold() {
    replay("link", link::check);
}

fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut replayed = 0;
    for entry in fs::read_dir(&corpus).expect("the corpus is part of the repository") {
        let path = entry.expect("a directory can be listed").path();
        let bytes = fs::read(&path).expect("a corpus file can be read");
        assert!(catch_unwind(|| check(&bytes)).is_ok(), "{} fails", path.display());
        replayed += 1;
    }
    assert!(replayed > 0, "{} is empty", corpus.display());
}
