//! Access policies: allow and deny rules by caller, request and port.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::definition::{
    Definition, ManifestBuilder, ManifestValue, Schema, TextProblem, TextSchema,
};
use crate::identity::ServiceAccount;
use crate::jwt::{COMPARED_TEXT, ClaimMatch};
use crate::name::{Name, PolicyName};
use crate::policy::PortSet;
use crate::request_match::{
    DecodedPathMatch, FieldMatch, HeaderMatch, MAX_FIELD_MATCHES, PathMatch, RequestMatch,
    check_different_headers,
};

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

/// The `spec` of an `AccessPolicy`.
#[derive(Debug, Definition)]
#[definition(
    check = Self::with_rules_of_different_names,
    cel("has(self.deny) || has(self.allow)", "has no rules: set deny or allow")
)]
pub struct AccessPolicySpec {
    /// Service accounts of the policy's namespace. The policy applies to the inbound traffic of their workloads.
    #[field(list(1, MAX_LIST), absent = "all workloads of the namespace")]
    service_accounts: Vec<Name>,
    /// Deny rules, which take precedence over allow rules. All conditions of a rule must hold.
    #[field(list(1, MAX_RULES), absent = "no deny rules")]
    deny: Vec<RuleFields<DecodedPathMatch>>,
    /// Allow rules, which have an effect with the default policy `deny` or `dry-run`. All conditions of a rule must hold.
    #[field(list(1, MAX_RULES), absent = "no allow rules")]
    allow: Vec<RuleFields<PathMatch>>,
}

impl AccessPolicySpec {
    /// Returns the policy with this name. Deny rules are first, in the order in which sidecars evaluate rules.
    #[must_use]
    pub fn into_policy(self, name: PolicyName) -> AccessPolicy {
        let deny = self.deny.into_iter().enumerate();
        let allow = self.allow.into_iter().enumerate();
        let deny = deny.map(|(index, rule)| rule.into_rule(&name, PolicyAction::Deny, index));
        let allow = allow.map(|(index, rule)| rule.into_rule(&name, PolicyAction::Allow, index));
        let rules = deny.chain(allow).collect();
        AccessPolicy { accounts: self.service_accounts, rules, name }
    }

    /// Rejects a policy without rules, and a second rule with the same name.
    fn with_rules_of_different_names(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.deny.is_empty() && self.allow.is_empty() {
            builder.reject("has no rules", "add `deny` or `allow`");
            return None;
        }
        let deny = self.deny.iter().map(|rule| &rule.name).enumerate();
        let allow = self.allow.iter().map(|rule| &rule.name).enumerate();
        let deny = deny.map(|(index, name)| ("deny", index, name));
        let allow = allow.map(|(index, name)| ("allow", index, name));
        let mut names = BTreeSet::new();
        let mut are_names_different = true;
        for (list, index, name) in deny.chain(allow) {
            if name.as_ref().is_some_and(|name| !names.insert(name)) {
                are_names_different = false;
                builder.build_below(list, |builder| {
                    builder.build_at(index, |builder| {
                        let problem = "is the name of another rule";
                        builder.reject_field("name", problem, "use another name");
                    });
                });
            }
        }
        are_names_different.then_some(self)
    }
}

/// The fields of a rule. `P` is the type of its path matches.
#[derive(Debug, Definition)]
struct RuleFields<P: Definition + Into<PathMatch>> {
    /// Name of the rule in reports, unique in the policy.
    #[field(absent = "the list and the index of the rule, such as `deny[0]`")]
    name: Option<Name>,
    /// Clients, any of which the traffic may come from.
    #[field(list(1, MAX_LIST), absent = "all clients")]
    from: Vec<PeerMatch>,
    /// Matches of requests, any of which may apply. All conditions of a match must hold.
    #[field(list(1, MAX_LIST), absent = "all requests and opaque bytes")]
    requests: Vec<RequestFields<P>>,
    /// Required claims of the request's token: the accepted values of each claim, by its name. Dots in a name separate the
    /// keys of nested objects. A rule with claims applies to requests only.
    #[field(
        entries(1, MAX_CLAIMS),
        key = COMPARED_TEXT,
        list(1, MAX_LIST),
        text = COMPARED_TEXT,
        absent = "no required claims"
    )]
    claims: BTreeMap<String, Vec<String>>,
    /// Ports of the workload, not of the service.
    #[field(list(1, MAX_LIST), integer(1, 65535), absent = "all ports")]
    ports: Vec<u16>,
}

impl<P: Definition + Into<PathMatch>> RuleFields<P> {
    /// Returns the rule of a policy. A rule without a name gets one from its action and index, such as `deny[0]`.
    fn into_rule(self, policy: &PolicyName, action: PolicyAction, index: usize) -> PolicyRule {
        let name = match self.name {
            Some(name) => name.to_string(),
            None => format!("{}[{index}]", action.as_str()),
        };
        let claims = self.claims.into_iter();
        PolicyRule {
            policy: policy.clone(),
            name,
            action,
            peers: self.from,
            requests: self.requests.into_iter().map(RequestFields::into_match).collect(),
            claims: claims.map(|(name, values)| ClaimMatch { name, values }).collect(),
            ports: match self.ports.is_empty() {
                true => PortSet::All,
                false => PortSet::Only(self.ports),
            },
        }
    }
}

