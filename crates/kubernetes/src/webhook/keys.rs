//! Renews the webhook's certificates: the listener's certificate, the certificate authority, and the CA bundle
//! by which the API server verifies the webhook.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::PostParams;
use leno_telemetry::with_causes;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::authority::{SERVING_LIFETIME, WebhookAuthority, WebhookAuthorityError};
use super::bundle;
use super::clients::ClientAuthorities;
use super::{WEBHOOK_NAME, WEBHOOK_SECRET};
use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::well_known::CONTROL;

/// Checks the certificates periodically, renews them when necessary, and retries after errors. Never returns.
pub(super) async fn renew_certificates(
    client: Client,
    namespace: NamespaceName,
    tls_config_sender: watch::Sender<Option<Arc<ServerConfig>>>,
    mut client_authorities: Option<ClientAuthorities>,
) -> Infallible {
    let secrets: ObjectApi<Secret> = ObjectApi::for_namespace(client.clone(), &namespace);
    let dns_names = vec![
        format!("{CONTROL}.{namespace}.svc"),
        format!("{CONTROL}.{namespace}.svc.cluster.local"),
    ];
    // The authority in use, and the time since which its certificate is in use.
    let mut current_authority: Option<(WebhookAuthority, SystemTime)> = None;
    let mut pause = MIN_PAUSE;
    loop {
        let now = SystemTime::now();
        let attempt = async {
            let authority = open_authority(&secrets, now).await?;
            // Publish the CA bundle first, so that the listener does not present a certificate that the API
            // server does not trust yet.
            let trust_result = bundle::publish_bundle(&client, &authority.certificates).await;
            let is_current = current_authority.as_ref().is_some_and(|(authority_in_use, since)| {
                // A certificate is renewed after a third of its lifetime.
                let age = now.duration_since(*since).unwrap_or_default();
                *authority_in_use == authority && age < SERVING_LIFETIME / 3
            });
            if !is_current {
                let verifier = client_authorities.as_ref().map(ClientAuthorities::verifier);
                let config = authority.server_config(dns_names.clone(), verifier, now)?;
                tls_config_sender.send_replace(Some(Arc::new(config)));
                tracing::info!("the webhook has a new certificate");
                current_authority = Some((authority, now));
            }
            trust_result.map_err(KeysError::from)
        };
        match attempt.await {
            Ok(bundle::TrustState::Trusted) => pause = MAX_PAUSE,
            // The installation is in progress.
            Ok(bundle::TrustState::Absent | bundle::TrustState::Untrusted) => pause = ABSENT_PAUSE,
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(error, "cannot maintain the webhook's certificates; retrying soon");
                pause = (pause * 2).clamp(MIN_PAUSE, MAX_PAUSE);
            }
        }
        if wait_for_next(pause, client_authorities.as_mut()).await == WakeReason::ClientsChanged {
            // The new CA certificates apply immediately, even if the API server does not respond.
            let verifier = client_authorities.as_ref().map(ClientAuthorities::verifier);
            let now = SystemTime::now();
            let config_result = current_authority
                .as_ref()
                .map(|(authority, _)| authority.server_config(dns_names.clone(), verifier, now));
            match config_result {
                Some(Ok(config)) => drop(tls_config_sender.send_replace(Some(Arc::new(config)))),
                // The next attempt creates the configuration.
                Some(Err(_)) | None => current_authority = None,
            }
        }
    }
}

/// The reason that a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    /// The pause is over.
    Timeout,
    /// The client CA certificates have changed.
    ClientsChanged,
}

/// Waits until the pause is over or the client CA certificates have changed.
async fn wait_for_next(
    pause: Duration,
    client_authorities: Option<&mut ClientAuthorities>,
) -> WakeReason {
    let deadline = Instant::now() + pause;
    let Some(client_authorities) = client_authorities else {
        sleep_until(deadline).await;
        return WakeReason::Timeout;
    };
    loop {
        let now = Instant::now();
        if now >= deadline {
            return WakeReason::Timeout;
        }
        sleep_until(deadline.min(now + CLIENTS_POLL_INTERVAL)).await;
        if client_authorities.reload() {
            return WakeReason::ClientsChanged;
        }
    }
}

/// Returns the authority in the Secret. Creates an authority if there is none, and replaces it if it expires soon.
async fn open_authority(
    secrets: &ObjectApi<Secret>,
    now: SystemTime,
) -> Result<WebhookAuthority, KeysError> {
    for _ in 0..MAX_ATTEMPTS {
        let existing_secret = secrets.get_opt(&WEBHOOK_NAME).await?;
        let authority = existing_secret.as_ref().map(read_authority).transpose()?;
        if let Some(authority) = authority.as_ref().filter(|authority| authority.is_fresh(now)) {
            return Ok(authority.clone());
        }
        let replacement = WebhookAuthority::generate(authority.as_ref(), now)?;
        let mut secret = existing_secret.unwrap_or_default();
        secret.metadata.name = Some(WEBHOOK_SECRET.to_owned());
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.insert("app.kubernetes.io/part-of".to_owned(), "leno".to_owned());
        secret.data = Some(BTreeMap::from([
            (KEY_ENTRY.to_owned(), ByteString(replacement.key.clone().into_bytes())),
            (
                CERTIFICATES_ENTRY.to_owned(),
                ByteString(replacement.certificates.clone().into_bytes()),
            ),
        ]));
        let parameters = PostParams::default();
        let write_result = match authority {
            None => secrets.create(&parameters, &secret).await,
            // The request names the version that was read: of two concurrent replacements one fails.
            Some(_) => secrets.replace(&WEBHOOK_NAME, &parameters, &secret).await,
        };
        match write_result {
            Ok(_) => return Ok(replacement),
            // Another control plane was faster: use its authority.
            Err(error) if error.status_code() == Some(CONFLICT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(KeysError::Contended)
}

fn read_authority(secret: &Secret) -> Result<WebhookAuthority, WebhookAuthorityError> {
    let read_entry = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.0.clone()).ok()
    };
    let key = read_entry(KEY_ENTRY).ok_or(WebhookAuthorityError::Unreadable("there is no key"))?;
    let certificates_entry = read_entry(CERTIFICATES_ENTRY);
    let certificates =
        certificates_entry.ok_or(WebhookAuthorityError::Unreadable("there is no certificate"))?;
    Ok(WebhookAuthority { key, certificates })
}

/// The reason that the certificates could not be renewed.
#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Authority(#[from] WebhookAuthorityError),
    #[error("other writers change the Secret leno-webhook continuously")]
    Contended,
}

const KEY_ENTRY: &str = "ca.key";
const CERTIFICATES_ENTRY: &str = "ca.crt";
/// The status code for a conflict with another client.
const CONFLICT: u16 = 409;
/// The maximum number of attempts after conflicts.
const MAX_ATTEMPTS: usize = 8;
/// The interval between checks of the small file with client CA certificates.
const CLIENTS_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The initial pause after an error, which doubles up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The pause while the webhook configuration is absent or has no CA bundle.
const ABSENT_PAUSE: Duration = Duration::from_secs(2);
/// The pause between checks without errors.
const MAX_PAUSE: Duration = Duration::from_secs(30);
