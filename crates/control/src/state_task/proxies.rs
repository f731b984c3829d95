//! Handles the events of proxies: a proxy connects, reports its listeners, rejects resources, or disconnects.

use std::time::{SystemTime, UNIX_EPOCH};

use leno_discovery::{Connected, ConnectionId, InboundListener, ResourceRejection};

use super::subscriptions::initial_subscriptions;
use super::{ControlState, EventHandling, EventTime, listener_map};
use crate::certify::SignedCertificate;
use crate::publish::ConnectedProxy;
use crate::server::peer_identity;

impl ControlState {
    pub(super) fn record_rejections(
        &mut self,
        connection: ConnectionId,
        rejections: Vec<ResourceRejection>,
        now: EventTime,
    ) {
        self.connected_proxies.counters.rejected += 1;
        self.connected_proxies.pushes.record_nack(connection);
        let Some(proxy) = self.connected_proxies.proxy_mut(connection) else { return };
        let log_time = now.clock.into_std();
        for rejection in &rejections {
            if let Some(line) = self.log_limits.permit_line(peer_identity(&proxy.peer), log_time) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %proxy.workload, reason = %rejection, suppressed, "update rejected");
            }
        }
        proxy.record_rejections(rejections);
    }

    /// Verifies a proxy's `Hello`, registers the proxy, and sends its first configuration.
    pub(super) fn handle_connected(
        &mut self,
        connected: Connected,
        now: EventTime,
    ) -> EventHandling {
        let connection = connected.connection;
        let workload = connected.hello.workload.clone();
        let subscriptions = initial_subscriptions(&connected.hello);
        let listeners = listener_map(&connected.hello.listeners);
        let Some((peer, connection_addresses)) = self.verified_connections.peer(connection) else {
            tracing::debug!(%workload, %connection, "the connection has already ended");
            return EventHandling::Handled;
        };
        let log_line = self.log_limits.permit_line(peer_identity(&peer), now.clock.into_std());
        let suppressed = log_line.and_then(|log_line| log_line.suppressed);
        // Verify the proxy.
        if let Some(workload_object) = self.mesh.workload(&workload) {
            self.certifier.read_registration(workload_object);
        }
        let claim_result = self.verify_claim(&peer, &workload);
        let mut proxy = ConnectedProxy::new(connected, peer.clone(), now.clock);
        proxy.session = proxy.session.min(highest_session(now.wall_time));
        let is_own_address =
            |admin| connection_addresses.is_own_address(admin, self.mesh.workload(&workload));
        if proxy.admin_address.is_some_and(|admin| !is_own_address(admin)) {
            proxy.reported_admin_address = proxy.admin_address.take();
        }
        if let Err(rejection) =
            claim_result.and_then(|()| self.decide_replacement(&mut proxy, now.clock))
        {
            self.record_stream_rejection(&workload, &rejection, now.clock);
            let reason = rejection.reason;
            if log_line.is_some() {
                tracing::warn!(%workload, %reason, suppressed, "proxy rejected");
            }
            proxy.end_connection(reason);
            return EventHandling::Handled;
        }
        // Register the proxy.
        self.verified_connections.mark_authenticated(connection);
        self.replaced_rejections.remove_workload(&workload);
        if log_line.is_some() {
            tracing::info!(%workload, %connection, suppressed, "proxy connected");
        }
        if let Some(previous_proxy) = self.connected_proxies.add_proxy(connection, proxy, now.clock)
        {
            previous_proxy
                .end_connection("replaced by a newer stream of the same workload".to_owned());
        }
        let ca_generation =
            self.connected_proxies.proxy_mut(connection).map_or(0, |proxy| proxy.ca_generation);
        let (issued, not_after) = (peer.issue_time(), peer.not_after);
        let (certified_workload, id, instance) = (workload.clone(), peer.id, peer.instance);
        let certificate = SignedCertificate {
            workload: certified_workload,
            id,
            instance,
            issued,
            not_after,
            ca_generation,
        };
        self.certifier.record_certificate(certificate);
        self.presence.mark_connected(&workload, connection);
        // The first report of a reconnected proxy may have no listeners yet. The previous addresses then stay in use
        // until the proxy reports new ones, or until the grace period ends.
        let has_ports = self
            .mesh
            .workload(&workload)
            .is_some_and(|workload_object| !workload_object.ports.is_empty());
        if listeners.is_empty() && has_ports {
            if self.mesh.sidecar_listeners(&workload).is_some() {
                let grace_end = now.clock + self.times.disconnect_grace;
                self.presence.mark_uncertain(&workload, grace_end);
            }
        } else {
            self.set_listeners(&workload, Some(listeners), now);
        }
        self.change_subscriptions(connection, subscriptions, now)
    }

    pub(super) fn update_listeners(
        &mut self,
        connection: ConnectionId,
        listeners: &[InboundListener],
        now: EventTime,
    ) {
        let Some(proxy) = self.connected_proxies.proxy_mut(connection) else {
            return;
        };
        let workload = proxy.workload.clone();
        self.presence.mark_connected(&workload, connection);
        self.set_listeners(&workload, Some(listener_map(listeners)), now);
    }

    pub(super) fn handle_disconnect(&mut self, connection: ConnectionId, now: EventTime) {
        let Some(proxy) = self.connected_proxies.remove_proxy(connection, now.clock) else {
            return;
        };
        if let Some(line) =
            self.log_limits.permit_line(peer_identity(&proxy.peer), now.clock.into_std())
        {
            let suppressed = line.suppressed;
            tracing::info!(workload = %proxy.workload, %connection, suppressed, "proxy disconnected");
        }
        self.handle_stream_end(&proxy.workload, connection, now);
    }

    /// Ends the stream of a proxy; the proxy receives the reason.
    pub(super) fn dismiss_proxy(
        &mut self,
        connection: ConnectionId,
        reason: String,
        now: EventTime,
    ) {
        if let Some(proxy) = self.connected_proxies.remove_proxy(connection, now.clock) {
            if let Some(line) =
                self.log_limits.permit_line(peer_identity(&proxy.peer), now.clock.into_std())
            {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %proxy.workload, %reason, suppressed, "disconnecting proxy");
            }
            self.handle_stream_end(&proxy.workload, connection, now);
            proxy.end_connection(reason);
        }
    }
}

/// Returns the highest session number of a stream that connects now. Proxies number their streams by time, in
/// microseconds since 1970. A higher number would block later streams of the workload at other control planes.
fn highest_session(now: SystemTime) -> u64 {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}
