//! Tag rules compiled for one caller, without the instances of their sets.

use std::collections::BTreeMap;

use leno_model::{
    Caller, CallerRule, FallbackPolicy, STEMS_MAX, Sticky, TagDialect, TagRule, TagRules, TagSet,
    TagSplit, TagTarget, TagValue,
};

use super::demands::exact_demands;
use super::matcher::{TagMatcher, cookie_value, is_for};
use super::sets::Set;
use super::share::{Chance, Draw, Shares};
use crate::hash::hash;
use crate::lookup::Lookup;
use crate::pattern::{BadPattern, Pattern, PatternField};
use crate::request::{RequestView, header_value};

/// The rules for one caller.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) rules: Box<[Rule]>,
    lookup: Lookup,
    stems: Box<[Pattern]>,
    /// The sets for requests without a matching rule, by the combination of matching stems.
    unmatched: Box<[Box<[SetId]>]>,
    pub(super) by_caller: Box<[Preference]>,
    /// All sets of possible decisions; the first is [`Set::Every`].
    pub(super) sets: Box<[Set]>,
    /// True if decisions depend on the request.
    by_request: bool,
}

/// The index of a set.
pub(super) type SetId = usize;

/// All instances.
pub(super) const EVERY: SetId = 0;

/// A compiled [`TagRule`].
#[derive(Debug)]
pub(super) struct Rule {
    /// Its index among all rules, including those for other callers.
    pub(super) index: usize,
    matcher: TagMatcher,
    stem: Option<usize>,
    pub(super) split: Split,
    pub(super) fallback: Option<Split>,
    pub(super) fallback_policy: Box<[SetId]>,
    sticky: Option<(Sticky, u64)>,
}

/// A compiled [`TagSplit`].
#[derive(Debug)]
pub(super) struct Split {
    shares: Shares,
    targets: Box<[SetId]>,
    /// The target that is used only if the fallback has no instances.
    pub(super) spilling: Option<usize>,
}

/// A compiled [`CallerRule`].
#[derive(Debug)]
pub(super) struct Preference {
    /// Its index among all rules, including those for other callers.
    pub(super) index: usize,
    pub(super) shares: Shares,
    pub(super) sets: Box<[Set]>,
    pub(super) min_percent: u32,
    pub(super) min_total: u32,
    pub(super) goes_on: bool,
    /// True if other instances may take requests while none of the preferred ones is healthy.
    pub(super) yields: bool,
}

impl Compiled {
    pub(super) fn from_rules(rules: &TagRules, caller: &Caller) -> Result<Self, BadPattern> {
        let mut for_caller = Vec::new();
        for (index, rule) in rules.rules.iter().enumerate() {
            if is_for(&rule.from, caller)
                .map_err(|bad| bad.with_object(rule.origin.object_key()))?
            {
                for_caller.push((index, rule));
            }
        }
        let mut sets = Sets::default();
        let stems = Stems::from_rules(&for_caller)?;
        let unmatched =
            fallback_sets(&rules.fallback_policy, &for_caller, &stems, caller, &mut sets);
        let named = for_caller.iter().flat_map(|(_, rule)| named_sets(rule, caller));
        let outside: Vec<Set> = named.collect();
        let mut compiled = Vec::new();
        for (index, rule) in &for_caller {
            let stem = stems.stem_index(rule);
            let meaning = Meaning { caller, outside: &outside };
            let rule = Rule::from_rule(*index, rule, stem, &meaning, &mut sets)
                .map_err(|bad| bad.with_object(rule.origin.object_key()))?;
            compiled.push(rule);
        }
        let all: Vec<_> = compiled.iter().map(|rule| exact_demands(&rule.matcher)).collect();
        Ok(Self {
            lookup: Lookup::from_rules(&all),
            rules: compiled.into(),
            stems: stems.patterns.into(),
            unmatched,
            by_caller: compile_preferences(&rules.by_caller, caller)?,
            sets: sets.into_boxed(),
            by_request: !rules.rules.is_empty(),
        })
    }

    /// Returns the rule for a request.
    pub(super) fn rule_for(&self, request: &RequestView<'_>) -> Option<&Rule> {
        let mask = self.stem_mask(request);
        let fits = |index: usize| {
            self.rules.get(index).is_some_and(|rule| {
                rule.stem.is_none_or(|stem| mask & (1 << stem) != 0)
                    && rule.matcher.matches(request)
            })
        };
        self.lookup.first_fitting(request, fits).and_then(|index| self.rules.get(index))
    }

