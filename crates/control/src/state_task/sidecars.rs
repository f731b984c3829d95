//! Publishes facts about sidecars to the Kubernetes integration, which writes them to events and conditions: rejected
//! plaintext clients, and workloads without a connected sidecar.

use std::sync::Arc;

use leno_model::{
    MAX_DISCONNECTED, MAX_REJECTED_CLIENTS, RejectedClient, SidecarConnections, SidecarFacts,
};

use super::ControlState;
use crate::publish::GracePeriod;

impl ControlState {
    /// Publishes the facts about sidecars, if a receiver exists.
    pub(super) fn publish_sidecar_facts(&self) {
        if self.outputs.sidecar_facts.receiver_count() == 0 {
            return;
        }
        let facts = SidecarFacts {
            rejected_clients: self.rejected_clients(),
            connections: self.sidecar_connections(),
        };
        self.outputs.sidecar_facts.send_if_modified(|published| {
            let is_new = **published != facts;
            if is_new {
                *published = Arc::new(facts);
            }
            is_new
        });
    }

    /// Returns the clients that sidecars rejected because of plaintext, each with its kind: a member of the mesh or not.
    fn rejected_clients(&self) -> Vec<RejectedClient> {
        let mut rejected_clients = Vec::new();
        for (_, proxy) in self.connected_proxies.proxies() {
            let conditions = proxy.report.conditions.iter();
            for (port, clients) in
                conditions.filter_map(leno_discovery::ProxyCondition::rejected_clients)
            {
                let Some(workload) = self.mesh.workload(&proxy.workload) else { continue };
                rejected_clients.extend(clients.into_iter().map(|client| RejectedClient {
                    workload: workload.name.clone(),
                    uid: workload.uid.clone(),
                    client,
                    port,
                    kind: self.mesh.plaintext_client(client),
                }));
            }
        }
        rejected_clients.sort_unstable();
        rejected_clients.truncate(MAX_REJECTED_CLIENTS);
        rejected_clients
    }

    /// Returns the ready workloads without a connected sidecar; `None` during the startup grace period. A
    /// sidecar that has just lost its connection is not listed: it may be moving to another control plane.
    fn sidecar_connections(&self) -> Option<SidecarConnections> {
        if self.startup_grace.grace_state() == GracePeriod::Active {
            return None;
        }
        let is_connected = |name| {
            self.connected_proxies.workload_proxy(name).is_some()
                || self.peers.newest_registration(name).is_some()
                || self.presence.is_missing(name)
        };
        let ready_workloads = self.mesh.workloads().filter(|workload| workload.ready);
        let mut disconnected_names =
            ready_workloads.map(|workload| &workload.name).filter(|name| !is_connected(*name));
        let disconnected: Vec<_> =
            disconnected_names.by_ref().take(MAX_DISCONNECTED).cloned().collect();
        let count = disconnected.len() + disconnected_names.count();
        Some(SidecarConnections { peers: self.peers.peer_count(), disconnected, count })
    }
}
