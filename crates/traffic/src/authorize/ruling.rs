//! Rulings: what decided about a peer, in the words of operators.

use std::fmt;
use std::sync::Arc;

use leno_model::{IngressName, PolicyName, Reason, ServicePolicyName};

use crate::hits::HitSlot;

/// The policy that decided, and the rule of it where rules have names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// Its name.
    pub policy: PolicyName,
    /// The rule in it; those of a `TrafficTarget` have no names.
    pub rule: Option<Box<str>>,
    kind: &'static str,
    hits: Arc<HitSlot>,
}

impl Ruling {
    /// Of a `TrafficTarget`.
    pub(super) fn target(policy: PolicyName) -> Self {
        Self { policy, rule: None, kind: "TrafficTarget", hits: Arc::default() }
    }

    /// Of an `AccessPolicy`.
    pub(super) fn policy(policy: PolicyName, rule: &str) -> Self {
        let (rule, hits) = (Some(rule.into()), Arc::default());
        Self { policy, rule, kind: "AccessPolicy", hits }
    }

    /// Of what opens a port to others than members.
    pub(super) fn opening(policy: &IngressName) -> Self {
        let IngressName { kind, namespace, name } = policy;
        let policy = PolicyName { namespace: namespace.clone(), name: name.clone() };
        Self { policy, rule: None, kind: kind.as_str(), hits: Arc::default() }
    }

    /// Of a policy of a service, counted in this place.
    #[must_use]
    pub fn service_policy(policy: &ServicePolicyName, rule: &str, hits: &Arc<HitSlot>) -> Self {
        let ServicePolicyName { kind, namespace, name } = policy;
        let policy = PolicyName { namespace: namespace.clone(), name: name.clone() };
        Self { policy, rule: Some(rule.into()), kind: kind.as_str(), hits: Arc::clone(hits) }
    }

    /// Of a policy of a service that is one rule, counted in this place.
    #[must_use]
    pub fn whole_policy(policy: &ServicePolicyName, hits: &Arc<HitSlot>) -> Self {
        Self { rule: None, ..Self::service_policy(policy, "", hits) }
    }

    /// Where its decisions are counted.
    #[must_use]
    pub fn hits(&self) -> &HitSlot {
        &self.hits
    }

    /// The kind of the policy, as manifests write it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}

/// `namespace/name`, and the rule if it has a name.
impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)?;
        match &self.rule {
            Some(rule) => write!(f, " rule {rule}"),
            None => Ok(()),
        }
    }
}

/// Why a peer was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The reason, which also gives the status.
    pub reason: Reason,
    /// The policy that denies it; or the one that allows it to others, if one does.
    pub policy: Option<Ruling>,
}

impl Denial {
    /// A denial that no policy stands behind.
    #[must_use]
    pub fn unnamed(reason: Reason) -> Self {
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
