//! Compiles tag rules for one caller: the rules that apply to the caller, and the sets of instances that the rules
//! select. The members of the sets are computed by the parent module.

use std::collections::BTreeMap;

use leno_model::{
    CallerAttributes, CallerRule, FallbackPolicy, MAX_STEMS, StickyKey, TagDialect, TagRule,
    TagRules, TagSet, TagSplit, TagTarget, TagValue,
};

use super::conditions::exact_conditions;
use super::instance_sets::InstanceSet;
use super::matcher::{TagMatcher, applies_to_caller, cookie_value};
use super::weighted_targets::{ChoicePurpose, RandomChoice, WeightedTargets};
use crate::hash::hash;
use crate::pattern::{InvalidPattern, Pattern, PatternField};
use crate::request::{RequestView, header_value};
use crate::rule_index::RuleIndex;

/// The tag rules that apply to one caller.
#[derive(Debug)]
pub(super) struct RulesForCaller {
    /// The rules that match requests, in order of precedence.
    pub(super) rules: Box<[CompiledTagRule]>,
    /// The index of `rules`.
    index: RuleIndex,
    /// The distinct stem patterns of the rules. The stem of a path is the text before its last dot, such as `/report`
    /// for `/report.pdf`.
    stem_patterns: Box<[Pattern]>,
    /// The sets for requests without a matching rule, in order of preference, for each mask of matching stem patterns
    /// (see [`RulesForCaller::stem_mask`]).
    sets_without_rule: Box<[Box<[SetId]>]>,
    /// The rules that match the caller, in order of preference.
    pub(super) caller_rules: Box<[CompiledCallerRule]>,
    /// All sets that decisions may select; the first is [`InstanceSet::AllInstances`].
    pub(super) sets: Box<[InstanceSet]>,
    /// True if decisions depend on the request.
    depends_on_request: bool,
}

/// The ID of a set: its index in [`RulesForCaller::sets`].
pub(super) type SetId = usize;

/// The ID of the set of all instances.
pub(super) const ALL_INSTANCES: SetId = 0;

/// A compiled [`TagRule`].
#[derive(Debug)]
pub(super) struct CompiledTagRule {
    /// The index of the rule among all rules, including those for other callers.
    pub(super) index: usize,
    matcher: TagMatcher,
    /// The index of the rule's stem pattern in [`RulesForCaller::stem_patterns`], if any.
    stem_index: Option<usize>,
    /// The targets of the rule.
    pub(super) split: CompiledTagSplit,
    /// The targets that are used if the selected target of `split` has no instances, if any.
    pub(super) fallback_split: Option<CompiledTagSplit>,
    /// The sets that are used, in order of preference, if the targets of both splits have no instances.
    pub(super) fallback_sets: Box<[SetId]>,
    /// The key that assigns a client to a target, and the salt of its hash.
    sticky_key: Option<(StickyKey, u64)>,
}

/// A compiled [`TagSplit`].
#[derive(Debug)]
pub(super) struct CompiledTagSplit {
    /// The weights of the targets.
    weights: WeightedTargets,
    /// The set of each target.
    targets: Box<[SetId]>,
    /// The index of the target for the remaining percentage, which is used only if the fallback has no instances.
    pub(super) remainder_target: Option<usize>,
}

/// A compiled [`CallerRule`].
#[derive(Debug)]
pub(super) struct CompiledCallerRule {
    /// The index of the rule among all rules, including those for other callers.
    pub(super) index: usize,
    /// The weights of the targets.
    pub(super) weights: WeightedTargets,
    /// The preferred instances of each target.
    pub(super) sets: Box<[InstanceSet]>,
    /// The minimum share of preferred instances, in percent. With a smaller share, all instances are used.
    pub(super) min_percent: u32,
    /// The minimum total number of instances for `min_percent`. With fewer instances, `min_percent` is ignored.
    pub(super) min_total: u32,
    /// True if the next rule is evaluated when this rule selects all instances.
    pub(super) continues_to_next: bool,
    /// True if other instances receive the requests when no preferred instance is healthy. False for Sermant's rules,
    /// because Sermant has no such fallback.
    pub(super) has_fallback: bool,
}

