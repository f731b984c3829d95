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
use crate::variant::{PathKind, matches_each_reading};
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
    /// The `TrafficTarget` rules; absent with `defaultPolicy: allow`.
    allow_rules: Option<AllowRules>,
    /// The access policy rules, if any.
    policies: Option<PolicyRules>,
    /// Revoked accounts, which are never allowed.
    revoked: BTreeSet<ServiceAccount>,
    /// `defaultPolicy: dry-run`: requests denied by policies are allowed.
    is_dry_run: bool,
    /// With [`MtlsMode::Strict`], a peer without an identity is allowed by ingress rules only.
    mtls: MtlsMode,
    /// Ingress rules, for clients outside the mesh.
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
            revoked: config.revoked.clone(),
            is_dry_run: config.inbound.is_dry_run,
            mtls: config.mtls,
            policies: PolicyRules::compile(&config.inbound.rules, &config.ports)?,
            ingress_rules: IngressRules::compile(&config.ingress_rules)?,
            ..access
        })
    }

    /// Compiles the access rules of a workload.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn compile(access: &Access, trust_domain: &TrustDomain) -> Result<Self, InvalidPattern> {
        let allow_rules = match access {
            Access::AllowAll => None,
            Access::AllowListed(rules) => Some(AllowRules::compile(rules)?),
        };
        Ok(Self {
            trust_domain: trust_domain.clone(),
            allow_rules,
            revoked: BTreeSet::new(),
            is_dry_run: false,
            mtls: MtlsMode::Strict,
            policies: None,
            ingress_rules: IngressRules::default(),
            compilation: Arc::new(CompilationId),
        })
    }

    /// Authorizes a connection, or a stream of a link, to a port of the application by the verified peer
    /// identity; `None` is a peer without an identity.
    ///
    /// With `defaultPolicy: deny` a peer without any policy receives a permit that denies every request: links
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
        self.authorize_connection_from(peer, port, None)
    }

    /// Authorizes a connection like [`Self::authorize_connection`], and also by the ingress rules if its origin
    /// is known.
    ///
    /// # Errors
    /// As for [`Self::authorize_connection`].
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

    /// Returns the protocol that plaintext clients at this address may use at a port of an application with
    /// this protocol; `None` if no ingress rule allows plaintext there.
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

    /// Authorizes a request. If the permit comes from another compilation, the rules are looked up again for
    /// the identity, port and origin in it.
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
        let applicable = self.current_rules(permit)?;
        self.apply_mode(&applicable, self.evaluate_request(&applicable, request))
    }

    /// Authorizes opaque bytes to a port of the application. Rules with HTTP matches never allow bytes.
    ///
    /// # Errors
    /// The errors of [`Self::authorize_request`], except `no-policy-route`.
    pub fn authorize_tcp(&self, permit: &ConnectionPermit) -> Result<RequestPermit, Denial> {
        let applicable = self.current_rules(permit)?;
        self.apply_mode(&applicable, self.evaluate_bytes(&applicable, permit.0.port))
    }

    /// Checks deny rules for opaque bytes that begin with an HTTP request, on a port of any protocol. Call
    /// [`Self::authorize_tcp`] as well.
    ///
    /// # Errors
    /// `denied-by-policy` if a rule denies some requests of the peer; also the errors of
    /// [`Self::authorize_connection`].
    pub fn authorize_hidden_request(&self, permit: &ConnectionPermit) -> Result<(), Denial> {
        let applicable = self.current_rules(permit)?;
        let policies = self.policies.as_ref().zip(applicable.policies.as_ref());
        let result = policies.and_then(|(policies, rules)| policies.evaluate_hidden_request(rules));
        self.apply_mode(&applicable, result.unwrap_or(Ok(DecidedBy::NoRule))).map(drop)
    }

    /// True if the rules may allow a request of this peer. The rules for opaque bytes may still reject bytes
    /// that contain such a request.
    #[must_use]
    pub fn may_allow_requests(&self, permit: &ConnectionPermit) -> bool {
        let Ok(applicable) = self.current_rules(permit) else { return false };
        let policies = applicable.policies.as_deref();
        if policies.is_some_and(PeerRules::denies_all) {
            return self.is_dry_run && !applicable.ingress_only;
        }
        if policies.is_some_and(PeerRules::may_allow) || !applicable.ingress_rules.is_empty() {
            return true;
        }
        !applicable.ingress_only
            && (self.is_dry_run || self.allow_rules.is_none() || applicable.targets.is_some())
    }

    fn evaluate_request(
        &self,
        applicable: &ApplicableRules,
        request: &RequestView<'_>,
    ) -> PolicyResult {
        if self.policies.is_none() && self.allow_rules.is_none() && !applicable.ingress_only {
            return Ok(DecidedBy::NoRule);
        }
        let path = PathKind::from_path(request.path);
        if let (Some(policies), Some(rules)) = (&self.policies, &applicable.policies)
            && let Some(result) = policies.evaluate_request(rules, request, path)
        {
            return result;
        }
        if let Some(index) =
            self.ingress_rules.find_for_request(&applicable.ingress_rules, request, path)
        {
            return Ok(DecidedBy::IngressRule(index));
        }
        if applicable.ingress_only {
            return Err((Reason::NoPolicyRoute, DecidedBy::NoRule));
        }
        let Some(allow_rules) = &self.allow_rules else {
            return Ok(DecidedBy::NoRule);
        };
        let targets = applicable.targets.as_ref().ok_or((Reason::Denied, DecidedBy::NoRule))?;
        let allows = |rule: &CompiledAccess| {
            rule.http.iter().any(|matcher| allows_path(matcher, request, path))
        };
        let allows_at = |rule: usize, match_position: usize| {
            let matcher =
                allow_rules.rules.get(rule).and_then(|rule| rule.http.get(match_position));
            matcher.is_some_and(|matcher| allows_path(matcher, request, path))
        };
        let own_rule = match &targets.index {
            None => allow_rules.find_allowing_rule(&targets.positions, allows),
            Some(index) => index.first_match(LookupKeys::as_sent(request), allows_at),
        };
        if let Some(index) = own_rule {
            return Ok(DecidedBy::Target(index));
        }
        // The peer's own rules do not match, so a matching rule belongs to other peers. The lookup is
        // indexed, so that a denied request does not evaluate the rules of all peers.
        let other_rule = match &allow_rules.index {
            None => allow_rules.rules.iter().position(allows),
            Some(index) => index.first_match(LookupKeys::as_sent(request), allows_at),
        };
        match other_rule {
            Some(index) => Err((Reason::Denied, DecidedBy::Target(index))),
            None => Err((Reason::NoPolicyRoute, DecidedBy::NoRule)),
        }
    }

    fn evaluate_bytes(&self, applicable: &ApplicableRules, port: u16) -> PolicyResult {
        if let (Some(policies), Some(rules)) = (&self.policies, &applicable.policies)
            && let Some(result) = policies.evaluate_bytes(rules)
        {
            return result;
        }
        if let Some(index) = self.ingress_rules.find_for_bytes(&applicable.ingress_rules) {
            return Ok(DecidedBy::IngressRule(index));
        }
        if applicable.ingress_only {
            return Err((Reason::Denied, DecidedBy::NoRule));
        }
        let Some(allow_rules) = &self.allow_rules else {
            return Ok(DecidedBy::NoRule);
        };
        let allows = |rule: &CompiledAccess| rule.opens_port(port);
        let targets = applicable.targets.as_ref();
        if let Some(index) =
            targets.and_then(|targets| allow_rules.find_allowing_rule(&targets.positions, allows))
        {
            return Ok(DecidedBy::Target(index));
        }
        let other_rule = allow_rules.rules.iter().position(allows);
        Err((Reason::Denied, other_rule.map_or(DecidedBy::NoRule, DecidedBy::Target)))
    }

    /// With `defaultPolicy: dry-run` policy denials are allowed and recorded in the permit, except for clients
    /// with no access other than through ingress rules.
    fn apply_mode(
        &self,
        applicable: &ApplicableRules,
        result: PolicyResult,
    ) -> Result<RequestPermit, Denial> {
        match result {
            Ok(decided_by) => Ok(RequestPermit { decided_by, would_deny: None }),
            Err((reason, decided_by)) if self.is_dry_run && !applicable.ingress_only => {
                Ok(RequestPermit { decided_by, would_deny: Some(reason) })
            }
            Err((reason, decided_by)) => {
                Err(Denial { reason, policy: self.decision_for(decided_by).cloned() })
            }
        }
    }

    /// True if the permit comes from this compilation. Other permits are valid, but each decision costs a rule
    /// lookup: replace them by calling [`Self::authorize_connection`] again.
    #[must_use]
    pub fn is_current(&self, permit: &ConnectionPermit) -> bool {
        Arc::ptr_eq(&self.compilation, &permit.0.compilation)
    }

    /// Returns the policy behind a permit; `None` with `defaultPolicy: allow`. For a would-be denial, it is the
    /// policy that allows the request to other peers, if any.
    #[must_use]
    pub fn decision(&self, permit: RequestPermit) -> Option<&PolicyDecision> {
        self.decision_for(permit.decided_by)
    }

    fn decision_for(&self, decided_by: DecidedBy) -> Option<&PolicyDecision> {
        match decided_by {
            DecidedBy::NoRule => None,
            DecidedBy::Policy(index) => self.policies.as_ref()?.decision(index),
            DecidedBy::IngressRule(index) => self.ingress_rules.decision(index),
            DecidedBy::Target(index) => {
                self.allow_rules.as_ref()?.rules.get(index).map(|rule| &rule.decision)
            }
        }
    }

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

    /// Returns the rules for a peer at a port.
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
        if self.revoked.contains(&peer.account) {
            return Err(Denial::without_policy(Reason::RevokedPeer));
        }
        let allow_rules = self.allow_rules.as_ref();
        let account = &peer.account;
        Ok(ApplicableRules {
            targets: allow_rules
                .and_then(|allow_rules| allow_rules.by_source.get(account))
                .cloned(),
            policies: self.peer_rules(Some(account), port),
            ingress_rules: ingress_rules(),
            ingress_only: false,
        })
    }

    /// Returns the rules for a peer without an identity. No `TrafficTarget` can name it, but access policies
    /// and ingress rules apply to it.
    fn rules_without_identity(
        &self,
        port: u16,
        ingress_rules: RuleSubset,
    ) -> Result<ApplicableRules, Denial> {
        let ingress_only = self.mtls == MtlsMode::Strict;
        if ingress_only && ingress_rules.is_empty() {
            return Err(Denial::without_policy(Reason::PlaintextRejected));
        }
        let policies = self.peer_rules(None, port);
        Ok(ApplicableRules { targets: None, policies, ingress_rules, ingress_only })
    }

    fn peer_rules(&self, peer: Option<&ServiceAccount>, port: u16) -> Option<Box<PeerRules>> {
        self.policies.as_ref().map(|rules| Box::new(rules.rules_for_peer(peer, port)))
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

/// The contents of a [`ConnectionPermit`].
#[derive(Debug)]
struct ConnectionAuthorization {
    peer: Option<SpiffeId>,
    /// The port of the application.
    port: u16,
    /// The origin of the connection, if known.
    origin: Option<ConnectionOrigin>,
    applicable_rules: ApplicableRules,
    compilation: Arc<CompilationId>,
}

/// The rules that apply to a peer.
#[derive(Debug, Clone)]
struct ApplicableRules {
    /// The `TrafficTarget` rules with the peer as a source, if any.
    targets: Option<Arc<SourceRules>>,
    /// The access policy rules, if any; boxed, because this struct is moved often.
    policies: Option<Box<PeerRules>>,
    /// The ingress rules that allow the client.
    ingress_rules: RuleSubset,
    /// True if only ingress rules can allow requests of this peer.
    ingress_only: bool,
}

/// Proof that a request or byte stream is allowed. [`InboundAccess::decision`] returns its policy.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct RequestPermit {
    decided_by: DecidedBy,
    would_deny: Option<Reason>,
}

