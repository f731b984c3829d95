//! Compiles the configuration of a gateway proxy. Selects the listener of each request by host name, and routes the
//! request by the listener's rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{
    Gateway, GatewayListener, GatewayPort, GatewayPortRules, HostPattern, HostRules, Name,
    REASON_FIELD, RouteKind, RouteRule, ServiceName, TcpRule,
};

use crate::action::split_authority;
use crate::matcher::RequestMatcher;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::route::{PortRoutes, RouteChoice};
use crate::tls_route::TlsRoutes;

/// The compiled configuration of a gateway proxy.
#[derive(Debug)]
pub struct CompiledGateway {
    /// The gateway configuration that was compiled.
    pub gateway: Arc<Gateway>,
    /// The ports, by number. Unchanged ports are reused.
    pub ports: BTreeMap<u16, Arc<CompiledGatewayPort>>,
    /// The errors of the rules that were omitted because of invalid patterns. All other rules apply. The errors of
    /// reused ports are not repeated.
    pub invalid_patterns: Vec<InvalidPattern>,
    /// The service ports that rules forward gRPC calls to.
    grpc_ports: BTreeMap<ServiceName, BTreeSet<u16>>,
}

impl CompiledGateway {
    /// Compiles a gateway. Rules with invalid patterns are omitted.
    #[must_use]
    pub fn build(gateway: &Arc<Gateway>, previous: Option<&Self>) -> Self {
        let mut invalid_patterns = Vec::new();
        let ports = gateway.ports.iter().map(|port| {
            let unchanged_port = previous.and_then(|previous| previous.unchanged_port(port));
            let compiled_port = unchanged_port.unwrap_or_else(|| {
                Arc::new(CompiledGatewayPort::build(port, &mut invalid_patterns))
            });
            (port.port, compiled_port)
        });
        let ports = ports.collect();
        Self {
            gateway: Arc::clone(gateway),
            ports,
            invalid_patterns,
            grpc_ports: grpc_backend_ports(gateway),
        }
    }

    /// True if a rule forwards gRPC calls to this port of a service.
    #[must_use]
    pub fn forwards_grpc_to(&self, service: &ServiceName, port: u16) -> bool {
        self.grpc_ports.get(service).is_some_and(|ports| ports.contains(&port))
    }

    /// Returns the compiled port if its configuration is unchanged.
    fn unchanged_port(&self, port: &GatewayPort) -> Option<Arc<CompiledGatewayPort>> {
        let is_unchanged = self.gateway.ports.contains(port);
        self.ports.get(&port.port).filter(|_| is_unchanged).cloned()
    }
}

/// Returns the service ports that rules of `GRPCRoute`s forward or mirror to.
fn grpc_backend_ports(gateway: &Gateway) -> BTreeMap<ServiceName, BTreeSet<u16>> {
    let listeners = gateway.ports.iter().flat_map(|port| match &port.serves {
        GatewayPortRules::Http(listeners) | GatewayPortRules::Https(listeners) => &**listeners,
        GatewayPortRules::Passthrough(_) | GatewayPortRules::Tcp(_) => &[],
    });
    let rules = listeners.flat_map(|listener| &listener.hosts).flat_map(|host| &host.rules);
    let rules = rules.filter(|rule| rule.kind == RouteKind::Grpc);
    let mut grpc_ports: BTreeMap<ServiceName, BTreeSet<u16>> = BTreeMap::new();
    for backend in rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors)) {
        grpc_ports.entry(backend.service.clone()).or_default().insert(backend.port);
    }
    grpc_ports
}

/// The configuration of one gateway port.
#[derive(Debug)]
pub enum CompiledGatewayPort {
    /// Listeners for HTTP without TLS.
    Http(HttpListeners),
    /// Listeners for HTTPS, which terminate TLS.
    Https(HttpListeners),
    /// Routes for TLS sessions that are forwarded without termination.
    Passthrough(TlsRoutes),
    /// The rule for opaque TCP connections.
    Tcp(TcpRule),
}

