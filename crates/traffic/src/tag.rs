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
use self::rules::{CompiledCallerRule, CompiledTagRule, EVERY, RulesForCaller, SetId};
use crate::match_slot::MatchSlot;
use crate::pattern::InvalidPattern;
use crate::request::RequestView;

pub(crate) use crate::request::header_value;
pub(crate) use matcher::cookie_value;

pub use instance_sets::Endpoints;
pub use lane::{LaneHeaders, Lanes};
pub use trace::TagOutcome;
pub use weighted_targets::{DrawPurpose, RandomChoice, WeightedTargets};

/// The tag rules of one service port, compiled for one caller, with the current instances of each set.
///
/// Sets are computed when rules or instances change. A request only finds its rule, draws if there are several
/// shares, and uses an existing list.
#[derive(Debug)]
pub struct CompiledTagRules {
    source: Arc<TagRules>,
    caller: CallerAttributes,
    compiled: Arc<RulesForCaller>,
    /// By set index.
    narrowed: Box<[CallerInstances]>,
    /// The match counters: of the rules, then of those by caller.
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
    /// The fallbacks of a preference that yields, for when none of the selected instances is healthy: the next
    /// lists, and finally all instances.
    pub others: Option<&'a Arc<[Endpoints]>>,
    set: SetId,
}

/// The instances of a set after the caller rules.
#[derive(Debug)]
struct CallerInstances {
    /// True if the set has instances.
    inhabited: bool,
    /// The shares, if there is more than one list.
    shares: Option<WeightedTargets>,
    /// The caller rule of the lists.
    by_caller: Option<usize>,
    lists: Box<[Endpoints]>,
    /// The fallbacks, if the rule yields.
    others: Option<Arc<[Endpoints]>>,
}

impl CompiledTagRules {
    /// Compiles the rules for a caller; unchanged parts of `old` are reused.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn build(
        rules: &Arc<TagRules>,
        caller: &CallerAttributes,
        endpoints: &Arc<[Arc<Endpoint>]>,
        old: Option<&Self>,
    ) -> Result<Self, InvalidPattern> {
        let same = old.filter(|old| old.source == *rules && old.caller == *caller);
        let compiled = match same {
            Some(old) => Arc::clone(&old.compiled),
            None => Arc::new(RulesForCaller::from_rules(rules, caller)?),
        };
        let narrowed = compiled.sets.iter().map(|set| {
            let inside = set.members_of(endpoints);
            CallerInstances::from_preferences(inside, &compiled.by_caller)
        });
        let narrowed = narrowed.collect();
        let count = rules.rules.len() + rules.by_caller.len();
        let match_slots = same.map_or_else(
            || (0..count).map(|_| MatchSlot::default()).collect(),
            |same| Arc::clone(&same.match_slots),
        );
        Ok(Self {
            source: Arc::clone(rules),
            caller: caller.clone(),
            compiled,
            narrowed,
            match_slots,
        })
    }

    /// Selects instances for a request; `chance` is used only if there are several shares.
    pub fn choose_instances(
        &self,
        request: &RequestView<'_>,
        chance: &mut impl RandomChoice,
    ) -> TagDecision<'_> {
        match self.compiled.rule_for(request) {
            Some(rule) => {
                let set = self.by_rule(rule, request, chance);
                self.build_decision(Some(rule.index), set, chance)
            }
            None => {
                let set = self.first_inhabited(self.compiled.unmatched_sets(request));
                self.build_decision(None, set, chance)
            }
        }
    }

    /// Selects instances for an opaque connection: rules by request do not apply.
    pub fn without_request(&self, chance: &mut impl RandomChoice) -> TagDecision<'_> {
        self.build_decision(None, Some(EVERY), chance)
    }

    /// Returns the rules behind a decision, with their origins and match counters.
    pub fn matched_rules(
        &self,
        decision: &TagDecision<'_>,
    ) -> impl Iterator<Item = (&RuleOrigin, &MatchSlot)> {
        let TagRules { rules, by_caller, .. } = &*self.source;
        let rule = decision
            .rule
            .and_then(|place| Some((&rules.get(place)?.origin, self.match_slots.get(place)?)));
        let caller = decision.by_caller.and_then(|place| {
            Some((&by_caller.get(place)?.origin, self.match_slots.get(rules.len() + place)?))
        });
        rule.into_iter().chain(caller)
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &TagRules {
        &self.source
    }

    /// Returns the set that a rule selects; `None` if no instance remains.
    fn by_rule(
        &self,
        rule: &CompiledTagRule,
        request: &RequestView<'_>,
        chance: &mut impl RandomChoice,
    ) -> Option<SetId> {
        let sticky = rule.sticky_point(request);
        let drawn = rule.split.draw_target(DrawPurpose::Route, sticky, chance);
        let inhabited = drawn.filter(|(_, set)| self.is_inhabited(*set));
        let spills = drawn.is_some_and(|(place, _)| rule.split.spilling == Some(place));
        if let (Some((_, set)), true) = (inhabited, !spills || rule.fallback.is_none()) {
            return Some(set);
        }
        let fallback = rule
            .fallback
            .as_ref()
            .and_then(|fallback| fallback.draw_target(DrawPurpose::Fallback, sticky, chance));
        let fallback = fallback.map(|(_, set)| set).filter(|set| self.is_inhabited(*set));
        let left = fallback.or(inhabited.map(|(_, set)| set));
        left.or_else(|| self.first_inhabited(&rule.fallback_policy))
    }

    fn first_inhabited(&self, sets: &[SetId]) -> Option<SetId> {
        sets.iter().copied().find(|set| self.is_inhabited(*set))
    }

    fn is_inhabited(&self, set: SetId) -> bool {
        self.narrowed.get(set).is_some_and(|narrowed| narrowed.inhabited)
    }

    fn build_decision(
        &self,
        rule: Option<usize>,
        set: Option<SetId>,
        chance: &mut impl RandomChoice,
    ) -> TagDecision<'_> {
        // Without any instance, tags are not the cause.
        let nobody = !self.is_inhabited(EVERY);
        let found = set.or(nobody.then_some(EVERY)).and_then(|set| {
            let narrowed = self.narrowed.get(set)?;
            Some((set, narrowed, narrowed.draw_list(chance)?))
        });
        match found {
            Some((set, narrowed, endpoints)) => {
                let CallerInstances { by_caller, others, .. } = narrowed;
                let (by_caller, others) = (*by_caller, others.as_ref());
                TagDecision { rule, by_caller, endpoints: Some(endpoints), others, set }
            }
            None => {
                TagDecision { rule, by_caller: None, endpoints: None, others: None, set: EVERY }
            }
        }
    }

    fn find_set(&self, place: SetId) -> Option<&InstanceSet> {
        self.compiled.sets.get(place)
    }
}

