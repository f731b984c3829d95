//! The authority as it is now: opened again and again, and swapped when its files changed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, AuthoritySource};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Whoever signs, or tells whom to trust, asks this each time.
pub(crate) type Current = watch::Receiver<Arc<Authority>>;

/// Looks for another authority in the same place, until nobody asks for it any more. One that
/// cannot be used is told of once, and the one before it signs on.
pub(crate) async fn keep_current(source: AuthoritySource, current: watch::Sender<Arc<Authority>>) {
    let trust_domain = current.borrow().trust_domain().clone();
    let mut told: Option<String> = None;
    loop {
        tokio::select! {
            () = current.closed() => return,
            () = sleep(LOOK_EVERY) => {}
        }
        let (source, trust_domain) = (source.clone(), trust_domain.clone());
        let opened = spawn_blocking(move || source.open(&trust_domain, SystemTime::now()));
        let Ok(opened) = opened.await else { continue };
        match opened {
            Ok(new) => {
                told = None;
                let new = Arc::new(new);
                let changed = current.send_if_modified(|current| {
                    let changed = **current != *new;
                    if changed {
                        *current = Arc::clone(&new);
                    }
                    changed
                });
                if changed {
                    tracing::info!(
                        roots = new.roots().certificates().len(),
                        "the authority changed"
                    );
                }
            }
            Err(error) => {
                let reason = error.to_string();
                if told.as_ref() != Some(&reason) {
                    tracing::error!(%error, "the authority's files cannot be used; the one before signs on");
                }
                told = Some(reason);
            }
        }
    }
}

/// Three small files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
