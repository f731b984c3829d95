//! Compiles and evaluates ingress rules, which allow clients outside the mesh. Part of the inbound authorization.

use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    ClientCertificateMode, IngressProtocol, IngressRule, Name, ObjectKey, Protocol, SpiffeId,
};
use rustc_hash::FxHashMap;

use super::allows_path;
use super::decision::PolicyDecision;
use crate::address_ranges::AddressRangeIndex;
use crate::match_index::{MatchIndex, RuleSubset};
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;
use crate::variant::PathKind;

/// The origin of a connection, which ingress rules match: the client's address and the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionOrigin {
    /// The address of the client.
    pub address: IpAddr,
    /// The transport of the session.
    pub transport: SessionTransport,
}

/// The transport between the client and this proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionTransport {
    /// A connection without TLS.
    Plaintext,
    /// A TLS session.
    Tls {
        /// The requested server name, if any.
        server_name: Option<Box<str>>,
        /// The names in the certificate of an external principal; empty for other clients.
        principal_names: Arc<[Name]>,
    },
}

/// The compiled ingress rules of a workload.
#[derive(Debug, Default)]
pub(super) struct IngressRules {
    rules: Box<[CompiledIngressRule]>,
    /// An index of the requests that the rules allow; absent for few rules (see [`MatchIndex::from_matches`]).
    index: Option<MatchIndex>,
    /// The positions of the rules, by port and client address.
    ports: FxHashMap<u16, AddressRangeIndex>,
}

/// An ingress rule with its compiled request matches.
#[derive(Debug)]
struct CompiledIngressRule {
    decision: PolicyDecision,
    /// The rule as configured.
    config: IngressRule,
    /// The allowed requests; `None` for all requests.
    request_matchers: Option<Box<[RequestMatcher]>>,
}

impl IngressRules {
    pub(super) fn compile(ingress_rules: &[IngressRule]) -> Result<Self, InvalidPattern> {
        let compiled_rules = ingress_rules.iter().map(CompiledIngressRule::compile);
        let rules: Box<[CompiledIngressRule]> = compiled_rules.collect::<Result<_, _>>()?;
        let matchers =
            rules.iter().map(|rule| rule.request_matchers.as_deref().unwrap_or_default());
        let index = MatchIndex::from_matches(matchers.enumerate());
        let mut ports: FxHashMap<u16, AddressRangeIndex> = FxHashMap::default();
        for (position, IngressRule { port, ranges, .. }) in ingress_rules.iter().enumerate() {
            ports.entry(*port).or_default().add_rule(position, ranges.as_deref());
        }
        Ok(Self { rules, index, ports })
    }

    /// Returns the rules that allow this client at a port; `None` is a client without an identity. Called once per
    /// connection.
    pub(super) fn rules_for_client(
        &self,
        client: Option<&SpiffeId>,
        port: u16,
        origin: &ConnectionOrigin,
    ) -> RuleSubset {
        let allowing_rules = self
            .rules_for_address(port, origin.address)
            .filter(|(_, rule)| rule.allows_client(client, &origin.transport));
        RuleSubset::from_rules(
            self.index.as_ref(),
            allowing_rules.map(|(position, _)| position).collect(),
        )
    }

    /// Returns the protocol that plaintext clients at this address may use at a port; `None` if no rule allows them.
    /// `protocol` is the protocol of the application at the port.
    pub(super) fn plaintext_protocol(
        &self,
        port: u16,
        protocol: Protocol,
        address: IpAddr,
    ) -> Option<Protocol> {
        let mut applicable_rules =
            self.rules_for_address(port, address).map(|(_, compiled)| &compiled.config);
        let plaintext_rule = applicable_rules.find(|rule| rule.protocol.is_plaintext())?;
        // The rule found above is never an `Https` rule; the patterns contain it for completeness only.
        Some(match (&plaintext_rule.protocol, protocol) {
            (IngressProtocol::Tcp, _) => Protocol::Tcp,
            (IngressProtocol::Grpc, _) => Protocol::Grpc,
            (
                IngressProtocol::Http | IngressProtocol::Https { .. },
                Protocol::Http2 | Protocol::Grpc,
            ) => protocol,
            (IngressProtocol::Http | IngressProtocol::Https { .. }, _) => Protocol::Http,
        })
    }

