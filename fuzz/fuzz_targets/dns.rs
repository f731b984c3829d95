//! Fuzzes the DNS server of a sidecar. The test that replays the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/proxy/tests/corpus/dns.rs"]
mod dns;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dns::check(bytes));
