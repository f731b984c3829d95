//! Computes the desired statuses of objects from the contents of the store.

mod conflict_context;
mod status_context;

use leno_model::{
    ConflictStatus, GatewayTcpRoute, Name, NoEffect, NoEffectCause, Object, PolicyScope,
    ReferenceGrant, RouteKind, RouteParent, Service, ServiceName, ServicePolicy, TagScope, TcpRule,
    TlsRoute, TlsRule, WeightedBackend, describe_tcp_only_services, is_only_parent,
};
use leno_registry::RejectedDocument;
use serde_json::Value;

pub(super) use self::conflict_context::ConflictContext;
use self::status_context::StatusContext;
use super::{ObjectOrigin, ObjectStore};
use crate::external_principals::ACCESS_CERT;
use crate::gateway::{RouteId, RouteParentStatus};
use crate::source::status_record::StatusRecord;
use crate::status::event::shorten_middle;
use crate::status::{CONTROLLER, DesiredStatus, StatusCondition, StatusContent, StatusForm};

impl ObjectStore {
    /// Returns the statuses to write; `None` if they are unchanged, or before the first update.
    pub(crate) fn changed_statuses(&mut self) -> Option<Vec<DesiredStatus>> {
        if !self.has_published() || !std::mem::take(&mut self.statuses_stale) {
            return None;
        }
        let context = self.build_context();
        let statuses = self
            .records
            .iter()
            .filter_map(|(origin, record)| self.object_status(origin, record, &context));
        Some(statuses.filter(DesiredStatus::needs_write).collect())
    }

