//! Processes the reports of other control planes about the sidecars that are connected there, and publishes the
//! sidecars connected here to them. The code calls another control plane of the mesh a peer, and operators see it as
//! another replica.

use std::sync::Arc;

use leno_discovery::{ConnectionId, RegisteredSidecars, Registration};
use leno_model::WorkloadName;

use super::{ControlState, EventTime, listener_map};

impl ControlState {
    /// Processes another control plane's report of sidecars that connected there or disconnected.
    pub(super) fn apply_replica_report(
        &mut self,
        peer: ConnectionId,
        connected_sidecars: RegisteredSidecars,
        disconnected_workloads: &[WorkloadName],
        now: EventTime,
    ) {
        self.peers.add_peer(peer);
        for (workload, registration) in connected_sidecars {
            let session = registration.session;
            self.peers.record_registration(peer, workload.clone(), registration);
            if let Some(connection) = self.connected_proxies.connection_of_workload(&workload) {
                let own_session =
                    self.connected_proxies.proxy_mut(connection).map_or(0, |proxy| proxy.session);
                if own_session >= session {
                    // The sidecar has reconnected here since then. The other control plane receives that report.
                    continue;
                }
                // The stream here is dead, although its end was not noticed.
                let reason = "another control plane has a newer stream of this workload";
                self.dismiss_proxy(connection, reason.to_owned(), now);
            } else {
                self.apply_registration(&workload, now);
            }
        }
        for workload in disconnected_workloads {
            self.peers.remove_sidecar(peer, workload);
            self.handle_stream_end(workload, peer, now);
        }
    }

    /// Applies another control plane's report for a workload without a stream here.
    pub(super) fn apply_registration(&mut self, workload: &WorkloadName, now: EventTime) {
        let Some((peer, Registration { listeners, .. })) = self.peers.newest_registration(workload)
        else {
            return;
        };
        let listeners = listener_map(listeners);
        if self.mesh.workload(workload).is_some() {
            self.presence.mark_connected(workload, peer);
            self.set_listeners(workload, Some(listeners), now);
        }
    }

    /// Handles the end of a sidecar's stream, here or at another control plane. If the sidecar has another stream, that
    /// stream takes over. Otherwise the sidecar may be reconnecting, and its grace period starts.
    pub(super) fn handle_stream_end(
        &mut self,
        workload: &WorkloadName,
        previous_connection: ConnectionId,
        now: EventTime,
    ) {
        if self.connected_proxies.connection_of_workload(workload).is_some() {
            return;
        }
        if self.peers.newest_registration(workload).is_some() {
            self.apply_registration(workload, now);
        } else {
            let deadline = now.clock + self.times.disconnect_grace;
            self.presence.mark_missing(workload, previous_connection, deadline);
        }
    }

    /// Publishes the sidecars connected here to the connected control planes. Does nothing if none is connected.
    pub(super) fn publish_to_peers(&self) {
        if self.outputs.local_sidecars.receiver_count() == 0 {
            return;
        }
        let local_sidecars: RegisteredSidecars = self
            .connected_proxies
            .proxies()
            .filter_map(|(_, proxy)| {
                let listeners =
                    self.mesh.sidecar_listeners(&proxy.workload)?.iter().map(|(port, address)| {
                        leno_discovery::InboundListener { port: *port, address: *address }
                    });
                let registration =
                    Registration { listeners: listeners.collect(), session: proxy.session };
                Some((proxy.workload.clone(), registration))
            })
            .collect();
        self.outputs.local_sidecars.send_if_modified(|published| {
            let has_changed = **published != local_sidecars;
            if has_changed {
                *published = Arc::new(local_sidecars);
            }
            has_changed
        });
    }
}
