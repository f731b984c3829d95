//! Compiled access policy rules: explicit denials and allowances, evaluated before all other rules.

use std::collections::BTreeSet;

use leno_model::{
    ClaimMatch, ObjectKey, PolicyAction, PolicyRule, Reason, RequestNeed, ServiceAccount,
    WorkloadPort,
};

use super::decision::PolicyDecision;
use super::{DecidedBy, PolicyResult, allows_path};
use crate::match_index::{MatchIndex, RuleSubset, caller_conditions};
use crate::matcher::{DenialMatcher, RequestMatcher};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::{LookupKeys, RuleIndex, RulePositions};
use crate::variant::{PathKind, PathVariants};

/// The rules of all access policies of a workload, compiled.
#[derive(Debug)]
pub(super) struct PolicyRules {
    rules: Box<[CompiledPolicyRule]>,
    /// An index of the peers that the rules name, if there are many rules.
    peers: Option<Box<RuleIndex>>,
    /// An index of the requests that rules deny, if there are many matches.
    deny_index: Option<MatchIndex>,
    /// An index of the requests that rules allow, if there are many matches.
    allow_index: Option<MatchIndex>,
    /// Ports on which opaque bytes cannot hide a request; rules about requests do not apply there.
    opaque_ports: BTreeSet<u16>,
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
    /// The first rule that denies everything, if any.
    deny_all: Option<usize>,
    /// The rules that deny some requests.
    deny: RuleSubset,
    /// The first rule that allows everything, if any.
    allow_all: Option<usize>,
    /// The rules that allow some requests.
    allow: RuleSubset,
    /// True if opaque bytes at the port may contain requests.
    may_contain_requests: bool,
}

impl PeerRules {
    /// True if every request of the peer is denied.
    pub(super) fn denies_all(&self) -> bool {
        self.deny_all.is_some()
    }

    /// True if a rule allows some or all requests of the peer.
    pub(super) fn may_allow(&self) -> bool {
        self.allow_all.is_some() || !self.allow.is_empty()
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
        let may_contain_requests =
            |port: &WorkloadPort| RequestNeed::IfSupported.rejects_bytes(port.protocol);
        let opaque_ports = ports.iter().filter(|port| !may_contain_requests(port));
        let rules: Box<[CompiledPolicyRule]> =
            rules.iter().map(CompiledPolicyRule::compile).collect::<Result<_, _>>()?;
        let request_rules = |action| {
            let rules = rules.iter().enumerate();
            rules.filter(move |(_, compiled)| {
                compiled.rule.action == action && compiled.rule.is_about_requests()
            })
        };
        let denied = request_rules(PolicyAction::Deny).map(|(index, rule)| (index, &*rule.denied));
        let allowed =
            request_rules(PolicyAction::Allow).map(|(index, rule)| (index, &*rule.allowed));
        Ok(Some(Self {
            peers: RuleIndex::build_if_many(rules.len(), || {
                rules.iter().map(|rule| caller_conditions(&rule.rule.peers)).collect()
            }),
            deny_index: MatchIndex::from_matches(denied),
            allow_index: MatchIndex::from_matches(allowed),
            rules,
            opaque_ports: opaque_ports.map(|port| port.port).collect(),
        }))
    }

    /// Returns the rules for this peer, with or without an identity, at this port.
    pub(super) fn rules_for_peer(&self, peer: Option<&ServiceAccount>, port: u16) -> PeerRules {
        let (mut deny_all, mut allow_all) = (None, None);
        let (mut deny, mut allow) = (Vec::new(), Vec::new());
        let positions = match &self.peers {
            None => RulePositions::all_rules(self.rules.len()),
            Some(peers) => peers.rules_for_caller(peer),
        };
        for (index, rule) in
            positions.filter_map(|index| Some((index, &self.rules.get(index)?.rule)))
        {
            if !rule.ports.contains(port) || !rule.matches_caller(peer) {
                continue;
            }
            match (rule.action, rule.is_about_requests()) {
                // These rules need the request.
                (PolicyAction::Deny, true) => deny.push(index),
                (PolicyAction::Allow, true) => allow.push(index),
                (PolicyAction::Deny, false) => deny_all = deny_all.or(Some(index)),
                (PolicyAction::Allow, false) => allow_all = allow_all.or(Some(index)),
            }
        }
        PeerRules {
            deny_all,
            deny: RuleSubset::from_rules(self.deny_index.as_ref(), deny.into()),
            allow_all,
            allow: RuleSubset::from_rules(self.allow_index.as_ref(), allow.into()),
            may_contain_requests: !self.opaque_ports.contains(&port),
        }
    }

