//! Run-relative time, and timers with better than millisecond resolution.

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
    start: Instant,
}

impl Clock {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the time since the start.
    pub(crate) fn now(self) -> Duration {
        self.start.elapsed()
    }

    /// Converts a time since the start for the runtime's timers.
    pub(crate) fn to_instant(self, since_start: Duration) -> Instant {
        self.start + since_start
    }
}

/// A kernel timer. The runtime's own timers have millisecond ticks: requests would be sent in bursts, and later
/// than many servers take to respond.
#[derive(Debug)]
pub(crate) struct Alarm {
    /// A timerfd is readable like a pipe: empty until it fires, then the number of expirations.
    timer: Option<Receiver>,
}

impl Alarm {
    /// Creates an unarmed kernel timer. Must be called within a runtime.
    pub(crate) fn of_the_kernel() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Some(Receiver::from_owned_fd_unchecked(timer)?) })
    }

    /// Creates an alarm that follows the runtime's clock, even if that is a mock.
    #[cfg(test)]
    pub(crate) const fn of_the_runtime() -> Self {
        Self { timer: None }
    }

    /// Waits for the delay. A new wait replaces a cancelled one.
    pub(crate) async fn wait_for(&mut self, delay: Duration) {
        if let Some(timer) = &mut self.timer
            && start_timer(timer, delay).await.is_ok()
        {
            return;
        }
        // Coarser, but the run continues.
        sleep(delay).await;
    }
}

async fn start_timer(timer: &mut Receiver, delay: Duration) -> io::Result<()> {
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            // Zero would disarm the timer instead of firing at once.
            tv_nsec: i64::from(delay.subsec_nanos()).max(1),
        },
    };
    timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once)?;
    // More than the 8 bytes that are read: a short read shows the runtime that the timer is empty, which saves
    // another read.
    timer.read(&mut [0; 16]).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_never_fires_early_and_can_be_rearmed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::of_the_kernel().unwrap();
            for delay in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(2)] {
                let clock = Clock::start();
                alarm.wait_for(delay).await;
                assert!(clock.now() >= delay);
            }
        });
    }
}
