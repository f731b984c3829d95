//! Checks that a proxy may act for its workload: when it connects or renews, and after every relevant change.

use std::time::Duration;

use leno_discovery::{CertificateReply, ConnectionId};
use leno_identity::VerifiedPeer;
use leno_model::{MeshConfig, WorkloadName};
use tokio::time::Instant;

use super::{ControlState, EventTime};
use crate::authority::RevokedWorkloads;
use crate::certify::{
    CertifyError, ClaimError, PreviousCertificate, SignedCertificate, SigningReason, verify_claim,
};
use crate::publish::{ChangeCause, ConnectedProxy, ReplacedProcess};

/// The rejection of a proxy's stream.
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

impl ControlState {
    pub(super) fn apply_revocations(&mut self, revoked: RevokedWorkloads, now: EventTime) {
        let affected_set = self.mesh.set_revocations(revoked);
        if affected_set.is_empty() {
            return;
        }
        tracing::info!(workloads = self.mesh.revocations().workloads.len(), "revoked");
        self.connected_proxies.record_change(
            &affected_set,
            &self.mesh,
            ChangeCause::RevocationsChanged,
            now.clock,
            now.clock,
        );
        for name in self.connected_proxies.connected_workloads() {
            self.enforce_claim(&name, now);
        }
    }

    /// Dismisses the connected proxy of a workload if its certificate no longer authorizes it, after a change of the
    /// workload or of the revocations. Forgets a workload that was removed.
    pub(super) fn enforce_claim(&mut self, name: &WorkloadName, now: EventTime) {
        if self.mesh.workload(name).is_none() {
            self.presence.remove_workload(name);
            self.certifier.forget_workload(name);
            self.replaced_rejections.remove_workload(name);
        }
        let Some(connection) = self.connected_proxies.connection_of_workload(name) else {
            return;
        };
        let peer = self.connected_proxies.proxy_mut(connection).map(|proxy| proxy.peer.clone());
        if let Some(Err(rejection)) = peer.map(|peer| self.verify_claim(&peer, name)) {
            self.dismiss_proxy(connection, rejection.reason, now);
            // The proxy gets no grace period, because it cannot connect again with the same identity.
            self.presence.remove_workload(name);
            self.set_listeners(name, None, now);
        }
    }

