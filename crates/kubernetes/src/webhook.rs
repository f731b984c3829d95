//! What the API server asks before it creates an object: the listener, and the keys for it.
//!
//! Every control plane answers. Their certificates are of one small authority, kept in a Secret by
//! whichever comes first; what the API server verifies them by stands in the webhook configuration,
//! and each control plane sees to it that it does.

mod authority;
mod bundle;
mod keys;
mod listen;
mod review;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use kube::Client;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::inject::Settings;

pub use authority::AuthorityError;
pub use bundle::{INJECTOR, TrustState, trust_state};
pub use listen::MUTATE_PATH;

/// The Secret with the authority of the webhook: its key, and its certificates.
pub const WEBHOOK_SECRET: &str = "leno-webhook";

/// Why the webhook cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address} for the API server")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The task that keeps the keys ended, which it never does.
    #[error("nobody keeps the webhook's certificates any more")]
    Keys,
}

/// Answers the API server until told to stop, with the settings as they are at each question.
///
/// It begins to listen once it has a certificate, for which it asks the API server as long as it
/// takes.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(
    client: Client,
    listen: SocketAddr,
    settings: watch::Receiver<Settings>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), WebhookError> {
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|source| WebhookError::Listen { address: listen, source })?;
    let namespace = settings.borrow().system_namespace.clone();
    let (keys, mut configs) = watch::channel::<Option<Arc<ServerConfig>>>(None);
    let keeping = keys::keep(client.clone(), namespace, keys);
    let serving = async {
        if configs.wait_for(Option::is_some).await.is_err() {
            return;
        }
        listen::serve_all(listener, client, (configs, settings)).await;
    };
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => Ok(()),
        never = keeping => match never {},
        () = serving => Err(WebhookError::Keys),
    }
}
