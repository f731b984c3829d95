//! Signal handling: stop, reload, and signals to ignore.

use std::io::IsTerminal as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Resolves at SIGTERM, SIGINT, SIGQUIT, SIGPWR or SIGXCPU, or when the terminal of this process closes. From
/// the call on these signals are caught, and [`IGNORED`] and real-time signals are ignored.
///
/// # Errors
/// If the signals cannot be caught.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    for kind in IGNORED {
        // The handler stays installed after the stream is dropped.
        drop(catch_signal(SignalKind::from_raw(*kind))?);
    }
    for kind in REAL_TIME {
        // Registration fails for signals reserved by the C library.
        drop(signal(SignalKind::from_raw(kind)));
    }
    let mut terminate = catch_signal(SignalKind::terminate())?;
    let mut interrupt = catch_signal(SignalKind::interrupt())?;
    let mut quit = catch_signal(SignalKind::quit())?;
    let mut power = catch_signal(SignalKind::from_raw(POWER))?;
    let mut cpu_limit = catch_signal(SignalKind::from_raw(CPU_LIMIT))?;
    let mut hangups = Hangups::new()?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = power.recv() => {}
            _ = cpu_limit.recv() => {}
            () = hangups.next(TerminalState::Closed) => {}
        }
    })
}

/// Ends this process shortly after SIGTERM or SIGINT, or after its lifetime, even while its only thread is
/// blocked on writing output. `restore` must not block.
///
/// # Errors
/// If the signals cannot be caught, or no thread can be created.
pub(crate) fn end_when_blocked(restore: fn(), lifetime: Option<Duration>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let stop = stop_signal()?;
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
            // A thread that is not blocked ends the process first.
            tokio::time::sleep(BLOCKED_MAX_WAIT).await;
        });
        restore();
        std::process::exit(BLOCKED_STATUS);
    })?;
    Ok(())
}

/// Resolves at SIGQUIT: stop without draining.
///
/// # Errors
/// As [`stop_signal`].
pub(crate) fn quit_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut quit = catch_signal(SignalKind::quit())?;
    Ok(async move {
        quit.recv().await;
    })
}

/// Resolves after `first` and the drain delay `drain_delay`, or at a second signal. `leaving` runs at the first
/// signal.
pub(crate) async fn after_drain_delay(
    first: impl Future<Output = ()>,
    drain_delay: Duration,
    leaving: impl FnOnce(),
) {
    first.await;
    leaving();
    let Ok(second) = stop_signal() else { return };
    tokio::select! {
        () = tokio::time::sleep(drain_delay) => {}
        () = second => {}
    }
}

/// SIGHUP has two senders: an operator or log rotation, and the kernel when a terminal closes.
#[derive(Debug)]
pub(crate) struct Hangups {
    signal: Signal,
    had_terminal: bool,
}

/// The terminal of this process at a SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalState {
    OpenOrAbsent,
    Closed,
}

impl Hangups {
    /// Catches SIGHUP from now on.
    ///
    /// # Errors
    /// As [`stop_signal`].
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { signal: catch_signal(SignalKind::hangup())?, had_terminal: has_terminal() })
    }

    /// Waits for a reload request.
    pub(crate) async fn wait_for_reload(&mut self) {
        self.next(TerminalState::OpenOrAbsent).await;
    }

    async fn next(&mut self, expected: TerminalState) {
        while self.signal.recv().await.is_some() {
            let terminal = match self.had_terminal && !has_terminal() {
                true => TerminalState::Closed,
                false => TerminalState::OpenOrAbsent,
            };
            if terminal == expected {
                return;
            }
        }
        std::future::pending().await
    }
}

fn catch_signal(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).with_context(|| format!("cannot wait for signal {}", kind.as_raw_value()))
}

/// A closed terminal no longer counts as one.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal()
        || std::io::stdout().is_terminal()
        || std::io::stderr().is_terminal()
}

/// The time for a command to end by itself after a signal.
const BLOCKED_MAX_WAIT: Duration = Duration::from_secs(1);
/// The exit status of a command ended by a signal, as shells report it for SIGINT.
const BLOCKED_STATUS: i32 = 130;

/// SIGUSR1, SIGUSR2, SIGALRM, SIGSTKFLT, SIGXFSZ, SIGVTALRM, SIGPROF and SIGIO by their Linux numbers: their
/// default action ends a process. With SIGXFSZ ignored, a write beyond the file size limit fails instead.
const IGNORED: &[i32] = &[10, 12, 14, 16, 25, 26, 27, 29];
/// The real-time signals (SIGRTMIN to SIGRTMAX); their default action also ends a process.
const REAL_TIME: RangeInclusive<i32> = 34..=64;
/// SIGPWR: power failure, or shutdown by a container manager.
const POWER: i32 = 30;
/// SIGXCPU: the soft CPU time limit is reached, and the kernel kills the process at the hard limit.
const CPU_LIMIT: i32 = 24;
