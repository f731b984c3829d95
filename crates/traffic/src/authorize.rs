//! Authorisation: whether this peer may open this connection and make this request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use leno_model::{
    Access, AccessRule, ObjectKey, PolicyName, PortSet, Reason, ServiceAccount, SpiffeId,
    TrustDomain,
};

use crate::matcher::{RequestMatcher, percent_decoded};
use crate::pattern::BadPattern;
use crate::request::RequestView;

/// Who may come in at one workload, compiled.
///
/// Permissive: every verified member of the trust domain. Strict: the union of all policies that
/// name the peer as a source. A peer that no policy names is told 403; one that is named, but not
/// for this request, is told 403 if the request is allowed to somebody else and 404 otherwise.
#[derive(Debug)]
pub struct InboundAccess {
    trust_domain: TrustDomain,
    /// Absent in permissive mode.
    rules: Option<StrictRules>,
    /// Accounts that are let in by nothing.
    revoked: BTreeSet<ServiceAccount>,
    /// Tells the permits of this compilation from those of another.
    seal: Arc<Seal>,
}

impl InboundAccess {
    /// Compiles what a workload enforces.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; it names the policy.
    pub fn compile(access: &Access, trust_domain: &TrustDomain) -> Result<Self, BadPattern> {
        let rules = match access {
            Access::Permissive => None,
            Access::Strict(rules) => Some(StrictRules::compile(rules)?),
        };
        let revoked = BTreeSet::new();
        Ok(Self { trust_domain: trust_domain.clone(), rules, revoked, seal: Arc::new(Seal) })
    }

    /// The same without members of these accounts, whatever the rules say.
    #[must_use]
    pub fn without(self, revoked: BTreeSet<ServiceAccount>) -> Self {
        Self { revoked, ..self }
    }

    /// Decides on a connection, or a stream of a link, by the identity that the peer has proved;
    /// `None` is a peer that proved nothing.
    ///
    /// A strict peer that no policy names gets a permit with which every request is denied: links
    /// outlive policies, and an HTTP client is owed a 403.
    ///
    /// # Errors
    /// `plaintext-refused` without an identity, `foreign-trust-domain` for one of another mesh,
    /// `revoked-peer` for one that is no member any more.
    pub fn connection(&self, peer: Option<&SpiffeId>) -> Result<ConnectionPermit, Denial> {
        let peer = peer.ok_or(Denial::new(Reason::PlaintextRefused, None))?;
        let rules = self.rules_of(peer)?;
        Ok(ConnectionPermit(Arc::new(Standing {
            peer: peer.clone(),
            rules: rules.cloned(),
            seal: Arc::clone(&self.seal),
        })))
    }

    /// Decides on a request. A permit that another compilation gave out is good for no more than
    /// the identity in it, which is then judged anew, at the price of a look-up.
    ///
    /// # Errors
    /// `denied` or `no-policy-route`, with the policy that allows it to others if there is one.
    pub fn request(
        &self,
        permit: &ConnectionPermit,
        request: &RequestView<'_>,
    ) -> Result<Permit, Denial> {
        let peers_rules = self.current_rules(permit)?;
        let Some(strict) = &self.rules else {
            return Ok(Permit { rule: None });
        };
        let peers_rules = peers_rules.ok_or(Denial::new(Reason::Denied, None))?;
        let path = PathKind::of(request.path);
        let allows = |rule: &CompiledAccess| rule.http.iter().any(|m| fits(m, request, path));
        if let Some(index) = strict.first(peers_rules, allows) {
            return Ok(Permit { rule: Some(index) });
        }
        // The peer's own rules do not match, so any rule that does belongs to others.
        match strict.rules.iter().find(|rule| allows(rule)) {
            Some(rule) => Err(Denial::new(Reason::Denied, Some(&rule.policy))),
            None => Err(Denial::new(Reason::NoPolicyRoute, None)),
        }
    }

    /// Decides on opaque bytes to a port of the application. Rules about HTTP open no port.
    ///
    /// # Errors
    /// `denied`, with the policy that allows it to others if there is one.
    pub fn tcp(&self, permit: &ConnectionPermit, port: u16) -> Result<Permit, Denial> {
        let peers_rules = self.current_rules(permit)?;
        let Some(strict) = &self.rules else {
            return Ok(Permit { rule: None });
        };
        let allows = |rule: &CompiledAccess| rule.opens(port);
        if let Some(index) = peers_rules.and_then(|rules| strict.first(rules, allows)) {
            return Ok(Permit { rule: Some(index) });
        }
        let others = strict.rules.iter().find(|rule| allows(rule));
        Err(Denial::new(Reason::Denied, others.map(|rule| &rule.policy)))
    }

    /// Whether the permit was given out by this compilation. One that was not still works, but
    /// each decision costs a look-up: replace it by asking [`Self::connection`] again.
    #[must_use]
    pub fn is_current(&self, permit: &ConnectionPermit) -> bool {
        Arc::ptr_eq(&self.seal, &permit.0.seal)
    }

    /// The policy behind a permit; `None` in permissive mode.
    #[must_use]
    pub fn policy(&self, permit: Permit) -> Option<&PolicyName> {
        let strict = self.rules.as_ref()?;
        strict.rules.get(permit.rule?).map(|rule| &rule.policy)
    }

