//! Authorisation: whether this peer may open this connection and make this request.

mod opening;
mod policy;
mod ruling;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    Access, AccessRule, ObjectKey, Plaintext, PortSet, Protocol, Reason, ServiceAccount, SpiffeId,
    TrustDomain, WorkloadPlan,
};

use crate::lookup::Sought;
use crate::many::{Many, Part};
use crate::matcher::RequestMatcher;
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::spelling::{PathKind, fits_each_reading};
use opening::Openings;
use policy::{PeerRules, PolicyRules};

pub use opening::{Carrier, Origin};
pub use ruling::{Denial, Ruling};

/// Who may come in at one workload, compiled.
///
/// The rules of access policies come first: what one denies is denied, and what another allows is
/// allowed. Then what is open to others than members. Then, permissive: every verified member of the trust domain. Strict: the union of all
/// `TrafficTarget`s that name the peer as a source. A peer that none names is told 403; one that is
/// named, but not for this request, is told 403 if the request is allowed to somebody else and 404
/// otherwise.
#[derive(Debug)]
pub struct InboundAccess {
    trust_domain: TrustDomain,
    /// Absent in permissive mode.
    rules: Option<StrictRules>,
    /// Absent where there are no access policies.
    policies: Option<PolicyRules>,
    /// Accounts that are let in by nothing.
    revoked: BTreeSet<ServiceAccount>,
    /// Whom policies deny is let in.
    is_audited: bool,
    /// Peers that proved nothing are judged by the rules, which never allow them anything.
    plaintext: Plaintext,
    /// What is open to others than members.
    openings: Openings,
    /// Tells the permits of this compilation from those of another.
    seal: Arc<Seal>,
}

impl InboundAccess {
    /// Compiles all that a plan says about who may come in.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; it names the policy.
    pub fn of(plan: &WorkloadPlan) -> Result<Self, BadPattern> {
        let access = Self::compile(&plan.access, &plan.trust_domain)?;
        Ok(Self {
            revoked: plan.revoked.clone(),
            is_audited: plan.inbound.is_audited,
            plaintext: plan.plaintext,
            policies: PolicyRules::compile(&plan.inbound.rules, &plan.ports)?,
            openings: Openings::compile(&plan.openings)?,
            ..access
        })
    }

    /// Compiles what a workload enforces.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; it names the policy.
    pub fn compile(access: &Access, trust_domain: &TrustDomain) -> Result<Self, BadPattern> {
        let rules = match access {
            Access::Permissive => None,
            Access::Strict(rules) => Some(StrictRules::compile(rules)?),
        };
        Ok(Self {
            trust_domain: trust_domain.clone(),
            rules,
            revoked: BTreeSet::new(),
            is_audited: false,
            plaintext: Plaintext::Refuse,
            policies: None,
            openings: Openings::default(),
            seal: Arc::new(Seal),
        })
    }

    /// Decides on a connection, or a stream of a link, to a port of the application by the identity
    /// that the peer has proved; `None` is a peer that proved nothing.
    ///
    /// A strict peer that no policy names gets a permit with which every request is denied: links
    /// outlive policies, and an HTTP client is owed a 403.
    ///
    /// # Errors
    /// `plaintext-refused` without an identity, unless the workload takes such peers too, `foreign-trust-domain` for one of another mesh,
    /// `revoked-peer` for one that is no member any more.
    pub fn connection(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
    ) -> Result<ConnectionPermit, Denial> {
        self.visit((peer, port), None)
    }

    /// The same for a connection of which is known where it comes from: a port may be open to whom
    /// nothing else lets in.
    ///
    /// # Errors
    /// As for [`Self::connection`].
    pub fn visit(
        &self,
        (peer, port): (Option<&SpiffeId>, u16),
        origin: Option<Origin>,
    ) -> Result<ConnectionPermit, Denial> {
        Ok(ConnectionPermit(Arc::new(Standing {
            rights: self.rights_of(peer, port, origin.as_ref())?,
            peer: peer.cloned(),
            port,
            origin,
            seal: Arc::clone(&self.seal),
        })))
    }

    /// What clients without TLS from this address may speak at a port that is open to them, where
    /// the application speaks `spoken`.
    #[must_use]
    pub fn in_clear(&self, at: (u16, Protocol), address: IpAddr) -> Option<Protocol> {
        self.openings.in_clear(at, address)
    }

    /// Whether clients from this address need no certificate at a port.
    #[must_use]
    pub fn skips_proof(&self, port: u16, address: IpAddr) -> bool {
        self.openings.skips_proof(port, address)
    }

