//! Fuzzes the HTTP/1.1 request head parser. The test that replays the corpus checks the same properties.

#![no_main]

#[path = "../../crates/wire/tests/corpus/http1_request.rs"]
mod http1_request;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http1_request::check(bytes));
