//! Keys in a file where the control plane is.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_model::IssuerKeys;
use rustix::fs::{Mode, OFlags};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{ASK_WAIT, Answer};

/// Reads it whole, once a reading before that hangs is through.
pub(super) async fn read(path: PathBuf, turn: Arc<Mutex<()>>) -> Result<Answer, String> {
    let read = timeout(ASK_WAIT, read_patiently(path, turn)).await;
    let text = read.unwrap_or(Err(Unread::Late)).map_err(|error| error.to_string())?;
    Ok(Answer::Set { text, tag: None, max_age: None })
}

async fn read_patiently(path: PathBuf, turn: Arc<Mutex<()>>) -> Result<String, Unread> {
    let turn = turn.lock_owned().await;
    let read = spawn_blocking(move || {
        let text = text(&path);
        drop(turn);
        text
    });
    read.await.map_err(std::io::Error::from)?
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("has not been read in {ASK_WAIT:?}")]
    Late,
    #[error("is no file")]
    NoFile,
    #[error("has more than {} bytes", IssuerKeys::BYTES_MAX)]
    TooLarge,
}

fn text(path: &Path) -> Result<String, Unread> {
    // Some devices do something when they are opened.
    if !path.metadata()?.is_file() {
        return Err(Unread::NoFile);
    }
    // Whoever opened a pipe would wait for its other end; and the path may lead to one by now.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from)?;
    let file = File::from(opened);
    if !file.metadata()?.is_file() {
        return Err(Unread::NoFile);
    }
    let mut text = String::new();
    let most = IssuerKeys::BYTES_MAX as u64;
    file.take(most.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() > IssuerKeys::BYTES_MAX {
        true => Err(Unread::TooLarge),
        false => Ok(text),
    }
}