    /// Whether a client from this address may show the certificate of a guest at a port.
    #[must_use]
    pub fn takes_guests(&self, port: u16, address: IpAddr) -> bool {
        self.openings.takes_guests(port, address)
    }

    /// Decides on a request. A permit that another compilation gave out is good for no more than
    /// the identity in it, which is then judged anew, at the price of a look-up.
    ///
    /// # Errors
    /// `denied-by-policy`, with the policy; `denied` or `no-policy-route`, with the policy that
    /// allows it to others if there is one. In audit mode these become permits that
    /// [tell of it](Permit::would_deny).
    pub fn request(
        &self,
        permit: &ConnectionPermit,
        request: &RequestView<'_>,
    ) -> Result<Permit, Denial> {
        let rights = self.current_rights(permit)?;
        self.enforced(&rights, self.judge_request(&rights, request))
    }

    /// Decides on opaque bytes to a port of the application. Rules about HTTP open no port.
    ///
    /// # Errors
    /// As for requests, but for `no-policy-route`.
    pub fn tcp(&self, permit: &ConnectionPermit) -> Result<Permit, Denial> {
        let rights = self.current_rights(permit)?;
        self.enforced(&rights, self.judge_bytes(&rights, permit.0.port))
    }

    /// Decides on opaque bytes to a port of the application in which a request begins, whatever the port declares.
    ///
    /// # Errors
    /// `denied-by-policy` where a rule denies some requests of the peer; also the errors of [`Self::connection`].
    pub fn hidden_request(&self, permit: &ConnectionPermit) -> Result<(), Denial> {
        let rights = self.current_rights(permit)?;
        let rules = self.policies.as_ref().zip(rights.policies.as_ref());
        let judgement = rules.and_then(|(policies, rules)| policies.judge_hidden_request(rules));
        self.enforced(&rights, judgement.unwrap_or(Ok(By::Nobody))).map(drop)
    }

    /// True when the rules let in some request of this peer. The rules for opaque bytes may reject bytes in which such a
    /// request hides.
    #[must_use]
    pub fn may_let_requests_in(&self, permit: &ConnectionPermit) -> bool {
        let Ok(rights) = self.current_rights(permit) else { return false };
        let rules = rights.policies.as_deref();
        if rules.is_some_and(PeerRules::denies_all) {
            return self.is_audited && !rights.opened_only;
        }
        if rules.is_some_and(PeerRules::may_allow) || !rights.openings.is_empty() {
            return true;
        }
        !rights.opened_only && (self.is_audited || self.rules.is_none() || rights.targets.is_some())
    }

    fn judge_request(&self, rights: &Rights, request: &RequestView<'_>) -> Judgement {
        if self.policies.is_none() && self.rules.is_none() && !rights.opened_only {
            return Ok(By::Nobody);
        }
        let path = PathKind::of(request.path);
        if let (Some(policies), Some(rules)) = (&self.policies, &rights.policies)
            && let Some(judgement) = policies.judge_request(rules, request, path)
        {
            return judgement;
        }
        if let Some(index) = self.openings.for_request(&rights.openings, request, path) {
            return Ok(By::Opening(index));
        }
        if rights.opened_only {
            return Err((Reason::NoPolicyRoute, By::Nobody));
        }
        let Some(strict) = &self.rules else {
            return Ok(By::Nobody);
        };
        let peers_rules = rights.targets.as_ref().ok_or((Reason::Denied, By::Nobody))?;
        let allows = |rule: &CompiledAccess| rule.http.iter().any(|m| fits(m, request, path));
        let allows_at = |rule: usize, place: usize| {
            let matcher = strict.rules.get(rule).and_then(|rule| rule.http.get(place));
            matcher.is_some_and(|matcher| fits(matcher, request, path))
        };
        let own = match &peers_rules.many {
            None => strict.first(&peers_rules.rules, allows),
            Some(many) => many.first(Sought::sent(request), allows_at),
        };
        if let Some(index) = own {
            return Ok(By::Target(index));
        }
        // The peer's own rules do not match, so any rule that does belongs to others. These are looked
        // up, too: who is denied must not make us try what all others may.
        let others = match &strict.many {
            None => strict.rules.iter().position(allows),
            Some(many) => many.first(Sought::sent(request), allows_at),
        };
        match others {
            Some(index) => Err((Reason::Denied, By::Target(index))),
            None => Err((Reason::NoPolicyRoute, By::Nobody)),
        }
    }

