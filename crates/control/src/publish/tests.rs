//! Tests of publication: recipients, timing, and completeness.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{Connected, Hello, Standing, Update};
use leno_identity::Peer;
use leno_model::{Change, Object, ObjectKey};
use tokio::sync::watch;

use super::*;
use crate::fixture::{
    BOOKINFO, Dice, LETTERS, connect_sidecars, mesh_with_sidecars, random_change, service_name,
    strict_bookinfo, workload_name,
};
use crate::mesh::Listeners;

/// An audience, and the updates sent to each proxy.
struct Theatre {
    mesh: Mesh,
    connected: ConnectedProxies,
    heard: BTreeMap<WorkloadName, (ConnectionId, watch::Receiver<Standing>)>,
    now: Instant,
}

impl Theatre {
    fn new(mesh: Mesh) -> Self {
        let connected = ConnectedProxies::new(Times::default(), ChangeId(0));
        Self { mesh, connected, heard: BTreeMap::new(), now: Instant::now() }
    }

    /// Connects the proxy of a workload with subscriptions.
    fn connect_proxy(&mut self, name: &WorkloadName, services: &[&str]) {
        let connection = ConnectionId(self.heard.len() as u64 + 1);
        let (standing, heard) = watch::channel(Standing::Pending);
        let peer = Peer {
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
        let connected = Connected { connection, hello, standing };
        let mut proxy = ConnectedProxy::new(connected, peer, self.now);
        proxy.subscriptions = services.iter().map(|name| service_name(name)).collect();
        assert!(self.connected.add_proxy(connection, proxy, self.now).is_none());
        self.heard.insert(name.clone(), (connection, heard));
    }

    fn send_response(&mut self, name: &str, settling: Settling) {
        let (connection, _) = self.heard[&workload_name(name)];
        self.connected.send_response(connection, &self.mesh, settling);
    }

    fn change(&mut self, change: Change) {
        let affected_set = self.mesh.apply(change);
        let cause = Cause::Objects(1, ObjectKey::MeshConfig, Edit::Written);
        self.connected.record_change(&affected_set, &self.mesh, cause, self.now, self.now);
    }

    fn set_listeners(&mut self, name: &str, listeners: Option<Listeners>) {
        let affected_set = self.mesh.set_listeners(&workload_name(name), listeners);
        let cause = Cause::Objects(1, ObjectKey::MeshConfig, Edit::Written);
        self.connected.record_change(&affected_set, &self.mesh, cause, self.now, self.now);
    }

    fn publish(&mut self) {
        while self.connected.publish(&self.mesh, Settling::No, self.now) == Progress::More {}
    }

    /// Returns the last update of a workload.
    fn last_update(&self, name: &str) -> Option<Update> {
        match &*self.heard[&workload_name(name)].1.borrow() {
            Standing::Offer(update) | Standing::Partial(update, _) => Some(update.clone()),
            Standing::Pending => None,
            Standing::Goodbye(reason) => panic!("{reason}"),
        }
    }

    /// Returns the workloads with endpoints that a workload was instructed to keep.
    fn kept_workloads(&self, name: &str) -> Vec<String> {
        match &*self.heard[&workload_name(name)].1.borrow() {
            Standing::Partial(_, doubt) => {
                doubt.iter().map(|id| format!("{} {}", id.service.name, id.workload.name)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the workloads with new updates since the last call.
    fn updated_workloads(&mut self) -> Vec<String> {
        let mut received = Vec::new();
        for (name, (_, heard)) in &mut self.heard {
            if heard.has_changed().unwrap() {
                heard.mark_unchanged();
                received.push(name.name.to_string());
            }
        }
        received
    }
}

/// Bookinfo with all its proxies; the workload `external_client` uses details, productpage uses reviews.
fn connected_bookinfo(yaml: &str) -> Theatre {
    let mut theatre = Theatre::new(mesh_with_sidecars(yaml));
    for (name, services) in [
        ("productpage-1", &["reviews"][..]),
        ("details-1", &[]),
        ("reviews-v1-1", &[]),
        ("reviews-v2-1", &[]),
        ("stranger-1", &["details"]),
    ] {
        theatre.connect_proxy(&workload_name(name), services);
        theatre.send_response(name, Settling::No);
    }
    assert_eq!(theatre.updated_workloads().len(), 5);
    for proxy in theatre.connected.proxies.values_mut() {
        assert!(proxy.is_behind());
        proxy.record_applied(proxy.pushed.as_ref().unwrap().change, 0, theatre.now);
        assert!(!proxy.is_behind());
    }
    theatre
}

#[test]
fn only_those_hear_of_a_sidecar_who_use_its_services() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    theatre.set_listeners("details-1", None);
    theatre.publish();
    assert_eq!(theatre.updated_workloads(), ["stranger-1"]);
    theatre.set_listeners("reviews-v2-1", None);
    theatre.publish();
    assert_eq!(theatre.updated_workloads(), ["productpage-1"]);
}

#[test]
fn only_its_users_and_its_owner_hear_of_a_service() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    theatre.change(Change::Remove(ObjectKey::Service(service_name("details"))));
    theatre.publish();
    assert_eq!(theatre.updated_workloads(), ["details-1", "stranger-1"]);
    assert_eq!(
        theatre.last_update("stranger-1").unwrap().absent,
        BTreeSet::from([service_name("details")])
    );
}

#[test]
fn equal_outcomes_are_not_sent() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    let before = theatre.connected.tally;
    let mut details = theatre.mesh.workload(&workload_name("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    theatre.change(Change::Upsert(Object::Workload(details)));
    theatre.publish();
    assert_eq!(theatre.updated_workloads(), [""; 0]);
    let after = theatre.connected.tally;
    assert_eq!((after.compiled, after.pushes), (before.compiled + 1, before.pushes));
    assert_eq!(theatre.connected.pushes.latest_progress().unwrap().converged, Some(Duration::ZERO));
}

#[test]
fn changes_in_quick_succession_are_sent_together_but_not_put_off_for_ever() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    let Times { quiet, quiet_max, .. } = Times::default();
    let start = theatre.now;
    assert_eq!(theatre.connected.due_at(), None);
    theatre.set_listeners("details-1", None);
    assert_eq!(theatre.connected.due_at(), Some(start + quiet));
    theatre.now = start + quiet / 2;
    theatre.set_listeners("reviews-v1-1", None);
    assert_eq!(theatre.connected.due_at(), Some(theatre.now + quiet));
    theatre.now = start + quiet_max - quiet / 2;
    theatre.set_listeners("reviews-v2-1", None);
    assert_eq!(theatre.connected.due_at(), Some(start + quiet_max));
    assert_eq!(theatre.updated_workloads(), [""; 0]);
    theatre.publish();
    assert_eq!(theatre.updated_workloads(), ["productpage-1", "stranger-1"]);
    assert_eq!(theatre.connected.due_at(), None);
}

#[test]
fn all_clients_share_what_they_see_alike() {
    let theatre = {
        let mut theatre = Theatre::new(mesh_with_sidecars(BOOKINFO));
        for name in ["stranger-1", "productpage-1"] {
            theatre.connect_proxy(&workload_name(name), &["details"]);
            theatre.send_response(name, Settling::No);
        }
        theatre
    };
    let [one, other] =
        ["stranger-1", "productpage-1"].map(|name| theatre.last_update(name).unwrap());
    let details = |update: &Update| Arc::clone(&update.snapshot.services[&service_name("details")]);
    assert!(Arc::ptr_eq(&details(&one), &details(&other)));
}

#[test]
fn a_round_is_over_when_all_it_concerned_have_applied_it() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    theatre.set_listeners("details-1", None);
    theatre.publish();
    let latest = theatre.connected.pushes.latest_progress().unwrap();
    assert_eq!((latest.concerned, latest.applied, latest.converged), (1, 0, None));
    let (connection, _) = theatre.heard[&workload_name("stranger-1")];
    theatre.connected.remove_proxy(connection, theatre.now + Duration::from_millis(7));
    let latest = theatre.connected.pushes.latest_progress().unwrap();
    assert_eq!(latest.converged, Some(Duration::from_millis(7)));
}

#[test]
fn while_sidecars_come_back_all_that_is_certain_is_reported_and_the_rest_is_kept() {
    let mesh: Mesh = crate::fixture::parse_objects(BOOKINFO).into_iter().collect();
    let mut theatre = Theatre::new(mesh);
    theatre.connect_proxy(&workload_name("productpage-1"), &["details"]);
    theatre.send_response("productpage-1", Settling::Yes);
    let services = |theatre: &Theatre| theatre.last_update("productpage-1").unwrap().snapshot;
    assert_eq!(services(&theatre).services.len(), 4, "details, reviews and its two backends");
    let all = [
        "details details-1",
        "reviews reviews-v1-1",
        "reviews reviews-v2-1",
        "reviews-v1 reviews-v1-1",
        "reviews-v2 reviews-v2-1",
    ];
    assert_eq!(theatre.kept_workloads("productpage-1"), all);

    theatre.set_listeners("details-1", Some(listeners_on(9081)));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    theatre.set_listeners("reviews-v1-1", Some(listeners_on(9082)));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    assert_eq!(
        theatre.kept_workloads("productpage-1"),
        ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]
    );
    let reviews = &services(&theatre).services[&service_name("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 1);

    // A sidecar's report without listeners is applied at once.
    theatre.set_listeners("reviews-v1-1", Some(Listeners::new()));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    assert_eq!(
        theatre.kept_workloads("productpage-1"),
        ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]
    );

    theatre.connected.update_all(&theatre.mesh, Settling::No);
    assert_eq!(theatre.kept_workloads("productpage-1"), [""; 0]);
    let reviews = &services(&theatre).services[&service_name("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 0, "it did not come back");
}

#[test]
fn what_a_client_may_not_call_is_no_matter_of_doubt() {
    let mesh: Mesh = crate::fixture::parse_objects(&strict_bookinfo("")).into_iter().collect();
    let mut theatre = Theatre::new(mesh);
    theatre.connect_proxy(&workload_name("productpage-1"), &["details"]);
    theatre.connect_proxy(&workload_name("stranger-1"), &["details", "reviews"]);
    theatre.send_response("productpage-1", Settling::Yes);
    theatre.send_response("stranger-1", Settling::Yes);
    let kept = theatre.kept_workloads("productpage-1");
    assert_eq!(kept, ["reviews reviews-v1-1", "reviews-v1 reviews-v1-1"]);
    assert_eq!(theatre.kept_workloads("stranger-1"), [""; 0]);
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
    let mut theatre = Theatre::new(mesh_with_sidecars(&strict_bookinfo("")));
    for name in LETTERS {
        let uses = [dice.pick(LETTERS), dice.pick(LETTERS)];
        theatre.connect_proxy(&workload_name(name), &uses);
        let (connection, _) = theatre.heard[&workload_name(name)];
        let asked = [0, 1, 2].map(|_| random_address(&mut dice));
        theatre.connected.proxy_mut(connection).unwrap().addresses.extend(asked);
        theatre.send_response(name, Settling::No);
    }
    for step in 0..120 {
        for _ in 0..=dice.next_below(2) {
            match dice.next_below(5) {
                0 => {
                    let name = dice.pick(LETTERS);
                    let port = [80, 81][dice.next_below(2)];
                    let there = dice.next_below(3) > 0;
                    theatre.set_listeners(name, there.then(|| listeners_on(port)));
                }
                _ => {
                    let mut change = random_change(&mut dice);
                    set_random_address(&mut change, &mut dice);
                    theatre.change(change);
                }
            }
        }
        theatre.publish();
        for proxy in theatre.connected.proxies.values() {
            let Some(found) = theatre.mesh.workload(&proxy.workload) else { continue };
            let mut wanted = used_services(found, &proxy.subscriptions);
            let address_entries =
                address_entries(&theatre.mesh, &proxy.addresses, &mut Views::default());
            wanted.extend(address_entries.services);
            let expected = compile_config(&theatre.mesh, found, &wanted, &mut Views::default());
            let expected = expected.with_addresses(address_entries.at);
            let recipients = proxy.pushed.as_ref().map(|u| (&*u.snapshot, &u.absent));
            let expected = Some((&*expected.snapshot, &expected.absent));
            assert_eq!(recipients, expected, "seed {seed}, step {step}, {}", proxy.workload);
        }
    }
    let mut rebuilt: Mesh = theatre.mesh.all_objects().into_iter().collect();
    for workload in theatre.mesh.workloads() {
        let listeners = theatre.mesh.sidecar_listeners(&workload.name).cloned();
        rebuilt.set_listeners(&workload.name, listeners);
    }
    assert_eq!(rebuilt, theatre.mesh, "seed {seed}");
}

#[test]
fn nobody_misses_anything_whatever_changes() {
    for seed in 0..64 {
        simulate_changes(seed);
    }
}

/// Services without workloads at addresses 10.96.*.*, and a proxy that queries all of them.
fn unbacked_services(services: u16) -> Theatre {
    let mut theatre = Theatre::new(mesh_with_sidecars(BOOKINFO));
    let mut asked = BTreeSet::new();
    for number in 0..services {
        let mut plain = theatre.mesh.service(&service_name("details")).unwrap().clone();
        plain.name = service_name(&format!("plain-{number}"));
        plain.selector.clear();
        let [high, low] = number.to_be_bytes();
        plain.addresses = BTreeSet::from([IpAddr::from([10, 96, high, low])]);
        asked.extend(plain.addresses.iter().copied());
        theatre.mesh.apply(Change::Upsert(Object::Service(plain)));
    }
    theatre.connect_proxy(&workload_name("stranger-1"), &[]);
    let (connection, _) = theatre.heard[&workload_name("stranger-1")];
    theatre.connected.proxy_mut(connection).unwrap().addresses = asked;
    theatre
}

#[test]
fn addresses_of_services_without_sidecars_are_looked_into_once() {
    let mut theatre = unbacked_services(300);
    theatre.send_response("stranger-1", Settling::No);
    let compiled = theatre.connected.views.compiled_count();
    assert!(compiled >= 300);
    for _ in 0..50 {
        theatre.send_response("stranger-1", Settling::No);
        // An unrelated change sweeps the views.
        theatre.set_listeners("details-1", Some(listeners_on(80)));
        theatre.set_listeners("details-1", Some(listeners_on(81)));
        theatre.publish();
    }
    let again = theatre.connected.views.compiled_count() - compiled;
    assert!(again < 200, "{again} views were compiled again");
}

#[test]
fn a_proxy_that_wants_much_is_answered_after_slices_of_work() {
    let mut theatre = unbacked_services(2000);
    let (connection, _) = theatre.heard[&workload_name("stranger-1")];
    let names = (0..2000).map(|number| service_name(&format!("plain-{number}")));
    theatre.connected.proxy_mut(connection).unwrap().subscriptions = names.collect();
    let mut slices = 0;
    loop {
        let before = theatre.connected.views.compiled_count();
        let progress = theatre.connected.prepare_config(connection, &theatre.mesh);
        let compiled = theatre.connected.views.compiled_count() - before;
        assert!(compiled <= 257, "{compiled} views in one slice");
        if progress == Progress::Done {
            break;
        }
        slices += 1;
    }
    assert!(slices >= 7, "{slices}");
    assert!(theatre.last_update("stranger-1").is_none(), "a part is not told");
    let before = theatre.connected.views.compiled_count();
    theatre.send_response("stranger-1", Settling::No);
    assert_eq!(theatre.connected.views.compiled_count(), before);
}

#[test]
fn a_change_that_concerns_many_is_sent_in_slices() {
    let mut theatre = unbacked_services(0);
    let many: Vec<WorkloadName> =
        (0..600).map(|number| workload_name(&format!("many-{number}"))).collect();
    for name in &many {
        let mut one = theatre.mesh.workload(&workload_name("details-1")).unwrap().clone();
        one.name = name.clone();
        theatre.mesh.apply(Change::Upsert(Object::Workload(one)));
        theatre.connect_proxy(name, &["reviews"]);
        theatre.send_response(&name.name.to_string(), Settling::No);
    }
    theatre.updated_workloads();
    theatre.set_listeners("reviews-v1-1", Some(listeners_on(1)));
    let mut slices = 1;
    while theatre.connected.publish(&theatre.mesh, Settling::No, theatre.now) == Progress::More {
        assert!(theatre.connected.due_at().is_some_and(|due| due <= theatre.now));
        slices += 1;
    }
    assert!((4..100).contains(&slices), "{slices}");
    assert_eq!(theatre.updated_workloads().len(), many.len());
    assert_eq!(theatre.connected.pending_count(), 0);
    // All of them are one push.
    let id = theatre.connected.newest_change();
    let push = theatre.connected.pushes.push_for_change(id).unwrap();
    assert_eq!((push.recipients, push.waiting.len()), (many.len(), many.len()));
}

#[test]
fn what_a_change_of_listeners_costs_grows_with_its_clients() {
    let mut theatre = connected_bookinfo(BOOKINFO);
    let before = theatre.connected.total_work();
    theatre.set_listeners("details-1", Some(listeners_on(1)));
    let few = theatre.connected.total_work() - before;
    let before = theatre.connected.total_work();
    theatre.set_listeners("reviews-v1-1", Some(listeners_on(1)));
    theatre.set_listeners("reviews-v1-1", Some(listeners_on(2)));
    let more = theatre.connected.total_work() - before;
    assert!(more > few, "{few}, {more}");
    // Proxies that are pending already cost nothing more.
    let before = theatre.connected.total_work();
    theatre.set_listeners("reviews-v1-1", Some(listeners_on(3)));
    assert_eq!(theatre.connected.total_work(), before);
}

#[test]
fn attending_again_changes_nothing() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let before = mesh.clone();
    connect_sidecars(&mut mesh);
    assert_eq!(mesh, before);
}
