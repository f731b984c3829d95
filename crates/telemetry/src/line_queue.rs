//! Queues log lines for a pipe, a terminal or a file. A dedicated thread writes the lines, so that callers do not
//! wait: if the output blocks, further lines are dropped and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A bounded queue of lines for an output that may block.
///
/// Callers never wait for the output. Lines that do not fit are dropped and counted. When the output accepts
/// lines again, a notice with the number of dropped lines is written.
#[derive(Debug, Clone)]
pub struct LineQueue(Arc<QueueShared>);

/// The error if the queue has no room for lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

/// The state that callers and the thread share.
#[derive(Debug)]
struct QueueShared {
    state: Mutex<QueueState>,
    /// Notified when lines are queued, and when a write has completed.
    changed: Condvar,
    /// The counter of dropped lines: [`LINES_DROPPED`], except in tests.
    dropped_counter: &'static AtomicU64,
}

/// The queued lines, and the state of the output.
#[derive(Debug)]
struct QueueState {
    /// The lines that the thread has not taken yet.
    queued_bytes: Vec<u8>,
    /// True while the thread writes lines that it has taken.
    is_writing: bool,
    /// True if the reader has closed the output: lines are then discarded.
    is_closed: bool,
    /// The number of lines that were dropped since the last notice.
    unreported_count: u64,
    /// The time of the last completed write.
    last_write: Instant,
}

impl LineQueue {
    /// Starts the thread that writes to `output`. It runs until the process ends.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn start(name: &str, output: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_counting(name, output, &LINES_DROPPED)
    }

    fn start_counting(
        name: &str,
        output: impl Write + Send + 'static,
        dropped_counter: &'static AtomicU64,
    ) -> io::Result<Self> {
        let state = QueueState {
            queued_bytes: Vec::new(),
            is_writing: false,
            is_closed: false,
            unreported_count: 0,
            last_write: Instant::now(),
        };
        let shared = Arc::new(QueueShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            dropped_counter,
        });
        let thread = std::thread::Builder::new().name(name.to_owned());
        let writer_shared = Arc::clone(&shared);
        thread.stack_size(STACK_BYTES).spawn(move || run_writer(&writer_shared, output))?;
        Ok(Self(shared))
    }

    /// Adds whole lines without waiting.
    ///
    /// # Errors
    /// [`QueueFull`] if the lines do not fit. The caller retries, or counts them with [`LineQueue::count_dropped_line`].
    pub fn push(&self, lines: &[u8]) -> Result<(), QueueFull> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Ok(());
        }
        let is_full = state.queued_bytes.len().saturating_add(lines.len()) > MAX_QUEUED_BYTES;
        // An empty queue accepts lines beyond the limit, which would otherwise never fit.
        if is_full && !state.queued_bytes.is_empty() {
            return Err(QueueFull);
        }
        state.queued_bytes.extend_from_slice(lines);
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Adds whole lines. If the lines do not fit, they are dropped and counted as one line.
    pub fn push_or_drop(&self, lines: &[u8]) {
        if self.push(lines).is_err() {
            self.count_dropped_line();
        }
    }

    /// Counts a dropped line.
    pub fn count_dropped_line(&self) {
        self.0.dropped_counter.fetch_add(1, Ordering::Relaxed);
        let mut state = self.0.lock();
        state.unreported_count = state.unreported_count.saturating_add(1);
    }

    /// True if a write is in progress and the output has accepted no bytes for `max_wait`.
    #[must_use]
    pub fn is_blocked(&self, max_wait: Duration) -> bool {
        let state = self.0.lock();
        state.is_writing && state.last_write.elapsed() >= max_wait
    }

    /// True if all lines are written, or can no longer be written because the output is closed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// True if the reader has closed the output.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    /// Waits until all lines are written, at most for `max_wait`.
    pub fn flush(&self, max_wait: Duration) {
        let state = self.0.lock();
        let is_pending = |state: &mut QueueState| !state.is_empty();
        drop(self.0.changed.wait_timeout_while(state, max_wait, is_pending));
    }
}

