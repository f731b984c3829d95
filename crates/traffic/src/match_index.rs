//! Index of the matches of many rules.

use leno_model::{NamePattern, PeerMatch};

use crate::rule_index::{
    IndexCondition, IndexedAttribute, LookupKeys, RuleIndex, RulePositions, needs_index,
};

/// A compiled match with its necessary conditions.
pub(crate) trait IndexedMatch {
    /// Returns the necessary conditions. Their texts are normalized for a
    /// [`DenialMatcher`](crate::matcher::DenialMatcher).
    fn index_conditions(&self) -> Vec<IndexCondition>;
}

/// The matches of rules, in the order of the rules.
#[derive(Debug)]
pub(crate) struct MatchIndex {
    /// The position of each match's rule, and the position of the match in that rule.
    matches: Box<[(usize, usize)]>,
    index: Box<RuleIndex>,
}

/// A subset of the rules of an index or policy, in order.
#[derive(Debug, Clone)]
pub(crate) enum RuleSubset {
    /// Rules that are evaluated one by one.
    Few(Box<[usize]>),
    /// The positions of the rules' matches in the index; absent for all of them.
    Many(Option<Box<[usize]>>),
}

impl Default for RuleSubset {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl RuleSubset {
    /// Selects these rules, by their positions in the index if they are many.
    pub(crate) fn from_rules(index: Option<&MatchIndex>, rules: Box<[usize]>) -> Self {
        index.and_then(|index| index.select_rules(&rules)).unwrap_or(Self::Few(rules))
    }

    /// True if there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(rules) if rules.is_empty())
    }

    /// Returns the rules, once per match. `index` is the index that the subset was created with.
    pub(crate) fn matching_rules<'a>(
        &'a self,
        index: Option<&'a MatchIndex>,
    ) -> impl Iterator<Item = usize> + 'a {
        let matches = index.map_or(&[][..], |index| &index.matches);
        let (few, positions, all) = match self {
            Self::Few(rules) => (&**rules, &[][..], &[][..]),
            Self::Many(Some(positions)) => (&[][..], &**positions, &[][..]),
            Self::Many(None) => (&[][..], &[][..], matches),
        };
        let selected = positions.iter().filter_map(|position| matches.get(*position)).chain(all);
        few.iter().copied().chain(selected.map(|(rule, _)| *rule))
    }
}

/// Candidate rules in order, each once.
#[derive(Debug)]
pub(crate) struct MatchingRules<'a> {
    matches: &'a [(usize, usize)],
    positions: RulePositions<'a>,
    last: Option<usize>,
}

impl Iterator for MatchingRules<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let Self { matches, positions, last } = self;
        let mut rules =
            positions.filter_map(|position| matches.get(position).map(|(rule, _)| *rule));
        rules.find(|rule| last.replace(*rule) != Some(*rule))
    }
}

impl MatchIndex {
    /// Indexes these rules, in order; `None` if they are few. A rule without matches gets one without
    /// conditions, at index 0.
    pub(crate) fn from_matches<'a, M: IndexedMatch + 'a>(
        rules: impl Iterator<Item = (usize, &'a [M])> + Clone,
    ) -> Option<Self> {
        Self::compile(rules.map(|(rule, matchers)| (rule, matchers, &[][..])))
    }

    /// Indexes all rules of a policy by their matches and callers, in order; `None` if they are few.
    pub(crate) fn with_callers<'a, M: IndexedMatch + 'a>(
        rules: impl Iterator<Item = (&'a [M], &'a [PeerMatch])> + Clone,
    ) -> Option<Self> {
        Self::compile(
            rules.enumerate().map(|(rule, (matchers, callers))| (rule, matchers, callers)),
        )
    }

    fn compile<'a, M: IndexedMatch + 'a>(
        rules: impl Iterator<Item = (usize, &'a [M], &'a [PeerMatch])> + Clone,
    ) -> Option<Self> {
        let all_matches = || {
            rules.clone().flat_map(|(rule, matchers, callers)| {
                let positions = 0..matchers.len().max(1);
                positions.map(move |position| (rule, position, matchers.get(position), callers))
            })
        };
        let conditions_of = |matcher: Option<&M>, callers: &[PeerMatch]| {
            let mut conditions = matcher.map(M::index_conditions).unwrap_or_default();
            conditions.extend(caller_conditions(callers));
            conditions
        };
        let index = RuleIndex::build_if_many(all_matches().count(), || {
            all_matches().map(|(_, _, matcher, callers)| conditions_of(matcher, callers)).collect()
        })?;
        Some(Self {
            matches: all_matches()
                .map(|(rule, match_position, ..)| (rule, match_position))
                .collect(),
            index,
        })
    }

    /// Returns the subset of these rules, in order; `None` if their matches are few.
    fn select_rules(&self, rules: &[usize]) -> Option<RuleSubset> {
        let matches = |rule: &usize| {
            let first = self.matches.partition_point(|(matched_rule, _)| matched_rule < rule);
            let following = self.matches.get(first..).unwrap_or_default();
            let count =
                following.iter().take_while(|(matched_rule, _)| matched_rule == rule).count();
            first..first.saturating_add(count)
        };
        let selected: Box<[usize]> = rules.iter().flat_map(matches).collect();
        needs_index(selected.len())
            .then(|| RuleSubset::Many((selected.len() < self.matches.len()).then_some(selected)))
    }

    /// Returns the first rule with a match for which `is_match` is true, given the rule and the index of the
    /// match in it. Not inlined, so that a small number of rules does not pay for its code.
    #[inline(never)]
    pub(crate) fn first_match(
        &self,
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let is_match = |position: usize| {
            self.matches
                .get(position)
                .is_some_and(|(rule, match_position)| is_match(*rule, *match_position))
        };
        self.matches.get(self.index.first_match_by_keys(keys, is_match)?).map(|(rule, _)| *rule)
    }

    /// Returns the candidate rules in order, each once, a superset of the matching ones.
    #[inline(never)]
    pub(crate) fn candidates(&self, keys: LookupKeys<'_>) -> MatchingRules<'_> {
        MatchingRules { matches: &self.matches, positions: self.index.candidates(keys), last: None }
    }

    /// Returns the first of the candidate rules with a match for which `is_match` is true. `candidates` are
    /// positions of matches; `None` for all rules.
    #[inline(never)]
    pub(crate) fn first_match_among(
        &self,
        candidates: Option<&[usize]>,
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let is_match = |position: usize| {
            self.matches
                .get(position)
                .is_some_and(|(rule, match_position)| is_match(*rule, *match_position))
        };
        let first = match candidates {
            None => self.index.first_match_by_keys(keys, is_match),
            Some(candidates) => self.index.first_match_among(candidates, keys, is_match),
        };
        self.matches.get(first?).map(|(rule, _)| *rule)
    }
}

/// Returns the exact names that a caller must have to match any of these; empty for an empty list.
pub(crate) fn caller_conditions(callers: &[PeerMatch]) -> Vec<IndexCondition> {
    let names = |name: fn(&PeerMatch) -> &NamePattern| {
        let is_exact = !callers.is_empty() && callers.iter().all(|caller| name(caller).is_exact());
        is_exact.then(|| callers.iter().map(|caller| name(caller).as_str().into()).collect())
    };
    let namespaces =
        names(|caller| &caller.namespace).map(|names| (IndexedAttribute::Namespace, names));
    let accounts = names(|caller| &caller.account).map(|names| (IndexedAttribute::Account, names));
    accounts.into_iter().chain(namespaces).collect()
}

#[cfg(test)]
pub(crate) mod tests;
