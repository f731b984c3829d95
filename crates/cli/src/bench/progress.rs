//! Prints the current step and the remaining time on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::duration::format_duration;

/// Reports the progress of a benchmark.
#[derive(Debug)]
pub(super) struct BenchProgress {
    start_time: Instant,
    step_count: usize,
    started_step_count: usize,
    /// The estimated duration of a step, used until the first step is complete.
    step_estimate: Duration,
    /// True if standard error is a terminal: one line is rewritten instead of a line per step. The control sequence
    /// `\r\x1b[2K` erases this line.
    is_terminal: bool,
}

impl BenchProgress {
    pub(super) fn new(step_count: usize, step_estimate: Duration) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            start_time: Instant::now(),
            step_count,
            started_step_count: 0,
            step_estimate,
            is_terminal,
        }
    }

    /// Begins a step: shows its name, its number and the remaining time.
    pub(super) fn begin_step(&mut self, step: &str) {
        let remaining = format_duration(self.remaining_time());
        let line = format!(
            "[{}/{}] {step} · {remaining} left",
            self.started_step_count + 1,
            self.step_count
        );
        self.started_step_count += 1;
        match self.is_terminal {
            true => {
                eprint!("\r\x1b[2K{line}");
                // The terminal may be closed.
                drop(std::io::stderr().flush());
            }
            false => eprintln!("{line}"),
        }
    }

    /// Prints a line that stays on the screen.
    pub(super) fn print_line(&self, text: &str) {
        match self.is_terminal {
            true => eprintln!("\r\x1b[2K{text}"),
            false => eprintln!("{text}"),
        }
    }

    /// Estimates the time for the steps that have not started. All started steps are complete when this is called.
    fn remaining_time(&self) -> Duration {
        let remaining_steps =
            u32::try_from(self.step_count.saturating_sub(self.started_step_count))
                .unwrap_or(u32::MAX);
        let time_per_step = match u32::try_from(self.started_step_count) {
            Ok(0) | Err(_) => self.step_estimate,
            Ok(started_step_count) => self.start_time.elapsed() / started_step_count,
        };
        time_per_step.saturating_mul(remaining_steps)
    }
}

impl Drop for BenchProgress {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}
