//! Publication of changes: the proxies that receive an update, its timing, and the completeness of configurations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{ConfigUpdate, Connected, Hello, StateTaskResponse};
use leno_identity::VerifiedPeer;
use leno_model::{Change, Object, ObjectKey};
use tokio::sync::watch;

use super::*;
use crate::fixture::{
    BOOKINFO, Dice, LETTERS, connect_sidecars, default_deny_bookinfo, mesh_with_sidecars,
    random_change, service_name, workload_name,
};
use crate::mesh::Listeners;

/// Connected proxies, and the updates sent to each.
struct PublisherFixture {
    mesh: Mesh,
    connected_proxies: ConnectedProxies,
    receivers: BTreeMap<WorkloadName, (ConnectionId, watch::Receiver<StateTaskResponse>)>,
    now: Instant,
}

impl PublisherFixture {
    fn new(mesh: Mesh) -> Self {
        let connected_proxies = ConnectedProxies::new(Times::default(), ChangeId(0));
        Self { mesh, connected_proxies, receivers: BTreeMap::new(), now: Instant::now() }
    }

    /// Connects the proxy of a workload with subscriptions.
    fn connect_proxy(&mut self, name: &WorkloadName, services: &[&str]) {
        let connection = ConnectionId(self.receivers.len() as u64 + 1);
        let (responses, receiver) = watch::channel(StateTaskResponse::Pending);
        let peer = VerifiedPeer {
            id: "spiffe://cluster.local/ns/bookinfo/sa/any".parse().unwrap(),
            workload: Some(name.clone()),
            instance: None,
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
        };
        let hello = Hello {
            workload: name.clone(),
            listeners: Vec::new(),
            admin: None,
            pid: 1,
            version: String::new(),
            services: Vec::new(),
            addresses: Vec::new(),
            dns_names: Vec::new(),
            session: 1,
            ca_generation: 0,
            process: 0,
            answers_queries: false,
            report: Default::default(),
        };
        let connected = Connected { connection, hello, responses };
        let mut proxy = ConnectedProxy::new(connected, peer, self.now);
        proxy.subscriptions = services.iter().map(|name| service_name(name)).collect();
        assert!(self.connected_proxies.add_proxy(connection, proxy, self.now).is_none());
        self.receivers.insert(name.clone(), (connection, receiver));
    }

    fn send_response(&mut self, name: &str, grace_period: GracePeriod) {
        let (connection, _) = self.receivers[&workload_name(name)];
        self.connected_proxies.send_response(connection, &self.mesh, grace_period);
    }

    fn change(&mut self, change: Change) {
        let affected_set = self.mesh.apply(change);
        let cause = ChangeCause::ObjectsChanged(1, ObjectKey::MeshConfig, ObjectEdit::Written);
        self.connected_proxies.record_change(&affected_set, &self.mesh, cause, self.now, self.now);
    }

    fn set_listeners(&mut self, name: &str, listeners: Option<Listeners>) {
        let affected_set = self.mesh.set_listeners(&workload_name(name), listeners);
        let cause = ChangeCause::ObjectsChanged(1, ObjectKey::MeshConfig, ObjectEdit::Written);
        self.connected_proxies.record_change(&affected_set, &self.mesh, cause, self.now, self.now);
    }

    fn publish(&mut self) {
        while self.connected_proxies.publish(&self.mesh, GracePeriod::Ended, self.now)
            == SliceProgress::Incomplete
        {}
    }

    /// Returns the last update of a workload.
    fn last_update(&self, name: &str) -> Option<ConfigUpdate> {
        match &*self.receivers[&workload_name(name)].1.borrow() {
            StateTaskResponse::Config(update) | StateTaskResponse::PartialConfig(update, _) => {
                Some(update.clone())
            }
            StateTaskResponse::Pending => None,
            StateTaskResponse::Goodbye(reason) => panic!("{reason}"),
        }
    }

