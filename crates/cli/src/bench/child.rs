//! Child processes of a benchmark: pinned to cores, logged to a file, and killed with this process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::cores::Cores;

/// The parameters of a process.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessSpec {
    /// The program and its arguments.
    pub(super) command: Vec<OsString>,
    /// Additional environment variables.
    pub(super) environment: Vec<(String, String)>,
    /// The permitted cores; all if absent.
    pub(super) cores: Option<Cores>,
}

impl ProcessSpec {
    /// Creates a command for all cores.
    pub(super) fn new<S: Into<OsString>>(command: impl IntoIterator<Item = S>) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { command, ..Self::default() }
    }

    /// Creates a command that runs this program with other arguments.
    ///
    /// # Errors
    /// If the path of this program is unknown.
    pub(super) fn leno_command<S: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find this program")?;
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        Ok(Self::new([binary.into_os_string()].into_iter().chain(arguments)))
    }

    /// Restricts the command to some cores.
    pub(super) fn with_cores(mut self, cores: Option<&Cores>) -> Self {
        self.cores = cores.cloned();
        self
    }
}

/// A running process, in a process group of its own that is killed on drop.
#[derive(Debug)]
pub(super) struct BenchProcess {
    process: tokio::process::Child,
    /// Its standard output, if this process reads it.
    stdout: Option<BufReader<ChildStdout>>,
    /// Its standard input, if this process writes to it.
    stdin: Option<ChildStdin>,
    group: Option<Pid>,
    log: PathBuf,
}

impl BenchProcess {
    /// Starts a command with its output in `log`.
    ///
    /// # Errors
    /// If the file or the process cannot be created.
    pub(super) fn start(spec: &ProcessSpec, log: &Path) -> anyhow::Result<Self> {
        let stdout =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let stderr = stdout.try_clone().context("cannot duplicate the handle of a log file")?;
        Self::spawn(spec, log, Stdio::null(), [stdout.into(), stderr.into()])
    }

    /// Starts a command with a piped standard output; standard error goes to `log`.
    ///
    /// # Errors
    /// As [`BenchProcess::start`].
    pub(super) fn start_piped(spec: &ProcessSpec, log: &Path) -> anyhow::Result<Self> {
        let stderr =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        Self::spawn(spec, log, Stdio::null(), [Stdio::piped(), stderr.into()])
    }

    /// Starts a command with a piped standard input as well.
    ///
    /// # Errors
    /// As [`BenchProcess::start`].
    pub(super) fn start_interactive(spec: &ProcessSpec, log: &Path) -> anyhow::Result<Self> {
        let stderr =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        Self::spawn(spec, log, Stdio::piped(), [Stdio::piped(), stderr.into()])
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// If the process no longer reads.
    pub(super) async fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("its standard input is closed")?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .await
            .context("it does not read its standard input")?;
        stdin.flush().await.context("it does not read its standard input")
    }

    fn spawn(
        spec: &ProcessSpec,
        log: &Path,
        stdin: Stdio,
        [stdout, stderr]: [Stdio; 2],
    ) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(binary);
        command.args(["bench", "pinned", "--parent", &std::process::id().to_string()]);
        if let Some(cores) = &spec.cores {
            command.args(["--cores", &cores.to_string()]);
        }
        let mut process = command
            .arg("--")
            .args(&spec.command)
            .envs(spec.environment.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process")?;
        let group = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let stdout = process.stdout.take().map(BufReader::new);
        let stdin = process.stdin.take();
        Ok(Self { process, stdout, stdin, group, log: log.to_owned() })
    }

    /// Returns its process ID; `None` once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Returns its exit status, if it has ended.
    pub(super) fn try_exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Returns its remaining output and its exit status.
    ///
    /// # Errors
    /// If it cannot be read or waited for.
    pub(super) async fn wait_with_output(&mut self) -> anyhow::Result<(ExitStatus, String)> {
        let mut text = String::new();
        if let Some(mut stdout) = self.stdout.take() {
            stdout.read_to_string(&mut text).await.context("cannot read its output")?;
        }
        Ok((self.process.wait().await.context("cannot wait for its exit")?, text))
    }

    /// Returns the next line of output; `None` at the end.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stdout.as_mut()?.read_line(&mut line).await;
        read.is_ok_and(|bytes| bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns the end of its log, for error messages.
    pub(super) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let skipped = lines.len().saturating_sub(LOG_TAIL_LINES);
        lines.get(skipped..).unwrap_or_default().join("\n")
    }

    /// Terminates it, and kills it after a timeout.
    pub(super) async fn stop(mut self) {
        self.send_signal(Signal::TERM);
        // The exit status is irrelevant.
        drop(timeout(MAX_STOP_WAIT, self.process.wait()).await);
        self.send_signal(Signal::KILL);
        drop(timeout(MAX_STOP_WAIT, self.process.wait()).await);
        self.group = None;
    }

    /// Sends a signal to the whole process group, which keeps its ID while it has members.
    fn send_signal(&self, signal: Signal) {
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, signal)
        {
            tracing::debug!(?group, %error, "a signal was not delivered");
        }
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        self.send_signal(Signal::KILL);
    }
}

/// The timeout for the exit after a signal: proxies without traffic exit at once.
const MAX_STOP_WAIT: Duration = Duration::from_secs(2);
/// The number of log lines in an error message.
const LOG_TAIL_LINES: usize = 6;
