//! A program that is spoken to: it reads a line, does what it says, and answers with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A running program that answers line by line; it ends when dropped.
pub struct Dialogue {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl Dialogue {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let questions = child.stdin.take().expect("stdin is piped");
        let printed = child.stdout.take().expect("stdout is piped");
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(printed).lines().map_while(Result::ok);
            // Nobody listens any more: the test is over.
            lines.map(|line| answer.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Self { child, questions, answers }
    }

    /// Says a line and waits for the answer.
    ///
    /// # Panics
    /// When none comes.
    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.questions, "{line}").expect("the program listens");
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|error| panic!("no answer to `{line}`: {error}"))
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Everything that is asked takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(15);
