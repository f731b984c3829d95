//! Keys in a file where the control plane is.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use leno_model::IssuerKeys;
use tokio::task::spawn_blocking;

use super::Answer;

/// Reads it whole.
pub(super) async fn read(path: PathBuf) -> Result<Answer, String> {
    let read = spawn_blocking(move || text(&path)).await;
    let text = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    Ok(Answer::Set { text, tag: None, max_age: None })
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is no file")]
    NoFile,
    #[error("has more than {} bytes", IssuerKeys::BYTES_MAX)]
    TooLarge,
}

fn text(path: &Path) -> Result<String, Unread> {
    // Whoever opened a pipe would wait for its other end.
    if !path.metadata()?.is_file() {
        return Err(Unread::NoFile);
    }
    let mut text = String::new();
    let most = IssuerKeys::BYTES_MAX as u64;
    File::open(path)?.take(most.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() > IssuerKeys::BYTES_MAX {
        true => Err(Unread::TooLarge),
        false => Ok(text),
    }
}
