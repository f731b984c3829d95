//! Stores the configuration of a proxy: an atomic pointer to the current snapshot, which the control thread replaces
//! and all threads read, and a queue of requests for resources that the snapshot does not contain.

mod resource_usage;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use leno_discovery::ConfigUpdate;
use leno_identity::{Credential, VerifiedPeer};
use leno_model::{
    AddressEntry, AddressPort, DnsRecord, Egress, Endpoint, EndpointId, MtlsMode, Protocol, Reason,
    Revocations, ServiceName,
};
use leno_traffic::{
    CompiledService, CompiledSnapshot, ConnectionOrigin, EgressRules, InvalidPattern,
};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, watch};

use self::resource_usage::{ResourceUsage, eviction_priority, idle_keys, resources_with_usage};
use crate::application_ports::ApplicationPorts;
use crate::conditions::Conditions;
use crate::gateway_tls::{self, GatewayTlsConfigs};
use crate::observability::SharedObservability;
use crate::subscriptions::EvictionPriority;
use crate::virtual_addresses::VirtualAddresses;

/// The current configuration, shared by all threads of a proxy.
pub(crate) struct ConfigStore {
    config: ArcSwapOption<ConfigSnapshot>,
    credential: ArcSwapOption<Credential>,
    /// Incremented with each change of the snapshot or the credential; subscribers wait for the next increment.
    version: watch::Sender<u64>,
    /// Revoked accounts and workloads; notified only when they change.
    revocations: watch::Sender<Revocations>,
    /// Notified when inbound authorization changes.
    access_changed: watch::Sender<()>,
    /// The egress default and rules; subscribers are notified only when they change.
    egress_settings: watch::Sender<EgressSettings>,
    resource_sender: mpsc::Sender<ResourceRequest>,
    virtual_addresses: VirtualAddresses,
    /// The listeners for the sidecar's own requests to its application, by application port.
    own_listeners: ArcSwapOption<BTreeMap<u16, SocketAddr>>,
    created_at: Instant,
    /// The settings of tracing, the access log, metrics and taps.
    pub(crate) observability: SharedObservability,
    /// Conditions that break traffic at this proxy.
    pub(crate) conditions: Conditions,
    /// The state of the application's ports.
    pub(crate) application_ports: ApplicationPorts,
}

/// One configuration snapshot. A request holds one from its first stage to its last.
pub(crate) struct ConfigSnapshot {
    pub(crate) compiled: CompiledSnapshot,
    /// The services that were requested, including services that do not exist.
    services: BTreeMap<ServiceName, KnownService>,
    /// The address entries that were requested, by address.
    address_entries: FxHashMap<IpAddr, KnownResource<AddressEntry>>,
    /// The DNS records that were requested, by service name.
    dns_records: FxHashMap<ServiceName, KnownResource<DnsRecord>>,
    /// TLS configurations of the gateway, by port; reused while their certificates are the same.
    pub(crate) gateway_tls: GatewayTlsConfigs,
    /// The number of this snapshot, which increases with each change of the store.
    pub(crate) version: u64,
}

/// The egress default and the compiled egress rules; both are `None` before the first configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct EgressSettings {
    egress: Option<Egress>,
    egress_rules: Option<Arc<EgressRules>>,
}

impl EgressSettings {
    /// True if the default is the same, and both share the compiled rules.
    fn is_same(&self, other: &Self) -> bool {
        let (rules, other_rules) = (self.egress_rules.as_ref(), other.egress_rules.as_ref());
        let shares_rules =
            rules.zip(other_rules).is_some_and(|(rules, other)| Arc::ptr_eq(rules, other));
        self.egress == other.egress && shares_rules
    }
}

/// A resource to request from the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResourceRequest {
    /// A service.
    Service(ServiceName),
    /// An address entry.
    Address(IpAddr),
    /// A DNS record.
    Name(ServiceName),
}

/// A configuration snapshot, and a service in it.
pub(crate) type SnapshotService = (Arc<ConfigSnapshot>, Arc<CompiledService>);

