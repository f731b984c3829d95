//! Tag, lane and retry rules that have no effect because of routes.

use leno_model::{NoEffect, Object, TagEffects, TagRules, TagScope};

use super::ObjectStore;
use super::conflicts::without_port;
use super::desired_statuses::ConflictContext;

impl ObjectStore {
    /// Returns the reason that an object in force has no effect at any port.
    pub(super) fn idle_by_routes(
        &self,
        object: &Object,
        around: &ConflictContext<'_, '_>,
    ) -> Option<NoEffect> {
        match object {
            Object::Retry(policy) => {
                let there = policy.services.iter().filter_map(|it| self.services.get(it));
                let ports = there.flat_map(|it| it.ports.iter().map(|port| (&it.name, port.port)));
                NoEffect::of_all_retries(ports, around)
            }
            Object::TagRoute(route) => {
                let effects = TagEffects::from_rules(&route.rules, &[]);
                self.idle_tags(object, &[(&route.scope, effects)], around)
            }
            Object::SermantRouteRule(rule) => {
                let entries = rule.entries.iter();
                let entries = entries
                    .map(|(scope, it)| (scope, TagEffects::from_rules(&it.rules, &it.lanes)));
                self.idle_tags(object, &entries.collect::<Vec<_>>(), around)
            }
            Object::Lane(lane) => {
                let effects = TagEffects::from_rules(&TagRules::default(), &lane.rules);
                let mut found = None;
                for port in self.ports_of_service(&lane.service, None) {
                    let idle = NoEffect::of_tags(effects, &lane.service, port, around)?;
                    found = found.or(Some(idle));
                }
                found
            }
            _ => None,
        }
    }

    fn idle_tags(
        &self,
        object: &Object,
        entries: &[(&TagScope, TagEffects)],
        around: &ConflictContext<'_, '_>,
    ) -> Option<NoEffect> {
        let own = object.object_key();
        let mut found = None;
        for (scope, effects) in entries {
            let only = match scope {
                TagScope::Service(_, only) => *only,
                TagScope::Namespace(_) | TagScope::Mesh => None,
            };
            for service in self.services_of(scope) {
                for port in self.ports_of_service(&service.name, only) {
                    let name = &service.name;
                    let deciding = self.rules_in_force(name, port, around.conflicts());
                    let decides = deciding.contains(&own);
                    let here = TagEffects {
                        by_request: effects.by_request && decides,
                        by_caller: effects.by_caller && decides,
                        marks: effects.marks
                            && around.conflicts().applies_lanes(object, &without_port(scope)),
                    };
                    if !here.is_none() {
                        let idle = NoEffect::of_tags(here, name, port, around)?;
                        found = found.or(Some(idle));
                    }
                }
            }
        }
        found
    }
}
