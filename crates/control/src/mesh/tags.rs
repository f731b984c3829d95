//! Indexes tag rules and lanes by service. Tag rules come from `TagRoute`s and from `SermantRouteRule`s, the rules of
//! the service mesh Sermant. If several scopes have rules for a service, the most specific scope applies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{
    Lane, LaneRule, Name, Object, ObjectKey, SermantRouteRule, SermantRules, ServiceName, TagRoute,
    TagRouteName, TagRules, TagScope,
};

use super::index::Index;

/// All objects with tag rules, and their indexes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TagObjects {
    tag_routes: BTreeMap<TagRouteName, TagRoute>,
    sermant_rules: BTreeMap<TagRouteName, SermantRouteRule>,
    lanes: BTreeMap<TagRouteName, Lane>,
    routes_by_scope: Index<RuleScope, TagRouteName>,
    sermant_rules_by_scope: Index<RuleScope, TagRouteName>,
    lanes_by_service: Index<ServiceName, TagRouteName>,
    matched_attributes: MatchedAttributes,
}

/// The caller attributes that tag rules match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MatchedAttributes {
    /// The number of objects with rules that match caller attributes.
    object_count: usize,
    /// The number of objects that match each label of callers.
    label_counts: BTreeMap<String, usize>,
}

/// The scope of tag rules, regardless of ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuleScope {
    Service(ServiceName),
    Namespace(Name),
    Mesh,
}

/// The effect of a changed `TagRoute`, `SermantRouteRule` or `Lane` on the proxies' configurations.
#[derive(Debug, Default)]
pub(crate) struct AffectedByTags {
    /// Scopes with changed rules.
    pub(crate) scopes: BTreeSet<RuleScope>,
    /// Services with changed lane rules for the requests that they receive.
    pub(crate) entry_services: BTreeSet<ServiceName>,
    /// True if the caller attributes in proxy configurations may change.
    pub(crate) caller_attributes: bool,
}

impl MatchedAttributes {
    /// True if any object has rules that match caller attributes.
    pub(crate) fn has_rules(&self) -> bool {
        self.object_count > 0
    }

    /// True if a rule matches this label of callers.
    pub(crate) fn matches_label(&self, label: &str) -> bool {
        self.label_counts.contains_key(label)
    }

    fn count_rules(&mut self, rules: &TagRules, count_change: CountChange) {
        let (tags, matches_callers) = rules.caller_tags();
        if matches_callers {
            count_change.apply(&mut self.object_count);
        }
        for tag in tags {
            let count = self.label_counts.entry(tag.to_owned()).or_default();
            count_change.apply(count);
            if *count == 0 {
                self.label_counts.remove(tag);
            }
        }
    }

    /// Returns true if any rule matches callers, and the matched labels. These two determine the caller attributes in
    /// proxy configurations; the numbers of objects make no difference.
    fn without_counts(&self) -> (bool, BTreeSet<&String>) {
        (self.has_rules(), self.label_counts.keys().collect())
    }
}

#[derive(Clone, Copy)]
enum CountChange {
    Increment,
    Decrement,
}

impl CountChange {
    fn apply(self, count: &mut usize) {
        *count = match self {
            Self::Increment => count.saturating_add(1),
            Self::Decrement => count.saturating_sub(1),
        };
    }
}

/// Queries of tag rules and lanes.
impl TagObjects {
    /// Returns the rules for a port of a service. Rules by request and rules by caller are selected separately:
    /// each from the most specific scope that has some, and a `TagRoute` before a `SermantRouteRule`.
    pub(crate) fn rules_for(&self, service: &ServiceName, port: u16) -> Option<Arc<TagRules>> {
        let scopes = [
            RuleScope::Service(service.clone()),
            RuleScope::Namespace(service.namespace.clone()),
            RuleScope::Mesh,
        ];
        let rules = TagRules::select_most_specific(scopes.iter().flat_map(|scope| {
            let sermant_rules =
                self.sermant_rules_for(scope).map(|(_, sermant)| sermant.rules.clone());
            [self.tag_route_rules(scope, port)].into_iter().chain(sermant_rules)
        }));
        (!rules.is_empty()).then(|| Arc::new(rules))
    }

