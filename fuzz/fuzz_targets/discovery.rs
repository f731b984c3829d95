//! Fuzzes both ends of a discovery stream, over which a control plane configures a sidecar. The test that replays the
//! corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/discovery/tests/corpus/discovery.rs"]
mod discovery;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| discovery::check_input(bytes));
