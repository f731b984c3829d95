//! Reads a JWKS from a file on the control plane's machine.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_model::IssuerKeys;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::access::{JwksFileOpenError, PermittedFiles};
use super::{FETCH_TIMEOUT, JwksResponse};

/// Reads the whole file, after an earlier read of the file has completed. Fails after [`FETCH_TIMEOUT`].
pub(super) async fn read_key_set(
    path: PathBuf,
    permitted_files: PermittedFiles,
    read_lock: Arc<Mutex<()>>,
) -> Result<JwksResponse, String> {
    let result =
        timeout(FETCH_TIMEOUT, read_without_timeout(path, permitted_files, read_lock)).await;
    let text = result.unwrap_or(Err(JwksFileError::TimedOut)).map_err(|error| error.to_string())?;
    Ok(JwksResponse::Set { text, etag: None, max_age: None })
}

async fn read_without_timeout(
    path: PathBuf,
    permitted_files: PermittedFiles,
    read_lock: Arc<Mutex<()>>,
) -> Result<String, JwksFileError> {
    let read_lock = read_lock.lock_owned().await;
    let read_task = spawn_blocking(move || {
        let text = read_text(&path, &permitted_files);
        drop(read_lock);
        text
    });
    read_task.await.map_err(std::io::Error::from)?
}

/// The reason why a JWKS file cannot be read. In diagnostics, each message follows the path.
#[derive(Debug, thiserror::Error)]
enum JwksFileError {
    #[error(transparent)]
    NotOpened(#[from] JwksFileOpenError),
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("could not be read within {FETCH_TIMEOUT:?}")]
    TimedOut,
    #[error("has more than {} bytes", IssuerKeys::MAX_BYTES)]
    TooLarge,
}

fn read_text(path: &Path, permitted_files: &PermittedFiles) -> Result<String, JwksFileError> {
    let file = permitted_files.open_permitted(path)?;
    let mut text = String::new();
    let limit = IssuerKeys::MAX_BYTES as u64;
    file.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() > IssuerKeys::MAX_BYTES {
        true => Err(JwksFileError::TooLarge),
        false => Ok(text),
    }
}