    fn judge_bytes(&self, rights: &Rights, port: u16) -> Judgement {
        if let (Some(policies), Some(rules)) = (&self.policies, &rights.policies)
            && let Some(judgement) = policies.judge_bytes(rules)
        {
            return judgement;
        }
        if let Some(index) = self.openings.for_bytes(&rights.openings) {
            return Ok(By::Opening(index));
        }
        if rights.opened_only {
            return Err((Reason::Denied, By::Nobody));
        }
        let Some(strict) = &self.rules else {
            return Ok(By::Nobody);
        };
        let allows = |rule: &CompiledAccess| rule.opens(port);
        let own = rights.targets.as_ref();
        if let Some(index) = own.and_then(|own| strict.first(&own.rules, allows)) {
            return Ok(By::Target(index));
        }
        let others = strict.rules.iter().position(allows);
        Err((Reason::Denied, others.map_or(By::Nobody, By::Target)))
    }

    /// In audit mode what policies deny is let in, and the permit tells of it; but nobody is who has
    /// no other way in than what is open.
    fn enforced(&self, rights: &Rights, judgement: Judgement) -> Result<Permit, Denial> {
        match judgement {
            Ok(by) => Ok(Permit { by, would_deny: None }),
            Err((reason, by)) if self.is_audited && !rights.opened_only => {
                Ok(Permit { by, would_deny: Some(reason) })
            }
            Err((reason, by)) => Err(Denial { reason, policy: self.named(by).cloned() }),
        }
    }

    /// Whether the permit was given out by this compilation. One that was not still works, but
    /// each decision costs a look-up: replace it by asking [`Self::connection`] again.
    #[must_use]
    pub fn is_current(&self, permit: &ConnectionPermit) -> bool {
        Arc::ptr_eq(&self.seal, &permit.0.seal)
    }

    /// The policy behind a permit; `None` in permissive mode. Behind one that tells of a denial
    /// it is the policy that allows the same to others, if one does.
    #[must_use]
    pub fn ruling(&self, permit: Permit) -> Option<&Ruling> {
        self.named(permit.by)
    }

    fn named(&self, by: By) -> Option<&Ruling> {
        match by {
            By::Nobody => None,
            By::Policy(index) => self.policies.as_ref()?.ruling(index),
            By::Opening(index) => self.openings.ruling(index),
            By::Target(index) => self.rules.as_ref()?.rules.get(index).map(|rule| &rule.ruling),
        }
    }

    fn current_rights<'a>(&self, permit: &'a ConnectionPermit) -> Result<Cow<'a, Rights>, Denial> {
        let Standing { peer, port, origin, rights, .. } = &*permit.0;
        match self.is_current(permit) {
            true => Ok(Cow::Borrowed(rights)),
            false => self.rights_of(peer.as_ref(), *port, origin.as_ref()).map(Cow::Owned),
        }
    }

    /// The rules that name the peer.
    fn rights_of(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: Option<&Origin>,
    ) -> Result<Rights, Denial> {
        let openings = || match origin {
            Some(origin) => self.openings.of(peer, port, origin),
            None => Part::default(),
        };
        let Some(peer) = peer else {
            return self.rights_of_nobody(port, openings());
        };
        if peer.trust_domain != self.trust_domain {
            return Err(Denial::unnamed(Reason::ForeignTrustDomain));
        }
        if self.revoked.contains(&peer.account) {
            return Err(Denial::unnamed(Reason::RevokedPeer));
        }
        let strict = self.rules.as_ref();
        let account = &peer.account;
        Ok(Rights {
            targets: strict.and_then(|strict| strict.by_source.get(account)).cloned(),
            policies: self.peer_rules(Some(account), port),
            openings: openings(),
            opened_only: false,
        })
    }

    /// No rule names a peer that proved nothing; those that deny everybody are about it too.
    fn rights_of_nobody(&self, port: u16, openings: Part) -> Result<Rights, Denial> {
        let opened_only = self.plaintext == Plaintext::Refuse;
        if opened_only && openings.is_empty() {
            return Err(Denial::unnamed(Reason::PlaintextRefused));
        }
        let policies = self.peer_rules(None, port);
        Ok(Rights { targets: None, policies, openings, opened_only })
    }

    fn peer_rules(&self, peer: Option<&ServiceAccount>, port: u16) -> Option<Box<PeerRules>> {
        self.policies.as_ref().map(|rules| Box::new(rules.of_peer(peer, port)))
    }
}

/// Proof that a peer showed an identity of this mesh, or needs none, and which rules name it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionPermit(Arc<Standing>);

impl ConnectionPermit {
    /// The identity that the peer proved, if it did.
    #[must_use]
    pub fn peer(&self) -> Option<&SpiffeId> {
        self.0.peer.as_ref()
    }
}

