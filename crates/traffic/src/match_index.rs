//! An index of the request matches of many rules. A rule has several matches; the index finds the first rule with a
//! matching one, without an evaluation of all rules. Access policies, ingress rules, rate limits and faults use it.

use leno_model::{NamePattern, PeerMatch};

use crate::rule_index::{
    IndexCondition, IndexedAttribute, LookupKeys, RuleIndex, RulePositions, needs_index,
};

/// A compiled match that has necessary conditions, by which it can be indexed.
pub(crate) trait IndexedMatch {
    /// Returns the necessary conditions. Their texts are normalized for a
    /// [`DenialMatcher`](crate::matcher::DenialMatcher).
    fn index_conditions(&self) -> Vec<IndexCondition>;
}

/// An index of the matches of rules, in the order of the rules.
#[derive(Debug)]
pub(crate) struct MatchIndex {
    /// The position of the rule of each match, and the position of the match in that rule; in the order of the rules.
    matches: Box<[(usize, usize)]>,
    /// The index of the matches by their conditions.
    index: Box<RuleIndex>,
}

/// A subset of the rules of an index or policy, in order.
#[derive(Debug, Clone)]
pub(crate) enum RuleSubset {
    /// The positions of a few rules, which are evaluated one by one.
    Few(Box<[usize]>),
    /// The positions of the rules' matches in the index; all matches of the index when absent.
    Many(Option<Box<[usize]>>),
}

impl Default for RuleSubset {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl RuleSubset {
    /// Creates the subset of the rules at these positions. It uses the index if the rules have enough matches for it.
    pub(crate) fn from_rules(index: Option<&MatchIndex>, rules: Box<[usize]>) -> Self {
        index.and_then(|index| index.select_rules(&rules)).unwrap_or(Self::Few(rules))
    }

    /// True if there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(rules) if rules.is_empty())
    }

    /// Returns the positions of the rules; a rule with several matches may occur several times. `index` must be the
    /// index that the subset was created with.
    pub(crate) fn rule_positions<'a>(
        &'a self,
        index: Option<&'a MatchIndex>,
    ) -> impl Iterator<Item = usize> + 'a {
        let matches = index.map_or(&[][..], |index| &index.matches);
        let (few_rules, positions, all_matches) = match self {
            Self::Few(rules) => (&**rules, &[][..], &[][..]),
            Self::Many(Some(positions)) => (&[][..], &**positions, &[][..]),
            Self::Many(None) => (&[][..], &[][..], matches),
        };
        let selected_matches =
            positions.iter().filter_map(|position| matches.get(*position)).chain(all_matches);
        few_rules.iter().copied().chain(selected_matches.map(|(rule, _)| *rule))
    }
}

/// An iterator over candidate rules, in order and without duplicates.
#[derive(Debug)]
pub(crate) struct IndexedCandidates<'a> {
    matches: &'a [(usize, usize)],
    positions: RulePositions<'a>,
    /// The last returned rule.
    last_rule: Option<usize>,
}

impl Iterator for IndexedCandidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let Self { matches, positions, last_rule } = self;
        let mut rules =
            positions.filter_map(|position| matches.get(position).map(|(rule, _)| *rule));
        rules.find(|rule| last_rule.replace(*rule) != Some(*rule))
    }
}

impl MatchIndex {
    /// Indexes these rules, which are in order; `None` if they have too few matches for an index (see [`needs_index`]).
    /// A rule without matches is indexed as a rule with one match without conditions.
    pub(crate) fn from_matches<'a, M: IndexedMatch + 'a>(
        rules: impl Iterator<Item = (usize, &'a [M])> + Clone,
    ) -> Option<Self> {
        Self::compile(rules.map(|(rule, matchers)| (rule, matchers, &[][..])))
    }

    /// Indexes all rules of a policy by their matches and callers; `None` as in [`Self::from_matches`].
    pub(crate) fn with_callers<'a, M: IndexedMatch + 'a>(
        rules: impl Iterator<Item = (&'a [M], &'a [PeerMatch])> + Clone,
    ) -> Option<Self> {
        Self::compile(
            rules.enumerate().map(|(rule, (matchers, callers))| (rule, matchers, callers)),
        )
    }

    /// Indexes the matches of these rules, each with its position, its matches and its callers.
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

    /// Returns the subset of these rules, which are in order; `None` if they have too few matches for an index.
    fn select_rules(&self, rules: &[usize]) -> Option<RuleSubset> {
        let match_positions = |rule: &usize| {
            let first_match = self.matches.partition_point(|(matched_rule, _)| matched_rule < rule);
            let later_matches = self.matches.get(first_match..).unwrap_or_default();
            let count =
                later_matches.iter().take_while(|(matched_rule, _)| matched_rule == rule).count();
            first_match..first_match.saturating_add(count)
        };
        let selected_positions: Box<[usize]> = rules.iter().flat_map(match_positions).collect();
        needs_index(selected_positions.len()).then(|| {
            RuleSubset::Many(
                (selected_positions.len() < self.matches.len()).then_some(selected_positions),
            )
        })
    }

    /// Returns the first rule with a match for which `is_match` is true; its arguments are the positions of the rule
    /// and of the match in the rule. Not inlined, to keep the code for small numbers of rules small.
    #[inline(never)]
    pub(crate) fn first_match(
        &self,
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let is_match_at = |position: usize| {
            self.matches
                .get(position)
                .is_some_and(|(rule, match_position)| is_match(*rule, *match_position))
        };
        self.matches.get(self.index.first_match_by_keys(keys, is_match_at)?).map(|(rule, _)| *rule)
    }

    /// Returns the candidate rules, in order and without duplicates: a superset of the matching rules.
    #[inline(never)]
    pub(crate) fn candidates(&self, keys: LookupKeys<'_>) -> IndexedCandidates<'_> {
        let positions = self.index.candidates(keys);
        IndexedCandidates { matches: &self.matches, positions, last_rule: None }
    }

    /// Returns the first candidate rule with a match for which `is_match` is true. `candidates` are positions of
    /// matches in the index; all rules are candidates when absent.
    #[inline(never)]
    pub(crate) fn first_match_among(
        &self,
        candidates: Option<&[usize]>,
        keys: LookupKeys<'_>,
        is_match: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let is_match_at = |position: usize| {
            self.matches
                .get(position)
                .is_some_and(|(rule, match_position)| is_match(*rule, *match_position))
        };
        let first = match candidates {
            None => self.index.first_match_by_keys(keys, is_match_at),
            Some(candidates) => self.index.first_match_among(candidates, keys, is_match_at),
        };
        self.matches.get(first?).map(|(rule, _)| *rule)
    }
}

/// Returns the conditions on the namespace and name of a caller that any of these matches implies; none for an empty
/// list.
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
