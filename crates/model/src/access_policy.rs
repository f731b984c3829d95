//! Access policies: allow and deny rules by caller, request and port.

use std::fmt;

use crate::identity::ServiceAccount;
use crate::jwt::ClaimMatch;
use crate::name::{Name, PolicyName};
use crate::policy::PortSet;
use crate::route::RequestMatch;

/// An `AccessPolicy`: allow and deny rules for the workloads of one namespace, or of some accounts in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessPolicy {
    /// The name of the policy.
    pub name: PolicyName,
    /// The accounts of the selected workloads; the whole namespace when empty.
    pub accounts: Vec<Name>,
    /// The rules in document order, deny rules first.
    pub rules: Vec<PolicyRule>,
}

impl AccessPolicy {
    /// True if the policy selects workloads under this account.
    #[must_use]
    pub fn selects_account(&self, account: &ServiceAccount) -> bool {
        account.namespace == self.name.namespace
            && (self.accounts.is_empty() || self.accounts.contains(&account.name))
    }

    /// True if a rule allows some or all traffic from this account.
    #[must_use]
    pub fn allows_any_from(&self, account: &ServiceAccount) -> bool {
        let mut allow_rules = self.rules.iter().filter(|rule| rule.action == PolicyAction::Allow);
        allow_rules.any(|rule| rule.matches_caller(Some(account)))
    }
}

/// The access policies of a workload, as sent to its sidecar. They authorize inbound traffic in addition to the SMI
/// rules in [`Access`](crate::Access).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct InboundPolicy {
    /// True with `defaultPolicy: dry-run`: denied traffic is allowed, counted and reported.
    pub is_dry_run: bool,
    /// The rules of access policies; deny rules take precedence over everything else.
    pub rules: Vec<PolicyRule>,
}

/// One rule of an [`AccessPolicy`]; all its conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// The name of the policy that contains the rule.
    pub policy: PolicyName,
    /// The name of the rule, or its index in the document, such as `deny[0]`.
    pub name: String,
    /// The effect on matching traffic: denied or allowed.
    pub action: PolicyAction,
    /// The callers that the rule matches. When empty, an allow rule matches every member of the mesh, and a deny
    /// rule matches every caller, including unauthenticated callers.
    pub peers: Vec<PeerMatch>,
    /// The requests that the rule matches; one matching entry is enough. When empty, all requests and opaque
    /// bytes match.
    pub requests: Vec<RequestMatch>,
    /// The claims that the request's token must have, all of them. When empty, no claim is required.
    pub claims: Vec<ClaimMatch>,
    /// The ports of the workload that the rule applies to.
    pub ports: PortSet,
}

impl PolicyRule {
    /// True if the rule has conditions on requests or on claims of their tokens. A rule with these conditions never
    /// matches opaque bytes, because they contain no visible request.
    #[must_use]
    pub fn matches_by_request(&self) -> bool {
        !self.requests.is_empty() || !self.claims.is_empty()
    }

    /// True if the rule matches this caller; `None` is an unauthenticated caller.
    #[must_use]
    pub fn matches_caller(&self, caller: Option<&ServiceAccount>) -> bool {
        match caller {
            None => self.peers.is_empty() && self.action == PolicyAction::Deny,
            Some(account) => {
                self.peers.is_empty() || self.peers.iter().any(|peer| peer.matches_account(account))
            }
        }
    }
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyAction {
    /// Denies matching traffic, even if another rule allows it.
    Deny,
    /// Allows matching traffic, unless another rule denies it.
    Allow,
}

impl PolicyAction {
    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// A match on accounts. Both the namespace and the name must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerMatch {
    /// The namespace of the account.
    pub namespace: NamePattern,
    /// The name of the account.
    pub account: NamePattern,
}

impl PeerMatch {
    /// True if the account matches.
    #[must_use]
    pub fn matches_account(&self, account: &ServiceAccount) -> bool {
        self.namespace.matches_name(account.namespace.as_str())
            && self.account.matches_name(account.name.as_str())
    }
}

/// Formats as `namespace/account`, with wildcards.
impl fmt::Display for PeerMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.account)
    }
}

