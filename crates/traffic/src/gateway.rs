//! Gateways, compiled: which listener a request is for, and which rule decides it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{
    Gateway, GatewayListener, GatewayPort, HostPattern, HostRules, Name, REASON_FIELD, RouteKind,
    RouteRule, Serves, ServiceName, TcpRule,
};

use crate::action::split_authority;
use crate::matcher::RequestMatcher;
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::route::{PortRoutes, RouteChoice};
use crate::tls_route::TlsRoutes;

/// What the proxy of a gateway serves, compiled.
#[derive(Debug)]
pub struct GatewayPlan {
    /// What it was compiled from.
    pub gateway: Arc<Gateway>,
    /// Its ports, by number. One that did not change is the same as before.
    pub ports: BTreeMap<u16, Arc<GatewayPortPlan>>,
    /// The rules that were left out since they cannot be used; the others are served.
    pub bad: Vec<BadPattern>,
    /// The ports of services that rules lead calls of gRPC to.
    calls: BTreeMap<ServiceName, BTreeSet<u16>>,
}

impl GatewayPlan {
    /// Compiles a gateway. A rule whose pattern cannot be used is left out, and no other with it.
    #[must_use]
    pub fn build(gateway: &Arc<Gateway>, previous: Option<&Self>) -> Self {
        let mut bad = Vec::new();
        let ports = gateway.ports.iter().map(|port| {
            let before = previous.and_then(|plan| plan.unchanged(port));
            let built = before.unwrap_or_else(|| Arc::new(GatewayPortPlan::build(port, &mut bad)));
            (port.port, built)
        });
        let ports = ports.collect();
        Self { gateway: Arc::clone(gateway), ports, bad, calls: calls(gateway) }
    }

    /// Whether a rule leads calls of gRPC to this port of a service.
    #[must_use]
    pub fn takes_calls(&self, service: &ServiceName, port: u16) -> bool {
        self.calls.get(service).is_some_and(|ports| ports.contains(&port))
    }

    fn unchanged(&self, port: &GatewayPort) -> Option<Arc<GatewayPortPlan>> {
        let same = self.gateway.ports.contains(port);
        self.ports.get(&port.port).filter(|_| same).cloned()
    }
}

fn calls(gateway: &Gateway) -> BTreeMap<ServiceName, BTreeSet<u16>> {
    let listeners = gateway.ports.iter().flat_map(|port| match &port.serves {
        Serves::Http(listeners) | Serves::Https(listeners) => &**listeners,
        Serves::Passthrough(_) | Serves::Tcp(_) => &[],
    });
    let rules = listeners.flat_map(|listener| &listener.hosts).flat_map(|host| &host.rules);
    let rules = rules.filter(|rule| rule.kind == RouteKind::Grpc);
    let mut calls: BTreeMap<ServiceName, BTreeSet<u16>> = BTreeMap::new();
    for backend in rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors)) {
        calls.entry(backend.service.clone()).or_default().insert(backend.port);
    }
    calls
}

/// What one port of a gateway serves.
#[derive(Debug)]
pub enum GatewayPortPlan {
    /// HTTP.
    Http(HttpListeners),
    /// HTTP inside TLS that ends here.
    Https(HttpListeners),
    /// TLS that goes on as it is.
    Passthrough(TlsRoutes),
    /// Bytes.
    Tcp(TcpRule),
}

impl GatewayPortPlan {
    fn build(port: &GatewayPort, bad: &mut Vec<BadPattern>) -> Self {
        match &port.serves {
            Serves::Http(listeners) => Self::Http(HttpListeners::compile(listeners, bad)),
            Serves::Https(listeners) => Self::Https(HttpListeners::compile(listeners, bad)),
            Serves::Passthrough(rules) => Self::Passthrough(TlsRoutes::of(rules)),
            Serves::Tcp(rule) => Self::Tcp(rule.clone()),
        }
    }
}

/// The listeners of one port, each for other host names.
#[derive(Debug)]
pub struct HttpListeners {
    listeners: Box<[Listener]>,
    by_host: Hosts,
}

#[derive(Debug)]
struct Listener {
    name: Name,
    hosts: Box<[PortRoutes]>,
    by_host: Hosts,
}

impl HttpListeners {
    fn compile(listeners: &[GatewayListener], bad: &mut Vec<BadPattern>) -> Self {
        let by_host = Hosts::of(listeners.iter().map(|listener| listener.hostname.as_ref()));
        let listeners = listeners.iter().map(|listener| Listener::compile(listener, bad));
        Self { listeners: listeners.collect(), by_host }
    }

