//! Fuzzes the receiving half of the link with the properties that the replay test checks.

#![no_main]

#[path = "../../crates/wire/tests/corpus/link.rs"]
mod link;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| link::check(bytes));
