//! Checks that a proxy may act for its workload: when it connects or renews, and after every relevant change.

use std::time::Duration;

use leno_discovery::{CertificateReply, ConnectionId};
use leno_identity::VerifiedPeer;
use leno_model::{MeshConfig, WorkloadName};
use tokio::time::Instant;

use super::{EventTime, Owner};
use crate::authority::RevokedWorkloads;
use crate::certify::{
    CertifyError, ClaimError, PreviousCertificate, SignedCertificate, SigningReason, verify_claim,
};
use crate::publish::{ChangeCause, ConnectedProxy};

/// The rejection of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: String,
    /// True if another sidecar joined as the workload after the certificate was issued.
    is_replaced: bool,
}

impl From<String> for Rejection {
    fn from(reason: String) -> Self {
        Self { reason, is_replaced: false }
    }
}

impl Owner {
    pub(super) fn apply_revocations(&mut self, revoked: RevokedWorkloads, now: EventTime) {
        let affected_set = self.mesh.set_revocations(revoked);
        if affected_set.is_empty() {
            return;
        }
        tracing::info!(workloads = self.mesh.revocations().workloads.len(), "revoked");
        self.connected.record_change(
            &affected_set,
            &self.mesh,
            ChangeCause::Revoked,
            now.clock,
            now.clock,
        );
        for name in self.connected.connected_workloads() {
            self.check_claim(&name, now);
        }
    }

    /// Checks the proxy of a changed or removed workload: its identity may no longer be valid.
    pub(super) fn check_claim(&mut self, name: &WorkloadName, now: EventTime) {
        if self.mesh.workload(name).is_none() {
            self.presence.remove_workload(name);
            self.certifier.forget_workload(name);
            self.replaced.remove_workload(name);
        }
        let Some(connection) = self.connected.of_workload(name) else {
            return;
        };
        let peer = self.connected.proxy_mut(connection).map(|proxy| proxy.peer.clone());
        if let Some(Err(rejection)) = peer.map(|peer| self.verify_claim(&peer, name)) {
            self.dismiss_proxy(connection, rejection.reason, now);
            // It cannot return with the same identity: no grace period.
            self.presence.remove_workload(name);
            self.set_listeners(name, None, now);
        }
    }

    pub(super) fn verify_claim(
        &self,
        peer: &VerifiedPeer,
        workload: &WorkloadName,
    ) -> Result<(), Rejection> {
        let MeshConfig { trust_domain, revoked, .. } = self.mesh.config();
        if revoked.contains(&peer.id.account) {
            let reason = format!("{} is revoked by the MeshConfig", peer.id.account);
            return Err(reason.into());
        }
        if self.mesh.revocations().covers_workload(workload, peer.instance.as_ref()) {
            return Err(CertifyError::RevokedWorkload(workload.clone()).to_string().into());
        }
        let found = self.mesh.workload(workload);
        let instance = found.map(|found| self.certifier.instance_of(found));
        verify_claim(peer, workload, found.zip(instance.as_ref()), trust_domain).map_err(|error| {
            let is_replaced = matches!(error, ClaimError::OtherInstance { .. });
            Rejection { reason: error.to_string(), is_replaced }
        })
    }

    /// Records the rejection of a stream, for operators and for the sidecar's supervisor.
    pub(super) fn note_rejected(
        &mut self,
        workload: &WorkloadName,
        rejection: &Rejection,
        now: Instant,
    ) {
        let exists = self.mesh.workload(workload).is_some();
        self.certifier.rejected_joins().record_rejection(workload, exists, &rejection.reason, now);
        if exists && rejection.is_replaced {
            self.replaced.record_rejection(workload, now);
        }
    }

    /// Lets a proxy replace the connected one of its workload, if any, or returns the reason against it.
    ///
    /// A reconnecting proxy replaces its own stream, and a new process that of a proxy that disappeared
    /// silently. If a displaced process reconnects, it was not gone: there are two proxies, and the first keeps
    /// its place.
    pub(super) fn check_replacement(
        &mut self,
        joining: &mut ConnectedProxy,
        now: Instant,
    ) -> Result<(), Rejection> {
        let present = self.connected.of_workload(&joining.workload);
        let Some(present) = present.and_then(|present| self.connected.proxy_mut(present)) else {
            return Ok(());
        };
        let differ = present.process != joining.process;
        if !differ || present.process == 0 || joining.process == 0 || present.is_gone() {
            joining.kept_until = present.kept_until.filter(|_| !differ);
            return Ok(());
        }
        if present.kept_until.is_some_and(|until| now < until) {
            let admin = present.admin.map(|admin| format!(" with its admin page at {admin}"));
            let reason = format!(
                "another proxy of workload {} is connected (process {}{}): a workload has one proxy, stop one \
                 of the two",
                joining.workload,
                present.pid,
                admin.unwrap_or_default()
            );
            return Err(reason.into());
        }
        match present.displaced {
            Some((process, at))
                if process == joining.process && now.duration_since(at) < RETURNS_WITHIN =>
            {
                joining.kept_until = Some(now + KEPT_FOR);
            }
            _ => joining.displaced = Some((present.process, now)),
        }
        Ok(())
    }

    pub(super) fn renew_certificate(
        &mut self,
        connection: ConnectionId,
        csr: Vec<u8>,
        response: CertificateReply,
        now: EventTime,
    ) {
        let proxy = self.connected.proxy_mut(connection);
        let proxy = proxy.map(|it| (it.workload.clone(), PreviousCertificate::from_peer(&it.peer)));
        let Some((name, held)) = proxy else {
            return;
        };
        match self.mesh.workload(&name) {
            Some(workload) if self.mesh.config().revoked.contains(&workload.account) => {
                let error = CertifyError::Revoked(workload.account.clone());
                self.certifier.reject_request(response, error);
            }
            Some(workload) if self.mesh.is_revoked(workload) => {
                let error = CertifyError::RevokedWorkload(workload.name.clone());
                self.certifier.reject_request(response, error);
            }
            Some(workload) => {
                self.certifier
                    .renew_certificate(connection, workload, held, csr, response, now.wall);
            }
            None => self.certifier.reject_request(response, CertifyError::UnknownWorkload(name)),
        }
    }

    /// Extends the stream of a proxy to the lifetime of the certificate that it got over this stream.
    pub(super) fn handle_signed(
        &mut self,
        signed: &SignedCertificate,
        occasion: SigningReason,
        now: EventTime,
    ) {
        let key = format!("{} {}", signed.id, signed.workload);
        if let Some(line) = self.logs.permit_line(key, now.clock.into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %signed.workload, id = %signed.id, suppressed, "signed a certificate");
        }
        if occasion == SigningReason::Join {
            self.replaced.remove_workload(&signed.workload);
            // A stream of an earlier registration ends.
            self.check_claim(&signed.workload, now);
        }
        if let SigningReason::Renewal(connection) = occasion
            && let Some(proxy) = self.connected.proxy_mut(connection)
        {
            proxy.expires = signed.not_after;
            proxy.ca_generation = signed.ca_generation;
        }
    }
}

/// A proxy that lost its stream reconnects sooner, unless it has ended.
const RETURNS_WITHIN: Duration = Duration::from_secs(60);

/// The time for which the first of two proxies keeps its place after its last return; the second one retries
/// every few seconds.
const KEPT_FOR: Duration = Duration::from_secs(600);
