//! Decides whether a client may send a request to a host outside the mesh, for `leno explain request`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use leno_model::{Egress, MatchedBy, Name, Object, PolicyName, Reason, ServiceName};
use leno_traffic::{CompiledSnapshot, EgressDecision, external_rejection};
use serde_json::{Value, json};

use super::decide::ExplainedRequest;

/// The egress permission for a request to a host outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EgressPermission {
    /// `spec.egress: allow` of the MeshConfig allows all destinations.
    AllDestinations,
    /// This Egress allows the request.
    Policy(PolicyName),
    /// An Egress allows all requests to the port.
    Port,
    /// An Egress allows requests to some IP addresses. Only the client's sidecar resolves the host name, so the
    /// decision is unknown here.
    SomeAddresses,
}

impl EgressPermission {
    /// Decides like the HTTP proxy of a sidecar, but without name resolution. A host in the form of a service
    /// name is an unknown service if the mesh has its namespace, or a service of that name in another namespace.
    ///
    /// # Errors
    /// The reason with which the sidecar rejects the request.
    pub(super) fn for_request(
        objects: &[Object],
        compiled: &CompiledSnapshot,
        service: Option<&ServiceName>,
        request: &ExplainedRequest,
    ) -> Result<Self, Reason> {
        let (host, port) = (&*request.target.host, request.target.port);
        // RFC 6761 §6.3: `localhost` is the client's own machine.
        let named_service = service.filter(|_| !host.eq_ignore_ascii_case("localhost"));
        let client_config = &compiled.snapshot.config;
        let services = || objects.iter().filter_map(as_service);
        let knows_namespace = |namespace: &Name| {
            *namespace == client_config.workload.namespace
                || services().any(|name| name.namespace == *namespace)
        };
        let is_egress_allowed = client_config.egress == Egress::Allow;
        let may_be_allowed = is_egress_allowed || compiled.egress_rules.may_allow_port(port);
        if let Some(reason) =
            external_rejection(host, named_service, may_be_allowed, knows_namespace)
        {
            return Err(reason);
        }
        let is_misspelled = |service: &ServiceName| {
            knows_namespace(&service.namespace)
                || services().any(|candidate| candidate.name == service.name)
        };
        if named_service.is_some_and(is_misspelled) {
            return Err(Reason::UnknownService);
        }
        match is_egress_allowed {
            true => Ok(Self::AllDestinations),
            false => Self::find_permission(compiled, request).ok_or(Reason::EgressDenied),
        }
    }

    /// Returns the permission by an Egress, if the mesh denies egress by default; `None` if no Egress may allow
    /// the request.
    fn find_permission(compiled: &CompiledSnapshot, request: &ExplainedRequest) -> Option<Self> {
        let (host, port) = (&request.target.host, request.target.port);
        let literal_address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        // A host name has no known address. The unspecified address is only in ranges of all addresses.
        let address =
            SocketAddr::new(literal_address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port);
        if compiled.egress_rules.decide_address(address) == EgressDecision::Allowed {
            return Some(Self::Port);
        }
        let header_fields = request.request_headers();
        if let Some(policy) =
            compiled.egress_rules.policy_for_request(address, &request.request_view(&header_fields))
        {
            return Some(Self::Policy(policy.clone()));
        }
        let rules = compiled
            .snapshot
            .config
            .egress_rules
            .iter()
            .filter(|egress_rule| egress_rule.port == port);
        let mut address_rules = rules
            .filter(|rule| !rule.ranges.is_empty() && rule.matched_by != MatchedBy::ServerName);
        (literal_address.is_none() && address_rules.next().is_some()).then_some(Self::SomeAddresses)
    }

    /// Describes the destination and its permission, for the text output.
    pub(super) fn describe(&self, request: &ExplainedRequest) -> String {
        let target = &request.target;
        let destination = format!("{} port {}, outside the mesh", target.host, target.port);
        match self {
            Self::AllDestinations => format!("{destination}: spec.egress is allow"),
            Self::Policy(policy) => format!("{destination}: allowed by the Egress {policy}"),
            Self::Port => format!("{destination}: an Egress allows all requests to the port"),
            Self::SomeAddresses => {
                format!("{destination}: an Egress allows requests to some addresses")
            }
        }
    }

    /// Renders the verdict, the last line of the text output.
    pub(super) fn render_verdict(&self, request: &ExplainedRequest) -> String {
        let host = &request.target.host;
        match self {
            Self::AllDestinations | Self::Policy(_) | Self::Port => format!(
                "200-range: allowed; the external host {host} responds. If the name does not resolve: 404 unknown-service"
            ),
            Self::SomeAddresses => {
                format!("it depends on the address of {host} (allowed, egress-denied)")
            }
        }
    }

    /// Returns the JSON output.
    pub(super) fn to_json(&self, request: &ExplainedRequest) -> Value {
        let policy = match self {
            Self::Policy(policy) => Some(policy.to_string()),
            Self::AllDestinations | Self::Port | Self::SomeAddresses => None,
        };
        json!({"host": request.target.host, "policy": policy})
    }
}

fn as_service(object: &Object) -> Option<&ServiceName> {
    match object {
        Object::Service(service) => Some(&service.name),
        _ => None,
    }
}
