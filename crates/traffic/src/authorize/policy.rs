//! Compiles and evaluates the rules of access policies: deny rules and allow rules, which precede all other rules of
//! the inbound authorization.

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

/// The compiled rules of all access policies of a workload.
#[derive(Debug)]
pub(super) struct PolicyRules {
    rules: Box<[CompiledPolicyRule]>,
    /// An index of the rules by the peers that they name, if there are many rules.
    peer_index: Option<Box<RuleIndex>>,
    /// An index of the requests that rules deny, if there are many matches.
    deny_index: Option<MatchIndex>,
    /// An index of the requests that rules allow, if there are many matches.
    allow_index: Option<MatchIndex>,
    /// The ports whose declared protocol is not HTTP, so that opaque bytes contain no requests. Rules that match by
    /// request do not apply to these ports.
    opaque_ports: BTreeSet<u16>,
}

/// An access policy rule with its compiled request matches.
#[derive(Debug)]
struct CompiledPolicyRule {
    decision: PolicyDecision,
    /// The rule as configured.
    config: PolicyRule,
    /// The request matches of an allow rule; empty for deny rules.
    allow_matchers: Box<[RequestMatcher]>,
    /// The request matches of a deny rule; empty for allow rules.
    deny_matchers: Box<[DenialMatcher]>,
}

/// The rules for one peer at one port. They are selected once per connection, so that requests compare no identities.
#[derive(Debug, Clone)]
pub(super) struct PeerRules {
    /// The position of the first rule that denies all traffic, if any.
    deny_all: Option<usize>,
    /// The rules that deny some requests.
    deny_rules: RuleSubset,
    /// The position of the first rule that allows all traffic, if any.
    allow_all: Option<usize>,
    /// The rules that allow some requests.
    allow_rules: RuleSubset,
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
        self.allow_all.is_some() || !self.allow_rules.is_empty()
    }
}

