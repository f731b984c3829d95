//! Index of the matches of many rules.

use leno_model::{NamePattern, PeerMatch};

use crate::rule_index::{
    IndexCondition, IndexedAttribute, LookupKeys, RuleIndex, RulePositions, are_many,
};

/// A compiled match with its necessary conditions.
pub(crate) trait IndexedMatch {
    /// Returns the texts, one of which every matching request has. Those of a
    /// [`DenialMatcher`](crate::matcher::DenialMatcher) are normalized.
    fn demands(&self) -> Vec<IndexCondition>;
}

/// The matches of rules, in the order of the rules.
#[derive(Debug)]
pub(crate) struct MatchIndex {
    /// For each match, its rule, and its index in the rule.
    matches: Box<[(usize, usize)]>,
    lookup: Box<RuleIndex>,
}

/// Some of the rules, in order.
#[derive(Debug, Clone)]
pub(crate) enum RuleSubset {
    /// Rules that are evaluated one by one.
    Few(Box<[usize]>),
    /// Rules with an index: the positions of their matches among those of all rules; absent for all of them.
    Many(Option<Box<[usize]>>),
}

impl Default for RuleSubset {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl RuleSubset {
    /// Selects these rules, with the index of `many`, if they are many.
    pub(crate) fn from_rules(many: Option<&MatchIndex>, rules: Box<[usize]>) -> Self {
        many.and_then(|many| many.select_rules(&rules)).unwrap_or(Self::Few(rules))
    }

    /// True if it has no rule.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(rules) if rules.is_empty())
    }

    /// Returns its rules, once per match.
    pub(crate) fn matching_rules<'a>(
        &'a self,
        many: Option<&'a MatchIndex>,
    ) -> impl Iterator<Item = usize> + 'a {
        let matches = many.map_or(&[][..], |many| &many.matches);
        let (few, places, all) = match self {
            Self::Few(rules) => (&**rules, &[][..], &[][..]),
            Self::Many(Some(places)) => (&[][..], &**places, &[][..]),
            Self::Many(None) => (&[][..], &[][..], matches),
        };
        let looked_up = places.iter().filter_map(|place| matches.get(*place)).chain(all);
        few.iter().copied().chain(looked_up.map(|(rule, _)| *rule))
    }
}

/// Candidate rules in order, each once.
#[derive(Debug)]
pub(crate) struct MatchingRules<'a> {
    matches: &'a [(usize, usize)],
    places: RulePositions<'a>,
    last: Option<usize>,
}

impl Iterator for MatchingRules<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let Self { matches, places, last } = self;
        let mut rules = places.filter_map(|at| matches.get(at).map(|(rule, _)| *rule));
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

    /// Does the same for all rules of a policy that have callers: the matches and callers of each.
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
        let all = || {
            rules.clone().flat_map(|(rule, matchers, callers)| {
                let places = 0..matchers.len().max(1);
                places.map(move |place| (rule, place, matchers.get(place), callers))
            })
        };
        let demands = |matcher: Option<&M>, callers: &[PeerMatch]| {
            let mut demands = matcher.map(M::demands).unwrap_or_default();
            demands.extend(demands_of_callers(callers));
            demands
        };
        let lookup = RuleIndex::of_many(all().count(), || {
            all().map(|(_, _, matcher, callers)| demands(matcher, callers)).collect()
        })?;
        Some(Self { matches: all().map(|(rule, place, ..)| (rule, place)).collect(), lookup })
    }

    /// Selects some of the rules, in order; `None` if they are few.
    fn select_rules(&self, rules: &[usize]) -> Option<RuleSubset> {
        let matches = |rule: &usize| {
            let first = self.matches.partition_point(|(it, _)| it < rule);
            let after = self.matches.get(first..).unwrap_or_default();
            let count = after.iter().take_while(|(it, _)| it == rule).count();
            first..first.saturating_add(count)
        };
        let part: Box<[usize]> = rules.iter().flat_map(matches).collect();
        are_many(part.len())
            .then(|| RuleSubset::Many((part.len() < self.matches.len()).then_some(part)))
    }

    /// Returns the first rule with a match that `fits`, which gets the rule and the index of the match.
    /// Separate, so that a small number of rules does not pay for it; so is the next function.
    #[inline(never)]
    pub(crate) fn first_fitting(
        &self,
        sought: LookupKeys<'_>,
        fits: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let fits =
            |at: usize| self.matches.get(at).is_some_and(|(rule, place)| fits(*rule, *place));
        self.matches.get(self.lookup.first_sought(sought, fits)?).map(|(rule, _)| *rule)
    }

    /// Returns the candidate rules in order, each once, a superset of the matching ones.
    #[inline(never)]
    pub(crate) fn candidates(&self, sought: LookupKeys<'_>) -> MatchingRules<'_> {
        MatchingRules { matches: &self.matches, places: self.lookup.candidates(sought), last: None }
    }

    /// Returns the first rule with a match that fits, in a part or among all.
    #[inline(never)]
    pub(crate) fn first_of(
        &self,
        part: Option<&[usize]>,
        sought: LookupKeys<'_>,
        fits: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let fits =
            |at: usize| self.matches.get(at).is_some_and(|(rule, place)| fits(*rule, *place));
        let first = match part {
            None => self.lookup.first_sought(sought, fits),
            Some(part) => self.lookup.first_of(part, sought, fits),
        };
        self.matches.get(first?).map(|(rule, _)| *rule)
    }
}

/// Returns the conditions for callers that match any of these; none for an empty list.
pub(crate) fn demands_of_callers(callers: &[PeerMatch]) -> Vec<IndexCondition> {
    let names = |name: fn(&PeerMatch) -> &NamePattern| {
        let are_exact = !callers.is_empty() && callers.iter().all(|it| name(it).is_exact());
        are_exact.then(|| callers.iter().map(|it| name(it).as_str().into()).collect())
    };
    let namespaces = names(|it| &it.namespace).map(|names| (IndexedAttribute::Namespace, names));
    let accounts = names(|it| &it.account).map(|names| (IndexedAttribute::Account, names));
    accounts.into_iter().chain(namespaces).collect()
}

#[cfg(test)]
pub(crate) mod tests;
