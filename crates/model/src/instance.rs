//! Identifies the instance of a workload: the pod or registration, as distinct from its predecessor with the same
//! workload name. Certificates contain the instance.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::definition::{
    Definition, ManifestBuilder, ManifestValue, Schema, TextProblem, TextSchema,
};

/// The UID of a Kubernetes object: letters, digits and `-`, 1 to 64 bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Arc<str>);

/// The instance that a certificate was issued to. A workload retains its name when its pod is replaced, and the
/// certificate of the former pod must not be accepted for the new pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Instance {
    /// The pod with this UID.
    Pod(Uid),
    /// The registration of a machine with this number. Each join with a join token gets a higher number than all
    /// earlier joins. The number is 0 for a machine that has not joined since joins are counted.
    Registration(u64),
}

impl Uid {
    /// Validates a UID.
    ///
    /// # Errors
    /// [`InvalidInstance`] if the text is not a UID.
    pub fn new(text: &str) -> Result<Self, InvalidInstance> {
        let is_uid_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if text.is_empty() || text.len() > MAX_UID_BYTES || !text.bytes().all(is_uid_byte) {
            return Err(InvalidInstance);
        }
        Ok(Self(text.into()))
    }

    /// Returns the UID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Definition for Uid {
    const SCHEMA: Schema = Schema::Text(&POD_UID);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::new(&value.into_text()?).ok()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Uid {
    type Err = InvalidInstance;

    fn from_str(text: &str) -> Result<Self, InvalidInstance> {
        Self::new(text)
    }
}

/// Formats as `pod:UID` or `registration:NUMBER`.
impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => write!(f, "{POD_PREFIX}{uid}"),
            Self::Registration(number) => write!(f, "{REGISTRATION_PREFIX}{number}"),
        }
    }
}

impl FromStr for Instance {
    type Err = InvalidInstance;

    fn from_str(text: &str) -> Result<Self, InvalidInstance> {
        if let Some(uid) = text.strip_prefix(POD_PREFIX) {
            return Uid::new(uid).map(Self::Pod);
        }
        let number = text.strip_prefix(REGISTRATION_PREFIX).ok_or(InvalidInstance)?;
        number.parse().map(Self::Registration).map_err(|_| InvalidInstance)
    }
}

/// A text that is not a UID, or not an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("use `pod:` and a UID of 1 to 64 letters, digits or `-`, or `registration:` and a number")]
pub struct InvalidInstance;

/// The prefix of a pod's UID in the text of an instance.
const POD_PREFIX: &str = "pod:";
/// The prefix of a registration's number in the text of an instance.
const REGISTRATION_PREFIX: &str = "registration:";

/// The maximum length of a UID in bytes. Kubernetes assigns UUIDs of 36 bytes; static pods have hashes of 32 bytes.
const MAX_UID_BYTES: usize = 64;

/// The UID of a pod.
const POD_UID: TextSchema = TextSchema::new(MAX_UID_BYTES, |text| match Uid::new(text) {
    Ok(_) => Ok(()),
    Err(InvalidInstance) => {
        let hint = "use `metadata.uid` of the pod: letters, digits and `-`";
        Err(TextProblem::new("is not the UID of a pod", hint))
    }
})
.with_pattern("^[A-Za-z0-9-]+$");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_round_trip_and_other_texts_are_rejected() {
        let uid = Uid::new("0b5f1b0e-7d0b-4a39-9d4c-2f5a4e9b7c11").unwrap();
        for instance in [Instance::Pod(uid), Instance::Registration(u64::MAX)] {
            assert_eq!(instance.to_string().parse(), Ok(instance));
        }
        let long_uid = format!("pod:{}", "a".repeat(65));
        for invalid in
            ["", "pod:", "pod:a/b", "pod:a b", &long_uid, "registration:-1", "7", "Pod:a"]
        {
            assert_eq!(invalid.parse::<Instance>(), Err(InvalidInstance), "{invalid}");
        }
    }
}