impl CallerInstances {
    fn from_preferences(inside: Endpoints, preferences: &[CompiledCallerRule]) -> Self {
        let inhabited = !inside.is_empty();
        for (place, preference) in preferences.iter().enumerate() {
            let lists =
                preference.sets.iter().map(|set| preference.accepted_endpoints(set, &inside));
            let lists: Box<[Endpoints]> = lists.collect();
            let changes = lists.iter().any(|list| !Arc::ptr_eq(list, &inside));
            if changes {
                let shares = (lists.len() > 1).then(|| preference.shares.clone());
                let by_caller = Some(preference.index);
                let others =
                    preferences.get(place..).and_then(|less| fallback_lists(less, &inside));
                return Self { inhabited, shares, by_caller, lists, others };
            }
            if !preference.goes_on {
                break;
            }
        }
        let lists = Box::new([inside]);
        Self { inhabited, shares: None, by_caller: None, lists, others: None }
    }

    fn draw_list(&self, chance: &mut impl RandomChoice) -> Option<&Endpoints> {
        let place = self
            .shares
            .as_ref()
            .map_or(0, |shares| shares.draw_target(DrawPurpose::Caller, chance));
        self.lists.get(place)
    }
}

/// Returns the fallbacks for when no instance of the first preference is healthy: the instances of the
/// following preferences that yield, and finally all instances; `None` if the first does not yield.
fn fallback_lists(preferences: &[CompiledCallerRule], all: &Endpoints) -> Option<Arc<[Endpoints]>> {
    preferences.first().filter(|first| first.yields)?;
    let asked =
        |(before, next): (&CompiledCallerRule, &CompiledCallerRule)| before.goes_on && next.yields;
    let pairs = preferences.iter().zip(preferences.iter().skip(1));
    let next = pairs.take_while(|pair| asked(*pair)).map(|(_, next)| next);
    let lists = next.flat_map(|next| next.sets.iter().map(|set| next.accepted_endpoints(set, all)));
    let smaller = lists.filter(|list| !Arc::ptr_eq(list, all));
    Some(smaller.chain([Arc::clone(all)]).collect())
}

impl CompiledCallerRule {
    /// Returns the preferred instances, or all of them.
    fn accepted_endpoints(&self, set: &InstanceSet, all: &Endpoints) -> Endpoints {
        let preferred = set.members_of(all);
        let (count, total) = (preferred.len() as u64, all.len() as u64);
        let enough =
            total < u64::from(self.min_total) || count * 100 >= total * u64::from(self.min_percent);
        match enough && count > 0 {
            true => preferred,
            false => Arc::clone(all),
        }
    }
}

#[cfg(test)]
mod tests;
