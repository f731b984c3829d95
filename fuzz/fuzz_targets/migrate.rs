//! Fuzzes the migration of other meshes' manifests. The test that replays the corpus checks the same properties.

#![no_main]

#[path = "../../crates/cli/tests/corpus/migrate.rs"]
mod migrate;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| migrate::check_migration(bytes));
