//! Authorization decisions, as reported to operators in access logs, metrics and `leno explain`.

use std::fmt;
use std::sync::Arc;

use leno_model::{IngressName, PolicyName, Reason, ServicePolicyName};

use crate::match_slot::MatchSlot;

/// The policy that decided about a request or connection, with the name of its rule, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The name of the policy.
    pub policy: PolicyName,
    /// The name of the rule in the policy; absent if the policy's rules have no names.
    pub rule: Option<Box<str>>,
    /// The kind of the policy, as in its manifest.
    kind: &'static str,
    /// The match counter of the rule.
    match_slot: Arc<MatchSlot>,
}

impl PolicyDecision {
    /// Creates the decision of a `TrafficTarget`.
    pub(super) fn from_target(policy: PolicyName) -> Self {
        Self { policy, rule: None, kind: "TrafficTarget", match_slot: Arc::default() }
    }

    /// Creates the decision of an `AccessPolicy`.
    pub(super) fn from_policy(policy: PolicyName, rule: &str) -> Self {
        let (rule, match_slot) = (Some(rule.into()), Arc::default());
        Self { policy, rule, kind: "AccessPolicy", match_slot }
    }

    /// Creates the decision of an ingress rule.
    pub(super) fn from_ingress(policy: &IngressName) -> Self {
        let IngressName { kind, namespace, name } = policy;
        let policy = PolicyName { namespace: namespace.clone(), name: name.clone() };
        Self { policy, rule: None, kind: kind.as_str(), match_slot: Arc::default() }
    }

    /// Creates the decision of a service policy's rule. This slot counts its matches.
    #[must_use]
    pub fn from_service_policy(
        policy: &ServicePolicyName,
        rule: &str,
        match_slot: &Arc<MatchSlot>,
    ) -> Self {
        let ServicePolicyName { kind, namespace, name } = policy;
        let policy = PolicyName { namespace: namespace.clone(), name: name.clone() };
        Self {
            policy,
            rule: Some(rule.into()),
            kind: kind.as_str(),
            match_slot: Arc::clone(match_slot),
        }
    }

    /// Creates the decision of a service policy without named rules. This slot counts its matches.
    #[must_use]
    pub fn from_whole_policy(policy: &ServicePolicyName, match_slot: &Arc<MatchSlot>) -> Self {
        Self { rule: None, ..Self::from_service_policy(policy, "", match_slot) }
    }

    /// Returns the match counter.
    #[must_use]
    pub fn match_slot(&self) -> &MatchSlot {
        &self.match_slot
    }

    /// Returns the kind of the policy, as in its manifest.
    #[must_use]
    pub fn policy_kind(&self) -> &'static str {
        self.kind
    }
}

/// Formats as `namespace/name`, followed by the name of the rule if it has one.
impl fmt::Display for PolicyDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)?;
        match &self.rule {
            Some(rule) => write!(f, " rule {rule}"),
            None => Ok(()),
        }
    }
}

/// A denial of a connection, a request or opaque bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The reason, which determines the HTTP status.
    pub reason: Reason,
    /// The policy that denies the request; otherwise a policy that allows it to other peers, if any.
    pub policy: Option<PolicyDecision>,
}

impl Denial {
    /// Creates a denial without a policy.
    #[must_use]
    pub fn without_policy(reason: Reason) -> Self {
        Self { reason, policy: None }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.label(), self.reason.caption())?;
        match (&self.policy, self.reason) {
            (Some(policy), Reason::DeniedByPolicy) => write!(f, " (policy {policy})"),
            (Some(policy), _) => write!(f, " (policy {policy} allows it to others)"),
            (None, _) => Ok(()),
        }
    }
}

impl std::error::Error for Denial {}
