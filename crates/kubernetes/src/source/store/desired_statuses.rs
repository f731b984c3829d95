//! Statuses of custom resources, from the current state.

mod conflict_context;

pub(super) use conflict_context::ConflictContext;
use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    ConflictStatus, Destinations, GatewayTcpRoute, MeshConfig, Name, NoEffect, NoEffectCause,
    Object, PolicyContext, PolicyScope, PolicySide, Protocol, ReferenceGrant, RouteKind,
    RouteParent, Service, ServiceName, ServicePolicy, TagScope, TcpRule, TlsRoute, TlsRule,
    WeightedBackend, leads_back, no_requests,
};
use leno_registry::RejectedDocument;
use serde_json::Value;

use super::conflicts::ConflictIndex;
use super::{ObjectOrigin, ObjectStore};
use crate::external_principals::ACCESS_CERT;
use crate::gateway::{RouteId, RouteParentStatus};
use crate::read::matches_selector;
use crate::source::status_record::StatusRecord;
use crate::status::event::shorten_middle;
use crate::status::{CONTROLLER, DesiredStatus, StatusCondition, StatusContent, StatusForm};

impl ObjectStore {
    /// Returns the statuses to write. Returns `None` if they are unchanged, and before the first update.
    pub(crate) fn changed_statements(&mut self) -> Option<Vec<DesiredStatus>> {
        if !self.has_reported() || !std::mem::take(&mut self.statuses_stale) {
            return None;
        }
        let others = self.shared_data();
        let all = self
            .records
            .iter()
            .filter_map(|(origin, record)| self.object_statement(origin, record, &others));
        Some(all.filter(DesiredStatus::is_due).collect())
    }

