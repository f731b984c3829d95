//! Fuzzes the manifest readers. The test that replays the corpus checks the same properties.

#![no_main]

#[path = "../../crates/registry/tests/corpus/manifest.rs"]
mod manifest;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| manifest::check_manifest(bytes));
