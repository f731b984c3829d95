//! Shows the live progress of a load run in one terminal line.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use leno_load::{LoadModel, LoadPlan, ProgressCounters};

use crate::figures::format_count;

/// Shows the progress of a run, if standard error is a terminal.
#[derive(Debug)]
pub(super) struct LiveProgress {
    /// True if standard error is a terminal.
    is_terminal: bool,
    /// The start of the line: the number of the current run and its rate. Empty for a single run.
    step_prefix: String,
    /// The duration of the warm-up and the measurement.
    total_duration: Duration,
    /// The counters of the last update.
    last_counters: ProgressCounters,
}

impl LiveProgress {
    /// Creates the line for one of several runs.
    pub(super) fn new(plan: &LoadPlan, index: usize, count: usize) -> Self {
        let step_prefix = match plan.load_model {
            LoadModel::Open { rate, .. } if count > 1 => {
                format!("{} of {count}, {rate}/s: ", index + 1)
            }
            LoadModel::Open { .. } | LoadModel::Closed { .. } => String::new(),
        };
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            is_terminal,
            step_prefix,
            total_duration: plan.warm_up + plan.duration,
            last_counters: ProgressCounters::default(),
        }
    }

    /// Updates the line, unless the last update is recent.
    pub(super) fn show_progress(&mut self, counters: &ProgressCounters) {
        if self.is_terminal && counters.elapsed >= self.last_counters.elapsed + REFRESH_INTERVAL {
            write_to_stderr(&format!("\r\x1b[K{}", self.format_progress(counters)));
            self.last_counters = *counters;
        }
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            write_to_stderr("\r\x1b[K");
        }
    }

    fn format_progress(&self, counters: &ProgressCounters) -> String {
        let phase = if counters.measuring { "measuring" } else { "warming up" };
        // Counters restart when the warm-up ends.
        let previous_requests = if counters.measuring == self.last_counters.measuring {
            self.last_counters.requests
        } else {
            0
        };
        let elapsed_seconds =
            counters.elapsed.saturating_sub(self.last_counters.elapsed).as_secs_f64();
        let rate = counters.requests.saturating_sub(previous_requests) as f64
            / elapsed_seconds.max(f64::MIN_POSITIVE);
        format!(
            "{}{phase}, {:.1} of {:.1} s: {}, {rate:.0}/s, {} failed",
            self.step_prefix,
            counters.elapsed.as_secs_f64(),
            self.total_duration.as_secs_f64(),
            format_count(counters.requests, "request"),
            counters.requests.saturating_sub(counters.successes),
        )
    }
}

fn write_to_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // A failed write to the terminal does not end the run.
    drop(stderr.write_all(text.as_bytes()));
    drop(stderr.flush());
}

/// The interval between updates of the line, short enough to look live and long enough to stay readable.
const REFRESH_INTERVAL: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_current_step() {
        let plan = LoadPlan {
            load_model: LoadModel::Open { rate: 2000, connections: 1 },
            warm_up: Duration::from_secs(2),
            ..LoadPlan::new(Vec::new())
        };
        let mut progress = LiveProgress::new(&plan, 1, 4);
        let counters = |seconds, measuring, requests| ProgressCounters {
            elapsed: Duration::from_secs(seconds),
            measuring,
            requests,
            successes: requests - 1,
            failures: 1,
        };
        progress.last_counters = counters(1, false, 2000);
        assert_eq!(
            progress.format_progress(&counters(2, false, 4000)),
            "2 of 4, 2000/s: warming up, 2.0 of 12.0 s: 4000 requests, 2000/s, 1 failed"
        );
        progress.last_counters = counters(2, true, 100);
        assert_eq!(
            progress.format_progress(&counters(4, true, 1100)),
            "2 of 4, 2000/s: measuring, 4.0 of 12.0 s: 1100 requests, 500/s, 1 failed"
        );
    }
}