/// A requested service, which may not exist.
struct KnownService {
    /// `None` if the service does not exist.
    service: Option<Arc<CompiledService>>,
    usage: Arc<ResourceUsage>,
}

/// The current entry of an address, or the current record of a name, and its usage.
struct KnownResource<R> {
    resource: Arc<R>,
    usage: Arc<ResourceUsage>,
}

impl ConfigStore {
    /// Creates an empty store with an application that has no supervisor.
    #[cfg(test)]
    pub(crate) fn new(
        virtual_addresses: VirtualAddresses,
        now: Instant,
    ) -> (Arc<Self>, mpsc::Receiver<ResourceRequest>) {
        Self::with_application(ApplicationPorts::default(), virtual_addresses, now)
    }

    /// Creates an empty store. Requests for resources that the snapshot does not contain arrive at the returned queue.
    pub(crate) fn with_application(
        application_ports: ApplicationPorts,
        virtual_addresses: VirtualAddresses,
        now: Instant,
    ) -> (Arc<Self>, mpsc::Receiver<ResourceRequest>) {
        let (resource_sender, resource_receiver) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let config_store = Self {
            config: ArcSwapOption::empty(),
            credential: ArcSwapOption::empty(),
            version: watch::channel(0).0,
            revocations: watch::Sender::default(),
            access_changed: watch::channel(()).0,
            egress_settings: watch::Sender::default(),
            resource_sender,
            virtual_addresses,
            own_listeners: ArcSwapOption::empty(),
            created_at: now,
            observability: SharedObservability::default(),
            conditions: Conditions::default(),
            application_ports,
        };
        (Arc::new(config_store), resource_receiver)
    }

    /// Returns the current snapshot; `None` before the first.
    pub(crate) fn current_config(&self) -> Option<Arc<ConfigSnapshot>> {
        self.config.load_full()
    }

    /// Returns the time since the store was created: a clock that is the same for all threads.
    pub(crate) fn age(&self) -> Duration {
        self.created_at.elapsed()
    }

    /// Returns the current key and certificate; `None` before the first.
    pub(crate) fn credential(&self) -> Option<Arc<Credential>> {
        self.credential.load_full()
    }

    /// Returns the virtual addresses of services in this workload's namespace.
    pub(crate) fn virtual_addresses(&self) -> &VirtualAddresses {
        &self.virtual_addresses
    }

    /// Subscribes to replacements of the snapshot or the credential.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Compiles an update and makes it the current snapshot. Requests in progress keep the previous snapshot.
    ///
    /// # Errors
    /// A pattern of the update cannot be compiled; the current snapshot remains.
    pub(crate) fn apply_update(&self, update: &ConfigUpdate) -> Result<(), InvalidPattern> {
        let previous = self.current_config();
        let compiled = CompiledSnapshot::build(
            update.snapshot.clone(),
            previous.as_ref().map(|config| &config.compiled),
        )?;
        // Builds the snapshot. Resources that the previous snapshot contains keep their usage.
        let now = self.elapsed_seconds();
        let known_service = |name: &ServiceName| {
            let previous_entry = previous.as_ref().and_then(|config| config.services.get(name));
            let previous_usage = previous_entry.map(|known| known.usage.clone());
            let usage = previous_usage.unwrap_or_else(|| ResourceUsage::new(now));
            (name.clone(), KnownService { service: compiled.service(name).cloned(), usage })
        };
        let services =
            compiled.snapshot.services.keys().chain(&update.absent).map(known_service).collect();
        let previous_config = previous.as_deref();
        let address_entries = resources_with_usage(
            &compiled.snapshot.addresses,
            previous_config.map(|config| &config.address_entries),
            now,
        );
        let dns_records = resources_with_usage(
            &compiled.snapshot.names,
            previous_config.map(|config| &config.dns_records),
            now,
        );
        let gateway_tls = gateway_tls::build_configs(
            &compiled,
            previous.as_ref().map(|config| (&config.compiled, &config.gateway_tls)),
        );
        let version = *self.version.borrow() + 1;
        let workload_config = &update.snapshot.config;
        let (accounts, workloads) = (&workload_config.revoked, &workload_config.revoked_workloads);
        let egress_settings = EgressSettings {
            egress: Some(workload_config.egress),
            egress_rules: Some(Arc::clone(&compiled.egress_rules)),
        };
        let is_access_unchanged =
            previous.is_some_and(|previous| has_same_access(&previous.compiled, &compiled));
        // Stored before the notifications below, so that each notified task reads the new snapshot.
        self.config.store(Some(Arc::new(ConfigSnapshot {
            compiled,
            services,
            address_entries,
            dns_records,
            gateway_tls,
            version,
        })));
        self.observability.apply_settings(&workload_config.observability);
        self.version.send_replace(version);
        // These subscribers are notified only if their settings have changed.
        self.revocations.send_if_modified(|current| {
            let has_changed = (&current.accounts, &current.workloads) != (accounts, workloads);
            if has_changed {
                current.accounts.clone_from(accounts);
                current.workloads.clone_from(workloads);
            }
            has_changed
        });
        if !is_access_unchanged {
            self.access_changed.send_replace(());
        }
        self.egress_settings.send_if_modified(|current| {
            let has_changed = !current.is_same(&egress_settings);
            *current = egress_settings;
            has_changed
        });
        Ok(())
    }

