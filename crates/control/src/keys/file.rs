//! JWKS in a file on the control plane's machine.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_model::IssuerKeys;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::access::{JwksFileOpenError, PermittedFiles};
use super::{ASK_WAIT, JwksResponse};

/// Reads the whole file, after an earlier read that hangs.
pub(super) async fn read(
    path: PathBuf,
    permitted: PermittedFiles,
    turn: Arc<Mutex<()>>,
) -> Result<JwksResponse, String> {
    let read = timeout(ASK_WAIT, read_patiently(path, permitted, turn)).await;
    let text = read.unwrap_or(Err(JwksFileError::Late)).map_err(|error| error.to_string())?;
    Ok(JwksResponse::Set { text, tag: None, max_age: None })
}

async fn read_patiently(
    path: PathBuf,
    permitted: PermittedFiles,
    turn: Arc<Mutex<()>>,
) -> Result<String, JwksFileError> {
    let turn = turn.lock_owned().await;
    let read = spawn_blocking(move || {
        let text = read_text(&path, &permitted);
        drop(turn);
        text
    });
    read.await.map_err(std::io::Error::from)?
}

/// The reason why a file is not read.
#[derive(Debug, thiserror::Error)]
enum JwksFileError {
    #[error(transparent)]
    NotOpened(#[from] JwksFileOpenError),
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("could not be read within {ASK_WAIT:?}")]
    Late,
    #[error("has more than {} bytes", IssuerKeys::BYTES_MAX)]
    TooLarge,
}

fn read_text(path: &Path, permitted: &PermittedFiles) -> Result<String, JwksFileError> {
    let file = permitted.open_permitted(path)?;
    let mut text = String::new();
    let most = IssuerKeys::BYTES_MAX as u64;
    file.take(most.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() > IssuerKeys::BYTES_MAX {
        true => Err(JwksFileError::TooLarge),
        false => Ok(text),
    }
}
