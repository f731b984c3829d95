//! Routes TLS sessions of applications by server name, without termination (TLS passthrough).

use leno_model::{HostPattern, PortConfig, TlsRule, WeightedBackend};
use rustc_hash::FxHashMap;

use crate::route::select_by_weight;

/// The compiled TLS routes of one service port.
///
/// Among the rules that match a server name, a rule with the exact name takes precedence, then the longest wildcard,
/// then the first rule (Gateway API, `TLSRoute`).
#[derive(Debug, Clone)]
pub struct TlsRoutes {
    rules: Box<[TlsRule]>,
    /// The exact names.
    exact_names: ServerNameIndex,
    /// The wildcards `*.NAME`, by name.
    wildcards: ServerNameIndex,
}

/// The index of the first rule for each name. The names come from the configuration, so clients cannot cause hash
/// collisions.
type ServerNameIndex = FxHashMap<Box<str>, usize>;

impl TlsRoutes {
    /// Compiles the rules of a port.
    #[must_use]
    pub fn compile(port: &PortConfig) -> Self {
        Self::from_rules(&port.tls_rules)
    }

    /// Compiles rules.
    pub(crate) fn from_rules(rules: &[TlsRule]) -> Self {
        let mut exact_names = ServerNameIndex::default();
        let mut wildcards = ServerNameIndex::default();
        for (index, rule) in rules.iter().enumerate() {
            for pattern in &rule.hostnames {
                let (index_by_name, name) = match pattern {
                    HostPattern::Exact(name) => (&mut exact_names, name),
                    HostPattern::Below(name) => (&mut wildcards, name),
                };
                index_by_name.entry(name.as_str().into()).or_insert(index);
            }
        }
        Self { rules: rules.into(), exact_names, wildcards }
    }

    /// True if no route is attached, so that every session is forwarded to the service's own endpoints.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the backends of all rules.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        self.rules.iter().flat_map(|rule| &rule.backends)
    }

    /// Selects the backend of a session with this server name, if it has one. `random` is a uniform random
    /// number, for the choice among weighted backends.
    #[must_use]
    pub fn choose_backend(&self, server_name: Option<&str>, random: u64) -> TlsChoice<'_> {
        if self.is_trivial() {
            return TlsChoice::Direct;
        }
        let Some(rule) = server_name.and_then(|name| self.find_rule(name)) else {
            return TlsChoice::NoRoute;
        };
        let total_weight: u64 = rule.backends.iter().map(|backend| u64::from(backend.weight)).sum();
        match select_by_weight(
            &rule.backends,
            total_weight + u64::from(rule.ungranted_weight),
            random,
        ) {
            Some((_, backend)) => TlsChoice::To { rule, backend },
            None => TlsChoice::InvalidBackend { rule },
        }
    }

    /// Returns the rule for a server name; `None` if no rule matches. Names are compared case-insensitively (RFC 6066
    /// §3); clients send them without a final dot.
    fn find_rule(&self, server_name: &str) -> Option<&TlsRule> {
        let name = server_name.to_ascii_lowercase();
        let mut rule_index = self.exact_names.get(name.as_str());
        let mut remaining = name.as_str();
        while let (None, Some((_, parent))) = (rule_index, remaining.split_once('.')) {
            rule_index = self.wildcards.get(parent);
            remaining = parent;
        }
        self.rules.get(*rule_index?)
    }
}

/// The routing result of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsChoice<'a> {
    /// No route is attached, and the session is forwarded to the service's own endpoints.
    Direct,
    /// A rule matches, and a backend was selected. The session fails if the snapshot does not contain the backend.
    To {
        /// The matching rule.
        rule: &'a TlsRule,
        /// The selected backend.
        backend: &'a WeightedBackend,
    },
    /// Routes are attached, and no rule matches the server name.
    NoRoute,
    /// The matching rule has no backend with a positive weight, or no grant permits the selected backend.
    InvalidBackend {
        /// The matching rule.
        rule: &'a TlsRule,
    },
}