    /// True if an object has rules for a service, its namespace, or the mesh.
    pub(crate) fn concerns_service(&self, object: &ObjectKey, service: &ServiceName) -> bool {
        let namespace = RuleScope::Namespace(service.namespace.clone());
        let scopes = [RuleScope::Service(service.clone()), namespace, RuleScope::Mesh];
        let is_listed = |index: &Index<RuleScope, TagRouteName>, name: &TagRouteName| {
            scopes.iter().any(|scope| index.values_for(scope).any(|listed| listed == name))
        };
        match object {
            ObjectKey::TagRoute(name) => is_listed(&self.routes_by_scope, name),
            ObjectKey::SermantRouteRule(name) => is_listed(&self.sermant_rules_by_scope, name),
            ObjectKey::Lane(name) => {
                self.lanes_by_service.values_for(service).any(|listed| listed == name)
            }
            _ => false,
        }
    }

    /// Returns the lane rules that mark requests received by a service.
    pub(crate) fn lanes_of(&self, service: &ServiceName) -> Vec<LaneRule> {
        let names = self.lanes_by_service.values_for(service);
        let mut lanes: Vec<&Lane> = names.filter_map(|name| self.lanes.get(name)).collect();
        lanes.sort_by_key(|lane| lane.precedence());
        let lane_rules = lanes.into_iter().flat_map(|lane| &lane.rules);
        let sermant_rules = self
            .sermant_rules_for(&RuleScope::Service(service.clone()))
            .into_iter()
            .flat_map(|(_, rules)| &rules.lanes);
        let mut rules: Vec<LaneRule> = lane_rules.chain(sermant_rules).cloned().collect();
        rules.sort_by_key(|rule| Reverse(rule.priority));
        rules
    }

    /// Returns the caller attributes that rules match.
    pub(crate) fn matched_attributes(&self) -> &MatchedAttributes {
        &self.matched_attributes
    }

    /// True if an object exists and is a `TagRoute`, `SermantRouteRule` or `Lane`.
    pub(crate) fn has_object(&self, key: &ObjectKey) -> bool {
        match key {
            ObjectKey::TagRoute(name) => self.tag_routes.contains_key(name),
            ObjectKey::SermantRouteRule(name) => self.sermant_rules.contains_key(name),
            ObjectKey::Lane(name) => self.lanes.contains_key(name),
            _ => false,
        }
    }

    /// Returns all objects, by name within each kind.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = Object> {
        let routes = self.tag_routes.values().cloned().map(Object::TagRoute);
        let sermant = self.sermant_rules.values().cloned().map(Object::SermantRouteRule);
        let lanes = self.lanes.values().cloned().map(Object::Lane);
        routes.chain(sermant).chain(lanes)
    }

    /// Returns all `TagRoute`s, by name.
    pub(crate) fn tag_routes(&self) -> impl Iterator<Item = &TagRoute> {
        self.tag_routes.values()
    }

    /// Returns all `SermantRouteRule`s, by name.
    pub(crate) fn sermant_rules(&self) -> impl Iterator<Item = &SermantRouteRule> {
        self.sermant_rules.values()
    }

    /// Returns all `Lane`s, by name.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.values()
    }

    /// Returns the rules of all `TagRoute`s of a scope.
    fn tag_route_rules(&self, scope: &RuleScope, port: u16) -> TagRules {
        let names = self.routes_by_scope.values_for(scope);
        let routes =
            names.filter_map(|name| self.tag_routes.get(name)).filter(|route| match &route.scope {
                TagScope::Service(_, port_limit) => {
                    port_limit.is_none_or(|port_limit| port_limit == port)
                }
                TagScope::Namespace(_) | TagScope::Mesh => true,
            });
        TagRules::merge_routes(routes)
    }

    /// Returns the Sermant rules of a scope. They are from the oldest object; of objects of the same age, from the
    /// first by name.
    fn sermant_rules_for(&self, scope: &RuleScope) -> Option<&(TagScope, SermantRules)> {
        let names = self.sermant_rules_by_scope.values_for(scope);
        let objects = names.filter_map(|name| self.sermant_rules.get(name));
        let object = objects.min_by_key(|object| object.precedence())?;
        object.entries.iter().find(|(tag_scope, _)| rule_scope(tag_scope) == *scope)
    }
}

