//! Detects tag, lane and retry rules that have no effect because of routes.

use leno_model::{NoEffect, Object, TagEffects, TagRules, TagScope};

use super::ObjectStore;
use super::conflicts::without_port;
use super::desired_statuses::ConflictContext;

impl ObjectStore {
    /// Returns the reason that an object in force has no effect at any port; `None` if it has an effect.
    pub(super) fn detect_no_effect(
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
                NoEffect::detect_for_retry_policy(ports, context)
            }
            Object::TagRoute(route) => {
                let effects = TagEffects::from_rules(&route.rules, &[]);
                self.detect_no_tag_effect(object, &[(&route.scope, effects)], context)
            }
            Object::SermantRouteRule(rule) => {
                let entries = rule.entries.iter();
                let entries = entries.map(|(scope, entry)| {
                    (scope, TagEffects::from_rules(&entry.rules, &entry.lanes))
                });
                self.detect_no_tag_effect(object, &entries.collect::<Vec<_>>(), context)
            }
            Object::Lane(lane) => {
                let effects = TagEffects::from_rules(&TagRules::default(), &lane.rules);
                let mut first_no_effect = None;
                for port in self.ports_of_service(&lane.service, None) {
                    let no_effect =
                        NoEffect::detect_for_tags(effects, &lane.service, port, context)?;
                    first_no_effect = first_no_effect.or(Some(no_effect));
                }
                first_no_effect
            }
            _ => None,
        }
    }

    /// Returns the first reason that the entries have no effect at the ports where the object is in
    /// force; `None` if an entry has an effect, or the object is in force at no port.
    fn detect_no_tag_effect(
        &self,
        object: &Object,
        entries: &[(&TagScope, TagEffects)],
        context: &ConflictContext<'_, '_>,
    ) -> Option<NoEffect> {
        let own_key = object.object_key();
        let mut first_no_effect = None;
        for (scope, effects) in entries {
            let only_port = match scope {
                TagScope::Service(_, only_port) => *only_port,
                TagScope::Namespace(_) | TagScope::Mesh => None,
            };
            for service in self.services_of(scope) {
                for port in self.ports_of_service(&service.name, only_port) {
                    let name = &service.name;
                    let rules_in_force = self.rules_in_force(name, port, context.conflicts());
                    let is_in_force = rules_in_force.contains(&own_key);
                    let effects_in_force = TagEffects {
                        by_request: effects.by_request && is_in_force,
                        by_caller: effects.by_caller && is_in_force,
                        marks: effects.marks
                            && context.conflicts().applies_lanes(object, &without_port(scope)),
                    };
                    if !effects_in_force.is_none() {
                        let no_effect =
                            NoEffect::detect_for_tags(effects_in_force, name, port, context)?;
                        first_no_effect = first_no_effect.or(Some(no_effect));
                    }
                }
            }
        }
        first_no_effect
    }
}
