//! Listener isolation of TLS passthrough listeners at one port: the most specific listener serves a session.

use leno_model::{HostPattern, TlsRule};

/// The listeners of a port, each with its host name and its rules.
pub(super) type PortListeners = Vec<(Option<HostPattern>, Vec<TlsRule>)>;

/// Merges the rules of the listeners of a port. Only the listener with the most specific host name serves a
/// session: host names that belong to another listener are removed from the rules of this one. Sessions that
/// match no rule of their listener have no backend.
pub(super) fn isolate_listeners(listeners: PortListeners) -> Vec<TlsRule> {
    let taken: Vec<HostPattern> = listeners.iter().filter_map(|(name, _)| name.clone()).collect();
    let taker = |name: &HostPattern| {
        let takers = taken.iter().filter(|taker| covers_hostnames(taker, name));
        takers.max_by_key(|taker| taker.specificity())
    };
    let alone = listeners.len() < 2;
    let mut rules = Vec::new();
    for (own, of_listener) in &listeners {
        for rule in of_listener {
            let mut rule = rule.clone();
            rule.hostnames.retain(|name| alone || taker(name) == own.as_ref());
            if !rule.hostnames.is_empty() {
                rules.push(rule);
            }
        }
    }
    if !alone && let Some(rule) = rules.first().cloned() {
        // The first rule for a host name wins.
        rules.push(TlsRule { hostnames: taken, backends: Vec::new(), ..rule });
    }
    rules
}

/// Returns true if `taker` covers all host names of `name`.
fn covers_hostnames(taker: &HostPattern, name: &HostPattern) -> bool {
    match name {
        HostPattern::Exact(host) => taker.matches_host(host.as_str()),
        HostPattern::Below(_) if taker == name => true,
        HostPattern::Below(parent) => {
            matches!(taker, HostPattern::Below(_)) && taker.matches_host(parent.as_str())
        }
    }
}