    /// True if clients at this address need no certificate at a port.
    pub(super) fn skips_client_certificate(&self, port: u16, address: IpAddr) -> bool {
        let skips = |compiled: &CompiledIngressRule| {
            matches!(
                compiled.config.protocol,
                IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. }
            )
        };
        self.rules_for_address(port, address).any(|(_, compiled)| skips(compiled))
    }

    /// True if a rule allows external principals with this address at a port.
    pub(super) fn accepts_external_principals(&self, port: u16, address: IpAddr) -> bool {
        let mut applicable_rules =
            self.rules_for_address(port, address).map(|(_, compiled)| &compiled.config);
        applicable_rules
            .any(|rule| !rule.external_principals.is_empty() && !rule.protocol.is_plaintext())
    }

    /// Returns the position of the first candidate rule that allows a request; `None` if no candidate does. `path` is
    /// the kind of the request's path.
    pub(super) fn find_for_request(
        &self,
        candidates: &RuleSubset,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        let allows = |position: &usize| {
            self.rules.get(*position).is_some_and(|rule| rule.allows_request(request, path))
        };
        match candidates {
            RuleSubset::Few(rules) => rules.iter().copied().find(allows),
            RuleSubset::Many(matches) => self.find_indexed(matches.as_deref(), request, path),
        }
    }

    /// Returns the position of the first candidate rule that allows a request, found by the index. `candidate_matches`
    /// are the positions of the candidates' matches in the index; all rules are candidates when absent.
    fn find_indexed(
        &self,
        candidate_matches: Option<&[usize]>,
        request: &RequestView<'_>,
        path: PathKind,
    ) -> Option<usize> {
        self.index.as_ref()?.first_match_among(
            candidate_matches,
            LookupKeys::as_sent(request),
            |rule_position, match_position| {
                let matchers = self.rules.get(rule_position).map(|rule| &rule.request_matchers);
                matchers.is_some_and(|matchers| match matchers {
                    None => true,
                    // A rule with an empty list of matchers allows no request; the index has one match for it.
                    Some(matchers) => {
                        let matcher = matchers.get(match_position);
                        matcher.is_some_and(|matcher| allows_path(matcher, request, path))
                    }
                })
            },
        )
    }

    /// Returns the position of the first candidate rule that allows opaque bytes; `None` if no candidate does.
    pub(super) fn find_for_bytes(&self, candidates: &RuleSubset) -> Option<usize> {
        let mut positions = candidates.rule_positions(self.index.as_ref());
        let allows_bytes = |compiled: &CompiledIngressRule| {
            compiled.config.protocol == IngressProtocol::Tcp && compiled.request_matchers.is_none()
        };
        positions.find(|position| self.rules.get(*position).is_some_and(allows_bytes))
    }

    /// Returns the decision of the rule at this position; `None` if there is no such rule.
    pub(super) fn decision(&self, position: usize) -> Option<&PolicyDecision> {
        self.rules.get(position).map(|rule| &rule.decision)
    }

    /// Returns the rules of a port for a client address, in order, with their positions.
    fn rules_for_address(
        &self,
        port: u16,
        address: IpAddr,
    ) -> impl Iterator<Item = (usize, &CompiledIngressRule)> {
        let positions = self.ports.get(&port).map(|ranges| ranges.rules_for_address(address));
        let with_rule = |position| Some((position, self.rules.get(position)?));
        positions.into_iter().flatten().filter_map(with_rule)
    }
}

impl CompiledIngressRule {
    fn compile(rule: &IngressRule) -> Result<Self, InvalidPattern> {
        let with_object =
            |error: InvalidPattern| error.with_object(ObjectKey::Ingress(rule.policy.clone()));
        let request_matchers = rule.requests.as_ref().map(|requests| {
            requests.iter().map(RequestMatcher::compile_allowing).collect::<Result<Box<[_]>, _>>()
        });
        Ok(Self {
            decision: PolicyDecision::from_ingress(&rule.policy),
            request_matchers: request_matchers.transpose().map_err(with_object)?,
            config: rule.clone(),
        })
    }

    /// True if the rule allows this request; the rule must allow the client.
    #[inline]
    fn allows_request(&self, request: &RequestView<'_>, path: PathKind) -> bool {
        match &self.request_matchers {
            None => true,
            Some(matchers) => matchers.iter().any(|matcher| allows_path(matcher, request, path)),
        }
    }

    /// True if the rule allows a client with this identity and transport; the client's address must match.
    fn allows_client(&self, client: Option<&SpiffeId>, transport: &SessionTransport) -> bool {
        let rule = &self.config;
        match (&rule.protocol, transport) {
            (
                IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp,
                SessionTransport::Plaintext,
            ) => true,
            (
                IngressProtocol::Https { client_certificate: certificate_mode, server_names },
                SessionTransport::Tls { server_name: requested_name, principal_names },
            ) => {
                let is_accepted_name = server_names.is_empty()
                    || requested_name.as_ref().is_some_and(|requested_name| {
                        server_names.iter().any(|name| **name == **requested_name)
                    });
                let is_allowed_client = client
                    .is_some_and(|client| rule.accounts.contains(&client.account))
                    || principal_names.iter().any(|name| rule.external_principals.contains(name));
                is_accepted_name
                    && (*certificate_mode == ClientCertificateMode::Skipped || is_allowed_client)
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