    /// Collects the data that is shared between the statuses of many objects.
    fn build_context(&self) -> StatusContext<'_> {
        let mut context = StatusContext::for_config(self.mesh_config().unwrap_or_default());
        for (_, object, _) in self.custom_resources.all_in_force() {
            context.conflicts.add_object(object);
            match object {
                Object::ReferenceGrant(grant) => context.grants.push(grant),
                Object::ServicePolicy(policy) => context.add_policy(policy),
                _ => {}
            }
        }
        context
    }

    /// Returns the reasons that an object is rejected, one per line; `None` if it is accepted.
    fn rejection_message(
        &self,
        origin: &ObjectOrigin,
        duplicate: Option<&RejectedDocument>,
    ) -> Option<String> {
        let object_rejections =
            self.diagnostics.get(origin).map(|(rejections, _)| rejections.as_slice());
        let rejections: Vec<String> = object_rejections
            .unwrap_or_default()
            .iter()
            .chain(duplicate)
            .take(MAX_REJECTIONS)
            .map(|document| {
                let field = document.location.field.as_deref().unwrap_or_default();
                format!("{field}: {}; {}", document.problem, document.hint)
            })
            .collect();
        (!rejections.is_empty()).then(|| truncate_message(&rejections.join("\n")))
    }

    /// Returns the status of an object; `None` for gateways of other classes.
    fn object_status(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        context: &StatusContext<'_>,
    ) -> Option<DesiredStatus> {
        let duplicate = self.custom_resources.duplicate_reason(origin);
        let rejection = self.rejection_message(origin, duplicate.as_ref());
        let id = &origin.id;
        let gateways = self.gateways.as_ref();
        let content = match record.form {
            StatusForm::NoStatus => StatusContent::NoStatus,
            StatusForm::Gateway => {
                StatusContent::Gateway(gateways?.resolved.gateway_statuses.get(id)?.clone())
            }
            StatusForm::Class => {
                let (generation, conditions) = gateways?.resolved.classes.get(&id.name)?.clone();
                StatusContent::Class(generation, conditions)
            }
            StatusForm::Current if record.target.kind == ACCESS_CERT => {
                // The status is written when the outcome is known.
                let rejected = rejection.clone().map(Err);
                StatusContent::Current(
                    rejected.or_else(|| self.external_principal_outcome(record))?,
                )
            }
            StatusForm::Current => {
                let no_effect = || {
                    self.closed_reason(origin).or_else(|| self.ineffective_message(origin, context))
                };
                StatusContent::Current(rejection.clone().or_else(no_effect).map_or(Ok(()), Err))
            }
            StatusForm::Conditions => {
                let reason = if duplicate.is_some() { CONFLICTED } else { "Invalid" };
                let rejected =
                    rejection.as_deref().map(|rejection| rejected_conditions(rejection, reason));
                StatusContent::Conditions(self.policy_conditions(origin, rejected, context))
            }
            StatusForm::Parents => {
                let resolved = self.route_references(origin, rejection.as_deref(), &context.grants);
                let parents = record.parents.iter().map(|parent| {
                    let (accepted, no_effect) = match rejection.as_deref() {
                        Some(rejection) => {
                            (accepted_condition(Some(rejection), "UnsupportedValue"), None)
                        }
                        None => self.parent_conditions(origin, record, parent, context),
                    };
                    RouteParentStatus {
                        parent: parent.clone(),
                        controller: CONTROLLER,
                        generation: record.generation,
                        conditions: with_programmed([accepted, resolved.clone()], no_effect),
                    }
                });
                let route = RouteId { kind: record.target.kind, id: id.clone() };
                let gateway_parents =
                    gateways.and_then(|gateways| gateways.resolved.parent_statuses.get(&route));
                StatusContent::Parents(
                    parents.chain(gateway_parents.into_iter().flatten().cloned()).collect(),
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
            rejection: rejection.or_else(|| gateways?.rejection_reason(record.target.kind, id)),
            diagnostic: self.warnings_message(origin),
            conflict: self.conflict_without_status(origin, record, context),
            missing_reference: self.missing_reference_without_status(origin, record),
        })
    }

    /// Returns the conditions of a policy. `rejected` has the conditions `Accepted` and `ResolvedRefs` of a
    /// rejected policy.
    fn policy_conditions(
        &self,
        origin: &ObjectOrigin,
        rejected: Option<[StatusCondition; 2]>,
        context: &StatusContext<'_>,
    ) -> Vec<StatusCondition> {
        let [accepted, resolved] =
            rejected.unwrap_or_else(|| self.attachment_conditions(origin, context));
        let object = self.custom_resources.get_by_origin(origin);
        let enforced =
            object.and_then(|object| self.enforced_condition(object, &context.config, &accepted));
        let accepted_object = object.filter(|_| accepted.status == "True");
        let no_effect =
            accepted_object.and_then(|object| self.unprogrammed_condition(object, context));
        let programmed =
            no_effect.unwrap_or_else(|| StatusCondition::from_accepted(&accepted, SENT_MESSAGE));
        [accepted, resolved, programmed].into_iter().chain(enforced).collect()
    }

    /// Returns the `Accepted` condition of a valid route for one of its parents, and the reason that the
    /// accepted route has no effect there.
    fn parent_conditions(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        parent: &Value,
        context: &StatusContext<'_>,
    ) -> (StatusCondition, Option<StatusCondition>) {
        let (service, port) = match parse_parent(parent, &record.target.namespace) {
            Ok(service_and_port) => service_and_port,
            Err(problem) => return (accepted_condition(Some(&problem), "NoMatchingParent"), None),
        };
        if let Some(missing_target) = self.missing_target(&service, port) {
            return (accepted_condition(Some(&missing_target), "NoMatchingParent"), None);
        }
        let Some(route) = self.custom_resources.get_by_origin(origin) else {
            return (accepted_condition(None, ""), None);
        };
        let conflict = self.find_route_conflict(route, &service, port, &context.conflicts);
        let find_ineffective =
            || self.ineffective_route_condition(route, &service, port, &context.conflicts);
        let no_effect = find_ineffective().filter(|_| conflict.is_none());
        (accepted_condition(conflict.as_deref(), CONFLICTED), no_effect)
    }

    /// Describes the object that takes precedence over a valid object, for kinds without a status.
    fn conflict_without_status(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
        context: &StatusContext<'_>,
    ) -> Option<String> {
        match self.custom_resources.get_by_origin(origin)? {
            Object::TrafficSplit(split) if record.form == StatusForm::NoStatus => {
                self.find_split_conflict(split, &context.conflicts)
            }
            _ => None,
        }
    }

    /// Describes a missing object to which a valid object refers, for kinds without a status.
    fn missing_reference_without_status(
        &self,
        origin: &ObjectOrigin,
        record: &StatusRecord,
    ) -> Option<String> {
        let object = self
            .custom_resources
            .get_by_origin(origin)
            .filter(|_| record.form == StatusForm::NoStatus)?;
        self.missing_reference(object)
    }

    /// Returns the conditions `Accepted` and `ResolvedRefs` of a valid object.
    fn attachment_conditions(
        &self,
        origin: &ObjectOrigin,
        context: &StatusContext<'_>,
    ) -> [StatusCondition; 2] {
        let Some(object) = self.custom_resources.get_by_origin(origin) else {
            return [
                accepted_condition(None, ""),
                references_condition("True", "ResolvedRefs", NO_TARGETS),
            ];
        };
        let targets = target_services(object);
        let missing_targets: Vec<String> = targets
            .iter()
            .filter_map(|(service, port)| self.missing_target(service, *port))
            .collect();
        let lacks_all_targets = !targets.is_empty() && missing_targets.len() == targets.len();
        let missing_message =
            (!missing_targets.is_empty()).then(|| truncate_message(&missing_targets.join("\n")));
        let accepted = match (&missing_message, self.ineffective_reason(object, context)) {
            (Some(missing_message), _) if lacks_all_targets => {
                accepted_condition(Some(missing_message), "TargetNotFound")
            }
            (_, Some(IneffectiveReason::Overridden(reason))) => {
                accepted_condition(Some(&reason), CONFLICTED)
            }
            (_, Some(IneffectiveReason::NoEffect(..)) | None) => accepted_condition(None, ""),
        };
        // The condition is always written, to replace a previous one.
        let resolved = match missing_message {
            _ if targets.is_empty() => references_condition("True", "ResolvedRefs", NO_TARGETS),
            Some(missing_message) => {
                references_condition("False", "TargetNotFound", &missing_message)
            }
            None => references_condition("True", "ResolvedRefs", "all targets exist"),
        };
        [accepted, resolved]
    }

    /// Returns the reason that a valid object with an OSM status has no effect; `None` if it has an effect.
    fn ineffective_message(
        &self,
        origin: &ObjectOrigin,
        context: &StatusContext<'_>,
    ) -> Option<String> {
        let object = self.custom_resources.get_by_origin(origin)?;
        let targets = target_services(object);
        let mut missing_targets =
            targets.iter().map(|(service, port)| self.missing_target(service, *port));
        let first_missing = missing_targets
            .next()
            .flatten()
            .filter(|_| missing_targets.all(|missing| missing.is_some()));
        first_missing.or_else(|| {
            self.ineffective_reason(object, context).map(IneffectiveReason::into_sentence)
        })
    }

    /// Returns the condition `Programmed` of an accepted policy without effect: routes send the traffic of its
    /// targets elsewhere (GEP-713).
    fn unprogrammed_condition(
        &self,
        object: &Object,
        context: &StatusContext<'_>,
    ) -> Option<StatusCondition> {
        match self.ineffective_reason(object, context) {
            Some(IneffectiveReason::NoEffect(message, reason)) => {
                let message = truncate_message(&message);
                Some(StatusCondition { name: "Programmed", status: "False", reason, message })
            }
            Some(IneffectiveReason::Overridden(_)) | None => None,
        }
    }

    /// Returns the reason that a valid object has no effect although its targets exist.
    fn ineffective_reason(
        &self,
        object: &Object,
        context: &StatusContext<'_>,
    ) -> Option<IneffectiveReason> {
        let conflict = match object {
            Object::ServicePolicy(policy) => return self.ineffective_policy(policy, context),
            Object::Retry(policy) => {
                if policy.services.iter().all(|service| self.is_opaque_at_each_port(service)) {
                    return Some(IneffectiveReason::NoEffect(
                        describe_tcp_only_services(&policy.services),
                        NO_REQUESTS,
                    ));
                }
                self.find_retry_conflict(policy, &context.conflicts)
            }
            Object::TagRoute(_) | Object::SermantRouteRule(_) => {
                self.find_tag_conflict(object, &context.conflicts)
            }
            _ => None,
        };
        let no_effect =
            || self.detect_no_effect(object, &ConflictContext { store: self, shared: context });
        conflict
            .map(IneffectiveReason::Overridden)
            .or_else(|| no_effect().map(IneffectiveReason::from_no_effect))
    }

    /// Returns the reason that a policy has no effect at any of its targets.
    fn ineffective_policy(
        &self,
        policy: &ServicePolicy,
        context: &StatusContext<'_>,
    ) -> Option<IneffectiveReason> {
        let namespace = &policy.name.namespace;
        let services: Vec<&Service> = match &policy.scope {
            PolicyScope::Services(parents) => {
                parents.iter().filter_map(|parent| self.services.get(&parent.service)).collect()
            }
            PolicyScope::Namespace => self.services.in_namespace(namespace).collect(),
        };
        let ports = services
            .iter()
            .flat_map(|service| service.ports.iter().map(move |port| (&service.name, port.port)));
        match ConflictStatus::for_policy(
            policy,
            ports,
            &ConflictContext { store: self, shared: context },
        ) {
            ConflictStatus::Overridden(other) => Some(IneffectiveReason::Overridden(format!(
                "{other} takes precedence at all of its targets"
            ))),
            ConflictStatus::NoEffect(no_effect) => {
                Some(IneffectiveReason::from_no_effect(no_effect))
            }
            ConflictStatus::Effective | ConflictStatus::NoTarget => None,
        }
    }

    /// Returns the `ResolvedRefs` condition of a route: whether its backends exist and may be used.
    fn route_references(
        &self,
        origin: &ObjectOrigin,
        rejection: Option<&str>,
        grants: &[&ReferenceGrant],
    ) -> StatusCondition {
        if let Some(rejection) = rejection {
            let rejections =
                self.diagnostics.get(origin).map(|(rejections, _)| rejections.as_slice());
            let fields = rejections
                .unwrap_or_default()
                .iter()
                .filter_map(|rejection| rejection.location.field.as_deref());
            // Without its first letter, the text also matches names that end in `BackendRef`.
            let is_backend_field = |field: &str| {
                field.contains("ackendRef")
                    && (field.ends_with(".kind") || field.ends_with(".group"))
            };
            return match fields.into_iter().any(is_backend_field) {
                true => references_condition("False", "InvalidKind", rejection),
                false => references_condition("Unknown", "Pending", UNCHECKED_REFERENCES),
            };
        }
        let Some(object) = self.custom_resources.get_by_origin(origin) else {
            return references_condition("Unknown", "Pending", UNCHECKED_REFERENCES);
        };
        let (parents, backends) = route_backends(object);
        for RouteBackend { route_kind, route_namespace, service, port } in backends {
            let backend_namespace = &service.namespace;
            let is_granted = || {
                grants.iter().any(|grant| grant.permits_route(route_kind, route_namespace, service))
            };
            if route_namespace != backend_namespace
                && !is_only_parent(parents, service)
                && !is_granted()
            {
                let message = format!(
                    "no ReferenceGrant in {backend_namespace} permits {service} to {}s of {route_namespace}",
                    route_kind.as_str()
                );
                return references_condition("False", "RefNotPermitted", &message);
            }
            if let Some(missing_target) = self.missing_target(service, Some(port)) {
                return references_condition("False", "BackendNotFound", &missing_target);
            }
        }
        references_condition("True", "ResolvedRefs", "all backends exist")
    }

    /// Returns the first missing backend of a route.
    pub(super) fn missing_backend(&self, route: &Object) -> Option<String> {
        let (_, backends) = route_backends(route);
        backends
            .into_iter()
            .find_map(|backend| self.missing_target(backend.service, Some(backend.port)))
    }

    /// Describes the missing Service or port of a reference; `None` if both exist.
    pub(super) fn missing_target(
        &self,
        service: &ServiceName,
        port: Option<u16>,
    ) -> Option<String> {
        let Some(target) = self.services.get(service) else {
            return Some(format!("there is no Service {service} that selects pods"));
        };
        let port = port
            .filter(|port| !target.ports.iter().any(|service_port| service_port.port == *port))?;
        Some(format!("the Service {service} has no TCP port {port}"))
    }
}

