//! Simulates a publisher and a subscriber with messages in flight: a seed determines the changes of the
//! configuration, lost messages, rejections, and unknown endpoints.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{
    AddressEntry, AddressPort, DnsRecord, EndpointId, ServiceConfig, ServiceName, Snapshot,
};

use crate::fixture::{add_route, proxy_config, service_config, service_endpoint, service_name};
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, Delta, ResourceRejection};
use crate::publisher::Publisher;
use crate::resource::encode_service;
use crate::subscriber::Subscriber;
use crate::unknown_endpoints::UnknownEndpoints;

#[test]
fn both_ends_converge_for_every_seed() {
    (0..256).for_each(run_simulation);
}

#[test]
#[ignore = "takes minutes; docs/scale.md has the result"]
fn ten_thousand_seeds_converge() {
    (0..10_000).for_each(run_simulation);
}

fn run_simulation(seed: u64) {
    let mut simulation = Simulation::new(seed);
    // On average, 80 steps change a service, and 20 steps break the stream.
    for _ in 0..400 {
        simulation.step();
    }
    simulation.check_convergence();
}

/// The proxy's response to the control plane.
enum ProxyResponse {
    Ack(u64),
    Nack(u64, Vec<ResourceRejection>),
}

/// The completeness of the control plane's knowledge about sidecars.
#[derive(Clone, Copy)]
enum Completeness {
    /// All sidecars have connected.
    Full,
    /// After a restart of the control plane, some sidecars have not reconnected.
    Partial,
}