    /// Returns the workloads with endpoints that a workload was instructed to keep.
    fn kept_workloads(&self, name: &str) -> Vec<String> {
        match &*self.receivers[&workload_name(name)].1.borrow() {
            StateTaskResponse::PartialConfig(_, unknown_endpoints) => unknown_endpoints
                .iter()
                .map(|id| format!("{} {}", id.service.name, id.workload.name))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the workloads with new updates since the last call.
    fn updated_workloads(&mut self) -> Vec<String> {
        let mut updated = Vec::new();
        for (name, (_, receiver)) in &mut self.receivers {
            if receiver.has_changed().unwrap() {
                receiver.mark_unchanged();
                updated.push(name.name.to_string());
            }
        }
        updated
    }
}

/// Bookinfo with all its proxies; the workload `stranger-1` uses details, productpage uses reviews.
fn connected_bookinfo(yaml: &str) -> PublisherFixture {
    let mut fixture = PublisherFixture::new(mesh_with_sidecars(yaml));
    for (name, services) in [
        ("productpage-1", &["reviews"][..]),
        ("details-1", &[]),
        ("reviews-v1-1", &[]),
        ("reviews-v2-1", &[]),
        ("stranger-1", &["details"]),
    ] {
        fixture.connect_proxy(&workload_name(name), services);
        fixture.send_response(name, GracePeriod::Ended);
    }
    assert_eq!(fixture.updated_workloads().len(), 5);
    for proxy in fixture.connected_proxies.proxies.values_mut() {
        assert!(proxy.is_out_of_sync());
        proxy.record_applied(proxy.last_update.as_ref().unwrap().change, 0, fixture.now);
        assert!(!proxy.is_out_of_sync());
    }
    fixture
}

#[test]
fn only_clients_of_its_services_receive_a_change_of_a_sidecar() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    fixture.set_listeners("details-1", None);
    fixture.publish();
    assert_eq!(fixture.updated_workloads(), ["stranger-1"]);
    fixture.set_listeners("reviews-v2-1", None);
    fixture.publish();
    assert_eq!(fixture.updated_workloads(), ["productpage-1"]);
}

#[test]
fn only_its_clients_and_its_workload_receive_a_change_of_a_service() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    fixture.change(Change::Remove(ObjectKey::Service(service_name("details"))));
    fixture.publish();
    assert_eq!(fixture.updated_workloads(), ["details-1", "stranger-1"]);
    assert_eq!(
        fixture.last_update("stranger-1").unwrap().absent,
        BTreeSet::from([service_name("details")])
    );
}

#[test]
fn an_unchanged_configuration_is_not_sent() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    let before = fixture.connected_proxies.counters;
    let mut details = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    fixture.change(Change::Upsert(Object::Workload(details)));
    fixture.publish();
    assert_eq!(fixture.updated_workloads(), [""; 0]);
    let after = fixture.connected_proxies.counters;
    assert_eq!((after.compiled, after.pushes), (before.compiled + 1, before.pushes));
    assert_eq!(
        fixture.connected_proxies.pushes.latest_progress().unwrap().convergence_time,
        Some(Duration::ZERO)
    );
}

#[test]
fn changes_in_quick_succession_are_sent_together_with_a_limited_delay() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    let Times { debounce, max_debounce, .. } = Times::default();
    let start = fixture.now;
    assert_eq!(fixture.connected_proxies.due_at(), None);
    fixture.set_listeners("details-1", None);
    assert_eq!(fixture.connected_proxies.due_at(), Some(start + debounce));
    fixture.now = start + debounce / 2;
    fixture.set_listeners("reviews-v1-1", None);
    assert_eq!(fixture.connected_proxies.due_at(), Some(fixture.now + debounce));
    fixture.now = start + max_debounce - debounce / 2;
    fixture.set_listeners("reviews-v2-1", None);
    assert_eq!(fixture.connected_proxies.due_at(), Some(start + max_debounce));
    assert_eq!(fixture.updated_workloads(), [""; 0]);
    fixture.publish();
    assert_eq!(fixture.updated_workloads(), ["productpage-1", "stranger-1"]);
    assert_eq!(fixture.connected_proxies.due_at(), None);
}

#[test]
fn clients_share_equal_service_configurations() {
    let fixture = {
        let mut fixture = PublisherFixture::new(mesh_with_sidecars(BOOKINFO));
        for name in ["stranger-1", "productpage-1"] {
            fixture.connect_proxy(&workload_name(name), &["details"]);
            fixture.send_response(name, GracePeriod::Ended);
        }
        fixture
    };
    let [first_update, second_update] =
        ["stranger-1", "productpage-1"].map(|name| fixture.last_update(name).unwrap());
    let details =
        |update: &ConfigUpdate| Arc::clone(&update.snapshot.services[&service_name("details")]);
    assert!(Arc::ptr_eq(&details(&first_update), &details(&second_update)));
}

