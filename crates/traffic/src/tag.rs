//! Tag routing: selection of service instances by their labels.

mod conditions;
mod instance_sets;
mod lane;
mod matcher;
mod rules;
mod trace;
mod value;
mod weighted_targets;

use std::sync::Arc;

use leno_model::{CallerAttributes, Endpoint, RuleOrigin, TagRules};

use self::instance_sets::InstanceSet;
use self::rules::{ALL_INSTANCES, CompiledCallerRule, CompiledTagRule, RulesForCaller, SetId};
use crate::match_slot::MatchSlot;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;

pub(crate) use crate::request::header_value;
pub(crate) use matcher::cookie_value;

pub use instance_sets::Endpoints;
pub use lane::{LaneHeaders, Lanes};
pub use trace::TagOutcome;
pub use weighted_targets::{ChoicePurpose, RandomChoice, WeightedTargets};

/// The tag rules of one service port, compiled for one caller, with the current instances of each set.
///
/// Sets are computed when rules or instances change. A request only finds its rule, selects a share at random
/// if there are several, and uses an existing list.
#[derive(Debug)]
pub struct CompiledTagRules {
    source: Arc<TagRules>,
    caller: CallerAttributes,
    compiled: Arc<RulesForCaller>,
    /// The instances of each set, by set index.
    instances_by_set: Box<[CallerInstances]>,
    /// The match counters of the rules, then those of the caller rules.
    match_slots: Arc<[MatchSlot]>,
}

/// The routing result of a request or connection.
#[derive(Debug, Clone, Copy)]
pub struct TagDecision<'a> {
    /// The index of the matching rule; absent if none matches.
    pub rule: Option<usize>,
    /// The index of the caller rule that narrowed the instances further.
    pub by_caller: Option<usize>,
    /// The selected instances, if any.
    pub endpoints: Option<&'a Endpoints>,
    /// The fallbacks of a preference that yields, for the case that none of the selected instances is healthy:
    /// the next lists, and finally all instances.
    pub fallbacks: Option<&'a Arc<[Endpoints]>>,
    set: SetId,
}

/// The instances of a set after the caller rules.
#[derive(Debug)]
struct CallerInstances {
    /// True if the set has instances.
    has_instances: bool,
    /// The shares, if there is more than one list.
    shares: Option<WeightedTargets>,
    /// The index of the caller rule that the lists come from, if any.
    by_caller: Option<usize>,
    /// One list for each share.
    lists: Box<[Endpoints]>,
    /// The fallbacks, if the rule yields.
    fallbacks: Option<Arc<[Endpoints]>>,
}

impl CompiledTagRules {
    /// Compiles the rules for a caller. Unchanged parts of `previous` are reused.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn build(
        rules: &Arc<TagRules>,
        caller: &CallerAttributes,
        endpoints: &Arc<[Arc<Endpoint>]>,
        previous: Option<&Self>,
    ) -> Result<Self, InvalidPattern> {
        let unchanged =
            previous.filter(|previous| previous.source == *rules && previous.caller == *caller);
        let compiled = match unchanged {
            Some(previous) => Arc::clone(&previous.compiled),
            None => Arc::new(RulesForCaller::from_rules(rules, caller)?),
        };
        let instances_by_set = compiled.sets.iter().map(|set| {
            let members = set.members_of(endpoints);
            CallerInstances::from_preferences(members, &compiled.by_caller)
        });
        let instances_by_set = instances_by_set.collect();
        let count = rules.rules.len() + rules.caller_rules.len();
        let match_slots = unchanged.map_or_else(
            || (0..count).map(|_| MatchSlot::default()).collect(),
            |unchanged| Arc::clone(&unchanged.match_slots),
        );
        Ok(Self {
            source: Arc::clone(rules),
            caller: caller.clone(),
            compiled,
            instances_by_set,
            match_slots,
        })
    }

    /// Selects instances for a request. `random` is used only if there are several shares.
    pub fn choose_instances(
        &self,
        request: &RequestView<'_>,
        random: &mut impl RandomChoice,
    ) -> TagDecision<'_> {
        match self.compiled.find_rule(request) {
            Some(rule) => {
                let set = self.select_set(rule, request, random);
                self.build_decision(Some(rule.index), set, random)
            }
            None => {
                let set = self.find_set_with_instances(self.compiled.unmatched_sets(request));
                self.build_decision(None, set, random)
            }
        }
    }

    /// Selects instances for an opaque connection, to which rules by request do not apply.
    pub fn choose_without_request(&self, random: &mut impl RandomChoice) -> TagDecision<'_> {
        self.build_decision(None, Some(ALL_INSTANCES), random)
    }

    /// Returns the rules behind a decision, with their origins and match counters.
    pub fn matched_rules(
        &self,
        decision: &TagDecision<'_>,
    ) -> impl Iterator<Item = (&RuleOrigin, &MatchSlot)> {
        let TagRules { rules, caller_rules: by_caller, .. } = &*self.source;
        let rule = decision
            .rule
            .and_then(|index| Some((&rules.get(index)?.origin, self.match_slots.get(index)?)));
        let caller_rule = decision.by_caller.and_then(|index| {
            Some((&by_caller.get(index)?.origin, self.match_slots.get(rules.len() + index)?))
        });
        rule.into_iter().chain(caller_rule)
    }

    /// Returns the tag rules that were compiled.
    #[must_use]
    pub fn rules(&self) -> &TagRules {
        &self.source
    }

    /// Returns the set that a rule selects; `None` if no instance remains.
    fn select_set(
        &self,
        rule: &CompiledTagRule,
        request: &RequestView<'_>,
        random: &mut impl RandomChoice,
    ) -> Option<SetId> {
        let sticky_point = rule.sticky_point(request);
        let target = rule.split.choose_target(ChoicePurpose::Route, sticky_point, random);
        let available = target.filter(|(_, set)| self.has_instances(*set));
        let is_spill = target.is_some_and(|(index, _)| rule.split.spill_target == Some(index));
        if let (Some((_, set)), true) = (available, !is_spill || rule.fallback.is_none()) {
            return Some(set);
        }
        let fallback = rule.fallback.as_ref().and_then(|fallback| {
            fallback.choose_target(ChoicePurpose::Fallback, sticky_point, random)
        });
        let fallback = fallback.map(|(_, set)| set).filter(|set| self.has_instances(*set));
        let selected = fallback.or(available.map(|(_, set)| set));
        selected.or_else(|| self.find_set_with_instances(&rule.fallback_policy))
    }

    fn find_set_with_instances(&self, sets: &[SetId]) -> Option<SetId> {
        sets.iter().copied().find(|set| self.has_instances(*set))
    }

    fn has_instances(&self, set: SetId) -> bool {
        self.instances_by_set.get(set).is_some_and(|instances| instances.has_instances)
    }

    fn build_decision(
        &self,
        rule: Option<usize>,
        set: Option<SetId>,
        random: &mut impl RandomChoice,
    ) -> TagDecision<'_> {
        // If the port has no instance at all, the set of all instances is selected: tags are not the cause.
        let is_port_empty = !self.has_instances(ALL_INSTANCES);
        let selected = set.or(is_port_empty.then_some(ALL_INSTANCES)).and_then(|set| {
            let instances = self.instances_by_set.get(set)?;
            Some((set, instances, instances.choose_list(random)?))
        });
        match selected {
            Some((set, instances, endpoints)) => {
                let CallerInstances { by_caller, fallbacks, .. } = instances;
                let (by_caller, fallbacks) = (*by_caller, fallbacks.as_ref());
                TagDecision { rule, by_caller, endpoints: Some(endpoints), fallbacks, set }
            }
            None => TagDecision {
                rule,
                by_caller: None,
                endpoints: None,
                fallbacks: None,
                set: ALL_INSTANCES,
            },
        }
    }

    fn find_set(&self, id: SetId) -> Option<&InstanceSet> {
        self.compiled.sets.get(id)
    }
}

