//! Proxy events: connect, listen, reject resources and disconnect.

use std::time::{SystemTime, UNIX_EPOCH};

use leno_discovery::{Connected, ConnectionId, InboundListener, Refusal};

use super::{Answered, Now, Owner, in_order, subscriptions};
use crate::certify::Signed;
use crate::publish::ConnectedProxy;
use crate::server::identity;

impl Owner {
    pub(super) fn refused(&mut self, connection: ConnectionId, refusals: Vec<Refusal>, now: Now) {
        self.connected.tally.refused += 1;
        self.connected.rounds.refuse(connection);
        let Some(proxy) = self.connected.proxy(connection) else { return };
        let at = now.clock.into_std();
        for refusal in &refusals {
            if let Some(line) = self.logs.permit(identity(&proxy.peer), at) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %proxy.workload, %refusal, suppressed, "refused");
            }
        }
        proxy.refused(refusals);
    }

    pub(super) fn connected(&mut self, connected: Connected, now: Now) -> Answered {
        let connection = connected.connection;
        let workload = connected.hello.workload.clone();
        let wanted = subscriptions::of(&connected.hello);
        let listeners = in_order(&connected.hello.listeners);
        let Some((peer, ends)) = self.pending_connections.peer(connection) else {
            tracing::debug!(%workload, %connection, "the connection has already ended");
            return Answered::AtOnce;
        };
        let line = self.logs.permit(identity(&peer), now.clock.into_std());
        let suppressed = line.and_then(|line| line.suppressed);
        if let Some(found) = self.mesh.workload(&workload) {
            self.certifier.look_up_registration(found);
        }
        let claim = self.claim(&peer, &workload);
        let mut proxy = ConnectedProxy::new(connected, peer.clone(), now.clock);
        proxy.session = proxy.session.min(session_max(now.wall));
        let is_own = |page| ends.own(page, self.mesh.workload(&workload));
        if proxy.admin.is_some_and(|page| !is_own(page)) {
            proxy.foreign_admin = proxy.admin.take();
        }
        if let Err(rejection) = claim.and_then(|()| self.contend(&mut proxy, now.clock)) {
            self.note_rejected(&workload, &rejection, now.clock);
            let reason = rejection.reason;
            if line.is_some() {
                tracing::warn!(%workload, %reason, suppressed, "proxy rejected");
            }
            proxy.dismiss(reason);
            return Answered::AtOnce;
        }
        self.pending_connections.vouch(connection);
        self.replaced.forget(&workload);
        if line.is_some() {
            tracing::info!(%workload, %connection, suppressed, "proxy connected");
        }
        if let Some(former) = self.connected.welcome(connection, proxy, now.clock) {
            former.dismiss("replaced by a newer stream of the same workload".to_owned());
        }
        let ca_generation = self.connected.proxy(connection).map_or(0, |proxy| proxy.ca_generation);
        let (issued, not_after) = (peer.issued(), peer.not_after);
        let (workload_of, id, instance) = (workload.clone(), peer.id, peer.instance);
        let signed =
            Signed { workload: workload_of, id, instance, issued, not_after, ca_generation };
        self.certifier.note(signed);
        self.presence.arrive(&workload, connection);
        // A reconnected proxy without its ports yet withdraws nothing: the known addresses stay until it
        // reports its own, or for the grace period.
        let serves = self.mesh.workload(&workload).is_some_and(|w| !w.ports.is_empty());
        if listeners.is_empty() && serves {
            if self.mesh.listeners(&workload).is_some() {
                let until = now.clock + self.times.grace;
                self.presence.doubt(&workload, until);
            }
        } else {
            self.listen(&workload, Some(listeners), now);
        }
        self.want(connection, wanted, now)
    }

    pub(super) fn listeners(
        &mut self,
        connection: ConnectionId,
        listeners: &[InboundListener],
        now: Now,
    ) {
        let Some(proxy) = self.connected.proxy(connection) else {
            return;
        };
        let workload = proxy.workload.clone();
        self.presence.arrive(&workload, connection);
        self.listen(&workload, Some(in_order(listeners)), now);
    }

    pub(super) fn left(&mut self, connection: ConnectionId, now: Now) {
        let Some(proxy) = self.connected.part(connection, now.clock) else {
            return;
        };
        if let Some(line) = self.logs.permit(identity(&proxy.peer), now.clock.into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %proxy.workload, %connection, suppressed, "proxy disconnected");
        }
        self.succeed(&proxy.workload, connection, now);
    }

    pub(super) fn dismiss(&mut self, connection: ConnectionId, reason: String, now: Now) {
        if let Some(proxy) = self.connected.part(connection, now.clock) {
            if let Some(line) = self.logs.permit(identity(&proxy.peer), now.clock.into_std()) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %proxy.workload, %reason, suppressed, "disconnecting proxy");
            }
            self.succeed(&proxy.workload, connection, now);
            proxy.dismiss(reason);
        }
    }
}

/// The highest session number of a stream that connects now: proxies number their streams by time. A proxy with
/// a higher one would block later streams of its workload at other control planes.
fn session_max(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
