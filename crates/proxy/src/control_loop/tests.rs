//! Tests of full subscription tables, which evict their least recently used entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_discovery::{ChangeId, ConfigUpdate};
use leno_model::{
    Access, AddressEntry, ClientAuthorization, DnsRecord, ServiceConfig, Snapshot, TrustDomain,
};
use leno_telemetry::{Count, Telemetry};

use super::*;
use crate::config::Config;
use crate::config_store::ConfigStore;
use crate::state::StateDir;
use crate::tests::fixture::{proxy_config, run, workload_name};

/// The control thread of a sidecar, and the control plane that it subscribes to.
struct Fixture {
    control_client: ControlClient,
    telemetry: Arc<Telemetry>,
    control: ControlPlane,
    started: Instant,
    _scratch: tempfile::TempDir,
}

#[derive(Default)]
struct ControlPlane {
    /// The services that exist in the mesh.
    existing: BTreeSet<ServiceName>,
    services: BTreeSet<ServiceName>,
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<ServiceName>,
}

impl Fixture {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let config = Config::for_sidecar(
            workload_name("web-1"),
            TrustDomain::new("a").unwrap(),
            path.clone(),
        );
        let state = StateDir::open(&path).unwrap();
        let started = Instant::now();
        let (config_store, _) = ConfigStore::new(state.stored_virtual_addresses(), started);
        let telemetry = Telemetry::new();
        let admin = ([127, 0, 0, 1], 0).into();
        let control_client =
            ControlClient::new(Arc::new(config), telemetry.clone(), config_store, state, admin, 0);
        Self {
            control_client,
            telemetry,
            control: ControlPlane::default(),
            started,
            _scratch: scratch,
        }
    }

    /// Requests these resources and marks them as used. The control plane receives the subscriptions, and sends
    /// a snapshot.
    fn use_resources(&mut self, requested: impl IntoIterator<Item = ResourceRequest>) {
        let requested: Vec<ResourceRequest> = requested.into_iter().collect();
        for part in requested.chunks(MAX_BATCHED_REQUESTS) {
            let requests = subscribe_batch(&self.control_client, &mut part.to_vec());
            self.receive_requests(requests);
            self.send_snapshot();
        }
    }

    fn receive_requests(&mut self, changes: SubscriptionChanges) {
        let ControlPlane { services, addresses, names, .. } = &mut self.control;
        for request in changes.into_iter().flatten() {
            match request {
                ProxyRequest::Subscribe(new) => services.extend(new),
                ProxyRequest::Unsubscribe(old) => services.retain(|service| !old.contains(service)),
                ProxyRequest::SubscribeAddresses(new) => addresses.extend(new),
                ProxyRequest::UnsubscribeAddresses(old) => {
                    addresses.retain(|address| !old.contains(address))
                }
                ProxyRequest::SubscribeNames(new) => names.extend(new),
                ProxyRequest::UnsubscribeNames(old) => names.retain(|name| !old.contains(name)),
                ProxyRequest::Listeners(..)
                | ProxyRequest::Renew { .. }
                | ProxyRequest::Tapped { .. } => {}
            }
        }
    }

    fn send_snapshot(&self) {
        let ControlPlane { existing, services, addresses, names } = &self.control;
        let (known, absent): (BTreeSet<_>, BTreeSet<_>) =
            services.iter().cloned().partition(|name| existing.contains(name));
        let service_config = |name: &ServiceName| {
            let name = name.clone();
            let ports = BTreeMap::new();
            Arc::new(ServiceConfig {
                name,
                client_authorization: ClientAuthorization::Allowed,
                ports,
                waits_for_endpoint: false,
            })
        };
        let external_entry = Arc::new(AddressEntry::External);
        let empty_record: Arc<DnsRecord> = Arc::new(std::iter::empty().collect());
        let snapshot = Snapshot {
            config: Arc::new(proxy_config("web", Access::AllowAll)),
            services: known.iter().map(|name| (name.clone(), service_config(name))).collect(),
            addresses: addresses.iter().map(|address| (*address, external_entry.clone())).collect(),
            names: names.iter().map(|name| (name.clone(), empty_record.clone())).collect(),
        };
        let snapshot = Arc::new(snapshot);
        let update = ConfigUpdate { snapshot, absent, change: ChangeId(1) };
        self.control_client.config_store.apply_update(&update).unwrap();
    }

    /// The time of a use has a resolution of one second.
    fn next_second(&self) {
        let second = self.started.elapsed().as_secs();
        while self.started.elapsed().as_secs() == second {
            std::thread::yield_now();
        }
    }

    fn full_tables(&self) -> Vec<String> {
        let full = self.control_client.status_report().conditions.into_iter();
        full.filter(|condition| condition.kind == kind::TABLE_FULL)
            .map(|condition| condition.subject)
            .collect()
    }
}

fn service_name(index: usize) -> ServiceName {
    format!("shop/s{index}").parse().unwrap()
}

