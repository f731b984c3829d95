//! Load during failures: threads that send requests continuously and record errors.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::TestConnection;
use crate::http::Response;

/// Threads that send requests until stopped.
pub struct BackgroundLoad {
    load_state: Arc<LoadState>,
    threads: Vec<JoinHandle<()>>,
}

/// The result of a load.
#[derive(Debug, Default, Clone)]
pub struct LoadOutcome {
    /// The ids of requests with status 200.
    pub succeeded: Vec<u64>,
    /// The ids of the other requests, with their results.
    pub failed: Vec<(u64, String)>,
}

/// The parameters and the results that all threads of a load share.
struct LoadState {
    method: &'static str,
    listener_address: SocketAddr,
    /// The pause of each thread between its requests.
    pause: Duration,
    next_id: AtomicU64,
    stop_requested: AtomicBool,
    outcome: Mutex<LoadOutcome>,
    outcome_changed: Condvar,
}

impl BackgroundLoad {
    /// Starts to send requests to a listener, each to `/ID` with a unique id, over `thread_count` keep-alive
    /// connections. Failed connections are reopened.
    #[must_use]
    pub fn start(method: &'static str, listener_address: SocketAddr, thread_count: usize) -> Self {
        Self::start_paced(method, listener_address, thread_count, Duration::ZERO)
    }

    /// As [`Self::start`], with this pause between the requests of each thread.
    #[must_use]
    pub fn start_paced(
        method: &'static str,
        listener_address: SocketAddr,
        thread_count: usize,
        pause: Duration,
    ) -> Self {
        let load_state = Arc::new(LoadState {
            method,
            listener_address,
            pause,
            next_id: AtomicU64::new(1),
            stop_requested: AtomicBool::new(false),
            outcome: Mutex::default(),
            outcome_changed: Condvar::new(),
        });
        let start_thread = |_| {
            let load_state = Arc::clone(&load_state);
            std::thread::spawn(move || load_state.send_requests())
        };
        let threads = (0..thread_count).map(start_thread).collect();
        Self { load_state, threads }
    }

    /// Waits for `count` more successful responses.
    ///
    /// # Panics
    /// After 20 seconds; the message contains the last failure.
    pub fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + MAX_WAIT;
        let mut outcome = self.load_state.outcome.lock().unwrap();
        let target_count = outcome.succeeded.len() + count;
        while outcome.succeeded.len() < target_count {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let last_failure = outcome.failed.last();
            assert!(
                !remaining.is_zero(),
                "no responses at {}: {last_failure:?}",
                self.load_state.listener_address
            );
            outcome = self.load_state.outcome_changed.wait_timeout(outcome, remaining).unwrap().0;
        }
    }

    /// Waits for requests in flight and returns the result.
    ///
    /// # Panics
    /// If a thread has panicked.
    #[must_use]
    pub fn finish_load(mut self) -> LoadOutcome {
        self.load_state.stop_requested.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            thread.join().expect("threads of a load do not panic");
        }
        self.load_state.outcome.lock().unwrap().clone()
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        self.load_state.stop_requested.store(true, Ordering::SeqCst);
    }
}

impl LoadOutcome {
    /// Asserts that no request failed.
    ///
    /// # Panics
    /// If a request failed; the message contains the first failures.
    pub fn assert_no_failures(&self) {
        let (succeeded, failed) = (self.succeeded.len(), self.failed.len());
        let first_failures = &self.failed[..failed.min(5)];
        assert!(failed == 0, "{failed} requests failed, {succeeded} succeeded: {first_failures:?}");
    }
}

impl LoadState {
    /// Sends one request after another until the load is stopped, and records their results.
    fn send_requests(&self) {
        let mut idle_connection = None;
        while !self.stop_requested.load(Ordering::SeqCst) {
            let id = self.next_id.fetch_add(1, Ordering::SeqCst);
            let failure = match self.send_request(id, &mut idle_connection) {
                Ok(response) if response.status == 200 => None,
                Ok(response) => {
                    let reason = response.rejection_reason().unwrap_or_default();
                    Some(format!("{} {reason}", response.status))
                }
                Err(error) => Some(format!("no answer: {error}")),
            };
            let mut outcome = self.outcome.lock().unwrap();
            match failure {
                None => outcome.succeeded.push(id),
                Some(failure) => outcome.failed.push((id, failure)),
            }
            self.outcome_changed.notify_all();
            if !self.pause.is_zero() && !self.stop_requested.load(Ordering::SeqCst) {
                std::thread::park_timeout(self.pause);
            }
        }
    }

    /// Sends one request, over the connection of the previous request if the server keeps it open.
    fn send_request(
        &self,
        id: u64,
        idle_connection: &mut Option<TestConnection>,
    ) -> io::Result<Response> {
        let mut connection = idle_connection
            .take()
            .map_or_else(|| TestConnection::open(self.listener_address), Ok)?;
        let request =
            format!("{} /{id} HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n", self.method);
        connection.send(request)?;
        let response = connection.receive_response()?;
        let closes_connection = response.first_header("connection") == Some("close");
        *idle_connection = (!closes_connection).then_some(connection);
        Ok(response)
    }
}

/// The timeout of [`BackgroundLoad::wait_for`].
const MAX_WAIT: Duration = Duration::from_secs(20);