    /// Collects data that is shared between the statuses of many objects.
    fn shared_data(&self) -> StatusContext<'_> {
        let mut others = StatusContext {
            config: self.mesh_config().unwrap_or_default(),
            ..StatusContext::default()
        };
        for (_, object, _) in self.custom_resources.in_force_all() {
            others.conflicts.add_object(object);
            match object {
                Object::ReferenceGrant(grant) => others.grants.push(grant),
                Object::ServicePolicy(policy) => others.add_policy(policy),
                _ => {}
            }
        }
        others
    }

    /// Returns the reasons that an object is rejected, one per line; `None` if it is accepted.
    fn rejection_message(
        &self,
        origin: &ObjectOrigin,
        duplicate: Option<&RejectedDocument>,
    ) -> Option<String> {
        let rejections = self.diagnostics.get(origin).map(|(rejections, _)| rejections.as_slice());
        let rejections: Vec<String> = rejections
            .unwrap_or_default()
            .iter()
            .chain(duplicate)
            .take(REFUSALS_MAX)
            .map(|it| {
                let field = it.at.field.as_deref().unwrap_or_default();
                format!("{field}: {}; {}", it.problem, it.hint)
            })
            .collect();
        (!rejections.is_empty()).then(|| truncate_message(&rejections.join("\n")))
    }

    /// Returns the status of an object; `None` for gateways of other classes.
    fn object_statement(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        others: &StatusContext<'_>,
    ) -> Option<DesiredStatus> {
        let duplicate = self.custom_resources.duplicate_reason(origin);
        let refusal = self.rejection_message(origin, duplicate.as_ref());
        let id = &origin.id;
        let gateways = self.edge.as_ref();
        let content = match record.form {
            StatusForm::Nothing => StatusContent::Nothing,
            StatusForm::Gateway => {
                StatusContent::Gateway(gateways?.resolved.gateway_statuses.get(id)?.clone())
            }
            StatusForm::Class => {
                let (generation, conditions) = gateways?.resolved.classes.get(&id.name)?.clone();
                StatusContent::Class(generation, conditions)
            }
            StatusForm::Current if record.target.kind == ACCESS_CERT => {
                // No status before the outcome is known.
                let rejected = refusal.clone().map(Err);
                StatusContent::Current(
                    rejected.or_else(|| self.external_principal_outcome(record))?,
                )
            }
            StatusForm::Current => {
                let idle =
                    || self.closed_reason(origin).or_else(|| self.idle_reason(origin, others));
                StatusContent::Current(refusal.clone().or_else(idle).map_or(Ok(()), Err))
            }
            StatusForm::Conditions => {
                let reason = if duplicate.is_some() { CONFLICTED } else { "Invalid" };
                let rejected =
                    refusal.as_deref().map(|refusal| rejected_conditions(refusal, reason));
                StatusContent::Conditions(self.policy_conditions(origin, rejected, others))
            }
            StatusForm::Parents => {
                let resolved = self.route_references(origin, refusal.as_deref(), &others.grants);
                let parents = record.parents.iter().map(|parent| {
                    let (accepted, idle) = match refusal.as_deref() {
                        Some(refusal) => {
                            (accepted_condition(Some(refusal), "UnsupportedValue"), None)
                        }
                        None => self.parent_conditions(origin, record, parent, others),
                    };
                    RouteParentStatus {
                        parent: parent.clone(),
                        controller: CONTROLLER,
                        generation: record.generation,
                        conditions: with_programmed([accepted, resolved.clone()], idle),
                    }
                });
                let route = RouteId { kind: record.target.kind, id: id.clone() };
                let of_gateways = gateways.and_then(|it| it.resolved.parents.get(&route));
                StatusContent::Parents(
                    parents.chain(of_gateways.into_iter().flatten().cloned()).collect(),
                )
            }
        };
        Some(DesiredStatus {
            target: record.target.clone(),
            resource: record.resource.clone(),
            resource_version: record.resource_version.clone(),
            generation: record.generation,
            current_status: record.current_status.clone(),
            content,
            refusal: refusal.or_else(|| gateways?.rejection_reason(record.target.kind, id)),
            diagnostic: self.diagnostics_of(origin),
            conflict: self.unsaid_conflict(origin, record, others),
            dangling: self.unsaid_reference(origin, record),
        })
    }

    /// Returns the conditions of a policy; `rejected` has those of a rejected one.
    fn policy_conditions(
        &self,
        origin: &ObjectOrigin,
        rejected: Option<[StatusCondition; 2]>,
        others: &StatusContext<'_>,
    ) -> Vec<StatusCondition> {
        let [accepted, resolved] =
            rejected.unwrap_or_else(|| self.attachment_conditions(origin, others));
        let object = self.custom_resources.get_by_origin(origin);
        let enforced = object.and_then(|it| self.enforced_condition(it, &others.config, &accepted));
        let idle = object.filter(|_| accepted.status == "True");
        let idle = idle.and_then(|it| self.unprogrammed_condition(it, others));
        let programmed =
            idle.unwrap_or_else(|| StatusCondition::from_accepted(&accepted, REPORTED));
        [accepted, resolved, programmed].into_iter().chain(enforced).collect()
    }

    /// Returns the `Accepted` condition of a valid route for one of its parents, and the reason that the accepted
    /// route has no effect there.
    fn parent_conditions(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        parent: &Value,
        others: &StatusContext<'_>,
    ) -> (StatusCondition, Option<StatusCondition>) {
        let (service, port) = match parent_of(parent, &record.target.namespace) {
            Ok(known) => known,
            Err(problem) => return (accepted_condition(Some(&problem), "NoMatchingParent"), None),
        };
        if let Some(missing) = self.missing_part(&service, port) {
            return (accepted_condition(Some(&missing), "NoMatchingParent"), None);
        }
        let Some(route) = self.custom_resources.get_by_origin(origin) else {
            return (accepted_condition(None, ""), None);
        };
        let conflict = self.conflict_of_route(route, &service, port, &others.conflicts);
        let idle = || self.idle_route(route, &service, port, &others.conflicts);
        let idle = idle().filter(|_| conflict.is_none());
        (accepted_condition(conflict.as_deref(), CONFLICTED), idle)
    }

    /// Returns the object that takes precedence over a valid one, for kinds without a status.
    fn unsaid_conflict(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        others: &StatusContext<'_>,
    ) -> Option<String> {
        match self.custom_resources.get_by_origin(origin)? {
            Object::TrafficSplit(split) if record.form == StatusForm::Nothing => {
                self.conflict_of_split(split, &others.conflicts)
            }
            _ => None,
        }
    }

    /// Returns a missing object that a valid one refers to, for kinds without a status.
    fn unsaid_reference(&self, origin: &ObjectOrigin, record: &StatusRecord) -> Option<String> {
        let object = self
            .custom_resources
            .get_by_origin(origin)
            .filter(|_| record.form == StatusForm::Nothing)?;
        self.missing_reference(object)
    }

    /// Returns the conditions `Accepted` and `ResolvedRefs` of a valid object.
    fn attachment_conditions(
        &self,
        origin: &ObjectOrigin,
        others: &StatusContext<'_>,
    ) -> [StatusCondition; 2] {
        let Some(object) = self.custom_resources.get_by_origin(origin) else {
            return [
                accepted_condition(None, ""),
                references_condition("True", "ResolvedRefs", NAMES_NOTHING),
            ];
        };
        let targets = target_services(object);
        let missing: Vec<String> = targets
            .iter()
            .filter_map(|(service, port)| self.missing_part(service, *port))
            .collect();
        let is_nowhere = !targets.is_empty() && missing.len() == targets.len();
        let missing = (!missing.is_empty()).then(|| truncate_message(&missing.join("\n")));
        let first = match (&missing, self.overruled_reason(object, others)) {
            (Some(missing), _) if is_nowhere => accepted_condition(Some(missing), "TargetNotFound"),
            (_, Some(IneffectiveReason::Overruled(by))) => {
                accepted_condition(Some(&by), CONFLICTED)
            }
            (_, Some(IneffectiveReason::Idle(..)) | None) => accepted_condition(None, ""),
        };
        // Always written, to replace a previous condition.
        let second = match missing {
            _ if targets.is_empty() => references_condition("True", "ResolvedRefs", NAMES_NOTHING),
            Some(missing) => references_condition("False", "TargetNotFound", &missing),
            None => references_condition("True", "ResolvedRefs", "all targets exist"),
        };
        [first, second]
    }

    /// Returns the reason that a valid object of OSM's kinds has no effect.
    fn idle_reason(&self, origin: &ObjectOrigin, others: &StatusContext<'_>) -> Option<String> {
        let object = self.custom_resources.get_by_origin(origin)?;
        let targets = target_services(object);
        let mut missing = targets.iter().map(|(service, port)| self.missing_part(service, *port));
        let first = missing.next().flatten().filter(|_| missing.all(|it| it.is_some()));
        first
            .or_else(|| self.overruled_reason(object, others).map(IneffectiveReason::into_sentence))
    }

    /// Returns the condition `Programmed` of an accepted policy without effect: routes send the traffic of its
    /// targets elsewhere (GEP-713).
    fn unprogrammed_condition(
        &self,
        object: &Object,
        others: &StatusContext<'_>,
    ) -> Option<StatusCondition> {
        match self.overruled_reason(object, others) {
            Some(IneffectiveReason::Idle(message, reason)) => {
                let message = truncate_message(&message);
                Some(StatusCondition { word: "Programmed", status: "False", reason, message })
            }
            Some(IneffectiveReason::Overruled(_)) | None => None,
        }
    }

    /// Returns the reason that a valid object has no effect although its targets exist.
    fn overruled_reason(
        &self,
        object: &Object,
        others: &StatusContext<'_>,
    ) -> Option<IneffectiveReason> {
        let overruled = match object {
            Object::ServicePolicy(policy) => return self.outdone_policy(policy, others),
            Object::Retry(policy) => {
                if policy.services.iter().all(|it| self.is_opaque_at_each_port(it)) {
                    return Some(IneffectiveReason::Idle(
                        no_requests(&policy.services),
                        NO_REQUESTS,
                    ));
                }
                self.conflict_of_retry(policy, &others.conflicts)
            }
            Object::TagRoute(_) | Object::SermantRouteRule(_) => {
                self.conflict_of_tags(object, &others.conflicts)
            }
            _ => None,
        };
        let idle = || self.idle_by_routes(object, &ConflictContext { store: self, others });
        overruled
            .map(IneffectiveReason::Overruled)
            .or_else(|| idle().map(IneffectiveReason::of_idle))
    }

    fn outdone_policy(
        &self,
        policy: &ServicePolicy,
        others: &StatusContext<'_>,
    ) -> Option<IneffectiveReason> {
        let namespace = &policy.name.namespace;
        let services: Vec<&Service> = match &policy.scope {
            PolicyScope::Services(parents) => {
                parents.iter().filter_map(|it| self.services.get(&it.service)).collect()
            }
            PolicyScope::Namespace => self.services.of_namespace(namespace).collect(),
        };
        let ports = services
            .iter()
            .flat_map(|service| service.ports.iter().map(move |port| (&service.name, port.port)));
        match ConflictStatus::for_policy(policy, ports, &ConflictContext { store: self, others }) {
            ConflictStatus::Overridden(other) => Some(IneffectiveReason::Overruled(format!(
                "{other} takes precedence at all of its targets"
            ))),
            ConflictStatus::NoEffect(idle) => Some(IneffectiveReason::of_idle(idle)),
            ConflictStatus::InForce | ConflictStatus::NoTarget => None,
        }
    }

    /// Returns the `ResolvedRefs` condition of a route: whether its backends exist and may be used.
    fn route_references(
        &self,
        origin: &ObjectOrigin,
        refusal: Option<&str>,
        grants: &[&ReferenceGrant],
    ) -> StatusCondition {
        if let Some(refusal) = refusal {
            let refusals = self.diagnostics.get(origin).map(|(refusals, _)| refusals.as_slice());
            let fields =
                refusals.unwrap_or_default().iter().filter_map(|it| it.at.field.as_deref());
            let of_backend = |field: &str| {
                field.contains("ackendRef")
                    && (field.ends_with(".kind") || field.ends_with(".group"))
            };
            return match fields.into_iter().any(of_backend) {
                true => references_condition("False", "InvalidKind", refusal),
                false => references_condition("Unknown", "Pending", UNCHECKED),
            };
        }
        let Some(object) = self.custom_resources.get_by_origin(origin) else {
            return references_condition("Unknown", "Pending", UNCHECKED);
        };
        let (parents, backends) = route_backends(object);
        for (kind, own, service, port) in backends {
            let theirs = &service.namespace;
            let granted = || grants.iter().any(|grant| grant.permits_route(kind, own, service));
            if own != theirs && !leads_back(parents, service) && !granted() {
                let message = format!(
                    "no ReferenceGrant in {theirs} permits {service} to {}s of {own}",
                    kind.as_str()
                );
                return references_condition("False", "RefNotPermitted", &message);
            }
            if let Some(missing) = self.missing_part(service, Some(port)) {
                return references_condition("False", "BackendNotFound", &missing);
            }
        }
        references_condition("True", "ResolvedRefs", "all backends exist")
    }

    /// Returns the first missing backend of a route.
    pub(super) fn missing_backend(&self, route: &Object) -> Option<String> {
        let (_, backends) = route_backends(route);
        backends
            .into_iter()
            .find_map(|(_, _, service, port)| self.missing_part(service, Some(port)))
    }

    /// Returns the missing part of a service.
    pub(super) fn missing_part(&self, service: &ServiceName, port: Option<u16>) -> Option<String> {
        let Some(known) = self.services.get(service) else {
            return Some(format!("there is no Service {service} that selects pods"));
        };
        let port = port.filter(|port| !known.ports.iter().any(|known| known.port == *port))?;
        Some(format!("the Service {service} has no TCP port {port}"))
    }
}

