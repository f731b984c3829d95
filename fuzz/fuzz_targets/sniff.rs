//! Fuzzes the detection of a protocol from the first bytes of a connection. The test that replays the corpus checks the
//! same properties.

#![no_main]

#[path = "../../crates/wire/tests/corpus/sniff.rs"]
mod sniff;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sniff::check(bytes));
