//! Fuzzes the TLS ClientHello parser of inbound listeners. The test that replays the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/identity/tests/corpus/client_hello.rs"]
mod client_hello;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| client_hello::check_input(bytes));