impl Write for LineQueue {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push_or_drop(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the number of lines that all queues of this process have dropped.
#[must_use]
pub fn lines_dropped() -> u64 {
    LINES_DROPPED.load(Ordering::Relaxed)
}

impl QueueShared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.is_closed || (self.queued_bytes.is_empty() && !self.is_writing)
    }
}

/// Writes queued lines until the process ends.
fn run_writer(shared: &QueueShared, mut output: impl Write) {
    let mut lines = Vec::new();
    // True if an error has truncated the last written line.
    let mut is_line_truncated = false;
    loop {
        let mut state = shared.lock();
        while state.queued_bytes.is_empty() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut lines, &mut state.queued_bytes);
        state.is_writing = true;
        state.last_write = Instant::now();
        drop(state);
        let (result, lost_count) = write_lines(shared, &mut output, &lines, &mut is_line_truncated);
        lines.clear();
        lines.shrink_to(MAX_RETAINED_BYTES);
        let mut state = shared.lock();
        state.is_writing = false;
        state.is_closed |= is_closed(&result);
        if !state.is_closed {
            shared.dropped_counter.fetch_add(lost_count, Ordering::Relaxed);
            state.unreported_count = state.unreported_count.saturating_add(lost_count);
        }
        // The notice precedes the lines that are queued next. It waits while writes still fail.
        let dropped = if lost_count > 0 { 0 } else { std::mem::take(&mut state.unreported_count) };
        if dropped > 0 && !state.is_closed {
            let notice = format!("({dropped} lines were dropped: the output was blocked)\n");
            state.queued_bytes.extend_from_slice(notice.as_bytes());
        }
        if state.is_closed {
            state.queued_bytes = Vec::new();
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// Writes as much as the output accepts, and returns the number of lines that were lost to an error. A
/// previously truncated line is terminated first.
fn write_lines(
    shared: &QueueShared,
    output: &mut impl Write,
    lines: &[u8],
    is_line_truncated: &mut bool,
) -> (io::Result<()>, u64) {
    let line_end: &[u8] = if *is_line_truncated { b"\n" } else { b"" };
    let (mut result, line_end_count) = write_bytes(shared, output, line_end);
    *is_line_truncated &= line_end_count == 0;
    let mut unwritten = lines;
    if result.is_ok() {
        let written_count;
        (result, written_count) = write_bytes(shared, output, lines);
        let (written_lines, unwritten_lines) = lines.split_at(written_count.min(lines.len()));
        unwritten = unwritten_lines;
        *is_line_truncated =
            result.is_err() && written_lines.last().is_some_and(|last| *last != b'\n');
    }
    let lost_count = unwritten.iter().filter(|byte| **byte == b'\n').count() as u64;
    (result.and_then(|()| output.flush()), lost_count)
}

/// Writes bytes, and returns the number of bytes written before an error.
fn write_bytes(
    shared: &QueueShared,
    output: &mut impl Write,
    bytes: &[u8],
) -> (io::Result<()>, usize) {
    let mut written_count = 0;
    while let Some(remaining_bytes) =
        bytes.get(written_count..).filter(|remaining_bytes| !remaining_bytes.is_empty())
    {
        match output.write(remaining_bytes) {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), written_count),
            Ok(count) => {
                written_count = written_count.saturating_add(count);
                shared.lock().last_write = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process has made the file description non-blocking, and the output accepts no bytes now.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                drop(shared.changed.wait_timeout(shared.lock(), BLOCKED_PAUSE));
            }
            Err(error) => return (Err(error), written_count),
        }
    }
    (Ok(()), written_count)
}