impl RulesForCaller {
    /// Compiles the rules that apply to a caller.
    pub(super) fn from_rules(
        rules: &TagRules,
        caller: &CallerAttributes,
    ) -> Result<Self, InvalidPattern> {
        let mut applicable_rules = Vec::new();
        for (index, rule) in rules.rules.iter().enumerate() {
            if applies_to_caller(&rule.from, caller)
                .map_err(|error| error.with_object(rule.origin.object_key()))?
            {
                applicable_rules.push((index, rule));
            }
        }
        let mut sets = InstanceSets::default();
        let stem_patterns = StemPatterns::from_rules(&applicable_rules)?;
        let sets_without_rule = resolve_sets_without_rule(
            &rules.fallback_policy,
            &applicable_rules,
            &stem_patterns,
            caller,
            &mut sets,
        );
        let excluded_sets: Vec<InstanceSet> =
            applicable_rules.iter().flat_map(|(_, rule)| sets_by_tags(rule, caller)).collect();
        let mut compiled_rules = Vec::new();
        for (index, rule) in &applicable_rules {
            let stem_index = stem_patterns.index_of(rule);
            let context = ResolveContext { caller, excluded_sets: &excluded_sets };
            let rule = CompiledTagRule::from_rule(*index, rule, stem_index, &context, &mut sets)
                .map_err(|error| error.with_object(rule.origin.object_key()))?;
            compiled_rules.push(rule);
        }
        let conditions: Vec<_> =
            compiled_rules.iter().map(|rule| exact_conditions(&rule.matcher)).collect();
        Ok(Self {
            index: RuleIndex::from_rules(&conditions),
            rules: compiled_rules.into(),
            stem_patterns: stem_patterns.patterns.into(),
            sets_without_rule,
            caller_rules: compile_caller_rules(&rules.caller_rules, caller)?,
            sets: sets.into_boxed(),
            depends_on_request: !rules.rules.is_empty(),
        })
    }

    /// Returns the first rule that matches a request; `None` if no rule matches.
    pub(super) fn find_rule(&self, request: &RequestView<'_>) -> Option<&CompiledTagRule> {
        let mask = self.stem_mask(request);
        let is_match = |index: usize| {
            self.rules.get(index).is_some_and(|rule| {
                rule.stem_index.is_none_or(|stem_index| mask & (1 << stem_index) != 0)
                    && rule.matcher.matches(request)
            })
        };
        self.index.first_match(request, is_match).and_then(|index| self.rules.get(index))
    }

    /// Returns the sets for a request without a matching rule, in the order of the fallback policy. The first set with
    /// instances is used.
    pub(super) fn sets_without_rule(&self, request: &RequestView<'_>) -> &[SetId] {
        if !self.depends_on_request {
            return &[ALL_INSTANCES];
        }
        self.sets_without_rule.get(self.stem_mask(request)).map_or(&[], |sets| sets)
    }

    /// Returns a mask with one bit for each stem pattern, which is set if the stem of the request's path matches.
    fn stem_mask(&self, request: &RequestView<'_>) -> usize {
        if self.stem_patterns.is_empty() {
            return 0;
        }
        let stem = request.path.rsplit_once('.').map_or("", |(stem, _)| stem);
        let matching_stems =
            self.stem_patterns.iter().enumerate().filter(|(_, pattern)| pattern.matches(stem));
        matching_stems.fold(0, |mask, (index, _)| mask | (1 << index))
    }
}

impl CompiledTagRule {
    fn from_rule(
        index: usize,
        rule: &TagRule,
        stem_index: Option<usize>,
        context: &ResolveContext<'_>,
        sets: &mut InstanceSets,
    ) -> Result<Self, InvalidPattern> {
        let split = CompiledTagSplit::from_split(&rule.split, Remainder::Fallback, context, sets);
        let fallback_split = (!rule.fallback.targets.is_empty()).then(|| {
            CompiledTagSplit::from_split(&rule.fallback, Remainder::Unused, context, sets)
        });
        Ok(Self {
            index,
            matcher: TagMatcher::compile(&rule.request_match)?,
            stem_index,
            split,
            fallback_split,
            fallback_sets: context.resolve_fallback_policy(&rule.fallback_policy, sets),
            sticky_key: rule.sticky.clone().map(|sticky_key| (sticky_key, rule_salt(rule))),
        })
    }

    /// Returns the sticky point: a number that is the same for all requests of a client. `None` if the rule has no
    /// sticky key or the request has no value for it.
    pub(super) fn sticky_point(&self, request: &RequestView<'_>) -> Option<u64> {
        let (sticky_key, salt) = self.sticky_key.as_ref()?;
        let value = match sticky_key {
            StickyKey::Header(name) => {
                header_value(request, name, leno_model::RepeatedHeader::First)
            }
            StickyKey::Cookie(name) => cookie_value(request, name),
        };
        Some(hash(*salt, &value?))
    }
}

