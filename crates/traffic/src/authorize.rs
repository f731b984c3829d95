//! Inbound authorization of connections and requests by peer identity.

mod decision;
mod ingress_rules;
mod policy;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    Access, AccessRule, MtlsMode, ObjectKey, PortSet, Protocol, Reason, ServiceAccount, SpiffeId,
    TrustDomain, WorkloadConfig,
};

use crate::match_index::{MatchIndex, RuleSubset};
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;
use crate::variant::{PathKind, fits_each_reading};
use ingress_rules::IngressRules;
use policy::{PeerRules, PolicyRules};

pub use decision::{Denial, PolicyDecision};
pub use ingress_rules::{ConnectionOrigin, SessionTransport};

/// The compiled inbound authorization of one workload.
///
/// Access policies are evaluated first: deny rules, then allow rules. Ingress rules for clients outside the
/// mesh come next. With `defaultPolicy: allow` every verified member of the trust domain is then allowed. With
/// `defaultPolicy: deny` the allowed requests are the union of all `TrafficTarget`s with the peer as a source.
/// The status is 403 for a peer without any `TrafficTarget`. For a peer with one that does not cover the
/// request, it is 403 if the request is allowed to other peers, and 404 otherwise.
#[derive(Debug)]
pub struct InboundAccess {
    trust_domain: TrustDomain,
    /// Absent with `defaultPolicy: allow`.
    rules: Option<AllowRules>,
    /// Absent without access policies.
    policies: Option<PolicyRules>,
    /// Revoked accounts, which are never allowed.
    revoked: BTreeSet<ServiceAccount>,
    /// `defaultPolicy: dry-run`: requests denied by policies are allowed.
    is_dry_run: bool,
    /// Rules are evaluated for peers without an identity too, but never allow them anything.
    mtls: MtlsMode,
    /// Ingress rules, for clients outside the mesh.
    ingress_rules: IngressRules,
    /// Distinguishes permits of this compilation from those of another.
    seal: Arc<Seal>,
}

