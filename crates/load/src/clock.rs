//! Measures time since the start of a run, and waits with a resolution finer than a millisecond.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep};

/// The runtime's time since the start of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started_at: Instant,
}

impl Clock {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { started_at: Instant::now() }
    }

    /// Returns the time since the start.
    pub(crate) fn now(self) -> Duration {
        self.started_at.elapsed()
    }

    /// Converts a time since the start to an instant of the runtime's timers.
    pub(crate) fn to_instant(self, since_start: Duration) -> Instant {
        self.started_at + since_start
    }
}

/// A kernel timer. The runtime's own timers have ticks of a millisecond. With them, requests would be sent in bursts,
/// and with delays longer than the response time of many servers.
#[derive(Debug)]
pub(crate) struct Timer {
    /// A timerfd is readable like a pipe: empty until it fires, then the number of expirations. `None` in tests, which
    /// use the runtime's timers.
    timerfd: Option<Receiver>,
}

impl Timer {
    /// Creates an unarmed kernel timer. Must be called within a runtime.
    pub(crate) fn from_kernel() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timerfd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timerfd: Some(Receiver::from_owned_fd_unchecked(timerfd)?) })
    }

    /// Creates a timer that follows the runtime's clock, even if that is a mock.
    #[cfg(test)]
    pub(crate) const fn from_runtime() -> Self {
        Self { timerfd: None }
    }

    /// Waits for the delay. A new wait replaces one that was cancelled.
    pub(crate) async fn wait_for(&mut self, delay: Duration) {
        if let Some(timerfd) = &mut self.timerfd
            && wait_for_timerfd(timerfd, delay).await.is_ok()
        {
            return;
        }
        // The runtime's timer is coarser, but the run continues.
        sleep(delay).await;
    }
}

async fn wait_for_timerfd(timerfd: &mut Receiver, delay: Duration) -> io::Result<()> {
    let single_expiration = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            // Zero would disarm the timer instead of firing at once.
            tv_nsec: i64::from(delay.subsec_nanos()).max(1),
        },
    };
    timerfd_settime(&*timerfd, TimerfdTimerFlags::empty(), &single_expiration)?;
    // More than the 8 bytes that are read: a short read shows the runtime that the timer is empty, which saves
    // another read.
    timerfd.read(&mut [0; 16]).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_never_fires_early_and_can_be_rearmed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut timer = Timer::from_kernel().unwrap();
            for delay in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(2)] {
                let clock = Clock::start();
                timer.wait_for(delay).await;
                assert!(clock.now() >= delay);
            }
        });
    }
}
