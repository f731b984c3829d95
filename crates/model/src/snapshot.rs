//! Snapshots: the complete configuration of one workload's sidecar at one version. The control plane sends them in
//! parts, and the sidecar compiles them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::access_policy::InboundPolicy;
use crate::address_entry::AddressEntry;
use crate::check_service::PortCheck;
use crate::dns_record::DnsRecord;
use crate::egress::EgressRule;
use crate::endpoint::Endpoint;
use crate::gateway::Gateway;
use crate::identity::{ServiceAccount, TrustDomain};
use crate::ingress::IngressRule;
use crate::mesh::{Egress, MtlsMode};
use crate::name::{Name, ServiceName, WorkloadName};
use crate::observability::Observability;
use crate::policy::Access;
use crate::rate_limit::PortLimits;
use crate::retry_policy::ServiceRetry;
use crate::revocation::RevokedWorkload;
use crate::route::{RouteRule, WeightedBackend};
use crate::service::Protocol;
use crate::service_policy::TrafficPolicy;
use crate::tag::{CallerAttributes, LaneRule, TagRules};
use crate::tcp_rule::TcpRule;
use crate::tls_route::TlsRule;
use crate::workload::{OutboundListener, WorkloadPort};

/// The complete configuration of one workload's sidecar. It is immutable, and each request uses one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The configuration of the sidecar's own workload.
    pub config: Arc<WorkloadConfig>,
    /// The services that the workload uses, and the backend services of their routes.
    pub services: BTreeMap<ServiceName, Arc<ServiceConfig>>,
    /// The address entries that the sidecar queried.
    pub addresses: BTreeMap<IpAddr, Arc<AddressEntry>>,
    /// The DNS records that the sidecar queried, by service name.
    pub names: BTreeMap<ServiceName, Arc<DnsRecord>>,
}

/// The configuration of a sidecar's own workload: its listeners and the rules for inbound traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkloadConfig {
    /// The name of the workload.
    pub workload: WorkloadName,
    /// The account that the workload runs under.
    pub account: ServiceAccount,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// The address that the application listens on, as seen from the sidecar.
    pub address: IpAddr,
    /// The application's ports.
    pub ports: Vec<WorkloadPort>,
    /// The service label of each port in metrics, by port number.
    pub port_services: BTreeMap<u16, ServiceName>,
    /// The fixed outbound listeners, each of which forwards to one service.
    pub outbound_listeners: Vec<OutboundListener>,
    /// The inbound authorization by `TrafficTarget`s, or of all members.
    pub access: Access,
    /// Revoked accounts, which are denied even if their certificates are valid and rules allow them.
    pub revoked: BTreeSet<ServiceAccount>,
    /// Revoked workloads of accounts that are not revoked; denied as well.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The current CA generation. A certificate of another generation is renewed, unless the value is 0.
    pub ca_generation: u64,
    /// The attributes of the workload that tag rules use.
    pub caller: CallerAttributes,
    /// The lane rules that add headers to requests, by application port and in order of precedence.
    pub lanes: BTreeMap<u16, Vec<LaneRule>>,
    /// The rules of the access policies that apply to the workload.
    pub inbound: InboundPolicy,
    /// The rate limits, by application port. If several services share a port, the limits of all of them apply.
    pub limits: BTreeMap<u16, Vec<PortLimits>>,
    /// The observability settings.
    pub observability: Observability,
    /// The handling of connections to external destinations.
    pub egress: Egress,
    /// The handling of inbound connections without mutual TLS.
    pub mtls: MtlsMode,
    /// The gateway configuration, if the workload is a gateway proxy.
    pub gateway: Option<Arc<Gateway>>,
    /// The ingress rules for external clients.
    pub ingress_rules: Vec<IngressRule>,
    /// The egress rules: the external destinations that are allowed while egress is denied.
    pub egress_rules: Vec<EgressRule>,
    /// The external authorization and token policies, by application port.
    pub request_checks: BTreeMap<u16, Vec<PortCheck>>,
    /// The retry settings by destination service, for requests with a route without retry settings.
    pub retries: BTreeMap<ServiceName, ServiceRetry>,
}

impl WorkloadConfig {
    /// Returns the configuration of a workload with an identity, an application address and inbound authorization.
    /// All other fields have defaults.
    #[must_use]
    pub fn identity_only(
        workload: WorkloadName,
        account: ServiceAccount,
        trust_domain: TrustDomain,
        address: IpAddr,
        access: Access,
    ) -> Self {
        Self {
            workload,
            account,
            trust_domain,
            address,
            ports: Vec::new(),
            port_services: BTreeMap::new(),
            outbound_listeners: Vec::new(),
            access,
            revoked: BTreeSet::new(),
            revoked_workloads: BTreeSet::new(),
            ca_generation: 0,
            caller: CallerAttributes::default(),
            lanes: BTreeMap::new(),
            inbound: InboundPolicy::default(),
            limits: BTreeMap::new(),
            observability: Observability::default(),
            egress: Egress::default(),
            mtls: MtlsMode::default(),
            gateway: None,
            ingress_rules: Vec::new(),
            egress_rules: Vec::new(),
            request_checks: BTreeMap::new(),
            retries: BTreeMap::new(),
        }
    }
}

/// A service as configured for one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceConfig {
    /// The name of the service.
    pub name: ServiceName,
    /// The permission of this client to call the service.
    pub client_authorization: ClientAuthorization,
    /// The ports, by number; empty if the client may not call the service.
    pub ports: BTreeMap<u16, PortConfig>,
    /// True if requests wait for an endpoint, for a bounded time, when the service has none: a workload of the service
    /// changed a moment ago, and its sidecar is expected to connect with the new port or account.
    pub waits_for_endpoint: bool,
}

/// The permission of a client to call a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientAuthorization {
    /// The client may call the service. The destination still authorizes each request.
    Allowed,
    /// No policy lists this client as a source. Its sidecar forwards no request and responds with 403.
    Denied,
}

/// A service port as configured for one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortConfig {
    /// The name of the port in the service, if any.
    pub name: Option<Name>,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// True if an `HTTPRoute` or `GRPCRoute` is attached. A request that no rule matches then receives a 404. Without
    /// an attached route, the request is forwarded to the port's own endpoints.
    pub has_attached_routes: bool,
    /// The rules of all attached routes, ordered by route name and then as in the document; the rules of traffic
    /// splits if no route is attached.
    pub rules: Vec<RouteRule>,
    /// The endpoints, ordered by ID.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The rules for TLS passthrough, ordered by route name. If there are rules, sessions that match none of them are
    /// rejected.
    pub tls_rules: Vec<TlsRule>,
    /// The traffic policies of the port.
    pub traffic_policy: TrafficPolicy,
    /// The tag rules that select endpoints; all endpoints are used when absent.
    pub tags: Option<Arc<TagRules>>,
    /// The rule for opaque connections that match no TLS rule. When absent, they are forwarded to the port's own
    /// endpoints.
    pub tcp_rule: Option<TcpRule>,
}

impl PortConfig {
    /// Returns the backends and mirror targets of all rules: the client needs their configuration as well.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        let backends = self.rules.iter().map(|rule| &rule.backends);
        let tls_backends = self.tls_rules.iter().map(|rule| &rule.backends);
        let tcp_backends = self.tcp_rule.iter().map(|rule| &rule.backends);
        let mirror_targets = self.rules.iter().map(|rule| &rule.actions.mirrors);
        backends.chain(tls_backends).chain(tcp_backends).chain(mirror_targets).flatten()
    }
}