/// Returns the service and optional port that a route refers to as its parent.
fn parent_of(parent: &Value, own: &str) -> Result<(ServiceName, Option<u16>), String> {
    let text = |key: &str| parent.get(key).and_then(Value::as_str);
    let name = text("name").unwrap_or_default();
    let port = parent.get("port").and_then(Value::as_u64);
    let port = port.and_then(|port| u16::try_from(port).ok());
    let service = ServiceName::new(text("namespace").unwrap_or(own), name);
    service.map(|service| (service, port)).map_err(|error| error.to_string())
}

/// Adds the `Programmed` condition; `idle` is that of an accepted route without effect.
fn with_programmed(
    [accepted, resolved]: [StatusCondition; 2],
    idle: Option<StatusCondition>,
) -> Vec<StatusCondition> {
    let programmed = idle.unwrap_or_else(|| StatusCondition::from_accepted(&accepted, REPORTED));
    vec![accepted, resolved, programmed]
}

fn accepted_condition(refusal: Option<&str>, reason: &'static str) -> StatusCondition {
    match refusal {
        Some(refusal) => StatusCondition {
            word: "Accepted",
            status: "False",
            reason,
            message: refusal.to_owned(),
        },
        None => StatusCondition {
            word: "Accepted",
            status: "True",
            reason: "Accepted",
            message: "in force".to_owned(),
        },
    }
}