    /// Returns the decision for a request; `None` if no rule matches.
    pub(super) fn evaluate_request(
        &self,
        peer: &PeerRules,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<PolicyResult> {
        if let Some(index) = peer.deny_all {
            return Some(denied_by(index));
        }
        if !peer.deny.is_empty() {
            let variants = PathVariants::from_path(request.path, path);
            let denies = |matcher: &DenialMatcher| matcher.may_match(request, &variants);
            let (rules, match_index) = (&peer.deny, self.deny_index.as_ref());
            let keys = LookupKeys::as_interpreted(request, &variants);
            if let Some(index) =
                self.find_first_match(rules, match_index, keys, |rule| &*rule.denied, denies)
            {
                return Some(denied_by(index));
            }
        }
        let allowed = peer.allow_all.or_else(|| {
            let allows = |matcher: &RequestMatcher| allows_path(matcher, request, path);
            let (rules, match_index) = (&peer.allow, self.allow_index.as_ref());
            let keys = LookupKeys::as_sent(request);
            self.find_first_match(rules, match_index, keys, |rule| &*rule.allowed, allows)
        });
        allowed.map(|index| Ok(DecidedBy::Policy(index)))
    }

    /// Returns the decision for opaque bytes. If the port may carry HTTP, a rule that denies some requests
    /// denies all bytes, since a denied request may be among them.
    pub(super) fn evaluate_bytes(&self, peer: &PeerRules) -> Option<PolicyResult> {
        let request_denial = || {
            peer.deny
                .matching_rules(self.deny_index.as_ref())
                .next()
                .filter(|_| peer.may_contain_requests)
        };
        if let Some(index) = peer.deny_all.or_else(request_denial) {
            return Some(denied_by(index));
        }
        peer.allow_all.map(|index| Ok(DecidedBy::Policy(index)))
    }

    /// Returns the decision for opaque bytes that begin with a request. The request is not parsed, so a rule
    /// that denies some requests denies it.
    pub(super) fn evaluate_hidden_request(&self, peer: &PeerRules) -> Option<PolicyResult> {
        let request_denial = || peer.deny.matching_rules(self.deny_index.as_ref()).next();
        peer.deny_all.or_else(request_denial).map(denied_by)
    }

    /// Returns the decision of the rule at this position.
    pub(super) fn decision(&self, index: usize) -> Option<&PolicyDecision> {
        self.rules.get(index).map(|rule| &rule.decision)
    }

    /// Returns the first of these rules that matches a request.
    fn find_first_match<M>(
        &self,
        rules: &RuleSubset,
        match_index: Option<&MatchIndex>,
        keys: LookupKeys<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        is_match: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let rules = match rules {
            RuleSubset::Few(rules) => {
                return self.find_first_in_list(rules, keys.request, matchers, is_match);
            }
            RuleSubset::Many(rules) => rules,
        };
        match_index?.first_match_among(rules.as_deref(), keys, |index, match_position| {
            self.rules.get(index).is_some_and(|rule| {
                matchers(rule).get(match_position).is_none_or(&is_match)
                    && rule.rule.claims.iter().all(|claim| has_claim(keys.request, claim))
            })
        })
    }

    fn find_first_in_list<M>(
        &self,
        candidates: &[usize],
        request: &RequestView<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        is_match: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let matches_all = |index: &&usize| {
            let rule = self.rules.get(**index);
            rule.is_some_and(|rule| {
                let matchers = matchers(rule);
                (matchers.is_empty() || matchers.iter().any(&is_match))
                    && rule.rule.claims.iter().all(|claim| has_claim(request, claim))
            })
        };
        candidates.iter().find(matches_all).copied()
    }
}

impl CompiledPolicyRule {
    fn compile(rule: &PolicyRule) -> Result<Self, InvalidPattern> {
        let requests_for = |action| rule.requests.iter().filter(move |_| rule.action == action);
        let allowed = requests_for(PolicyAction::Allow).map(RequestMatcher::compile_allowing);
        let denied = requests_for(PolicyAction::Deny).map(DenialMatcher::compile);
        let with_policy =
            |error: InvalidPattern| error.with_object(ObjectKey::AccessPolicy(rule.policy.clone()));
        Ok(Self {
            decision: PolicyDecision::from_policy(rule.policy.clone(), &rule.name),
            allowed: allowed.collect::<Result<_, _>>().map_err(with_policy)?,
            denied: denied.collect::<Result<_, _>>().map_err(with_policy)?,
            rule: rule.clone(),
        })
    }
}

/// True if the request's token has one of these values for the claim.
fn has_claim(request: &RequestView<'_>, claim: &ClaimMatch) -> bool {
    request.fields.claim_values(&claim.name).iter().any(|value| claim.values.contains(value))
}

fn denied_by(index: usize) -> PolicyResult {
    Err((Reason::DeniedByPolicy, DecidedBy::Policy(index)))
}

#[cfg(test)]
mod tests;
