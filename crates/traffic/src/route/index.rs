//! Indexes the route matches of a port by exact path, path prefix and other exact conditions, and finds the match of a
//! request.

use leno_model::{PathMatch, RequestMatch};
use rustc_hash::FxHashMap;

use super::{CompiledMatch, PathRank, match_rank};
use crate::match_index::IndexedMatch;
use crate::matcher::prefix_elements;
use crate::request::RequestView;
use crate::rule_index::{PrefixIndex, RuleIndex};

/// All matches of a port, grouped by exact path and by path prefix. The group of the request's exact path is searched
/// first, then the groups of its prefixes, the longest first.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteIndex {
    /// The matches by exact path.
    exact: FxHashMap<Box<str>, MatchGroup>,
    /// The matches by path prefix.
    prefixes: PrefixIndex<MatchGroup>,
    /// The matches by regular expression, followed by the matches for any path.
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
        let mut ranked_matches: Vec<_> = matches
            .into_iter()
            .map(|(request, compiled_match)| (request, match_rank(request), compiled_match))
            .collect();
        // The sort is stable, so matches of equal rank retain their order.
        ranked_matches.sort_by(|(_, first, _), (_, second, _)| second.cmp(first));
        let mut exact: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut prefixes: FxHashMap<Box<str>, Vec<_>> = FxHashMap::default();
        let mut unindexed = Vec::new();
        for (request, rank, compiled_match) in ranked_matches {
            let path = group_path(request);
            let group = match rank.path {
                PathRank::Exact => exact.entry(path.into()).or_default(),
                PathRank::Prefix(_) => prefixes.entry(path.into()).or_default(),
                PathRank::Regex | PathRank::Any => &mut unindexed,
            };
            group.push(compiled_match);
        }
        let with_group = |(path, matches)| (path, MatchGroup::from_matches(matches));
        Self {
            exact: exact.into_iter().map(with_group).collect(),
            prefixes: PrefixIndex::from_prefixes(prefixes.into_iter().map(with_group)),
            unindexed: MatchGroup::from_matches(unindexed),
        }
    }

    /// Returns the match of the request that takes precedence; `None` if no match applies.
    #[inline(never)]
    pub(super) fn find_match(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if let Some(compiled_match) =
            self.find_by_exact_path(request).or_else(|| self.find_by_prefix(request))
        {
            return Some(compiled_match);
        }
        self.unindexed.find_with_path(request)
    }

    /// Returns the first match in the group of the request's exact path.
    #[inline]
    fn find_by_exact_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        if self.exact.is_empty() {
            return None;
        }
        self.exact.get(request.path)?.find_except_path(request)
    }

    /// Returns the first match in the groups of the path's prefixes, the longest first.
    fn find_by_prefix(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.prefixes.find_longest_accepted(request.path, |group| group.find_except_path(request))
    }
}

impl MatchGroup {
    fn from_matches(matches: Vec<CompiledMatch>) -> Self {
        let index = RuleIndex::build_if_many(matches.len(), || {
            matches.iter().map(|compiled| compiled.matcher.index_conditions()).collect()
        });
        Self { matches: matches.into(), index }
    }

    /// Returns the first match for which all conditions hold, including the path condition.
    #[inline(never)]
    fn find_with_path(&self, request: &RequestView<'_>) -> Option<&CompiledMatch> {
        self.first_match(request, |compiled| compiled.matcher.matches(request))
    }

    /// Returns the first match whose conditions other than the path condition hold. The group's path condition must
    /// hold.
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
            Some(index) => self.find_indexed(index, request, is_match),
        }
    }

    /// Returns the first match, found by the index. This is a separate function so that groups with few matches do not
    /// need its stack space.
    #[inline(never)]
    fn find_indexed(
        &self,
        index: &RuleIndex,
        request: &RequestView<'_>,
        is_match: impl Fn(&CompiledMatch) -> bool,
    ) -> Option<&CompiledMatch> {
        let is_match_at = |position: usize| self.matches.get(position).is_some_and(&is_match);
        self.matches.get(index.first_match(request, is_match_at)?)
    }
}

/// Returns the path by which a match is grouped: the exact path, or the prefix without its trailing `/`; empty for a
/// match that is not grouped by path.
fn group_path(request: &RequestMatch) -> &str {
    match &request.path {
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(prefix) => prefix_elements(prefix),
        PathMatch::Any | PathMatch::Regex(_) => "",
    }
}