    /// Verifies that a peer's certificate authorizes it to act for a workload, and that neither is revoked.
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
        let workload_object = self.mesh.workload(workload);
        let instance =
            workload_object.map(|workload_object| self.certifier.instance_of(workload_object));
        verify_claim(peer, workload, workload_object.zip(instance.as_ref()), trust_domain).map_err(
            |error| {
                let is_replaced = matches!(error, ClaimError::OtherInstance { .. });
                Rejection { reason: error.to_string(), is_replaced }
            },
        )
    }

    /// Records the rejection of a stream, for operators and for the sidecar's supervisor.
    pub(super) fn record_stream_rejection(
        &mut self,
        workload: &WorkloadName,
        rejection: &Rejection,
        now: Instant,
    ) {
        let exists = self.mesh.workload(workload).is_some();
        self.certifier.rejected_joins().record_rejection(workload, exists, &rejection.reason, now);
        if exists && rejection.is_replaced {
            self.replaced_rejections.record_rejection(workload, now);
        }
    }

    /// Decides if a new proxy may replace the connected proxy of its workload, and records its protection or the
    /// replaced process in `new_proxy`. Without a connected proxy, it may always connect.
    ///
    /// A reconnecting proxy replaces its own stream. A new process replaces the stream of another process, because that
    /// process may have stopped without closing its connection. If the replaced process reconnects, two proxies run for
    /// one workload. The reconnected proxy is then protected from replacement for [`PROTECTION_TIME`].
    pub(super) fn decide_replacement(
        &mut self,
        new_proxy: &mut ConnectedProxy,
        now: Instant,
    ) -> Result<(), Rejection> {
        let connection = self.connected_proxies.connection_of_workload(&new_proxy.workload);
        let Some(connected_proxy) =
            connection.and_then(|connection| self.connected_proxies.proxy_mut(connection))
        else {
            return Ok(());
        };
        let is_other_process = connected_proxy.process_number != new_proxy.process_number;
        if !is_other_process
            || connected_proxy.process_number == 0
            || new_proxy.process_number == 0
            || connected_proxy.is_closed()
        {
            new_proxy.protected_until =
                connected_proxy.protected_until.filter(|_| !is_other_process);
            return Ok(());
        }
        if connected_proxy.protected_until.is_some_and(|until| now < until) {
            let admin = connected_proxy
                .admin_address
                .map(|admin| format!(" with its admin endpoint at {admin}"));
            let reason = format!(
                "another proxy of workload {} is connected (process {}{}): a workload has one proxy, stop one \
                 of the two",
                new_proxy.workload,
                connected_proxy.pid,
                admin.unwrap_or_default()
            );
            return Err(reason.into());
        }
        match connected_proxy.replaced_process {
            Some(replaced)
                if replaced.process_number == new_proxy.process_number
                    && now.duration_since(replaced.replaced_at) < MAX_RECONNECT_TIME =>
            {
                new_proxy.protected_until = Some(now + PROTECTION_TIME);
            }
            _ => {
                let process_number = connected_proxy.process_number;
                new_proxy.replaced_process =
                    Some(ReplacedProcess { process_number, replaced_at: now });
            }
        }
        Ok(())
    }

    pub(super) fn renew_certificate(
        &mut self,
        connection: ConnectionId,
        csr: Vec<u8>,
        reply: CertificateReply,
        now: EventTime,
    ) {
        let Some(proxy) = self.connected_proxies.proxy_mut(connection) else {
            return;
        };
        let (name, previous_certificate) =
            (proxy.workload.clone(), PreviousCertificate::from_peer(&proxy.peer));
        match self.mesh.workload(&name) {
            Some(workload) if self.mesh.config().revoked.contains(&workload.account) => {
                let error = CertifyError::Revoked(workload.account.clone());
                self.certifier.reject_request(reply, error);
            }
            Some(workload) if self.mesh.is_revoked(workload) => {
                let error = CertifyError::RevokedWorkload(workload.name.clone());
                self.certifier.reject_request(reply, error);
            }
            Some(workload) => {
                self.certifier.renew_certificate(
                    connection,
                    workload,
                    previous_certificate,
                    csr,
                    reply,
                    now.wall_time,
                );
            }
            None => self.certifier.reject_request(reply, CertifyError::UnknownWorkload(name)),
        }
    }

    /// Processes a signed certificate. If a proxy renewed its certificate, the proxy's stream may stay open until the
    /// new certificate expires.
    pub(super) fn handle_signed(
        &mut self,
        certificate: &SignedCertificate,
        reason: SigningReason,
        now: EventTime,
    ) {
        let key = format!("{} {}", certificate.id, certificate.workload);
        if let Some(line) = self.log_limits.permit_line(key, now.clock.into_std()) {
            let suppressed = line.suppressed;
            tracing::info!(workload = %certificate.workload, id = %certificate.id, suppressed, "signed a certificate");
        }
        if reason == SigningReason::Join {
            self.replaced_rejections.remove_workload(&certificate.workload);
            // A stream of an earlier registration ends.
            self.enforce_claim(&certificate.workload, now);
        }
        if let SigningReason::Renewal(connection) = reason
            && let Some(proxy) = self.connected_proxies.proxy_mut(connection)
        {
            proxy.expires_at = certificate.not_after;
            proxy.ca_generation = certificate.ca_generation;
        }
    }
}

/// The maximum time in which a replaced proxy that still runs reconnects.
const MAX_RECONNECT_TIME: Duration = Duration::from_secs(60);

/// The time for which the first of two proxies of a workload cannot be replaced after it reconnected; the
/// second one retries every few seconds.
const PROTECTION_TIME: Duration = Duration::from_secs(600);
