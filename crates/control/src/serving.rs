//! The control plane's own credential: signed by its own authority, renewed while it serves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{ALPN, JOIN_ALPN};
use leno_identity::{
    Authority, AuthorityError, CertificateRequest, Credential, CredentialError, PrivateKey,
    RequestError, Subject, TlsError, control_id, join_server_config,
};
use rustls::ServerConfig;
use tokio::sync::watch;

/// What the listener shows to proxies, and the means to make the next one.
#[derive(Debug)]
pub(crate) struct Serving {
    authority: Arc<Authority>,
    lifetime: Duration,
    credential: Credential,
    configs: watch::Sender<Arc<ServerConfig>>,
}

impl Serving {
    /// A first credential. Its key is never on disk: it is as short-lived as this program.
    pub(crate) fn new(
        authority: Arc<Authority>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, ServingError> {
        let credential = issue(&authority, lifetime, now)?;
        let config = join_server_config(&credential, &[ALPN, JOIN_ALPN])?;
        Ok(Self { authority, lifetime, credential, configs: watch::Sender::new(config) })
    }

    /// The configuration for new connections; those that are open keep theirs.
    pub(crate) fn configs(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.configs.subscribe()
    }

    /// Renews the credential at half of its life, for as long as somebody listens.
    pub(crate) async fn keep_fresh(mut self) {
        let mut wait = self.wait(SystemTime::now());
        loop {
            tokio::select! {
                () = self.configs.closed() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let now = SystemTime::now();
            wait = match self.wait(now) {
                Duration::ZERO => self.renew(now),
                later => later,
            };
        }
    }

    fn renew(&mut self, now: SystemTime) -> Duration {
        let renewed = issue(&self.authority, self.lifetime, now).and_then(|credential| {
            let config = join_server_config(&credential, &[ALPN, JOIN_ALPN])?;
            Ok((credential, config))
        });
        match renewed {
            Ok((credential, config)) => {
                self.credential = credential;
                self.configs.send_replace(config);
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

fn issue(
    authority: &Authority,
    lifetime: Duration,
    now: SystemTime,
) -> Result<Credential, ServingError> {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.request())?;
    let id = control_id(authority.trust_domain());
    let subject = Subject { id: &id, workload: None };
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
        let mut serving = Serving::new(Arc::new(authority), lifetime, now).unwrap();
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
