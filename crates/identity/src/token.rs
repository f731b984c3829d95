//! Issues and redeems one-time join tokens for the control plane: each token is valid once, for one workload and a limited
//! time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, rand};
use leno_model::WorkloadName;

use crate::directory::{check_private_if_exists, create_private_directory};
use crate::disk::{self, FileAccess};

/// The issued and unused tokens: one small file each, so that a restart of the control plane neither loses nor
/// reuses a token.
///
/// Each file is named by the SHA-256 of its token: the tokens themselves are not on disk, and the lookup time
/// does not depend on a guessed prefix.
#[derive(Debug)]
pub struct Tokens {
    directory: PathBuf,
    /// The time at which [`Self::issue_token`] last removed the expired tokens; `None` before the first removal.
    last_expiry_check: Mutex<Option<SystemTime>>,
}

/// Generates an unguessable text of 64 hexadecimal digits.
///
/// # Errors
/// An I/O error if the system has no randomness.
pub fn generate_secret() -> io::Result<String> {
    let mut random_bytes = [0u8; TOKEN_RANDOM_BYTES];
    rand::fill(&mut random_bytes)
        .map_err(|_| io::Error::other("the operating system provides no random bytes"))?;
    Ok(encode_hex(&random_bytes))
}

impl Tokens {
    /// Opens or creates the directory.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be created.
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_private_directory(directory)?;
        Ok(Self { directory: directory.to_owned(), last_expiry_check: Mutex::new(None) })
    }

    /// True if the text begins like a join token of Leno.
    #[must_use]
    pub fn has_token_prefix(token: &str) -> bool {
        token.starts_with(TOKEN_PREFIX)
    }

    /// Creates a token for `workload` that can be used once within `lifetime`.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be written, the lifetime is zero or longer than [`MAX_TOKEN_LIFETIME`], or
    /// there are too many unused tokens.
    pub fn issue_token(
        &self,
        workload: &WorkloadName,
        lifetime: Duration,
        now: SystemTime,
    ) -> io::Result<String> {
        if lifetime.is_zero() || lifetime > MAX_TOKEN_LIFETIME {
            let message =
                format!("the token lifetime {lifetime:?} is out of range: use up to 24 h");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // The directory may have been removed.
        create_private_directory(&self.directory)?;
        self.remove_expired_if_due(now)?;
        let token = format!("{TOKEN_PREFIX}{}", generate_secret()?);
        let expiry = now.checked_add(lifetime).map_or(0, seconds_since_epoch);
        let record = format!("{workload}\n{expiry}\n");
        disk::create(&self.file_path(&token), record.as_bytes(), FileAccess::Owner)?;
        Ok(token)
    }

    /// Redeems a token. Of any number of concurrent callers with the same token, in any process, exactly one
    /// succeeds.
    ///
    /// Check the certificate request first: a redeemed token cannot be reused.
    ///
    /// # Errors
    /// [`TokenError`]; a token for another workload stays valid.
    pub fn redeem(
        &self,
        token: &str,
        workload: &WorkloadName,
        now: SystemTime,
    ) -> Result<(), TokenError> {
        if !has_token_form(token) {
            return Err(TokenError::Unknown);
        }
        check_private_if_exists(&self.directory)?;
        let path = self.file_path(token);
        let text = disk::read(&path, FileAccess::Owner)?.ok_or(TokenError::Unknown)?;
        let record = TokenRecord::parse(&text).ok_or(TokenError::Unknown)?;
        if record.expiry <= seconds_since_epoch(now) {
            disk::remove(&path)?;
            return Err(TokenError::Expired);
        }
        if record.workload != *workload {
            return Err(TokenError::OtherWorkload);
        }
        // The file system serializes callers: only one can remove a file.
        match disk::remove(&path)? {
            true => Ok(()),
            false => Err(TokenError::Unknown),
        }
    }

    /// Removes expired and malformed tokens and old temporary files. Returns the number of unused tokens and recent
    /// temporary files.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be read.
    pub fn remove_expired(&self, now: SystemTime) -> io::Result<usize> {
        let add_path = |cause| disk::file_error("read", &self.directory, cause);
        let mut unused_count = 0;
        for entry in fs::read_dir(&self.directory).map_err(add_path)? {
            let path = entry.map_err(add_path)?.path();
            match read_file_state(&path, now) {
                TokenFileState::Retained => unused_count += 1,
                TokenFileState::Removable => drop(disk::remove(&path)?),
                TokenFileState::Unrelated => {}
            }
        }
        Ok(unused_count)
    }

    /// Removes expired tokens at most once per [`EXPIRY_CHECK_INTERVAL`]; an error if too many tokens are unused.
    fn remove_expired_if_due(&self, now: SystemTime) -> io::Result<()> {
        let mut last_expiry_check =
            self.last_expiry_check.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due =
            last_expiry_check.is_none_or(|checked_at| match now.duration_since(checked_at) {
                Ok(elapsed) => elapsed >= EXPIRY_CHECK_INTERVAL,
                Err(_) => true,
            });
        if is_due {
            let unused_count = self.remove_expired(now)?;
            if unused_count >= MAX_TOKENS {
                let message =
                    format!("{unused_count} join tokens are unused: wait until some expire");
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
            }
            *last_expiry_check = Some(now);
        }
        Ok(())
    }

    /// Returns the path of a token's file.
    fn file_path(&self, token: &str) -> PathBuf {
        let name = digest::digest(&digest::SHA256, token.as_bytes());
        self.directory.join(encode_hex(name.as_ref()))
    }
}