/// Returns the service and optional port that a route refers to as its parent.
fn parse_parent(parent: &Value, own_namespace: &str) -> Result<(ServiceName, Option<u16>), String> {
    let string_field = |key: &str| parent.get(key).and_then(Value::as_str);
    let name = string_field("name").unwrap_or_default();
    let port_number = parent.get("port").and_then(Value::as_u64);
    let port = port_number.and_then(|number| u16::try_from(number).ok());
    let service = ServiceName::new(string_field("namespace").unwrap_or(own_namespace), name);
    service.map(|service| (service, port)).map_err(|error| error.to_string())
}

/// Adds the `Programmed` condition; `not_programmed` is the condition of an accepted route without effect.
fn with_programmed(
    [accepted, resolved]: [StatusCondition; 2],
    not_programmed: Option<StatusCondition>,
) -> Vec<StatusCondition> {
    let programmed =
        not_programmed.unwrap_or_else(|| StatusCondition::from_accepted(&accepted, SENT_MESSAGE));
    vec![accepted, resolved, programmed]
}

/// Returns the condition `Accepted`. `reason` applies only to a rejection.
fn accepted_condition(rejection: Option<&str>, reason: &'static str) -> StatusCondition {
    match rejection {
        Some(rejection) => StatusCondition {
            name: "Accepted",
            status: "False",
            reason,
            message: rejection.to_owned(),
        },
        None => StatusCondition {
            name: "Accepted",
            status: "True",
            reason: "Accepted",
            message: "in force".to_owned(),
        },
    }
}