#[test]
fn unknown_names_have_their_own_limit_and_the_oldest_is_evicted() {
    let mut control_loop = Fixture::new();
    control_loop.use_resources(
        (0..MAX_UNKNOWN_SERVICES).map(|index| ResourceRequest::Service(service_name(index))),
    );
    assert_eq!(
        (control_loop.control.services.len(), control_loop.full_tables()),
        (MAX_UNKNOWN_SERVICES, vec![])
    );
    control_loop.use_resources(
        (MAX_UNKNOWN_SERVICES..2 * MAX_SUBSCRIPTIONS)
            .map(|index| ResourceRequest::Service(service_name(index))),
    );
    let subscribed_count = control_loop.control.services.len();
    assert!(
        (RETAINED_UNKNOWN_SERVICES..=MAX_UNKNOWN_SERVICES + MAX_BATCHED_REQUESTS)
            .contains(&subscribed_count),
        "{subscribed_count}"
    );
    assert!(!control_loop.control.services.contains(&service_name(0)), "the oldest is evicted");
    assert!(control_loop.control.services.contains(&service_name(2 * MAX_SUBSCRIPTIONS - 1)));
    assert_eq!(control_loop.full_tables(), ["unknown-services"]);
    let evicted = control_loop.telemetry.count(Count::EvictedUnknownService);
    assert_eq!(evicted, (2 * MAX_SUBSCRIPTIONS - subscribed_count) as u64);
    assert_eq!(
        control_loop.control.services.len(),
        control_loop.control_client.subscribed_services.borrow().len()
    );
    // The condition ends with the second sweep after the last eviction.
    control_loop.control_client.clear_eviction_conditions();
    assert_eq!(control_loop.full_tables(), ["unknown-services"]);
    control_loop.control_client.clear_eviction_conditions();
    assert_eq!(control_loop.full_tables(), Vec::<String>::new());
}

#[test]
fn the_most_recently_used_service_survives_an_eviction() {
    run(async {
        let mut control_loop = Fixture::new();
        control_loop.control.existing = (0..=MAX_SUBSCRIPTIONS).map(service_name).collect();
        control_loop.use_resources(
            (0..MAX_SUBSCRIPTIONS).map(|index| ResourceRequest::Service(service_name(index))),
        );
        assert_eq!(control_loop.control.services.len(), MAX_SUBSCRIPTIONS);
        control_loop.next_second();
        assert!(
            control_loop
                .control_client
                .config_store
                .with_service(&service_name(0), Duration::ZERO)
                .await
                .is_ok()
        );
        control_loop.use_resources([ResourceRequest::Service(service_name(MAX_SUBSCRIPTIONS))]);
        assert_eq!(control_loop.full_tables(), ["services"]);
        let services = &control_loop.control.services;
        assert!(services.contains(&service_name(0)), "the oldest, and used last");
        assert!(!services.contains(&service_name(1)), "not used since");
        assert!(services.contains(&service_name(MAX_SUBSCRIPTIONS)));
    });
}

#[test]
fn services_without_a_response_are_evicted_for_new_ones() {
    let mut control_loop = Fixture::new();
    for first in (0..MAX_SUBSCRIPTIONS + 2 * MAX_BATCHED_REQUESTS).step_by(MAX_BATCHED_REQUESTS) {
        let mut batch = (first..first + MAX_BATCHED_REQUESTS)
            .map(|index| ResourceRequest::Service(service_name(index)))
            .collect();
        let requests = subscribe_batch(&control_loop.control_client, &mut batch);
        control_loop.receive_requests(requests);
    }
    assert!(control_loop.control.services.len() <= MAX_SUBSCRIPTIONS);
    assert!(
        control_loop
            .control
            .services
            .contains(&service_name(MAX_SUBSCRIPTIONS + 2 * MAX_BATCHED_REQUESTS - 1))
    );
    assert!(!control_loop.control.services.contains(&service_name(0)));
    assert_eq!(control_loop.full_tables(), ["services"]);
}

#[test]
fn full_tables_of_addresses_and_names_accept_new_entries() {
    let mut control_loop = Fixture::new();
    let address = |index: usize| IpAddr::from((index as u32 + 1).to_be_bytes());
    control_loop.use_resources(
        (0..MAX_ADDRESSES + MAX_BATCHED_REQUESTS)
            .map(|index| ResourceRequest::Address(address(index))),
    );
    control_loop.use_resources(
        (0..MAX_NAMES + MAX_BATCHED_REQUESTS)
            .map(|index| ResourceRequest::Name(service_name(index))),
    );
    let ControlPlane { addresses, names, .. } = &control_loop.control;
    assert!(addresses.len() <= MAX_ADDRESSES && names.len() <= MAX_NAMES);
    assert!(addresses.contains(&address(MAX_ADDRESSES + MAX_BATCHED_REQUESTS - 1)));
    assert!(names.contains(&service_name(MAX_NAMES + MAX_BATCHED_REQUESTS - 1)));
    assert!(!addresses.contains(&address(0)) && !names.contains(&service_name(0)));
    assert_eq!(control_loop.full_tables(), ["addresses", "names"]);
}