/// The default lifetime of a token.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// The maximum lifetime of a token.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The reason that a token is rejected. Do not reveal the reason to the client.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token was never issued, or was already used.
    #[error("the join token is unknown or was used already: make a new one")]
    Unknown,
    /// The token has expired.
    #[error("the join token has expired: make a new one")]
    Expired,
    /// The token was issued for another workload.
    #[error("the join token was issued for another workload")]
    OtherWorkload,
    /// The directory of tokens cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns the SHA-256 of a token, which identifies it without storing it.
#[must_use]
pub fn token_digest(token: &str) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

/// The content of a token's file.
struct TokenRecord {
    workload: WorkloadName,
    /// The time of expiry in seconds since 1970.
    expiry: u64,
}

impl TokenRecord {
    fn parse(text: &str) -> Option<Self> {
        let (workload, expiry) = text.strip_suffix('\n')?.split_once('\n')?;
        Some(Self { workload: workload.parse().ok()?, expiry: expiry.parse().ok()? })
    }
}

/// True if the text has the form of a token, whether or not it was issued.
fn has_token_form(text: &str) -> bool {
    let digits = text.strip_prefix(TOKEN_PREFIX);
    digits.is_some_and(|digits| is_hex(digits, TOKEN_RANDOM_BYTES))
}

/// True if the text consists of `byte_count` bytes in lower-case hexadecimal.
fn is_hex(text: &str, byte_count: usize) -> bool {
    text.len() == 2 * byte_count && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The state of a file in the directory of tokens.
enum TokenFileState {
    /// An unused, unexpired token, or a recent temporary file.
    Retained,
    /// A used, expired or malformed token, or an old temporary file.
    Removable,
    /// A file that is neither a token nor a temporary file.
    Unrelated,
}

/// Reads the state of a file in the directory of tokens.
fn read_file_state(path: &Path, now: SystemTime) -> TokenFileState {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_removable = match name {
        Some(name) if disk::is_temporary_name(name) => {
            // A temporary file exists for milliseconds, unless its writer was killed.
            let modified_at = fs::metadata(path).and_then(|metadata| metadata.modified());
            let age = modified_at.ok().and_then(|modified_at| now.duration_since(modified_at).ok());
            age.is_some_and(|age| age > MAX_TOKEN_LIFETIME)
        }
        Some(name) if is_hex(name, digest::SHA256_OUTPUT_LEN) => {
            // A file that has vanished (`None`) counts as a used token; a file that cannot be read is not removed.
            disk::read(path, FileAccess::Owner).is_ok_and(|text| {
                let record = text.as_deref().and_then(TokenRecord::parse);
                record.is_none_or(|record| record.expiry <= seconds_since_epoch(now))
            })
        }
        _ => return TokenFileState::Unrelated,
    };
    if is_removable { TokenFileState::Removable } else { TokenFileState::Retained }
}

fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number of random bytes in a token: too many to guess.
const TOKEN_RANDOM_BYTES: usize = 32;

/// The prefix of all tokens, with which secret scanners recognize leaked tokens.
const TOKEN_PREFIX: &str = "leno-join-";

/// Maximum number of unused tokens; it may be exceeded by the tokens issued within one [`EXPIRY_CHECK_INTERVAL`].
const MAX_TOKENS: usize = 100_000;

/// The minimum interval between two removals of expired tokens.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
