//! Compiled egress rules: the external destinations that policies allow while the mesh denies egress. The sidecar
//! checks each intercepted connection to an external address.

mod hosts;

use std::net::{IpAddr, SocketAddr};

use leno_model::{EgressRule, MatchedBy, ObjectKey, PolicyName};
use rustc_hash::FxHashMap;

use self::hosts::EgressHosts;
use crate::address_ranges::AddressRangeIndex;
use crate::authorize::allows_path;
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::variant::PathKind;

/// The compiled egress rules of a workload, by destination port.
#[derive(Debug, Default)]
pub struct EgressRules(FxHashMap<u16, PortEgressRules>);

/// The egress rules of one port, in order.
#[derive(Debug, Default)]
struct PortEgressRules {
    egress_rules: Vec<CompiledEgressRule>,
    /// The sources of the destination name of the rules without address ranges, without duplicates.
    unrestricted: Vec<MatchedBy>,
    /// The positions of the rules with address ranges.
    by_range: AddressRangeIndex,
    /// The positions of the rules that match by TLS server name.
    by_server_name: EgressHosts,
    /// The positions of the rules that match by request host.
    by_request_host: EgressHosts,
}

/// A compiled [`EgressRule`].
#[derive(Debug)]
struct CompiledEgressRule {
    /// The rule as configured.
    config: EgressRule,
    /// The allowed requests; `None` for all requests.
    request_matchers: Option<Box<[RequestMatcher]>>,
}

/// The decision about a connection to an address, before its first bytes are inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressDecision {
    /// The connection is denied.
    Denied,
    /// The connection is allowed without inspection.
    Allowed,
    /// The first bytes of the connection must be inspected for a host or server name.
    Inspected {
        /// True if a rule that matches by request host may allow the connection.
        by_request: bool,
        /// True if a rule that matches by TLS server name may allow the connection.
        by_server_name: bool,
    },
}

impl EgressRules {
    /// Compiles the egress rules of a configuration.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression, with its policy.
    pub fn compile(egress_rules: &[EgressRule]) -> Result<Self, InvalidPattern> {
        let mut ports: FxHashMap<u16, PortEgressRules> = FxHashMap::default();
        for egress_rule in egress_rules {
            ports
                .entry(egress_rule.port)
                .or_default()
                .add_rule(CompiledEgressRule::compile(egress_rule)?);
        }
        Ok(Self(ports))
    }

    /// True if a rule may allow connections to this port.
    #[must_use]
    pub fn may_allow_port(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    /// Returns the decision about connections to this address.
    #[must_use]
    pub fn decide_address(&self, address: SocketAddr) -> EgressDecision {
        let Some(port) = self.0.get(&address.port()) else { return EgressDecision::Denied };
        let may_allow = |matched_by| port.allows_address(address.ip(), matched_by);
        match (
            may_allow(MatchedBy::Address),
            may_allow(MatchedBy::Http),
            may_allow(MatchedBy::ServerName),
        ) {
            (true, _, _) => EgressDecision::Allowed,
            (false, false, false) => EgressDecision::Denied,
            (false, by_request, by_server_name) => {
                EgressDecision::Inspected { by_request, by_server_name }
            }
        }
    }

    /// Returns the policy that allows a TLS session with this server name; `None` if it is denied.
    #[must_use]
    pub fn policy_for_server_name(&self, address: SocketAddr, name: &str) -> Option<&PolicyName> {
        let port = self.0.get(&address.port())?;
        let host = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        port.find_policy(&port.by_server_name, &host, |rule| rule.allows_address(address.ip()))
    }

    /// Returns the policy that allows a request; `None` if it is denied.
    #[must_use]
    pub fn policy_for_request(
        &self,
        address: SocketAddr,
        request: &RequestView<'_>,
    ) -> Option<&PolicyName> {
        let port = self.0.get(&address.port())?;
        let path = PathKind::from_path(request.path);
        let host = host_of(request.authority, address.port())?.to_ascii_lowercase();
        port.find_policy(&port.by_request_host, &host, |rule| {
            rule.allows_address(address.ip()) && rule.allows_request(request, path)
        })
    }
}

impl PortEgressRules {
    /// Adds a rule after all other rules.
    fn add_rule(&mut self, compiled: CompiledEgressRule) {
        let position = self.egress_rules.len();
        let matched_by = compiled.matched_by();
        match matched_by {
            MatchedBy::Address => {}
            MatchedBy::ServerName => self.by_server_name.add_rule(position, &compiled.config.hosts),
            MatchedBy::Http => self.by_request_host.add_rule(position, &compiled.config.hosts),
        }
        match compiled.config.ranges.is_empty() {
            true if self.unrestricted.contains(&matched_by) => {}
            true => self.unrestricted.push(matched_by),
            false => self.by_range.add_rule(position, Some(&compiled.config.ranges)),
        }
        self.egress_rules.push(compiled);
    }

    /// True if a rule that matches by `matched_by` allows the address.
    fn allows_address(&self, address: IpAddr, matched_by: MatchedBy) -> bool {
        let rules = || {
            self.by_range
                .rules_for_address(address)
                .filter_map(|position| self.egress_rules.get(position))
        };
        self.unrestricted.contains(&matched_by)
            || rules().any(|rule| rule.matched_by() == matched_by)
    }