#[cfg(test)]
mod tests {
    use leno_model::{Protocol, ServiceName};

    use super::*;

    fn tls_rule(route: &str, hostnames: &[&str], backends: &[(&str, u32)]) -> TlsRule {
        let backend = |(name, weight): &(&str, u32)| {
            WeightedBackend::new(ServiceName::new("shop", name).unwrap(), 443, *weight)
        };
        TlsRule {
            route: format!("shop/{route}").parse().unwrap(),
            hostnames: hostnames.iter().map(|name| name.parse().unwrap()).collect(),
            backends: backends.iter().map(backend).collect(),
            ungranted_weight: 0,
        }
    }

    fn compile_routes(tls_rules: Vec<TlsRule>) -> TlsRoutes {
        TlsRoutes::compile(&PortConfig {
            name: None,
            protocol: Protocol::Tcp,
            has_attached_routes: false,
            rules: Vec::new(),
            endpoints: Vec::new(),
            tls_rules,
            traffic_policy: leno_model::TrafficPolicy::default(),
            tags: None,
            tcp_rule: None,
        })
    }

    fn chosen_backend(routes: &TlsRoutes, name: Option<&str>) -> String {
        match routes.choose_backend(name, 0) {
            TlsChoice::Direct => "direct".to_owned(),
            TlsChoice::To { rule, backend } => {
                format!("{} {}", rule.route.name, backend.service.name)
            }
            TlsChoice::NoRoute => "none".to_owned(),
            TlsChoice::InvalidBackend { rule } => format!("{} rejected", rule.route.name),
        }
    }

    #[test]
    fn the_share_of_ungranted_backends_is_rejected() {
        let rule = TlsRule { ungranted_weight: 3, ..tls_rule("a", &["a.b"], &[("web", 1)]) };
        let routes = compile_routes(vec![rule]);
        let is_forwarded =
            |random| matches!(routes.choose_backend(Some("a.b"), random), TlsChoice::To { .. });
        assert_eq!((0..8).filter(|random| is_forwarded(*random)).count(), 2);
    }

    #[test]
    fn an_exact_name_precedes_the_longest_wildcard() {
        let routes = compile_routes(vec![
            tls_rule("a", &["*.com"], &[("com", 1)]),
            tls_rule("b", &["*.example.com", "example.com"], &[("example", 1)]),
            tls_rule("c", &["a.example.com"], &[("a", 1)]),
            tls_rule("d", &["a.example.com", "*.example.com"], &[("late", 1)]),
            tls_rule("e", &["empty.org"], &[("none", 0)]),
        ]);
        for (name, expected) in [
            (Some("a.example.com"), "c a"),
            (Some("A.Example.COM"), "c a"),
            (Some("b.example.com"), "b example"),
            (Some("x.a.example.com"), "b example"),
            (Some("example.com"), "b example"),
            (Some("other.com"), "a com"),
            (Some("com"), "none"),
            (Some("empty.org"), "e rejected"),
            (Some("example.org"), "none"),
            (Some(""), "none"),
            (Some("."), "none"),
            (None, "none"),
        ] {
            assert_eq!(chosen_backend(&routes, name), expected, "{name:?}");
        }
    }

    #[test]
    fn without_routes_sessions_go_to_the_service() {
        let routes = compile_routes(Vec::new());
        assert_eq!(chosen_backend(&routes, Some("a.example.com")), "direct");
        assert_eq!(chosen_backend(&routes, None), "direct");
    }

    #[test]
    fn sessions_are_distributed_by_weight() {
        let routes = compile_routes(vec![tls_rule("a", &["a.com"], &[("one", 1), ("three", 3)])]);
        let backend_for = |random| match routes.choose_backend(Some("a.com"), random) {
            TlsChoice::To { backend, .. } => backend.service.name.to_string(),
            choice => panic!("{choice:?}"),
        };
        assert_eq!([0, 1, 2, 3, 4].map(backend_for), ["one", "three", "three", "three", "one"]);
    }
}