/// The fields of a match of requests. `P` is the type of its path match.
#[derive(Debug, Definition)]
#[definition(
    check = Self::with_condition,
    cel(
        "has(self.methods) || has(self.path) || has(self.headers)",
        "has no condition for requests: set methods, path or headers"
    )
)]
struct RequestFields<P: Definition + Into<PathMatch>> {
    /// Methods, any of which the request may have. `*` is every method.
    #[field(list(1, MAX_LIST), absent = "all methods")]
    methods: Vec<RuleMethod>,
    /// Condition on the path, without the query. Write an exact path or a prefix of a deny rule decoded (`/my files`), and
    /// that of an allow rule as clients send it (`/my%20files`).
    #[field(absent = "any path")]
    path: Option<P>,
    /// Conditions on headers, all of which must hold.
    #[field(
        list(1, MAX_FIELD_MATCHES),
        absent = "no conditions on headers",
        check = check_different_headers
    )]
    headers: Vec<HeaderMatch>,
}

impl<P: Definition + Into<PathMatch>> RequestFields<P> {
    fn into_match(self) -> RequestMatch {
        let mut methods: Vec<String> = Vec::new();
        // `*` matches like an absent list.
        if !self.methods.contains(&RuleMethod(ANY_METHOD)) {
            for RuleMethod(method) in self.methods {
                if !methods.iter().any(|existing| existing == method) {
                    methods.push(method.to_owned());
                }
            }
        }
        RequestMatch {
            path: self.path.map(Into::into).unwrap_or_default(),
            methods,
            headers: self.headers.into_iter().map(FieldMatch::from).collect(),
            query: Vec::new(),
        }
    }

    /// Rejects a match of all requests.
    fn with_condition(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.methods.is_empty() && self.path.is_none() && self.headers.is_empty() {
            builder.reject("has no condition for requests", "add `methods`, `path` or `headers`");
            return None;
        }
        Some(self)
    }
}

/// A method of a rule, or `*` for every method.
#[derive(Debug, PartialEq, Eq)]
struct RuleMethod(&'static str);

impl Definition for RuleMethod {
    const SCHEMA: Schema = Schema::Choice(METHODS);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        METHODS.get(value.choice_index()?).copied().map(Self)
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

/// The fields of a match on accounts.
#[derive(Definition)]
#[definition(
    builds = PeerMatch,
    cel(
        "has(self.namespace) || has(self.serviceAccount)",
        "names no client: set namespace or serviceAccount"
    )
)]
struct PeerMatchFields {
    /// Namespace of the clients; each `*` matches any characters.
    #[field(absent = "the policy's namespace")]
    namespace: Option<NamePattern>,
    /// Service account of the clients; each `*` matches any characters.
    #[field(absent = "any account")]
    service_account: Option<NamePattern>,
}

impl PeerMatchFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<PeerMatch> {
        if self.namespace.is_none() && self.service_account.is_none() {
            builder.reject("names no client", "add `namespace` or `serviceAccount`");
            return None;
        }
        Some(PeerMatch {
            namespace: self.namespace.unwrap_or_else(|| builder.namespace().into()),
            account: self.service_account.unwrap_or_else(NamePattern::any),
        })
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

impl Definition for NamePattern {
    const SCHEMA: Schema = Schema::Text(&NAME_PATTERN);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::new(&value.into_text()?).ok()
    }
}

impl NamePattern {
    /// Returns the pattern that matches every name.
    fn any() -> Self {
        Self("*".to_owned())
    }

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

/// The methods of rules, as in SMI.
const METHODS: &[&str] =
    &[ANY_METHOD, "GET", "HEAD", "PUT", "POST", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
const ANY_METHOD: &str = "*";
/// Maximum number of claims per rule.
const MAX_CLAIMS: usize = 16;
/// Maximum number of elements in a list: rules, accounts, clients, requests, methods, claim values or ports.
const MAX_LIST: usize = 256;
/// Maximum number of `allow` rules, and of `deny` rules, per policy.
const MAX_RULES: usize = 256;
/// The maximum length of a pattern in bytes: the length of the longest DNS name.
const MAX_PATTERN_BYTES: usize = 253;
/// A pattern of names.
const NAME_PATTERN: TextSchema = TextSchema::new(MAX_PATTERN_BYTES, |text| {
    let hint = "use lower-case letters, digits, `-`, `.`, and `*` for any characters";
    let problem = |_| TextProblem::new("is not a pattern of names", hint);
    NamePattern::new(text).map(drop).map_err(problem)
})
.with_pattern("^[-a-z0-9.*]+$");

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
