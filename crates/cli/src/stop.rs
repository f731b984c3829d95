//! Signals: those that stop a command, those that reload its files, and those that must not end it.

use std::io::IsTerminal as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Resolves at SIGTERM, SIGINT, SIGQUIT, SIGPWR or SIGXCPU, or when the terminal of this process is closed. All
/// of them are caught from now on, and [`IGNORED`] and real-time signals are ignored.
///
/// # Errors
/// When the signals cannot be caught.
pub(crate) fn signals() -> anyhow::Result<impl Future<Output = ()>> {
    for kind in IGNORED {
        // The default action of a signal is replaced for good, also after the stream is dropped.
        drop(caught(SignalKind::from_raw(*kind))?);
    }
    for kind in REAL_TIME {
        // Failing means that the C library keeps this one for itself.
        drop(signal(SignalKind::from_raw(kind)));
    }
    let mut terminate = caught(SignalKind::terminate())?;
    let mut interrupt = caught(SignalKind::interrupt())?;
    let mut quit = caught(SignalKind::quit())?;
    let mut power = caught(SignalKind::from_raw(POWER))?;
    let mut cpu_limit = caught(SignalKind::from_raw(CPU_LIMIT))?;
    let mut hangups = Hangups::new()?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = power.recv() => {}
            _ = cpu_limit.recv() => {}
            () = hangups.next(Terminal::Closed) => {}
        }
    })
}

/// Ends this process soon after SIGTERM or SIGINT, or after its lifetime, also while its only thread waits for a reader
/// of its output.
/// `restore` must not block.
///
/// # Errors
/// When the signals cannot be caught, or there can be no more threads.
pub(crate) fn end_when_blocked(restore: fn(), lifetime: Option<Duration>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let stop = signals()?;
    drop(entered);
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        runtime.block_on(async {
            let over = async {
                match lifetime {
                    Some(lifetime) => tokio::time::sleep(lifetime).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop => {}
                () = over => {}
            }
            // A thread that is not blocked ends the process before.
            tokio::time::sleep(BLOCKED_PATIENCE).await;
        });
        restore();
        std::process::exit(BLOCKED_STATUS);
    })?;
    Ok(())
}

/// Resolves at SIGQUIT: stop without draining.
///
/// # Errors
/// As [`signals`].
pub(crate) fn quit() -> anyhow::Result<impl Future<Output = ()>> {
    let mut quit = caught(SignalKind::quit())?;
    Ok(async move {
        quit.recv().await;
    })
}

/// Resolves after `first` and the time `linger`, or at a second signal. `leaving` runs at the first.
pub(crate) async fn lingering(
    first: impl Future<Output = ()>,
    linger: Duration,
    leaving: impl FnOnce(),
) {
    first.await;
    leaving();
    let Ok(second) = signals() else { return };
    tokio::select! {
        () = tokio::time::sleep(linger) => {}
        () = second => {}
    }
}

/// SIGHUP has two senders: an operator or a log rotation, and the kernel when a terminal closes.
#[derive(Debug)]
pub(crate) struct Hangups {
    signal: Signal,
    had_terminal: bool,
}

/// The terminal of this process at a SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Terminal {
    OpenOrAbsent,
    Closed,
}

impl Hangups {
    /// Catches SIGHUP from now on.
    ///
    /// # Errors
    /// As [`signals`].
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { signal: caught(SignalKind::hangup())?, had_terminal: has_terminal() })
    }

    /// Waits for a request to reload.
    pub(crate) async fn reload(&mut self) {
        self.next(Terminal::OpenOrAbsent).await;
    }

    async fn next(&mut self, expected: Terminal) {
        while self.signal.recv().await.is_some() {
            let terminal = match self.had_terminal && !has_terminal() {
                true => Terminal::Closed,
                false => Terminal::OpenOrAbsent,
            };
            if terminal == expected {
                return;
            }
        }
        std::future::pending().await
    }
}

fn caught(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).with_context(|| format!("cannot wait for signal {}", kind.as_raw_value()))
}

/// A terminal that was closed is none any more.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal()
        || std::io::stdout().is_terminal()
        || std::io::stderr().is_terminal()
}

/// The time that a command has to end by itself after a signal.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(1);
/// The exit status of a command that a signal ended, as shells report it for SIGINT.
const BLOCKED_STATUS: i32 = 130;

/// SIGUSR1, SIGUSR2, SIGALRM, SIGSTKFLT, SIGXFSZ, SIGVTALRM, SIGPROF and SIGIO as Linux numbers them: their default action
/// ends a process. A write beyond the limit of a file's size fails instead.
const IGNORED: &[i32] = &[10, 12, 14, 16, 25, 26, 27, 29];
/// The real-time signals (SIGRTMIN to SIGRTMAX), which end a process by default as well.
const REAL_TIME: RangeInclusive<i32> = 34..=64;
/// SIGPWR: the power fails, or a container manager shuts down.
const POWER: i32 = 30;
/// SIGXCPU: the limit of CPU time is reached, and the kernel kills the process at the hard limit.
const CPU_LIMIT: i32 = 24;
