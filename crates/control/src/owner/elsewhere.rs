//! Sidecars that are connected to other control planes, and that move from one to another.

use std::sync::Arc;

use leno_discovery::{ConnectionId, Registered, Registration};
use leno_model::WorkloadName;

use super::{Now, Owner, in_order};

impl Owner {
    /// Another control plane lists the sidecars that are with it now, and those that left.
    pub(super) fn elsewhere(
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
            if let Some(connection) = self.audience.of_workload(&workload) {
                let ours = self.audience.contact(connection).map_or(0, |contact| contact.session);
                if ours >= session {
                    // It came here since; the other will notice.
                    continue;
                }
                // A stream has many ways to end without our noticing.
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

    /// Nobody of ours is there: what another control plane says counts.
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

    /// A stream, ours or another control plane's, has this sidecar no more: whoever else has it
    /// counts now, and if that is nobody, it may be on its way.
    pub(super) fn succeed(&mut self, workload: &WorkloadName, former: ConnectionId, now: Now) {
        if self.audience.of_workload(workload).is_some() {
            return;
        }
        if self.peers.holder(workload).is_some() {
            self.adopt(workload, now);
        } else {
            let until = now.clock + self.times.grace;
            self.presence.miss(workload, former, until);
        }
    }

    /// Tells other control planes who is here, if any listens.
    pub(super) fn tell_peers(&self) {
        if self.told.here.receiver_count() == 0 {
            return;
        }
        let here = self.audience.contacts().filter_map(|(_, contact)| {
            let listeners = self.mesh.listeners(&contact.workload)?;
            let listeners = listeners.iter();
            let listeners = listeners
                .map(|(port, address)| leno_discovery::InboundListener {
                    port: *port,
                    address: *address,
                })
                .collect();
            let registration = Registration { listeners, session: contact.session };
            Some((contact.workload.clone(), registration))
        });
        let here: Registered = here.collect();
        self.told.here.send_if_modified(|last| {
            let news = **last != here;
            if news {
                *last = Arc::new(here);
            }
            news
        });
    }
}
