//! Index of a port's matches: exact paths, prefixes, and other exact conditions.

use leno_model::{PathMatch, RequestMatch};
use rustc_hash::FxHashMap;

use super::{CompiledMatch, PathRank, match_rank};
use crate::match_index::IndexedMatch;
use crate::matcher::prefix_elements;
use crate::request::RequestView;
use crate::rule_index::{PrefixIndex, RuleIndex};

/// All matches of a port, grouped by exact path and by prefix: a request matches at most one exact path, and
/// the longest of several prefixes wins.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteIndex {
    exact: FxHashMap<Box<str>, Group>,
    prefixes: PrefixIndex<Group>,
    /// Matches by regular expression, followed by those for any path.
    rest: Group,
}

/// Matches with the same path condition, in order of precedence.
#[derive(Debug, Clone, Default)]
struct Group {
    matches: Box<[CompiledMatch]>,
    /// An index of their other exact conditions, if they are many.
    lookup: Option<Box<RuleIndex>>,
}

impl RouteIndex {
    /// Builds the index of matches, given in the order of routes, rules and matches.
    pub(super) fn build(matches: Vec<(&RequestMatch, CompiledMatch)>) -> Self {
        let mut ranked: Vec<_> =
            matches.into_iter().map(|(request, it)| (request, match_rank(request), it)).collect();
        // A stable sort: equals keep their order.
        ranked.sort_by(|(_, a, _), (_, b, _)| b.cmp(a));
        let mut exact: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut prefixes: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut rest = Vec::new();
        for (request, rank, compiled) in ranked {
            let place = group_key(request);
            let group = match rank.path {
                PathRank::Exact => exact.entry(place.into()).or_default(),
                PathRank::Prefix(_) => prefixes.entry(place.into()).or_default(),
                PathRank::Regex | PathRank::Any => &mut rest,
            };
            group.push(compiled);
        }
        let group = |(place, matches)| (place, Group::from_matches(matches));
        Self {
            exact: exact.into_iter().map(group).collect(),
            prefixes: PrefixIndex::from_prefixes(prefixes.into_iter().map(group)),
            rest: Group::from_matches(rest),
        }
    }

    /// Returns the first match for the request.
    #[inline(never)]
    pub(super) fn find_match(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if let Some(found) = self.by_exact_path(request).or_else(|| self.by_prefix(request)) {
            return Some(found);
        }
        self.rest.first_with_path(request)
    }

    #[inline]
    fn by_exact_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if self.exact.is_empty() {
            return None;
        }
        self.exact.get(request.path)?.first_beside_path(request)
    }

    /// Tries the prefixes of the path that end at an element boundary, the longest first.
    fn by_prefix(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.prefixes.find_longest(request.path, |group| group.first_beside_path(request))
    }
}

impl Group {
    fn from_matches(matches: Vec<CompiledMatch>) -> Self {
        let lookup = RuleIndex::of_many(matches.len(), || {
            matches.iter().map(|it| it.matcher.demands()).collect()
        });
        Self { matches: matches.into(), lookup }
    }

    /// Returns the first match, including the path condition.
    #[inline(never)]
    fn first_with_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.first_fitting(request, |it| it.matcher.matches(request))
    }

    /// Returns the first match; the path condition holds for all of them.
    fn first_beside_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.first_fitting(request, |it| it.matcher.matches_beside_path(request))
    }

    /// Returns the first that fits.
    #[inline]
    fn first_fitting(
        &self,
        request: &RequestView<'_>,
        fits: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&CompiledMatch> {
        match &self.lookup {
            None => self.matches.iter().find(|compiled| fits(compiled)),
            Some(lookup) => self.looked_up(lookup, request, fits),
        }
    }

    /// Separate, so that a small number of matches does not pay for it.
    #[inline(never)]
    fn looked_up(
        &self,
        lookup: &RuleIndex,
        request: &RequestView<'_>,
        fits: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&CompiledMatch> {
        let fits = |at: usize| self.matches.get(at).is_some_and(&fits);
        self.matches.get(lookup.first_fitting(request, fits)?)
    }
}

/// Returns the group key: the exact path, or the elements of the prefix.
fn group_key(request: &RequestMatch) -> &str {
    match &request.path {
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(prefix) => prefix_elements(prefix),
        PathMatch::Any | PathMatch::Regex(_) => "",
    }
}
