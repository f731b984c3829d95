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
    /// The matches by exact path.
    exact: FxHashMap<Box<str>, MatchGroup>,
    /// The matches by path prefix.
    prefixes: PrefixIndex<MatchGroup>,
    /// Matches by regular expression, followed by those for any path.
    unindexed: MatchGroup,
}

/// Matches with the same path condition, in order of precedence.
#[derive(Debug, Clone, Default)]
struct MatchGroup {
    matches: Box<[CompiledMatch]>,
    /// An index of the other exact conditions, if there are many matches.
    index: Option<Box<RuleIndex>>,
}

impl RouteIndex {
    /// Builds the index of matches, given in the order of routes, rules and matches.
    pub(super) fn build(matches: Vec<(&RequestMatch, CompiledMatch)>) -> Self {
        let mut ranked: Vec<_> = matches
            .into_iter()
            .map(|(request, compiled)| (request, match_rank(request), compiled))
            .collect();
        // The sort is stable: equals keep their order.
        ranked.sort_by(|(_, a, _), (_, b, _)| b.cmp(a));
        let mut exact: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut prefixes: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut unindexed = Vec::new();
        for (request, rank, compiled) in ranked {
            let path = group_key(request);
            let group = match rank.path {
                PathRank::Exact => exact.entry(path.into()).or_default(),
                PathRank::Prefix(_) => prefixes.entry(path.into()).or_default(),
                PathRank::Regex | PathRank::Any => &mut unindexed,
            };
            group.push(compiled);
        }
        let group = |(path, matches)| (path, MatchGroup::from_matches(matches));
        Self {
            exact: exact.into_iter().map(group).collect(),
            prefixes: PrefixIndex::from_prefixes(prefixes.into_iter().map(group)),
            unindexed: MatchGroup::from_matches(unindexed),
        }
    }

    /// Returns the first match for the request.
    #[inline(never)]
    pub(super) fn find_match(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if let Some(matching) =
            self.find_by_exact_path(request).or_else(|| self.find_by_prefix(request))
        {
            return Some(matching);
        }
        self.unindexed.find_with_path(request)
    }

    #[inline]
    fn find_by_exact_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if self.exact.is_empty() {
            return None;
        }
        self.exact.get(request.path)?.find_except_path(request)
    }

    /// Tries the prefixes of the path that end at an element boundary, the longest first.
    fn find_by_prefix(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.prefixes.find_longest(request.path, |group| group.find_except_path(request))
    }
}

impl MatchGroup {
    fn from_matches(matches: Vec<CompiledMatch>) -> Self {
        let index = RuleIndex::build_if_many(matches.len(), || {
            matches.iter().map(|compiled| compiled.matcher.index_conditions()).collect()
        });
        Self { matches: matches.into(), index }
    }

    /// Returns the first match of which all conditions hold, including that of the path.
    #[inline(never)]
    fn find_with_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.first_match(request, |compiled| compiled.matcher.matches(request))
    }

    /// Returns the first match of which the other conditions hold, for a group whose path condition holds.
    fn find_except_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.first_match(request, |compiled| compiled.matcher.matches_except_path(request))
    }

    /// Returns the first match for which `is_match` is true.
    #[inline]
    fn first_match(
        &self,
        request: &RequestView<'_>,
        is_match: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&CompiledMatch> {
        match &self.index {
            None => self.matches.iter().find(|compiled| is_match(compiled)),
            Some(index) => self.find_by_index(index, request, is_match),
        }
    }

    /// Returns the first match by the index. Separate, so that a small number of matches does not pay for it.
    #[inline(never)]
    fn find_by_index(
        &self,
        index: &RuleIndex,
        request: &RequestView<'_>,
        is_match: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&CompiledMatch> {
        let is_match = |position: usize| self.matches.get(position).is_some_and(&is_match);
        self.matches.get(index.first_match(request, is_match)?)
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
