//! Warnings about tag rules in relation to services and workloads: rules without effect, tags of no workload.

use std::collections::BTreeSet;

use leno_model::{
    CallerMatch, Lane, NoEffect, SermantRouteRule, Service, ServiceName, TagEffects, TagMatch,
    TagRoute, TagRules, TagScope, TagSet, TagValue, Workload,
};

use super::service_policy::idle_hint;
use super::{ObjectIndex, ServiceReference, WarningCollector, is_selected};

impl ObjectIndex<'_> {
    pub(super) fn lint_tag_route(&self, route: &TagRoute, lint: &mut WarningCollector<'_>) {
        if let TagScope::Service(service, port) = &route.scope {
            let reference = ServiceReference {
                service,
                port: *port,
                field: "spec".to_owned(),
                name_field: "service",
            };
            self.lint_reference(&reference, lint);
        }
        lint_shadowed(&route.rules, lint);
        self.lint_tags(&route.scope, &route.rules, "split", lint);
        let field = match route.scope {
            TagScope::Service(..) => "spec.service",
            TagScope::Namespace(_) | TagScope::Mesh => "spec.scope",
        };
        self.lint_effects(
            field,
            &[(&route.scope, TagEffects::from_rules(&route.rules, &[]))],
            lint,
        );
    }

    pub(super) fn lint_sermant(&self, rule: &SermantRouteRule, lint: &mut WarningCollector<'_>) {
        for (scope, rules) in &rule.entries {
            let first = self.published.get(scope).filter(|first| ***first != rule.name);
            if let Some(first) = first {
                lint.add_warning(
                    "spec.key".to_owned(),
                    format!("the SermantRouteRule {first} also has this key, and takes precedence"),
                    "keep one: a configuration center has one value per key",
                );
            }
            if let Some(native) = self.tag_scopes.get(scope) {
                lint.add_warning(
                    "spec.key".to_owned(),
                    format!("the TagRoute {native} is for the same service and takes precedence"),
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
                self.lint_reference(&reference, lint);
            }
            self.lint_tags(scope, &rules.rules, "route", lint);
        }
        let entries = rule.entries.iter();
        let entries =
            entries.map(|(scope, it)| (scope, TagEffects::from_rules(&it.rules, &it.lanes)));
        self.lint_effects("spec.key", &entries.collect::<Vec<_>>(), lint);
    }

    pub(super) fn lint_lane(&self, lane: &Lane, lint: &mut WarningCollector<'_>) {
        let reference = ServiceReference {
            service: &lane.service,
            port: None,
            field: "spec".to_owned(),
            name_field: "service",
        };
        self.lint_reference(&reference, lint);
        let scope = TagScope::Service(lane.service.clone(), None);
        let marks = TagEffects { marks: !lane.rules.is_empty(), ..TagEffects::default() };
        self.lint_effects("spec.service", &[(&scope, marks)], lint);
    }

    /// Warns about rules without effect on any of their ports.
    fn lint_effects(
        &self,
        field: &str,
        entries: &[(&TagScope, TagEffects)],
        lint: &mut WarningCollector<'_>,
    ) {
        let mut found = None;
        for (scope, effects) in entries.iter().filter(|(_, effects)| !effects.is_none()) {
            for (service, port) in self.ports_of(scope) {
                match NoEffect::of_tags(*effects, service, port, self) {
                    Some(idle) => found = found.or(Some(idle)),
                    None => return,
                }
            }
        }
        if let Some(idle) = found {
            lint.add_warning(field.to_owned(), format!("has no effect: {idle}"), idle_hint(&idle));
        }
    }

    /// Returns the ports that tag rules apply to.
    fn ports_of(&self, scope: &TagScope) -> impl Iterator<Item = (&ServiceName, u16)> {
        let is_for = move |service: &&&Service| match scope {
            TagScope::Service(only, _) => service.name == *only,
            TagScope::Namespace(namespace) => service.name.namespace == *namespace,
            TagScope::Mesh => true,
        };
        let only = match scope {
            TagScope::Service(_, only) => *only,
            TagScope::Namespace(_) | TagScope::Mesh => None,
        };
        let services = self.services.values().filter(is_for);
        let ports = services.flat_map(|it| it.ports.iter().map(|port| (&it.name, port.port)));
        ports.filter(move |(_, port)| only.is_none_or(|only| only == *port))
    }

    /// Warns about targets that match no workload of the service.
    fn lint_tags(
        &self,
        scope: &TagScope,
        rules: &TagRules,
        key: &str,
        lint: &mut WarningCollector<'_>,
    ) {
        let TagScope::Service(service, _) = scope else { return };
        let Some(service) = self.services.get(service) else { return };
        let behind = self.workloads.iter().copied().filter(|w| is_selected(service, w));
        let behind: Vec<&Workload> = behind.collect();
        if behind.is_empty() {
            return;
        }
        let mut reported = BTreeSet::new();
        for rule in &rules.rules {
            for (index, target) in rule.split.targets.iter().enumerate() {
                let empty = !behind.iter().any(|workload| is_in(&target.set, workload));
                if empty && target.weight > 0 && reported.insert(&target.set) {
                    lint.add_warning(
                        format!("spec.rules[{}].{key}[{index}].tags", rule.origin.index),
                        format!("no workload of the Service {} has them", service.name),
                        "use labels of its workloads",
                    );
                }
            }
        }
    }
}

fn is_in(set: &TagSet, workload: &Workload) -> bool {
    let is = |(name, value): (&String, &TagValue)| match value {
        TagValue::Is(value) => workload.labels.get(name) == Some(value),
        TagValue::Callers => true,
    };
    match set {
        TagSet::All(tags) => tags.iter().all(is),
        TagSet::Any(tags) => tags.iter().any(is),
        TagSet::Default | TagSet::Every => true,
    }
}

/// Warns about rules after a rule that matches every request of every client.
fn lint_shadowed(rules: &TagRules, lint: &mut WarningCollector<'_>) {
    let takes_all = |rule: &leno_model::TagRule| {
        rule.matches == TagMatch::default() && rule.from == CallerMatch::default()
    };
    let Some(place) = rules.rules.iter().position(takes_all) else { return };
    let Some(all) = rules.rules.get(place) else { return };
    for rule in rules.rules.iter().skip(place + 1) {
        lint.add_warning(
            format!("spec.rules[{}]", rule.origin.index),
            format!("never applies: rules[{}] matches every request first", all.origin.index),
            "give it a greater `precedence`, or the other a `match`",
        );
    }
}
