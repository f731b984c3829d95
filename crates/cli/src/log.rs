//! Logs to standard error, and queues the outputs of serving commands, so that a blocked terminal or pipe
//! delays neither traffic nor the exit. Log lines have timestamps in commands that run unattended.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use leno_telemetry::{EscapingWriter, LineQueue};
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The log filter, in the directive syntax of `tracing`.
#[derive(Debug, Clone)]
pub(crate) struct LogLevel(String);

impl FromStr for LogLevel {
    type Err = tracing_subscriber::filter::ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        EnvFilter::builder().parse(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl LogLevel {
    /// Returns the filter that selects warnings and errors.
    pub(crate) fn warnings() -> Self {
        Self("warn".to_owned())
    }

    /// Returns the filter as given, for the command line of a child.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The logging style of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogStyle {
    /// Runs once and prints a result: warnings only, without timestamps.
    Tool,
    /// Keeps running and prints reports: warnings only, without timestamps.
    Report,
    /// Keeps running unattended: with timestamps.
    Service,
    /// Keeps running as a part of `leno up`, with a log that users read live: without timestamps.
    Supervised,
}

/// Starts logging. Must be called once.
pub(crate) fn start(level: Option<&LogLevel>, style: LogStyle) {
    report_panics();
    let default_directives = match style {
        LogStyle::Tool | LogStyle::Report => "warn",
        LogStyle::Service | LogStyle::Supervised => "info",
    };
    let directives = level.map_or(default_directives, LogLevel::as_str);
    let queue = match style {
        // A one-shot command may wait for a pager.
        LogStyle::Tool => None,
        LogStyle::Report | LogStyle::Service | LogStyle::Supervised => error_output().ok(),
    };
    match queue {
        Some(queue) => build_subscriber(directives, style, move || queue.clone()).init(),
        None => build_subscriber(directives, style, io::stderr).init(),
    }
}

/// Returns the queue of standard error. The first call starts the thread that writes the queued lines.
///
/// # Errors
/// If no thread can be created.
pub(crate) fn error_output() -> io::Result<LineQueue> {
    open_queue(&STDERR_QUEUE, "log", io::stderr())
}

/// Returns the queue of standard output. The first call starts the thread that writes the queued lines.
///
/// # Errors
/// If no thread can be created.
pub(crate) fn standard_output() -> io::Result<LineQueue> {
    open_queue(&STDOUT_QUEUE, "output", io::stdout())
}

fn open_queue(
    queue_cell: &OnceLock<LineQueue>,
    name: &str,
    writer: impl io::Write + Send + 'static,
) -> io::Result<LineQueue> {
    if let Some(queue) = queue_cell.get() {
        return Ok(queue.clone());
    }
    let new_queue = LineQueue::start(name, writer)?;
    Ok(queue_cell.get_or_init(|| new_queue).clone())
}

/// Prints a line to standard error: through the queue if [`error_output`] has opened it, otherwise directly.
pub(crate) fn print_to_stderr(line: &str) {
    match STDERR_QUEUE.get() {
        Some(queue) => queue.push_or_drop(format!("{line}\n").as_bytes()),
        // A write error is ignored, because it cannot be reported.
        None => drop(writeln!(io::stderr(), "{line}")),
    }
}

/// Prints text to standard output, through a queue.
///
/// # Errors
/// If no thread can be created.
pub(crate) fn print_to_stdout(text: &str) -> io::Result<()> {
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    standard_output().map(|queue| queue.push_or_drop([text, line_end].concat().as_bytes()))
}

/// Reports panics through the queue of standard error, so that a panic does not wait for a blocked terminal or
/// pipe. A command without that queue keeps the hook of the standard library.
fn report_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic_info| match STDERR_QUEUE.get() {
        Some(queue) => {
            let thread = std::thread::current();
            let thread_name = thread.name().unwrap_or("unnamed");
            let backtrace = std::backtrace::Backtrace::capture();
            let backtrace_text = match backtrace.status() {
                std::backtrace::BacktraceStatus::Captured => format!("{backtrace}\n"),
                _ => String::new(),
            };
            queue.push_or_drop(
                format!("thread {thread_name:?}: {panic_info}\n{backtrace_text}").as_bytes(),
            );
            // The process may exit right after the hook.
            queue.flush(PANIC_FLUSH_TIMEOUT);
        }
        None => default_hook(panic_info),
    }));
}

