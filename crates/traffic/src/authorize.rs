//! Inbound authorization: decides whether a peer may connect, send a request or send opaque bytes to a workload. The
//! server's sidecar calls it for each connection and each request.

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
use crate::variant::{PathKind, matches_each_reading};
use ingress_rules::IngressRules;
use policy::{PeerRules, PolicyRules};

pub use decision::{Denial, PolicyDecision};
pub use ingress_rules::{ConnectionOrigin, SessionTransport};

/// The compiled inbound authorization of one workload.
///
/// Access policies are evaluated first: deny rules, then allow rules. Ingress rules for external clients come next. With
/// `defaultPolicy: allow` every verified member of the trust domain is then allowed. With `defaultPolicy: deny` the
/// allowed requests are the union of all `TrafficTarget`s with the peer as a source.
///
/// A denied request gets a 403 if its peer has no `TrafficTarget` or other peers may send it, and a 404 otherwise.
#[derive(Debug)]
pub struct InboundAccess {
    trust_domain: TrustDomain,
    /// The `TrafficTarget` rules; absent with `defaultPolicy: allow`.
    target_rules: Option<TargetRules>,
    /// The access policy rules, if any.
    policy_rules: Option<PolicyRules>,
    /// The revoked accounts, which are never allowed.
    revoked_accounts: BTreeSet<ServiceAccount>,
    /// True with `defaultPolicy: dry-run`: requests that policies deny are allowed and reported.
    is_dry_run: bool,
    /// The mutual TLS mode. With [`MtlsMode::Strict`], a peer without an identity is allowed by ingress rules only.
    mtls_mode: MtlsMode,
    /// The ingress rules for clients outside the mesh.
    ingress_rules: IngressRules,
    /// Identifies this compilation in its permits.
    compilation: Arc<CompilationId>,
}

