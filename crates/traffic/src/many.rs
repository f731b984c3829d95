//! The matches of many rules, looked up instead of asked one after the other.

use crate::lookup::{Lookup, are_many};
use crate::matcher::RequestMatcher;
use crate::request::RequestView;

/// The matches of rules, in the order of the rules.
#[derive(Debug)]
pub(crate) struct Many {
    /// Of each the rule, and its place in that.
    matches: Box<[(usize, usize)]>,
    lookup: Box<Lookup>,
}

impl Many {
    /// Of these rules, in order; `None` where they are few. A rule without matches has one that
    /// demands nothing, in the first place.
    pub(crate) fn of<'a>(
        rules: impl Iterator<Item = (usize, &'a [RequestMatcher])> + Clone,
    ) -> Option<Self> {
        let all = || {
            rules.clone().flat_map(|(rule, matchers)| {
                let places = 0..matchers.len().max(1);
                places.map(move |place| (rule, place, matchers.get(place)))
            })
        };
        let lookup = Lookup::of_many(all().count(), || {
            all()
                .map(|(_, _, matcher)| matcher.map(RequestMatcher::demands).unwrap_or_default())
                .collect()
        })?;
        Some(Self { matches: all().map(|(rule, place, _)| (rule, place)).collect(), lookup })
    }

    /// The matches of some of the rules, which are in order; `None` where they are few.
    pub(crate) fn part(&self, rules: &[usize]) -> Option<Box<[usize]>> {
        let matches = self.matches.iter().enumerate();
        let part = matches.filter(|(_, (rule, _))| rules.binary_search(rule).is_ok());
        let part: Box<[usize]> = part.map(|(at, _)| at).collect();
        are_many(part.len()).then_some(part)
    }

    /// The first rule with a match that fits: asked by rule, and the match's place in it.
    pub(crate) fn first(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let fits =
            |at: usize| self.matches.get(at).is_some_and(|(rule, place)| fits(*rule, *place));
        self.matches.get(self.lookup.first(request, fits)?).map(|(rule, _)| *rule)
    }

    /// The same among a part of the matches.
    pub(crate) fn first_of(
        &self,
        part: &[usize],
        request: &RequestView<'_>,
        fits: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let fits =
            |at: usize| self.matches.get(at).is_some_and(|(rule, place)| fits(*rule, *place));
        self.matches.get(self.lookup.first_of(part, request, fits)?).map(|(rule, _)| *rule)
    }
}