#[derive(Debug)]
struct Standing {
    peer: Option<SpiffeId>,
    /// The port of the application.
    port: u16,
    /// Where its connection comes from, if that was told.
    origin: Option<Origin>,
    rights: Rights,
    seal: Arc<Seal>,
}

/// The rules that concern a peer.
#[derive(Debug, Clone)]
struct Rights {
    /// Those of `TrafficTarget`s that name it, if any does.
    targets: Option<Arc<Named>>,
    /// Those of access policies, where there are some; in a box, because rights are moved.
    policies: Option<Box<PeerRules>>,
    /// Those of what is open that let it in.
    openings: Part,
    /// Whether nothing else lets it in.
    opened_only: bool,
}

/// Proof that a request or a byte stream is let in. [`InboundAccess::ruling`] names its policy.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Permit {
    by: By,
    would_deny: Option<Reason>,
}

impl Permit {
    /// Why it would be denied, if the mode were strict instead of audit.
    #[must_use]
    pub fn would_deny(self) -> Option<Reason> {
        self.would_deny
    }
}

/// What policies say, before the mode.
type Judgement = Result<By, (Reason, By)>;

/// Which rule decided.
#[derive(Debug, Clone, Copy)]
enum By {
    Nobody,
    /// That of a `TrafficTarget`.
    Target(usize),
    /// That of an access policy.
    Policy(usize),
    /// What is open to others than members.
    Opening(usize),
}

/// Only the address that an `Arc` gives it matters.
#[derive(Debug)]
struct Seal;

#[derive(Debug)]
struct StrictRules {
    rules: Box<[CompiledAccess]>,
    /// The rules that name each source, so that requests compare no identities.
    by_source: BTreeMap<ServiceAccount, Arc<Named>>,
    /// What all of them allow, where that is much.
    many: Option<Many>,
}

/// The rules that name a source, or several.
#[derive(Debug)]
struct Named {
    rules: Box<[usize]>,
    /// What they allow, where that is much.
    many: Option<Many>,
}

impl StrictRules {
    fn compile(rules: &[AccessRule]) -> Result<Self, BadPattern> {
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
        // Many sources are named by the same rules.
        let mut lists = BTreeMap::<Vec<usize>, Arc<Named>>::new();
        let mut named = |indices: Vec<usize>| {
            let named = lists.entry(indices).or_insert_with_key(|indices| {
                let many = Many::of(indices.iter().map(|index| http(*index)));
                Arc::new(Named { rules: indices.as_slice().into(), many })
            });
            Arc::clone(named)
        };
        let by_source = by_source.into_iter().map(|(source, indices)| (source, named(indices)));
        Ok(Self {
            by_source: by_source.collect(),
            many: Many::of((0..rules.len()).map(http)),
            rules,
        })
    }

    fn first(&self, among: &[usize], allows: impl Fn(&CompiledAccess) -> bool) -> Option<usize> {
        let allowing = |index: &&usize| self.rules.get(**index).is_some_and(&allows);
        among.iter().find(allowing).copied()
    }
}

#[derive(Debug)]
struct CompiledAccess {
    ruling: Ruling,
    http: Box<[RequestMatcher]>,
    tcp: PortSet,
}

impl CompiledAccess {
    fn compile(rule: &AccessRule) -> Result<Self, BadPattern> {
        let http = rule.http.iter().map(RequestMatcher::compile);
        Ok(Self {
            ruling: Ruling::target(rule.policy.clone()),
            http: http
                .collect::<Result<_, _>>()
                .map_err(|bad| bad.within(ObjectKey::TrafficTarget(rule.policy.clone())))?,
            tcp: rule.tcp.clone(),
        })
    }

    fn opens(&self, port: u16) -> bool {
        self.tcp.contains(port)
    }
}

/// True when a rule that allows fits a request as it was sent, and no path that climbs. In a network-path reference it fits
/// each path that an application may read.
#[inline]
pub(crate) fn fits(matcher: &RequestMatcher, request: &RequestView<'_>, path: PathKind) -> bool {
    (path == PathKind::Plain || fits_unusual(matcher, request, path)) && matcher.matches(request)
}

/// Apart, so that the usual path needs no room for it.
#[inline(never)]
fn fits_unusual(matcher: &RequestMatcher, request: &RequestView<'_>, path: PathKind) -> bool {
    !matcher.constrains_path()
        || path == PathKind::NetworkPath
            && matcher.matches_path(request.path)
            && fits_each_reading(matcher, request.path)
}

#[cfg(test)]
mod tests;