#[test]
fn a_push_ends_when_all_its_recipients_have_applied_it() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    fixture.set_listeners("details-1", None);
    fixture.publish();
    let latest = fixture.connected_proxies.pushes.latest_progress().unwrap();
    assert_eq!((latest.recipient_count, latest.applied, latest.convergence_time), (1, 0, None));
    let (connection, _) = fixture.receivers[&workload_name("stranger-1")];
    fixture.connected_proxies.remove_proxy(connection, fixture.now + Duration::from_millis(7));
    let latest = fixture.connected_proxies.pushes.latest_progress().unwrap();
    assert_eq!(latest.convergence_time, Some(Duration::from_millis(7)));
}

#[test]
fn changes_are_sent_and_uncertain_endpoints_are_kept_while_sidecars_reconnect() {
    let mesh: Mesh = crate::fixture::parse_objects(BOOKINFO).into_iter().collect();
    let mut fixture = PublisherFixture::new(mesh);
    fixture.connect_proxy(&workload_name("productpage-1"), &["details"]);
    fixture.send_response("productpage-1", GracePeriod::Active);
    let snapshot_of =
        |fixture: &PublisherFixture| fixture.last_update("productpage-1").unwrap().snapshot;
    assert_eq!(snapshot_of(&fixture).services.len(), 4, "details, reviews and its two backends");
    let every_endpoint = [
        "details details-1",
        "reviews reviews-v1-1",
        "reviews reviews-v2-1",
        "reviews-v1 reviews-v1-1",
        "reviews-v2 reviews-v2-1",
    ];
    assert_eq!(fixture.kept_workloads("productpage-1"), every_endpoint);

    fixture.set_listeners("details-1", Some(listeners_on(9081)));
    fixture.connected_proxies.publish(&fixture.mesh, GracePeriod::Active, fixture.now);
    fixture.set_listeners("reviews-v1-1", Some(listeners_on(9082)));
    fixture.connected_proxies.publish(&fixture.mesh, GracePeriod::Active, fixture.now);
    assert_eq!(
        fixture.kept_workloads("productpage-1"),
        ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]
    );
    let reviews = &snapshot_of(&fixture).services[&service_name("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 1);

    // A sidecar's report without listeners is applied at once.
    fixture.set_listeners("reviews-v1-1", Some(Listeners::new()));
    fixture.connected_proxies.publish(&fixture.mesh, GracePeriod::Active, fixture.now);
    assert_eq!(
        fixture.kept_workloads("productpage-1"),
        ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]
    );

    fixture.connected_proxies.update_all(&fixture.mesh, GracePeriod::Ended);
    assert_eq!(fixture.kept_workloads("productpage-1"), [""; 0]);
    let reviews = &snapshot_of(&fixture).services[&service_name("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 0, "it did not reconnect");
}

#[test]
fn denied_services_have_no_uncertain_endpoints() {
    let mesh: Mesh =
        crate::fixture::parse_objects(&default_deny_bookinfo("")).into_iter().collect();
    let mut fixture = PublisherFixture::new(mesh);
    fixture.connect_proxy(&workload_name("productpage-1"), &["details"]);
    fixture.connect_proxy(&workload_name("stranger-1"), &["details", "reviews"]);
    fixture.send_response("productpage-1", GracePeriod::Active);
    fixture.send_response("stranger-1", GracePeriod::Active);
    let kept = fixture.kept_workloads("productpage-1");
    assert_eq!(kept, ["reviews reviews-v1-1", "reviews-v1 reviews-v1-1"]);
    assert_eq!(fixture.kept_workloads("stranger-1"), [""; 0]);
}

fn listeners_on(port: u16) -> Listeners {
    Listeners::from([(port, SocketAddr::from(([127, 0, 0, 1], port)))])
}

/// Returns one of a few addresses, so that services and workloads take them over from each other.
fn random_address(dice: &mut Dice) -> IpAddr {
    IpAddr::from([10, 0, 0, u8::try_from(dice.next_below(6)).unwrap()])
}

/// Usually sets an address on the object of a change.
fn set_random_address(change: &mut Change, dice: &mut Dice) {
    match change {
        Change::Upsert(Object::Service(service)) if dice.next_below(3) > 0 => {
            service.addresses.insert(random_address(dice));
        }
        Change::Upsert(Object::Workload(workload)) if dice.next_below(3) > 0 => {
            workload.address = random_address(dice);
        }
        _ => {}
    }
}

/// Random changes, each published to the affected proxies: afterwards every proxy has exactly the result of a
/// full compilation, and the mesh equals one built at once.
fn simulate_changes(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut fixture = PublisherFixture::new(mesh_with_sidecars(&default_deny_bookinfo("")));
    for name in LETTERS {
        let subscriptions = [dice.pick(LETTERS), dice.pick(LETTERS)];
        fixture.connect_proxy(&workload_name(name), &subscriptions);
        let (connection, _) = fixture.receivers[&workload_name(name)];
        let queried = [0, 1, 2].map(|_| random_address(&mut dice));
        fixture.connected_proxies.proxy_mut(connection).unwrap().queried_addresses.extend(queried);
        fixture.send_response(name, GracePeriod::Ended);
    }
    for step in 0..120 {
        for _ in 0..=dice.next_below(2) {
            match dice.next_below(5) {
                0 => {
                    let name = dice.pick(LETTERS);
                    let port = [80, 81][dice.next_below(2)];
                    let is_connected = dice.next_below(3) > 0;
                    fixture.set_listeners(name, is_connected.then(|| listeners_on(port)));
                }
                _ => {
                    let mut change = random_change(&mut dice);
                    set_random_address(&mut change, &mut dice);
                    fixture.change(change);
                }
            }
        }
        fixture.publish();
        for proxy in fixture.connected_proxies.proxies.values() {
            let Some(workload) = fixture.mesh.workload(&proxy.workload) else { continue };
            let mut root_services = used_services(workload, &proxy.subscriptions);
            let address_entries = address_entries(
                &fixture.mesh,
                &proxy.queried_addresses,
                &mut ServiceConfigCache::default(),
            );
            root_services.extend(address_entries.services);
            let expected = compile_config(
                &fixture.mesh,
                workload,
                &root_services,
                &mut ServiceConfigCache::default(),
            );
            let expected = expected.with_addresses(address_entries.by_address);
            let last_update =
                proxy.last_update.as_ref().map(|update| (&*update.snapshot, &update.absent));
            let expected = Some((&*expected.snapshot, &expected.absent));
            assert_eq!(last_update, expected, "seed {seed}, step {step}, {}", proxy.workload);
        }
    }
    let mut rebuilt: Mesh = fixture.mesh.all_objects().into_iter().collect();
    for other in fixture.mesh.workloads() {
        let listeners = fixture.mesh.sidecar_listeners(&other.name).cloned();
        rebuilt.set_listeners(&other.name, listeners);
    }
    assert_eq!(rebuilt, fixture.mesh, "seed {seed}");
}

#[test]
fn every_proxy_receives_every_change() {
    for seed in 0..64 {
        simulate_changes(seed);
    }
}

/// Services without workloads at addresses 10.96.*.*, and a proxy that queries all of them.
fn unbacked_services(services: u16) -> PublisherFixture {
    let mut fixture = PublisherFixture::new(mesh_with_sidecars(BOOKINFO));
    let mut queried = BTreeSet::new();
    for number in 0..services {
        let mut unbacked = fixture.mesh.service(&service_name("details")).unwrap().clone();
        unbacked.name = service_name(&format!("plain-{number}"));
        unbacked.selector.clear();
        let [high, low] = number.to_be_bytes();
        unbacked.addresses = BTreeSet::from([IpAddr::from([10, 96, high, low])]);
        queried.extend(unbacked.addresses.iter().copied());
        fixture.mesh.apply(Change::Upsert(Object::Service(unbacked)));
    }
    fixture.connect_proxy(&workload_name("stranger-1"), &[]);
    let (connection, _) = fixture.receivers[&workload_name("stranger-1")];
    fixture.connected_proxies.proxy_mut(connection).unwrap().queried_addresses = queried;
    fixture
}

#[test]
fn addresses_of_services_without_sidecars_are_compiled_once() {
    let mut fixture = unbacked_services(300);
    fixture.send_response("stranger-1", GracePeriod::Ended);
    let compiled = fixture.connected_proxies.service_configs.compiled_count();
    assert!(compiled >= 300);
    for _ in 0..50 {
        fixture.send_response("stranger-1", GracePeriod::Ended);
        // An unrelated change cleans up the service configurations.
        fixture.set_listeners("details-1", Some(listeners_on(80)));
        fixture.set_listeners("details-1", Some(listeners_on(81)));
        fixture.publish();
    }
    let recompiled = fixture.connected_proxies.service_configs.compiled_count() - compiled;
    assert!(recompiled < 200, "{recompiled} service configurations were compiled again");
}

#[test]
fn a_large_configuration_is_compiled_in_slices() {
    let mut fixture = unbacked_services(2000);
    let (connection, _) = fixture.receivers[&workload_name("stranger-1")];
    let names = (0..2000).map(|number| service_name(&format!("plain-{number}")));
    fixture.connected_proxies.proxy_mut(connection).unwrap().subscriptions = names.collect();
    let mut slices = 0;
    loop {
        let before = fixture.connected_proxies.service_configs.compiled_count();
        let progress = fixture.connected_proxies.prepare_config(connection, &fixture.mesh);
        let compiled = fixture.connected_proxies.service_configs.compiled_count() - before;
        assert!(compiled <= 257, "{compiled} service configurations in one slice");
        if progress == SliceProgress::Complete {
            break;
        }
        slices += 1;
    }
    assert!(slices >= 7, "{slices}");
    assert!(fixture.last_update("stranger-1").is_none(), "an incomplete configuration is not sent");
    let before = fixture.connected_proxies.service_configs.compiled_count();
    fixture.send_response("stranger-1", GracePeriod::Ended);
    assert_eq!(fixture.connected_proxies.service_configs.compiled_count(), before);
}

#[test]
fn a_change_with_many_recipients_is_sent_in_slices() {
    let mut fixture = unbacked_services(0);
    let names: Vec<WorkloadName> =
        (0..600).map(|number| workload_name(&format!("many-{number}"))).collect();
    for name in &names {
        let mut workload = fixture.mesh.workload(&workload_name("details-1")).unwrap().clone();
        workload.name = name.clone();
        fixture.mesh.apply(Change::Upsert(Object::Workload(workload)));
        fixture.connect_proxy(name, &["reviews"]);
        fixture.send_response(&name.name.to_string(), GracePeriod::Ended);
    }
    fixture.updated_workloads();
    fixture.set_listeners("reviews-v1-1", Some(listeners_on(1)));
    let mut slices = 1;
    while fixture.connected_proxies.publish(&fixture.mesh, GracePeriod::Ended, fixture.now)
        == SliceProgress::Incomplete
    {
        assert!(fixture.connected_proxies.due_at().is_some_and(|due| due <= fixture.now));
        slices += 1;
    }
    assert!((4..100).contains(&slices), "{slices}");
    assert_eq!(fixture.updated_workloads().len(), names.len());
    assert_eq!(fixture.connected_proxies.pending_count(), 0);
    // All changes are in one push.
    let id = fixture.connected_proxies.newest_change();
    let push = fixture.connected_proxies.pushes.push_for_change(id).unwrap();
    assert_eq!((push.recipient_count, push.waiting_proxies.len()), (names.len(), names.len()));
}

#[test]
fn the_cost_of_a_change_of_listeners_grows_with_its_clients() {
    let mut fixture = connected_bookinfo(BOOKINFO);
    let before = fixture.connected_proxies.total_work();
    fixture.set_listeners("details-1", Some(listeners_on(1)));
    let small_cost = fixture.connected_proxies.total_work() - before;
    let before = fixture.connected_proxies.total_work();
    fixture.set_listeners("reviews-v1-1", Some(listeners_on(1)));
    fixture.set_listeners("reviews-v1-1", Some(listeners_on(2)));
    let large_cost = fixture.connected_proxies.total_work() - before;
    assert!(large_cost > small_cost, "{small_cost}, {large_cost}");
    // Proxies that are pending already cause no further work.
    let before = fixture.connected_proxies.total_work();
    fixture.set_listeners("reviews-v1-1", Some(listeners_on(3)));
    assert_eq!(fixture.connected_proxies.total_work(), before);
}

#[test]
fn connecting_sidecars_again_changes_nothing() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let before = mesh.clone();
    connect_sidecars(&mut mesh);
    assert_eq!(mesh, before);
}
