//! Writes the output of many processes to the console line by line, each line with the name of its process.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_telemetry::LineQueue;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::log;

/// The console to which the output of all processes goes. Threads write the lines. A blocked reader loses
/// lines, which are counted, and delays neither the processes nor the shutdown.
#[derive(Debug, Clone)]
pub(super) struct Console {
    stdout_queue: LineQueue,
    stderr_queue: LineQueue,
    /// The length of the longest name so far, in bytes, to align the lines.
    name_width: Arc<AtomicUsize>,
    /// The destination of the standard output of processes.
    stdout_target: OutputStream,
}

/// An output stream of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Counts the lines of a process that are on the console; clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct ConsoleProgress(Arc<AtomicUsize>);

impl ConsoleProgress {
    fn count_line(&self) {
        // No other data depends on the count, so it needs no ordering.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn line_count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Console {
    /// Creates a console on the outputs of this process.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(stdout_target: OutputStream) -> io::Result<Self> {
        let (stdout_queue, stderr_queue) = (log::standard_output()?, log::error_output()?);
        Ok(Self {
            stdout_queue,
            stderr_queue,
            name_width: Arc::new(AtomicUsize::new(0)),
            stdout_target,
        })
    }

    /// Returns the destination of the standard output of processes.
    pub(super) fn standard_output(&self) -> OutputStream {
        self.stdout_target
    }

    /// Copies the output of a process from `reader` line by line, until it ends or cannot be read.
    pub(super) async fn forward_output(
        self,
        line_source: LineSource,
        output: OutputStream,
        progress: ConsoleProgress,
        mut reader: impl AsyncRead + Unpin,
    ) {
        // The width only aligns the lines, so it needs no ordering.
        let width = self.name_width.fetch_max(line_source.name.len(), Ordering::Relaxed);
        let render_prefix = |width: usize| line_source.line_prefix(width, output);
        let mut splitter = LineSplitter::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut prefix = render_prefix(width.max(line_source.name.len()));
        loop {
            // A read error ends the output, as the end of the input does.
            let byte_count = reader.read(&mut chunk).await.unwrap_or(0);
            let lines = match chunk.get(..byte_count) {
                Some(bytes) if !bytes.is_empty() => splitter.split_lines(bytes),
                _ => splitter.remaining_lines(),
            };
            if !lines.is_empty() {
                prefix = render_prefix(self.name_width.load(Ordering::Relaxed));
            }
            for line in lines {
                self.queue_lines(output, &[prefix.as_bytes(), &line, b"\n"].concat()).await;
                progress.count_line();
            }
            if byte_count == 0 {
                return;
            }
        }
    }

    /// Writes text of `leno up` itself.
    pub(super) async fn print_text(&self, output: OutputStream, text: String) {
        self.queue_lines(output, text.as_bytes()).await;
    }