impl CompiledGatewayPort {
    fn build(port: &GatewayPort, invalid_patterns: &mut Vec<InvalidPattern>) -> Self {
        match &port.serves {
            GatewayPortRules::Http(listeners) => {
                Self::Http(HttpListeners::compile(listeners, invalid_patterns))
            }
            GatewayPortRules::Https(listeners) => {
                Self::Https(HttpListeners::compile(listeners, invalid_patterns))
            }
            GatewayPortRules::Passthrough(rules) => Self::Passthrough(TlsRoutes::from_rules(rules)),
            GatewayPortRules::Tcp(rule) => Self::Tcp(rule.clone()),
        }
    }
}

/// The listeners of one port, each for its own host names.
#[derive(Debug)]
pub struct HttpListeners {
    listeners: Box<[CompiledListener]>,
    /// The index of each listener, by host name.
    by_host: HostIndex,
}

/// A compiled [`GatewayListener`].
#[derive(Debug)]
struct CompiledListener {
    name: Name,
    /// The rules of each host name.
    hosts: Box<[PortRoutes]>,
    /// The index in `hosts` of each host name.
    by_host: HostIndex,
}

impl HttpListeners {
    fn compile(listeners: &[GatewayListener], invalid_patterns: &mut Vec<InvalidPattern>) -> Self {
        let by_host =
            HostIndex::from_patterns(listeners.iter().map(|listener| listener.hostname.as_ref()));
        let listeners =
            listeners.iter().map(|listener| CompiledListener::compile(listener, invalid_patterns));
        Self { listeners: listeners.collect(), by_host }
    }

    /// Selects the backend of a request. `server_name` is the server name of the session on a TLS port
    /// (`Some(None)` for a session without a server name), and `None` on other ports. `random` is a uniform random
    /// number, for the choice among weighted backends.
    ///
    /// Only the listener with the most specific host name handles the request. The rules for the most specific host
    /// name of the listener are evaluated first, then those for less specific names. A request for another listener
    /// than that of its TLS session is rejected, because the session's certificate may not be valid for the host.
    #[must_use]
    pub fn choose_backend(
        &self,
        request: &RequestView<'_>,
        server_name: Option<Option<&str>>,
        random: u64,
    ) -> GatewayChoice<'_> {
        let host = normalized_host(request.authority);
        let Some(listener_index) = self.by_host.first_match(&host) else {
            return GatewayChoice::NoRoute { listener: None };
        };
        if let Some(name) = server_name
            && self.by_host.first_match(&normalized_host(name.unwrap_or_default()))
                != Some(listener_index)
        {
            return GatewayChoice::Misdirected;
        }
        let Some(listener) = self.listeners.get(listener_index) else {
            return GatewayChoice::NoRoute { listener: None };
        };
        let host_routes =
            listener.by_host.all_matches(&host).filter_map(|index| listener.hosts.get(index));
        for routes in host_routes {
            match routes.choose_backend(request, random) {
                // The rules for a less specific host name may match. `Direct` is never chosen, because the routes are
                // compiled with `has_attached_routes`.
                RouteChoice::NoRoute | RouteChoice::Direct => {}
                choice => return GatewayChoice::Route(choice),
            }
        }
        GatewayChoice::NoRoute { listener: Some(&listener.name) }
    }
}

