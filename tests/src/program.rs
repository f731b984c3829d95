//! Runs a program under test, collects its output, and sends signals to its process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// A running program and every line it has printed.
pub struct TestProgram {
    name: String,
    child: Child,
    output: Arc<ProgramOutput>,
}

/// The lines of standard output and standard error, in order of arrival.
#[derive(Default)]
struct ProgramOutput {
    lines: Mutex<Vec<String>>,
    changed: Condvar,
    /// The number of output streams that have ended.
    closed_streams: AtomicUsize,
}

/// Returns this project's program, built next to the tests.
///
/// # Panics
/// If the program was not built; `./test scenarios` builds it first.
#[must_use]
pub fn leno_command() -> Command {
    let test_binary = std::env::current_exe().expect("a test has a path");
    let profile_directory =
        test_binary.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    let binary: PathBuf = profile_directory.join("leno");
    assert!(binary.exists(), "{} is missing: run ./test scenarios", binary.display());
    Command::new(binary)
}

/// The build of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The build under test.
    Current,
    /// The previous release: `./test skew` builds it, and sets `LENO_PREVIOUS`.
    Previous,
}

impl Release {
    /// Returns the program of this release.
    ///
    /// # Panics
    /// If the program was not built.
    #[must_use]
    pub fn leno_command(self) -> Command {
        match self {
            Self::Current => leno_command(),
            Self::Previous => {
                let path = std::env::var_os("LENO_PREVIOUS");
                Command::new(path.expect("LENO_PREVIOUS names the program: run ./test skew"))
            }
        }
    }
}

impl TestProgram {
    /// Starts a program and collects its output line by line.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let output = Arc::new(ProgramOutput::default());
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        collect_output(stdout, &output);
        collect_output(stderr, &output);
        Self { name: name.to_owned(), child, output }
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program prints a line that contains `text`, and returns the line.
    ///
    /// # Panics
    /// After the timeout `max_wait`; the message contains the program's output.
    pub fn wait_for_line(&self, text: &str, max_wait: Duration) -> String {
        let deadline = Instant::now() + max_wait;
        let mut lines = self.output.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                let printed_output = lines.join("\n");
                // Other threads still read the output during the unwinding.
                drop(lines);
                panic!(
                    "{} did not print `{text}` within {max_wait:?}:\n{printed_output}",
                    self.name
                );
            }
            lines = self.output.changed.wait_timeout(lines, remaining).unwrap().0;
        }
    }

    /// Returns the output of the program so far.
    #[must_use]
    pub fn printed_output(&self) -> String {
        self.output.lines.lock().unwrap().join("\n")
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// If the program has already exited.
    pub fn send_signal(&self, signal: Signal) {
        signal_pid(self.child.id(), signal);
    }

    /// Waits at most `max_wait` until the program exits.
    ///
    /// # Panics
    /// On timeout.
    pub fn wait_for_exit(&mut self, max_wait: Duration) -> ExitStatus {
        let deadline = Instant::now() + max_wait;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                self.drain_output();
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} did not end:\n{}",
                self.name,
                self.printed_output()
            );
            // Waits for the next line, the exit of the program, or a short time.
            let lines = self.output.lines.lock().unwrap();
            drop(self.output.changed.wait_timeout(lines, Duration::from_millis(20)).unwrap());
        }
    }

    /// Reads the remaining output, which may still be in the pipes after its exit. An orphaned child process
    /// may keep the pipes open, so the wait is bounded.
    fn drain_output(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut lines = self.output.lines.lock().unwrap();
        while self.output.closed_streams.load(Ordering::SeqCst) < OUTPUT_STREAM_COUNT {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            lines = self.output.changed.wait_timeout(lines, remaining).unwrap().0;
        }
    }

    /// Sends SIGTERM and waits for the exit of the program.
    pub fn stop(&mut self, max_wait: Duration) -> ExitStatus {
        self.send_signal(Signal::TERM);
        self.wait_for_exit(max_wait)
    }
}

/// Sends a signal to a process of the test. After [`Signal::STOP`], waits until all its threads have stopped: until then,
/// they may still respond.
///
/// # Panics
/// If there is no such process, or it does not stop.
pub fn signal_pid(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
    if signal == Signal::STOP {
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        eventually("all threads have stopped", Duration::from_secs(60), || {
            let mut threads = std::fs::read_dir(&tasks).expect("the process is there").flatten();
            threads.all(|thread| is_stopped(&thread.path())).then_some(())
        });
    }
}

/// True if the thread with this directory in `/proc` has stopped or exited. The state follows the name in parentheses
/// (proc_pid_stat(5)).
fn is_stopped(thread_directory: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(thread_directory.join("stat")) else { return true };
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    matches!(state, Some('T' | 'Z' | 'X'))
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} printed:\n{}", self.name, self.printed_output());
        }
        if let Ok(None) = self.child.try_wait() {
            self.send_signal(Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(20);
            while Instant::now() < deadline {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                // A second panic during the unwinding would abort the process.
                let lines =
                    self.output.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                drop(self.output.changed.wait_timeout(lines, Duration::from_millis(20)));
            }
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Reads the lines of a stream on a thread of its own, until the stream ends.
fn collect_output(stream: impl Read + Send + 'static, output: &Arc<ProgramOutput>) {
    let output = output.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            output.lines.lock().unwrap().push(line);
            output.changed.notify_all();
        }
        // Under the lock, so that no waiting thread misses the change between its check and its wait.
        let lines = output.lines.lock().unwrap();
        output.closed_streams.fetch_add(1, Ordering::SeqCst);
        drop(lines);
        output.changed.notify_all();
    });
}

/// The number of output streams: standard output and standard error.
const OUTPUT_STREAM_COUNT: usize = 2;