    /// Returns the policy of the first rule for a host for which `is_match` is true; `None` if there is none.
    fn find_policy(
        &self,
        hosts: &EgressHosts,
        host: &str,
        is_match: impl Fn(&CompiledEgressRule) -> bool,
    ) -> Option<&PolicyName> {
        let position = hosts
            .find_rule(host, |position| self.egress_rules.get(position).is_some_and(&is_match))?;
        self.egress_rules.get(position).map(|rule| &rule.config.policy)
    }
}

impl CompiledEgressRule {
    fn compile(egress_rule: &EgressRule) -> Result<Self, InvalidPattern> {
        let with_object = |error: InvalidPattern| {
            error.with_object(ObjectKey::Egress(egress_rule.policy.clone()))
        };
        let request_matchers = egress_rule.requests.as_ref().map(|requests| {
            requests.iter().map(RequestMatcher::compile_allowing).collect::<Result<Box<[_]>, _>>()
        });
        let request_matchers = request_matchers.transpose().map_err(with_object)?;
        Ok(Self { config: egress_rule.clone(), request_matchers })
    }

    /// Returns the source of the destination name that the rule matches. A rule by server name without hosts matches by
    /// address.
    fn matched_by(&self) -> MatchedBy {
        match self.config.matched_by {
            MatchedBy::ServerName if self.config.hosts.is_empty() => MatchedBy::Address,
            matched_by => matched_by,
        }
    }

    /// True if the rule has no address ranges, or one contains the address.
    fn allows_address(&self, address: IpAddr) -> bool {
        let ranges = &self.config.ranges;
        ranges.is_empty() || ranges.iter().any(|range| range.contains(address))
    }

    /// True if the rule has no request matches, or one matches the request.
    fn allows_request(&self, request: &RequestView<'_>, path: PathKind) -> bool {
        let matchers = self.request_matchers.as_ref();
        matchers.is_none_or(|matchers| {
            matchers.iter().any(|matcher| allows_path(matcher, request, path))
        })
    }
}

/// Returns the host of an authority without a final dot; `None` if the authority has another port than the connection.
fn host_of(authority: &str, port: u16) -> Option<&str> {
    let (host, port_text) = match authority.rsplit_once(':') {
        Some((host, port_text)) if !port_text.ends_with(']') => (host, Some(port_text)),
        _ => (authority, None),
    };
    let is_same_port = port_text.is_none_or(|port_text| port_text.parse() == Ok(port));
    is_same_port.then(|| host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use leno_model::{PathMatch, RequestMatch};

    use super::*;

    fn egress_rule(
        matched_by: MatchedBy,
        port: u16,
        hosts: &[&str],
        ranges: &[&str],
    ) -> EgressRule {
        EgressRule {
            policy: PolicyName::new("shop", "out").unwrap(),
            port,
            matched_by,
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            requests: None,
        }
    }

    #[test]
    fn destinations_are_allowed_by_address_or_after_inspection() {
        let egress_rules = EgressRules::compile(&[
            egress_rule(MatchedBy::Address, 5432, &[], &["10.1.0.0/16"]),
            egress_rule(MatchedBy::Http, 80, &["api.example"], &[]),
            egress_rule(MatchedBy::ServerName, 443, &["*.example"], &["10.2.0.0/16"]),
            egress_rule(MatchedBy::ServerName, 8443, &[], &["10.2.0.0/16"]),
        ])
        .unwrap();
        let inspected =
            |by_request, by_server_name| EgressDecision::Inspected { by_request, by_server_name };
        for (address, expected) in [
            ("10.1.2.3:5432", EgressDecision::Allowed),
            ("10.2.2.3:5432", EgressDecision::Denied),
            ("10.1.2.3:5433", EgressDecision::Denied),
            ("192.0.2.1:80", inspected(true, false)),
            ("10.2.0.1:443", inspected(false, true)),
            ("10.3.0.1:443", EgressDecision::Denied),
            // A server name is not required.
            ("10.2.0.1:8443", EgressDecision::Allowed),
        ] {
            assert_eq!(
                egress_rules.decide_address(address.parse().unwrap()),
                expected,
                "{address}"
            );
        }
    }

    #[test]
    fn hosts_and_server_names_match_as_a_whole() {
        let payments = RequestMatch {
            path: PathMatch::Regex("/pay/.*".to_owned()),
            methods: Vec::new(),
            headers: Vec::new(),
            query: Vec::new(),
        };
        let http_rule = egress_rule(MatchedBy::Http, 80, &["api.example"], &[]);
        let egress_rules = EgressRules::compile(&[
            EgressRule { requests: Some(vec![payments]), ..http_rule },
            egress_rule(MatchedBy::ServerName, 443, &["*.example", "one.test"], &[]),
        ])
        .unwrap();
        let http_address = "192.0.2.1:80".parse().unwrap();
        for (authority, path, expected) in [
            ("api.example", "/pay/now", true),
            ("API.example.:80", "/pay/now", true),
            ("api.example:81", "/pay/now", false),
            ("api.example", "/else", false),
            ("www.api.example", "/pay/now", false),
            ("", "/pay/now", false),
        ] {
            let fields: Vec<(String, String)> = Vec::new();
            let request =
                RequestView { method: "GET", path, query: None, authority, fields: &fields };
            let policy = egress_rules.policy_for_request(http_address, &request);
            assert_eq!(policy.is_some(), expected, "{authority} {path}");
        }
        let tls_address = "192.0.2.1:443".parse().unwrap();
        for (name, expected) in
            [("a.example", true), ("A.Example.", true), ("example", false), ("one.test", true)]
        {
            assert_eq!(
                egress_rules.policy_for_server_name(tls_address, name).is_some(),
                expected,
                "{name}"
            );
        }
    }
}