/// Waits until the queued output is written, for `FLUSH_TIMEOUT` at most per output.
pub(crate) fn flush() {
    for queue in [STDOUT_QUEUE.get(), STDERR_QUEUE.get()].into_iter().flatten() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

static STDERR_QUEUE: OnceLock<LineQueue> = OnceLock::new();
static STDOUT_QUEUE: OnceLock<LineQueue> = OnceLock::new();

/// The maximum time that a panic waits until its lines are written.
const PANIC_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);
/// The timeout for the remaining output at exit; a working terminal needs less.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Builds the subscriber that formats the events that the directives select, from Leno's crates only.
///
/// Events of dependencies are dropped under every directive, because dependencies log received data:
/// kube_client logs whole bodies that it cannot decode, which may be Secrets; kube_runtime logs errors that
/// contain such bodies; h2 and hyper log headers with tokens. Leno logs the relevant facts without bodies.
fn build_subscriber<W>(
    directives: &str,
    style: LogStyle,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry()
        .with(EnvFilter::builder().parse_lossy(directives))
        .with(filter_fn(|metadata| is_leno_target(metadata.target())));
    let layer = tracing_subscriber::fmt::layer()
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(style == LogStyle::Service)
        // A closed standard error must not end a serving command, and a report about the failed write to the same
        // broken pipe would panic.
        .log_internal_errors(false);
    match style {
        LogStyle::Service => Box::new(registry.with(layer)),
        LogStyle::Tool | LogStyle::Report | LogStyle::Supervised => {
            Box::new(registry.with(layer.without_time()))
        }
    }
}

/// Writes one field of an event. Values may come from clients and other machines, so line breaks and terminal
/// control characters are escaped.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let mut writer = EscapingWriter(writer);
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={value:?}"),
    }
}

/// True for the events of Leno: their targets are modules of its crates.
fn is_leno_target(target: &str) -> bool {
    let crate_name = target.split("::").next().unwrap_or_default();
    crate_name == "leno" || crate_name.starts_with("leno_")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;

    use super::*;

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log of one event from each dependency, at every level, and one of our own.
    fn captured_log(directives: &str, style: LogStyle) -> String {
        let captured = CapturedLog::default();
        let writer = captured.clone();
        with_default(build_subscriber(directives, style, move || writer.clone()), || {
            macro_rules! dependency {
                ($($target:literal)*) => {$(
                    tracing::error!(target: $target, "SECRET");
                    tracing::warn!(target: $target, body = "SECRET", "undecodable");
                    tracing::info!(target: $target, "SECRET");
                    tracing::debug!(target: $target, "SECRET");
                    tracing::trace!(target: $target, "SECRET");
                    let span = tracing::error_span!(target: $target, "request", token = "SECRET");
                    span.in_scope(|| tracing::error!("own error"));
                )*};
            }
            dependency!(
                "kube_client::client" "kube_client::client::builder" "kube_client" "kube_runtime::watcher" "hyper"
                "hyper_util::client" "h2::codec::framed_read" "rustls::common_state" "tower::buffer" "log"
                "lenox" "notleno::x" ""
            );
            tracing::warn!(target: "leno_kubernetes::source", "own warning");
        });
        String::from_utf8(captured.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn no_directive_enables_events_of_dependencies() {
        for directives in [
            "info",
            "debug",
            "trace",
            "warn",
            "kube_client=trace",
            "kube_client::client=warn",
            "kube_runtime=trace",
            "trace,kube_client=trace,h2=trace,hyper=trace,rustls=trace",
            "off,kube_client=trace",
            "[request]=trace",
            "[request{token=SECRET}]=trace",
            "kube_client[request]=trace",
            "",
        ] {
            for style in [LogStyle::Tool, LogStyle::Service, LogStyle::Supervised] {
                let log = captured_log(directives, style);
                assert!(!log.contains("SECRET"), "{directives}: {log}");
            }
        }
    }

    #[test]
    fn values_from_clients_cannot_forge_lines_or_control_a_terminal() {
        let text = "a\u{1b}[2Jb\nERROR forged\u{9b}c\u{202e}d\r\u{2028}";
        let captured = CapturedLog::default();
        let writer = captured.clone();
        with_default(
            build_subscriber("info", LogStyle::Supervised, move || writer.clone()),
            || {
                tracing::warn!(target: "leno_proxy", host = %text, debug = ?text, text, "message {text}");
            },
        );
        let log = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let line = log.strip_suffix('\n').unwrap();
        assert!(!line.contains(leno_telemetry::is_terminal_control), "{line:?}");
        assert!(line.contains("host=a\\u{1b}[2Jb\\nERROR forged"), "{line}");
    }

    #[test]
    fn directives_select_events_of_leno() {
        for (directives, expected) in [
            ("info", true),
            ("trace", true),
            ("error", false),
            ("off", false),
            ("leno_kubernetes=warn", true),
            ("leno_kubernetes=error", false),
            ("leno_proxy=trace", false),
        ] {
            let log = captured_log(directives, LogStyle::Service);
            assert_eq!(log.contains("own warning"), expected, "{directives}: {log}");
        }
    }
}