impl CallerInstances {
    /// Narrows the members of a set by the first preference that selects some of them.
    fn from_preferences(members: Endpoints, preferences: &[CompiledCallerRule]) -> Self {
        let has_instances = !members.is_empty();
        for (index, preference) in preferences.iter().enumerate() {
            let lists =
                preference.sets.iter().map(|set| preference.accepted_endpoints(set, &members));
            let lists: Box<[Endpoints]> = lists.collect();
            let is_narrowed = lists.iter().any(|list| !Arc::ptr_eq(list, &members));
            if is_narrowed {
                let shares = (lists.len() > 1).then(|| preference.shares.clone());
                let by_caller = Some(preference.index);
                let fallbacks = preferences
                    .get(index..)
                    .and_then(|preferences| fallback_lists(preferences, &members));
                return Self { has_instances, shares, by_caller, lists, fallbacks };
            }
            if !preference.continues {
                break;
            }
        }
        let lists = Box::new([members]);
        Self { has_instances, shares: None, by_caller: None, lists, fallbacks: None }
    }

    fn choose_list(&self, random: &mut impl RandomChoice) -> Option<&Endpoints> {
        let index = self
            .shares
            .as_ref()
            .map_or(0, |shares| shares.choose_target(ChoicePurpose::Caller, random));
        self.lists.get(index)
    }
}

/// Returns the fallbacks for the case that no instance of the first preference is healthy: the instances of the
/// following preferences that yield, and finally all instances; `None` if the first does not yield.
fn fallback_lists(
    preferences: &[CompiledCallerRule],
    all_endpoints: &Endpoints,
) -> Option<Arc<[Endpoints]>> {
    preferences.first().filter(|first| first.yields)?;
    let is_tried_next = |(previous, next): (&CompiledCallerRule, &CompiledCallerRule)| {
        previous.continues && next.yields
    };
    let pairs = preferences.iter().zip(preferences.iter().skip(1));
    let following = pairs.take_while(|pair| is_tried_next(*pair)).map(|(_, next)| next);
    let lists = following
        .flat_map(|rule| rule.sets.iter().map(|set| rule.accepted_endpoints(set, all_endpoints)));
    let narrowed = lists.filter(|list| !Arc::ptr_eq(list, all_endpoints));
    Some(narrowed.chain([Arc::clone(all_endpoints)]).collect())
}

impl CompiledCallerRule {
    /// Returns the preferred instances, or all instances if the preferred ones are too few.
    fn accepted_endpoints(&self, set: &InstanceSet, all_endpoints: &Endpoints) -> Endpoints {
        let preferred = set.members_of(all_endpoints);
        let (count, total) = (preferred.len() as u64, all_endpoints.len() as u64);
        let is_enough =
            total < u64::from(self.min_total) || count * 100 >= total * u64::from(self.min_percent);
        match is_enough && count > 0 {
            true => preferred,
            false => Arc::clone(all_endpoints),
        }
    }
}

#[cfg(test)]
mod tests;