    /// Adds lines to the queue of an output. While the queue is full, the process that wrote the lines waits.
    /// Once the terminal or pipe has accepted no line for `BLOCKED_TIMEOUT`, the lines are dropped and counted.
    async fn queue_lines(&self, output: OutputStream, text: &[u8]) {
        let queue = match output {
            OutputStream::Stdout => &self.stdout_queue,
            OutputStream::Stderr => &self.stderr_queue,
        };
        while queue.push(text).is_err() {
            if queue.is_blocked(BLOCKED_TIMEOUT) {
                return queue.count_dropped_line();
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// The name and the color of the process that writes lines.
#[derive(Debug, Clone)]
pub(super) struct LineSource {
    name: String,
    /// The number of the foreground color in an SGR escape sequence (ECMA-48).
    color: u8,
}

impl LineSource {
    /// Creates a line source. Sources with the same `color_key` have the same color, such as a workload's
    /// sidecar and its application.
    pub(super) fn new(name: String, color_key: &str) -> Self {
        // FNV-1a: the same key always has the same color.
        let hash = color_key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let color_index = usize::try_from(hash % COLORS.len() as u64).unwrap_or(0);
        Self { name, color: COLORS.get(color_index).copied().unwrap_or(DEFAULT_COLOR) }
    }

    fn line_prefix(&self, width: usize, output: OutputStream) -> String {
        let Self { name, color } = self;
        let is_colored = match output {
            OutputStream::Stdout => io::stdout().is_terminal(),
            OutputStream::Stderr => io::stderr().is_terminal(),
        };
        match is_colored {
            true => format!("\x1b[{color}m{name:width$} |\x1b[0m "),
            false => format!("{name:width$} | "),
        }
    }
}

/// Splits input into lines of bounded length.
#[derive(Debug, Default)]
struct LineSplitter {
    partial_line: Vec<u8>,
}

impl LineSplitter {
    /// Returns the lines that `bytes` complete. A line that has not ended is returned in pieces once it reaches
    /// the maximum length.
    fn split_lines(&mut self, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while let Some(line_end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, remaining) = bytes.split_at(line_end);
            self.partial_line.extend_from_slice(line);
            if self.partial_line.last() == Some(&b'\r') {
                self.partial_line.pop();
            }
            lines.push(std::mem::take(&mut self.partial_line));
            bytes = remaining.get(1..).unwrap_or_default();
        }
        self.partial_line.extend_from_slice(bytes);
        if self.partial_line.len() >= MAX_LINE_BYTES {
            lines.push(std::mem::take(&mut self.partial_line));
        }
        lines
    }

    /// Returns the last line if it has no newline at the end of the input; otherwise nothing.
    fn remaining_lines(&mut self) -> Vec<Vec<u8>> {
        match self.partial_line.is_empty() {
            true => Vec::new(),
            false => vec![std::mem::take(&mut self.partial_line)],
        }
    }
}

/// The maximum length of a line, in bytes; longer lines are split.
const MAX_LINE_BYTES: usize = 16 * 1024;
/// The size of the read buffer, in bytes.
const CHUNK_BYTES: usize = 8 * 1024;
/// The time without an accepted line after which an output is blocked.
const BLOCKED_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two attempts to add a line to a full queue.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Foreground colors that are readable on black and on white.
const COLORS: [u8; 6] = [31, 32, 33, 34, 35, 36];
/// The default foreground color of the terminal.
const DEFAULT_COLOR: u8 = 39;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_regardless_of_read_boundaries() {
        let mut splitter = LineSplitter::default();
        let text = |lines: Vec<Vec<u8>>| -> Vec<String> {
            let lines = lines.into_iter();
            lines.map(|line| String::from_utf8(line).unwrap()).collect()
        };
        assert_eq!(text(splitter.split_lines(b"on")), [""; 0]);
        assert_eq!(text(splitter.split_lines(b"e\r\n\ntw")), ["one", ""]);
        assert_eq!(text(splitter.remaining_lines()), ["tw"]);
        assert_eq!(text(splitter.remaining_lines()), [""; 0]);
    }

    #[test]
    fn an_endless_line_is_split_into_pieces_of_bounded_size() {
        let mut splitter = LineSplitter::default();
        let mut pieces = Vec::new();
        for _ in 0..10 {
            pieces.extend(splitter.split_lines(&[b'x'; CHUNK_BYTES]));
        }
        assert!(!pieces.is_empty());
        assert!(pieces.iter().all(|piece| piece.len() < MAX_LINE_BYTES + CHUNK_BYTES));
        let total: usize = pieces.iter().map(Vec::len).sum();
        assert_eq!(total + splitter.partial_line.len(), 10 * CHUNK_BYTES);
    }

    #[test]
    fn a_workload_and_its_sidecar_have_the_same_color() {
        let application = LineSource::new("a/b".to_owned(), "a/b");
        let sidecar = LineSource::new("a/b sidecar".to_owned(), "a/b");
        assert_eq!(application.color, sidecar.color);
        assert!(COLORS.contains(&application.color));
    }
}