/// Changes of tag rules and lanes. Each `set_` method adds, replaces or removes (`None`) an object, and returns the
/// effect on the proxies' configurations.
impl TagObjects {
    pub(crate) fn set_route(
        &mut self,
        name: &TagRouteName,
        new: Option<TagRoute>,
    ) -> AffectedByTags {
        let mut affected = AffectedByTags::default();
        let old = self.tag_routes.remove(name);
        if old == new {
            self.tag_routes.extend(new.map(|new| (name.clone(), new)));
            return affected;
        }
        let previous_attributes = self.matched_attributes.clone();
        if let Some(old) = old {
            let scope = rule_scope(&old.scope);
            self.matched_attributes.count_rules(&old.rules, CountChange::Decrement);
            self.routes_by_scope.remove(&scope, name);
            affected.scopes.insert(scope);
        }
        if let Some(new) = new {
            let scope = rule_scope(&new.scope);
            self.matched_attributes.count_rules(&new.rules, CountChange::Increment);
            self.routes_by_scope.insert(&scope, name);
            affected.scopes.insert(scope);
            self.tag_routes.insert(name.clone(), new);
        }
        affected.caller_attributes =
            previous_attributes.without_counts() != self.matched_attributes.without_counts();
        affected
    }

    pub(crate) fn set_sermant_rule(
        &mut self,
        name: &TagRouteName,
        new: Option<SermantRouteRule>,
    ) -> AffectedByTags {
        let mut affected = AffectedByTags::default();
        let old = self.sermant_rules.remove(name);
        let previous_attributes = self.matched_attributes.clone();
        for (scope, rules) in old.iter().flat_map(|old| &old.entries) {
            self.matched_attributes.count_rules(&rules.rules, CountChange::Decrement);
            self.sermant_rules_by_scope.remove(&rule_scope(scope), name);
            affected.scopes.insert(rule_scope(scope));
        }
        for (scope, rules) in new.iter().flat_map(|new| &new.entries) {
            self.matched_attributes.count_rules(&rules.rules, CountChange::Increment);
            self.sermant_rules_by_scope.insert(&rule_scope(scope), name);
            affected.scopes.insert(rule_scope(scope));
        }
        if old == new {
            affected = AffectedByTags::default();
        }
        self.sermant_rules.extend(new.map(|new| (name.clone(), new)));
        let entry_services = affected.scopes.iter().filter_map(|scope| match scope {
            RuleScope::Service(service) => Some(service.clone()),
            RuleScope::Namespace(_) | RuleScope::Mesh => None,
        });
        affected.entry_services = entry_services.collect();
        affected.caller_attributes =
            previous_attributes.without_counts() != self.matched_attributes.without_counts();
        affected
    }

    pub(crate) fn set_lane(&mut self, name: &TagRouteName, new: Option<Lane>) -> AffectedByTags {
        let mut affected = AffectedByTags::default();
        let old = self.lanes.remove(name);
        let differs = old != new;
        if let Some(old) = old {
            self.lanes_by_service.remove(&old.service, name);
            affected.entry_services.insert(old.service);
        }
        if let Some(new) = new {
            self.lanes_by_service.insert(&new.service, name);
            affected.entry_services.insert(new.service.clone());
            self.lanes.insert(name.clone(), new);
        }
        match differs {
            true => affected,
            false => AffectedByTags::default(),
        }
    }
}

/// Returns the scope without its port.
fn rule_scope(scope: &TagScope) -> RuleScope {
    match scope {
        TagScope::Service(service, _) => RuleScope::Service(service.clone()),
        TagScope::Namespace(namespace) => RuleScope::Namespace(namespace.clone()),
        TagScope::Mesh => RuleScope::Mesh,
    }
}
