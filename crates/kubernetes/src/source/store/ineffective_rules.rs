//! Tag, lane and retry rules that have no effect because of routes.

use leno_model::{NoEffect, Object, TagEffects, TagRules, TagScope};

use super::ObjectStore;
use super::conflicts::without_port;
use super::desired_statuses::ConflictContext;

impl ObjectStore {
    /// Returns the reason that an object in force has no effect at any port.
    pub(super) fn no_effect_by_routes(
        &self,
        object: &Object,
        context: &ConflictContext<'_, '_>,
    ) -> Option<NoEffect> {
        match object {
            Object::Retry(policy) => {
                let services =
                    policy.services.iter().filter_map(|service| self.services.get(service));
                let ports = services.flat_map(|service| {
                    service.ports.iter().map(|port| (&service.name, port.port))
                });
                NoEffect::of_all_retries(ports, context)
            }
            Object::TagRoute(route) => {
                let effects = TagEffects::from_rules(&route.rules, &[]);
                self.no_effect_of_tags(object, &[(&route.scope, effects)], context)
            }
            Object::SermantRouteRule(rule) => {
                let entries = rule.entries.iter();
                let entries = entries.map(|(scope, entry)| {
                    (scope, TagEffects::from_rules(&entry.rules, &entry.lanes))
                });
                self.no_effect_of_tags(object, &entries.collect::<Vec<_>>(), context)
            }
            Object::Lane(lane) => {
                let effects = TagEffects::from_rules(&TagRules::default(), &lane.rules);
                let mut first = None;
                for port in self.ports_of_service(&lane.service, None) {
                    let no_effect = NoEffect::of_tags(effects, &lane.service, port, context)?;
                    first = first.or(Some(no_effect));
                }
                first
            }
            _ => None,
        }
    }

    fn no_effect_of_tags(
        &self,
        object: &Object,
        entries: &[(&TagScope, TagEffects)],
        context: &ConflictContext<'_, '_>,
    ) -> Option<NoEffect> {
        let own = object.object_key();
        let mut first = None;
        for (scope, effects) in entries {
            let only_port = match scope {
                TagScope::Service(_, only_port) => *only_port,
                TagScope::Namespace(_) | TagScope::Mesh => None,
            };
            for service in self.services_of(scope) {
                for port in self.ports_of_service(&service.name, only_port) {
                    let name = &service.name;
                    let rules_in_force = self.rules_in_force(name, port, context.conflicts());
                    let decides = rules_in_force.contains(&own);
                    let effective = TagEffects {
                        by_request: effects.by_request && decides,
                        by_caller: effects.by_caller && decides,
                        marks: effects.marks
                            && context.conflicts().applies_lanes(object, &without_port(scope)),
                    };
                    if !effective.is_none() {
                        let no_effect = NoEffect::of_tags(effective, name, port, context)?;
                        first = first.or(Some(no_effect));
                    }
                }
            }
        }
        first
    }
}
