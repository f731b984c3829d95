//! Requests to hosts outside the mesh.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use leno_model::{Egress, MatchedBy, Name, Object, PolicyName, Reason, ServiceName};
use leno_traffic::{CompiledSnapshot, EgressDecision, outside_rejection};
use serde_json::{Value, json};

use super::decide::ExplainedRequest;

/// The egress permission for a request to a host outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EgressPermission {
    /// All destinations are allowed: `spec.egress` of the MeshConfig.
    Everything,
    /// This Egress allows the request.
    Policy(PolicyName),
    /// An Egress allows all requests to the port.
    Port,
    /// An Egress allows some addresses. Only the client's sidecar resolves the host.
    SomeAddresses,
}

impl EgressPermission {
    /// Decides like the HTTP proxy of a sidecar, but without name resolution. A host in the form of a service
    /// name is unknown if the mesh has its namespace, or a service of that name in another namespace.
    ///
    /// # Errors
    /// The reason of the sidecar's rejection.
    pub(super) fn for_request(
        objects: &[Object],
        plans: &CompiledSnapshot,
        service: Option<&ServiceName>,
        question: &ExplainedRequest,
    ) -> Result<Self, Reason> {
        let (host, port) = (&*question.target.host, question.target.port);
        // RFC 6761 §6.3: `localhost` is the client's own machine.
        let service = service.filter(|_| !host.eq_ignore_ascii_case("localhost"));
        let plan = &plans.snapshot.config;
        let services = || objects.iter().filter_map(as_service);
        let knows_namespace = |namespace: &Name| {
            *namespace == plan.workload.namespace
                || services().any(|known| known.namespace == *namespace)
        };
        let is_open = plan.egress == Egress::Allow;
        let may_leave = is_open || plans.egress_rules.may_lead_to(port);
        if let Some(reason) = outside_rejection(host, service, may_leave, knows_namespace) {
            return Err(reason);
        }
        let is_mistake = |service: &ServiceName| {
            knows_namespace(&service.namespace) || services().any(|it| it.name == service.name)
        };
        if service.is_some_and(is_mistake) {
            return Err(Reason::UnknownService);
        }
        match is_open {
            true => Ok(Self::Everything),
            false => Self::find_permission(plans, question).ok_or(Reason::EgressDenied),
        }
    }

    /// Returns the permission by an Egress, if the default is deny.
    fn find_permission(plans: &CompiledSnapshot, question: &ExplainedRequest) -> Option<Self> {
        let (host, port) = (&question.target.host, question.target.port);
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let at = SocketAddr::new(literal.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port);
        if plans.egress_rules.permission_for(at) == EgressDecision::Allowed {
            return Some(Self::Port);
        }
        let fields = question.request_headers();
        if let Some(policy) = plans.egress_rules.by_request(at, &question.request_view(&fields)) {
            return Some(Self::Policy(policy.clone()));
        }
        let egress_rules = plans
            .snapshot
            .config
            .egress_rules
            .iter()
            .filter(|egress_rule| egress_rule.port == port);
        let mut ranged = egress_rules
            .filter(|it| !it.ranges.is_empty() && it.matched_by != MatchedBy::ServerName);
        (literal.is_none() && ranged.next().is_some()).then_some(Self::SomeAddresses)
    }

    /// Returns the line of the text output.
    pub(super) fn describe(&self, question: &ExplainedRequest) -> String {
        let target = &question.target;
        let place = format!("{} port {}, outside the mesh", target.host, target.port);
        match self {
            Self::Everything => format!("{place}: spec.egress is allow"),
            Self::Policy(policy) => format!("{place}: allowed by the Egress {policy}"),
            Self::Port => format!("{place}: an Egress allows all requests to the port"),
            Self::SomeAddresses => format!("{place}: an Egress allows requests to some addresses"),
        }
    }

    /// Returns the verdict.
    pub(super) fn render_verdict(&self, question: &ExplainedRequest) -> String {
        let host = &question.target.host;
        match self {
            Self::Everything | Self::Policy(_) | Self::Port => format!(
                "200-range: allowed; the external host {host} responds. If the name does not resolve: 404 unknown-service"
            ),
            Self::SomeAddresses => {
                format!("it depends on the address of {host} (allowed, egress-denied)")
            }
        }
    }

    /// Returns the JSON output.
    pub(super) fn to_json(&self, question: &ExplainedRequest) -> Value {
        let policy = match self {
            Self::Policy(policy) => Some(policy.to_string()),
            Self::Everything | Self::Port | Self::SomeAddresses => None,
        };
        json!({"host": question.target.host, "policy": policy})
    }
}

fn as_service(object: &Object) -> Option<&ServiceName> {
    match object {
        Object::Service(service) => Some(&service.name),
        _ => None,
    }
}
