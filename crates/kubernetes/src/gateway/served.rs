//! Configuration of a gateway, port by port.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_model::{
    GatewayListener, GatewayName, GatewayPort, HostPattern, HostRules, RouteKind, RouteName,
    RouteRule, Serves, TcpRule, TlsRule,
};
use leno_registry::GatewayRules;

use super::attach::RouteHost;
use super::isolated::{Listeners, isolate_listeners};
use super::listener::{Judged, Speaks};

/// A route attached to a listener.
#[derive(Clone)]
pub(super) struct Carried {
    /// The index of the listener.
    pub(super) listener: usize,
    /// The host names for which it is attached.
    pub(super) names: Vec<RouteHost>,
    pub(super) rules: GatewayRules,
}

/// Compiles the ports of a gateway. Routes are sorted by age.
pub(super) fn compile_ports(
    gateway: &GatewayName,
    listeners: &[Judged<'_>],
    carried: Vec<Carried>,
) -> Vec<GatewayPort> {
    let mut of_listener: BTreeMap<usize, Vec<Carried>> = BTreeMap::new();
    for one in carried {
        of_listener.entry(one.listener).or_default().push(one);
    }
    let mut ports: BTreeMap<u16, Serves> = BTreeMap::new();
    let mut through: BTreeMap<u16, Listeners> = BTreeMap::new();
    for (index, judged) in listeners.iter().enumerate().filter(|(_, it)| it.is_served()) {
        let (Some(speaks), Some(name)) = (judged.speaks, judged.name.clone()) else { continue };
        let routes = of_listener.remove(&index).unwrap_or_default();
        let listener = |routes| GatewayListener {
            name,
            hostname: judged.hostname.clone(),
            certificates: judged.certificates.clone(),
            hosts: group_by_host(routes),
        };
        let port = judged.listener.port;
        match speaks {
            Speaks::Http => {
                let serves = ports.entry(port).or_insert_with(|| Serves::Http(Vec::new()));
                if let Serves::Http(all) = serves {
                    all.push(listener(routes));
                }
            }
            Speaks::Https => {
                let serves = ports.entry(port).or_insert_with(|| Serves::Https(Vec::new()));
                if let Serves::Https(all) = serves {
                    all.push(listener(routes));
                }
            }
            Speaks::Passthrough => {
                through.entry(port).or_default().push((judged.hostname.clone(), tls_rules(routes)));
            }
            Speaks::Tcp => {
                ports.insert(port, Serves::Tcp(tcp_rule(gateway, routes)));
            }
            Speaks::Terminate => {}
        }
    }
    ports.extend(
        through.into_iter().map(|(port, it)| (port, Serves::Passthrough(isolate_listeners(it)))),
    );
    ports.into_iter().map(|(port, serves)| GatewayPort { port, serves }).collect()
}

/// Groups HTTP rules by host name, as written in the routes. If two host names have the same intersection with
/// the listener, the more specific one takes precedence. Requests outside the listener's host name never reach
/// its rules.
fn group_by_host(routes: Vec<Carried>) -> Vec<HostRules> {
    let mut hosts: BTreeMap<Option<HostPattern>, Vec<RouteRule>> = BTreeMap::new();
    for route in routes {
        let GatewayRules::Requests(rules) = route.rules else { continue };
        for name in route.names {
            hosts.entry(name.written).or_default().extend_from_slice(&rules);
        }
    }
    hosts.into_iter().map(|(hostname, rules)| HostRules { hostname, rules }).collect()
}

/// Returns TLS rules, limited to host names of the listener. The first rule for a host name wins: the one of
/// the route with the more specific host name, then the one of the older route.
fn tls_rules(routes: Vec<Carried>) -> Vec<TlsRule> {
    let mut rules = Vec::new();
    for route in routes {
        let GatewayRules::Sessions(rule) = route.rules else { continue };
        for RouteHost { written, common } in route.names {
            let Some(common) = common else { continue };
            let specificity = written.as_ref().map(HostPattern::specificity);
            rules.push((specificity, TlsRule { hostnames: vec![common], ..rule.clone() }));
        }
    }
    rules.sort_by_key(|(specificity, _)| Reverse(*specificity));
    rules.into_iter().map(|(_, rule)| rule).collect()
}

/// Returns the TCP rule of the oldest route. Without a route, connections are closed.
fn tcp_rule(gateway: &GatewayName, routes: Vec<Carried>) -> TcpRule {
    let rule = routes.into_iter().find_map(|route| match route.rules {
        GatewayRules::Connections(rule) => Some(rule),
        _ => None,
    });
    rule.unwrap_or_else(|| TcpRule {
        route: RouteName { namespace: gateway.namespace.clone(), name: gateway.name.clone() },
        kind: RouteKind::Tcp,
        backends: Vec::new(),
        ungranted_weight: 0,
    })
}
