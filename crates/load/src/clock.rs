//! Time since the start of a run, and waiting for a moment more exactly than a millisecond.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep};

/// Time since the start of a run, as the runtime counts it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// The run starts now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start.
    pub(crate) fn now(self) -> Duration {
        self.start.elapsed()
    }

    /// That moment, for the timers of the runtime.
    pub(crate) fn instant(self, since_start: Duration) -> Instant {
        self.start + since_start
    }
}

/// An alarm of the kernel. The runtime's own timers tick in milliseconds: requests would leave
/// in bursts, and late by more than many servers take to answer.
#[derive(Debug)]
pub(crate) struct Alarm {
    /// A timer is read like a pipe: nothing until it rings, then how often it rang.
    timer: Option<Receiver>,
}

impl Alarm {
    /// An alarm that is not set. Must be made inside a runtime.
    pub(crate) fn of_the_kernel() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Some(Receiver::from_owned_fd_unchecked(timer)?) })
    }

    /// An alarm that follows the clock of the runtime, even where that is not the true one.
    #[cfg(test)]
    pub(crate) const fn of_the_runtime() -> Self {
        Self { timer: None }
    }

    /// Waits. Waiting again forgets a wait that was given up.
    pub(crate) async fn after(&mut self, delay: Duration) {
        if let Some(timer) = &mut self.timer
            && ring(timer, delay).await.is_ok()
        {
            return;
        }
        // Coarser, but the run goes on.
        sleep(delay).await;
    }
}

async fn ring(timer: &mut Receiver, delay: Duration) -> io::Result<()> {
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            // Zero would switch the timer off instead of firing at once.
            tv_nsec: i64::from(delay.subsec_nanos()).max(1),
        },
    };
    timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once)?;
    // Room for more than the 8 bytes that come: a short read tells the runtime that the timer
    // is empty and saves asking it once more.
    timer.read(&mut [0; 16]).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alarm_never_rings_early_and_can_be_set_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::of_the_kernel().unwrap();
            for delay in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(2)] {
                let clock = Clock::start();
                alarm.after(delay).await;
                assert!(clock.now() >= delay);
            }
        });
    }
}
