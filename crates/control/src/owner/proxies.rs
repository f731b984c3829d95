//! Proxy events: connect, listen, reject resources and disconnect.

use std::time::{SystemTime, UNIX_EPOCH};

use leno_discovery::{Connected, ConnectionId, InboundListener, Refusal};

use super::{Answered, Now, Owner, in_order, wishes};
use crate::certify::Signed;
use crate::publish::Contact;
use crate::server::identity;

impl Owner {
    pub(super) fn refused(&mut self, connection: ConnectionId, refusals: Vec<Refusal>, now: Now) {
        self.audience.tally.refused += 1;
        self.audience.rounds.refuse(connection);
        let Some(contact) = self.audience.contact(connection) else { return };
        let at = now.clock.into_std();
        for refusal in &refusals {
            if let Some(line) = self.logs.permit(identity(&contact.peer), at) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %contact.workload, %refusal, suppressed, "refused");
            }
        }
        contact.refused(refusals);
    }

    pub(super) fn connected(&mut self, connected: Connected, now: Now) -> Answered {
        let connection = connected.connection;
        let workload = connected.hello.workload.clone();
        let wanted = wishes::of(&connected.hello);
        let listeners = in_order(&connected.hello.listeners);
        let Some((peer, ends)) = self.visitors.peer(connection) else {
            tracing::debug!(%workload, %connection, "the connection has already ended");
            return Answered::AtOnce;
        };
        let line = self.logs.permit(identity(&peer), now.clock.into_std());
        let suppressed = line.and_then(|line| line.suppressed);
        if let Some(found) = self.mesh.workload(&workload) {
            self.certifier.look_up_registration(found);
        }
        let claim = self.claim(&peer, &workload);
        let mut contact = Contact::new(connected, peer.clone(), now.clock);
        contact.session = contact.session.min(session_max(now.wall));
        let is_own = |page| ends.own(page, self.mesh.workload(&workload));
        if contact.admin.is_some_and(|page| !is_own(page)) {
            contact.foreign_admin = contact.admin.take();
        }
        if let Err(rejection) = claim.and_then(|()| self.contend(&mut contact, now.clock)) {
            self.note_rejected(&workload, &rejection, now.clock);
            let reason = rejection.reason;
            if line.is_some() {
                tracing::warn!(%workload, %reason, suppressed, "proxy rejected");
            }
            contact.dismiss(reason);
            return Answered::AtOnce;
        }
        self.visitors.vouch(connection);
        self.replaced.forget(&workload);
        if line.is_some() {
            tracing::info!(%workload, %connection, suppressed, "proxy connected");
        }
        if let Some(former) = self.audience.welcome(connection, contact, now.clock) {
            former.dismiss("replaced by a newer stream of the same workload".to_owned());
        }
        let edition = self.audience.contact(connection).map_or(0, |contact| contact.edition);
        let (issued, not_after) = (peer.issued(), peer.not_after);
        let (workload_of, id, instance) = (workload.clone(), peer.id, peer.instance);
        let signed = Signed { workload: workload_of, id, instance, issued, not_after, edition };
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
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        let workload = contact.workload.clone();
        self.presence.arrive(&workload, connection);
        self.listen(&workload, Some(in_order(listeners)), now);
    }

    pub(super) fn left(&mut self, connection: ConnectionId, now: Now) {
        let Some(contact) = self.audience.part(connection, now.clock) else {
            return;
        };
        if let Some(line) = self.logs.permit(identity(&contact.peer), now.clock.into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %contact.workload, %connection, suppressed, "proxy disconnected");
        }
        self.succeed(&contact.workload, connection, now);
    }

    pub(super) fn dismiss(&mut self, connection: ConnectionId, reason: String, now: Now) {
        if let Some(contact) = self.audience.part(connection, now.clock) {
            if let Some(line) = self.logs.permit(identity(&contact.peer), now.clock.into_std()) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %contact.workload, %reason, suppressed, "disconnecting proxy");
            }
            self.succeed(&contact.workload, connection, now);
            contact.dismiss(reason);
        }
    }
}

/// The highest session number of a stream that connects now: proxies number their streams by time. A proxy with
/// a higher one would block later streams of its workload at other control planes.
fn session_max(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