/// A name in which each `*` matches any number of characters, including none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern(String);

impl NamePattern {
    /// Validates a pattern.
    ///
    /// # Errors
    /// [`InvalidNamePattern`] if the text is empty, is longer than 253 bytes, or has characters other than `*` and
    /// the characters of names.
    pub fn new(text: &str) -> Result<Self, InvalidNamePattern> {
        let is_pattern_byte =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.*".contains(&byte);
        match !text.is_empty()
            && text.len() <= MAX_PATTERN_BYTES
            && text.bytes().all(is_pattern_byte)
        {
            true => Ok(Self(text.to_owned())),
            false => {
                Err(InvalidNamePattern { text: text.chars().take(MAX_PATTERN_BYTES).collect() })
            }
        }
    }

    /// True if the name matches.
    #[must_use]
    pub fn matches_name(&self, name: &str) -> bool {
        let mut literals = self.0.split('*');
        // `split` returns at least one literal, so the default is never used.
        let prefix = literals.next().unwrap_or_default();
        let Some(mut remaining) = name.strip_prefix(prefix) else {
            return false;
        };
        // A pattern without `*` has only one literal, which must be the whole name.
        let Some(suffix) = literals.next_back() else {
            return remaining.is_empty();
        };
        // The leftmost match of each literal leaves the most text for the literals after it.
        for literal in literals {
            match remaining.find(literal) {
                Some(index) => {
                    remaining = remaining.get(index + literal.len()..).unwrap_or_default()
                }
                None => return false,
            }
        }
        remaining.ends_with(suffix)
    }

    /// True if the pattern matches one name only.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    /// Returns the text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Name> for NamePattern {
    fn from(name: &Name) -> Self {
        Self(name.as_str().to_owned())
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not a valid name pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a pattern of names: use lower-case letters, digits, `-`, `.` and `*`")]
pub struct InvalidNamePattern {
    /// The text, truncated to 253 characters.
    pub text: String,
}

/// The maximum length of a pattern in bytes: the length of the longest DNS name.
const MAX_PATTERN_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, matching_names, other_names) in [
            ("web", &["web"][..], &["web-1", "a-web", ""][..]),
            ("*", &["web", "a", ""], &[]),
            ("web-*", &["web-1", "web-"], &["web", "a-web-1"]),
            ("*-web", &["a-web", "-web"], &["web", "a-web-1"]),
            ("a*b*c", &["abc", "a-b-c", "abbc", "abcbc"], &["ab", "acb", "xabc", "abcd"]),
            ("*a*", &["a", "bab"], &["b"]),
            ("ab*ba", &["abba", "ab-ba"], &["aba", "ab"]),
            ("**", &["", "x"], &[]),
        ] {
            let name_pattern = NamePattern::new(pattern).unwrap();
            assert!(matching_names.iter().all(|name| name_pattern.matches_name(name)), "{pattern}");
            assert!(!other_names.iter().any(|name| name_pattern.matches_name(name)), "{pattern}");
        }
        for invalid in ["", "Web", "a/b", "a b", "a?"] {
            assert!(NamePattern::new(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn an_allow_rule_without_peers_matches_members_only() {
        let rule = |action, peers| PolicyRule {
            policy: PolicyName::new("shop", "p").unwrap(),
            name: "r".to_owned(),
            action,
            peers,
            requests: Vec::new(),
            claims: Vec::new(),
            ports: PortSet::All,
        };
        let member = ServiceAccount::new("shop", "web").unwrap();
        let any_name = NamePattern::new("*").unwrap();
        let any_member = vec![PeerMatch { namespace: any_name.clone(), account: any_name }];
        for (action, peers, matches_external_clients) in [
            (PolicyAction::Allow, Vec::new(), false),
            (PolicyAction::Deny, Vec::new(), true),
            (PolicyAction::Deny, any_member, false),
        ] {
            let rule = rule(action, peers);
            assert!(rule.matches_caller(Some(&member)));
            assert_eq!(rule.matches_caller(None), matches_external_clients, "{rule:?}");
        }
    }
}
