//! Snapshots: the complete configuration of one workload's sidecar at one version.

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

/// The complete configuration of one workload's sidecar. Immutable; each request holds one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The configuration of the sidecar's own workload.
    pub config: Arc<WorkloadConfig>,
    /// The services that it uses, and the backends in their routes.
    pub services: BTreeMap<ServiceName, Arc<ServiceConfig>>,
    /// The address entries that it queried.
    pub addresses: BTreeMap<IpAddr, Arc<AddressEntry>>,
    /// The DNS records that it queried.
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
    /// Fixed outbound listeners.
    pub outbound_listeners: Vec<OutboundListener>,
    /// Inbound authorization.
    pub access: Access,
    /// Revoked accounts, denied despite valid certificates and rules.
    pub revoked: BTreeSet<ServiceAccount>,
    /// Revoked workloads of other accounts, denied as well.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The current CA generation; certificates of other ones are renewed. 0 if none is to be renewed.
    pub ca_generation: u64,
    /// The attributes of the workload that tag rules use.
    pub caller: CallerAttributes,
    /// The lane marks of requests at the application ports, in order of precedence.
    pub lanes: BTreeMap<u16, Vec<LaneRule>>,
    /// Inbound access policies.
    pub inbound: InboundPolicy,
    /// The rate limits of the application ports; all listed policies apply.
    pub limits: BTreeMap<u16, Vec<PortLimits>>,
    /// The observability settings.
    pub observability: Observability,
    /// The handling of connections to external destinations.
    pub egress: Egress,
    /// The handling of inbound connections without mutual TLS.
    pub mtls: MtlsMode,
    /// The gateway configuration, if the workload is a gateway proxy.
    pub gateway: Option<Arc<Gateway>>,
    /// Ingress rules for external clients.
    pub ingress_rules: Vec<IngressRule>,
    /// Egress rules: allowed external destinations while egress is denied.
    pub egress_rules: Vec<EgressRule>,
    /// External authorization and token policies of the application ports.
    pub request_checks: BTreeMap<u16, Vec<PortCheck>>,
    /// Retry settings by destination, for requests without retry settings in their route.
    pub retries: BTreeMap<ServiceName, ServiceRetry>,
}

impl WorkloadConfig {
    /// Returns the configuration of a workload with only an identity, an application address and inbound
    /// authorization; all else has defaults.
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
    /// Client authorization: the permission of this client to call the service.
    pub client_authorization: ClientAuthorization,
    /// The ports, by number; empty if the client may not call the service.
    pub ports: BTreeMap<u16, PortConfig>,
    /// True while requests without an endpoint wait, for a bounded time: a workload of the service changed a
    /// moment ago, and its sidecar is expected to connect with the new port or account.
    pub awaited: bool,
}

/// The permission of a client to call a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientAuthorization {
    /// Allowed; the destination still authorizes each request.
    Allowed,
    /// Denied: no policy lists this client as a source. Nothing is sent, and the client receives a 403.
    Denied,
}

/// A service port as configured for one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortConfig {
    /// The name of the port in the service, if any.
    pub name: Option<Name>,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// True if an `HTTPRoute` is attached: then a request that no rule matches receives a 404. Otherwise it goes to
    /// the port's own endpoints.
    pub routed: bool,
    /// The rules of all attached routes, ordered by route name and then as in the document; or those of splits.
    pub rules: Vec<RouteRule>,
    /// The endpoints, ordered by ID.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The rules for TLS passthrough, ordered by route name; if there are any, other sessions are rejected.
    pub tls_rules: Vec<TlsRule>,
    /// The traffic policies of the port.
    pub traffic_policy: TrafficPolicy,
    /// The tag rules that select endpoints by request; none when absent.
    pub tags: Option<Arc<TagRules>>,
    /// The rule for opaque connections that match no TLS rule; they go to its own endpoints when absent.
    pub tcp_rule: Option<TcpRule>,
}

impl PortConfig {
    /// Returns the backends of its rules: further services that a client needs.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        let rules = self.rules.iter().map(|rule| &rule.backends);
        let tls_rules = self.tls_rules.iter().map(|rule| &rule.backends);
        let tcp_rule = self.tcp_rule.iter().map(|rule| &rule.backends);
        let mirrors = self.rules.iter().map(|rule| &rule.actions.mirrors);
        rules.chain(tls_rules).chain(tcp_rule).chain(mirrors).flatten()
    }
}
