//! Which outlets are for a host: looked up by its name and by those that it lies below.

use leno_model::HostPattern;
use rustc_hash::FxHashMap;

use crate::lookup::first_before;

/// Places of outlets, by the hosts that they are for.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    exact: FxHashMap<Box<str>, Vec<usize>>,
    /// For all hosts below a name.
    below: FxHashMap<Box<str>, Vec<usize>>,
    /// For any host.
    any: Vec<usize>,
}

impl Hosts {
    /// Adds an outlet that stands behind all that were added before; it is for any host when it names
    /// none.
    pub(super) fn add(&mut self, place: usize, hosts: &[HostPattern]) {
        if hosts.is_empty() {
            self.any.push(place);
        }
        for host in hosts {
            let (names, name) = match host {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Below(name) => (&mut self.below, name),
            };
            let places = names.entry(name.as_str().into()).or_default();
            // A host that is named twice is one.
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }

    /// The first outlet for a host, in lower case and without a dot at its end, that `fits`.
    pub(super) fn first(&self, host: &str, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let exact = self.exact.get(host).map_or(&[][..], |places| places);
        let mut best = first_before(usize::MAX, exact, &fits);
        best = first_before(best, &self.any, &fits);
        let mut rest = host;
        while let Some((_, parent)) = rest.split_once('.') {
            // What lies below a name has a label before it.
            if parent.len().saturating_add(1) < host.len()
                && let Some(places) = self.below.get(parent)
            {
                best = first_before(best, places, &fits);
            }
            rest = parent;
        }
        (best != usize::MAX).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]?", 1..5).prop_map(|labels| labels.join("."))
    }

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_asking_in_order_finds(
            outlets in proptest::collection::vec(
                proptest::collection::vec("(\\*\\.)?[ab](\\.[ab]){0,2}", 0..4),
                0..6,
            ),
            host in host(),
            odd in any::<bool>(),
        ) {
            let patterns = |texts: &Vec<String>| -> Vec<HostPattern> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            let outlets: Vec<Vec<HostPattern>> = outlets.iter().map(patterns).collect();
            let mut hosts = Hosts::default();
            for (place, patterns) in outlets.iter().enumerate() {
                hosts.add(place, patterns);
            }
            let fits = |place: usize| !odd || place % 2 == 1;
            let in_order = outlets.iter().enumerate().position(|(place, patterns)| {
                let is_for = patterns.is_empty() || patterns.iter().any(|it| it.fits(&host));
                is_for && fits(place)
            });
            prop_assert_eq!(hosts.first(&host, fits), in_order);
        }
    }
}
