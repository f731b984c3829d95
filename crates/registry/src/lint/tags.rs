//! Warns about the rules of `TagRoute`, `SermantRouteRule` and `Lane` objects: rules without effect, and tags that no
//! workload has.

use std::collections::BTreeSet;

use leno_model::{
    CallerMatch, Lane, NoEffect, SermantRouteRule, Service, ServiceName, TagEffects, TagMatch,
    TagRoute, TagRules, TagScope, TagSet, TagValue, Workload,
};

use super::service_policy::no_effect_hint;
use super::{ObjectIndex, ServiceReference, WarningCollector, selects_workload};

impl ObjectIndex<'_> {
    /// Warns about a `TagRoute`: missing service, unreachable rules, tags that no workload has, and no effect.
    pub(super) fn lint_tag_route(&self, route: &TagRoute, collector: &mut WarningCollector<'_>) {
        if let TagScope::Service(service, port) = &route.scope {
            let reference = ServiceReference {
                service,
                port: *port,
                field: "spec".to_owned(),
                name_field: "service",
            };
            self.lint_reference(&reference, collector);
        }
        lint_shadowed_rules(&route.rules, collector);
        self.lint_tags(&route.scope, &route.rules, "split", collector);
        let scope_field = match route.scope {
            TagScope::Service(..) => "spec.service",
            TagScope::Namespace(_) | TagScope::Mesh => "spec.scope",
        };
        self.lint_effects(
            scope_field,
            &[(&route.scope, TagEffects::from_rules(&route.rules, &[]))],
            collector,
        );
    }

    /// Warns about a `SermantRouteRule`: objects that take precedence, missing service, tags that no workload has, and no
    /// effect.
    pub(super) fn lint_sermant(
        &self,
        rule: &SermantRouteRule,
        collector: &mut WarningCollector<'_>,
    ) {
        for (scope, rules) in &rule.entries {
            let preceding_rule = self.sermant_scopes.get(scope).filter(|name| ***name != rule.name);
            if let Some(preceding_rule) = preceding_rule {
                collector.add_warning(
                    "spec.key".to_owned(),
                    format!("the SermantRouteRule {preceding_rule} also has this key, and takes precedence"),
                    "keep one: a configuration center has one value per key",
                );
            }
            if let Some(tag_route) = self.tag_scopes.get(scope) {
                collector.add_warning(
                    "spec.key".to_owned(),
                    format!(
                        "the TagRoute {tag_route} is for the same service and takes precedence"
                    ),
                    "remove one of the two",
                );
            }
            if let TagScope::Service(service, port) = scope {
                let reference = ServiceReference {
                    service,
                    port: *port,
                    field: "spec".to_owned(),
                    name_field: "key",
                };
                self.lint_reference(&reference, collector);
            }
            self.lint_tags(scope, &rules.rules, "route", collector);
        }
        let effects = rule
            .entries
            .iter()
            .map(|(scope, rules)| (scope, TagEffects::from_rules(&rules.rules, &rules.lanes)));
        self.lint_effects("spec.key", &effects.collect::<Vec<_>>(), collector);
    }

    /// Warns about a `Lane` for a missing service, or without effect.
    pub(super) fn lint_lane(&self, lane: &Lane, collector: &mut WarningCollector<'_>) {
        let reference = ServiceReference {
            service: &lane.service,
            port: None,
            field: "spec".to_owned(),
            name_field: "service",
        };
        self.lint_reference(&reference, collector);
        let scope = TagScope::Service(lane.service.clone(), None);
        let effects = TagEffects { marks: !lane.rules.is_empty(), ..TagEffects::default() };
        self.lint_effects("spec.service", &[(&scope, effects)], collector);
    }

    /// Warns if the rules have no effect on any port of their scopes.
    fn lint_effects(
        &self,
        field: &str,
        entries: &[(&TagScope, TagEffects)],
        collector: &mut WarningCollector<'_>,
    ) {
        let mut first_no_effect = None;
        for (scope, effects) in entries.iter().filter(|(_, effects)| !effects.is_none()) {
            for (service, port) in self.ports_in_scope(scope) {
                match NoEffect::detect_for_tags(*effects, service, port, self) {
                    Some(no_effect) => first_no_effect = first_no_effect.or(Some(no_effect)),
                    // The rules have an effect on this port.
                    None => return,
                }
            }
        }
        if let Some(no_effect) = first_no_effect {
            collector.add_warning(
                field.to_owned(),
                format!("has no effect: {no_effect}"),
                no_effect_hint(&no_effect),
            );
        }
    }

    /// Returns the ports that tag rules apply to.
    fn ports_in_scope(&self, scope: &TagScope) -> impl Iterator<Item = (&ServiceName, u16)> {
        let is_in_scope = move |service: &&&Service| match scope {
            TagScope::Service(only_service, _) => service.name == *only_service,
            TagScope::Namespace(namespace) => service.name.namespace == *namespace,
            TagScope::Mesh => true,
        };
        let only_port = match scope {
            TagScope::Service(_, port) => *port,
            TagScope::Namespace(_) | TagScope::Mesh => None,
        };
        let services = self.services.values().filter(is_in_scope);
        let ports = services
            .flat_map(|service| service.ports.iter().map(|port| (&service.name, port.port)));
        ports.filter(move |(_, port)| only_port.is_none_or(|only_port| only_port == *port))
    }

    /// Warns about targets of a split with tags that no workload of the service has. `key` is the field of the split.
    fn lint_tags(
        &self,
        scope: &TagScope,
        rules: &TagRules,
        key: &str,
        collector: &mut WarningCollector<'_>,
    ) {
        let TagScope::Service(service_name, _) = scope else { return };
        let Some(service) = self.services.get(service_name) else { return };
        let selected_workloads =
            self.workloads.iter().copied().filter(|workload| selects_workload(service, workload));
        let workloads: Vec<&Workload> = selected_workloads.collect();
        if workloads.is_empty() {
            return;
        }
        let mut reported_sets = BTreeSet::new();
        for rule in &rules.rules {
            for (index, target) in rule.split.targets.iter().enumerate() {
                let matches_no_workload =
                    !workloads.iter().any(|workload| has_tags(&target.set, workload));
                if matches_no_workload && target.weight > 0 && reported_sets.insert(&target.set) {
                    collector.add_warning(
                        format!("spec.rules[{}].{key}[{index}].tags", rule.origin.index),
                        format!("no workload of the Service {} has them", service.name),
                        "use labels of its workloads",
                    );
                }
            }
        }
    }
}

