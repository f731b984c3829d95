//! Which doors are open, for whoever started the proxy and for its readiness.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::sync::watch;

/// Where the proxy's doors are, by name, once they are open.
#[derive(Debug, Clone)]
pub(crate) struct Doors(watch::Sender<Option<BTreeMap<String, SocketAddr>>>);

impl Doors {
    pub(crate) fn new() -> Self {
        Self(watch::channel(None).0)
    }

    pub(crate) fn publish(&self, addresses: BTreeMap<String, SocketAddr>) {
        self.0.send_if_modified(|published| {
            let changed = published.as_ref() != Some(&addresses);
            *published = Some(addresses);
            changed
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<BTreeMap<String, SocketAddr>>> {
        self.0.subscribe()
    }

    /// What is open now; `None` before the first plan.
    pub(crate) fn now(&self) -> Option<BTreeMap<String, SocketAddr>> {
        self.0.borrow().clone()
    }
}
