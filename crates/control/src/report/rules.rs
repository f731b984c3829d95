//! Status of service policies and tag rules, for operators.

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
    pub(super) fn service_policy(&self, policy: &ServicePolicy) -> PolicyStatus {
        let namespace = &policy.name.namespace;
        let (destination, mut problems) = match &policy.scope {
            PolicyScope::Namespace => (vec![format!("{namespace}/*")], Vec::new()),
            PolicyScope::Services(targets) => {
                let shown = targets.iter().map(|it| format_target(&it.service, it.port));
                let absent =
                    targets.iter().filter_map(|it| self.missing_reference(&it.service, it.port));
                (shown.collect(), absent.collect())
            }
        };
        problems.extend(self.left_out(&ObjectKey::ServicePolicy(policy.name.clone())));
        let reason = match self.mesh.conflict_status(policy) {
            ConflictStatus::InForce => None,
            ConflictStatus::Overridden(other) => {
                Some(format!("{other} takes precedence at all of its targets"))
            }
            ConflictStatus::NoEffect(idle) => Some(idle.to_string()),
            ConflictStatus::NoTarget => Some("none of its targets exists".to_owned()),
        };
        PolicyStatus {
            kind: policy.name.kind.as_str().to_owned(),
            name: format!("{namespace}/{}", policy.name.name),
            destination: destination.join(", "),
            rules: rule_names(&policy.rule),
            in_force: reason.is_none(),
            reason,
            problems,
            missing_keys: self.missing_keys(policy),
            ..PolicyStatus::default()
        }
    }

    /// Returns the status of tag rules and lanes.
    pub(super) fn tag_rules(&self) -> impl Iterator<Item = PolicyStatus> {
        let tags = self.mesh.tags();
        let routes = tags.tag_routes().map(|route| self.tag_route(route));
        let sermant = tags.sermant_rules().map(|item| self.sermant_status(item));
        routes.chain(sermant).chain(tags.lanes().map(|lane| self.lane_status(lane)))
    }

    fn tag_route(&self, TagRoute { name, scope, rules, .. }: &TagRoute) -> PolicyStatus {
        self.of_scopes(TagDialect::TagRoute, name, &[(scope, rules, &[])])
    }

    fn sermant_status(&self, item: &SermantRouteRule) -> PolicyStatus {
        let scopes = item.entries.iter();
        let scopes: Vec<_> =
            scopes.map(|(scope, it)| (scope, &it.rules, it.lanes.as_slice())).collect();
        self.of_scopes(TagDialect::Sermant, &item.name, &scopes)
    }

    fn of_scopes(
        &self,
        dialect: TagDialect,
        name: &TagRouteName,
        scopes: &[(&TagScope, &TagRules, &[LaneRule])],
    ) -> PolicyStatus {
        let own = dialect.object_key(name.clone());
        let mut others = Vec::new();
        let (mut decides, mut idle) = (false, None);
        let mut destination = BTreeSet::new();
        let mut problems = Vec::new();
        let (mut by_request, mut by_caller, mut lanes) = (0, 0, 0);
        for (scope, rules, marks) in scopes {
            destination.insert(match scope {
                TagScope::Service(service, port) => format_target(service, *port),
                TagScope::Namespace(namespace) => format!("{namespace}/*"),
                TagScope::Mesh => "*".to_owned(),
            });
            if let TagScope::Service(service, port) = scope {
                problems.extend(self.missing_reference(service, *port));
            }
            by_request += rules.rules.len();
            by_caller += rules.by_caller.len();
            lanes += marks.len();
            if !decides {
                match self.effect_of_tags(&own, scope, &mut others) {
                    TagEffect::Decides => decides = true,
                    TagEffect::Idle(found) => idle = idle.or(Some(found)),
                    TagEffect::Nowhere => {}
                }
            }
        }
        let reason = match (idle, others.first()) {
            _ if decides => None,
            (Some(idle), _) => Some(idle.to_string()),
            (None, Some(other)) => Some(format!("{other} takes precedence")),
            (None, None) => Some("none of its targets exists".to_owned()),
        };
        let counted = [(by_request, "by request"), (by_caller, "by caller"), (lanes, "for lanes")];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        PolicyStatus {
            kind: dialect.as_str().to_owned(),
            name: name.to_string(),
            destination: destination.into_iter().collect::<Vec<_>>().join(", "),
            rules: counted.map(|(count, what)| format!("{count} {what}")).collect(),
            in_force: decides,
            reason,
            problems,
            ..PolicyStatus::default()
        }
    }

    /// Returns the effect of an object at the ports of its scope; overriding objects are added to `others`.
    fn effect_of_tags(
        &self,
        own: &ObjectKey,
        scope: &TagScope,
        others: &mut Vec<ObjectKey>,
    ) -> TagEffect {
        let is_for = |service: &ServiceName| match scope {
            TagScope::Service(only, _) => only == service,
            TagScope::Namespace(namespace) => service.namespace == *namespace,
            TagScope::Mesh => true,
        };
        let tags = self.mesh.tags();
        let mut idle = None;
        for service in self.mesh.services().filter(|it| is_for(&it.name)) {
            let marks = tags.lanes_of(&service.name);
            let marks = marks.iter().any(|it| it.origin.object_key() == *own);
            let mut decide: Vec<ObjectKey> = Vec::new();
            let mut is_here = false;
            for port in &service.ports {
                let rules = tags.rules_for(&service.name, port.port);
                let rules = rules.iter();
                let by_request = rules.clone().flat_map(|it| &it.rules);
                let by_request: Vec<_> = by_request.map(|it| it.origin.object_key()).collect();
                let by_caller = rules.flat_map(|it| &it.by_caller);
                let by_caller: Vec<_> = by_caller.map(|it| it.origin.object_key()).collect();
                let effects = TagEffects {
                    by_request: by_request.contains(own),
                    by_caller: by_caller.contains(own),
                    marks,
                };
                if !effects.is_none() {
                    is_here = true;
                    let Some(found) =
                        NoEffect::of_tags(effects, &service.name, port.port, &self.mesh)
                    else {
                        return TagEffect::Decides;
                    };
                    idle = idle.or(Some(found));
                }
                decide.extend(by_request.into_iter().chain(by_caller));
            }
            if !is_here {
                others.extend(decide.into_iter().next().filter(|_| others.is_empty()));
            }
        }
        idle.map_or(TagEffect::Nowhere, TagEffect::Idle)
    }

    fn lane_status(&self, lane: &Lane) -> PolicyStatus {
        let is_there = self.mesh.service(&lane.service).is_some();
        let has_listener_kind = self.mesh.service_workloads(&lane.service).next().is_some();
        let reason = match has_listener_kind {
            true => self.idle_lane(lane).map(|idle| idle.to_string()),
            false if is_there => Some("its service has no workloads".to_owned()),
            false => Some("its service does not exist".to_owned()),
        };
        PolicyStatus {
            kind: TagDialect::Lane.as_str().to_owned(),
            name: lane.name.to_string(),
            destination: lane.service.to_string(),
            rules: vec![format_count(lane.rules.len(), "rule")],
            in_force: reason.is_none(),
            reason,
            problems: self.missing_reference(&lane.service, None).into_iter().collect(),
            ..PolicyStatus::default()
        }
    }

    /// Returns the reason why a lane marks no request at any port of its service.
    fn idle_lane(&self, lane: &Lane) -> Option<NoEffect> {
        let service = self.mesh.service(&lane.service)?;
        let effects = TagEffects { marks: true, ..TagEffects::default() };
        let ports = service.ports.iter();
        let idle: Option<Vec<NoEffect>> = ports
            .map(|it| NoEffect::of_tags(effects, &service.name, it.port, &self.mesh))
            .collect();
        idle?.into_iter().next()
    }
}

/// The effect of tag rules in their scope.
enum TagEffect {
    /// They apply at one port at least.
    Decides,
    /// They have no effect, for the first reason found.
    Idle(NoEffect),
    /// They apply at no port.
    Nowhere,
}

/// Returns the rules of a policy that have names.
fn rule_names(rule: &ServiceRule) -> Vec<String> {
    match rule {
        ServiceRule::FaultInjection(rules) => rules.iter().map(|it| it.name.clone()).collect(),
        ServiceRule::RateLimit(limits) => limits.rules.iter().map(|it| it.name.clone()).collect(),
        ServiceRule::UpstreamTrafficSetting(both) => {
            both.1.rules.iter().map(|it| it.name.clone()).collect()
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
