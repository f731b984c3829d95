//! Routes opaque connections to the weighted backends of a TCP rule.

use leno_model::{TcpRule, WeightedBackend};

use crate::route::select_by_weight;

/// Selects the backend of a connection; `None` if no backend has a positive weight, or if no grant permits the selected
/// backend. `random` is a uniform random number.
#[must_use]
pub fn select_tcp_backend(rule: &TcpRule, random: u64) -> Option<&WeightedBackend> {
    let total_weight = rule.backends.iter().map(|backend| u64::from(backend.weight)).sum::<u64>();
    let (_, backend) =
        select_by_weight(&rule.backends, total_weight + u64::from(rule.ungranted_weight), random)?;
    Some(backend)
}

#[cfg(test)]
mod tests {
    use leno_model::{RouteKind, ServiceName};

    use super::*;

    #[test]
    fn connections_are_distributed_by_weight() {
        let backend = |(name, weight): (&str, u32)| {
            WeightedBackend::new(ServiceName::new("shop", name).unwrap(), 5432, weight)
        };
        let rule = |backends: &[(&str, u32)], ungranted_weight| TcpRule {
            route: "shop/split".parse().unwrap(),
            kind: RouteKind::Split,
            backends: backends.iter().copied().map(backend).collect(),
            ungranted_weight,
        };
        for (rule, expected) in [
            (rule(&[("one", 1), ("none", 0), ("two", 2)], 1), "one two two rejected one"),
            (rule(&[("none", 0)], 0), "rejected rejected rejected rejected rejected"),
            (rule(&[], 0), "rejected rejected rejected rejected rejected"),
        ] {
            let selected = (0..5).map(|random| {
                select_tcp_backend(&rule, random)
                    .map_or("rejected", |backend| backend.service.name.as_str())
            });
            assert_eq!(selected.collect::<Vec<_>>().join(" "), expected);
        }
    }
}
