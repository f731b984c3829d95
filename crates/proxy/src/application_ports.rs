//! Tracks the states of the application's ports. Connections to a port wait while the application starts, and fail
//! while it is down or another process holds the port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leno_model::Reason;
use tokio::sync::watch;
use tokio::time::timeout;

/// The state of the application's ports, as the supervisor that started the application reports it. Without a
/// supervisor all ports are open.
#[derive(Debug, Clone)]
pub struct ApplicationPorts(Arc<SharedPorts>);

/// The states that all clones share.
#[derive(Debug)]
struct SharedPorts {
    states: watch::Sender<Arc<PortStates>>,
    /// True if a port may not be open. New connections read this flag first, since it costs less than the
    /// states.
    may_be_closed: AtomicBool,
    /// The number of requests and connections that wait until a port is open.
    waiting_count: AtomicU64,
}

/// The states of all ports of the application, as one report has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortStates {
    /// The states of individual ports; all other ports have the state `otherwise`.
    pub ports: BTreeMap<u16, PortState>,
    /// The state of all other ports.
    pub otherwise: PortState,
}

/// The state of one port of the application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortState {
    /// Connections are forwarded.
    #[default]
    Open,
    /// The application starts: connections wait for it, at most 10 s.
    Starting,
    /// The application does not run or is not ready: connections fail at once, so that clients use another
    /// endpoint.
    Down,
    /// Another process listens on the port.
    Taken {
        /// The name of the process, as far as it is known.
        by: String,
    },
}

impl Default for ApplicationPorts {
    fn default() -> Self {
        Self::new(PortState::Open)
    }
}

impl ApplicationPorts {
    /// Creates the states: every port is in the state `otherwise` until the first report.
    #[must_use]
    pub fn new(otherwise: PortState) -> Self {
        let may_be_closed = AtomicBool::new(otherwise != PortState::Open);
        let states = PortStates { ports: BTreeMap::new(), otherwise };
        let (states, waiting_count) = (watch::Sender::new(Arc::new(states)), AtomicU64::new(0));
        Self(Arc::new(SharedPorts { states, may_be_closed, waiting_count }))
    }

    /// Replaces all states by those of a new report.
    pub fn set_states(&self, states: PortStates) {
        let are_all_open = states.otherwise == PortState::Open
            && states.ports.values().all(|state| *state == PortState::Open);
        // Set before the states are replaced: connections that arrive in between read the states instead of relying on
        // the flag.
        self.0.may_be_closed.store(true, Ordering::Release);
        self.0.states.send_replace(Arc::new(states));
        self.0.may_be_closed.store(!are_all_open, Ordering::Release);
    }

    /// Returns the states of the last report.
    #[must_use]
    pub fn states(&self) -> Arc<PortStates> {
        Arc::clone(&self.0.states.borrow())
    }

    /// Returns the number of requests and connections that wait for a port and have not reached the
    /// application.
    pub(crate) fn waiting_count(&self) -> u64 {
        self.0.waiting_count.load(Ordering::Acquire)
    }

    /// Subscribes to the states and their changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<PortStates>> {
        self.0.states.subscribe()
    }

    /// True unless connections to all ports are forwarded.
    pub(crate) fn may_be_closed(&self) -> bool {
        self.0.may_be_closed.load(Ordering::Acquire)
    }

    /// Waits, at most for `max_wait`, until connections to a port are forwarded.
    ///
    /// # Errors
    /// The reason why connections to the port are not forwarded.
    pub(crate) async fn wait_for_port(&self, port: u16, max_wait: Duration) -> Result<(), Reason> {
        let _waiting_guard = WaitingGuard::new(&self.0.waiting_count);
        let mut states = self.0.states.subscribe();
        let wait_until_started =
            states.wait_for(|states| *states.state_for(port) != PortState::Starting);
        let state = match timeout(max_wait, wait_until_started).await {
            Err(_) => return Err(Reason::ConnectTimeout),
            // Unreachable: the sender lives as long as `self`.
            Ok(Err(_)) => return Ok(()),
            Ok(Ok(states)) => states.state_for(port).clone(),
        };
        match state {
            // The wait above ends only in a state other than `Starting`.
            PortState::Open | PortState::Starting => Ok(()),
            PortState::Down => Err(Reason::ConnectFailed),
            PortState::Taken { .. } => Err(Reason::PortTaken),
        }
    }
}

/// Counts a waiting request or connection until it is dropped.
struct WaitingGuard<'a>(&'a AtomicU64);

impl<'a> WaitingGuard<'a> {
    fn new(waiting_count: &'a AtomicU64) -> Self {
        waiting_count.fetch_add(1, Ordering::AcqRel);
        Self(waiting_count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PortStates {
    /// True if connections to a port are forwarded.
    pub(crate) fn is_open(&self, port: u16) -> bool {
        *self.state_for(port) == PortState::Open
    }

    /// Returns the state of a port: its own, or that of all other ports.
    fn state_for(&self, port: u16) -> &PortState {
        self.ports.get(&port).unwrap_or(&self.otherwise)
    }
}

/// The maximum time for which a connection waits for an application that starts.
pub(crate) const MAX_START_WAIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn states_with(state: PortState) -> PortStates {
        PortStates { ports: BTreeMap::from([(80, state)]), otherwise: PortState::Open }
    }

    #[tokio::test]
    async fn a_connection_waits_only_for_a_starting_application() {
        let ports = ApplicationPorts::new(PortState::Starting);
        assert!(ports.may_be_closed());
        assert_eq!(ports.wait_for_port(80, Duration::ZERO).await, Err(Reason::ConnectTimeout));
        // `join!` polls its first future first, so the wait begins before the change.
        let (result, ()) = tokio::join!(ports.wait_for_port(80, MAX_START_WAIT), async {
            ports.set_states(states_with(PortState::Open));
        });
        assert_eq!(result, Ok(()));
        assert!(!ports.may_be_closed());
        let taken = PortState::Taken { by: "python3 (7)".to_owned() };
        for (state, expected) in
            [(PortState::Down, Reason::ConnectFailed), (taken, Reason::PortTaken)]
        {
            ports.set_states(states_with(state));
            assert!(ports.may_be_closed());
            assert_eq!(ports.wait_for_port(80, MAX_START_WAIT).await, Err(expected));
            assert_eq!(ports.wait_for_port(81, MAX_START_WAIT).await, Ok(()));
        }
    }

    #[test]
    fn ports_without_a_supervisor_are_open() {
        assert!(!ApplicationPorts::default().may_be_closed());
    }
}