impl RequestPermit {
    /// Returns the reason for which `defaultPolicy: deny` would reject the request; `None` if it would not.
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

/// Identifies a compilation by the address of its `Arc`.
#[derive(Debug)]
struct CompilationId;

/// The `TrafficTarget` rules of a workload, with the sources that each allows.
#[derive(Debug)]
struct AllowRules {
    rules: Box<[CompiledAccess]>,
    /// The rules of each source, so that requests compare no identities.
    by_source: BTreeMap<ServiceAccount, Arc<SourceRules>>,
    /// An index of the requests that the rules allow, if there are many rules.
    index: Option<MatchIndex>,
}

/// The rules of one or more sources.
#[derive(Debug)]
struct SourceRules {
    /// Positions in [`AllowRules::rules`].
    positions: Box<[usize]>,
    /// An index of the requests that the rules allow, if there are many rules.
    index: Option<MatchIndex>,
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
        // Sources with the same rules share one list.
        let mut lists = BTreeMap::<Vec<usize>, Arc<SourceRules>>::new();
        let mut shared_list = |indices: Vec<usize>| {
            let list = lists.entry(indices).or_insert_with_key(|indices| {
                let index = MatchIndex::from_matches(indices.iter().map(|index| http(*index)));
                Arc::new(SourceRules { positions: indices.as_slice().into(), index })
            });
            Arc::clone(list)
        };
        let by_source =
            by_source.into_iter().map(|(source, indices)| (source, shared_list(indices)));
        Ok(Self {
            by_source: by_source.collect(),
            index: MatchIndex::from_matches((0..rules.len()).map(http)),
            rules,
        })
    }

    /// Returns the position of the first of these rules that allows the request or bytes.
    fn find_allowing_rule(
        &self,
        candidates: &[usize],
        allows: impl Fn(&CompiledAccess) -> bool,
    ) -> Option<usize> {
        let allowing = |index: &&usize| self.rules.get(**index).is_some_and(&allows);
        candidates.iter().find(allowing).copied()
    }
}

/// One compiled `TrafficTarget` rule.
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
            http: http.collect::<Result<_, _>>().map_err(|error| {
                error.with_object(ObjectKey::TrafficTarget(rule.policy.clone()))
            })?,
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
    (path == PathKind::Plain || matches_unusual_path(matcher, request, path))
        && matcher.matches(request)
}

/// True if the path condition of an allow rule holds for a path that is not plain. A separate function, so that
/// plain paths need no stack space for it.
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