/// Returns the conditions of an object that is rejected, or over which another object takes precedence.
fn rejected_conditions(rejection: &str, reason: &'static str) -> [StatusCondition; 2] {
    let unknown = references_condition("Unknown", "Pending", "this generation is not in force");
    [accepted_condition(Some(rejection), reason), unknown]
}

fn references_condition(
    status: &'static str,
    reason: &'static str,
    message: &str,
) -> StatusCondition {
    StatusCondition { name: "ResolvedRefs", status, reason, message: message.to_owned() }
}

/// The reason that a valid object has no effect although its targets exist.
enum IneffectiveReason {
    /// Another object takes precedence.
    Overridden(String),
    /// The object is in force but affects no traffic: the message, and the reason of the condition.
    NoEffect(String, &'static str),
}

impl IneffectiveReason {
    fn from_no_effect(no_effect: NoEffect) -> Self {
        let reason = match no_effect.cause {
            NoEffectCause::NoRequests(..) => NO_REQUESTS,
            _ => OVERRIDDEN,
        };
        Self::NoEffect(no_effect.to_string(), reason)
    }

    fn into_sentence(self) -> String {
        match self {
            Self::Overridden(sentence) | Self::NoEffect(sentence, _) => sentence,
        }
    }
}

/// Returns the services, with optional ports, that an object other than a route targets by name.
fn target_services(object: &Object) -> Vec<(&ServiceName, Option<u16>)> {
    let service_in_scope = |scope| match scope {
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
        Object::TagRoute(route) => service_in_scope(&route.scope).into_iter().collect(),
        Object::SermantRouteRule(rule) => {
            rule.entries.iter().filter_map(|(scope, _)| service_in_scope(scope)).collect()
        }
        Object::Lane(lane) => vec![(&lane.service, None)],
        _ => Vec::new(),
    }
}

/// Returns the parents of a route, and the services to which it routes.
pub(super) fn route_backends(object: &Object) -> (&[RouteParent], Vec<RouteBackend<'_>>) {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => {
            let backends = route
                .rules
                .iter()
                .flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
            let own_namespace = &route.name.namespace;
            let backends =
                backends.map(|backend| RouteBackend::new(route.kind, own_namespace, backend));
            (&route.parents, backends.collect())
        }
        Object::TlsRoute(TlsRoute { parents, rule: TlsRule { route, backends, .. }, .. }) => {
            (parents, collect_backends(RouteKind::Tls, &route.namespace, backends))
        }
        Object::GatewayTcpRoute(GatewayTcpRoute {
            parents,
            rule: TcpRule { route, backends, .. },
            ..
        }) => (parents, collect_backends(RouteKind::Tcp, &route.namespace, backends)),
        _ => (&[], Vec::new()),
    }
}