impl InboundAccess {
    /// Compiles all inbound authorization of a configuration.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn from_config(plan: &WorkloadConfig) -> Result<Self, InvalidPattern> {
        let access = Self::compile(&plan.access, &plan.trust_domain)?;
        Ok(Self {
            revoked: plan.revoked.clone(),
            is_dry_run: plan.inbound.is_dry_run,
            mtls: plan.mtls,
            policies: PolicyRules::compile(&plan.inbound.rules, &plan.ports)?,
            ingress_rules: IngressRules::compile(&plan.ingress_rules)?,
            ..access
        })
    }

    /// Compiles the access rules of a workload.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn compile(access: &Access, trust_domain: &TrustDomain) -> Result<Self, InvalidPattern> {
        let rules = match access {
            Access::AllowAll => None,
            Access::AllowListed(rules) => Some(AllowRules::compile(rules)?),
        };
        Ok(Self {
            trust_domain: trust_domain.clone(),
            rules,
            revoked: BTreeSet::new(),
            is_dry_run: false,
            mtls: MtlsMode::Strict,
            policies: None,
            ingress_rules: IngressRules::default(),
            seal: Arc::new(Seal),
        })
    }

    /// Authorizes a connection, or a stream of a link, to a port of the application by the verified peer
    /// identity; `None` is a peer without an identity.
    ///
    /// With `defaultPolicy: deny` a peer without any policy gets a permit that denies every request: links
    /// outlive policies, and HTTP clients expect a 403.
    ///
    /// # Errors
    /// `plaintext-rejected` for a peer without an identity, unless the workload accepts plaintext;
    /// `foreign-trust-domain` for a peer of another mesh; `revoked-peer` for a revoked account.
    pub fn authorize_connection(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
    ) -> Result<ConnectionPermit, Denial> {
        self.visit(peer, port, None)
    }

    /// Authorizes a connection with a known origin; ingress rules may allow clients that no other rule allows.
    ///
    /// # Errors
    /// As for [`Self::authorize_connection`].
    pub fn visit(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: Option<ConnectionOrigin>,
    ) -> Result<ConnectionPermit, Denial> {
        Ok(ConnectionPermit(Arc::new(ConnectionAuthorization {
            applicable_rules: self.rights_of(peer, port, origin.as_ref())?,
            peer: peer.cloned(),
            port,
            origin,
            seal: Arc::clone(&self.seal),
        })))
    }

    /// Returns the protocol that plaintext clients at this address may use at a port with an ingress rule;
    /// `at` is the port and the protocol of the application.
    #[must_use]
    pub fn in_clear(&self, port: u16, spoken: Protocol, address: IpAddr) -> Option<Protocol> {
        self.ingress_rules.in_clear(port, spoken, address)
    }

    /// True if clients at this address need no certificate at a port.
    #[must_use]
    pub fn skips_proof(&self, port: u16, address: IpAddr) -> bool {
        self.ingress_rules.skips_proof(port, address)
    }

    /// True if a client at this address may present the certificate of an external principal at a port.
    #[must_use]
    pub fn takes_external_principals(&self, port: u16, address: IpAddr) -> bool {
        self.ingress_rules.takes_external_principals(port, address)
    }

    /// Authorizes a request. A permit of another compilation contributes only its identity, and the rules for
    /// it are searched again.
    ///
    /// # Errors
    /// `denied-by-policy`, with the policy; `denied` or `no-policy-route`, with the policy that allows it to
    /// other peers, if any. With `defaultPolicy: dry-run` these become permits with a
    /// [would-be denial](RequestPermit::would_deny).
    pub fn authorize_request(
        &self,
        permit: &ConnectionPermit,
        request: &RequestView<'_>,
    ) -> Result<RequestPermit, Denial> {
        let rights = self.current_rights(permit)?;
        self.apply_mode(&rights, self.judge_request(&rights, request))
    }

    /// Authorizes opaque bytes to a port of the application. HTTP rules open no port to bytes.
    ///
    /// # Errors
    /// As for requests, except `no-policy-route`.
    pub fn authorize_tcp(&self, permit: &ConnectionPermit) -> Result<RequestPermit, Denial> {
        let rights = self.current_rights(permit)?;
        self.apply_mode(&rights, self.judge_bytes(&rights, permit.0.port))
    }

    /// Authorizes opaque bytes that begin with an HTTP request, whatever protocol the port declares.
    ///
    /// # Errors
    /// `denied-by-policy` if a rule denies some requests of the peer; also the errors of
    /// [`Self::authorize_connection`].
    pub fn hidden_request(&self, permit: &ConnectionPermit) -> Result<(), Denial> {
        let rights = self.current_rights(permit)?;
        let rules = self.policies.as_ref().zip(rights.policies.as_ref());
        let judgement = rules.and_then(|(policies, rules)| policies.judge_hidden_request(rules));
        self.apply_mode(&rights, judgement.unwrap_or(Ok(DecidedBy::NoRule))).map(drop)
    }

    /// True if the rules allow at least one request of this peer. The rules for opaque bytes may still reject
    /// bytes that contain such a request.
    #[must_use]
    pub fn may_let_requests_in(&self, permit: &ConnectionPermit) -> bool {
        let Ok(rights) = self.current_rights(permit) else { return false };
        let rules = rights.policies.as_deref();
        if rules.is_some_and(PeerRules::denies_all) {
            return self.is_dry_run && !rights.opened_only;
        }
        if rules.is_some_and(PeerRules::may_allow) || !rights.ingress_rules.is_empty() {
            return true;
        }
        !rights.opened_only && (self.is_dry_run || self.rules.is_none() || rights.targets.is_some())
    }

    fn judge_request(&self, rights: &ApplicableRules, request: &RequestView<'_>) -> PolicyResult {
        if self.policies.is_none() && self.rules.is_none() && !rights.opened_only {
            return Ok(DecidedBy::NoRule);
        }
        let path = PathKind::from_path(request.path);
        if let (Some(policies), Some(rules)) = (&self.policies, &rights.policies)
            && let Some(judgement) = policies.judge_request(rules, request, path)
        {
            return judgement;
        }
        if let Some(index) = self.ingress_rules.for_request(&rights.ingress_rules, request, path) {
            return Ok(DecidedBy::IngressRule(index));
        }
        if rights.opened_only {
            return Err((Reason::NoPolicyRoute, DecidedBy::NoRule));
        }
        let Some(strict) = &self.rules else {
            return Ok(DecidedBy::NoRule);
        };
        let peers_rules = rights.targets.as_ref().ok_or((Reason::Denied, DecidedBy::NoRule))?;
        let allows =
            |rule: &CompiledAccess| rule.http.iter().any(|m| allows_path(m, request, path));
        let allows_at = |rule: usize, place: usize| {
            let matcher = strict.rules.get(rule).and_then(|rule| rule.http.get(place));
            matcher.is_some_and(|matcher| allows_path(matcher, request, path))
        };
        let own = match &peers_rules.many {
            None => strict.first_allowing(&peers_rules.rules, allows),
            Some(many) => many.first_fitting(LookupKeys::as_sent(request), allows_at),
        };
        if let Some(index) = own {
            return Ok(DecidedBy::Target(index));
        }
        // The peer's own rules do not match, so any matching rule belongs to other peers. The lookup is
        // indexed, so that a denied request does not evaluate the rules of all peers.
        let others = match &strict.many {
            None => strict.rules.iter().position(allows),
            Some(many) => many.first_fitting(LookupKeys::as_sent(request), allows_at),
        };
        match others {
            Some(index) => Err((Reason::Denied, DecidedBy::Target(index))),
            None => Err((Reason::NoPolicyRoute, DecidedBy::NoRule)),
        }
    }

    fn judge_bytes(&self, rights: &ApplicableRules, port: u16) -> PolicyResult {
        if let (Some(policies), Some(rules)) = (&self.policies, &rights.policies)
            && let Some(judgement) = policies.judge_bytes(rules)
        {
            return judgement;
        }
        if let Some(index) = self.ingress_rules.for_bytes(&rights.ingress_rules) {
            return Ok(DecidedBy::IngressRule(index));
        }
        if rights.opened_only {
            return Err((Reason::Denied, DecidedBy::NoRule));
        }
        let Some(strict) = &self.rules else {
            return Ok(DecidedBy::NoRule);
        };
        let allows = |rule: &CompiledAccess| rule.opens_port(port);
        let own = rights.targets.as_ref();
        if let Some(index) = own.and_then(|own| strict.first_allowing(&own.rules, allows)) {
            return Ok(DecidedBy::Target(index));
        }
        let others = strict.rules.iter().position(allows);
        Err((Reason::Denied, others.map_or(DecidedBy::NoRule, DecidedBy::Target)))
    }

    /// With `defaultPolicy: dry-run` policy denials are allowed and recorded in the permit, except for clients
    /// with no access other than through ingress rules.
    fn apply_mode(
        &self,
        rights: &ApplicableRules,
        judgement: PolicyResult,
    ) -> Result<RequestPermit, Denial> {
        match judgement {
            Ok(by) => Ok(RequestPermit { decided_by: by, would_deny: None }),
            Err((reason, by)) if self.is_dry_run && !rights.opened_only => {
                Ok(RequestPermit { decided_by: by, would_deny: Some(reason) })
            }
            Err((reason, by)) => Err(Denial { reason, policy: self.decision_by(by).cloned() }),
        }
    }

    /// True if the permit comes from this compilation. Other permits work, but each decision costs a rule
    /// lookup: replace them by calling [`Self::authorize_connection`] again.
    #[must_use]
    pub fn is_current(&self, permit: &ConnectionPermit) -> bool {
        Arc::ptr_eq(&self.seal, &permit.0.seal)
    }

    /// Returns the policy behind a permit; `None` with `defaultPolicy: allow`. For a would-be denial, it is the
    /// policy that allows the request to other peers, if any.
    #[must_use]
    pub fn decision(&self, permit: RequestPermit) -> Option<&PolicyDecision> {
        self.decision_by(permit.decided_by)
    }

    fn decision_by(&self, by: DecidedBy) -> Option<&PolicyDecision> {
        match by {
            DecidedBy::NoRule => None,
            DecidedBy::Policy(index) => self.policies.as_ref()?.decision(index),
            DecidedBy::IngressRule(index) => self.ingress_rules.decision(index),
            DecidedBy::Target(index) => {
                self.rules.as_ref()?.rules.get(index).map(|rule| &rule.decision)
            }
        }
    }

    fn current_rights<'a>(
        &self,
        permit: &'a ConnectionPermit,
    ) -> Result<Cow<'a, ApplicableRules>, Denial> {
        let ConnectionAuthorization { peer, port, origin, applicable_rules: rights, .. } =
            &*permit.0;
        match self.is_current(permit) {
            true => Ok(Cow::Borrowed(rights)),
            false => self.rights_of(peer.as_ref(), *port, origin.as_ref()).map(Cow::Owned),
        }
    }

    /// Returns the rules for the peer.
    fn rights_of(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: Option<&ConnectionOrigin>,
    ) -> Result<ApplicableRules, Denial> {
        let openings = || match origin {
            Some(origin) => self.ingress_rules.for_client(peer, port, origin),
            None => RuleSubset::default(),
        };
        let Some(peer) = peer else {
            return self.rights_of_nobody(port, openings());
        };
        if peer.trust_domain != self.trust_domain {
            return Err(Denial::without_policy(Reason::ForeignTrustDomain));
        }
        if self.revoked.contains(&peer.account) {
            return Err(Denial::without_policy(Reason::RevokedPeer));
        }
        let strict = self.rules.as_ref();
        let account = &peer.account;
        Ok(ApplicableRules {
            targets: strict.and_then(|strict| strict.by_source.get(account)).cloned(),
            policies: self.peer_rules(Some(account), port),
            ingress_rules: openings(),
            opened_only: false,
        })
    }

    /// No allow rule names a peer without an identity; rules that deny all peers still apply to it.
    fn rights_of_nobody(&self, port: u16, openings: RuleSubset) -> Result<ApplicableRules, Denial> {
        let opened_only = self.mtls == MtlsMode::Strict;
        if opened_only && openings.is_empty() {
            return Err(Denial::without_policy(Reason::PlaintextRejected));
        }
        let policies = self.peer_rules(None, port);
        Ok(ApplicableRules { targets: None, policies, ingress_rules: openings, opened_only })
    }

    fn peer_rules(&self, peer: Option<&ServiceAccount>, port: u16) -> Option<Box<PeerRules>> {
        self.policies.as_ref().map(|rules| Box::new(rules.of_peer(peer, port)))
    }
}

