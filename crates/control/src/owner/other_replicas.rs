//! Sidecars that are connected to other control planes, and their moves between control planes.

use std::sync::Arc;

use leno_discovery::{ConnectionId, Registered, Registration};
use leno_model::WorkloadName;

use super::{Now, Owner, in_order};

impl Owner {
    /// Processes another control plane's report of sidecars that connected there or disconnected.
    pub(super) fn other_replicas(
        &mut self,
        peer: ConnectionId,
        here: Registered,
        gone: &[WorkloadName],
        now: Now,
    ) {
        self.peers.arrive(peer);
        for (workload, registration) in here {
            let session = registration.session;
            self.peers.tell(peer, workload.clone(), registration);
            if let Some(connection) = self.connected.of_workload(&workload) {
                let ours = self.connected.proxy(connection).map_or(0, |proxy| proxy.session);
                if ours >= session {
                    // It has connected here since; the other control plane will notice.
                    continue;
                }
                // A stream can end unnoticed in many ways.
                let reason = "another control plane has a newer stream of this workload";
                self.dismiss(connection, reason.to_owned(), now);
            } else {
                self.adopt(&workload, now);
            }
        }
        for workload in gone {
            self.peers.forget(peer, workload);
            self.succeed(workload, peer, now);
        }
    }

    /// Applies another control plane's report for a workload without a stream here.
    pub(super) fn adopt(&mut self, workload: &WorkloadName, now: Now) {
        let Some((peer, Registration { listeners, .. })) = self.peers.holder(workload) else {
            return;
        };
        let listeners = in_order(listeners);
        if self.mesh.workload(workload).is_some() {
            self.presence.arrive(workload, peer);
            self.listen(workload, Some(listeners), now);
        }
    }

    /// Handles the end of a sidecar's stream, here or at another control plane: another stream takes over if
    /// there is one; otherwise the sidecar may be reconnecting.
    pub(super) fn succeed(&mut self, workload: &WorkloadName, former: ConnectionId, now: Now) {
        if self.connected.of_workload(workload).is_some() {
            return;
        }
        if self.peers.holder(workload).is_some() {
            self.adopt(workload, now);
        } else {
            let until = now.clock + self.times.grace;
            self.presence.miss(workload, former, until);
        }
    }

    /// Publishes the sidecars connected here to other control planes, if any follows.
    pub(super) fn tell_peers(&self) {
        if self.sent.here.receiver_count() == 0 {
            return;
        }
        let here = self.connected.proxies().filter_map(|(_, proxy)| {
            let listeners = self.mesh.listeners(&proxy.workload)?;
            let listeners = listeners.iter();
            let listeners = listeners
                .map(|(port, address)| leno_discovery::InboundListener {
                    port: *port,
                    address: *address,
                })
                .collect();
            let registration = Registration { listeners, session: proxy.session };
            Some((proxy.workload.clone(), registration))
        });
        let here: Registered = here.collect();
        self.sent.here.send_if_modified(|last| {
            let has_changed = **last != here;
            if has_changed {
                *last = Arc::new(here);
            }
            has_changed
        });
    }
}
