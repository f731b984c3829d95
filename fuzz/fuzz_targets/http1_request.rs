//! Fuzzes the HTTP/1.1 request head parser with the properties that the replay test checks.

#![no_main]

#[path = "../../crates/wire/tests/corpus/http1_request.rs"]
mod http1_request;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http1_request::check(bytes));
