//! The instruction limit of a benchmark.

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig};

/// Returns the configuration of a benchmark that fails above 103 % of this instruction count.
pub(crate) fn limited_to(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions * 3 / 100;
    let mut config = LibraryBenchmarkConfig::default();
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    config.tool(callgrind.hard_limits([(EventKind::Ir, limit)]));
    config
}