/// True if the workload may belong to the set of endpoints. A tag that must equal the caller's counts as equal, because the
/// caller is not known.
fn has_tags(set: &TagSet, workload: &Workload) -> bool {
    let has_tag = |(name, value): (&String, &TagValue)| match value {
        TagValue::Exact(value) => workload.labels.get(name) == Some(value),
        TagValue::SameAsCaller => true,
    };
    match set {
        TagSet::All(tags) => tags.iter().all(has_tag),
        TagSet::Any(tags) => tags.iter().any(has_tag),
        TagSet::Default | TagSet::AllInstances => true,
    }
}

/// Warns about rules that follow a rule for every request of every client.
fn lint_shadowed_rules(rules: &TagRules, collector: &mut WarningCollector<'_>) {
    let matches_all = |rule: &leno_model::TagRule| {
        rule.request_match == TagMatch::default() && rule.from == CallerMatch::default()
    };
    let Some(index) = rules.rules.iter().position(matches_all) else { return };
    let Some(catch_all) = rules.rules.get(index) else { return };
    for rule in rules.rules.iter().skip(index + 1) {
        collector.add_warning(
            format!("spec.rules[{}]", rule.origin.index),
            format!("never applies: rules[{}] matches every request first", catch_all.origin.index),
            "give it a greater `precedence`, or give the other rule a `match`",
        );
    }
}