    /// Returns the sets for a request without a matching rule, in order.
    pub(super) fn unmatched_sets(&self, request: &RequestView<'_>) -> &[SetId] {
        if !self.by_request {
            return &[EVERY];
        }
        self.unmatched.get(self.stem_mask(request)).map_or(&[], |sets| sets)
    }

    fn stem_mask(&self, request: &RequestView<'_>) -> usize {
        if self.stems.is_empty() {
            return 0;
        }
        let stem = request.path.rsplit_once('.').map_or("", |(stem, _)| stem);
        let fits = self.stems.iter().enumerate().filter(|(_, pattern)| pattern.matches(stem));
        fits.fold(0, |mask, (place, _)| mask | (1 << place))
    }
}

impl Rule {
    fn from_rule(
        index: usize,
        rule: &TagRule,
        stem: Option<usize>,
        meaning: &Meaning<'_>,
        sets: &mut Sets,
    ) -> Result<Self, BadPattern> {
        let split = Split::from_split(&rule.split, Rest::Spills, meaning, sets);
        let fallback = (!rule.fallback.targets.is_empty())
            .then(|| Split::from_split(&rule.fallback, Rest::Nobody, meaning, sets));
        Ok(Self {
            index,
            matcher: TagMatcher::compile(&rule.matches)?,
            stem,
            split,
            fallback,
            fallback_policy: meaning.resolve_fallbacks(&rule.fallback_policy, sets),
            sticky: rule.sticky.clone().map(|sticky| (sticky, rule_salt(rule))),
        })
    }

    /// Returns the draw for the request's client, if the rules are sticky and the value is present.
    pub(super) fn sticky_point(&self, request: &RequestView<'_>) -> Option<u64> {
        let (sticky, salt) = self.sticky.as_ref()?;
        let value = match sticky {
            Sticky::Header(name) => header_value(request, name, leno_model::Repeated::First),
            Sticky::Cookie(name) => cookie_value(request, name),
        };
        Some(hash(*salt, &value?))
    }
}

/// Returns a salt that is the same for all replicas of a rule, and differs between rules.
fn rule_salt(rule: &TagRule) -> u64 {
    hash(u64::from(rule.origin.index), &rule.origin.name.to_string())
}

/// The rest of 100 percent.
#[derive(Clone, Copy)]
enum Rest {
    /// Goes to the fallback, or else outside of the targets.
    Spills,
    /// Goes nowhere.
    Nobody,
}

impl Split {
    fn from_split(split: &TagSplit, rest: Rest, meaning: &Meaning<'_>, sets: &mut Sets) -> Self {
        let (shares, leaves) = Shares::from_split(split);
        let targets = split.targets.iter();
        let mut targets: Vec<SetId> =
            targets.map(|target| sets.set_id(meaning.resolve_set(&target.set))).collect();
        let mut spilling = None;
        if leaves && matches!(rest, Rest::Spills) {
            spilling = Some(targets.len());
            let outside = Set::excluding(Set::from_targets(&split.targets, meaning.caller));
            targets.push(sets.set_id(outside));
        }
        Self { shares, targets: targets.into(), spilling }
    }

    /// Draws one of the targets; `None` for a rest that goes nowhere.
    pub(super) fn draw_target(
        &self,
        draw: Draw,
        sticky: Option<u64>,
        chance: &mut impl Chance,
    ) -> Option<(usize, SetId)> {
        let place = match sticky.and_then(|point| point.checked_rem(self.shares.total_points())) {
            Some(point) => self.shares.target_at(point),
            None => self.shares.draw_target(draw, chance),
        };
        self.targets.get(place).map(|set| (place, *set))
    }
}

/// The context in which the sets of a rule are resolved for one caller.
struct Meaning<'a> {
    caller: &'a Caller,
    /// The sets that the default set excludes.
    outside: &'a [Set],
}

impl Meaning<'_> {
    fn resolve_set(&self, set: &TagSet) -> Set {
        match Set::resolve(set, self.caller, &[]) {
            Set::Outside(_) => Set::excluding(self.outside.to_vec()),
            set => set,
        }
    }

    fn resolve_fallbacks(
        &self,
        fallback_policy: &[FallbackPolicy],
        sets: &mut Sets,
    ) -> Box<[SetId]> {
        let set = |fallback_policy: &FallbackPolicy| match fallback_policy {
            FallbackPolicy::Any => EVERY,
            FallbackPolicy::Default => sets.set_id(Set::excluding(self.outside.to_vec())),
        };
        fallback_policy.iter().map(set).collect()
    }
}