/// Proof that a peer presented an identity of this mesh, or needs none, with the rules for it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionPermit(Arc<ConnectionAuthorization>);

impl ConnectionPermit {
    /// Returns the verified identity of the peer, if any.
    #[must_use]
    pub fn peer(&self) -> Option<&SpiffeId> {
        self.0.peer.as_ref()
    }
}

#[derive(Debug)]
struct ConnectionAuthorization {
    peer: Option<SpiffeId>,
    /// The port of the application.
    port: u16,
    /// The origin of the connection, if known.
    origin: Option<ConnectionOrigin>,
    applicable_rules: ApplicableRules,
    seal: Arc<Seal>,
}

/// The rules that apply to a peer.
#[derive(Debug, Clone)]
struct ApplicableRules {
    /// The `TrafficTarget` rules with the peer as a source, if any.
    targets: Option<Arc<SourceRules>>,
    /// The access policy rules, if any; boxed, because rights are moved.
    policies: Option<Box<PeerRules>>,
    /// The ingress rules that allow it.
    ingress_rules: RuleSubset,
    /// Indicates that only ingress rules allow it.
    opened_only: bool,
}

/// Proof that a request or byte stream is allowed. [`InboundAccess::decision`] returns its policy.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct RequestPermit {
    decided_by: DecidedBy,
    would_deny: Option<Reason>,
}

