//! Proxies connect, listen, reject resources, renew certificates and disconnect.

use leno_discovery::{CertificateAnswer, Connected, ConnectionId, InboundListener, Refusal};
use tokio::time::Instant;

use super::{Answered, Now, Owner, in_order, wishes};
use crate::certify::{CertifyError, Occasion, Signed};
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
            tracing::debug!(%workload, %connection, "its connection has ended already");
            return Answered::AtOnce;
        };
        let line = self.logs.permit(identity(&peer), now.clock.into_std());
        let suppressed = line.and_then(|line| line.suppressed);
        let claim = self.claim(&peer, &workload);
        let mut contact = Contact::new(connected, peer.clone(), now.clock);
        let is_own = |page| ends.own(page, self.mesh.workload(&workload));
        if contact.admin.is_some_and(|page| !is_own(page)) {
            contact.foreign_admin = contact.admin.take();
        }
        if let Err(reason) = claim {
            if line.is_some() {
                tracing::warn!(%workload, %reason, suppressed, "a proxy is refused");
            }
            contact.dismiss(reason);
            return Answered::AtOnce;
        }
        self.visitors.vouch(connection);
        if line.is_some() {
            tracing::info!(%workload, %connection, suppressed, "a proxy is connected");
        }
        if let Some(former) = self.audience.welcome(connection, contact, now.clock) {
            former.dismiss("a newer stream of the same workload takes its place".to_owned());
        }
        let edition = self.audience.contact(connection).map_or(0, |contact| contact.edition);
        let (issued, not_after) = (peer.issued(), peer.not_after);
        let (workload_of, id) = (workload.clone(), peer.id);
        self.certifier.note(Signed { workload: workload_of, id, issued, not_after, edition });
        self.presence.arrive(&workload, connection);
        // One that has yet to learn its ports withdraws nothing: what was there before it stays
        // until it says where it listens, or for the grace.
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

    pub(super) fn certify(
        &mut self,
        connection: ConnectionId,
        csr: Vec<u8>,
        answer: CertificateAnswer,
        now: Now,
    ) {
        let contact = self.audience.contact(connection);
        let Some(name) = contact.map(|contact| contact.workload.clone()) else {
            return;
        };
        match self.mesh.workload(&name) {
            Some(workload) if self.mesh.config().revoked.contains(&workload.account) => {
                let error = CertifyError::Revoked(workload.account.clone());
                self.certifier.refuse(answer, error);
            }
            Some(workload) => {
                self.certifier.renew((connection, workload), csr, answer, now.wall);
            }
            None => self.certifier.refuse(answer, CertifyError::UnknownWorkload(name)),
        }
    }

    /// The stream of a proxy lasts as long as the certificate that it got over that very stream.
    pub(super) fn signed(&mut self, signed: &Signed, occasion: Occasion) {
        let key = format!("{} {}", signed.id, signed.workload);
        if let Some(line) = self.logs.permit(key, Instant::now().into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %signed.workload, id = %signed.id, suppressed, "signed a certificate");
        }
        if let Occasion::Renewal(connection) = occasion
            && let Some(contact) = self.audience.contact(connection)
        {
            contact.expires = signed.not_after;
            contact.edition = signed.edition;
        }
    }

    pub(super) fn left(&mut self, connection: ConnectionId, now: Now) {
        let Some(contact) = self.audience.part(connection, now.clock) else {
            return;
        };
        if let Some(line) = self.logs.permit(identity(&contact.peer), now.clock.into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %contact.workload, %connection, suppressed, "a proxy has left");
        }
        self.succeed(&contact.workload, connection, now);
    }

    pub(super) fn dismiss(&mut self, connection: ConnectionId, reason: String, now: Now) {
        if let Some(contact) = self.audience.part(connection, now.clock) {
            if let Some(line) = self.logs.permit(identity(&contact.peer), now.clock.into_std()) {
                let suppressed = line.suppressed;
                tracing::warn!(workload = %contact.workload, %reason, suppressed, "a proxy has to go");
            }
            self.succeed(&contact.workload, connection, now);
            contact.dismiss(reason);
        }
    }
}