struct Simulation {
    seed: u64,
    random: RandomSource,
    services: BTreeMap<ServiceName, ServiceConfig>,
    addresses: BTreeMap<IpAddr, Arc<AddressEntry>>,
    dns_records: BTreeMap<ServiceName, Arc<DnsRecord>>,
    /// True if the workload configuration has its outbound listener.
    has_listener: bool,
    /// The number of published configurations, which is also the ID of the newest change.
    change_count: u64,
    publisher: Publisher,
    subscriber: Subscriber,
    /// The newest desired configuration, and its unknown endpoints.
    desired: Option<(ConfigUpdate, UnknownEndpoints)>,
    /// The delta in flight to the proxy, if any.
    deltas: VecDeque<Delta>,
    /// The response in flight to the control plane, if any.
    responses: VecDeque<ProxyResponse>,
    /// The desired versions that the proxy rejected in this stream for their own content, and not because of another
    /// resource.
    rejected: BTreeSet<(ResourceKey, ResourceVersion)>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            // The multiplier spreads the bits of small seeds. The state must not be 0.
            random: RandomSource(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            services: BTreeMap::new(),
            addresses: BTreeMap::new(),
            dns_records: BTreeMap::new(),
            has_listener: false,
            change_count: 0,
            publisher: Publisher::new(Vec::new()),
            subscriber: Subscriber::new(),
            desired: None,
            deltas: VecDeque::new(),
            responses: VecDeque::new(),
            rejected: BTreeSet::new(),
        }
    }

    /// Performs one random action: a change, a publication, a delivery, or a disconnect.
    fn step(&mut self) {
        match self.random.next_below(100) {
            0..20 => self.change_service(),
            20..23 => self.change_address(),
            23..25 => self.change_dns_record(),
            25..30 => self.has_listener = !self.has_listener,
            30..40 => drop(self.publish_update(Completeness::Full)),
            40..45 => drop(self.publish_update(Completeness::Partial)),
            45..65 => self.send_delta(),
            65..80 => self.deliver_delta(),
            80..95 => self.deliver_response(),
            95..98 => self.reconnect(),
            _ => self.restart_proxy(),
        }
    }

    /// Adds, changes or removes a service; one in six is invalid for the proxy.
    fn change_service(&mut self) {
        let name = SERVICE_NAMES[self.random.next_below(SERVICE_NAMES.len())];
        if self.random.next_below(4) == 0 {
            self.services.remove(&service_name(name));
            return;
        }
        let endpoints = [0, 1, 2, 3, 5, 40][self.random.next_below(6)];
        let mut service = service_config(name, endpoints);
        if self.random.next_below(2) == 0 {
            let backends =
                [0, 1].map(|_| SERVICE_NAMES[self.random.next_below(SERVICE_NAMES.len())]);
            add_route(&mut service, &backends);
        }
        if self.random.next_below(6) == 0 {
            add_route(&mut service, &[INVALID_BACKEND]);
        }
        if self.random.next_below(3) == 0 {
            let port = service.ports.remove(&9080).unwrap();
            service.ports.insert(81, renumber_port(port));
        }
        self.services.insert(service_name(name), service);
    }

    /// Changes an address entry, or removes it, as after the end of its subscription.
    fn change_address(&mut self) {
        let address = IpAddr::from([10, 0, 0, u8::try_from(self.random.next_below(6)).unwrap()]);
        let name = service_name(SERVICE_NAMES[self.random.next_below(SERVICE_NAMES.len())]);
        let address_entry = match self.random.next_below(5) {
            0 => return drop(self.addresses.remove(&address)),
            1 => AddressEntry::External,
            2 => AddressEntry::Service(name),
            kind => {
                let endpoint = service_endpoint(&name, 1);
                let workload = endpoint.id.workload.clone();
                let endpoint = Some(Arc::new(endpoint)).filter(|_| kind == 3);
                let protocol = leno_model::Protocol::Http;
                let port = AddressPort { service: name, port: 9080, protocol, endpoint };
                AddressEntry::Workload { workload, ports: BTreeMap::from([(80, port)]) }
            }
        };
        self.addresses.insert(address, Arc::new(address_entry));
    }

    /// Changes a DNS record, or removes it, as after the end of its subscription.
    fn change_dns_record(&mut self) {
        let name = service_name(SERVICE_NAMES[self.random.next_below(SERVICE_NAMES.len())]);
        let count = u8::try_from(self.random.next_below(4)).unwrap();
        // The other counts are numbers of addresses.
        if count == 3 {
            return drop(self.dns_records.remove(&name));
        }
        let dns_record = (0..count).map(|last| IpAddr::from([10, 0, 1, last])).collect();
        self.dns_records.insert(name, Arc::new(dns_record));
    }

    /// Returns the configuration as the control plane would compile it now.
    fn compile_update(&mut self) -> ConfigUpdate {
        self.change_count += 1;
        let mut config = proxy_config();
        config.outbound_listeners.truncate(usize::from(self.has_listener));
        let services: BTreeMap<_, _> = self
            .services
            .iter()
            .map(|(name, service)| (name.clone(), Arc::new(service.clone())))
            .collect();
        let backends = services.values().flat_map(|service| service.ports.values());
        let backends = backends.flat_map(|port| &port.rules).flat_map(|rule| &rule.backends);
        let backends = backends.map(|backend| backend.service.clone());
        let absent = backends.filter(|name| !services.contains_key(name)).collect();
        let addresses = self.addresses.clone();
        let names = self.dns_records.clone();
        let snapshot = Arc::new(Snapshot { config: Arc::new(config), services, addresses, names });
        ConfigUpdate { snapshot, absent, change: ChangeId(self.change_count) }
    }

    /// Publishes the current configuration, and returns it.
    fn publish_update(&mut self, completeness: Completeness) -> ConfigUpdate {
        let mut update = self.compile_update();
        let unknown_endpoints = match completeness {
            Completeness::Full => UnknownEndpoints::default(),
            Completeness::Partial => self.forget_endpoints(&mut update),
        };
        match unknown_endpoints.is_empty() {
            true => self.publisher.set_update(update.clone()),
            false => self.publisher.set_partial_update(update.clone(), unknown_endpoints.clone()),
        }
        self.desired = Some((update.clone(), unknown_endpoints));
        self.forget_undesired_rejections();
        update
    }

    /// Forgets rejected versions that are no longer desired: a resource that changes back may be sent again.
    fn forget_undesired_rejections(&mut self) {
        let Some((update, _)) = &self.desired else { return };
        self.rejected.retain(|(key, version)| {
            let service = key.service().and_then(|name| update.snapshot.services.get(name));
            service.is_some_and(|service| {
                ResourceVersion::from_content(&encode_service(service)) == *version
            })
        });
    }

    /// Removes random endpoints from the update, as after a restart of the control plane to which some sidecars have
    /// not reconnected. Returns the removed endpoints, together with random addresses, as unknown.
    fn forget_endpoints(&mut self, update: &mut ConfigUpdate) -> UnknownEndpoints {
        let mut unknown_endpoints = BTreeSet::new();
        for service in Arc::make_mut(&mut update.snapshot).services.values_mut() {
            let known_quarters = self.random.next_below(4);
            for port in Arc::make_mut(service).ports.values_mut() {
                port.endpoints.retain(|endpoint| {
                    let is_known = self.random.next_below(4) < known_quarters;
                    let is_new = is_known || unknown_endpoints.insert(endpoint.id.clone());
                    assert!(is_new, "an endpoint is listed twice");
                    is_known
                });
            }
        }
        let unknown_addresses =
            self.addresses.keys().filter(|_| self.random.next_below(4) == 0).copied();
        let unknown_addresses: Vec<IpAddr> = unknown_addresses.collect();
        let unknown_endpoints: UnknownEndpoints = unknown_endpoints.into_iter().collect();
        unknown_endpoints.with_addresses(unknown_addresses)
    }

    /// Sends the next delta, if there is one. Checks that it contains no version that the proxy has rejected.
    fn send_delta(&mut self) {
        let Some(delta) = self.publisher.next_delta() else { return };
        assert!(self.deltas.is_empty() && self.responses.is_empty(), "{self}: two in flight");
        for upsert in &delta.upserts {
            let version = (upsert.key.clone(), upsert.version());
            assert!(!self.rejected.contains(&version), "{self}: {} was sent again", upsert.key);
        }
        self.check_unknown_endpoints(&delta);
        self.deltas.push_back(delta);
    }

    /// Checks that no unknown endpoint or address is removed, and that a new service without known endpoints is
    /// sent only if a held service routes to it.
    fn check_unknown_endpoints(&self, delta: &Delta) {
        let Some((update, unknown_endpoints)) =
            self.desired.as_ref().filter(|(_, unknown_endpoints)| !unknown_endpoints.is_empty())
        else {
            return;
        };
        for key in &delta.removed {
            let is_unknown =
                matches!(key, ResourceKey::Endpoint(id) if unknown_endpoints.contains(id));
            assert!(!is_unknown, "{self}: {key} may exist");
        }
        for upsert in &delta.upserts {
            let is_unknown = match &upsert.key {
                ResourceKey::Address(address) => unknown_endpoints.contains_address(address),
                _ => false,
            };
            assert!(!is_unknown, "{self}: {} is uncertain", upsert.key);
        }
        let held = self.subscriber.current_update().map(|update| &update.snapshot.services);
        let is_held = |name: &ServiceName| held.is_some_and(|held| held.contains_key(name));
        let services = &update.snapshot.services;
        let mut reachable: BTreeSet<&ServiceName> =
            services.keys().filter(|name| is_held(name)).collect();
        let mut queue: Vec<&ServiceName> = reachable.iter().copied().collect();
        while let Some(service) = queue.pop().and_then(|name| services.get(name)) {
            let rules = service.ports.values().flat_map(|port| &port.rules);
            let backends = rules.flat_map(|rule| &rule.backends).map(|backend| &backend.service);
            let backends = backends.filter(|name| services.contains_key(*name));
            queue.extend(backends.filter(|name| reachable.insert(name)));
        }
        for EndpointId { service, port, .. } in unknown_endpoints.iter() {
            let lacks_endpoints = services[service].ports[port].endpoints.is_empty();
            let key = ResourceKey::Service(service.clone());
            let is_sent = delta.upserts.iter().any(|upsert| upsert.key == key);
            assert!(
                !(is_sent && lacks_endpoints) || reachable.contains(service),
                "{self}: {key} was sent"
            );
        }
    }

    /// Delivers the delta in flight to the proxy, which applies all of it or rejects it.
    fn deliver_delta(&mut self) {
        let Some(delta) = self.deltas.pop_front() else { return };
        let old_update = self.subscriber.current_update().cloned();
        let nonce = delta.nonce;
        let versions: BTreeMap<_, _> =
            delta.upserts.iter().map(|upsert| (upsert.key.clone(), upsert.version())).collect();
        let staged = self.subscriber.stage(delta).and_then(|staged| {
            let rejections = reject_invalid_services(&staged.update().snapshot);
            if rejections.is_empty() { Ok(staged) } else { Err(rejections) }
        });
        let response = match staged {
            Ok(staged) => {
                self.subscriber.commit(staged);
                ProxyResponse::Ack(nonce)
            }
            Err(rejections) => {
                assert_eq!(
                    self.subscriber.current_update(),
                    old_update.as_ref(),
                    "{self}: half applied"
                );
                let invalid = rejections.iter().filter(|rejection| rejection.because.is_none());
                self.rejected.extend(invalid.filter_map(|rejection| {
                    versions.get(&rejection.key).map(|version| (rejection.key.clone(), *version))
                }));
                // The service may have changed while the rejected delta was in flight.
                self.forget_undesired_rejections();
                ProxyResponse::Nack(nonce, rejections)
            }
        };
        self.responses.push_back(response);
    }

    /// Delivers the response in flight to the control plane.
    fn deliver_response(&mut self) {
        match self.responses.pop_front() {
            None => {}
            Some(ProxyResponse::Ack(nonce)) => assert!(self.publisher.acknowledge(nonce).is_some()),
            Some(ProxyResponse::Nack(nonce, rejections)) => {
                assert!(self.publisher.reject_delta(nonce, &rejections).is_some());
            }
        }
    }

    /// Breaks the stream and loses all messages in flight. Any replica may serve the next one.
    fn reconnect(&mut self) {
        self.deltas.clear();
        self.responses.clear();
        self.rejected.clear();
        self.publisher = Publisher::new(self.subscriber.held_versions());
        let completeness = match self.random.next_below(2) {
            0 => Completeness::Full,
            _ => Completeness::Partial,
        };
        self.publish_update(completeness);
    }

    /// Restarts the proxy from its disk.
    fn restart_proxy(&mut self) {
        if self.subscriber.current_update().is_some() {
            self.subscriber = Subscriber::from_bytes(&self.subscriber.to_bytes()).unwrap();
        }
        self.reconnect();
    }

    /// Delivers everything in flight, and checks the result if all services are valid. Then makes all services valid,
    /// delivers them, and checks that the proxy holds exactly the desired configuration.
    fn check_convergence(&mut self) {
        let desired = self.deliver_all();
        for service in self.services.values_mut() {
            for port in service.ports.values_mut() {
                port.rules.retain(|rule| {
                    rule.backends
                        .iter()
                        .all(|backend| backend.service != service_name(INVALID_BACKEND))
                });
            }
        }
        let is_valid = |service: &ServiceConfig| reject_invalid_service(service).is_none();
        let all_valid = desired.snapshot.services.values().all(|service| is_valid(service));
        let held_update = self.subscriber.current_update();
        if all_valid {
            assert_eq!(
                held_update.map(|held_update| &held_update.snapshot),
                Some(&desired.snapshot),
                "{self}"
            );
        }
        let last_update = self.deliver_all();
        let held_update = self.subscriber.current_update();
        assert_eq!(
            held_update.map(|held_update| &held_update.snapshot),
            Some(&last_update.snapshot),
            "{self}"
        );
        assert_eq!(
            held_update.map(|held_update| &held_update.absent),
            Some(&last_update.absent),
            "{self}"
        );
        assert_eq!(self.publisher.rejected_resources().count(), 0, "{self}");
        assert_eq!(self.publisher.applied_change(), Some(last_update.change), "{self}");
    }

    /// Publishes the full configuration, exchanges messages until none is in flight, and returns the configuration.
    fn deliver_all(&mut self) -> ConfigUpdate {
        let update = self.publish_update(Completeness::Full);
        // Each iteration completes one delta, so only a publisher that repeats deltas forever needs so many.
        for _ in 0..1000 {
            self.deliver_delta();
            self.deliver_response();
            self.send_delta();
            if self.deltas.is_empty() && self.responses.is_empty() {
                return update;
            }
        }
        panic!("{self}: the deltas do not converge");
    }
}