impl RequestPermit {
    /// Returns the reason for which `defaultPolicy: deny` would reject it.
    #[must_use]
    pub fn would_deny(self) -> Option<Reason> {
        self.would_deny
    }
}

/// The decision of the policies, before the mode is applied.
type PolicyResult = Result<DecidedBy, (Reason, DecidedBy)>;

/// The rule that decided.
#[derive(Debug, Clone, Copy)]
enum DecidedBy {
    NoRule,
    /// A `TrafficTarget`.
    Target(usize),
    /// An access policy.
    Policy(usize),
    /// An ingress rule.
    IngressRule(usize),
}

/// Only the address of its `Arc` matters.
#[derive(Debug)]
struct Seal;

#[derive(Debug)]
struct AllowRules {
    rules: Box<[CompiledAccess]>,
    /// The rules of each source, so that requests compare no identities.
    by_source: BTreeMap<ServiceAccount, Arc<SourceRules>>,
    /// An index of everything they allow, if there are many.
    many: Option<MatchIndex>,
}

/// The rules of one or more sources.
#[derive(Debug)]
struct SourceRules {
    rules: Box<[usize]>,
    /// An index of everything they allow, if there are many.
    many: Option<MatchIndex>,
}

impl AllowRules {
    fn compile(rules: &[AccessRule]) -> Result<Self, InvalidPattern> {
        let mut by_source = BTreeMap::<_, Vec<usize>>::new();
        for (index, rule) in rules.iter().enumerate() {
            for source in &rule.sources {
                let indices = by_source.entry(source.clone()).or_default();
                if indices.last() != Some(&index) {
                    indices.push(index);
                }
            }
        }
        let rules: Box<[CompiledAccess]> =
            rules.iter().map(CompiledAccess::compile).collect::<Result<_, _>>()?;
        let http = |index: usize| (index, rules.get(index).map_or(&[][..], |rule| &rule.http));
        // Many sources share the same rules.
        let mut lists = BTreeMap::<Vec<usize>, Arc<SourceRules>>::new();
        let mut named = |indices: Vec<usize>| {
            let named = lists.entry(indices).or_insert_with_key(|indices| {
                let many = MatchIndex::from_matches(indices.iter().map(|index| http(*index)));
                Arc::new(SourceRules { rules: indices.as_slice().into(), many })
            });
            Arc::clone(named)
        };
        let by_source = by_source.into_iter().map(|(source, indices)| (source, named(indices)));
        Ok(Self {
            by_source: by_source.collect(),
            many: MatchIndex::from_matches((0..rules.len()).map(http)),
            rules,
        })
    }

