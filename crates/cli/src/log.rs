//! Logs: to standard error, with times only where nobody else adds them.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// Which events are logged.
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
    /// Warnings and errors.
    pub(crate) fn warnings() -> Self {
        Self("warn".to_owned())
    }

    /// As it was given, for the command line of a child.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// How a command logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// It runs once and answers: warnings only, without times.
    Tool,
    /// It keeps running, under somebody else's eyes: with times.
    Service,
    /// It keeps running as a part of `leno up`, which is read live: without times.
    Supervised,
}

/// Starts logging. To be called once.
pub(crate) fn start(level: Option<&LogLevel>, style: Style) {
    let default = match style {
        // What the client of API servers logs, the command says in its own words.
        Style::Tool => "warn,kube_client=off",
        Style::Service | Style::Supervised => "info",
    };
    let directives = level.map_or(default, LogLevel::as_str);
    let filter = EnvFilter::builder().parse_lossy(directives);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(style == Style::Service)
        // A reader that is gone must not end what goes on without it: complaining about the log
        // on the same broken pipe panics.
        .log_internal_errors(false);
    match style {
        Style::Service => subscriber.init(),
        Style::Tool | Style::Supervised => subscriber.without_time().init(),
    }
}
