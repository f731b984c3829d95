//! Isolates the TLS passthrough listeners of a port: the listener with the most specific host name serves a
//! session (listener isolation of the Gateway API).

use leno_model::{HostPattern, TlsRule};

/// The listeners of a port, each with its host name and its rules.
pub(super) type PortListeners = Vec<(Option<HostPattern>, Vec<TlsRule>)>;

/// Merges the rules of the listeners of a port. Only the listener with the most specific host name serves a
/// session: host names that belong to a more specific listener are removed from the rules of a less specific
/// listener. Sessions that match no rule of their listener have no backend.
pub(super) fn isolate_listeners(listeners: PortListeners) -> Vec<TlsRule> {
    let hostnames: Vec<HostPattern> =
        listeners.iter().filter_map(|(name, _)| name.clone()).collect();
    let most_specific = |name: &HostPattern| {
        let candidates = hostnames.iter().filter(|covering| covers_hostnames(covering, name));
        candidates.max_by_key(|covering| covering.specificity())
    };
    let is_only_listener = listeners.len() < 2;
    let mut rules = Vec::new();
    for (hostname, listener_rules) in &listeners {
        for rule in listener_rules {
            let mut rule = rule.clone();
            rule.hostnames
                .retain(|name| is_only_listener || most_specific(name) == hostname.as_ref());
            if !rule.hostnames.is_empty() {
                rules.push(rule);
            }
        }
    }
    if !is_only_listener && let Some(rule) = rules.first().cloned() {
        // Catches the sessions that match no other rule of their listener: the first rule for a host name wins.
        rules.push(TlsRule { hostnames, backends: Vec::new(), ..rule });
    }
    rules
}

/// Returns true if `covering` covers all host names of `name`.
fn covers_hostnames(covering: &HostPattern, name: &HostPattern) -> bool {
    match name {
        HostPattern::Exact(host) => covering.matches_host(host.as_str()),
        HostPattern::Below(_) if covering == name => true,
        HostPattern::Below(parent) => {
            matches!(covering, HostPattern::Below(_)) && covering.matches_host(parent.as_str())
        }
    }
}