impl InboundAccess {
    /// Compiles all inbound authorization of a configuration.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn from_config(config: &WorkloadConfig) -> Result<Self, InvalidPattern> {
        let access = Self::compile(&config.access, &config.trust_domain)?;
        Ok(Self {
            revoked_accounts: config.revoked.clone(),
            is_dry_run: config.inbound.is_dry_run,
            mtls_mode: config.mtls,
            policy_rules: PolicyRules::compile(&config.inbound.rules, &config.ports)?,
            ingress_rules: IngressRules::compile(&config.ingress_rules)?,
            ..access
        })
    }

    /// Compiles the `TrafficTarget` rules of a workload, without access policies, ingress rules and revocations.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn compile(access: &Access, trust_domain: &TrustDomain) -> Result<Self, InvalidPattern> {
        let target_rules = match access {
            Access::AllowAll => None,
            Access::AllowListed(rules) => Some(TargetRules::compile(rules)?),
        };
        Ok(Self {
            trust_domain: trust_domain.clone(),
            target_rules,
            revoked_accounts: BTreeSet::new(),
            is_dry_run: false,
            mtls_mode: MtlsMode::Strict,
            policy_rules: None,
            ingress_rules: IngressRules::default(),
            compilation: Arc::new(CompilationId),
        })
    }

    /// Authorizes a connection, or a stream of a link, to a port of the application by the verified identity of the
    /// peer; `None` is a peer without an identity.
    ///
    /// With `defaultPolicy: deny` a peer without any policy also receives a permit; it denies every request. A policy
    /// may allow the peer while its link is open, and HTTP clients expect a 403 instead of a closed connection.
    ///
    /// # Errors
    /// `plaintext-rejected` for a peer without an identity, unless the workload accepts plaintext;
    /// `foreign-trust-domain` for a peer of another mesh; `revoked-peer` for a revoked account.
    pub fn authorize_connection(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
    ) -> Result<ConnectionPermit, Denial> {
        self.authorize_connection_from(peer, port, None)
    }

    /// Authorizes a connection like [`Self::authorize_connection`], and also by the ingress rules if the origin of
    /// the connection is known.
    ///
    /// # Errors
    /// The errors of [`Self::authorize_connection`].
    pub fn authorize_connection_from(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: Option<ConnectionOrigin>,
    ) -> Result<ConnectionPermit, Denial> {
        Ok(ConnectionPermit(Arc::new(ConnectionAuthorization {
            applicable_rules: self.rules_for(peer, port, origin.as_ref())?,
            peer: peer.cloned(),
            port,
            origin,
            compilation: Arc::clone(&self.compilation),
        })))
    }

    /// Returns the protocol that plaintext clients at this address may use at a port; `None` if no ingress rule
    /// allows them plaintext. `protocol` is the protocol of the application at the port.
    #[must_use]
    pub fn plaintext_protocol(
        &self,
        port: u16,
        protocol: Protocol,
        address: IpAddr,
    ) -> Option<Protocol> {
        self.ingress_rules.plaintext_protocol(port, protocol, address)
    }

    /// True if clients at this address need no certificate at a port.
    #[must_use]
    pub fn skips_client_certificate(&self, port: u16, address: IpAddr) -> bool {
        self.ingress_rules.skips_client_certificate(port, address)
    }

    /// True if a client at this address may present the certificate of an external principal at a port.
    #[must_use]
    pub fn accepts_external_principals(&self, port: u16, address: IpAddr) -> bool {
        self.ingress_rules.accepts_external_principals(port, address)
    }

    /// Authorizes a request. If the permit comes from another compilation, the rules are looked up again for the
    /// identity, port and origin in the permit.
    ///
    /// # Errors
    /// `denied-by-policy`, with the policy; `denied` or `no-policy-route`, with the policy that allows the request to
    /// other peers, if any. With `defaultPolicy: dry-run` the method returns a permit with a
    /// [would-be denial](RequestPermit::would_deny) instead of these errors.
    pub fn authorize_request(
        &self,
        permit: &ConnectionPermit,
        request: &RequestView<'_>,
    ) -> Result<RequestPermit, Denial> {
        let applicable = self.current_rules(permit)?;
        self.apply_dry_run(&applicable, self.evaluate_request(&applicable, request))
    }

    /// Authorizes opaque bytes to a port of the application. Rules with HTTP matches never allow bytes.
    ///
    /// # Errors
    /// The errors of [`Self::authorize_request`], except `no-policy-route`.
    pub fn authorize_tcp(&self, permit: &ConnectionPermit) -> Result<RequestPermit, Denial> {
        let applicable = self.current_rules(permit)?;
        self.apply_dry_run(&applicable, self.evaluate_bytes(&applicable, permit.0.port))
    }

    /// Checks the deny rules for opaque bytes that begin with an HTTP request, on a port of any protocol. Callers
    /// must call [`Self::authorize_tcp`] as well.
    ///
    /// # Errors
    /// `denied-by-policy` if a rule denies some requests of the peer; also the errors of
    /// [`Self::authorize_connection`].
    pub fn authorize_hidden_request(&self, permit: &ConnectionPermit) -> Result<(), Denial> {
        let applicable = self.current_rules(permit)?;
        let policy_rules = self.policy_rules.as_ref().zip(applicable.policy_rules.as_ref());
        let result = policy_rules
            .and_then(|(policy_rules, rules)| policy_rules.evaluate_hidden_request(rules));
        self.apply_dry_run(&applicable, result.unwrap_or(Ok(DecidedBy::NoRule))).map(drop)
    }

    /// True if the rules may allow a request of this peer. [`Self::authorize_tcp`] may still reject opaque bytes that
    /// contain the request.
    #[must_use]
    pub fn may_allow_requests(&self, permit: &ConnectionPermit) -> bool {
        let Ok(applicable) = self.current_rules(permit) else { return false };
        let policy_rules = applicable.policy_rules.as_deref();
        if policy_rules.is_some_and(PeerRules::denies_all) {
            return self.is_dry_run && !applicable.is_ingress_only;
        }
        if policy_rules.is_some_and(PeerRules::may_allow) || !applicable.ingress_rules.is_empty() {
            return true;
        }
        !applicable.is_ingress_only
            && (self.is_dry_run || self.target_rules.is_none() || applicable.source_rules.is_some())
    }

    /// Returns the decision about a request, before dry-run mode is applied.
    fn evaluate_request(
        &self,
        applicable: &ApplicableRules,
        request: &RequestView<'_>,
    ) -> PolicyResult {
        if self.policy_rules.is_none() && self.target_rules.is_none() && !applicable.is_ingress_only
        {
            // Without these rules, `defaultPolicy: allow` allows every request.
            return Ok(DecidedBy::NoRule);
        }
        let path = PathKind::from_path(request.path);
        if let (Some(policy_rules), Some(rules)) = (&self.policy_rules, &applicable.policy_rules)
            && let Some(result) = policy_rules.evaluate_request(rules, request, path)
        {
            return result;
        }
        if let Some(position) =
            self.ingress_rules.find_for_request(&applicable.ingress_rules, request, path)
        {
            return Ok(DecidedBy::IngressRule(position));
        }
        if applicable.is_ingress_only {
            return Err((Reason::NoPolicyRoute, DecidedBy::NoRule));
        }
        let Some(target_rules) = &self.target_rules else {
            return Ok(DecidedBy::NoRule);
        };
        let source_rules =
            applicable.source_rules.as_ref().ok_or((Reason::Denied, DecidedBy::NoRule))?;
        let allows = |rule: &CompiledTargetRule| {
            rule.request_matchers.iter().any(|matcher| allows_path(matcher, request, path))
        };
        let allows_at = |rule_position: usize, match_position: usize| {
            let matchers = target_rules.rules.get(rule_position).map(|rule| &rule.request_matchers);
            let matcher = matchers.and_then(|matchers| matchers.get(match_position));
            matcher.is_some_and(|matcher| allows_path(matcher, request, path))
        };
        let own_rule = match &source_rules.index {
            None => target_rules.find_allowing_rule(&source_rules.positions, allows),
            Some(match_index) => match_index.first_match(LookupKeys::as_sent(request), allows_at),
        };
        if let Some(position) = own_rule {
            return Ok(DecidedBy::Target(position));
        }
        // No rule of the peer matches. If a rule of other peers matches, the request is denied with a 403; if no rule
        // matches, with a 404. The index avoids an evaluation of the rules of all peers for each denied request.
        let other_rule = match &target_rules.index {
            None => target_rules.rules.iter().position(allows),
            Some(match_index) => match_index.first_match(LookupKeys::as_sent(request), allows_at),
        };
        match other_rule {
            Some(position) => Err((Reason::Denied, DecidedBy::Target(position))),
            None => Err((Reason::NoPolicyRoute, DecidedBy::NoRule)),
        }
    }

    /// Returns the decision about opaque bytes, before dry-run mode is applied.
    fn evaluate_bytes(&self, applicable: &ApplicableRules, port: u16) -> PolicyResult {
        if let (Some(policy_rules), Some(rules)) = (&self.policy_rules, &applicable.policy_rules)
            && let Some(result) = policy_rules.evaluate_bytes(rules)
        {
            return result;
        }
        if let Some(position) = self.ingress_rules.find_for_bytes(&applicable.ingress_rules) {
            return Ok(DecidedBy::IngressRule(position));
        }
        if applicable.is_ingress_only {
            return Err((Reason::Denied, DecidedBy::NoRule));
        }
        let Some(target_rules) = &self.target_rules else {
            return Ok(DecidedBy::NoRule);
        };
        let allows = |rule: &CompiledTargetRule| rule.allows_tcp_port(port);
        let source_rules = applicable.source_rules.as_ref();
        if let Some(position) = source_rules.and_then(|source_rules| {
            target_rules.find_allowing_rule(&source_rules.positions, allows)
        }) {
            return Ok(DecidedBy::Target(position));
        }
        let other_rule = target_rules.rules.iter().position(allows);
        Err((Reason::Denied, other_rule.map_or(DecidedBy::NoRule, DecidedBy::Target)))
    }

    /// Converts a decision into a permit or a denial. With `defaultPolicy: dry-run`, denied requests are allowed and
    /// the denial is recorded in the permit, except for clients that only ingress rules can allow.
    fn apply_dry_run(
        &self,
        applicable: &ApplicableRules,
        result: PolicyResult,
    ) -> Result<RequestPermit, Denial> {
        match result {
            Ok(decided_by) => Ok(RequestPermit { decided_by, would_deny: None }),
            Err((reason, decided_by)) if self.is_dry_run && !applicable.is_ingress_only => {
                Ok(RequestPermit { decided_by, would_deny: Some(reason) })
            }
            Err((reason, decided_by)) => {
                Err(Denial { reason, policy: self.decision_for(decided_by).cloned() })
            }
        }
    }

    /// True if the permit comes from this compilation. Other permits are valid, but each decision with them looks up
    /// the rules again: replace them by calling [`Self::authorize_connection`] again.
    #[must_use]
    pub fn is_current(&self, permit: &ConnectionPermit) -> bool {
        Arc::ptr_eq(&self.compilation, &permit.0.compilation)
    }

    /// Returns the policy that allowed the request; `None` if the default policy allowed it. For a would-be denial,
    /// returns the policy that denies the request or allows it to other peers, if any.
    #[must_use]
    pub fn decision(&self, permit: RequestPermit) -> Option<&PolicyDecision> {
        self.decision_for(permit.decided_by)
    }

    /// Returns the policy of the rule that decided; `None` if no rule decided.
    fn decision_for(&self, decided_by: DecidedBy) -> Option<&PolicyDecision> {
        match decided_by {
            DecidedBy::NoRule => None,
            DecidedBy::Policy(position) => self.policy_rules.as_ref()?.decision(position),
            DecidedBy::IngressRule(position) => self.ingress_rules.decision(position),
            DecidedBy::Target(position) => {
                self.target_rules.as_ref()?.rules.get(position).map(|rule| &rule.decision)
            }
        }
    }

    /// Returns a permit's rules, selected again if another compilation issued it; an error if the peer is rejected.
    fn current_rules<'a>(
        &self,
        permit: &'a ConnectionPermit,
    ) -> Result<Cow<'a, ApplicableRules>, Denial> {
        let ConnectionAuthorization { peer, port, origin, applicable_rules: rules, .. } =
            &*permit.0;
        match self.is_current(permit) {
            true => Ok(Cow::Borrowed(rules)),
            false => self.rules_for(peer.as_ref(), *port, origin.as_ref()).map(Cow::Owned),
        }
    }

    /// Returns the rules for a peer at a port; an error if the peer may not connect.
    fn rules_for(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: Option<&ConnectionOrigin>,
    ) -> Result<ApplicableRules, Denial> {
        let ingress_rules = || match origin {
            Some(origin) => self.ingress_rules.rules_for_client(peer, port, origin),
            None => RuleSubset::default(),
        };
        let Some(peer) = peer else {
            return self.rules_without_identity(port, ingress_rules());
        };
        if peer.trust_domain != self.trust_domain {
            return Err(Denial::without_policy(Reason::ForeignTrustDomain));
        }
        if self.revoked_accounts.contains(&peer.account) {
            return Err(Denial::without_policy(Reason::RevokedPeer));
        }
        let target_rules = self.target_rules.as_ref();
        let account = &peer.account;
        Ok(ApplicableRules {
            source_rules: target_rules
                .and_then(|target_rules| target_rules.by_source.get(account))
                .cloned(),
            policy_rules: self.peer_rules(Some(account), port),
            ingress_rules: ingress_rules(),
            is_ingress_only: false,
        })
    }

    /// Returns the rules for a peer without an identity. `TrafficTarget`s cannot name such a peer; access policies
    /// and ingress rules apply to it. An error if the mutual TLS mode is strict and no ingress rule allows the peer.
    fn rules_without_identity(
        &self,
        port: u16,
        ingress_rules: RuleSubset,
    ) -> Result<ApplicableRules, Denial> {
        let is_ingress_only = self.mtls_mode == MtlsMode::Strict;
        if is_ingress_only && ingress_rules.is_empty() {
            return Err(Denial::without_policy(Reason::PlaintextRejected));
        }
        let policy_rules = self.peer_rules(None, port);
        Ok(ApplicableRules { source_rules: None, policy_rules, ingress_rules, is_ingress_only })
    }

    /// Returns the access policy rules for a peer; `None` is a peer without an identity.
    fn peer_rules(&self, peer: Option<&ServiceAccount>, port: u16) -> Option<Box<PeerRules>> {
        self.policy_rules.as_ref().map(|rules| Box::new(rules.rules_for_peer(peer, port)))
    }
}

