//! Fuzzes both ends of the join protocol, in which a sidecar exchanges a token for a certificate. The test that replays
//! the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/discovery/tests/corpus/discovery.rs"]
mod discovery;
#[path = "../../crates/discovery/tests/corpus/join.rs"]
mod join;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| join::check_input(bytes));
