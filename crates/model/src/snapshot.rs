//! The snapshot: all that one workload's sidecar knows, one version of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::access_policy::InboundPolicy;
use crate::decider::PortGuard;
use crate::egress::Outlet;
use crate::endpoint::Endpoint;
use crate::gateway::Gateway;
use crate::identity::{ServiceAccount, TrustDomain};
use crate::ingress::Opening;
use crate::mesh::{Egress, Plaintext};
use crate::name::{Name, ServiceName, WorkloadName};
use crate::occupant::Occupant;
use crate::policy::Access;
use crate::rate_limit::PortLimits;
use crate::retry_policy::ServiceRetry;
use crate::revocation::RevokedWorkload;
use crate::route::{RouteRule, WeightedBackend};
use crate::service::Protocol;
use crate::service_policy::Treatment;
use crate::sight::Sight;
use crate::tag::{Caller, LaneRule, TagRules};
use crate::tcp_rule::TcpRule;
use crate::tls_route::TlsRule;
use crate::whereabouts::Whereabouts;
use crate::workload::{Door, WorkloadPort};

/// All that one workload's sidecar knows. Built whole, never changed; requests hold one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// What the sidecar is for.
    pub plan: Arc<WorkloadPlan>,
    /// The services it uses, and the backends that their routes name.
    pub services: BTreeMap<ServiceName, Arc<ServiceView>>,
    /// What is at the addresses that it asked for.
    pub addresses: BTreeMap<IpAddr, Arc<Occupant>>,
    /// What the names that it looked up stand for.
    pub names: BTreeMap<ServiceName, Arc<Whereabouts>>,
}

/// What a sidecar is for: the workload behind it and the rules at its door.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkloadPlan {
    /// The workload.
    pub workload: WorkloadName,
    /// The account it runs under.
    pub account: ServiceAccount,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// Where the application listens, as seen from the sidecar.
    pub address: IpAddr,
    /// The application's ports.
    pub ports: Vec<WorkloadPort>,
    /// The service that each port is counted under in metrics, by port number.
    pub served: BTreeMap<u16, ServiceName>,
    /// Fixed local doors to other services.
    pub doors: Vec<Door>,
    /// Who may come in.
    pub access: Access,
    /// Accounts that may not, whatever their certificates and the rules say.
    pub revoked: BTreeSet<ServiceAccount>,
    /// Workloads of other accounts that may not either.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The edition that certificates are issued in now; 0 when none is to be renewed for that.
    pub edition: u64,
    /// What tag rules may ask about the workload.
    pub caller: Caller,
    /// What requests are marked with at the ports of the application, in order of precedence.
    pub lanes: BTreeMap<u16, Vec<LaneRule>>,
    /// What else decides about who may come in.
    pub inbound: InboundPolicy,
    /// How much may come in at the ports of the application: by each of these policies.
    pub limits: BTreeMap<u16, Vec<PortLimits>>,
    /// What operators see of single requests.
    pub sight: Sight,
    /// What becomes of connections to what is not of the mesh.
    pub egress: Egress,
    /// What becomes of connections that come in without mutual TLS.
    pub plaintext: Plaintext,
    /// What it serves as the proxy of a gateway; absent for every other.
    pub gateway: Option<Arc<Gateway>>,
    /// What is open to clients that are not of the mesh.
    pub openings: Vec<Opening>,
    /// What it reaches outside the mesh although nobody is let out.
    pub outlets: Vec<Outlet>,
    /// What else decides about requests at the ports of the application.
    pub guards: BTreeMap<u16, Vec<PortGuard>>,
    /// Which of its requests are sent once more, where no route says it.
    pub retries: BTreeMap<ServiceName, ServiceRetry>,
}

impl WorkloadPlan {
    /// The plan of a workload that nothing is said about but who it is, where its application is, and
    /// who may come in: all else is as where no rule says otherwise.
    #[must_use]
    pub fn bare(
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
            served: BTreeMap::new(),
            doors: Vec::new(),
            access,
            revoked: BTreeSet::new(),
            revoked_workloads: BTreeSet::new(),
            edition: 0,
            caller: Caller::default(),
            lanes: BTreeMap::new(),
            inbound: InboundPolicy::default(),
            limits: BTreeMap::new(),
            sight: Sight::default(),
            egress: Egress::default(),
            plaintext: Plaintext::default(),
            gateway: None,
            openings: Vec::new(),
            outlets: Vec::new(),
            guards: BTreeMap::new(),
            retries: BTreeMap::new(),
        }
    }
}

/// A service as one client sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceView {
    /// Its name.
    pub name: ServiceName,
    /// Whether this client may call it at all.
    pub reach: Reach,
    /// Its ports, by number; empty when it may not be called.
    pub ports: BTreeMap<u16, PortView>,
    /// True while requests without an endpoint wait, for a bounded time: a workload behind the service changed a moment ago, and
    /// its sidecar is expected with the new port or account.
    pub awaited: bool,
}

/// Whether a client may call a service at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reach {
    /// It may; the destination still decides on each request.
    Allowed,
    /// No policy names this client as a source: nothing is sent, and the client is told 403.
    Denied,
}

/// One port of a service as one client sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortView {
    /// Its name in the service, if any.
    pub name: Option<Name>,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Whether an `HTTPRoute` is attached: then a request that no rule matches is answered 404.
    /// Otherwise it goes to the port's own endpoints.
    pub routed: bool,
    /// The rules of all attached routes, in order of route name and then of the document; or those
    /// of splits.
    pub rules: Vec<RouteRule>,
    /// Where it can be reached, ordered by id.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The rules for sessions that applications encrypt, in order of route name; no session but
    /// those of a rule passes when there are any.
    pub tls_rules: Vec<TlsRule>,
    /// How requests to it are treated.
    pub treatment: Treatment,
    /// Which of its endpoints take which requests; any take all when absent.
    pub tags: Option<Arc<TagRules>>,
    /// Where connections go in which no request is seen, and that no rule for encrypted sessions
    /// is about; to its own endpoints when absent.
    pub tcp_rule: Option<TcpRule>,
}

impl PortView {
    /// Where its rules lead: the services that a client has to know beside this one.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        let rules = self.rules.iter().map(|rule| &rule.backends);
        let tls_rules = self.tls_rules.iter().map(|rule| &rule.backends);
        let tcp_rule = self.tcp_rule.iter().map(|rule| &rule.backends);
        let mirrors = self.rules.iter().map(|rule| &rule.actions.mirrors);
        rules.chain(tls_rules).chain(tcp_rule).chain(mirrors).flatten()
    }
}