    fn first_allowing(
        &self,
        among: &[usize],
        allows: impl Fn(&CompiledAccess) -> bool,
    ) -> Option<usize> {
        let allowing = |index: &&usize| self.rules.get(**index).is_some_and(&allows);
        among.iter().find(allowing).copied()
    }
}

#[derive(Debug)]
struct CompiledAccess {
    decision: PolicyDecision,
    http: Box<[RequestMatcher]>,
    tcp: PortSet,
}

impl CompiledAccess {
    fn compile(rule: &AccessRule) -> Result<Self, InvalidPattern> {
        let http = rule.http.iter().map(RequestMatcher::compile_allowing);
        Ok(Self {
            decision: PolicyDecision::from_target(rule.policy.clone()),
            http: http
                .collect::<Result<_, _>>()
                .map_err(|bad| bad.with_object(ObjectKey::TrafficTarget(rule.policy.clone())))?,
            tcp: rule.tcp.clone(),
        })
    }

    fn opens_port(&self, port: u16) -> bool {
        self.tcp.contains(port)
    }
}

/// True if an allow rule matches a request as sent, and its path has no dot segments. A network-path reference
/// must match in each path that an application may read in it.
#[inline]
pub(crate) fn allows_path(
    matcher: &RequestMatcher,
    request: &RequestView<'_>,
    path: PathKind,
) -> bool {
    (path == PathKind::Plain || fits_unusual(matcher, request, path)) && matcher.matches(request)
}

/// Separate, so that the usual path needs no stack space for it.
#[inline(never)]
fn fits_unusual(matcher: &RequestMatcher, request: &RequestView<'_>, path: PathKind) -> bool {
    !matcher.constrains_path()
        || path == PathKind::NetworkPath
            && matcher.matches_path(request.path)
            && fits_each_reading(matcher, request.path)
}

#[cfg(test)]
mod tests;
