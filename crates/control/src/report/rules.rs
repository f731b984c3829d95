//! Reports the status of service policies, tag rules and lanes to operators.

use std::collections::BTreeSet;

use leno_model::{
    ConflictStatus, Lane, LaneRule, NoEffect, ObjectKey, PolicyScope, SermantRouteRule,
    ServiceName, ServicePolicy, ServiceRule, TagDialect, TagEffects, TagRoute, TagRouteName,
    TagRules, TagScope,
};

use super::Report;
use crate::figures::format_count;
use crate::status::PolicyStatus;

impl Report<'_> {
    pub(super) fn service_policy_status(&self, policy: &ServicePolicy) -> PolicyStatus {
        let namespace = &policy.name.namespace;
        let (destinations, mut problems) = match &policy.scope {
            PolicyScope::Namespace => (vec![format!("{namespace}/*")], Vec::new()),
            PolicyScope::Services(targets) => {
                let names =
                    targets.iter().map(|target| format_target(&target.service, target.port));
                let missing_references = targets
                    .iter()
                    .filter_map(|target| self.missing_reference(&target.service, target.port));
                (names.collect(), missing_references.collect())
            }
        };
        problems.extend(self.excluded_endpoints(&ObjectKey::ServicePolicy(policy.name.clone())));
        let reason = match self.mesh.conflict_status(policy) {
            ConflictStatus::Effective => None,
            ConflictStatus::Overridden(other) => {
                Some(format!("{other} takes precedence at all of its targets"))
            }
            ConflictStatus::NoEffect(no_effect) => Some(no_effect.to_string()),
            ConflictStatus::NoTarget => Some("none of its targets exists".to_owned()),
        };
        PolicyStatus {
            kind: policy.name.kind.as_str().to_owned(),
            name: format!("{namespace}/{}", policy.name.name),
            destinations,
            rules: rule_names(&policy.rule),
            in_force: reason.is_none(),
            reason,
            problems,
            missing_keys: self.missing_keys(policy),
            ..PolicyStatus::default()
        }
    }

    /// Returns the status of tag rules and lanes.
    pub(super) fn tag_rule_statuses(&self) -> impl Iterator<Item = PolicyStatus> {
        let tags = self.mesh.tags();
        let route_statuses = tags.tag_routes().map(|route| self.tag_route_status(route));
        let sermant_statuses =
            tags.sermant_rules().map(|rule_object| self.sermant_status(rule_object));
        route_statuses
            .chain(sermant_statuses)
            .chain(tags.lanes().map(|lane| self.lane_status(lane)))
    }

    fn tag_route_status(&self, TagRoute { name, scope, rules, .. }: &TagRoute) -> PolicyStatus {
        self.scoped_rules_status(TagDialect::TagRoute, name, &[(scope, rules, &[])])
    }

    fn sermant_status(&self, rule_object: &SermantRouteRule) -> PolicyStatus {
        let scopes: Vec<_> = rule_object
            .entries
            .iter()
            .map(|(scope, entry)| (scope, &entry.rules, entry.lanes.as_slice()))
            .collect();
        self.scoped_rules_status(TagDialect::Sermant, &rule_object.name, &scopes)
    }

    /// Returns the status of an object with tag rules and lane rules for several scopes. The object is in force if its
    /// rules apply at one port at least.
    fn scoped_rules_status(
        &self,
        dialect: TagDialect,
        name: &TagRouteName,
        scopes: &[(&TagScope, &TagRules, &[LaneRule])],
    ) -> PolicyStatus {
        let own_key = dialect.object_key(name.clone());
        let mut overriding_objects = Vec::new();
        let (mut is_in_effect, mut no_effect) = (false, None);
        let mut destinations = BTreeSet::new();
        let mut problems = Vec::new();
        let (mut request_rule_count, mut caller_rule_count, mut lane_rule_count) = (0, 0, 0);
        for (scope, rules, lane_rules) in scopes {
            destinations.insert(match scope {
                TagScope::Service(service, port) => format_target(service, *port),
                TagScope::Namespace(namespace) => format!("{namespace}/*"),
                TagScope::Mesh => "*".to_owned(),
            });
            if let TagScope::Service(service, port) = scope {
                problems.extend(self.missing_reference(service, *port));
            }
            request_rule_count += rules.rules.len();
            caller_rule_count += rules.caller_rules.len();
            lane_rule_count += lane_rules.len();
            if !is_in_effect {
                match self.tag_effect(&own_key, scope, &mut overriding_objects) {
                    TagEffect::InForce => is_in_effect = true,
                    TagEffect::NoEffect(reason) => no_effect = no_effect.or(Some(reason)),
                    TagEffect::NoPort => {}
                }
            }
        }
        let reason = match (no_effect, overriding_objects.first()) {
            _ if is_in_effect => None,
            (Some(no_effect), _) => Some(no_effect.to_string()),
            (None, Some(other)) => Some(format!("{other} takes precedence")),
            (None, None) => Some("none of its targets exists".to_owned()),
        };
        let counts = [
            (request_rule_count, "by request"),
            (caller_rule_count, "by caller"),
            (lane_rule_count, "for lanes"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0);
        PolicyStatus {
            kind: dialect.as_str().to_owned(),
            name: name.to_string(),
            destinations: destinations.into_iter().collect(),
            rules: counts.map(|(count, kind)| format!("{count} {kind}")).collect(),
            in_force: is_in_effect,
            reason,
            problems,
            ..PolicyStatus::default()
        }
    }

    /// Returns the effect of an object at the ports of its scope. Adds an overriding object to `overriding_objects` if
    /// the list is empty.
    fn tag_effect(
        &self,
        own_key: &ObjectKey,
        scope: &TagScope,
        overriding_objects: &mut Vec<ObjectKey>,
    ) -> TagEffect {
        let is_in_scope = |service: &ServiceName| match scope {
            TagScope::Service(own_service, _) => own_service == service,
            TagScope::Namespace(namespace) => service.namespace == *namespace,
            TagScope::Mesh => true,
        };
        let tags = self.mesh.tags();
        let mut no_effect = None;
        for service in self.mesh.services().filter(|service| is_in_scope(&service.name)) {
            let lane_rules = tags.lanes_of(&service.name);
            let marks_requests = lane_rules.iter().any(|rule| rule.origin.object_key() == *own_key);
            let mut deciding_objects: Vec<ObjectKey> = Vec::new();
            let mut has_rules = false;
            for port in &service.ports {
                let port_rules = tags.rules_for(&service.name, port.port);
                let request_rules = port_rules.iter().flat_map(|rules| &rules.rules);
                let request_rule_objects: Vec<_> =
                    request_rules.map(|rule| rule.origin.object_key()).collect();
                let caller_rules = port_rules.iter().flat_map(|rules| &rules.caller_rules);
                let caller_rule_objects: Vec<_> =
                    caller_rules.map(|rule| rule.origin.object_key()).collect();
                let effects = TagEffects {
                    by_request: request_rule_objects.contains(own_key),
                    by_caller: caller_rule_objects.contains(own_key),
                    marks: marks_requests,
                };
                if !effects.is_none() {
                    has_rules = true;
                    let Some(reason) =
                        NoEffect::detect_for_tags(effects, &service.name, port.port, &self.mesh)
                    else {
                        return TagEffect::InForce;
                    };
                    no_effect = no_effect.or(Some(reason));
                }
                deciding_objects
                    .extend(request_rule_objects.into_iter().chain(caller_rule_objects));
            }
            // The reason in the status names only the first overriding object.
            if !has_rules {
                overriding_objects.extend(
                    deciding_objects.into_iter().next().filter(|_| overriding_objects.is_empty()),
                );
            }
        }
        no_effect.map_or(TagEffect::NoPort, TagEffect::NoEffect)
    }

    fn lane_status(&self, lane: &Lane) -> PolicyStatus {
        let service_exists = self.mesh.service(&lane.service).is_some();
        let has_workloads = self.mesh.service_workloads(&lane.service).next().is_some();
        let reason = match has_workloads {
            true => self.lane_no_effect(lane).map(|no_effect| no_effect.to_string()),
            false if service_exists => Some("its service has no workloads".to_owned()),
            false => Some("its service does not exist".to_owned()),
        };
        PolicyStatus {
            kind: TagDialect::Lane.as_str().to_owned(),
            name: lane.name.to_string(),
            destinations: vec![lane.service.to_string()],
            rules: vec![format_count(lane.rules.len(), "rule")],
            in_force: reason.is_none(),
            reason,
            problems: self.missing_reference(&lane.service, None).into_iter().collect(),
            ..PolicyStatus::default()
        }
    }

    /// Returns the reason why a lane marks no request at any port of its service.
    fn lane_no_effect(&self, lane: &Lane) -> Option<NoEffect> {
        let service = self.mesh.service(&lane.service)?;
        let effects = TagEffects { marks: true, ..TagEffects::default() };
        let ports = service.ports.iter();
        // `None` if the lane marks requests at one port at least.
        let no_effect: Option<Vec<NoEffect>> = ports
            .map(|port| NoEffect::detect_for_tags(effects, &service.name, port.port, &self.mesh))
            .collect();
        no_effect?.into_iter().next()
    }
}

/// The effect of an object's tag rules in their scope.
enum TagEffect {
    /// The rules apply at one port at least.
    InForce,
    /// The rules have no effect, for the first reason found.
    NoEffect(NoEffect),
    /// The rules apply at no port.
    NoPort,
}

/// Returns the names of the rules of a policy.
fn rule_names(rule: &ServiceRule) -> Vec<String> {
    match rule {
        ServiceRule::FaultInjection(rules) => rules.iter().map(|rule| rule.name.clone()).collect(),
        ServiceRule::RateLimit(limits) => {
            limits.rules.iter().map(|rule| rule.name.clone()).collect()
        }
        ServiceRule::UpstreamTrafficSetting(settings) => {
            settings.rate_limits.rules.iter().map(|rule| rule.name.clone()).collect()
        }
        ServiceRule::OutlierDetection(_)
        | ServiceRule::SermantRemoval(_)
        | ServiceRule::CircuitBreaker(_)
        | ServiceRule::LoadBalancing(_)
        | ServiceRule::Hedging(_)
        | ServiceRule::RequestCheck(_) => Vec::new(),
    }
}

fn format_target(service: &ServiceName, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{service}:{port}"),
        None => service.to_string(),
    }
}
