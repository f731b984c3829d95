//! Starts the child processes of a benchmark: pinned to cores, with a log file each, and killed when this process ends.

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
    /// Creates a command that may use all cores.
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

/// A running child process. It has its own process group, which is killed on drop.
#[derive(Debug)]
pub(super) struct BenchProcess {
    process: tokio::process::Child,
    /// The child's standard output, if it is piped to this process.
    stdout: Option<BufReader<ChildStdout>>,
    /// The child's standard input, if it is piped from this process.
    stdin: Option<ChildStdin>,
    process_group: Option<Pid>,
    log_file: PathBuf,
}

impl BenchProcess {
    /// Starts a command with its output in `log_file`.
    ///
    /// # Errors
    /// If the file or the process cannot be created.
    pub(super) fn start(spec: &ProcessSpec, log_file: &Path) -> anyhow::Result<Self> {
        let stdout = File::create(log_file)
            .with_context(|| format!("cannot write {}", log_file.display()))?;
        let stderr = stdout.try_clone().context("cannot duplicate the handle of a log file")?;
        Self::spawn(spec, log_file, Stdio::null(), [stdout.into(), stderr.into()])
    }

    /// Starts a command with a piped standard output; standard error goes to `log_file`.
    ///
    /// # Errors
    /// The same as for [`BenchProcess::start`].
    pub(super) fn start_piped(spec: &ProcessSpec, log_file: &Path) -> anyhow::Result<Self> {
        let stderr = File::create(log_file)
            .with_context(|| format!("cannot write {}", log_file.display()))?;
        Self::spawn(spec, log_file, Stdio::null(), [Stdio::piped(), stderr.into()])
    }

    /// Starts a command with piped standard input and output; standard error goes to `log_file`.
    ///
    /// # Errors
    /// The same as for [`BenchProcess::start`].
    pub(super) fn start_interactive(spec: &ProcessSpec, log_file: &Path) -> anyhow::Result<Self> {
        let stderr = File::create(log_file)
            .with_context(|| format!("cannot write {}", log_file.display()))?;
        Self::spawn(spec, log_file, Stdio::piped(), [Stdio::piped(), stderr.into()])
    }

    /// Writes a line to the child's standard input.
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

    /// Starts the command through `leno bench pinned`, which pins it to its cores and kills it if this process dies.
    fn spawn(
        spec: &ProcessSpec,
        log_file: &Path,
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
        let process_group =
            process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let stdout = process.stdout.take().map(BufReader::new);
        let stdin = process.stdin.take();
        Ok(Self { process, stdout, stdin, process_group, log_file: log_file.to_owned() })
    }

    /// Returns the process ID; `None` once the process has exited.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Returns the exit status; `None` while the process runs.
    pub(super) fn try_exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Waits for the exit. Returns the exit status and the remaining standard output.
    ///
    /// # Errors
    /// If the output cannot be read, or the process cannot be waited for.
    pub(super) async fn wait_with_output(&mut self) -> anyhow::Result<(ExitStatus, String)> {
        let mut output = String::new();
        if let Some(mut stdout) = self.stdout.take() {
            stdout.read_to_string(&mut output).await.context("cannot read its output")?;
        }
        Ok((self.process.wait().await.context("cannot wait for its exit")?, output))
    }

    /// Returns the next line of standard output; `None` at its end or after a read error.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read_result = self.stdout.as_mut()?.read_line(&mut line).await;
        read_result.is_ok_and(|bytes| bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns the last lines of the log file, for error messages.
    pub(super) fn log_tail(&self) -> String {
        let log_bytes = std::fs::read(&self.log_file).unwrap_or_default();
        let log_text = String::from_utf8_lossy(&log_bytes);
        let lines: Vec<&str> = log_text.lines().filter(|line| !line.trim().is_empty()).collect();
        let first_line = lines.len().saturating_sub(LOG_TAIL_LINES);
        lines.get(first_line..).unwrap_or_default().join("\n")
    }

    /// Terminates the process group, and kills it if the process has not exited within [`MAX_STOP_WAIT`].
    pub(super) async fn stop(mut self) {
        self.send_signal(Signal::TERM);
        // The exit status is irrelevant.
        drop(timeout(MAX_STOP_WAIT, self.process.wait()).await);
        self.send_signal(Signal::KILL);
        drop(timeout(MAX_STOP_WAIT, self.process.wait()).await);
        // The system may reuse the ID of an empty group, so that `drop` must not send a signal to it.
        self.process_group = None;
    }

    /// Sends a signal to the whole process group. The group keeps its ID while it has members.
    fn send_signal(&self, signal: Signal) {
        if let Some(process_group) = self.process_group
            && let Err(error) = kill_process_group(process_group, signal)
        {
            tracing::debug!(?process_group, %error, "a signal was not delivered");
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
