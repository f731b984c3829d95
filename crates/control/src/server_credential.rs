//! Issues and renews the control plane's own credential, which its own authority signs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{ALPN, JOIN_ALPN, PEER_ALPN};
use leno_identity::{
    Authority, AuthorityError, CertificateRequest, CertificateRequestError, CertificateSubject,
    Credential, CredentialError, PrivateKey, TlsError, client_config, control_id,
    join_server_config,
};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::authority::AuthorityReceiver;

/// The control plane's credential, the TLS configurations with it, and their renewal.
#[derive(Debug)]
pub(crate) struct ServerCredential {
    authority: AuthorityReceiver,
    lifetime: Duration,
    credential: Credential,
    server_configs: watch::Sender<Arc<ServerConfig>>,
    /// The configuration for connections to other control planes.
    client_configs: watch::Sender<Arc<ClientConfig>>,
    /// True if the authority has changed since the credential was issued.
    is_stale: bool,
}

impl ServerCredential {
    /// Issues the first credential. Its key is never on disk: it lives as long as this process.
    pub(crate) fn new(
        authority: AuthorityReceiver,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, ServerCredentialError> {
        let credential = issue_credential(&authority.borrow(), lifetime, now)?;
        let (server_config, peer_config) = tls_configs(&credential)?;
        Ok(Self {
            authority,
            lifetime,
            credential,
            server_configs: watch::Sender::new(server_config),
            client_configs: watch::Sender::new(peer_config),
            is_stale: false,
        })
    }

    /// Returns a receiver of the TLS configuration for new connections to other control planes.
    pub(crate) fn watch_client_config(&self) -> watch::Receiver<Arc<ClientConfig>> {
        self.client_configs.subscribe()
    }

    /// Returns a receiver of the TLS configuration for new incoming connections. Open connections are not affected.
    pub(crate) fn watch_server_config(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.server_configs.subscribe()
    }

    /// Renews the credential before half of its lifetime has passed, and when the authority changes. Returns when there
    /// is no receiver left.
    pub(crate) async fn renew_until_closed(mut self) {
        let mut delay = self.time_until_check(SystemTime::now());
        let mut authority = self.authority.clone();
        loop {
            tokio::select! {
                () = self.server_configs.closed() => return,
                // Without a sender the authority never changes, and this branch is disabled.
                Ok(()) = authority.changed() => self.is_stale = true,
                () = tokio::time::sleep(delay) => {}
            }
            let now = SystemTime::now();
            delay = match self.time_until_check(now) {
                remaining_time if !self.is_stale && !remaining_time.is_zero() => remaining_time,
                _ => self.renew_credential(now),
            };
        }
    }

    /// Issues a new credential and publishes its TLS configurations. Returns the delay until the next check.
    fn renew_credential(&mut self, now: SystemTime) -> Duration {
        let result =
            issue_credential(&self.authority.borrow(), self.lifetime, now).and_then(|credential| {
                let configs = tls_configs(&credential)?;
                Ok((credential, configs))
            });
        match result {
            Ok((credential, (server_config, peer_config))) => {
                self.credential = credential;
                self.is_stale = false;
                self.server_configs.send_replace(server_config);
                self.client_configs.send_replace(peer_config);
                // Without a minimum, a very short lifetime would be renewed in a busy loop.
                self.time_until_check(now).max(RETRY_INTERVAL)
            }
            Err(error) => {
                tracing::error!(%error, "cannot renew the control plane's own certificate");
                RETRY_INTERVAL
            }
        }
    }

    /// Returns the time until the next check. It is at most [`CHECK_INTERVAL`], because a timer does not advance
    /// while the machine is suspended.
    fn time_until_check(&self, now: SystemTime) -> Duration {
        let renewal_time = self.credential.renewal_time(MEDIAN_JITTER);
        renewal_time.duration_since(now).unwrap_or_default().min(CHECK_INTERVAL)
    }
}

/// The reason why the control plane has no credential.
#[derive(Debug, thiserror::Error)]
pub enum ServerCredentialError {
    /// The authority does not sign the certificate.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The control plane's own request is rejected: a defect of this program.
    #[error(transparent)]
    Request(#[from] CertificateRequestError),
    /// The signed certificate is unusable.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// TLS cannot be configured with the credential.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Returns the TLS configurations for the listener and for connections to other control planes.
fn tls_configs(
    credential: &Credential,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), ServerCredentialError> {
    let server_config = join_server_config(credential, &[ALPN, JOIN_ALPN, PEER_ALPN])?;
    let peer_config = client_config(credential, credential.id(), &[PEER_ALPN])?;
    Ok((server_config, peer_config))
}

fn issue_credential(
    authority: &Authority,
    lifetime: Duration,
    now: SystemTime,
) -> Result<Credential, ServerCredentialError> {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request())?;
    let id = control_id(authority.trust_domain());
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let bundle = authority.sign(&request, subject, lifetime, now)?;
    Ok(Credential::new(key, bundle)?)
}

/// A constant instead of the random number of [`Credential::renewal_time`], since a single control plane needs no jitter.
/// The renewal is in the middle of the range, after 45 % of the lifetime.
const MEDIAN_JITTER: u64 = u64::MAX / 2;

/// The interval of renewal attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum time between two checks of the clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use leno_model::TrustDomain;

    use super::*;

    #[test]
    fn a_renewed_credential_serves_new_connections() {
        let data = tempfile::tempdir().unwrap();
        let domain = TrustDomain::new("cluster.local").unwrap();
        let now = SystemTime::now();
        let authority = Authority::open_or_create(data.path(), &domain, now).unwrap();
        let lifetime = Duration::from_secs(3600);
        let mut credential = {
            let authority = watch::Sender::new(Arc::new(authority)).subscribe();
            ServerCredential::new(authority, lifetime, now).unwrap()
        };
        let server_configs = credential.watch_server_config();
        assert_eq!(credential.time_until_check(now), CHECK_INTERVAL);
        let renewal_time = now + lifetime / 2 + Duration::from_secs(10);
        assert_eq!(credential.time_until_check(renewal_time), Duration::ZERO);
        let previous_expiry = credential.credential.not_after();
        credential.renew_credential(renewal_time);
        assert!(server_configs.has_changed().unwrap());
        assert!(credential.credential.not_after() > previous_expiry);
        assert_eq!(credential.credential.id(), &control_id(&domain));
        assert_eq!(credential.credential.workload(), None);
    }
}
