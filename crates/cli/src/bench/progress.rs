//! Progress on standard error: the current step and the remaining time.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::duration::format_duration;

/// Reports the progress of a benchmark.
#[derive(Debug)]
pub(super) struct BenchProgress {
    started: Instant,
    steps: usize,
    steps_done: usize,
    /// The estimated duration of a step, used until the first one is done.
    step_estimate: Duration,
    /// On a terminal one line is rewritten.
    is_terminal: bool,
}

impl BenchProgress {
    pub(super) fn new(steps: usize, step_estimate: Duration) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { started: Instant::now(), steps, steps_done: 0, step_estimate, is_terminal }
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self, step: &str) {
        let remaining = format_duration(self.remaining_time());
        let line = format!("[{}/{}] {step} · {remaining} left", self.steps_done + 1, self.steps);
        self.steps_done += 1;
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

    fn remaining_time(&self) -> Duration {
        let steps = u32::try_from(self.steps.saturating_sub(self.steps_done)).unwrap_or(u32::MAX);
        let time_per_step = match u32::try_from(self.steps_done) {
            Ok(0) | Err(_) => self.step_estimate,
            Ok(done) => self.started.elapsed() / done,
        };
        time_per_step.saturating_mul(steps)
    }
}

impl Drop for BenchProgress {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}
