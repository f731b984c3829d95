//! Fuzzes the HTTP/1.1 response head parser with the properties that the replay test checks.

#![no_main]

#[path = "../../crates/wire/tests/corpus/http1_response.rs"]
mod http1_response;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http1_response::check(bytes));
