//! Compiled ingress rules: access for clients outside the mesh.

use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    ClientCertificateMode, IngressProtocol, IngressRule, Name, ObjectKey, Protocol, SpiffeId,
};
use rustc_hash::FxHashMap;

use super::allows_path;
use super::decision::PolicyDecision;
use crate::address_ranges::Ranges;
use crate::match_index::{MatchIndex, RuleSubset};
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;
use crate::variant::PathKind;

/// The origin of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionOrigin {
    /// The address of the client.
    pub address: IpAddr,
    /// The transport of the session.
    pub transport: SessionTransport,
}

/// The transport of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionTransport {
    /// Plaintext.
    Plaintext,
    /// TLS.
    Tls {
        /// The requested server name, if any.
        server_name: Option<Box<str>>,
        /// The names in the certificate of an external principal; empty without one.
        external_principal: Arc<[Name]>,
    },
}

/// All ingress rules of a workload, compiled.
#[derive(Debug, Default)]
pub(super) struct IngressRules {
    all: Box<[CompiledIngressRule]>,
    /// An index of the requests they allow, if there are many.
    many: Option<MatchIndex>,
    /// The rules of each port, by client address.
    ports: FxHashMap<u16, Ranges>,
}

#[derive(Debug)]
struct CompiledIngressRule {
    decision: PolicyDecision,
    rule: IngressRule,
    requests: Option<Box<[RequestMatcher]>>,
}

impl IngressRules {
    pub(super) fn compile(openings: &[IngressRule]) -> Result<Self, InvalidPattern> {
        let compiled = openings.iter().map(CompiledIngressRule::compile);
        let all: Box<[CompiledIngressRule]> = compiled.collect::<Result<_, _>>()?;
        let requests = all.iter().map(|it| it.requests.as_deref().unwrap_or_default());
        let many = MatchIndex::from_matches(requests.enumerate());
        let mut ports: FxHashMap<u16, Ranges> = FxHashMap::default();
        for (index, IngressRule { port, ranges, .. }) in openings.iter().enumerate() {
            ports.entry(*port).or_default().add_rule(index, ranges.as_deref());
        }
        Ok(Self { all, many, ports })
    }

    /// Returns the rules that allow this client at a port; evaluated once per connection.
    pub(super) fn for_client(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        origin: &ConnectionOrigin,
    ) -> RuleSubset {
        let fitting = self
            .open_rules(port, origin.address)
            .filter(|(_, it)| it.opens_to(peer, &origin.transport));
        RuleSubset::from_rules(self.many.as_ref(), fitting.map(|(index, _)| index).collect())
    }

    /// Returns the protocol that plaintext clients at this address may use at a port of an application with
    /// protocol `spoken`; `None` if they are not allowed.
    pub(super) fn in_clear(
        &self,
        port: u16,
        spoken: Protocol,
        address: IpAddr,
    ) -> Option<Protocol> {
        let mut open = self.open_rules(port, address).map(|(_, it)| &it.rule);
        let first = open.find(|it| it.protocol.is_clear())?;
        Some(match (&first.protocol, spoken) {
            (IngressProtocol::Tcp, _) => Protocol::Tcp,
            (IngressProtocol::Grpc, _) => Protocol::Grpc,
            (
                IngressProtocol::Http | IngressProtocol::Https { .. },
                Protocol::Http2 | Protocol::Grpc,
            ) => spoken,
            (IngressProtocol::Http | IngressProtocol::Https { .. }, _) => Protocol::Http,
        })
    }

