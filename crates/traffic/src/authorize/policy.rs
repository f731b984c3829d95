//! Compiled access policy rules: explicit denials and allowances, evaluated before all other rules.

use std::collections::BTreeSet;

use leno_model::{
    ClaimMatch, ObjectKey, PolicyAction, PolicyRule, Reason, RequestNeed, ServiceAccount,
    WorkloadPort,
};

use super::decision::PolicyDecision;
use super::{DecidedBy, PolicyResult, allows_path};
use crate::match_index::{MatchIndex, RuleSubset, demands_of_callers};
use crate::matcher::{DenialMatcher, RequestMatcher};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::{LookupKeys, RuleIndex, RulePositions};
use crate::variant::{PathKind, PathVariants};

/// The rules of all access policies of a workload, compiled.
#[derive(Debug)]
pub(super) struct PolicyRules {
    rules: Box<[CompiledPolicyRule]>,
    /// An index of the peers in the rules, if there are many.
    peers: Option<Box<RuleIndex>>,
    /// An index of the requests that rules deny, if there are many.
    denying: Option<MatchIndex>,
    /// An index of the requests that rules allow, if there are many.
    allowing: Option<MatchIndex>,
    /// Ports on which opaque bytes cannot hide a request; rules about requests do not apply there.
    opaque: BTreeSet<u16>,
}

#[derive(Debug)]
struct CompiledPolicyRule {
    decision: PolicyDecision,
    rule: PolicyRule,
    /// The requests of an allow rule; empty for deny rules.
    allowed: Box<[RequestMatcher]>,
    /// The requests of a deny rule; empty for allow rules.
    denied: Box<[DenialMatcher]>,
}

/// The rules for one peer at one port: evaluated once per connection, so that requests compare no identities.
#[derive(Debug, Clone)]
pub(super) struct PeerRules {
    /// The first rule that denies everything.
    denied: Option<usize>,
    /// The rules that deny some requests.
    deny: RuleSubset,
    /// The first rule that allows everything.
    allowed: Option<usize>,
    /// The rules that allow some requests.
    allow: RuleSubset,
    /// Indicates that opaque bytes may contain requests.
    may_hide: bool,
}

impl PeerRules {
    /// True if every request of the peer is denied.
    pub(super) fn denies_all(&self) -> bool {
        self.denied.is_some()
    }

    /// True if a rule allows some or all requests of the peer.
    pub(super) fn may_allow(&self) -> bool {
        self.allowed.is_some() || !self.allow.is_empty()
    }
}

impl PolicyRules {
    /// Compiles the rules for a workload with these ports; `None` when there are none.
    pub(super) fn compile(
        rules: &[PolicyRule],
        ports: &[WorkloadPort],
    ) -> Result<Option<Self>, InvalidPattern> {
        if rules.is_empty() {
            return Ok(None);
        }
        let may_hide = |port: &WorkloadPort| RequestNeed::IfSupported.rejects_bytes(port.protocol);
        let opaque = ports.iter().filter(|port| !may_hide(port));
        let rules: Box<[CompiledPolicyRule]> =
            rules.iter().map(CompiledPolicyRule::compile).collect::<Result<_, _>>()?;
        let about_requests = |action| {
            let all = rules.iter().enumerate();
            all.filter(move |(_, it)| it.rule.action == action && it.rule.is_about_requests())
        };
        let denying = about_requests(PolicyAction::Deny).map(|(index, it)| (index, &*it.denied));
        let allowing = about_requests(PolicyAction::Allow).map(|(index, it)| (index, &*it.allowed));
        Ok(Some(Self {
            peers: RuleIndex::of_many(rules.len(), || {
                rules.iter().map(|it| demands_of_callers(&it.rule.peers)).collect()
            }),
            denying: MatchIndex::from_matches(denying),
            allowing: MatchIndex::from_matches(allowing),
            rules,
            opaque: opaque.map(|port| port.port).collect(),
        }))
    }

    /// Returns the rules for this peer, with or without an identity, at this port.
    pub(super) fn of_peer(&self, peer: Option<&ServiceAccount>, port: u16) -> PeerRules {
        let (mut denied, mut allowed) = (None, None);
        let (mut deny, mut allow) = (Vec::new(), Vec::new());
        let naming = match &self.peers {
            None => RulePositions::all_rules(self.rules.len()),
            Some(peers) => peers.all_naming(peer),
        };
        for (index, rule) in naming.filter_map(|index| Some((index, &self.rules.get(index)?.rule)))
        {
            if !rule.ports.contains(port) || !rule.matches_caller(peer) {
                continue;
            }
            match (rule.action, rule.is_about_requests()) {
                // These rules need the request.
                (PolicyAction::Deny, true) => deny.push(index),
                (PolicyAction::Allow, true) => allow.push(index),
                (PolicyAction::Deny, false) => denied = denied.or(Some(index)),
                (PolicyAction::Allow, false) => allowed = allowed.or(Some(index)),
            }
        }
        PeerRules {
            denied,
            deny: RuleSubset::from_rules(self.denying.as_ref(), deny.into()),
            allowed,
            allow: RuleSubset::from_rules(self.allowing.as_ref(), allow.into()),
            may_hide: !self.opaque.contains(&port),
        }
    }