/// Returns a salt that is the same for a rule in all sidecars, and differs between rules.
fn rule_salt(rule: &TagRule) -> u64 {
    hash(u64::from(rule.origin.index), &rule.origin.name.to_string())
}

/// The handling of the remaining percentage, if the percentages of the targets add up to less than 100.
#[derive(Clone, Copy)]
enum Remainder {
    /// The remaining requests use the fallback, or else the instances that no target of the split selects.
    Fallback,
    /// The remaining requests have no target.
    Unused,
}

impl CompiledTagSplit {
    fn from_split(
        split: &TagSplit,
        remainder: Remainder,
        context: &ResolveContext<'_>,
        sets: &mut InstanceSets,
    ) -> Self {
        let (weights, has_remainder) = WeightedTargets::from_split(split);
        let targets = split.targets.iter();
        let mut targets: Vec<SetId> =
            targets.map(|target| sets.add_set(context.resolve_set(&target.set))).collect();
        let mut remainder_target = None;
        if has_remainder && matches!(remainder, Remainder::Fallback) {
            remainder_target = Some(targets.len());
            let excluded =
                InstanceSet::excluding(InstanceSet::from_targets(&split.targets, context.caller));
            targets.push(sets.add_set(excluded));
        }
        Self { weights, targets: targets.into(), remainder_target }
    }

    /// Selects a target at random, or by the sticky point of the client. Returns the index and the set of the target;
    /// `None` for the remaining percentage without a target.
    pub(super) fn choose_target(
        &self,
        purpose: ChoicePurpose,
        sticky_point: Option<u64>,
        random: &mut impl RandomChoice,
    ) -> Option<(usize, SetId)> {
        let index =
            match sticky_point.and_then(|point| point.checked_rem(self.weights.total_points())) {
                Some(point) => self.weights.target_at(point),
                None => self.weights.choose_target(purpose, random),
            };
        self.targets.get(index).map(|set| (index, *set))
    }
}

/// The context in which the sets of a rule are resolved for one caller.
struct ResolveContext<'a> {
    caller: &'a CallerAttributes,
    /// The sets that the default set excludes.
    excluded_sets: &'a [InstanceSet],
}

impl ResolveContext<'_> {
    /// Resolves the set of a target.
    fn resolve_set(&self, set: &TagSet) -> InstanceSet {
        match InstanceSet::resolve(set, self.caller, &[]) {
            // The default set is built by `excluding`, which sorts the excluded sets and removes duplicates. Equal
            // default sets thus have the same ID.
            InstanceSet::Except(_) => InstanceSet::excluding(self.excluded_sets.to_vec()),
            set => set,
        }
    }

    /// Resolves the sets of a fallback policy, in order.
    fn resolve_fallback_policy(
        &self,
        fallback_policy: &[FallbackPolicy],
        sets: &mut InstanceSets,
    ) -> Box<[SetId]> {
        let resolve = |fallback: &FallbackPolicy| match fallback {
            FallbackPolicy::Any => ALL_INSTANCES,
            FallbackPolicy::Default => {
                sets.add_set(InstanceSet::excluding(self.excluded_sets.to_vec()))
            }
        };
        fallback_policy.iter().map(resolve).collect()
    }
}

/// The distinct sets of all rules, with their IDs.
struct InstanceSets {
    ids_by_set: BTreeMap<InstanceSet, SetId>,
}

impl Default for InstanceSets {
    fn default() -> Self {
        Self { ids_by_set: BTreeMap::from([(InstanceSet::AllInstances, ALL_INSTANCES)]) }
    }
}

impl InstanceSets {
    /// Returns the ID of a set; adds the set if it is new.
    fn add_set(&mut self, set: InstanceSet) -> SetId {
        let next_id = self.ids_by_set.len();
        *self.ids_by_set.entry(set).or_insert(next_id)
    }

    /// Returns the sets, ordered by ID.
    fn into_boxed(self) -> Box<[InstanceSet]> {
        let mut sets: Vec<(InstanceSet, SetId)> = self.ids_by_set.into_iter().collect();
        sets.sort_by_key(|(_, id)| *id);
        sets.into_iter().map(|(set, _)| set).collect()
    }
}

/// The distinct stem patterns of the rules.
struct StemPatterns<'a> {
    /// The text of each pattern.
    texts: Vec<&'a str>,
    patterns: Vec<Pattern>,
}

