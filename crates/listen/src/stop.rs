//! The stop of a server that answers requests: clients get the time for a last request, and responses in progress are
//! completed.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::admission::{Evicted, HalfOpen};

/// The stop of a server, as its accept loop and each of its connections see it.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// The server stops when the value is true, or its sender is dropped.
    #[must_use]
    pub fn new(stopped: watch::Receiver<bool>) -> Self {
        Self(stopped)
    }

    /// True from the stop on. Responses ask their clients to use another connection from then on.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Resolves at the stop.
    pub async fn wait_requested(&mut self) {
        // Without a sender the server has ended.
        drop(self.0.wait_for(|stopped| *stopped).await);
    }

    /// Resolves when the time for a last request is over.
    pub async fn last_call(&mut self) {
        self.wait_requested().await;
        sleep(LAST_CALL).await;
    }

    /// Serves a connection of requests as [`HalfOpen::serve_connection`] does. When the time for a last request is
    /// over, it is not evicted any more, and `end` has it end after the response in progress.
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub async fn serve_connection<C: Future>(
        mut self,
        half_open: &HalfOpen,
        mut connection: Pin<&mut C>,
        end: impl FnOnce(Pin<&mut C>),
    ) -> Result<C::Output, Evicted> {
        tokio::select! {
            biased;
            served = half_open.serve_connection(connection.as_mut()) => return served,
            () = self.last_call() => {}
        }
        end(connection.as_mut());
        Ok(connection.await)
    }

    /// Runs `serving` to its end, but no longer than `max` after the stop; `None` when that was too short.
    pub async fn run_bounded<T>(
        mut self,
        max: Duration,
        serving: impl Future<Output = T>,
    ) -> Option<T> {
        let late = async {
            self.wait_requested().await;
            sleep(max).await;
        };
        tokio::select! {
            served = serving => Some(served),
            () = late => None,
        }
    }
}

/// The time for a last request on a connection that is idle at the stop, or new. A request that crosses the end of its
/// connection is lost (RFC 9112 §9.5), and HTTP codecs end a connection without a request at once.
const LAST_CALL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::pin::pin;

    use tokio::time::Instant;

    use super::*;
    use crate::admission::ConnectionAdmission;
    use crate::source::ConnectionSource;
    use crate::table::HalfOpenLimits;

    #[tokio::test(start_paused = true)]
    async fn a_connection_gets_the_time_for_a_last_request_and_then_for_its_response() {
        let (sender, stop) = watch::channel(false);
        let stop = StopSignal::new(stop);
        let admission = ConnectionAdmission::new(HalfOpenLimits::new(1, 1));
        let half_open = admission.admit(ConnectionSource::LOCAL);
        let (begin, ended) = (Instant::now(), Cell::new(None));
        let response = sleep(Duration::from_secs(60));
        sender.send_replace(true);
        assert!(stop.is_requested());
        let end = |_: Pin<&mut tokio::time::Sleep>| ended.set(Some(begin.elapsed()));
        stop.serve_connection(&half_open, pin!(response), end).await.unwrap();
        assert_eq!(ended.get(), Some(LAST_CALL));
        assert_eq!(begin.elapsed(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_the_bound_is_given_up() {
        let (sender, stop) = watch::channel(false);
        let (stop, begin) = (StopSignal::new(stop), Instant::now());
        let max = Duration::from_secs(5);
        assert_eq!(stop.clone().run_bounded(max, sleep(max * 9)).await, Some(()));
        assert_eq!(begin.elapsed(), max * 9);
        drop(sender);
        assert!(stop.is_requested());
        assert_eq!(stop.run_bounded(max, pending::<()>()).await, None);
        assert_eq!(begin.elapsed(), max * 10);
    }
}
