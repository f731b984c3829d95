//! An interactive program: it reads a line with a command and responds with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A running program that responds line by line; it is killed when dropped.
pub struct LineClient {
    child: Child,
    stdin: ChildStdin,
    output_lines: Receiver<String>,
}

impl LineClient {
    /// Starts the program.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (lines_sender, output_lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The receiver is gone when the test is over.
            lines.map(|line| lines_sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Self { child, stdin, output_lines }
    }

    /// Sends a line and waits for the response.
    ///
    /// # Panics
    /// If there is no response.
    pub fn send_line(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").expect("the program listens");
        let response = self.output_lines.recv_timeout(MAX_WAIT);
        response.unwrap_or_else(|error| panic!("no answer to `{line}`: {error}"))
    }
}

impl Drop for LineClient {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The timeout of a command, which takes milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(15);