/// Returns the conditions of an object that is rejected, or over which another one takes precedence.
fn rejected_conditions(refusal: &str, reason: &'static str) -> [StatusCondition; 2] {
    let unknown = references_condition("Unknown", "Pending", "this generation is not in force");
    [accepted_condition(Some(refusal), reason), unknown]
}

fn references_condition(
    status: &'static str,
    reason: &'static str,
    message: &str,
) -> StatusCondition {
    StatusCondition { word: "ResolvedRefs", status, reason, message: message.to_owned() }
}

/// The reason that a valid object has no effect although its targets exist.
enum IneffectiveReason {
    /// Another object takes precedence.
    Overruled(String),
    /// It is in force but affects no traffic; with the reason of the condition.
    Idle(String, &'static str),
}

impl IneffectiveReason {
    fn of_idle(idle: NoEffect) -> Self {
        let reason = match idle.cause {
            NoEffectCause::NoRequests(..) => NO_REQUESTS,
            _ => OVERRIDDEN,
        };
        Self::Idle(idle.to_string(), reason)
    }

    fn into_sentence(self) -> String {
        match self {
            Self::Overruled(sentence) | Self::Idle(sentence, _) => sentence,
        }
    }
}

/// Data that is shared between the statuses of many objects.
#[derive(Default)]
struct StatusContext<'a> {
    grants: Vec<&'a ReferenceGrant>,
    /// The policies by target service; `by_namespace` has those that target a whole namespace.
    by_service: BTreeMap<&'a ServiceName, Vec<&'a ServicePolicy>>,
    by_namespace: BTreeMap<&'a Name, Vec<&'a ServicePolicy>>,
    conflicts: ConflictIndex<'a>,
    /// The settings of the mesh.
    config: MeshConfig,
}