impl std::fmt::Display for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} at change {}", self.seed, self.change_count)
    }
}

/// Returns the same port for the number 81: the IDs of its endpoints contain the number.
fn renumber_port(mut port: leno_model::PortConfig) -> leno_model::PortConfig {
    for endpoint in &mut port.endpoints {
        Arc::make_mut(endpoint).id.port = 81;
    }
    port
}

/// Rejects services as the proxy's own checks would, for errors such as an invalid regular expression.
fn reject_invalid_services(snapshot: &Snapshot) -> Vec<ResourceRejection> {
    snapshot.services.values().filter_map(|service| reject_invalid_service(service)).collect()
}

/// Returns the rejection of a service that routes to [`INVALID_BACKEND`]; `None` for any other service.
fn reject_invalid_service(service: &ServiceConfig) -> Option<ResourceRejection> {
    let rules = service.ports.values().flat_map(|port| &port.rules);
    let mut backends = rules.flat_map(|rule| &rule.backends);
    backends
        .any(|backend| backend.service == service_name(INVALID_BACKEND))
        .then(|| ResourceRejection::new(ResourceKey::Service(service.name.clone()), "poisoned"))
}

/// Pseudorandom numbers from the seed (xorshift).
struct RandomSource(u64);

impl RandomSource {
    /// Returns a number from 0 to `bound - 1`.
    fn next_below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

/// The names of all services.
const SERVICE_NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// A backend that makes a service invalid for the proxy.
const INVALID_BACKEND: &str = "poison";
