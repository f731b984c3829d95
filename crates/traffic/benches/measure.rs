//! The bound of a benchmark.

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig};

/// Fails above 103 % of this count.
pub(crate) fn limited_to(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions * 3 / 100;
    let mut config = LibraryBenchmarkConfig::default();
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    config.tool(callgrind.hard_limits([(EventKind::Ir, limit)]));
    config
}