impl PolicyRules {
    /// Compiles the rules for a workload with these ports; `None` if there are no rules.
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
            let numbered_rules = rules.iter().enumerate();
            numbered_rules.filter(move |(_, compiled)| {
                compiled.config.action == action && compiled.config.matches_by_request()
            })
        };
        let deny_matchers = request_rules(PolicyAction::Deny)
            .map(|(position, rule)| (position, &*rule.deny_matchers));
        let allow_matchers = request_rules(PolicyAction::Allow)
            .map(|(position, rule)| (position, &*rule.allow_matchers));
        Ok(Some(Self {
            peer_index: RuleIndex::build_if_many(rules.len(), || {
                rules.iter().map(|rule| caller_conditions(&rule.config.peers)).collect()
            }),
            deny_index: MatchIndex::from_matches(deny_matchers),
            allow_index: MatchIndex::from_matches(allow_matchers),
            rules,
            opaque_ports: opaque_ports.map(|port| port.port).collect(),
        }))
    }

    /// Returns the rules for a peer at a port; `None` is a peer without an identity.
    pub(super) fn rules_for_peer(&self, peer: Option<&ServiceAccount>, port: u16) -> PeerRules {
        let (mut deny_all, mut allow_all) = (None, None);
        let (mut deny_rules, mut allow_rules) = (Vec::new(), Vec::new());
        let positions = match &self.peer_index {
            None => RulePositions::all_rules(self.rules.len()),
            Some(peer_index) => peer_index.rules_for_caller(peer),
        };
        for (position, rule) in
            positions.filter_map(|position| Some((position, &self.rules.get(position)?.config)))
        {
            if !rule.ports.contains(port) || !rule.matches_caller(peer) {
                continue;
            }
            match (rule.action, rule.matches_by_request()) {
                // These rules are evaluated for each request.
                (PolicyAction::Deny, true) => deny_rules.push(position),
                (PolicyAction::Allow, true) => allow_rules.push(position),
                (PolicyAction::Deny, false) => deny_all = deny_all.or(Some(position)),
                (PolicyAction::Allow, false) => allow_all = allow_all.or(Some(position)),
            }
        }
        PeerRules {
            deny_all,
            deny_rules: RuleSubset::from_rules(self.deny_index.as_ref(), deny_rules.into()),
            allow_all,
            allow_rules: RuleSubset::from_rules(self.allow_index.as_ref(), allow_rules.into()),
            may_contain_requests: !self.opaque_ports.contains(&port),
        }
    }

    /// Returns the decision for a request; `None` if no rule matches.
    pub(super) fn evaluate_request(
        &self,
        peer_rules: &PeerRules,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<PolicyResult> {
        if let Some(position) = peer_rules.deny_all {
            return Some(denied_by(position));
        }
        if !peer_rules.deny_rules.is_empty() {
            let variants = PathVariants::from_path(request.path, path);
            let denies = |matcher: &DenialMatcher| matcher.may_match(request, &variants);
            let (rules, match_index) = (&peer_rules.deny_rules, self.deny_index.as_ref());
            let keys = LookupKeys::as_interpreted(request, &variants);
            if let Some(position) =
                self.find_first_match(rules, match_index, keys, |rule| &*rule.deny_matchers, denies)
            {
                return Some(denied_by(position));
            }
        }
        let allowing_rule = peer_rules.allow_all.or_else(|| {
            let allows = |matcher: &RequestMatcher| allows_path(matcher, request, path);
            let (rules, match_index) = (&peer_rules.allow_rules, self.allow_index.as_ref());
            let keys = LookupKeys::as_sent(request);
            self.find_first_match(rules, match_index, keys, |rule| &*rule.allow_matchers, allows)
        });
        allowing_rule.map(|position| Ok(DecidedBy::Policy(position)))
    }

    /// Returns the decision for opaque bytes; `None` if no rule matches. If the port may carry HTTP, a rule that
    /// denies some requests denies all bytes, because they may contain a denied request.
    pub(super) fn evaluate_bytes(&self, peer_rules: &PeerRules) -> Option<PolicyResult> {
        let request_denial = || {
            peer_rules
                .deny_rules
                .rule_positions(self.deny_index.as_ref())
                .next()
                .filter(|_| peer_rules.may_contain_requests)
        };
        if let Some(position) = peer_rules.deny_all.or_else(request_denial) {
            return Some(denied_by(position));
        }
        peer_rules.allow_all.map(|position| Ok(DecidedBy::Policy(position)))
    }

    /// Returns the decision for opaque bytes that begin with an HTTP request; `None` if no deny rule applies to the
    /// peer. The hidden request is not parsed, so a rule that denies some requests denies every hidden request.
    pub(super) fn evaluate_hidden_request(&self, peer_rules: &PeerRules) -> Option<PolicyResult> {
        let request_denial =
            || peer_rules.deny_rules.rule_positions(self.deny_index.as_ref()).next();
        peer_rules.deny_all.or_else(request_denial).map(denied_by)
    }

    /// Returns the decision of the rule at this position; `None` if there is no such rule.
    pub(super) fn decision(&self, position: usize) -> Option<&PolicyDecision> {
        self.rules.get(position).map(|rule| &rule.decision)
    }

    /// Returns the position of the first of these rules that matches a request; `None` if no rule matches.
    fn find_first_match<M>(
        &self,
        rules: &RuleSubset,
        match_index: Option<&MatchIndex>,
        keys: LookupKeys<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        is_match: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let candidate_matches = match rules {
            RuleSubset::Few(candidate_rules) => {
                return self.find_first_in_list(candidate_rules, keys.request, matchers, is_match);
            }
            RuleSubset::Many(candidate_matches) => candidate_matches.as_deref(),
        };
        match_index?.first_match_among(candidate_matches, keys, |rule_position, match_position| {
            self.rules.get(rule_position).is_some_and(|rule| {
                // A rule with conditions on claims only has no matchers, and one match without conditions in the index.
                matchers(rule).get(match_position).is_none_or(&is_match)
                    && rule.config.claims.iter().all(|claim| has_claim(keys.request, claim))
            })
        })
    }

    /// Returns the position of the first candidate that matches a request, by evaluation of each candidate.
    fn find_first_in_list<M>(
        &self,
        candidates: &[usize],
        request: &RequestView<'_>,
        matchers: impl Fn(&CompiledPolicyRule) -> &[M],
        is_match: impl Fn(&M) -> bool,
    ) -> Option<usize> {
        let is_matching_rule = |position: &&usize| {
            let rule = self.rules.get(**position);
            rule.is_some_and(|rule| {
                let matchers = matchers(rule);
                (matchers.is_empty() || matchers.iter().any(&is_match))
                    && rule.config.claims.iter().all(|claim| has_claim(request, claim))
            })
        };
        candidates.iter().find(is_matching_rule).copied()
    }
}

impl CompiledPolicyRule {
    fn compile(rule: &PolicyRule) -> Result<Self, InvalidPattern> {
        let requests_for = |action| rule.requests.iter().filter(move |_| rule.action == action);
        let allow_matchers =
            requests_for(PolicyAction::Allow).map(RequestMatcher::compile_allowing);
        let deny_matchers = requests_for(PolicyAction::Deny).map(DenialMatcher::compile);
        let with_object =
            |error: InvalidPattern| error.with_object(ObjectKey::AccessPolicy(rule.policy.clone()));
        Ok(Self {
            decision: PolicyDecision::from_policy(rule.policy.clone(), &rule.name),
            allow_matchers: allow_matchers.collect::<Result<_, _>>().map_err(with_object)?,
            deny_matchers: deny_matchers.collect::<Result<_, _>>().map_err(with_object)?,
            config: rule.clone(),
        })
    }
}

/// True if the request's token has one of these values for the claim.
fn has_claim(request: &RequestView<'_>, claim: &ClaimMatch) -> bool {
    request.fields.claim_values(&claim.name).iter().any(|value| claim.values.contains(value))
}

/// Returns the denial by the rule at this position.
fn denied_by(position: usize) -> PolicyResult {
    Err((Reason::DeniedByPolicy, DecidedBy::Policy(position)))
}

#[cfg(test)]
mod tests;
