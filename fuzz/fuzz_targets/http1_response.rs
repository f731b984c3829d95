//! Fuzzes the HTTP/1.1 response head parser. The test that replays the corpus checks the same properties.

#![no_main]

#[path = "../../crates/wire/tests/corpus/http1_response.rs"]
mod http1_response;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http1_response::check(bytes));
