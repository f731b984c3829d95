//! Serves the admission webhook that injects sidecars, and renews its certificates.
//!
//! Every control plane serves the webhook. One dedicated certificate authority signs their certificates; the
//! first control plane creates it in a Secret. Each control plane keeps its CA certificates in the webhook
//! configuration, so that the API server can verify them.

mod authority;
mod bundle;
mod clients;
mod keys;
mod listen;
mod review;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use leno_listen::{ConnectionSource, StopSignal};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::api::ObjectName;
use crate::inject::{InjectionSettings, NamespaceMetadata};

use clients::ClientAuthorities;

pub use authority::WebhookAuthorityError;
pub(crate) use bundle::INJECTOR_NAME;
pub use bundle::{INJECTOR, TrustState, trust_state};
pub use clients::{ClientAuthoritiesError, read_client_ca};
pub use listen::MUTATE_PATH;

use review::AdmissionRequest;

/// The Secret with the certificate authority of the webhook: its key, and its certificates.
pub const WEBHOOK_SECRET: &str = "leno-webhook";
/// `WEBHOOK_SECRET` as an object name.
const WEBHOOK_NAME: ObjectName = ObjectName::from_literal(WEBHOOK_SECRET);

/// The options of the webhook's listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOptions {
    /// The address on which the webhook listens.
    pub address: SocketAddr,
    /// A file with client CA certificates. Clients must then present a certificate that one of them has signed;
    /// `None` accepts all clients.
    pub client_ca: Option<PathBuf>,
}

/// The reason that the webhook cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address is in use, or not a local one.
    #[error("cannot listen on {address} for the API server")]
    Listen {
        /// The address on which the webhook cannot listen.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The clients cannot be verified.
    #[error(transparent)]
    Clients(#[from] ClientAuthoritiesError),
    /// The task that renews the certificates has ended, which is a bug.
    #[error("the webhook's certificate renewal task has ended")]
    Keys,
}

/// Serves admission reviews with the current settings. After `shutdown_receiver` becomes true, it continues for
/// three seconds because the API server notices the shutdown with a delay, and completes the reviews in
/// progress.
///
/// Connections wait until there is a certificate, which is requested from the API server until it succeeds.
///
/// # Errors
/// When it cannot listen, or the file with client CA certificates cannot be used.
pub async fn serve_webhook(
    client: Client,
    options: ListenOptions,
    settings_receiver: watch::Receiver<InjectionSettings>,
    shutdown_receiver: watch::Receiver<bool>,
) -> Result<(), WebhookError> {
    let client_authorities = options.client_ca.map(ClientAuthorities::open).transpose()?;
    let listener = bind_listener(options.address)?;
    serve_with(
        client,
        listener,
        client_authorities,
        settings_receiver,
        shutdown_receiver,
        SHUTDOWN_DELAY,
    )
    .await
}

fn bind_listener(address: SocketAddr) -> Result<TcpListener, WebhookError> {
    let bind_result = leno_listen::bind(address);
    bind_result.map_err(|source| WebhookError::Listen { address, source })
}

/// Serves the webhook on a bound listener and renews its certificates. `shutdown_delay` after a shutdown
/// request, accepts no more connections and completes the reviews in progress.
async fn serve_with(
    client: Client,
    listener: TcpListener,
    client_authorities: Option<ClientAuthorities>,
    settings_receiver: watch::Receiver<InjectionSettings>,
    shutdown_receiver: watch::Receiver<bool>,
    shutdown_delay: Duration,
) -> Result<(), WebhookError> {
    let namespace = settings_receiver.borrow().system_namespace.clone();
    let (tls_config_sender, mut tls_config_receiver) =
        watch::channel::<Option<Arc<ServerConfig>>>(None);
    let renewal =
        keys::renew_certificates(client.clone(), namespace, tls_config_sender, client_authorities);
    let (accept_end_sender, accept_end_receiver) = watch::channel(false);
    let (shutdown, accept_end) =
        (StopSignal::new(shutdown_receiver), StopSignal::new(accept_end_receiver));
    let mut shutdown_request = shutdown.clone();
    let delayed_accept_end = async {
        shutdown_request.wait_requested().await;
        sleep(shutdown_delay).await;
        accept_end_sender.send_replace(true);
        // The server ends after its last review.
        std::future::pending::<()>().await;
    };
    let mut accept_end_request = accept_end.clone();
    let server = async {
        let wait_for_certificate =
            async { tls_config_receiver.wait_for(Option::is_some).await.is_ok() };
        tokio::select! {
            has_certificate = wait_for_certificate => if !has_certificate {
                return Err(WebhookError::Keys);
            },
            () = accept_end_request.wait_requested() => return Ok(()),
        }
        listen::serve_connections(
            listener,
            client,
            tls_config_receiver,
            settings_receiver,
            shutdown,
            accept_end.clone(),
        )
        .await;
        Ok(())
    };
    // After the timeout, reviews in progress are dropped.
    tokio::select! {
        outcome = accept_end.clone().run_bounded(REVIEWS_TIMEOUT, server) => outcome.unwrap_or(Ok(())),
        infallible = renewal => match infallible {},
        () = delayed_accept_end => Ok(()),
    }
}

/// Returns the response to the body of an AdmissionReview for a namespace, without a request to the API server;
/// `None` if the body is not a review.
#[must_use]
pub fn admission_response(
    body: &[u8],
    namespace: &NamespaceMetadata,
    settings: &InjectionSettings,
) -> Option<Value> {
    let review = AdmissionRequest::parse(body, ConnectionSource::LOCAL).ok()?;
    Some(match review.creates_pod() {
        true => review.inject_pod(namespace, settings),
        false => review.allow_unchanged(),
    })
}

/// The time after which API servers send no requests to a control plane that shuts down.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(3);
/// The maximum time to complete the reviews in progress after the shutdown delay: more than the timeouts for
/// the body and the namespace of a review.
const REVIEWS_TIMEOUT: Duration = Duration::from_secs(10);
