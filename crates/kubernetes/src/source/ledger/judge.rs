//! What is to be said of custom resources, as things stand.

use leno_model::{
    GatewayTcpRoute, Name, Object, ReferenceGrant, RouteKind, RouteParent, ServiceName, TcpRule,
    TlsRoute, TlsRule, WeightedBackend, leads_back,
};
use serde_json::Value;

use super::{Ledger, Origin};
use crate::gateway::{ParentSaid, RouteId};
use crate::source::record::Record;
use crate::status::{CONTROLLER, Condition, Form, Said, Statement};

impl Ledger {
    /// What is to be said and does not stand in a status yet; `None` when that is as it was.
    pub(crate) fn statements(&mut self) -> Option<Vec<Statement>> {
        if !self.is_settled() || !std::mem::take(&mut self.unjudged) {
            return None;
        }
        let grants = self.grants();
        let all = self
            .records
            .iter()
            .filter_map(|(origin, record)| self.statement(origin, record, &grants));
        Some(all.filter(Statement::is_due).collect())
    }

    fn grants(&self) -> Vec<&ReferenceGrant> {
        let grants = self.customs.all().filter_map(|object| match object {
            Object::ReferenceGrant(grant) => Some(grant),
            _ => None,
        });
        grants.collect()
    }

    /// Nothing is said of gateways of other classes.
    fn statement(
        &self,
        origin: &Origin,
        record: &Record,
        grants: &[&ReferenceGrant],
    ) -> Option<Statement> {
        let duplicate = self.customs.duplicate(origin);
        let refusals = self.remarks.get(origin).map(|(refusals, _)| refusals.as_slice());
        let refusals: Vec<String> = refusals
            .unwrap_or_default()
            .iter()
            .chain(&duplicate)
            .take(REFUSALS_MAX)
            .map(|it| {
                let field = it.at.field.as_deref().unwrap_or_default();
                format!("{field}: {}; {}", it.problem, it.remedy)
            })
            .collect();
        let refusal = (!refusals.is_empty()).then(|| cut(&refusals.join("\n")));
        let id = &origin.id;
        let edge = &self.edge;
        let said = match record.form {
            Form::Nothing => Said::Nothing,
            Form::Gateway => Said::Gateway(edge.resolved.said.get(id)?.clone()),
            Form::Class => {
                let (generation, conditions) = edge.resolved.classes.get(&id.name)?.clone();
                Said::Class(generation, conditions)
            }
            Form::Current => {
                Said::Current(refusal.clone().or_else(|| self.shut(origin)).map_or(Ok(()), Err))
            }
            Form::Conditions => {
                let reason = if duplicate.is_some() { "Conflicted" } else { "Invalid" };
                Said::Conditions(vec![accepted(refusal.as_deref(), reason)])
            }
            Form::Parents => {
                let resolved = self.resolved(origin, refusal.as_deref(), grants);
                let parents = record.parents.iter().map(|parent| {
                    let accepted = match refusal.as_deref() {
                        Some(refusal) => accepted(Some(refusal), "UnsupportedValue"),
                        None => {
                            let missing = self.missing_parent(parent, &record.target.namespace);
                            accepted(missing.as_deref(), "NoMatchingParent")
                        }
                    };
                    ParentSaid {
                        parent: parent.clone(),
                        controller: CONTROLLER,
                        generation: record.generation,
                        conditions: vec![accepted, resolved.clone()],
                    }
                });
                let route = RouteId { kind: record.target.kind, id: id.clone() };
                let gateways = edge.resolved.parents.get(&route).into_iter().flatten();
                Said::Parents(parents.chain(gateways.cloned()).collect())
            }
        };
        Some(Statement {
            target: record.target.clone(),
            resource: record.resource.clone(),
            resource_version: record.resource_version.clone(),
            generation: record.generation,
            standing: record.standing.clone(),
            said,
            refusal: refusal.or_else(|| self.edge.refusal(record.target.kind, id)),
            remark: self.remarks_of(origin),
        })
    }