impl<'a> StatusContext<'a> {
    fn add_policy(&mut self, policy: &'a ServicePolicy) {
        match &policy.scope {
            PolicyScope::Namespace => {
                self.by_namespace.entry(&policy.name.namespace).or_default().push(policy);
            }
            PolicyScope::Services(parents) => {
                let services: BTreeSet<&ServiceName> =
                    parents.iter().map(|parent| &parent.service).collect();
                for service in services {
                    self.by_service.entry(service).or_default().push(policy);
                }
            }
        }
    }

    /// Returns the policies that may apply to a service.
    fn policies_for(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        let named = self.by_service.get(service);
        let near = self.by_namespace.get(&service.namespace);
        named.into_iter().chain(near).flatten().copied().collect()
    }
}

/// Returns the services, with optional ports, that an object other than a route targets by name.
fn target_services(object: &Object) -> Vec<(&ServiceName, Option<u16>)> {
    let of_scope = |scope| match scope {
        &TagScope::Service(ref service, port) => Some((service, port)),
        TagScope::Namespace(_) | TagScope::Mesh => None,
    };
    match object {
        Object::ServicePolicy(policy) => match &policy.scope {
            PolicyScope::Services(parents) => {
                parents.iter().map(|parent| (&parent.service, parent.port)).collect()
            }
            PolicyScope::Namespace => Vec::new(),
        },
        Object::TagRoute(route) => of_scope(&route.scope).into_iter().collect(),
        Object::SermantRouteRule(rule) => {
            rule.entries.iter().filter_map(|(scope, _)| of_scope(scope)).collect()
        }
        Object::Lane(lane) => vec![(&lane.service, None)],
        _ => Vec::new(),
    }
}

