//! One-time join tokens: whoever shows one, once and in time, is the workload it was made for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, rand};
use leno_model::WorkloadName;

use crate::directory::{check_if_exists, create_private_directory};
use crate::disk::{self, Readers};

/// The tokens that were made and not yet used: one small file each, so that a restart of the
/// control plane neither forgets nor repeats one.
///
/// A file is named by the SHA-256 of its token: the tokens themselves are not on disk, and a
/// lookup takes the same time whatever prefix an attacker guessed right.
#[derive(Debug)]
pub struct Tokens {
    dir: PathBuf,
    swept: Mutex<Option<SystemTime>>,
}

/// A text that nobody guesses.
///
/// # Errors
/// When the system has no randomness.
pub fn secret() -> io::Result<String> {
    let mut random = [0u8; TOKEN_RANDOM_BYTES];
    rand::fill(&mut random).map_err(|_| io::Error::other("no randomness from the system"))?;
    Ok(hex(&random))
}

impl Tokens {
    /// Opens the directory, or makes it.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn open(dir: &Path) -> io::Result<Self> {
        create_private_directory(dir)?;
        Ok(Self { dir: dir.to_owned(), swept: Mutex::new(None) })
    }

    /// Whether a text looks like one of our tokens, and not like somebody else's.
    #[must_use]
    pub fn is_ours(token: &str) -> bool {
        token.starts_with(TOKEN_PREFIX)
    }

    /// Makes a token for `workload` that can be used once, until `lifetime` has passed.
    ///
    /// # Errors
    /// When the directory cannot be written, the lifetime is zero or longer than
    /// [`TOKEN_LIFETIME_MAX`], or too many tokens are unused.
    pub fn mint(
        &self,
        workload: &WorkloadName,
        lifetime: Duration,
        now: SystemTime,
    ) -> io::Result<String> {
        if lifetime.is_zero() || lifetime > TOKEN_LIFETIME_MAX {
            let message = format!("a join token cannot live {lifetime:?}: use up to 24 h");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // It may have been removed since.
        create_private_directory(&self.dir)?;
        self.sweep_if_due(now)?;
        let token = format!("{TOKEN_PREFIX}{}", secret()?);
        let expiry = now.checked_add(lifetime).map_or(0, seconds_since_epoch);
        let record = format!("{workload}\n{expiry}\n");
        disk::create(&self.path_of(&token), record.as_bytes(), Readers::Owner)?;
        Ok(token)
    }

    /// Uses a token up. Of any number of callers that show the same one, in this process or
    /// another, exactly one succeeds.
    ///
    /// Check the certificate request first: a token that was redeemed for nothing is lost.
    ///
    /// # Errors
    /// [`TokenError`]; a token shown for another workload stays usable for its own.
    pub fn redeem(
        &self,
        token: &str,
        workload: &WorkloadName,
        now: SystemTime,
    ) -> Result<(), TokenError> {
        if !is_token(token) {
            return Err(TokenError::Unknown);
        }
        check_if_exists(&self.dir)?;
        let path = self.path_of(token);
        let text = disk::read(&path, Readers::Owner)?.ok_or(TokenError::Unknown)?;
        let record = Record::parse(&text).ok_or(TokenError::Unknown)?;
        if record.expiry <= seconds_since_epoch(now) {
            disk::remove(&path)?;
            return Err(TokenError::Expired);
        }
        if record.workload != *workload {
            return Err(TokenError::OtherWorkload);
        }
        // The file system decides who is first: only one caller can remove a file.
        match disk::remove(&path)? {
            true => Ok(()),
            false => Err(TokenError::Unknown),
        }
    }

    /// Removes what has expired or is not readable; says how many can still be used.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn sweep(&self, now: SystemTime) -> io::Result<usize> {
        let at = |cause| disk::file_error("read", &self.dir, cause);
        let mut unused = 0;
        for entry in fs::read_dir(&self.dir).map_err(at)? {
            let path = entry.map_err(at)?.path();
            match state_of(&path, now) {
                State::Usable => unused += 1,
                State::Spent => drop(disk::remove(&path)?),
                State::Foreign => {}
            }
        }
        Ok(unused)
    }

    fn sweep_if_due(&self, now: SystemTime) -> io::Result<()> {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let due = swept.is_none_or(|last| match now.duration_since(last) {
            Ok(since) => since >= SWEEP_INTERVAL,
            Err(_) => true,
        });
        if due {
            let unused = self.sweep(now)?;
            if unused >= TOKENS_MAX {
                let message = format!("{unused} join tokens are unused: wait until some expire");
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
            }
            *swept = Some(now);
        }
        Ok(())
    }

    fn path_of(&self, token: &str) -> PathBuf {
        let name = digest::digest(&digest::SHA256, token.as_bytes());
        self.dir.join(hex(name.as_ref()))
    }
}

/// How long a token lives unless its maker says otherwise.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// The longest life of a token.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why a token was refused. Tell the one who showed it no more than that it was.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Never made, or used already.
    #[error("the join token is unknown or was used already: make a new one")]
    Unknown,
    /// Not used in time.
    #[error("the join token has expired: make a new one")]
    Expired,
    /// Made for somebody else.
    #[error("the join token was made for another workload")]
    OtherWorkload,
    /// The directory of tokens.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The SHA-256 of a token, by which it is known without being kept.
#[must_use]
pub fn token_digest(token: &str) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

struct Record {
    workload: WorkloadName,
    /// Seconds since 1970.
    expiry: u64,
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let (workload, expiry) = text.strip_suffix('\n')?.split_once('\n')?;
        Some(Self { workload: workload.parse().ok()?, expiry: expiry.parse().ok()? })
    }
}

fn is_token(text: &str) -> bool {
    let digits = text.strip_prefix(TOKEN_PREFIX);
    digits.is_some_and(|digits| is_hex(digits, TOKEN_RANDOM_BYTES))
}

fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What a file in the directory is.
enum State {
    Usable,
    Spent,
    Foreign,
}

fn state_of(path: &Path, now: SystemTime) -> State {
    let name = path.file_name().and_then(|name| name.to_str());
    let spent = match name {
        Some(name) if disk::is_draft(name) => {
            // A draft lives for milliseconds, unless its writer was killed.
            let written = fs::metadata(path).and_then(|facts| facts.modified());
            let age = written.ok().and_then(|at| now.duration_since(at).ok());
            age.is_some_and(|age| age > TOKEN_LIFETIME_MAX)
        }
        Some(name) if is_hex(name, digest::SHA256_OUTPUT_LEN) => {
            // One that vanished meanwhile is spent, one that cannot be read is not ours to judge.
            disk::read(path, Readers::Owner).is_ok_and(|text| {
                let record = text.as_deref().and_then(Record::parse);
                record.is_none_or(|record| record.expiry <= seconds_since_epoch(now))
            })
        }
        _ => return State::Foreign,
    };
    if spent { State::Spent } else { State::Usable }
}

fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cannot be guessed.
const TOKEN_RANDOM_BYTES: usize = 32;

/// So that a leaked token is recognised for what it is.
const TOKEN_PREFIX: &str = "leno-join-";

/// Unused tokens at which making more is refused, give or take one sweep interval's.
const TOKENS_MAX: usize = 100_000;

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
