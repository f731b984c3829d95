//! Counts the instructions of processes with perf(1), if the processor supports it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::child::{BenchProcess, ProcessSpec};

/// Returns the reason why this machine counts no instructions; `None` if it does.
pub(super) fn unavailable_reason() -> Option<String> {
    let perf_result = Command::new("perf").args(PERF_STAT).args(["--", "true"]).output();
    let output = match perf_result {
        Ok(output) => output,
        Err(error) => return Some(format!("cannot run `perf`: {error}")),
    };
    // Without an output file, perf writes the counts to standard error.
    let perf_output = String::from_utf8_lossy(&output.stderr).into_owned();
    match parse_instruction_count(&perf_output) {
        Some(_) => None,
        None => Some(format!("perf reported: {}", perf_output.trim())),
    }
}

/// A count of instructions in progress.
#[derive(Debug)]
pub(super) struct InstructionCount {
    perf_process: BenchProcess,
    counter_file: PathBuf,
}

impl InstructionCount {
    /// Starts to count the instructions of some processes, and stops after `measured_duration`.
    ///
    /// # Errors
    /// If perf cannot be started.
    pub(super) fn start(
        pids: &[u32],
        measured_duration: Duration,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let pid_texts: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let counter_file = dir.join("instructions.csv");
        let mut command: Vec<std::ffi::OsString> = vec!["perf".into()];
        command.extend(PERF_STAT.map(Into::into));
        command.extend([
            "-p".into(),
            pid_texts.join(",").into(),
            "-o".into(),
            counter_file.clone().into(),
        ]);
        // perf counts until its command exits.
        let seconds = format!("{:.3}", measured_duration.as_secs_f64());
        command.extend(["--", "sleep", &seconds].map(Into::into));
        let perf_process = BenchProcess::start(&ProcessSpec::new(command), &dir.join("perf.log"))?;
        Ok(Self { perf_process, counter_file })
    }

    /// Returns the count; `None` if instructions were not counted.
    ///
    /// # Errors
    /// If the end of perf cannot be awaited.
    pub(super) async fn finish(mut self) -> anyhow::Result<Option<u64>> {
        self.perf_process.wait_with_output().await?;
        let text = std::fs::read_to_string(&self.counter_file).context("the counters of perf")?;
        Ok(parse_instruction_count(&text))
    }
}

/// Parses the CSV format of perf-stat(1): the first field is the count, the third field is the event.
fn parse_instruction_count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.trim().parse().ok()?;
        fields.nth(1)?.starts_with("instructions").then_some(count)
    })
}

const PERF_STAT: [&str; 4] = ["stat", "-x,", "-e", "instructions"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_count_is_parsed_if_present() {
        for (text, count) in [
            (
                "# started on x\n\n123456,,instructions,1000000,100.00,1.2,insn per cycle\n",
                Some(123_456),
            ),
            ("123456,,instructions:u,1000000,100.00,,\n", Some(123_456)),
            ("<not supported>,,instructions,0,100.00,,\n", None),
            ("5,,cycles,0,100.00,,\n", None),
            ("", None),
        ] {
            assert_eq!(parse_instruction_count(text), count, "{text}");
        }
    }
}
