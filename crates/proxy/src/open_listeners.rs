//! Publishes the states of the listeners, for the program that started the proxy and for the readiness check.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

/// The published states of the listeners; `None` before the first attempt to open them.
#[derive(Debug, Clone)]
pub(crate) struct OpenListeners(watch::Sender<Option<Arc<ListenerStates>>>);

/// The states of a proxy's listeners: each is open or closed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListenerStates {
    /// The addresses of the open listeners by name, for example `inbound-PORT`, `listener-ADDRESS` or
    /// `http-proxy`.
    pub open: BTreeMap<String, SocketAddr>,
    /// The errors of the closed listeners by name.
    pub closed: BTreeMap<String, String>,
}

impl OpenListeners {
    pub(crate) fn new() -> Self {
        Self(watch::channel(None).0)
    }

    /// Publishes the states. Subscribers are notified only if the states have changed.
    pub(crate) fn publish(
        &self,
        open: BTreeMap<String, SocketAddr>,
        closed: BTreeMap<String, String>,
    ) {
        let states = ListenerStates { open, closed };
        self.0.send_if_modified(|current| {
            let has_changed = current.as_deref() != Some(&states);
            *current = Some(Arc::new(states));
            has_changed
        });
    }

    /// Subscribes to the states; `None` before the first attempt to open the listeners.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<ListenerStates>>> {
        self.0.subscribe()
    }

    /// Returns the current states; `None` before the first attempt to open the listeners.
    pub(crate) fn current_states(&self) -> Option<Arc<ListenerStates>> {
        self.0.borrow().clone()
    }
}