    /// Returns the decision for a request; `None` if no rule matches.
    pub(super) fn judge_request(
        &self,
        peer: &PeerRules,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<PolicyResult> {
        if let Some(index) = peer.denied {
            return Some(deny_by(index));
        }
        if !peer.deny.is_empty() {
            let variant = PathVariants::from_path(request.path, path);
            let denies = |m: &DenialMatcher| m.may_mean(request, &variant);
            let (part, many) = (&peer.deny, self.denying.as_ref());
            let sought = LookupKeys::as_meant(request, &variant);
            if let Some(index) = self.first_in(part, many, sought, |it| &*it.denied, denies) {
                return Some(deny_by(index));
            }
        }
        let allowed = peer.allowed.or_else(|| {
            let allows = |m: &RequestMatcher| allows_path(m, request, path);
            let (part, many) = (&peer.allow, self.allowing.as_ref());
            self.first_in(part, many, LookupKeys::as_sent(request), |it| &*it.allowed, allows)
        });
        allowed.map(|index| Ok(DecidedBy::Policy(index)))
    }

    /// Returns the decision for opaque bytes. If the port may carry HTTP, a rule that denies some requests
    /// denies all bytes, since a denied request may be among them.
    pub(super) fn judge_bytes(&self, peer: &PeerRules) -> Option<PolicyResult> {
        let hidden =
            || peer.deny.matching_rules(self.denying.as_ref()).next().filter(|_| peer.may_hide);
        if let Some(index) = peer.denied.or_else(hidden) {
            return Some(deny_by(index));
        }
        peer.allowed.map(|index| Ok(DecidedBy::Policy(index)))
    }

    /// Returns the decision for opaque bytes that begin with a request. The request is not parsed, so a rule
    /// that denies some requests denies it.
    pub(super) fn judge_hidden_request(&self, peer: &PeerRules) -> Option<PolicyResult> {
        let hidden = || peer.deny.matching_rules(self.denying.as_ref()).next();
        peer.denied.or_else(hidden).map(deny_by)
    }

    /// Returns the name of a rule.
    pub(super) fn decision(&self, index: usize) -> Option<&PolicyDecision> {
        self.rules.get(index).map(|rule| &rule.decision)
    }

    /// Returns the first rule of a part that matches a request.
    fn first_in<M>(
        &self,
        part: &RuleSubset,
        many: Option<&MatchIndex>,
        sought: LookupKeys<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        fits: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let part = match part {
            RuleSubset::Few(rules) => {
                return self.first_matching(rules, sought.request, matchers, fits);
            }
            RuleSubset::Many(part) => part,
        };
        many?.first_of(part.as_deref(), sought, |index, place| {
            self.rules.get(index).is_some_and(|rule| {
                matchers(rule).get(place).is_none_or(&fits)
                    && rule.rule.claims.iter().all(|claim| has_claim(sought.request, claim))
            })
        })
    }

    fn first_matching<M>(
        &self,
        among: &[usize],
        request: &RequestView<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        fits: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let fitting = |index: &&usize| {
            let rule = self.rules.get(**index);
            rule.is_some_and(|rule| {
                let matchers = matchers(rule);
                (matchers.is_empty() || matchers.iter().any(&fits))
                    && rule.rule.claims.iter().all(|claim| has_claim(request, claim))
            })
        };
        among.iter().find(fitting).copied()
    }
}

impl CompiledPolicyRule {
    fn compile(rule: &PolicyRule) -> Result<Self, InvalidPattern> {
        let of = |action| rule.requests.iter().filter(move |_| rule.action == action);
        let allowed = of(PolicyAction::Allow).map(RequestMatcher::compile_allowing);
        let denied = of(PolicyAction::Deny).map(DenialMatcher::compile);
        let within =
            |bad: InvalidPattern| bad.with_object(ObjectKey::AccessPolicy(rule.policy.clone()));
        Ok(Self {
            decision: PolicyDecision::from_policy(rule.policy.clone(), &rule.name),
            allowed: allowed.collect::<Result<_, _>>().map_err(within)?,
            denied: denied.collect::<Result<_, _>>().map_err(within)?,
            rule: rule.clone(),
        })
    }
}

/// True if the request's token has one of these values for the claim.
fn has_claim(request: &RequestView<'_>, claim: &ClaimMatch) -> bool {
    request.fields.claim_values(&claim.name).iter().any(|value| claim.values.contains(value))
}

fn deny_by(index: usize) -> PolicyResult {
    Err((Reason::DeniedByPolicy, DecidedBy::Policy(index)))
}

#[cfg(test)]
mod tests;