    /// Where a request goes. `server_name`: at a port with TLS, whom the client asked for in its
    /// session. `draw` is a random number that chooses among weighted backends.
    ///
    /// The listener with the most specific host name takes it, and no other; in that, the rules for
    /// the most specific host name are looked at first, and the next ones if none of them fits. A
    /// request for another listener than its session is not answered, since the session may have
    /// shown a certificate that is not for it.
    #[must_use]
    pub fn choose(
        &self,
        request: &RequestView<'_>,
        server_name: Option<Option<&str>>,
        draw: u64,
    ) -> GatewayChoice<'_> {
        let host = host_of(request.authority);
        let Some(found) = self.by_host.first(&host) else {
            return GatewayChoice::NoRoute { listener: None };
        };
        if let Some(name) = server_name
            && self.by_host.first(&host_of(name.unwrap_or_default())) != Some(found)
        {
            return GatewayChoice::Misdirected;
        }
        let Some(listener) = self.listeners.get(found) else {
            return GatewayChoice::NoRoute { listener: None };
        };
        let rules = listener.by_host.all(&host).filter_map(|index| listener.hosts.get(index));
        for rules in rules {
            match rules.choose(request, draw) {
                RouteChoice::NoRoute | RouteChoice::Direct => {}
                choice => return GatewayChoice::Route(choice),
            }
        }
        GatewayChoice::NoRoute { listener: Some(&listener.name) }
    }
}

impl Listener {
    fn compile(listener: &GatewayListener, bad: &mut Vec<BadPattern>) -> Self {
        // What is said of one host name in several places is said of it together.
        let mut together: BTreeMap<Option<&HostPattern>, Vec<RouteRule>> = BTreeMap::new();
        for HostRules { hostname, rules } in &listener.hosts {
            let rules = rules.iter().filter(|rule| is_usable(rule, bad)).map(untold);
            together.entry(hostname.as_ref()).or_default().extend(rules);
        }
        let by_host = Hosts::of(together.keys().copied());
        let routes = together.values().map(|rules| PortRoutes::of(rules, true));
        // All rules that are left compile.
        let hosts = routes.filter_map(Result::ok).collect();
        Self { name: listener.name.clone(), hosts, by_host }
    }
}

/// The rule, which keeps from strangers what sidecars say of themselves in answers.
fn untold(rule: &RouteRule) -> RouteRule {
    let mut rule = rule.clone();
    rule.actions.response_headers.remove.push(REASON_FIELD.to_owned());
    rule
}

/// Whether all patterns of a rule can be used.
fn is_usable(rule: &RouteRule, bad: &mut Vec<BadPattern>) -> bool {
    let wrong = rule.matches.iter().find_map(|request| RequestMatcher::compile(request).err());
    let is_usable = wrong.is_none();
    bad.extend(wrong.map(|wrong| wrong.within(rule.kind.key(rule.route.clone()))));
    is_usable
}

/// Where a request goes that came in at a gateway.
#[derive(Debug, Clone, Copy)]
pub enum GatewayChoice<'a> {
    /// A rule decided.
    Route(RouteChoice<'a>),
    /// No listener is for the host, or no rule for the request.
    NoRoute {
        /// The listener that it was for.
        listener: Option<&'a Name>,
    },
    /// It is for another listener than the session that it came in.
    Misdirected,
}

/// Which of several host names, or of those below one, fit a host; the most specific first.
#[derive(Debug)]
struct Hosts {
    exact: BTreeMap<String, usize>,
    below: BTreeMap<String, usize>,
    any: Option<usize>,
}

impl Hosts {
    /// Of two that are equal, the first counts.
    fn of<'a>(patterns: impl Iterator<Item = Option<&'a HostPattern>>) -> Self {
        let mut hosts = Self { exact: BTreeMap::new(), below: BTreeMap::new(), any: None };
        for (index, pattern) in patterns.enumerate() {
            match pattern {
                None => drop(hosts.any.get_or_insert(index)),
                Some(HostPattern::Exact(name)) => {
                    hosts.exact.entry(name.to_string()).or_insert(index);
                }
                Some(HostPattern::Below(name)) => {
                    hosts.below.entry(name.to_string()).or_insert(index);
                }
            }
        }
        hosts
    }

    fn first(&self, host: &str) -> Option<usize> {
        self.all(host).next()
    }

    fn all(&self, host: &str) -> impl Iterator<Item = usize> {
        let parents = std::iter::successors(parent(host), |host| parent(host));
        let below = parents.filter_map(|name| self.below.get(name));
        self.exact.get(host).into_iter().chain(below).chain(&self.any).copied()
    }
}

fn parent(host: &str) -> Option<&str> {
    host.split_once('.').map(|(_, parent)| parent)
}

/// The host of an authority, as it is compared: without its port, in lower case, without a dot at
/// its end.
fn host_of(authority: &str) -> String {
    let (host, _) = split_authority(authority);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