/// All sets so far, each once.
struct Sets {
    places: BTreeMap<Set, SetId>,
}

impl Default for Sets {
    fn default() -> Self {
        Self { places: BTreeMap::from([(Set::Every, EVERY)]) }
    }
}

impl Sets {
    fn set_id(&mut self, set: Set) -> SetId {
        let next = self.places.len();
        *self.places.entry(set).or_insert(next)
    }

    fn into_boxed(self) -> Box<[Set]> {
        let mut sets: Vec<(Set, SetId)> = self.places.into_iter().collect();
        sets.sort_by_key(|(_, place)| *place);
        sets.into_iter().map(|(set, _)| set).collect()
    }
}

/// The distinct stems of the rules.
struct Stems<'a> {
    texts: Vec<&'a str>,
    patterns: Vec<Pattern>,
}

impl<'a> Stems<'a> {
    fn from_rules(rules: &[(usize, &'a TagRule)]) -> Result<Self, BadPattern> {
        let mut stems = Self { texts: Vec::new(), patterns: Vec::new() };
        for (_, rule) in rules {
            let Some(text) = rule.matches.stem.as_deref() else { continue };
            // The configuration readers reject more: each one doubles the number of lists.
            if stems.texts.contains(&text) || stems.texts.len() == STEMS_MAX {
                continue;
            }
            let pattern = Pattern::compile(text).map_err(|cause| {
                BadPattern::new(text, PatternField::Path, cause)
                    .with_object(rule.origin.object_key())
            })?;
            stems.texts.push(text);
            stems.patterns.push(pattern);
        }
        Ok(stems)
    }

    fn stem_index(&self, rule: &TagRule) -> Option<usize> {
        let text = rule.matches.stem.as_deref()?;
        self.texts.iter().position(|known| *known == text)
    }
}

fn named_sets(rule: &TagRule, caller: &Caller) -> Vec<Set> {
    Set::from_targets(&rule.split.targets, caller)
}

/// Returns the sets for requests without a matching rule: a list for each combination of stems.
fn fallback_sets(
    fallback_policy: &[FallbackPolicy],
    rules: &[(usize, &TagRule)],
    stems: &Stems<'_>,
    caller: &Caller,
    sets: &mut Sets,
) -> Box<[Box<[SetId]>]> {
    let lists = (0..1_usize << stems.texts.len()).map(|mask| {
        let open =
            |rule: &TagRule| stems.stem_index(rule).is_none_or(|place| mask & (1 << place) != 0);
        let open = rules.iter().filter(|(_, rule)| open(rule));
        let outside: Vec<Set> = open.flat_map(|(_, rule)| named_sets(rule, caller)).collect();
        Meaning { caller, outside: &outside }.resolve_fallbacks(fallback_policy, sets)
    });
    lists.collect()
}

fn compile_preferences(
    rules: &[CallerRule],
    caller: &Caller,
) -> Result<Box<[Preference]>, BadPattern> {
    let mut preferences = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if is_for(&rule.from, caller).map_err(|bad| bad.with_object(rule.origin.object_key()))? {
            preferences.push(Preference::from_rule(index, rule, caller));
        }
    }
    Ok(preferences.into())
}

impl Preference {
    fn from_rule(index: usize, rule: &CallerRule, caller: &Caller) -> Self {
        let targets = rule.split.targets.iter().filter(|target| has_meaning(target, caller));
        let split = TagSplit { targets: targets.cloned().collect(), weights: rule.split.weights };
        let (shares, leaves) = Shares::from_split(&split);
        let targets = split.targets.iter();
        let mut sets: Vec<Set> =
            targets.map(|target| Set::resolve(&target.set, caller, &[])).collect();
        if leaves {
            sets.push(Set::excluding(Set::from_targets(&split.targets, caller)));
        }
        Self {
            index,
            shares,
            sets: sets.into(),
            min_percent: rule.min_percent,
            min_total: rule.min_total,
            goes_on: rule.goes_on,
            yields: rule.origin.dialect != TagDialect::Sermant,
        }
    }
}

/// A target with a caller parameter is ignored if the caller does not have the parameter.
fn has_meaning(target: &TagTarget, caller: &Caller) -> bool {
    let (TagSet::All(tags) | TagSet::Any(tags)) = &target.set else {
        return true;
    };
    caller.has_parameters
        || tags.iter().all(|(name, value)| match value {
            TagValue::Is(_) => true,
            TagValue::Callers => matches!(name.as_str(), "version" | "zone"),
        })
}