/// Returns the parents of a route, and the services to which it routes.
pub(super) fn route_backends(object: &Object) -> (&[RouteParent], Vec<RouteBackend<'_>>) {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => {
            let all =
                route.rules.iter().flat_map(|it| it.backends.iter().chain(&it.actions.mirrors));
            let own = &route.name.namespace;
            let all = all.map(|it| (route.kind, own, &it.service, it.port));
            (&route.parents, all.collect())
        }
        Object::TlsRoute(TlsRoute { parents, rule: TlsRule { route, backends, .. }, .. }) => {
            (parents, of_kind(RouteKind::Tls, &route.namespace, backends))
        }
        Object::GatewayTcpRoute(GatewayTcpRoute {
            parents,
            rule: TcpRule { route, backends, .. },
            ..
        }) => (parents, of_kind(RouteKind::Tcp, &route.namespace, backends)),
        _ => (&[], Vec::new()),
    }
}

fn of_kind<'a>(
    kind: RouteKind,
    own: &'a Name,
    backends: &'a [WeightedBackend],
) -> Vec<RouteBackend<'a>> {
    backends.iter().map(|it| (kind, own, &it.service, it.port)).collect()
}

/// A backend: the kind and namespace of its route, the service and its port.
pub(super) type RouteBackend<'a> = (RouteKind, &'a Name, &'a ServiceName, u16);

/// Shortens a text to the length of a condition, with room for the rest of the status.
fn truncate_message(text: &str) -> String {
    shorten_middle(text, MESSAGE_BYTES_MAX)
}

/// The reason of an object over which another one takes precedence; also the Gateway API's reason for a route
/// in conflict with one of a kind with higher precedence (GEP-1426).
const CONFLICTED: &str = "Conflicted";
/// The reason of `Programmed` for a policy without effect (GEP-713).
pub(super) const OVERRIDDEN: &str = "Overridden";

/// The reason of `Programmed` for a policy at a port without visible requests.
const NO_REQUESTS: &str = "NoRequests";
/// The message for an object in force. It does not imply that sidecars have applied it.
const REPORTED: &str = "sent to every connected sidecar that it affects";
/// The message for an object without targets.
const NAMES_NOTHING: &str = "it has no targets";
/// The maximum number of errors in one status.
const REFUSALS_MAX: usize = 5;
/// The maximum length of a message. The API allows 32768 bytes, which is too long to read.
const MESSAGE_BYTES_MAX: usize = 2000;

const UNCHECKED: &str = "the references of the route have not been checked";