    fn current_rules<'a>(
        &'a self,
        permit: &'a ConnectionPermit,
    ) -> Result<Option<&'a Arc<[usize]>>, Denial> {
        match self.is_current(permit) {
            true => Ok(permit.0.rules.as_ref()),
            false => self.rules_of(&permit.0.peer),
        }
    }

    /// The rules that name the peer; `None` when none does, or in permissive mode.
    fn rules_of(&self, peer: &SpiffeId) -> Result<Option<&Arc<[usize]>>, Denial> {
        if peer.trust_domain != self.trust_domain {
            return Err(Denial::new(Reason::ForeignTrustDomain, None));
        }
        if self.revoked.contains(&peer.account) {
            return Err(Denial::new(Reason::RevokedPeer, None));
        }
        Ok(self.rules.as_ref().and_then(|strict| strict.by_source.get(&peer.account)))
    }
}

/// Proof that a peer showed an identity of this mesh, and which rules name it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionPermit(Arc<Standing>);

impl ConnectionPermit {
    /// The identity that the peer proved.
    #[must_use]
    pub fn peer(&self) -> &SpiffeId {
        &self.0.peer
    }
}

#[derive(Debug)]
struct Standing {
    peer: SpiffeId,
    /// The rules that name the peer, if any does.
    rules: Option<Arc<[usize]>>,
    seal: Arc<Seal>,
}

/// Proof that a request or a byte stream was allowed. [`InboundAccess::policy`] names its policy.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Permit {
    rule: Option<usize>,
}

/// Why a peer was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The reason, which also gives the status.
    pub reason: Reason,
    /// The policy that allows it to others, if one does.
    pub policy: Option<PolicyName>,
}

impl Denial {
    fn new(reason: Reason, policy: Option<&PolicyName>) -> Self {
        Self { reason, policy: policy.cloned() }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.label(), self.reason.caption())?;
        match &self.policy {
            Some(policy) => write!(f, " (policy {policy} allows it to others)"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Denial {}

/// Only the address that an `Arc` gives it matters.
#[derive(Debug)]
struct Seal;

#[derive(Debug)]
struct StrictRules {
    rules: Box<[CompiledAccess]>,
    /// The rules that name each source, so that requests compare no identities.
    by_source: BTreeMap<ServiceAccount, Arc<[usize]>>,
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
        Ok(Self {
            rules: rules.iter().map(CompiledAccess::compile).collect::<Result<_, _>>()?,
            by_source: by_source.into_iter().map(|(s, i)| (s, i.into())).collect(),
        })
    }

    fn first(&self, among: &[usize], allows: impl Fn(&CompiledAccess) -> bool) -> Option<usize> {
        let allowing = |index: &&usize| self.rules.get(**index).is_some_and(&allows);
        among.iter().find(allowing).copied()
    }
}

#[derive(Debug)]
struct CompiledAccess {
    policy: PolicyName,
    http: Box<[RequestMatcher]>,
    tcp: PortSet,
}

impl CompiledAccess {
    fn compile(rule: &AccessRule) -> Result<Self, BadPattern> {
        let http = rule.http.iter().map(RequestMatcher::compile);
        Ok(Self {
            policy: rule.policy.clone(),
            http: http
                .collect::<Result<_, _>>()
                .map_err(|bad| bad.within(ObjectKey::TrafficTarget(rule.policy.clone())))?,
            tcp: rule.tcp.clone(),
        })
    }

    fn opens(&self, port: u16) -> bool {
        match &self.tcp {
            PortSet::All => true,
            PortSet::Only(ports) => ports.contains(&port),
        }
    }
}

/// Whether a path means what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathKind {
    Plain,
    /// It has a `.` or `..` element, plain or in disguise: the application may understand
    /// another path than the rule that allowed it, so rules about paths do not apply to it.
    Climbing,
}

impl PathKind {
    fn of(path: &str) -> Self {
        // The usual path has nothing that could climb, and is not looked at twice.
        let mut before = b'/';
        let could_climb = path.bytes().any(|byte| {
            let starts_with_dot = byte == b'.' && before == b'/';
            before = byte;
            starts_with_dot || byte == b'%' || byte == b'\\'
        });
        if !could_climb {
            return Self::Plain;
        }
        let mut element = Element::default();
        for byte in percent_decoded(path) {
            if element.ends_with(byte) {
                return Self::Climbing;
            }
        }
        match element.climbs() {
            true => Self::Climbing,
            false => Self::Plain,
        }
    }
}

/// One element of a path, read byte by byte. What follows a `;` are parameters, which some
/// applications strip before they resolve `..`.
#[derive(Debug, Default)]
struct Element {
    dots: usize,
    others: usize,
    in_parameters: bool,
}

impl Element {
    /// Takes a byte; whether it ended an element that climbs.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            b'/' | b'\\' => {
                let climbs = self.climbs();
                *self = Self::default();
                return climbs;
            }
            b';' => self.in_parameters = true,
            _ if self.in_parameters => {}
            b'.' => self.dots += 1,
            _ => self.others += 1,
        }
        false
    }

    fn climbs(&self) -> bool {
        self.others == 0 && matches!(self.dots, 1 | 2)
    }
}

fn fits(matcher: &RequestMatcher, request: &RequestView<'_>, path: PathKind) -> bool {
    (path == PathKind::Plain || !matcher.constrains_path()) && matcher.matches(request)
}

#[cfg(test)]
mod tests;