    /// Whether all that a route leads to is there and may be led to.
    fn resolved(
        &self,
        origin: &Origin,
        refusal: Option<&str>,
        grants: &[&ReferenceGrant],
    ) -> Condition {
        let resolved =
            |status, reason, message| Condition { word: "ResolvedRefs", status, reason, message };
        if let Some(refusal) = refusal {
            let refusals = self.remarks.get(origin).map(|(refusals, _)| refusals.as_slice());
            let fields =
                refusals.unwrap_or_default().iter().filter_map(|it| it.at.field.as_deref());
            let of_backend = |field: &str| {
                field.contains("ackendRef")
                    && (field.ends_with(".kind") || field.ends_with(".group"))
            };
            return match fields.into_iter().any(of_backend) {
                true => resolved("False", "InvalidKind", refusal.to_owned()),
                false => resolved("Unknown", "Pending", "the route is not read".to_owned()),
            };
        }
        let Some(object) = self.customs.said(origin) else {
            return resolved("Unknown", "Pending", "the route is not read".to_owned());
        };
        let (parents, backends) = backends(object);
        for (kind, own, service, port) in backends {
            let theirs = &service.namespace;
            let granted = || grants.iter().any(|grant| grant.permits(kind, own, service));
            if own != theirs && !leads_back(parents, service) && !granted() {
                let message = format!(
                    "no ReferenceGrant in {theirs} permits {service} to {}s of {own}",
                    kind.as_str()
                );
                return resolved("False", "RefNotPermitted", message);
            }
            if let Some(missing) = self.missing(service, Some(port)) {
                return resolved("False", "BackendNotFound", missing);
            }
        }
        resolved("True", "ResolvedRefs", "every backend is there".to_owned())
    }

    fn missing_parent(&self, parent: &Value, own: &str) -> Option<String> {
        let text = |key: &str| parent.get(key).and_then(Value::as_str);
        let name = text("name").unwrap_or_default();
        let namespace = text("namespace").unwrap_or(own);
        let port = parent.get("port").and_then(Value::as_u64);
        let port = port.and_then(|port| u16::try_from(port).ok());
        match ServiceName::new(namespace, name) {
            Ok(service) => self.missing(&service, port),
            Err(error) => Some(error.to_string()),
        }
    }

    /// What of a service is not there.
    fn missing(&self, service: &ServiceName, port: Option<u16>) -> Option<String> {
        let Some(known) = self.services.get(service) else {
            return Some(format!("there is no Service {service} that selects pods"));
        };
        let port = port.filter(|port| !known.ports.iter().any(|known| known.port == *port))?;
        Some(format!("the Service {service} has no TCP port {port}"))
    }
}

fn accepted(refusal: Option<&str>, reason: &'static str) -> Condition {
    match refusal {
        Some(refusal) => {
            Condition { word: "Accepted", status: "False", reason, message: refusal.to_owned() }
        }
        None => Condition {
            word: "Accepted",
            status: "True",
            reason: "Accepted",
            message: "in force".to_owned(),
        },
    }
}

/// What a route is attached to, and the services that it leads to.
fn backends(object: &Object) -> (&[RouteParent], Vec<Backend<'_>>) {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => {
            let all =
                route.rules.iter().flat_map(|it| it.backends.iter().chain(&it.actions.mirrors));
            let own = &route.name.namespace;
            let all = all.map(|it| (route.kind, own, &it.service, it.port));
            (&route.parents, all.collect())
        }
        Object::TlsRoute(TlsRoute { parents, rule: TlsRule { route, backends, .. } }) => {
            (parents, of_kind(RouteKind::Tls, &route.namespace, backends))
        }
        Object::GatewayTcpRoute(GatewayTcpRoute {
            parents,
            rule: TcpRule { route, backends, .. },
        }) => (parents, of_kind(RouteKind::Tcp, &route.namespace, backends)),
        _ => (&[], Vec::new()),
    }
}

fn of_kind<'a>(
    kind: RouteKind,
    own: &'a Name,
    backends: &'a [WeightedBackend],
) -> Vec<Backend<'a>> {
    backends.iter().map(|it| (kind, own, &it.service, it.port)).collect()
}

/// A backend: of which kind of route, in which namespace that is, the service and its port.
type Backend<'a> = (RouteKind, &'a Name, &'a ServiceName, u16);

/// As much as a condition may hold, with room for what else stands there.
fn cut(text: &str) -> String {
    text.chars().take(MESSAGE_CHARACTERS_MAX).collect()
}

/// The most refusals told in one status.
const REFUSALS_MAX: usize = 5;
/// A message may have 32768 bytes; nobody reads that.
const MESSAGE_CHARACTERS_MAX: usize = 2000;
