//! Fuzzes the receiving half of a link, the multiplexed connection between two sidecars. The test that replays the corpus
//! checks the same properties.

#![no_main]

#[path = "../../crates/wire/tests/corpus/link.rs"]
mod link;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| link::check(bytes));