/// Proof that a peer may connect: it presented an identity of this mesh, or needs none. Contains the rules that apply
/// to the peer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionPermit(Arc<ConnectionAuthorization>);

impl ConnectionPermit {
    /// Returns the verified identity of the peer, if any.
    #[must_use]
    pub fn peer(&self) -> Option<&SpiffeId> {
        self.0.peer.as_ref()
    }
}

/// The contents of a [`ConnectionPermit`].
#[derive(Debug)]
struct ConnectionAuthorization {
    /// The verified identity of the peer, if any.
    peer: Option<SpiffeId>,
    /// The port of the application.
    port: u16,
    /// The origin of the connection, if known.
    origin: Option<ConnectionOrigin>,
    applicable_rules: ApplicableRules,
    /// The compilation that the rules come from.
    compilation: Arc<CompilationId>,
}

/// The rules that apply to a peer.
#[derive(Debug, Clone)]
struct ApplicableRules {
    /// The `TrafficTarget` rules with the peer as a source, if any.
    source_rules: Option<Arc<SourceRules>>,
    /// The access policy rules, if any; boxed, because this struct is moved often.
    policy_rules: Option<Box<PeerRules>>,
    /// The ingress rules that allow the client.
    ingress_rules: RuleSubset,
    /// True if only ingress rules can allow requests of this peer.
    is_ingress_only: bool,
}

