//! Simulation of both ends with messages in flight: changes, losses, rejections, uncertainty, by seed.

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
fn every_seed_converges_to_the_same_world() {
    (0..256).for_each(run);
}

#[test]
#[ignore = "takes minutes; docs/scale.md has the result"]
fn ten_thousand_seeds_converge_to_the_same_world() {
    (0..10_000).for_each(run);
}

fn run(seed: u64) {
    let mut simulation = Simulation::new(seed);
    for _ in 0..400 {
        simulation.step();
    }
    simulation.heal();
}

/// The proxy's response to the control plane.
enum Answer {
    Ack(u64),
    Nack(u64, Vec<ResourceRejection>),
}

/// The completeness of the control plane's knowledge.
#[derive(Clone, Copy)]
enum Certainty {
    Full,
    Partial,
}

struct Simulation {
    seed: u64,
    chance: Chance,
    services: BTreeMap<ServiceName, ServiceConfig>,
    addresses: BTreeMap<IpAddr, Arc<AddressEntry>>,
    names: BTreeMap<ServiceName, Arc<DnsRecord>>,
    ports_swapped: bool,
    change: u64,
    publisher: Publisher,
    subscriber: Subscriber,
    /// The newest offer, and the uncertain ones among the endpoints that it lacks.
    pushed: Option<(ConfigUpdate, UnknownEndpoints)>,
    deltas: VecDeque<Delta>,
    answers: VecDeque<Answer>,
    /// Every version that the proxy rejected as invalid in itself, in this stream.
    refused: BTreeSet<(ResourceKey, ResourceVersion)>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            services: BTreeMap::new(),
            addresses: BTreeMap::new(),
            names: BTreeMap::new(),
            ports_swapped: false,
            change: 0,
            publisher: Publisher::new(Vec::new()),
            subscriber: Subscriber::new(),
            pushed: None,
            deltas: VecDeque::new(),
            answers: VecDeque::new(),
            refused: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.chance.next_below(100) {
            0..20 => self.change_something(),
            20..23 => self.move_address(),
            23..25 => self.move_name(),
            25..30 => self.ports_swapped = !self.ports_swapped,
            30..40 => drop(self.publish_update(Certainty::Full)),
            40..45 => drop(self.publish_update(Certainty::Partial)),
            45..65 => self.send_delta(),
            65..80 => self.deliver_delta(),
            80..95 => self.deliver_response(),
            95..98 => self.reconnect(),
            _ => self.restart_proxy(),
        }
    }

    /// Adds, changes or removes a service; one in six is invalid for the proxy.
    fn change_something(&mut self) {
        let name = NAMES[self.chance.next_below(NAMES.len())];
        if self.chance.next_below(4) == 0 {
            self.services.remove(&service_name(name));
            return;
        }
        let endpoints = [0, 1, 2, 3, 5, 40][self.chance.next_below(6)];
        let mut view = service_config(name, endpoints);
        if self.chance.next_below(2) == 0 {
            let backends = [0, 1].map(|_| NAMES[self.chance.next_below(NAMES.len())]);
            add_route(&mut view, &backends);
        }
        if self.chance.next_below(6) == 0 {
            add_route(&mut view, &[POISON]);
        }
        if self.chance.next_below(3) == 0 {
            let port = view.ports.remove(&9080).unwrap();
            view.ports.insert(81, move_port(port));
        }
        self.services.insert(service_name(name), view);
    }

    /// Changes an address entry, or removes its subscription.
    fn move_address(&mut self) {
        let address = IpAddr::from([10, 0, 0, u8::try_from(self.chance.next_below(6)).unwrap()]);
        let name = service_name(NAMES[self.chance.next_below(NAMES.len())]);
        let address_entry = match self.chance.next_below(5) {
            0 => return drop(self.addresses.remove(&address)),
            1 => AddressEntry::External,
            2 => AddressEntry::Service(name),
            with => {
                let endpoint = service_endpoint(&name, 1);
                let workload = endpoint.id.workload.clone();
                let endpoint = Some(Arc::new(endpoint)).filter(|_| with == 3);
                let protocol = leno_model::Protocol::Http;
                let port = AddressPort { service: name, port: 9080, protocol, endpoint };
                AddressEntry::Workload { workload, ports: BTreeMap::from([(80, port)]) }
            }
        };
        self.addresses.insert(address, Arc::new(address_entry));
    }

    /// Changes a DNS record, or removes its subscription.
    fn move_name(&mut self) {
        let name = service_name(NAMES[self.chance.next_below(NAMES.len())]);
        let count = u8::try_from(self.chance.next_below(4)).unwrap();
        if count == 3 {
            return drop(self.names.remove(&name));
        }
        let dns_record = (0..count).map(|last| IpAddr::from([10, 0, 1, last])).collect();
        self.names.insert(name, Arc::new(dns_record));
    }

    /// The configuration as the control plane would compile it now.
    fn compile_update(&mut self) -> ConfigUpdate {
        self.change += 1;
        let mut plan = proxy_config();
        plan.outbound_listeners.truncate(usize::from(self.ports_swapped));
        let services: BTreeMap<_, _> = self
            .services
            .iter()
            .map(|(name, view)| (name.clone(), Arc::new(view.clone())))
            .collect();
        let used = services.values().flat_map(|view| view.ports.values());
        let used = used.flat_map(|port| &port.rules).flat_map(|rule| &rule.backends);
        let used = used.map(|backend| backend.service.clone());
        let absent = used.filter(|name| !services.contains_key(name)).collect();
        let addresses = self.addresses.clone();
        let names = self.names.clone();
        let snapshot = Arc::new(Snapshot { config: Arc::new(plan), services, addresses, names });
        ConfigUpdate { snapshot, absent, change: ChangeId(self.change) }
    }

    fn publish_update(&mut self, certainty: Certainty) -> ConfigUpdate {
        let mut offer = self.compile_update();
        let doubt = match certainty {
            Certainty::Full => UnknownEndpoints::default(),
            Certainty::Partial => self.forget_sidecars(&mut offer),
        };
        match doubt.is_empty() {
            true => self.publisher.set_update(offer.clone()),
            false => self.publisher.offer_in_doubt(offer.clone(), doubt.clone()),
        }
        self.pushed = Some((offer.clone(), doubt));
        self.forget_changed();
        offer
    }

    /// Resources that change, and later change back, may be tried again.
    fn forget_changed(&mut self) {
        let Some((offer, _)) = &self.pushed else { return };
        self.refused.retain(|(key, version)| {
            let view = key.service().and_then(|name| offer.snapshot.services.get(name));
            view.is_some_and(|view| {
                ResourceVersion::from_content(&encode_service(view)) == *version
            })
        });
    }

    /// Simulates a control plane after a restart that does not know every sidecar yet.
    fn forget_sidecars(&mut self, offer: &mut ConfigUpdate) -> UnknownEndpoints {
        let mut doubt = BTreeSet::new();
        for view in Arc::make_mut(&mut offer.snapshot).services.values_mut() {
            let back = self.chance.next_below(4);
            for port in Arc::make_mut(view).ports.values_mut() {
                port.endpoints.retain(|endpoint| {
                    let is_back = self.chance.next_below(4) < back;
                    let new = is_back || doubt.insert(endpoint.id.clone());
                    assert!(new, "an endpoint twice");
                    is_back
                });
            }
        }
        let about = self.addresses.keys().filter(|_| self.chance.next_below(4) == 0).copied();
        let about: Vec<IpAddr> = about.collect();
        let doubt: UnknownEndpoints = doubt.into_iter().collect();
        doubt.with_addresses(about)
    }

    fn send_delta(&mut self) {
        let Some(delta) = self.publisher.next_delta() else { return };
        assert!(self.deltas.is_empty() && self.answers.is_empty(), "{self}: two in flight");
        for upsert in &delta.upserts {
            let version = (upsert.key.clone(), upsert.version());
            assert!(!self.refused.contains(&version), "{self}: {} came again", upsert.key);
        }
        self.check_doubt(&delta);
        self.deltas.push_back(delta);
    }

    /// Checks that no uncertain resource is removed, and that a new service without known endpoints is sent
    /// only if a held service routes to it.
    fn check_doubt(&self, delta: &Delta) {
        let Some((offer, doubt)) = self.pushed.as_ref().filter(|(_, doubt)| !doubt.is_empty())
        else {
            return;
        };
        for key in &delta.removed {
            let doubtful = matches!(key, ResourceKey::Endpoint(id) if doubt.contains(id));
            assert!(!doubtful, "{self}: {key} may be there");
        }
        for upsert in &delta.upserts {
            let doubtful = matches!(&upsert.key, ResourceKey::Address(it) if doubt.is_about(it));
            assert!(!doubtful, "{self}: {} may not hold", upsert.key);
        }
        let held = self.subscriber.current_update().map(|update| &update.snapshot.services);
        let old = |name: &ServiceName| held.is_some_and(|held| held.contains_key(name));
        let services = &offer.snapshot.services;
        let mut known: BTreeSet<&ServiceName> = services.keys().filter(|name| old(name)).collect();
        let mut open: Vec<&ServiceName> = known.iter().copied().collect();
        while let Some(view) = open.pop().and_then(|name| services.get(name)) {
            let rules = view.ports.values().flat_map(|port| &port.rules);
            let used = rules.flat_map(|rule| &rule.backends).map(|backend| &backend.service);
            let used = used.filter(|name| services.contains_key(*name));
            open.extend(used.filter(|name| known.insert(name)));
        }
        for EndpointId { service, port, .. } in doubt.iter() {
            let unanswered = services[service].ports[port].endpoints.is_empty();
            let key = ResourceKey::Service(service.clone());
            let comes = delta.upserts.iter().any(|upsert| upsert.key == key);
            assert!(!(comes && unanswered) || known.contains(service), "{self}: {key} came");
        }
    }

    fn deliver_delta(&mut self) {
        let Some(delta) = self.deltas.pop_front() else { return };
        let before = self.subscriber.current_update().cloned();
        let nonce = delta.nonce;
        let versions: BTreeMap<_, _> =
            delta.upserts.iter().map(|upsert| (upsert.key.clone(), upsert.version())).collect();
        let judged = self.subscriber.stage(delta).and_then(|staged| {
            let refusals = find_invalid(&staged.update().snapshot);
            if refusals.is_empty() { Ok(staged) } else { Err(refusals) }
        });
        let answer = match judged {
            Ok(staged) => {
                self.subscriber.commit(staged);
                Answer::Ack(nonce)
            }
            Err(refusals) => {
                assert_eq!(
                    self.subscriber.current_update(),
                    before.as_ref(),
                    "{self}: half applied"
                );
                let own = refusals.iter().filter(|refusal| refusal.because.is_none());
                self.refused.extend(own.filter_map(|refusal| {
                    versions.get(&refusal.key).map(|version| (refusal.key.clone(), *version))
                }));
                // The service may have changed while the rejected delta was in flight.
                self.forget_changed();
                Answer::Nack(nonce, refusals)
            }
        };
        self.answers.push_back(answer);
    }

    fn deliver_response(&mut self) {
        match self.answers.pop_front() {
            None => {}
            Some(Answer::Ack(nonce)) => assert!(self.publisher.acknowledge(nonce).is_some()),
            Some(Answer::Nack(nonce, refusals)) => {
                assert!(self.publisher.reject_delta(nonce, &refusals).is_some());
            }
        }
    }

    /// Breaks the stream and loses all messages in flight. Any replica may serve the next one.
    fn reconnect(&mut self) {
        self.deltas.clear();
        self.answers.clear();
        self.refused.clear();
        self.publisher = Publisher::new(self.subscriber.held_versions());
        let certainty = match self.chance.next_below(2) {
            0 => Certainty::Full,
            _ => Certainty::Partial,
        };
        self.publish_update(certainty);
    }

    /// Restarts the proxy from its disk.
    fn restart_proxy(&mut self) {
        if self.subscriber.current_update().is_some() {
            self.subscriber = Subscriber::from_bytes(&self.subscriber.to_bytes()).unwrap();
        }
        self.reconnect();
    }

    /// Delivers everything in flight, checks the result, then removes invalid resources.
    fn heal(&mut self) {
        let pushed = self.deliver_all();
        for view in self.services.values_mut() {
            for port in view.ports.values_mut() {
                port.rules
                    .retain(|rule| rule.backends.iter().all(|b| b.service != service_name(POISON)));
            }
        }
        let healthy = |view: &ServiceConfig| poisoned_view(view).is_none();
        let clean = pushed.snapshot.services.values().all(|view| healthy(view));
        let held = self.subscriber.current_update();
        if clean {
            assert_eq!(held.map(|held| &held.snapshot), Some(&pushed.snapshot), "{self}");
        }
        let last = self.deliver_all();
        let held = self.subscriber.current_update();
        assert_eq!(held.map(|held| &held.snapshot), Some(&last.snapshot), "{self}");
        assert_eq!(held.map(|held| &held.absent), Some(&last.absent), "{self}");
        assert_eq!(self.publisher.rejected_resources().count(), 0, "{self}");
        assert_eq!(self.publisher.applied_change(), Some(last.change), "{self}");
    }

    fn deliver_all(&mut self) -> ConfigUpdate {
        let offer = self.publish_update(Certainty::Full);
        for _ in 0..1000 {
            self.deliver_delta();
            self.deliver_response();
            self.send_delta();
            if self.deltas.is_empty() && self.answers.is_empty() {
                return offer;
            }
        }
        panic!("{self}: deltas go back and forth for ever");
    }
}

impl std::fmt::Display for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} at change {}", self.seed, self.change)
    }
}

/// The same port with another number; its endpoints follow.
fn move_port(mut port: leno_model::PortConfig) -> leno_model::PortConfig {
    for endpoint in &mut port.endpoints {
        Arc::make_mut(endpoint).id.port = 81;
    }
    port
}

/// Errors that the proxy's own checks would find, such as an invalid regular expression.
fn find_invalid(snapshot: &Snapshot) -> Vec<ResourceRejection> {
    snapshot.services.values().filter_map(|view| poisoned_view(view)).collect()
}

fn poisoned_view(view: &ServiceConfig) -> Option<ResourceRejection> {
    let rules = view.ports.values().flat_map(|port| &port.rules);
    let mut backends = rules.flat_map(|rule| &rule.backends);
    backends
        .any(|backend| backend.service == service_name(POISON))
        .then(|| ResourceRejection::new(ResourceKey::Service(view.name.clone()), "poisoned"))
}

/// Pseudorandom numbers from the seed (xorshift).
struct Chance(u64);

impl Chance {
    fn next_below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const POISON: &str = "poison";
