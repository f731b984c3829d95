//! Replays the committed corpus of one fuzz target. All crates with fuzz targets share this file.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Passes every file of the corpus to `check`, and reports the failing ones.
pub(crate) fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut replayed_count = 0;
    for entry in fs::read_dir(&corpus).expect("the corpus is part of the repository") {
        let path = entry.expect("a directory can be listed").path();
        let bytes = fs::read(&path).expect("a corpus file can be read");
        assert!(catch_unwind(|| check(&bytes)).is_ok(), "{} fails", path.display());
        replayed_count += 1;
    }
    assert!(replayed_count > 0, "{} is empty", corpus.display());
}