/// Proof that a request or byte stream is allowed. [`InboundAccess::decision`] returns its policy.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct RequestPermit {
    decided_by: DecidedBy,
    /// The reason of the would-be denial with `defaultPolicy: dry-run`, if any.
    would_deny: Option<Reason>,
}

impl RequestPermit {
    /// Returns the reason for which `defaultPolicy: deny` would reject the request; `None` if it would not.
    #[must_use]
    pub fn would_deny(self) -> Option<Reason> {
        self.would_deny
    }
}

/// The decision of the policies, before dry-run mode is applied: the rule that allows, or the reason of the denial and
/// the rule that is reported with it.
type PolicyResult = Result<DecidedBy, (Reason, DecidedBy)>;

/// The rule that decided, by its position among the rules of its kind.
#[derive(Debug, Clone, Copy)]
enum DecidedBy {
    /// No rule: the default policy decided.
    NoRule,
    /// A `TrafficTarget`.
    Target(usize),
    /// An access policy.
    Policy(usize),
    /// An ingress rule.
    IngressRule(usize),
}

/// Identifies a compilation by the address of the `Arc` that contains it.
#[derive(Debug)]
struct CompilationId;

/// The `TrafficTarget` rules of a workload, indexed by the sources that they allow.
#[derive(Debug)]
struct TargetRules {
    rules: Box<[CompiledTargetRule]>,
    /// The rules of each source, found once per connection, so that requests compare no identities.
    by_source: BTreeMap<ServiceAccount, Arc<SourceRules>>,
    /// An index of the requests that the rules allow; absent for few rules (see [`MatchIndex::from_matches`]).
    index: Option<MatchIndex>,
}