impl CompiledListener {
    fn compile(listener: &GatewayListener, invalid_patterns: &mut Vec<InvalidPattern>) -> Self {
        // Rules of several routes for one host name are merged.
        let mut rules_by_host: BTreeMap<Option<&HostPattern>, Vec<RouteRule>> = BTreeMap::new();
        for HostRules { hostname, rules } in &listener.hosts {
            let rules = rules
                .iter()
                .filter(|rule| validate_patterns(rule, invalid_patterns))
                .map(without_internal_headers);
            rules_by_host.entry(hostname.as_ref()).or_default().extend(rules);
        }
        let by_host = HostIndex::from_patterns(rules_by_host.keys().copied());
        let routes = rules_by_host.values().map(|rules| PortRoutes::from_rules(rules, true));
        // Rules with invalid patterns were removed above, so that all rules compile.
        let hosts = routes.filter_map(Result::ok).collect();
        Self { name: listener.name.clone(), hosts, by_host }
    }
}

/// Returns the rule with an edit that removes [`REASON_FIELD`] from responses, because external clients must not see
/// failure reasons of sidecars.
fn without_internal_headers(rule: &RouteRule) -> RouteRule {
    let mut rule = rule.clone();
    rule.actions.response_headers.remove.push(REASON_FIELD.to_owned());
    rule
}

/// True if all patterns of a rule are valid; otherwise the first error is added to `invalid_patterns`.
fn validate_patterns(rule: &RouteRule, invalid_patterns: &mut Vec<InvalidPattern>) -> bool {
    let error = rule.matches.iter().find_map(|request| RequestMatcher::compile(request).err());
    let are_valid = error.is_none();
    invalid_patterns
        .extend(error.map(|error| error.with_object(rule.kind.object_key(rule.route.clone()))));
    are_valid
}

/// The routing result of a request at a gateway.
#[derive(Debug, Clone, Copy)]
pub enum GatewayChoice<'a> {
    /// A rule matches, with this result.
    Route(RouteChoice<'a>),
    /// No listener matches the host, or no rule matches the request.
    NoRoute {
        /// The matching listener, if any.
        listener: Option<&'a Name>,
    },
    /// The request is for another listener than its TLS session.
    Misdirected,
}

/// An index of host names and wildcards that finds matches in the order of their specificity.
#[derive(Debug)]
struct HostIndex {
    /// The patterns for one exact name, by name.
    exact: BTreeMap<String, usize>,
    /// The patterns `*.NAME`, by name.
    wildcards: BTreeMap<String, usize>,
    /// The pattern for any host, if there is one.
    any_host: Option<usize>,
}

impl HostIndex {
    /// Creates an index of these patterns; `None` matches any host. The first of equal patterns takes precedence.
    fn from_patterns<'a>(patterns: impl Iterator<Item = Option<&'a HostPattern>>) -> Self {
        let mut index_by_host =
            Self { exact: BTreeMap::new(), wildcards: BTreeMap::new(), any_host: None };
        for (index, pattern) in patterns.enumerate() {
            match pattern {
                None => drop(index_by_host.any_host.get_or_insert(index)),
                Some(HostPattern::Exact(name)) => {
                    index_by_host.exact.entry(name.to_string()).or_insert(index);
                }
                Some(HostPattern::Below(name)) => {
                    index_by_host.wildcards.entry(name.to_string()).or_insert(index);
                }
            }
        }
        index_by_host
    }

    /// Returns the index of the most specific pattern that matches the host.
    fn first_match(&self, host: &str) -> Option<usize> {
        self.all_matches(host).next()
    }

    /// Returns the indices of all patterns that match the host, the most specific first.
    fn all_matches(&self, host: &str) -> impl Iterator<Item = usize> {
        let parents = std::iter::successors(parent_domain(host), |host| parent_domain(host));
        let wildcards = parents.filter_map(|name| self.wildcards.get(name));
        self.exact.get(host).into_iter().chain(wildcards).chain(&self.any_host).copied()
    }
}

/// Returns the host without its first label; `None` if there is one label only.
fn parent_domain(host: &str) -> Option<&str> {
    host.split_once('.').map(|(_, parent)| parent)
}

/// Returns the host of an authority for comparison: without port, in lower case, without a final dot.
fn normalized_host(authority: &str) -> String {
    let (host, _) = split_authority(authority);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
