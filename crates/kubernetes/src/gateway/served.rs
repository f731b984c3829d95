//! Compiles a gateway's listeners and attached routes into the configuration of each port.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_model::{
    GatewayListener, GatewayName, GatewayPort, GatewayPortRules, HostPattern, HostRules, RouteKind,
    RouteName, RouteRule, TcpRule, TlsRule,
};
use leno_registry::GatewayRules;

use super::attach::RouteHost;
use super::isolated::{PortListeners, isolate_listeners};
use super::listener::{ListenerProtocol, ValidatedListener};

/// A route attached to a listener.
#[derive(Clone)]
pub(super) struct ServedRoute {
    /// The index of the listener.
    pub(super) listener_index: usize,
    /// The host names for which the route is attached.
    pub(super) hosts: Vec<RouteHost>,
    pub(super) rules: GatewayRules,
}

/// Compiles the ports of a gateway. `served_routes` are sorted by age, oldest first.
pub(super) fn compile_ports(
    gateway: &GatewayName,
    listeners: &[ValidatedListener<'_>],
    served_routes: Vec<ServedRoute>,
) -> Vec<GatewayPort> {
    let mut routes_by_listener: BTreeMap<usize, Vec<ServedRoute>> = BTreeMap::new();
    for route in served_routes {
        routes_by_listener.entry(route.listener_index).or_default().push(route);
    }
    let mut rules_by_port: BTreeMap<u16, GatewayPortRules> = BTreeMap::new();
    let mut passthrough_listeners: BTreeMap<u16, PortListeners> = BTreeMap::new();
    for (index, validated) in
        listeners.iter().enumerate().filter(|(_, listener)| listener.is_served())
    {
        let (Some(protocol), Some(name)) = (validated.protocol, validated.name.clone()) else {
            continue;
        };
        let routes = routes_by_listener.remove(&index).unwrap_or_default();
        let compile_listener = |routes| GatewayListener {
            name,
            hostname: validated.hostname.clone(),
            certificates: validated.certificates.clone(),
            hosts: group_by_host(routes),
        };
        let port = validated.listener.port;
        match protocol {
            ListenerProtocol::Http => {
                let rules =
                    rules_by_port.entry(port).or_insert_with(|| GatewayPortRules::Http(Vec::new()));
                if let GatewayPortRules::Http(port_listeners) = rules {
                    port_listeners.push(compile_listener(routes));
                }
            }
            ListenerProtocol::Https => {
                let rules = rules_by_port
                    .entry(port)
                    .or_insert_with(|| GatewayPortRules::Https(Vec::new()));
                if let GatewayPortRules::Https(port_listeners) = rules {
                    port_listeners.push(compile_listener(routes));
                }
            }
            ListenerProtocol::Passthrough => {
                passthrough_listeners
                    .entry(port)
                    .or_default()
                    .push((validated.hostname.clone(), tls_rules(routes)));
            }
            ListenerProtocol::Tcp => {
                rules_by_port.insert(port, GatewayPortRules::Tcp(tcp_rule(gateway, routes)));
            }
            // Never served: such a listener is rejected.
            ListenerProtocol::Terminate => {}
        }
    }
    rules_by_port.extend(passthrough_listeners.into_iter().map(|(port, listeners)| {
        (port, GatewayPortRules::Passthrough(isolate_listeners(listeners)))
    }));
    rules_by_port.into_iter().map(|(port, rules)| GatewayPort { port, serves: rules }).collect()
}

/// Groups HTTP rules by host name, as written in the routes. If two host names have the same intersection with
/// the listener, the more specific name takes precedence. Requests outside the listener's host name never reach
/// its rules.
fn group_by_host(routes: Vec<ServedRoute>) -> Vec<HostRules> {
    let mut rules_by_host: BTreeMap<Option<HostPattern>, Vec<RouteRule>> = BTreeMap::new();
    for route in routes {
        let GatewayRules::Requests(rules) = route.rules else { continue };
        for host in route.hosts {
            rules_by_host.entry(host.written).or_default().extend_from_slice(&rules);
        }
    }
    rules_by_host.into_iter().map(|(hostname, rules)| HostRules { hostname, rules }).collect()
}

/// Returns TLS rules, limited to host names of the listener. The first rule for a host name wins, so rules are sorted
/// by the specificity of the route's host name, then by the age of the route.
fn tls_rules(routes: Vec<ServedRoute>) -> Vec<TlsRule> {
    let mut rules = Vec::new();
    for route in routes {
        let GatewayRules::Sessions(rule) = route.rules else { continue };
        for RouteHost { written, common } in route.hosts {
            let Some(common) = common else { continue };
            let specificity = written.as_ref().map(HostPattern::specificity);
            rules.push((specificity, TlsRule { hostnames: vec![common], ..rule.clone() }));
        }
    }
    rules.sort_by_key(|(specificity, _)| Reverse(*specificity));
    rules.into_iter().map(|(_, rule)| rule).collect()
}

/// Returns the TCP rule of the oldest route. Without a route, connections are closed.
fn tcp_rule(gateway: &GatewayName, routes: Vec<ServedRoute>) -> TcpRule {
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