/// True if the output accepts no more lines because it is a pipe without a reader. A full disk may accept lines
/// later.
fn is_closed(result: &io::Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

/// The number of lines that all queues of this process have dropped.
static LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// The delay before another write to a non-blocking output that accepted no bytes.
const BLOCKED_PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of queued bytes: a few thousand lines. The thread may hold the same number of bytes.
const MAX_QUEUED_BYTES: usize = 256 << 10;
/// The buffer capacity in bytes that the thread retains while the queue is empty.
const MAX_RETAINED_BYTES: usize = 4 << 10;
/// The stack size of the thread in bytes: it only writes.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, pipe};

    use super::*;

    /// The time after which a test fails instead of waiting forever.
    const MAX_WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn lines_are_written_in_order() {
        let (reader, writer) = pipe().unwrap();
        let queue = LineQueue::start("lines", writer).unwrap();
        for number in 0..100 {
            queue.push(format!("{number}\n").as_bytes()).unwrap();
        }
        let mut lines = BufReader::new(reader).lines();
        for number in 0..100 {
            assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
        }
        queue.flush(MAX_WAIT);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_blocked_reader_does_not_block_callers_and_receives_the_number_of_dropped_lines() {
        let (reader, writer) = pipe().unwrap();
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let mut queue = LineQueue::start_counting("lines", writer, &DROPPED).unwrap();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        // More than the pipe, the thread and the queue hold together.
        for _ in 0..2048 {
            queue.write_all(&line).unwrap();
        }
        let dropped = DROPPED.load(Ordering::Relaxed);
        assert!(dropped >= 1024, "{dropped}");
        assert!(!queue.is_empty());
        queue.flush(Duration::ZERO);
        let mut lines = BufReader::new(reader).lines();
        let note = lines.find(|line| line.as_ref().unwrap().starts_with('(')).unwrap().unwrap();
        assert!(note.ends_with("lines were dropped: the output was blocked)"), "{note}");
    }

    /// An output that returns the given results of writes, last first, and then succeeds.
    struct ErraticOutput {
        results: Vec<io::Result<usize>>,
        output_bytes: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for ErraticOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.results.pop().unwrap_or(Ok(bytes.len()))?.min(bytes.len());
            self.output_bytes.lock().unwrap().extend_from_slice(&bytes[..room]);
            Ok(room)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_busy_output_is_retried_and_lines_lost_to_a_full_disk_are_counted() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let busy = || Err(io::ErrorKind::WouldBlock.into());
        let full = || Err(io::ErrorKind::StorageFull.into());
        let results = vec![full(), Ok(2), busy(), busy(), Ok(2)];
        let output_bytes = Arc::new(Mutex::new(Vec::new()));
        let output = ErraticOutput { results, output_bytes: output_bytes.clone() };
        let queue = LineQueue::start_counting("erratic", output, &DROPPED).unwrap();
        queue.push(b"one\ntwo\nthree\n").unwrap();
        queue.flush(MAX_WAIT);
        assert_eq!(*output_bytes.lock().unwrap(), b"one\n");
        assert_eq!(DROPPED.load(Ordering::Relaxed), 2);
        queue.push(b"four\n").unwrap();
        queue.flush(MAX_WAIT);
        let text = String::from_utf8(output_bytes.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("one\nfour\n(2 lines were dropped"), "{text}");
    }

    #[test]
    fn a_line_truncated_by_a_full_disk_is_terminated_before_the_next_one() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let full = || Err(io::ErrorKind::StorageFull.into());
        let results = vec![full(), full(), Ok(6)];
        let output_bytes = Arc::new(Mutex::new(Vec::new()));
        let output = ErraticOutput { results, output_bytes: output_bytes.clone() };
        let queue = LineQueue::start_counting("truncated", output, &DROPPED).unwrap();
        for lines in [&b"one\ntwo\nthree\n"[..], b"four\n", b"five\n"] {
            queue.push(lines).unwrap();
            queue.flush(MAX_WAIT);
        }
        let text = String::from_utf8(output_bytes.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("one\ntw\nfive\n(3 lines were dropped"), "{text}");
    }

    #[test]
    fn lines_for_a_closed_reader_are_discarded() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let queue = LineQueue::start("lines", writer).unwrap();
        queue.push(b"nowhere\n").unwrap();
        queue.flush(MAX_WAIT);
        assert!(queue.is_closed());
        queue.push(b"nowhere\n").unwrap();
        assert!(queue.is_empty());
    }
}
