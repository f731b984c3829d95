//! Tag rules compiled for one caller, without the instances of their sets.

use std::collections::BTreeMap;

use leno_model::{
    CallerAttributes, CallerRule, FallbackPolicy, STEMS_MAX, StickyKey, TagDialect, TagRule,
    TagRules, TagSet, TagSplit, TagTarget, TagValue,
};

use super::conditions::exact_demands;
use super::instance_sets::InstanceSet;
use super::matcher::{TagMatcher, cookie_value, is_for};
use super::weighted_targets::{DrawPurpose, RandomChoice, WeightedTargets};
use crate::hash::hash;
use crate::pattern::{InvalidPattern, Pattern, PatternField};
use crate::request::{RequestView, header_value};
use crate::rule_index::RuleIndex;

/// The rules for one caller.
#[derive(Debug)]
pub(super) struct RulesForCaller {
    pub(super) rules: Box<[CompiledTagRule]>,
    lookup: RuleIndex,
    stems: Box<[Pattern]>,
    /// The sets for requests without a matching rule, by the combination of matching stems.
    unmatched: Box<[Box<[SetId]>]>,
    pub(super) by_caller: Box<[CompiledCallerRule]>,
    /// All sets of possible decisions; the first is [`InstanceSet::Every`].
    pub(super) sets: Box<[InstanceSet]>,
    /// True if decisions depend on the request.
    by_request: bool,
}

/// The index of a set.
pub(super) type SetId = usize;

/// All instances.
pub(super) const EVERY: SetId = 0;

/// A compiled [`TagRule`].
#[derive(Debug)]
pub(super) struct CompiledTagRule {
    /// Its index among all rules, including those for other callers.
    pub(super) index: usize,
    matcher: TagMatcher,
    stem: Option<usize>,
    pub(super) split: CompiledTagSplit,
    pub(super) fallback: Option<CompiledTagSplit>,
    pub(super) fallback_policy: Box<[SetId]>,
    sticky: Option<(StickyKey, u64)>,
}

/// A compiled [`TagSplit`].
#[derive(Debug)]
pub(super) struct CompiledTagSplit {
    shares: WeightedTargets,
    targets: Box<[SetId]>,
    /// The target that is used only if the fallback has no instances.
    pub(super) spilling: Option<usize>,
}

/// A compiled [`CallerRule`].
#[derive(Debug)]
pub(super) struct CompiledCallerRule {
    /// Its index among all rules, including those for other callers.
    pub(super) index: usize,
    pub(super) shares: WeightedTargets,
    pub(super) sets: Box<[InstanceSet]>,
    pub(super) min_percent: u32,
    pub(super) min_total: u32,
    pub(super) goes_on: bool,
    /// True if other instances may take requests while none of the preferred ones is healthy.
    pub(super) yields: bool,
}

impl RulesForCaller {
    pub(super) fn from_rules(
        rules: &TagRules,
        caller: &CallerAttributes,
    ) -> Result<Self, InvalidPattern> {
        let mut for_caller = Vec::new();
        for (index, rule) in rules.rules.iter().enumerate() {
            if is_for(&rule.from, caller)
                .map_err(|bad| bad.with_object(rule.origin.object_key()))?
            {
                for_caller.push((index, rule));
            }
        }
        let mut sets = InstanceSets::default();
        let stems = StemIndex::from_rules(&for_caller)?;
        let unmatched =
            fallback_sets(&rules.fallback_policy, &for_caller, &stems, caller, &mut sets);
        let named = for_caller.iter().flat_map(|(_, rule)| named_sets(rule, caller));
        let outside: Vec<InstanceSet> = named.collect();
        let mut compiled = Vec::new();
        for (index, rule) in &for_caller {
            let stem = stems.stem_index(rule);
            let meaning = ResolveContext { caller, outside: &outside };
            let rule = CompiledTagRule::from_rule(*index, rule, stem, &meaning, &mut sets)
                .map_err(|bad| bad.with_object(rule.origin.object_key()))?;
            compiled.push(rule);
        }
        let all: Vec<_> = compiled.iter().map(|rule| exact_demands(&rule.matcher)).collect();
        Ok(Self {
            lookup: RuleIndex::from_rules(&all),
            rules: compiled.into(),
            stems: stems.patterns.into(),
            unmatched,
            by_caller: compile_preferences(&rules.by_caller, caller)?,
            sets: sets.into_boxed(),
            by_request: !rules.rules.is_empty(),
        })
    }

