//! Rules of access policies: who is denied or allowed before anything else is asked.

use std::collections::BTreeSet;

use leno_model::{
    ClaimMatch, ObjectKey, PolicyAction, PolicyRule, Protocol, Reason, ServiceAccount, WorkloadPort,
};

use super::ruling::Ruling;
use super::{By, Judgement, fits};
use crate::many::Many;
use crate::matcher::RequestMatcher;
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::spelling::{PathKind, Spelling};

/// The rules of all access policies of a workload, compiled.
#[derive(Debug)]
pub(super) struct PolicyRules {
    rules: Box<[CompiledRule]>,
    /// The requests that rules allow, where these are many.
    many: Option<Many>,
    /// The ports where nobody speaks HTTP: rules about requests have no say there.
    opaque: BTreeSet<u16>,
}

#[derive(Debug)]
struct CompiledRule {
    ruling: Ruling,
    rule: PolicyRule,
    requests: Box<[RequestMatcher]>,
}

/// The rules that concern one peer at one port: looked up once for a connection, so that requests
/// compare no identities.
#[derive(Debug, Clone)]
pub(super) struct PeerRules {
    /// The first that denies everything.
    denied: Option<usize>,
    /// Those that deny some requests.
    deny: Box<[usize]>,
    /// The first that allows everything.
    allowed: Option<usize>,
    /// Those that allow some requests.
    allow: Allowing,
    /// Whether requests may hide in opaque bytes.
    may_hide: bool,
}

/// Rules that allow a peer some requests, in order.
#[derive(Debug, Clone)]
enum Allowing {
    /// These are asked one after the other.
    Few(Box<[usize]>),
    /// These are looked up: their places among the matches of all that allow.
    Many(Box<[usize]>),
}

impl PolicyRules {
    /// Compiles the rules for a workload with these ports; `None` when there are none.
    pub(super) fn compile(
        rules: &[PolicyRule],
        ports: &[WorkloadPort],
    ) -> Result<Option<Self>, BadPattern> {
        if rules.is_empty() {
            return Ok(None);
        }
        let opaque = ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let rules: Box<[CompiledRule]> =
            rules.iter().map(CompiledRule::compile).collect::<Result<_, _>>()?;
        let allowing = || {
            let allows = |it: &CompiledRule| {
                it.rule.action == PolicyAction::Allow && it.rule.is_about_requests()
            };
            rules.iter().enumerate().filter(move |(_, it)| allows(it))
        };
        Ok(Some(Self {
            many: Many::of(allowing().map(|(index, it)| (index, &*it.requests))),
            rules,
            opaque: opaque.map(|port| port.port).collect(),
        }))
    }

    /// What concerns this peer, who may have proved no identity, at this port.
    pub(super) fn of_peer(&self, peer: Option<&ServiceAccount>, port: u16) -> PeerRules {
        let concerning = |action: PolicyAction, about_requests: bool| {
            let all = self.rules.iter().enumerate();
            let concerning = all.filter(move |(_, it)| {
                it.rule.action == action
                    && it.rule.is_about_requests() == about_requests
                    && it.rule.ports.contains(port)
                    && it.rule.names(peer)
            });
            concerning.map(|(index, _)| index)
        };
        let allow: Box<[usize]> = concerning(PolicyAction::Allow, true).collect();
        let part = self.many.as_ref().and_then(|many| many.part(&allow));
        PeerRules {
            denied: concerning(PolicyAction::Deny, false).next(),
            deny: concerning(PolicyAction::Deny, true).collect(),
            allowed: concerning(PolicyAction::Allow, false).next(),
            allow: part.map_or(Allowing::Few(allow), Allowing::Many),
            may_hide: !self.opaque.contains(&port),
        }
    }

    /// What the rules say to a request; `None` when none of them fits.
    pub(super) fn judge_request(
        &self,
        peer: &PeerRules,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<Judgement> {
        if let Some(index) = peer.denied {
            return Some(denied(index));
        }
        if !peer.deny.is_empty() {
            let spelling = Spelling::of(request.path, path);
            let denies = |m: &RequestMatcher| m.may_mean(request, &spelling);
            if let Some(index) = self.first(&peer.deny, request, denies) {
                return Some(denied(index));
            }
        }
        let allowed = peer.allowed.or_else(|| self.allowing(peer, request, path));
        allowed.map(|index| Ok(By::Policy(index)))
    }

    /// What the rules say to opaque bytes. Where HTTP may be spoken a rule that denies some
    /// requests denies all bytes: nobody sees whether such a request is among them.
    pub(super) fn judge_bytes(&self, peer: &PeerRules) -> Option<Judgement> {
        let hidden = peer.deny.first().filter(|_| peer.may_hide);
        if let Some(index) = peer.denied.or(hidden.copied()) {
            return Some(denied(index));
        }
        peer.allowed.map(|index| Ok(By::Policy(index)))
    }

    /// The name of a rule.
    pub(super) fn ruling(&self, index: usize) -> Option<&Ruling> {
        self.rules.get(index).map(|rule| &rule.ruling)
    }

    /// The first rule that allows a request to this peer.
    fn allowing(
        &self,
        peer: &PeerRules,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        let allows = |m: &RequestMatcher| fits(m, request, path);
        let part = match &peer.allow {
            Allowing::Few(rules) => return self.first(rules, request, allows),
            Allowing::Many(part) => part,
        };
        self.many.as_ref()?.first_of(part, request, |index, place| {
            self.rules.get(index).is_some_and(|rule| {
                rule.requests.get(place).is_none_or(allows)
                    && rule.rule.claims.iter().all(|claim| shows(request, claim))
            })
        })
    }

    fn first(
        &self,
        among: &[usize],
        request: &RequestView<'_>,
        fits: impl Fn(&RequestMatcher) -> bool,
    ) -> Option<usize> {
        let fitting = |index: &&usize| {
            let rule = self.rules.get(**index);
            rule.is_some_and(|rule| {
                (rule.requests.is_empty() || rule.requests.iter().any(&fits))
                    && rule.rule.claims.iter().all(|claim| shows(request, claim))
            })
        };
        among.iter().find(fitting).copied()
    }
}

impl CompiledRule {
    fn compile(rule: &PolicyRule) -> Result<Self, BadPattern> {
        let requests = rule.requests.iter().map(RequestMatcher::compile);
        Ok(Self {
            ruling: Ruling::policy(rule.policy.clone(), &rule.name),
            requests: requests
                .collect::<Result<_, _>>()
                .map_err(|bad| bad.within(ObjectKey::AccessPolicy(rule.policy.clone())))?,
            rule: rule.clone(),
        })
    }
}

/// Whether the token of a request says what is wanted.
fn shows(request: &RequestView<'_>, claim: &ClaimMatch) -> bool {
    request.fields.claim(&claim.name).iter().any(|value| claim.values.contains(value))
}

fn denied(index: usize) -> Judgement {
    Err((Reason::DeniedByPolicy, By::Policy(index)))
}

#[cfg(test)]
mod tests;