    /// True if clients at this address need no certificate at a port.
    pub(super) fn skips_proof(&self, port: u16, address: IpAddr) -> bool {
        let skips = |it: &CompiledIngressRule| {
            matches!(
                it.rule.protocol,
                IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. }
            )
        };
        self.open_rules(port, address).any(|(_, it)| skips(it))
    }

    /// True if a rule allows an external principal at a port from this address.
    pub(super) fn takes_external_principals(&self, port: u16, address: IpAddr) -> bool {
        let mut open = self.open_rules(port, address).map(|(_, it)| &it.rule);
        open.any(|it| !it.external_principals.is_empty() && !it.protocol.is_clear())
    }

    /// Returns the first of these rules that allows a request.
    pub(super) fn for_request(
        &self,
        among: &RuleSubset,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        let lets =
            |index: &usize| self.all.get(*index).is_some_and(|it| it.allows_request(request, path));
        match among {
            RuleSubset::Few(openings) => openings.iter().copied().find(lets),
            RuleSubset::Many(places) => self.looked_up(places.as_deref(), request, path),
        }
    }

    /// Does the same by the index.
    fn looked_up(
        &self,
        among: Option<&[usize]>,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        self.many.as_ref()?.first_of(among, LookupKeys::as_sent(request), |index, place| {
            let requests = self.all.get(index).map(|it| &it.requests);
            requests.is_some_and(|requests| match requests {
                None => true,
                // A rule that allows no requests has no matches, but is indexed as if it had one.
                Some(requests) => {
                    requests.get(place).is_some_and(|it| allows_path(it, request, path))
                }
            })
        })
    }

    /// Returns the first of these rules that allows bytes.
    pub(super) fn for_bytes(&self, among: &RuleSubset) -> Option<usize> {
        let mut among = among.matching_rules(self.many.as_ref());
        let takes = |it: &CompiledIngressRule| {
            it.rule.protocol == IngressProtocol::Tcp && it.requests.is_none()
        };
        among.find(|index| self.all.get(*index).is_some_and(takes))
    }

    pub(super) fn decision(&self, index: usize) -> Option<&PolicyDecision> {
        self.all.get(index).map(|it| &it.decision)
    }

    /// Returns the rules of a port for a client address, in order.
    fn open_rules(
        &self,
        port: u16,
        address: IpAddr,
    ) -> impl Iterator<Item = (usize, &CompiledIngressRule)> {
        let places = self.ports.get(&port).map(|ranges| ranges.containing(address));
        let opening = |index| Some((index, self.all.get(index)?));
        places.into_iter().flatten().filter_map(opening)
    }
}

impl CompiledIngressRule {
    fn compile(opening: &IngressRule) -> Result<Self, InvalidPattern> {
        let of_policy =
            |bad: InvalidPattern| bad.with_object(ObjectKey::Ingress(opening.policy.clone()));
        let requests = opening.requests.as_ref().map(|requests| {
            requests.iter().map(RequestMatcher::compile_allowing).collect::<Result<Box<[_]>, _>>()
        });
        Ok(Self {
            decision: PolicyDecision::from_ingress(&opening.policy),
            requests: requests.transpose().map_err(of_policy)?,
            rule: opening.clone(),
        })
    }

    /// True if it allows this request, for a client it allows.
    #[inline]
    fn allows_request(&self, request: &RequestView<'_>, path: PathKind) -> bool {
        match &self.requests {
            None => true,
            Some(requests) => requests.iter().any(|matcher| allows_path(matcher, request, path)),
        }
    }

    /// True if it allows this client, given a matching address.
    fn opens_to(&self, peer: Option<&SpiffeId>, carrier: &SessionTransport) -> bool {
        let opening = &self.rule;
        match (&opening.protocol, carrier) {
            (
                IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp,
                SessionTransport::Plaintext,
            ) => true,
            (
                IngressProtocol::Https { client_certificate: proof, server_names },
                SessionTransport::Tls { server_name: asked, external_principal },
            ) => {
                let is_meant = server_names.is_empty()
                    || asked
                        .as_ref()
                        .is_some_and(|asked| server_names.iter().any(|it| **it == **asked));
                let is_known = peer.is_some_and(|peer| opening.accounts.contains(&peer.account))
                    || external_principal
                        .iter()
                        .any(|name| opening.external_principals.contains(name));
                is_meant && (*proof == ClientCertificateMode::Skipped || is_known)
            }
            (
                IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp,
                SessionTransport::Tls { .. },
            )
            | (IngressProtocol::Https { .. }, SessionTransport::Plaintext) => false,
        }
    }
}

#[cfg(test)]
mod tests;
