//! Tag routing: selects the instances of a service by the request, the caller and the labels of the instances. The
//! sidecar of the client calls it before load balancing. The instances of a service are its endpoints.

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
/// The instances are computed when rules or endpoints change. For a request, the first matching rule is searched. If
/// the rule has several targets, one is selected at random, by weight.
#[derive(Debug)]
pub struct CompiledTagRules {
    /// The rules as configured.
    source: Arc<TagRules>,
    /// The caller that the rules are compiled for.
    caller: CallerAttributes,
    /// The compiled rules.
    compiled: Arc<RulesForCaller>,
    /// The instances of each set, by set index.
    instances_by_set: Box<[CallerInstances]>,
    /// The match counters of the request rules, followed by those of the caller rules.
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
    /// The lists of instances that are used if none of the selected instances is healthy: those of the next caller
    /// rules, and finally all instances. `None` without a caller rule, or if the rule has no fallback.
    pub fallbacks: Option<&'a Arc<[Endpoints]>>,
    /// The set that the decision selects; [`ALL_INSTANCES`] if no instance remains.
    set: SetId,
}

/// The instances of a set, narrowed by the caller rules.
#[derive(Debug)]
struct CallerInstances {
    /// True if the set has instances.
    has_instances: bool,
    /// The weights of the lists, if there is more than one list.
    weights: Option<WeightedTargets>,
    /// The index of the caller rule that the lists come from, if any.
    by_caller: Option<usize>,
    /// The lists of instances, one of which is selected for each request.
    lists: Box<[Endpoints]>,
    /// The fallbacks, if the caller rule has them.
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
        let unchanged_rules =
            previous.filter(|previous| previous.source == *rules && previous.caller == *caller);
        let compiled = match unchanged_rules {
            Some(previous) => Arc::clone(&previous.compiled),
            None => Arc::new(RulesForCaller::from_rules(rules, caller)?),
        };
        let instances_by_set = compiled.sets.iter().map(|set| {
            let members = set.members_of(endpoints);
            CallerInstances::from_caller_rules(members, &compiled.caller_rules)
        });
        let instances_by_set = instances_by_set.collect();
        let rule_count = rules.rules.len() + rules.caller_rules.len();
        let match_slots = unchanged_rules.map_or_else(
            || (0..rule_count).map(|_| MatchSlot::default()).collect(),
            |unchanged_rules| Arc::clone(&unchanged_rules.match_slots),
        );
        Ok(Self {
            source: Arc::clone(rules),
            caller: caller.clone(),
            compiled,
            instances_by_set,
            match_slots,
        })
    }

    /// Selects instances for a request. `random` is used only if the rules permit several results.
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
                let set = self.find_set_with_instances(self.compiled.sets_without_rule(request));
                self.build_decision(None, set, random)
            }
        }
    }

    /// Selects instances for an opaque connection, to which rules by request do not apply.
    pub fn choose_without_request(&self, random: &mut impl RandomChoice) -> TagDecision<'_> {
        self.build_decision(None, Some(ALL_INSTANCES), random)
    }

    /// Returns the origins and match counters of the rules that led to a decision.
    pub fn matched_rules(
        &self,
        decision: &TagDecision<'_>,
    ) -> impl Iterator<Item = (&RuleOrigin, &MatchSlot)> {
        let TagRules { rules, caller_rules, .. } = &*self.source;
        let rule = decision
            .rule
            .and_then(|index| Some((&rules.get(index)?.origin, self.match_slots.get(index)?)));
        let caller_rule = decision.by_caller.and_then(|index| {
            Some((&caller_rules.get(index)?.origin, self.match_slots.get(rules.len() + index)?))
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
        let available_target = target.filter(|(_, set)| self.has_instances(*set));
        let is_remainder =
            target.is_some_and(|(index, _)| rule.split.remainder_target == Some(index));
        // The target for the remaining percentage is used only if the fallback has no instances.
        if let (Some((_, set)), true) =
            (available_target, !is_remainder || rule.fallback_split.is_none())
        {
            return Some(set);
        }
        let fallback = rule.fallback_split.as_ref().and_then(|fallback_split| {
            fallback_split.choose_target(ChoicePurpose::Fallback, sticky_point, random)
        });
        let fallback = fallback.map(|(_, set)| set).filter(|set| self.has_instances(*set));
        let selected = fallback.or(available_target.map(|(_, set)| set));
        selected.or_else(|| self.find_set_with_instances(&rule.fallback_sets))
    }

    /// Returns the first of these sets that has instances; `None` if none has.
    fn find_set_with_instances(&self, sets: &[SetId]) -> Option<SetId> {
        sets.iter().copied().find(|set| self.has_instances(*set))
    }

    /// True if a set has instances.
    fn has_instances(&self, set: SetId) -> bool {
        self.instances_by_set.get(set).is_some_and(|instances| instances.has_instances)
    }

    /// Builds the decision for a matching rule, if any, and a set, if any has instances.
    fn build_decision(
        &self,
        rule: Option<usize>,
        set: Option<SetId>,
        random: &mut impl RandomChoice,
    ) -> TagDecision<'_> {
        // If the port has no instances, tags are not the cause of the failure: the set of all instances is selected.
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

    /// Returns the definition of a set.
    fn find_set(&self, id: SetId) -> Option<&InstanceSet> {
        self.compiled.sets.get(id)
    }
}

impl CallerInstances {
    /// Narrows the members of a set by the first caller rule that selects a part of them.
    fn from_caller_rules(members: Endpoints, caller_rules: &[CompiledCallerRule]) -> Self {
        let has_instances = !members.is_empty();
        for (index, caller_rule) in caller_rules.iter().enumerate() {
            let lists =
                caller_rule.sets.iter().map(|set| caller_rule.accepted_endpoints(set, &members));
            let lists: Box<[Endpoints]> = lists.collect();
            let is_narrowed = lists.iter().any(|list| !Arc::ptr_eq(list, &members));
            if is_narrowed {
                let weights = (lists.len() > 1).then(|| caller_rule.weights.clone());
                let by_caller = Some(caller_rule.index);
                let fallbacks = caller_rules
                    .get(index..)
                    .and_then(|caller_rules| fallback_lists(caller_rules, &members));
                return Self { has_instances, weights, by_caller, lists, fallbacks };
            }
            if !caller_rule.continues_to_next {
                break;
            }
        }
        let lists = Box::new([members]);
        Self { has_instances, weights: None, by_caller: None, lists, fallbacks: None }
    }

    /// Selects a list of instances at random, if there are several.
    fn choose_list(&self, random: &mut impl RandomChoice) -> Option<&Endpoints> {
        let index = self
            .weights
            .as_ref()
            .map_or(0, |weights| weights.choose_target(ChoicePurpose::Caller, random));
        self.lists.get(index)
    }
}

/// Returns the lists of instances that are used if no instance of the first caller rule is healthy: those of the
/// following caller rules with a fallback, and finally all instances. `None` if the first rule has no fallback.
fn fallback_lists(
    caller_rules: &[CompiledCallerRule],
    all_endpoints: &Endpoints,
) -> Option<Arc<[Endpoints]>> {
    caller_rules.first().filter(|first_rule| first_rule.has_fallback)?;
    let is_tried_next = |(previous, next): (&CompiledCallerRule, &CompiledCallerRule)| {
        previous.continues_to_next && next.has_fallback
    };
    let pairs = caller_rules.iter().zip(caller_rules.iter().skip(1));
    let later_rules = pairs.take_while(|pair| is_tried_next(*pair)).map(|(_, next)| next);
    let lists = later_rules
        .flat_map(|rule| rule.sets.iter().map(|set| rule.accepted_endpoints(set, all_endpoints)));
    let narrowed_lists = lists.filter(|list| !Arc::ptr_eq(list, all_endpoints));
    Some(narrowed_lists.chain([Arc::clone(all_endpoints)]).collect())
}

impl CompiledCallerRule {
    /// Returns the preferred instances, or all instances if there are too few preferred instances.
    fn accepted_endpoints(&self, set: &InstanceSet, all_endpoints: &Endpoints) -> Endpoints {
        let preferred_endpoints = set.members_of(all_endpoints);
        let (count, total) = (preferred_endpoints.len() as u64, all_endpoints.len() as u64);
        let is_enough =
            total < u64::from(self.min_total) || count * 100 >= total * u64::from(self.min_percent);
        match is_enough && count > 0 {
            true => preferred_endpoints,
            false => Arc::clone(all_endpoints),
        }
    }
}

#[cfg(test)]
mod tests;
