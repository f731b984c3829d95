//! Listeners for TLS at one port, each for itself: a session is for the most specific one.

use leno_model::{HostPattern, TlsRule};

/// The listeners of a port, each with its host name and its rules.
pub(super) type Listeners = Vec<(Option<HostPattern>, Vec<TlsRule>)>;

/// The rules of a port, from those of its listeners. The listener with the most specific host name
/// takes a session, and no other: names that another listener is for are taken from the rules of
/// this one, and what a listener has no rule for leads nowhere.
pub(super) fn isolated(listeners: Listeners) -> Vec<TlsRule> {
    let taken: Vec<HostPattern> = listeners.iter().filter_map(|(name, _)| name.clone()).collect();
    let taker = |name: &HostPattern| {
        let takers = taken.iter().filter(|taker| takes(taker, name));
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
        // Of rules for one name the first counts.
        rules.push(TlsRule { hostnames: taken, backends: Vec::new(), ..rule });
    }
    rules
}

/// Whether all names of `name` are such as `taker` is for.
fn takes(taker: &HostPattern, name: &HostPattern) -> bool {
    match name {
        HostPattern::Exact(host) => taker.fits(host.as_str()),
        HostPattern::Below(_) if taker == name => true,
        HostPattern::Below(parent) => {
            matches!(taker, HostPattern::Below(_)) && taker.fits(parent.as_str())
        }
    }
}
