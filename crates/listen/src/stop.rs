//! Stops a server gracefully: clients get time for a last request, and responses in progress complete.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::admission::{Evicted, PendingConnection};

/// The stop signal of a server, for its accept loop and each of its connections.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Creates the signal: the server stops when the value is true, or its sender is dropped.
    #[must_use]
    pub fn new(stopped: watch::Receiver<bool>) -> Self {
        Self(stopped)
    }

    /// True after the stop was requested or its sender was dropped: responses then ask clients to close the connection.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Resolves when the stop is requested.
    pub async fn wait_requested(&mut self) {
        // If the sender was dropped, the server has stopped.
        drop(self.0.wait_for(|stopped| *stopped).await);
    }

    /// Resolves when the time for a last request is over.
    pub async fn wait_for_last_request(&mut self) {
        self.wait_requested().await;
        sleep(LAST_REQUEST_TIME).await;
    }

    /// Serves a connection that carries requests, like [`PendingConnection::serve_connection`]. When the time for a
    /// last request is over, the connection is no longer evicted, and `request_close` makes it close after the response
    /// in progress.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn serve_connection<C: Future>(
        mut self,
        pending_connection: &PendingConnection,
        mut connection: Pin<&mut C>,
        request_close: impl FnOnce(Pin<&mut C>),
    ) -> Result<C::Output, Evicted> {
        tokio::select! {
            biased;
            output = pending_connection.serve_connection(connection.as_mut()) => return output,
            () = self.wait_for_last_request() => {}
        }
        request_close(connection.as_mut());
        Ok(connection.await)
    }

    /// Runs `work` until it completes, but no longer than `max_time` after the stop. Returns `None` if `work`
    /// did not complete.
    pub async fn run_bounded<T>(
        mut self,
        max_time: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let deadline = async {
            self.wait_requested().await;
            sleep(max_time).await;
        };
        tokio::select! {
            output = work => Some(output),
            () = deadline => None,
        }
    }
}

/// The time for a last request on a connection that is idle at the stop, or new. A request that arrives while
/// its connection closes is lost (RFC 9112 §9.5), and HTTP codecs close an idle connection at once.
const LAST_REQUEST_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::pin::pin;

    use tokio::time::Instant;

    use super::*;
    use crate::admission::ConnectionAdmission;
    use crate::source::ConnectionSource;
    use crate::table::PendingLimits;

    #[tokio::test(start_paused = true)]
    async fn a_connection_gets_the_time_for_a_last_request_and_then_for_its_response() {
        let (sender, stop) = watch::channel(false);
        let stop = StopSignal::new(stop);
        let admission = ConnectionAdmission::new(PendingLimits::new(1, 1));
        let pending_connection = admission.admit(ConnectionSource::LOCAL);
        let (start, closed_after) = (Instant::now(), Cell::new(None));
        let response = sleep(Duration::from_secs(60));
        sender.send_replace(true);
        assert!(stop.is_requested());
        let record_close =
            |_: Pin<&mut tokio::time::Sleep>| closed_after.set(Some(start.elapsed()));
        stop.serve_connection(&pending_connection, pin!(response), record_close).await.unwrap();
        assert_eq!(closed_after.get(), Some(LAST_REQUEST_TIME));
        assert_eq!(start.elapsed(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_exceeds_the_limit_after_the_stop_is_cancelled() {
        let (sender, stop) = watch::channel(false);
        let (stop, start) = (StopSignal::new(stop), Instant::now());
        let max_time = Duration::from_secs(5);
        assert_eq!(stop.clone().run_bounded(max_time, sleep(max_time * 9)).await, Some(()));
        assert_eq!(start.elapsed(), max_time * 9);
        drop(sender);
        assert!(stop.is_requested());
        assert_eq!(stop.run_bounded(max_time, pending::<()>()).await, None);
        assert_eq!(start.elapsed(), max_time * 10);
    }
}