/// The rules of a source; sources with the same rules share them.
#[derive(Debug)]
struct SourceRules {
    /// Positions in [`TargetRules::rules`].
    positions: Box<[usize]>,
    /// An index of the requests that the rules allow; absent for few rules (see [`MatchIndex::from_matches`]).
    index: Option<MatchIndex>,
}

impl TargetRules {
    fn compile(rules: &[AccessRule]) -> Result<Self, InvalidPattern> {
        let mut by_source = BTreeMap::<_, Vec<usize>>::new();
        for (position, rule) in rules.iter().enumerate() {
            for source in &rule.sources {
                let positions = by_source.entry(source.clone()).or_default();
                // A repeated source is stored once.
                if positions.last() != Some(&position) {
                    positions.push(position);
                }
            }
        }
        let rules: Box<[CompiledTargetRule]> =
            rules.iter().map(CompiledTargetRule::compile).collect::<Result<_, _>>()?;
        let with_matchers = |position: usize| {
            (position, rules.get(position).map_or(&[][..], |rule| &rule.request_matchers))
        };
        let mut rules_by_positions = BTreeMap::<Vec<usize>, Arc<SourceRules>>::new();
        let mut shared_rules = |positions: Vec<usize>| {
            let source_rules =
                rules_by_positions.entry(positions).or_insert_with_key(|positions| {
                    let matchers = positions.iter().map(|position| with_matchers(*position));
                    let index = MatchIndex::from_matches(matchers);
                    Arc::new(SourceRules { positions: positions.as_slice().into(), index })
                });
            Arc::clone(source_rules)
        };
        let by_source =
            by_source.into_iter().map(|(source, positions)| (source, shared_rules(positions)));
        Ok(Self {
            by_source: by_source.collect(),
            index: MatchIndex::from_matches((0..rules.len()).map(with_matchers)),
            rules,
        })
    }

