//! Handles signals: those that stop the process, SIGHUP as a request to reload, and signals to ignore.

use std::io::IsTerminal as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Resolves at SIGTERM, SIGINT, SIGQUIT, SIGPWR or SIGXCPU, or when the terminal of this process closes. From
/// the call on these signals are caught, and [`IGNORED_SIGNALS`] and real-time signals are ignored.
///
/// # Errors
/// If the signals cannot be caught.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    for kind in IGNORED_SIGNALS {
        // The handler stays installed after the stream is dropped.
        drop(catch_signal(SignalKind::from_raw(*kind))?);
    }
    for kind in REAL_TIME_SIGNALS {
        // Registration fails for signals reserved by the C library.
        drop(signal(SignalKind::from_raw(kind)));
    }
    let mut terminate = catch_signal(SignalKind::terminate())?;
    let mut interrupt = catch_signal(SignalKind::interrupt())?;
    let mut quit = catch_signal(SignalKind::quit())?;
    let mut power = catch_signal(SignalKind::from_raw(SIGPWR))?;
    let mut cpu_limit = catch_signal(SignalKind::from_raw(SIGXCPU))?;
    let mut hangup = ReloadSignal::new()?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
            _ = power.recv() => {}
            _ = cpu_limit.recv() => {}
            () = hangup.wait_for_hangup(TerminalState::Closed) => {}
        }
    })
}

/// Exits shortly after a stop signal, or after `lifetime`, even while the main thread is blocked on writing
/// output. Calls `restore_terminal` before the exit; it must not block.
///
/// # Errors
/// If the signals cannot be caught, or no thread can be created.
pub(crate) fn exit_when_blocked(
    restore_terminal: fn(),
    lifetime: Option<Duration>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The signals are registered with this runtime, which then moves to the thread.
    let runtime_guard = runtime.enter();
    let stop_signal = stop_signal()?;
    drop(runtime_guard);
    let thread_builder = std::thread::Builder::new().name("signals".to_owned());
    thread_builder.spawn(move || {
        runtime.block_on(async {
            let lifetime_end = async {
                match lifetime {
                    Some(lifetime) => tokio::time::sleep(lifetime).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop_signal => {}
                () = lifetime_end => {}
            }
            // A main thread that is not blocked exits first.
            tokio::time::sleep(BLOCKED_EXIT_DELAY).await;
        });
        restore_terminal();
        std::process::exit(EXIT_INTERRUPTED);
    })?;
    Ok(())
}

/// Resolves at SIGQUIT, which requests a stop without draining.
///
/// # Errors
/// If the signal cannot be caught.
pub(crate) fn quit_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut quit = catch_signal(SignalKind::quit())?;
    Ok(async move {
        quit.recv().await;
    })
}

/// Resolves after `first_signal` and then `drain_delay`, or at a second signal. Calls `on_first_signal` at the
/// first signal.
pub(crate) async fn wait_for_drain_delay(
    first_signal: impl Future<Output = ()>,
    drain_delay: Duration,
    on_first_signal: impl FnOnce(),
) {
    first_signal.await;
    on_first_signal();
    let Ok(second_signal) = stop_signal() else { return };
    tokio::select! {
        () = tokio::time::sleep(drain_delay) => {}
        () = second_signal => {}
    }
}

/// A receiver of SIGHUP, which has two senders: an operator or log rotation to request a reload, and the kernel
/// when a terminal closes.
#[derive(Debug)]
pub(crate) struct ReloadSignal {
    signal: Signal,
    /// True if a standard stream was a terminal when the receiver was created.
    had_terminal: bool,
}

/// The state of this process's terminal at a SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalState {
    /// The terminal is open, or the process had no terminal: the signal requests a reload.
    OpenOrNone,
    /// The terminal is closed: the signal ends the process.
    Closed,
}

impl ReloadSignal {
    /// Catches SIGHUP from now on.
    ///
    /// # Errors
    /// If the signal cannot be caught.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { signal: catch_signal(SignalKind::hangup())?, had_terminal: has_terminal() })
    }

    /// Waits for a reload request.
    pub(crate) async fn wait_for_reload(&mut self) {
        self.wait_for_hangup(TerminalState::OpenOrNone).await;
    }

    /// Waits for a SIGHUP while the terminal is in the expected state.
    async fn wait_for_hangup(&mut self, expected: TerminalState) {
        while self.signal.recv().await.is_some() {
            let terminal = match self.had_terminal && !has_terminal() {
                true => TerminalState::Closed,
                false => TerminalState::OpenOrNone,
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

/// True if a standard stream is an open terminal.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal()
        || std::io::stdout().is_terminal()
        || std::io::stderr().is_terminal()
}

/// The time that a command has to exit by itself after a signal.
const BLOCKED_EXIT_DELAY: Duration = Duration::from_secs(1);
/// The exit status of a command ended by a signal, as shells report it for SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// SIGUSR1, SIGUSR2, SIGALRM, SIGSTKFLT, SIGXFSZ, SIGVTALRM, SIGPROF and SIGIO by their Linux numbers: their
/// default action ends a process. With SIGXFSZ ignored, a write beyond the file size limit fails instead.
const IGNORED_SIGNALS: &[i32] = &[10, 12, 14, 16, 25, 26, 27, 29];
/// The real-time signals (SIGRTMIN to SIGRTMAX); their default action also ends a process.
const REAL_TIME_SIGNALS: RangeInclusive<i32> = 34..=64;
/// SIGPWR: power failure, or shutdown by a container manager.
const SIGPWR: i32 = 30;
/// SIGXCPU: the soft CPU time limit is reached, and the kernel kills the process at the hard limit.
const SIGXCPU: i32 = 24;
