//! Fuzzes both ends of a discovery stream with the properties that the replay test checks.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/discovery/tests/corpus/discovery.rs"]
mod discovery;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| discovery::check_input(bytes));