    /// Returns the position of the first candidate that allows the request or bytes; `None` if no candidate does.
    fn find_allowing_rule(
        &self,
        candidates: &[usize],
        allows: impl Fn(&CompiledTargetRule) -> bool,
    ) -> Option<usize> {
        let is_allowing = |position: &&usize| self.rules.get(**position).is_some_and(&allows);
        candidates.iter().find(is_allowing).copied()
    }
}

/// One compiled `TrafficTarget` rule.
#[derive(Debug)]
struct CompiledTargetRule {
    decision: PolicyDecision,
    /// The allowed HTTP requests; none when empty.
    request_matchers: Box<[RequestMatcher]>,
    /// The ports at which opaque bytes are allowed.
    tcp_ports: PortSet,
}

impl CompiledTargetRule {
    fn compile(rule: &AccessRule) -> Result<Self, InvalidPattern> {
        let request_matchers = rule.http.iter().map(RequestMatcher::compile_allowing);
        Ok(Self {
            decision: PolicyDecision::from_target(rule.policy.clone()),
            request_matchers: request_matchers.collect::<Result<_, _>>().map_err(|error| {
                error.with_object(ObjectKey::TrafficTarget(rule.policy.clone()))
            })?,
            tcp_ports: rule.tcp.clone(),
        })
    }

    fn allows_tcp_port(&self, port: u16) -> bool {
        self.tcp_ports.contains(port)
    }
}

/// True if an allow rule matches a request as sent. A path with dot segments matches no rule that constrains the
/// path. For a network-path reference (`//…`), each path that an application may read in it must match.
#[inline]
pub(crate) fn allows_path(
    matcher: &RequestMatcher,
    request: &RequestView<'_>,
    path: PathKind,
) -> bool {
    (path == PathKind::Plain || matches_unusual_path(matcher, request, path))
        && matcher.matches(request)
}

/// True if the path condition of an allow rule holds for a path that is not plain. This is a separate function so
/// that plain paths do not need its stack space.
#[inline(never)]
fn matches_unusual_path(
    matcher: &RequestMatcher,
    request: &RequestView<'_>,
    path: PathKind,
) -> bool {
    !matcher.constrains_path()
        || path == PathKind::NetworkPath
            && matcher.matches_path(request.path)
            && matches_each_reading(matcher, request.path)
}

#[cfg(test)]
mod tests;