impl<'a> StemPatterns<'a> {
    fn from_rules(rules: &[(usize, &'a TagRule)]) -> Result<Self, InvalidPattern> {
        let mut stem_patterns = Self { texts: Vec::new(), patterns: Vec::new() };
        for (_, rule) in rules {
            let Some(text) = rule.request_match.stem.as_deref() else { continue };
            // The configuration readers reject more patterns, because each pattern doubles the number of masks.
            if stem_patterns.texts.contains(&text) || stem_patterns.texts.len() == MAX_STEMS {
                continue;
            }
            let pattern = Pattern::compile(text).map_err(|cause| {
                InvalidPattern::new(text, PatternField::Path, cause)
                    .with_object(rule.origin.object_key())
            })?;
            stem_patterns.texts.push(text);
            stem_patterns.patterns.push(pattern);
        }
        Ok(stem_patterns)
    }

    /// Returns the index of a rule's stem pattern; `None` if the rule has none.
    fn index_of(&self, rule: &TagRule) -> Option<usize> {
        let text = rule.request_match.stem.as_deref()?;
        self.texts.iter().position(|listed| *listed == text)
    }
}

/// Returns the sets of a rule's targets that are defined by tags.
fn sets_by_tags(rule: &TagRule, caller: &CallerAttributes) -> Vec<InstanceSet> {
    InstanceSet::from_targets(&rule.split.targets, caller)
}

/// Returns the sets for requests without a matching rule: one list for each mask of matching stem patterns.
fn resolve_sets_without_rule(
    fallback_policy: &[FallbackPolicy],
    rules: &[(usize, &TagRule)],
    stem_patterns: &StemPatterns<'_>,
    caller: &CallerAttributes,
    sets: &mut InstanceSets,
) -> Box<[Box<[SetId]>]> {
    let lists = (0..1_usize << stem_patterns.texts.len()).map(|mask| {
        let may_match = |rule: &TagRule| {
            stem_patterns.index_of(rule).is_none_or(|index| mask & (1 << index) != 0)
        };
        let possible_rules = rules.iter().filter(|(_, rule)| may_match(rule));
        let excluded_sets: Vec<InstanceSet> =
            possible_rules.flat_map(|(_, rule)| sets_by_tags(rule, caller)).collect();
        ResolveContext { caller, excluded_sets: &excluded_sets }
            .resolve_fallback_policy(fallback_policy, sets)
    });
    lists.collect()
}

/// Compiles the caller rules that apply to a caller.
fn compile_caller_rules(
    rules: &[CallerRule],
    caller: &CallerAttributes,
) -> Result<Box<[CompiledCallerRule]>, InvalidPattern> {
    let mut compiled_rules = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if applies_to_caller(&rule.from, caller)
            .map_err(|error| error.with_object(rule.origin.object_key()))?
        {
            compiled_rules.push(CompiledCallerRule::from_rule(index, rule, caller));
        }
    }
    Ok(compiled_rules.into())
}

impl CompiledCallerRule {
    fn from_rule(index: usize, rule: &CallerRule, caller: &CallerAttributes) -> Self {
        let targets = rule.split.targets.iter().filter(|target| target_applies_to(target, caller));
        let split = TagSplit { targets: targets.cloned().collect(), weights: rule.split.weights };
        let (weights, has_remainder) = WeightedTargets::from_split(&split);
        let targets = split.targets.iter();
        let mut sets: Vec<InstanceSet> =
            targets.map(|target| InstanceSet::resolve(&target.set, caller, &[])).collect();
        if has_remainder {
            sets.push(InstanceSet::excluding(InstanceSet::from_targets(&split.targets, caller)));
        }
        Self {
            index,
            weights,
            sets: sets.into(),
            min_percent: rule.min_percent,
            min_total: rule.min_total,
            continues_to_next: rule.continues,
            has_fallback: rule.origin.dialect != TagDialect::Sermant,
        }
    }
}

/// True if a target applies to this caller. A target that refers to a parameter of the caller is ignored if the caller
/// has no parameters.
fn target_applies_to(target: &TagTarget, caller: &CallerAttributes) -> bool {
    let (TagSet::All(tags) | TagSet::Any(tags)) = &target.set else {
        return true;
    };
    caller.has_parameters
        || tags.iter().all(|(name, value)| match value {
            TagValue::Exact(_) => true,
            TagValue::SameAsCaller => matches!(name.as_str(), "version" | "zone"),
        })
}