    /// Returns the rule for a request.
    pub(super) fn rule_for(&self, request: &RequestView<'_>) -> Option<&CompiledTagRule> {
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

impl CompiledTagRule {
    fn from_rule(
        index: usize,
        rule: &TagRule,
        stem: Option<usize>,
        meaning: &ResolveContext<'_>,
        sets: &mut InstanceSets,
    ) -> Result<Self, InvalidPattern> {
        let split = CompiledTagSplit::from_split(&rule.split, Remainder::Spill, meaning, sets);
        let fallback = (!rule.fallback.targets.is_empty()).then(|| {
            CompiledTagSplit::from_split(&rule.fallback, Remainder::NoTarget, meaning, sets)
        });
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
            StickyKey::Header(name) => {
                header_value(request, name, leno_model::RepeatedHeader::First)
            }
            StickyKey::Cookie(name) => cookie_value(request, name),
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
enum Remainder {
    /// Goes to the fallback, or else outside of the targets.
    Spill,
    /// Goes nowhere.
    NoTarget,
}

impl CompiledTagSplit {
    fn from_split(
        split: &TagSplit,
        rest: Remainder,
        meaning: &ResolveContext<'_>,
        sets: &mut InstanceSets,
    ) -> Self {
        let (shares, leaves) = WeightedTargets::from_split(split);
        let targets = split.targets.iter();
        let mut targets: Vec<SetId> =
            targets.map(|target| sets.set_id(meaning.resolve_set(&target.set))).collect();
        let mut spilling = None;
        if leaves && matches!(rest, Remainder::Spill) {
            spilling = Some(targets.len());
            let outside =
                InstanceSet::excluding(InstanceSet::from_targets(&split.targets, meaning.caller));
            targets.push(sets.set_id(outside));
        }
        Self { shares, targets: targets.into(), spilling }
    }

    /// Draws one of the targets; `None` for a rest that goes nowhere.
    pub(super) fn draw_target(
        &self,
        draw: DrawPurpose,
        sticky: Option<u64>,
        chance: &mut impl RandomChoice,
    ) -> Option<(usize, SetId)> {
        let place = match sticky.and_then(|point| point.checked_rem(self.shares.total_points())) {
            Some(point) => self.shares.target_at(point),
            None => self.shares.draw_target(draw, chance),
        };
        self.targets.get(place).map(|set| (place, *set))
    }
}

/// The context in which the sets of a rule are resolved for one caller.
struct ResolveContext<'a> {
    caller: &'a CallerAttributes,
    /// The sets that the default set excludes.
    outside: &'a [InstanceSet],
}

impl ResolveContext<'_> {
    fn resolve_set(&self, set: &TagSet) -> InstanceSet {
        match InstanceSet::resolve(set, self.caller, &[]) {
            InstanceSet::Outside(_) => InstanceSet::excluding(self.outside.to_vec()),
            set => set,
        }
    }

    fn resolve_fallbacks(
        &self,
        fallback_policy: &[FallbackPolicy],
        sets: &mut InstanceSets,
    ) -> Box<[SetId]> {
        let set = |fallback_policy: &FallbackPolicy| match fallback_policy {
            FallbackPolicy::Any => EVERY,
            FallbackPolicy::Default => sets.set_id(InstanceSet::excluding(self.outside.to_vec())),
        };
        fallback_policy.iter().map(set).collect()
    }
}

/// All sets so far, each once.
struct InstanceSets {
    places: BTreeMap<InstanceSet, SetId>,
}

impl Default for InstanceSets {
    fn default() -> Self {
        Self { places: BTreeMap::from([(InstanceSet::Every, EVERY)]) }
    }
}

impl InstanceSets {
    fn set_id(&mut self, set: InstanceSet) -> SetId {
        let next = self.places.len();
        *self.places.entry(set).or_insert(next)
    }

    fn into_boxed(self) -> Box<[InstanceSet]> {
        let mut sets: Vec<(InstanceSet, SetId)> = self.places.into_iter().collect();
        sets.sort_by_key(|(_, place)| *place);
        sets.into_iter().map(|(set, _)| set).collect()
    }
}

/// The distinct stems of the rules.
struct StemIndex<'a> {
    texts: Vec<&'a str>,
    patterns: Vec<Pattern>,
}

impl<'a> StemIndex<'a> {
    fn from_rules(rules: &[(usize, &'a TagRule)]) -> Result<Self, InvalidPattern> {
        let mut stems = Self { texts: Vec::new(), patterns: Vec::new() };
        for (_, rule) in rules {
            let Some(text) = rule.matches.stem.as_deref() else { continue };
            // The configuration readers reject more: each one doubles the number of lists.
            if stems.texts.contains(&text) || stems.texts.len() == STEMS_MAX {
                continue;
            }
            let pattern = Pattern::compile(text).map_err(|cause| {
                InvalidPattern::new(text, PatternField::Path, cause)
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

fn named_sets(rule: &TagRule, caller: &CallerAttributes) -> Vec<InstanceSet> {
    InstanceSet::from_targets(&rule.split.targets, caller)
}

/// Returns the sets for requests without a matching rule: a list for each combination of stems.
fn fallback_sets(
    fallback_policy: &[FallbackPolicy],
    rules: &[(usize, &TagRule)],
    stems: &StemIndex<'_>,
    caller: &CallerAttributes,
    sets: &mut InstanceSets,
) -> Box<[Box<[SetId]>]> {
    let lists = (0..1_usize << stems.texts.len()).map(|mask| {
        let open =
            |rule: &TagRule| stems.stem_index(rule).is_none_or(|place| mask & (1 << place) != 0);
        let open = rules.iter().filter(|(_, rule)| open(rule));
        let outside: Vec<InstanceSet> =
            open.flat_map(|(_, rule)| named_sets(rule, caller)).collect();
        ResolveContext { caller, outside: &outside }.resolve_fallbacks(fallback_policy, sets)
    });
    lists.collect()
}

fn compile_preferences(
    rules: &[CallerRule],
    caller: &CallerAttributes,
) -> Result<Box<[CompiledCallerRule]>, InvalidPattern> {
    let mut preferences = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if is_for(&rule.from, caller).map_err(|bad| bad.with_object(rule.origin.object_key()))? {
            preferences.push(CompiledCallerRule::from_rule(index, rule, caller));
        }
    }
    Ok(preferences.into())
}

impl CompiledCallerRule {
    fn from_rule(index: usize, rule: &CallerRule, caller: &CallerAttributes) -> Self {
        let targets = rule.split.targets.iter().filter(|target| has_meaning(target, caller));
        let split = TagSplit { targets: targets.cloned().collect(), weights: rule.split.weights };
        let (shares, leaves) = WeightedTargets::from_split(&split);
        let targets = split.targets.iter();
        let mut sets: Vec<InstanceSet> =
            targets.map(|target| InstanceSet::resolve(&target.set, caller, &[])).collect();
        if leaves {
            sets.push(InstanceSet::excluding(InstanceSet::from_targets(&split.targets, caller)));
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
fn has_meaning(target: &TagTarget, caller: &CallerAttributes) -> bool {
    let (TagSet::All(tags) | TagSet::Any(tags)) = &target.set else {
        return true;
    };
    caller.has_parameters
        || tags.iter().all(|(name, value)| match value {
            TagValue::Is(_) => true,
            TagValue::Callers => matches!(name.as_str(), "version" | "zone"),
        })
}
