//! The matches of many rules, looked up instead of asked one after the other.

use crate::lookup::Lookup;
use crate::matcher::RequestMatcher;
use crate::request::RequestView;

/// The matches of rules, in the order of the rules.
#[derive(Debug)]
pub(super) struct Many {
    /// Of each the rule, and its place in that.
    matches: Box<[(usize, usize)]>,
    lookup: Box<Lookup>,
}

impl Many {
    /// Of these rules, in order; `None` where they are few. A rule without matches has one that
    /// demands nothing, in the first place.
    pub(super) fn of<'a>(
        rules: impl Iterator<Item = (usize, &'a [RequestMatcher])>,
    ) -> Option<Self> {
        let (mut matches, mut demands) = (Vec::new(), Vec::new());
        for (rule, matchers) in rules {
            for (place, matcher) in matchers.iter().enumerate() {
                matches.push((rule, place));
                demands.push(matcher.demands());
            }
            if matchers.is_empty() {
                matches.push((rule, 0));
                demands.push(Vec::new());
            }
        }
        let lookup = Lookup::of_many(matches.len(), || demands)?;
        Some(Self { matches: matches.into(), lookup })
    }

    /// The first rule with a match that fits: asked by rule, and the match's place in it.
    pub(super) fn first(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let fits =
            |at: usize| self.matches.get(at).is_some_and(|(rule, place)| fits(*rule, *place));
        self.matches.get(self.lookup.first(request, fits)?).map(|(rule, _)| *rule)
    }
}
