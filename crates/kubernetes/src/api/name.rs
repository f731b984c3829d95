//! Defines names that are valid in an API path. A name can only be created by parsing, so no other text reaches
//! a path.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use leno_model::Name;

use super::error::escape_text;

/// The name of an object: one DNS-1123 subdomain, 1 to 253 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Cow<'static, str>);

/// The name of a namespace: one DNS-1123 label, 1 to 63 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceName(Cow<'static, str>);

impl ObjectName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidPathName`] when the text is not a DNS-1123 subdomain.
    pub fn new(text: &str) -> Result<Self, InvalidPathName> {
        match is_subdomain(text.as_bytes()) {
            true => Ok(Self(Cow::Owned(text.to_owned()))),
            false => Err(InvalidPathName::Object(describe_invalid_name(text))),
        }
    }

    /// Creates a name from a literal. In a constant, the compiler checks it.
    ///
    /// # Panics
    /// When the text is not a DNS-1123 subdomain.
    #[must_use]
    pub const fn from_literal(text: &'static str) -> Self {
        assert!(is_subdomain(text.as_bytes()), "not a DNS-1123 subdomain");
        Self(Cow::Borrowed(text))
    }
}

impl NamespaceName {
    /// Parses the name of a namespace.
    ///
    /// # Errors
    /// [`InvalidPathName`] when the text is not a DNS-1123 label.
    pub fn new(text: &str) -> Result<Self, InvalidPathName> {
        match is_label(text.as_bytes()) {
            true => Ok(Self(Cow::Owned(text.to_owned()))),
            false => Err(InvalidPathName::Namespace(describe_invalid_name(text))),
        }
    }

    /// Creates a namespace name from a literal. In a constant, the compiler checks it.
    ///
    /// # Panics
    /// When the text is not a DNS-1123 label.
    #[must_use]
    pub const fn from_literal(text: &'static str) -> Self {
        assert!(is_label(text.as_bytes()), "not a DNS-1123 label");
        Self(Cow::Borrowed(text))
    }
}

/// A text that cannot be part of an API path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPathName {
    /// The text is not the name of an object.
    #[error(
        "`{0}` is not a valid object name: use 1 to 253 lower-case letters, digits, `-` or `.`, \
         starting and ending with a letter or digit"
    )]
    Object(String),
    /// The text is not the name of a namespace.
    #[error(
        "`{0}` is not a valid namespace name: use 1 to 63 lower-case letters, digits or `-`, \
         starting and ending with a letter or digit"
    )]
    Namespace(String),
    /// The text is not the name of a kind, a group or a version.
    #[error("`{0}` is not a kind of the API server")]
    Resource(String),
}

/// Names of the model are subdomains too.
impl From<&Name> for ObjectName {
    fn from(name: &Name) -> Self {
        Self(Cow::Owned(name.as_str().to_owned()))
    }
}

/// The name of a Namespace object is the name of the namespace.
impl From<&NamespaceName> for ObjectName {
    fn from(name: &NamespaceName) -> Self {
        Self(name.0.clone())
    }
}

/// Namespaces of the model may contain dots, which Kubernetes does not allow.
impl TryFrom<&Name> for NamespaceName {
    type Error = InvalidPathName;

    fn try_from(name: &Name) -> Result<Self, InvalidPathName> {
        Self::new(name.as_str())
    }
}

/// Returns at most the first 253 bytes of an invalid name, escaped to one line.
fn describe_invalid_name(text: &str) -> String {
    escape_text(text.get(..text.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default())
}

macro_rules! impl_text_traits {
    ($type:ident) => {
        impl FromStr for $type {
            type Err = InvalidPathName;

            fn from_str(text: &str) -> Result<Self, InvalidPathName> {
                Self::new(text)
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

impl_text_traits!(ObjectName);
impl_text_traits!(NamespaceName);

/// Returns true for a DNS-1123 subdomain as Kubernetes defines it: lower-case labels separated by dots, with no bound
/// on the length of each label.
const fn is_subdomain(text: &[u8]) -> bool {
    is_name(text, MAX_NAME_BYTES, true)
}

/// Returns true for a DNS-1123 label.
pub(super) const fn is_label(text: &[u8]) -> bool {
    is_name(text, MAX_LABEL_BYTES, false)
}

/// Returns true for the name of an API group; the name of the core group is empty.
pub(super) const fn is_group(text: &[u8]) -> bool {
    text.is_empty() || is_subdomain(text)
}

/// Returns true for lower-case letters and digits with `-` between them and, if `allows_dots`, `.` between labels.
const fn is_name(text: &[u8], max_bytes: usize, allows_dots: bool) -> bool {
    // The start of the text counts as a dot, so that neither `-` nor `.` can be the first byte.
    let (mut index, mut previous_byte) = (0, b'.');
    while index < text.len() {
        let byte = text[index];
        let is_valid = match byte {
            b'a'..=b'z' | b'0'..=b'9' => true,
            b'-' => previous_byte != b'.',
            b'.' => allows_dots && previous_byte != b'.' && previous_byte != b'-',
            _ => false,
        };
        if !is_valid {
            return false;
        }
        (index, previous_byte) = (index + 1, byte);
    }
    // For empty text, `previous_byte` is still the initial `.`.
    text.len() <= max_bytes && previous_byte != b'.' && previous_byte != b'-'
}

/// The maximum length of a DNS-1123 subdomain.
const MAX_NAME_BYTES: usize = 253;
/// The maximum length of a DNS-1123 label.
const MAX_LABEL_BYTES: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that would change the path, the query or the meaning of a request.
    const HOSTILE_NAMES: &[&str] = &[
        "",
        ".",
        "..",
        "/",
        "a/b",
        "a/../b",
        "../a",
        "shop/secrets/leno-authority",
        "a?b=c",
        "a#b",
        "a%2fb",
        "a%2Fb",
        "%2e%2e",
        "a\0b",
        "a\nb",
        "a\r\nb: c",
        "a b",
        "a;b",
        "a\\b",
        "a&b",
        "a=b",
        "A",
        "ä",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a.",
        "a.-b",
        "a-.b",
        "a:b",
        "a,b",
        "*",
        "a@b",
        "a_b",
    ];

    #[test]
    fn only_valid_names_are_accepted() {
        for text in HOSTILE_NAMES {
            assert!(ObjectName::new(text).is_err(), "{text:?}");
            assert!(NamespaceName::new(text).is_err(), "{text:?}");
        }
        for text in ["a", "a-b", "a--b", "0", "kube-system"] {
            assert_eq!(&*ObjectName::new(text).unwrap(), text);
            assert_eq!(&*NamespaceName::new(text).unwrap(), text);
        }
        assert!(ObjectName::new("a.b").is_ok() && NamespaceName::new("a.b").is_err());
        let long = "a".repeat(64);
        assert!(NamespaceName::new(&long).is_err() && NamespaceName::new(&long[1..]).is_ok());
        let longer = "a".repeat(254);
        assert!(ObjectName::new(&longer).is_err() && ObjectName::new(&longer[1..]).is_ok());
    }

    #[test]
    fn names_of_the_model_are_object_names() {
        for text in HOSTILE_NAMES.iter().chain(&["a", "a.b", "a-b.c", "a--b"]) {
            assert_eq!(ObjectName::new(text).is_ok(), Name::new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn an_error_is_one_short_line() {
        let error = NamespaceName::new(&"x\n\u{1b}[31m".repeat(1000)).unwrap_err().to_string();
        assert!(error.len() < 1500 && !error.contains(['\n', '\u{1b}']), "{error}");
    }
}
