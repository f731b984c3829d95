//! Fuzzes the HTTP/1.1 body decoder. The test that replays the corpus checks the same properties.

#![no_main]

#[path = "../../crates/wire/tests/corpus/http1_body.rs"]
mod http1_body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http1_body::check(bytes));