    /// Subscribes to changes of inbound authorization (see [`has_same_access`]).
    pub(crate) fn access_changes(&self) -> watch::Receiver<()> {
        self.access_changed.subscribe()
    }

    /// True if the workload of a peer is revoked, independent of its account.
    pub(crate) fn revokes_workload(&self, peer: &VerifiedPeer) -> bool {
        is_workload_revoked(&self.revocations.borrow(), peer)
    }

    /// Resolves when a peer's account or workload is revoked.
    pub(crate) async fn wait_until_revoked(&self, peer: &VerifiedPeer) {
        let covers_peer = |revoked: &Revocations| {
            revoked.accounts.contains(&peer.id.account) || is_workload_revoked(revoked, peer)
        };
        let mut revocations = self.revocations.subscribe();
        // The configuration store outlives its subscribers.
        drop(revocations.wait_for(covers_peer).await);
    }

    /// Resolves when clients without an identity and with this origin are no longer allowed at the port.
    pub(crate) async fn wait_until_plaintext_denied(&self, port: u16, origin: ConnectionOrigin) {
        let mut changes = self.access_changes();
        loop {
            if self
                .current_config()
                .is_some_and(|config| !config.allows_unauthenticated(port, &origin))
            {
                return;
            }
            if changes.changed().await.is_err() {
                // The configuration store outlives its subscribers.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Subscribes to changes of the egress rules.
    pub(crate) fn egress_changes(&self) -> watch::Receiver<EgressSettings> {
        self.egress_settings.subscribe()
    }

    /// Makes a new key and certificate the current ones.
    pub(crate) fn replace_credential(&self, credential: Credential) -> Arc<Credential> {
        let credential = Arc::new(credential);
        self.credential.store(Some(credential.clone()));
        self.version.send_modify(|version| *version += 1);
        credential
    }

    /// Returns a snapshot that contains `service`, and the service; requests it if necessary and waits at most `max_wait`.
    pub(crate) async fn with_service(
        &self,
        service: &ServiceName,
        max_wait: Duration,
    ) -> Result<SnapshotService, Reason> {
        if let Some(result) = self.lookup_service(service) {
            return result;
        }
        let mut changes = self.subscribe();
        let wait_for_service = async {
            self.request_resource(ResourceRequest::Service(service.clone())).await;
            loop {
                // Checked again before the first wait: the response may have arrived before the subscription.
                if let Some(result) = self.lookup_service(service) {
                    return result;
                }
                changes.changed().await.map_err(|_| Reason::DiscoveryTimeout)?;
            }
        };
        tokio::time::timeout(max_wait, wait_for_service)
            .await
            .unwrap_or(Err(Reason::DiscoveryTimeout))
    }

    /// Returns the entry at an address; requests it if necessary and waits at most `max_wait`.
    ///
    /// Without a response of the control plane the result is an error: a destination that may be a mesh member
    /// must not be called in plaintext.
    pub(crate) async fn address_entry(
        &self,
        address: IpAddr,
        max_wait: Duration,
    ) -> Result<Arc<AddressEntry>, Reason> {
        if let Some(address_entry) = self.lookup_address(address) {
            return Ok(address_entry);
        }
        let mut changes = self.subscribe();
        let wait_for_entry = async {
            self.request_resource(ResourceRequest::Address(address)).await;
            loop {
                // Checked again before the first wait, as in `with_service`.
                if let Some(address_entry) = self.lookup_address(address) {
                    return Ok(address_entry);
                }
                changes.changed().await.map_err(|_| Reason::DiscoveryTimeout)?;
            }
        };
        tokio::time::timeout(max_wait, wait_for_entry)
            .await
            .unwrap_or(Err(Reason::DiscoveryTimeout))
    }

    /// Returns the protocol of a service port; `None` if the current snapshot does not contain the port.
    pub(crate) fn declared_protocol(&self, service: &ServiceName, port: u16) -> Option<Protocol> {
        let config = self.current_config()?;
        config.compiled.service(service)?.ports.get(&port).map(|port| port.protocol)
    }

    /// Returns the protocol of a workload port by its address; `None` if the current snapshot does not contain the port.
    pub(crate) fn protocol_at(&self, address: SocketAddr) -> Option<Protocol> {
        match &*self.lookup_address(address.ip())? {
            AddressEntry::Workload { ports, .. } => {
                ports.get(&address.port()).map(|port| port.protocol)
            }
            AddressEntry::Service(_) | AddressEntry::External => None,
        }
    }

    /// Returns the current snapshot and the endpoint of the application port at `address`.
    ///
    /// # Errors
    /// `no-endpoint` if the address no longer belongs to the workload of `id`, or the reason why its entry is unavailable.
    pub(crate) async fn pinned_endpoint(
        &self,
        address: SocketAddr,
        id: &EndpointId,
        max_wait: Duration,
    ) -> Result<(Arc<ConfigSnapshot>, Arc<Endpoint>), Reason> {
        let address_entry = self.address_entry(address.ip(), max_wait).await?;
        let endpoint = match &*address_entry {
            AddressEntry::Workload { workload, ports } if *workload == id.workload => {
                ports.get(&address.port()).and_then(|port| port.endpoint.clone())
            }
            AddressEntry::Workload { .. } | AddressEntry::Service(_) | AddressEntry::External => {
                None
            }
        };
        let config = self.current_config().ok_or(Reason::DiscoveryTimeout)?;
        Ok((config, endpoint.ok_or(Reason::NoEndpoint)?))
    }

    /// Returns the listener for this sidecar's own requests to its application, if the endpoint is that
    /// application: the kernel delivers connections to its own address without redirection.
    pub(crate) fn own_listener(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let listeners = self.own_listeners.load();
        let listener = *listeners.as_ref()?.get(&endpoint.address.port())?;
        let config = self.current_config()?;
        (config.compiled.snapshot.config.workload == endpoint.id.workload).then_some(listener)
    }

    /// Sets the listeners for [`Self::own_listener`].
    pub(crate) fn set_own_listeners(&self, listeners: BTreeMap<u16, SocketAddr>) {
        let listeners = Some(listeners).filter(|listeners| !listeners.is_empty());
        self.own_listeners.store(listeners.map(Arc::new));
    }

    /// True if the current snapshot contains this endpoint with the same address.
    pub(crate) fn is_current(&self, endpoint: &Endpoint) -> bool {
        let Some(config) = self.current_config() else {
            return false;
        };
        let service = config.compiled.snapshot.services.get(&endpoint.id.service);
        let port = service.and_then(|service| service.ports.get(&endpoint.id.port));
        port.is_some_and(|port| port.endpoints.iter().any(|known| known.is_same_upstream(endpoint)))
            || config.pinned_endpoints().any(|known| known.is_same_upstream(endpoint))
    }

    /// Returns a function that gives the eviction priority of a service by its last use.
    pub(crate) fn service_eviction_priority(
        &self,
    ) -> impl Fn(&ServiceName) -> EvictionPriority + use<> {
        let (config, now) = (self.current_config(), self.elapsed_seconds());
        move |name| match config.as_ref().and_then(|config| config.services.get(name)) {
            None => EvictionPriority::Pending,
            Some(known) if known.service.is_none() => {
                EvictionPriority::Absent(known.usage.observe_last_use(now))
            }
            Some(known) => EvictionPriority::Used(known.usage.observe_last_use(now)),
        }
    }

    /// Returns a function that gives the eviction priority of an address by its last use.
    pub(crate) fn address_eviction_priority(&self) -> impl Fn(&IpAddr) -> EvictionPriority + use<> {
        let (config, now) = (self.current_config(), self.elapsed_seconds());
        move |address| {
            eviction_priority(
                config.as_ref().and_then(|config| config.address_entries.get(address)),
                now,
            )
        }
    }

    /// Returns a function that gives the eviction priority of a DNS name by its last use.
    pub(crate) fn name_eviction_priority(
        &self,
    ) -> impl Fn(&ServiceName) -> EvictionPriority + use<> {
        let (config, now) = (self.current_config(), self.elapsed_seconds());
        move |name| {
            eviction_priority(config.as_ref().and_then(|config| config.dns_records.get(name)), now)
        }
    }

    /// Returns the services that were not used for `max_idle`. Each call also records the uses since the last
    /// call, so the interval of calls must be shorter than `max_idle`.
    pub(crate) fn idle_services(&self, max_idle: Duration) -> Vec<ServiceName> {
        let Some(config) = self.current_config() else {
            return Vec::new();
        };
        let now = self.elapsed_seconds();
        let oldest_use = now.saturating_sub(max_idle.as_secs());
        let is_idle = |known: &KnownService| known.usage.observe_last_use(now) < oldest_use;
        let idle_services = config.services.iter().filter(|(_, known)| is_idle(known));
        idle_services.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the addresses that were not used for `max_idle`.
    pub(crate) fn idle_addresses(&self, max_idle: Duration) -> Vec<IpAddr> {
        let Some(config) = self.current_config() else {
            return Vec::new();
        };
        idle_keys(&config.address_entries, max_idle, self.elapsed_seconds())
    }

    /// Returns the names that were not used for `max_idle`.
    pub(crate) fn idle_names(&self, max_idle: Duration) -> Vec<ServiceName> {
        let Some(config) = self.current_config() else {
            return Vec::new();
        };
        idle_keys(&config.dns_records, max_idle, self.elapsed_seconds())
    }

    /// Returns the DNS record of a name; `None` if the control plane has not sent it.
    pub(crate) fn dns_record(&self, name: &ServiceName) -> Option<Arc<DnsRecord>> {
        let config = self.config.load();
        let known_record = config.as_ref()?.dns_records.get(name)?;
        known_record.usage.record_use();
        Some(Arc::clone(&known_record.resource))
    }

    /// True if the current snapshot contains the entry of an address.
    pub(crate) fn knows_address(&self, address: IpAddr) -> bool {
        self.config
            .load()
            .as_ref()
            .is_some_and(|config| config.address_entries.contains_key(&address))
    }

    /// Requests a resource without waiting. If the queue is full, the request is dropped; the caller repeats it
    /// while it needs the resource.
    pub(crate) fn try_request_resource(&self, request: ResourceRequest) {
        self.resource_sender.try_send(request).ok();
    }

    /// Requests a resource, and waits for room in the queue.
    async fn request_resource(&self, request: ResourceRequest) {
        // The queue is closed when the proxy ends.
        drop(self.resource_sender.send(request).await);
    }

    /// Returns the entry of an address and records its use; `None` if the current snapshot does not contain it.
    fn lookup_address(&self, address: IpAddr) -> Option<Arc<AddressEntry>> {
        let config = self.config.load();
        let known_entry = config.as_ref()?.address_entries.get(&address)?;
        known_entry.usage.record_use();
        Some(Arc::clone(&known_entry.resource))
    }

    /// Returns a service and records its use; `None` before the first response, an error if the service does not exist.
    fn lookup_service(&self, name: &ServiceName) -> Option<Result<SnapshotService, Reason>> {
        let config = self.current_config()?;
        let known_service = config.services.get(name)?;
        known_service.usage.record_use();
        let service = known_service.service.clone();
        Some(service.map(|service| (config, service)).ok_or(Reason::UnknownService))
    }

    /// Returns the age of the store in seconds, the unit of [`ResourceUsage`].
    fn elapsed_seconds(&self) -> u64 {
        self.created_at.elapsed().as_secs()
    }
}

/// True if both configurations authorize inbound connections in the same way.
fn has_same_access(previous: &CompiledSnapshot, current: &CompiledSnapshot) -> bool {
    let request_checks = (previous.request_checks.as_ref(), current.request_checks.as_ref());
    let has_same_checks = match request_checks {
        (None, None) => true,
        (Some(previous), Some(current)) => Arc::ptr_eq(previous, current),
        _ => false,
    };
    // Limits and ports also affect the authorization of bytes without parsed requests.
    has_same_checks
        && Arc::ptr_eq(&previous.access, &current.access)
        && Arc::ptr_eq(&previous.limits, &current.limits)
        && previous.snapshot.config.ports == current.snapshot.config.ports
}

/// True if the workload of a peer is revoked.
fn is_workload_revoked(revoked: &Revocations, peer: &VerifiedPeer) -> bool {
    let peer_workload = peer.workload.as_ref();
    peer_workload.is_some_and(|workload| revoked.covers_workload(workload, peer.instance.as_ref()))
}

impl ConfigSnapshot {
    /// Returns the endpoints of workloads that are reached by their own addresses.
    pub(crate) fn pinned_endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let ports = self.address_entries.values().flat_map(|known| match &*known.resource {
            AddressEntry::Workload { ports, .. } => Some(ports.values()),
            AddressEntry::Service(_) | AddressEntry::External => None,
        });
        ports.flatten().filter_map(|port: &AddressPort| port.endpoint.as_ref())
    }

    /// Returns the application's protocol at this port if clients without mutual TLS are allowed, at least from `address`.
    pub(crate) fn plaintext_protocol(&self, port: u16, address: IpAddr) -> Option<Protocol> {
        let workload_config = &self.compiled.snapshot.config;
        let declared = workload_config.ports.iter().find(|declared| declared.port == port)?;
        let ingress_protocol =
            || self.compiled.access.plaintext_protocol(port, declared.protocol, address);
        match (workload_config.mtls, declared.protocol) {
            // Without a declared protocol, the ingress rule for the port may set it.
            (MtlsMode::Permissive, Protocol::Detect) => {
                ingress_protocol().or(Some(Protocol::Detect))
            }
            (MtlsMode::Permissive, protocol) => Some(protocol),
            (MtlsMode::Strict, _) => ingress_protocol(),
        }
    }

    /// True if a client without an identity and with this origin is allowed at a port.
    fn allows_unauthenticated(&self, port: u16, origin: &ConnectionOrigin) -> bool {
        let is_declared =
            self.compiled.snapshot.config.ports.iter().any(|declared| declared.port == port);
        is_declared
            && self
                .compiled
                .access
                .authorize_connection_from(None, port, Some(origin.clone()))
                .is_ok()
    }

    /// Returns the requested services that do not exist.
    pub(crate) fn absent_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.iter().filter(|(_, known)| known.service.is_none()).map(|(name, _)| name)
    }
}

/// The maximum number of queued requests for resources; further ones wait.
const MAX_QUEUED_REQUESTS: usize = 1024;
