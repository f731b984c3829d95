//! Fuzzes JSON web tokens and JWK sets. The test that replays the corpus checks the same properties.

#![no_main]
#![allow(dead_code, reason = "the replay test uses more of the module")]

#[path = "../../crates/identity/tests/corpus/jwt.rs"]
mod jwt;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| jwt::check_input(bytes));
