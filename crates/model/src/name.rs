//! Object names: a namespace and a name, with one type for each kind of object.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// A DNS-1123 subdomain: 1 to 253 lower-case letters, digits, `-` and `.`, in labels that start and end with a letter
/// or digit. Cheap to clone.
#[derive(Clone, Eq, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// Validates a name.
    ///
    /// # Errors
    /// [`InvalidName`] if the text is not a DNS-1123 subdomain.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !text.split('.').all(is_label) {
            return Err(InvalidName { text: text.chars().take(MAX_NAME_BYTES).collect() });
        }
        Ok(Self(text.into()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Clones share their text, so most comparisons on the data path compare two pointers.
impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for Name {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

/// A text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidName {
    /// The text, truncated to 253 characters.
    pub text: String,
}

impl std::error::Error for InvalidName {}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        // A valid name is rejected only if it lacks a namespace.
        if Name::new(text).is_ok() {
            return write!(f, "`{text}` has no namespace: write NAMESPACE/{text}");
        }
        write!(
            f,
            "`{text}` is not a valid name: use 1 to 253 lower-case letters, digits, `-` or `.`, \
             starting and ending with a letter or digit"
        )
    }
}

macro_rules! object_name {
    ($(#[$caption:meta])* $type:ident) => {
        $(#[$caption])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type {
            /// The namespace of the object.
            pub namespace: Name,
            /// The object's own name, unique for its kind in the namespace.
            pub name: Name,
        }

        impl $type {
            /// Validates the namespace and the name.
            ///
            /// # Errors
            /// [`InvalidName`] for the first of the two that is not a DNS-1123 subdomain.
            pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
                Ok(Self { namespace: Name::new(namespace)?, name: Name::new(name)? })
            }
        }

        /// Formats as `namespace/name`.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.name)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.name)
            }
        }

        /// Parses `namespace/name`.
        impl FromStr for $type {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                match text.split_once('/') {
                    Some((namespace, name)) => Self::new(namespace, name),
                    None => Err(InvalidName { text: text.to_owned() }),
                }
            }
        }
    };
}

object_name! {
    /// The name of a workload: one running instance of an application.
    WorkloadName
}
object_name! {
    /// The name of a service: a destination of clients.
    ServiceName
}
object_name! {
    /// The name of an `HTTPRoute`, or of another object with rules that choose backends.
    RouteName
}
object_name! {
    /// The name of a policy: an SMI `TrafficTarget`, an `AccessPolicy` or an `Egress`.
    PolicyName
}
object_name! {
    /// The name of an SMI `HTTPRouteGroup`.
    RouteGroupName
}
object_name! {
    /// The name of an SMI `TCPRoute`.
    TcpRouteName
}
object_name! {
    /// The name of an object with tag rules: a `TagRoute`, `SermantRouteRule` or `Lane`.
    TagRouteName
}

object_name! {
    /// The name of a Gateway API `Gateway`.
    GatewayName
}

object_name! {
    /// The name of a Gateway API `ReferenceGrant`.
    GrantName
}

object_name! {
    /// The name of a Secret.
    SecretName
}

/// True for a label of RFC 1123: 1 to 63 bytes, alphanumeric at both ends.
fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.len() <= 63
        && bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
}

/// The maximum length of a subdomain in bytes (RFC 1123, Kubernetes).
const MAX_NAME_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_subdomains_are_names() {
        for valid in ["a", "ratings-1", "v1.2.ratings", &"a".repeat(63)] {
            assert!(Name::new(valid).is_ok(), "{valid}");
        }
        for invalid in ["", "A", "-a", "a-", "a..b", "a_b", "a/b", &"a".repeat(64), "é"] {
            assert!(Name::new(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn names_round_trip() {
        let name: ServiceName = "bookinfo/ratings".parse().unwrap();
        assert_eq!(name.to_string().parse(), Ok(name));
        let error = "ratings".parse::<ServiceName>().unwrap_err().to_string();
        assert_eq!(error, "`ratings` has no namespace: write NAMESPACE/ratings");
        for text in ["bookinfo/Ratings", "Book/ratings", "a/b/c", "/a", "a/", "Ratings"] {
            let error = text.parse::<ServiceName>().unwrap_err().to_string();
            assert!(error.contains("is not a valid name"), "{text}: {error}");
        }
    }
}
