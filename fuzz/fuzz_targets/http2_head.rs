//! Fuzzes the conversion of heads between HTTP/2 and HTTP/1.1. The test that replays the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/proxy/tests/corpus/http2_head.rs"]
mod http2_head;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| http2_head::check(bytes));