fn collect_backends<'a>(
    kind: RouteKind,
    own_namespace: &'a Name,
    backends: &'a [WeightedBackend],
) -> Vec<RouteBackend<'a>> {
    backends.iter().map(|backend| RouteBackend::new(kind, own_namespace, backend)).collect()
}

/// A backend of a route.
pub(super) struct RouteBackend<'a> {
    route_kind: RouteKind,
    route_namespace: &'a Name,
    pub(super) service: &'a ServiceName,
    port: u16,
}

impl<'a> RouteBackend<'a> {
    fn new(route_kind: RouteKind, route_namespace: &'a Name, backend: &'a WeightedBackend) -> Self {
        let WeightedBackend { service, port, .. } = backend;
        Self { route_kind, route_namespace, service, port: *port }
    }
}

/// Shortens a text to the length of a condition, with room for the rest of the status.
fn truncate_message(text: &str) -> String {
    shorten_middle(text, MAX_MESSAGE_BYTES)
}

/// The reason of `Accepted` for an object over which another object takes precedence. It is also the Gateway
/// API's reason for a route in conflict with one of a kind with higher precedence (GEP-1426).
const CONFLICTED: &str = "Conflicted";
/// The reason of `Programmed` for a policy without effect (GEP-713).
pub(super) const OVERRIDDEN: &str = "Overridden";
/// The reason of `Programmed` for a policy at a port without visible requests.
const NO_REQUESTS: &str = "NoRequests";
/// The message for an object in force. It does not imply that sidecars have applied it.
const SENT_MESSAGE: &str = "sent to every connected sidecar that it affects";
/// The message for an object without targets.
const NO_TARGETS: &str = "it has no targets";
/// The maximum number of errors in one status.
const MAX_REJECTIONS: usize = 5;
/// The maximum length of a message. The API allows 32768 bytes, which is too long to read.
const MAX_MESSAGE_BYTES: usize = 2000;
/// The message for a route without checked references.
const UNCHECKED_REFERENCES: &str = "the references of the route have not been checked";
