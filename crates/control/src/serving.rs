//! The control plane's own credential: signed by its own authority, renewed while it serves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{ALPN, JOIN_ALPN, PEER_ALPN};
use leno_identity::{
    Authority, AuthorityError, CertificateRequest, Credential, CredentialError, PrivateKey,
    RequestError, Subject, TlsError, client_config, control_id, join_server_config,
};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::authority::Current;

/// What the listener shows to proxies, and the means to make the next one.
#[derive(Debug)]
pub(crate) struct Serving {
    authority: Current,
    lifetime: Duration,
    credential: Credential,
    configs: watch::Sender<Arc<ServerConfig>>,
    /// For connections to other control planes.
    dialing: watch::Sender<Arc<ClientConfig>>,
    /// The authority changed since the credential was made.
    is_stale: bool,
}

impl Serving {
    /// A first credential. Its key is never on disk: it is as short-lived as this program.
    pub(crate) fn new(
        authority: Current,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, ServingError> {
        let credential = issue(&authority.borrow(), lifetime, now)?;
        let (accepting, dialing) = configs(&credential)?;
        Ok(Self {
            authority,
            lifetime,
            credential,
            configs: watch::Sender::new(accepting),
            dialing: watch::Sender::new(dialing),
            is_stale: false,
        })
    }

    /// The configuration for new connections to other control planes.
    pub(crate) fn dialing(&self) -> watch::Receiver<Arc<ClientConfig>> {
        self.dialing.subscribe()
    }

    /// The configuration for new connections; those that are open keep theirs.
    pub(crate) fn configs(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.configs.subscribe()
    }

    /// Renews the credential at half of its life, for as long as somebody listens.
    pub(crate) async fn keep_fresh(mut self) {
        let mut wait = self.wait(SystemTime::now());
        let mut authority = self.authority.clone();
        loop {
            tokio::select! {
                () = self.configs.closed() => return,
                // It is swapped for as long as this program lives, or never.
                Ok(()) = authority.changed() => self.is_stale = true,
                () = tokio::time::sleep(wait) => {}
            }
            let now = SystemTime::now();
            wait = match self.wait(now) {
                later if !self.is_stale && !later.is_zero() => later,
                _ => self.renew(now),
            };
        }
    }

    fn renew(&mut self, now: SystemTime) -> Duration {
        let renewed = issue(&self.authority.borrow(), self.lifetime, now).and_then(|credential| {
            let configs = configs(&credential)?;
            Ok((credential, configs))
        });
        match renewed {
            Ok((credential, (accepting, dialing))) => {
                self.credential = credential;
                self.is_stale = false;
                self.configs.send_replace(accepting);
                self.dialing.send_replace(dialing);
                self.wait(now).max(RETRY)
            }
            Err(error) => {
                tracing::error!(%error, "the control plane's own certificate is not renewed");
                RETRY
            }
        }
    }

    /// Until the next look; never so long that a machine that slept is late by much.
    fn wait(&self, now: SystemTime) -> Duration {
        let due = self.credential.renew_at(HALF_LIFE);
        due.duration_since(now).unwrap_or_default().min(LOOK_EVERY)
    }
}

/// Why the control plane has no credential of its own.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The authority does not sign it.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Its own request is refused: a defect of this program.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// What was signed is not usable.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// TLS cannot be configured with it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What the listener shows, and what other control planes are shown.
fn configs(
    credential: &Credential,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), ServingError> {
    let accepting = join_server_config(credential, &[ALPN, JOIN_ALPN, PEER_ALPN])?;
    let dialing = client_config(credential, credential.id(), &[PEER_ALPN])?;
    Ok((accepting, dialing))
}

fn issue(
    authority: &Authority,
    lifetime: Duration,
    now: SystemTime,
) -> Result<Credential, ServingError> {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.request())?;
    let id = control_id(authority.trust_domain());
    let subject = Subject { id: &id, workload: None, instance: None };
    let issued = authority.sign(&request, subject, lifetime, now)?;
    Ok(Credential::new(key, issued)?)
}

/// Exactly in the middle: one control plane needs no spreading.
const HALF_LIFE: u64 = u64::MAX / 2;

/// Between attempts to renew.
const RETRY: Duration = Duration::from_millis(500);

/// The longest sleep between looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(60);

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
        let mut serving = {
            let authority = watch::Sender::new(Arc::new(authority)).subscribe();
            Serving::new(authority, lifetime, now).unwrap()
        };
        let configs = serving.configs();
        assert_eq!(serving.wait(now), LOOK_EVERY);
        let half = now + lifetime / 2 + Duration::from_secs(10);
        assert_eq!(serving.wait(half), Duration::ZERO);
        let before = serving.credential.not_after();
        serving.renew(half);
        assert!(configs.has_changed().unwrap());
        assert!(serving.credential.not_after() > before);
        assert_eq!(serving.credential.id(), &control_id(&domain));
        assert_eq!(serving.credential.workload(), None);
    }
}
