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
    BOOKINFO, Dice, LETTERS, attend, mesh, random_change, service, strict, workload,
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
    fn enter(&mut self, name: &WorkloadName, services: &[&str]) {
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
            looked_up: Vec::new(),
            session: 1,
            ca_generation: 0,
            process: 0,
            answers_queries: false,
            report: Default::default(),
        };
        let connected = Connected { connection, hello, standing };
        let mut proxy = ConnectedProxy::new(connected, peer, self.now);
        proxy.subscriptions = services.iter().map(|name| service(name)).collect();
        assert!(self.connected.welcome(connection, proxy, self.now).is_none());
        self.heard.insert(name.clone(), (connection, heard));
    }

    fn answer(&mut self, name: &str, settling: Settling) {
        let (connection, _) = self.heard[&workload(name)];
        self.connected.answer(connection, &self.mesh, settling);
    }

    fn change(&mut self, change: Change) {
        let touched = self.mesh.apply(change);
        let cause = Cause::Objects(1, ObjectKey::MeshConfig, Edit::Written);
        self.connected.notice(&touched, &self.mesh, (cause, self.now), self.now);
    }

    fn listen(&mut self, name: &str, listeners: Option<Listeners>) {
        let touched = self.mesh.listen(&workload(name), listeners);
        let cause = Cause::Objects(1, ObjectKey::MeshConfig, Edit::Written);
        self.connected.notice(&touched, &self.mesh, (cause, self.now), self.now);
    }

    fn publish(&mut self) {
        while self.connected.publish(&self.mesh, Settling::No, self.now) == Progress::More {}
    }

    /// Returns the last update of a workload.
    fn recipients(&self, name: &str) -> Option<Update> {
        match &*self.heard[&workload(name)].1.borrow() {
            Standing::Offer(update) | Standing::Partial(update, _) => Some(update.clone()),
            Standing::Pending => None,
            Standing::Goodbye(reason) => panic!("{reason}"),
        }
    }

    /// Returns the workloads with endpoints that a workload was instructed to keep.
    fn kept(&self, name: &str) -> Vec<String> {
        match &*self.heard[&workload(name)].1.borrow() {
            Standing::Partial(_, doubt) => {
                doubt.iter().map(|id| format!("{} {}", id.service.name, id.workload.name)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the workloads with new updates since the last call.
    fn received(&mut self) -> Vec<String> {
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
fn bookinfo(yaml: &str) -> Theatre {
    let mut theatre = Theatre::new(mesh(yaml));
    for (name, services) in [
        ("productpage-1", &["reviews"][..]),
        ("details-1", &[]),
        ("reviews-v1-1", &[]),
        ("reviews-v2-1", &[]),
        ("stranger-1", &["details"]),
    ] {
        theatre.enter(&workload(name), services);
        theatre.answer(name, Settling::No);
    }
    assert_eq!(theatre.received().len(), 5);
    for proxy in theatre.connected.proxies.values_mut() {
        assert!(proxy.is_behind());
        proxy.applied(proxy.offered.as_ref().unwrap().change, 0, theatre.now);
        assert!(!proxy.is_behind());
    }
    theatre
}

#[test]
fn only_those_hear_of_a_sidecar_who_use_its_services() {
    let mut theatre = bookinfo(BOOKINFO);
    theatre.listen("details-1", None);
    theatre.publish();
    assert_eq!(theatre.received(), ["stranger-1"]);
    theatre.listen("reviews-v2-1", None);
    theatre.publish();
    assert_eq!(theatre.received(), ["productpage-1"]);
}

#[test]
fn only_its_users_and_its_owner_hear_of_a_service() {
    let mut theatre = bookinfo(BOOKINFO);
    theatre.change(Change::Remove(ObjectKey::Service(service("details"))));
    theatre.publish();
    assert_eq!(theatre.received(), ["details-1", "stranger-1"]);
    assert_eq!(
        theatre.recipients("stranger-1").unwrap().absent,
        BTreeSet::from([service("details")])
    );
}

#[test]
fn equal_outcomes_are_not_sent() {
    let mut theatre = bookinfo(BOOKINFO);
    let before = theatre.connected.tally;
    let mut details = theatre.mesh.workload(&workload("details-1")).unwrap().clone();
    details.run = vec!["true".to_owned()];
    theatre.change(Change::Upsert(Object::Workload(details)));
    theatre.publish();
    assert_eq!(theatre.received(), [""; 0]);
    let after = theatre.connected.tally;
    assert_eq!((after.compiled, after.offered), (before.compiled + 1, before.offered));
    assert_eq!(theatre.connected.rounds.latest().unwrap().converged, Some(Duration::ZERO));
}

#[test]
fn changes_in_quick_succession_are_sent_together_but_not_put_off_for_ever() {
    let mut theatre = bookinfo(BOOKINFO);
    let Times { quiet, quiet_max, .. } = Times::default();
    let start = theatre.now;
    assert_eq!(theatre.connected.due_at(), None);
    theatre.listen("details-1", None);
    assert_eq!(theatre.connected.due_at(), Some(start + quiet));
    theatre.now = start + quiet / 2;
    theatre.listen("reviews-v1-1", None);
    assert_eq!(theatre.connected.due_at(), Some(theatre.now + quiet));
    theatre.now = start + quiet_max - quiet / 2;
    theatre.listen("reviews-v2-1", None);
    assert_eq!(theatre.connected.due_at(), Some(start + quiet_max));
    assert_eq!(theatre.received(), [""; 0]);
    theatre.publish();
    assert_eq!(theatre.received(), ["productpage-1", "stranger-1"]);
    assert_eq!(theatre.connected.due_at(), None);
}

#[test]
fn all_clients_share_what_they_see_alike() {
    let theatre = {
        let mut theatre = Theatre::new(mesh(BOOKINFO));
        for name in ["stranger-1", "productpage-1"] {
            theatre.enter(&workload(name), &["details"]);
            theatre.answer(name, Settling::No);
        }
        theatre
    };
    let [one, other] =
        ["stranger-1", "productpage-1"].map(|name| theatre.recipients(name).unwrap());
    let details = |update: &Update| Arc::clone(&update.snapshot.services[&service("details")]);
    assert!(Arc::ptr_eq(&details(&one), &details(&other)));
}

#[test]
fn a_round_is_over_when_all_it_concerned_have_applied_it() {
    let mut theatre = bookinfo(BOOKINFO);
    theatre.listen("details-1", None);
    theatre.publish();
    let latest = theatre.connected.rounds.latest().unwrap();
    assert_eq!((latest.concerned, latest.applied, latest.converged), (1, 0, None));
    let (connection, _) = theatre.heard[&workload("stranger-1")];
    theatre.connected.part(connection, theatre.now + Duration::from_millis(7));
    let latest = theatre.connected.rounds.latest().unwrap();
    assert_eq!(latest.converged, Some(Duration::from_millis(7)));
}

#[test]
fn while_sidecars_come_back_all_that_is_certain_is_reported_and_the_rest_is_kept() {
    let mesh: Mesh = crate::fixture::objects(BOOKINFO).into_iter().collect();
    let mut theatre = Theatre::new(mesh);
    theatre.enter(&workload("productpage-1"), &["details"]);
    theatre.answer("productpage-1", Settling::Yes);
    let services = |theatre: &Theatre| theatre.recipients("productpage-1").unwrap().snapshot;
    assert_eq!(services(&theatre).services.len(), 4, "details, reviews and its two backends");
    let all = [
        "details details-1",
        "reviews reviews-v1-1",
        "reviews reviews-v2-1",
        "reviews-v1 reviews-v1-1",
        "reviews-v2 reviews-v2-1",
    ];
    assert_eq!(theatre.kept("productpage-1"), all);

    theatre.listen("details-1", Some(listening(9081)));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    theatre.listen("reviews-v1-1", Some(listening(9082)));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    assert_eq!(theatre.kept("productpage-1"), ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]);
    let reviews = &services(&theatre).services[&service("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 1);

    // A sidecar's report without listeners is applied at once.
    theatre.listen("reviews-v1-1", Some(Listeners::new()));
    theatre.connected.publish(&theatre.mesh, Settling::Yes, theatre.now);
    assert_eq!(theatre.kept("productpage-1"), ["reviews reviews-v2-1", "reviews-v2 reviews-v2-1"]);

    theatre.connected.reconsider(&theatre.mesh, Settling::No);
    assert_eq!(theatre.kept("productpage-1"), [""; 0]);
    let reviews = &services(&theatre).services[&service("reviews")];
    assert_eq!(reviews.ports[&9080].endpoints.len(), 0, "it did not come back");
}

#[test]
fn what_a_client_may_not_call_is_no_matter_of_doubt() {
    let mesh: Mesh = crate::fixture::objects(&strict("")).into_iter().collect();
    let mut theatre = Theatre::new(mesh);
    theatre.enter(&workload("productpage-1"), &["details"]);
    theatre.enter(&workload("stranger-1"), &["details", "reviews"]);
    theatre.answer("productpage-1", Settling::Yes);
    theatre.answer("stranger-1", Settling::Yes);
    let kept = theatre.kept("productpage-1");
    assert_eq!(kept, ["reviews reviews-v1-1", "reviews-v1 reviews-v1-1"]);
    assert_eq!(theatre.kept("stranger-1"), [""; 0]);
}

fn listening(port: u16) -> Listeners {
    Listeners::from([(port, SocketAddr::from(([127, 0, 0, 1], port)))])
}

/// Returns one of a few addresses, so that services and workloads take them over from each other.
fn address(dice: &mut Dice) -> IpAddr {
    IpAddr::from([10, 0, 0, u8::try_from(dice.below(6)).unwrap()])
}

/// Usually sets an address on the object of a change.
fn settle(change: &mut Change, dice: &mut Dice) {
    match change {
        Change::Upsert(Object::Service(service)) if dice.below(3) > 0 => {
            service.addresses.insert(address(dice));
        }
        Change::Upsert(Object::Workload(workload)) if dice.below(3) > 0 => {
            workload.address = address(dice);
        }
        _ => {}
    }
}

/// Random changes, each published to the affected proxies: afterwards every proxy has exactly the result of a
/// full compilation, and the mesh equals one built at once.
fn simulate(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut theatre = Theatre::new(mesh(&strict("")));
    for name in LETTERS {
        let uses = [dice.pick(LETTERS), dice.pick(LETTERS)];
        theatre.enter(&workload(name), &uses);
        let (connection, _) = theatre.heard[&workload(name)];
        let asked = [0, 1, 2].map(|_| address(&mut dice));
        theatre.connected.proxy(connection).unwrap().addresses.extend(asked);
        theatre.answer(name, Settling::No);
    }
    for step in 0..120 {
        for _ in 0..=dice.below(2) {
            match dice.below(5) {
                0 => {
                    let name = dice.pick(LETTERS);
                    let port = [80, 81][dice.below(2)];
                    let there = dice.below(3) > 0;
                    theatre.listen(name, there.then(|| listening(port)));
                }
                _ => {
                    let mut change = random_change(&mut dice);
                    settle(&mut change, &mut dice);
                    theatre.change(change);
                }
            }
        }
        theatre.publish();
        for proxy in theatre.connected.proxies.values() {
            let Some(found) = theatre.mesh.workload(&proxy.workload) else { continue };
            let mut wanted = wanted(found, &proxy.subscriptions);
            let address_entries =
                address_entries(&theatre.mesh, &proxy.addresses, &mut Views::default());
            wanted.extend(address_entries.services);
            let expected = world(&theatre.mesh, found, &wanted, &mut Views::default());
            let expected = expected.with_addresses(address_entries.at);
            let recipients = proxy.offered.as_ref().map(|u| (&*u.snapshot, &u.absent));
            let expected = Some((&*expected.snapshot, &expected.absent));
            assert_eq!(recipients, expected, "seed {seed}, step {step}, {}", proxy.workload);
        }
    }
    let mut rebuilt: Mesh = theatre.mesh.objects().into_iter().collect();
    for workload in theatre.mesh.workloads() {
        let listeners = theatre.mesh.listeners(&workload.name).cloned();
        rebuilt.listen(&workload.name, listeners);
    }
    assert_eq!(rebuilt, theatre.mesh, "seed {seed}");
}

#[test]
fn nobody_misses_anything_whatever_changes() {
    for seed in 0..64 {
        simulate(seed);
    }
}

/// Services without workloads at addresses 10.96.*.*, and a proxy that queries all of them.
fn outside(services: u16) -> Theatre {
    let mut theatre = Theatre::new(mesh(BOOKINFO));
    let mut asked = BTreeSet::new();
    for number in 0..services {
        let mut plain = theatre.mesh.service(&service("details")).unwrap().clone();
        plain.name = service(&format!("plain-{number}"));
        plain.selector.clear();
        let [high, low] = number.to_be_bytes();
        plain.addresses = BTreeSet::from([IpAddr::from([10, 96, high, low])]);
        asked.extend(plain.addresses.iter().copied());
        theatre.mesh.apply(Change::Upsert(Object::Service(plain)));
    }
    theatre.enter(&workload("stranger-1"), &[]);
    let (connection, _) = theatre.heard[&workload("stranger-1")];
    theatre.connected.proxy(connection).unwrap().addresses = asked;
    theatre
}

#[test]
fn addresses_of_services_without_sidecars_are_looked_into_once() {
    let mut theatre = outside(300);
    theatre.answer("stranger-1", Settling::No);
    let compiled = theatre.connected.views.compiled();
    assert!(compiled >= 300);
    for _ in 0..50 {
        theatre.answer("stranger-1", Settling::No);
        // An unrelated change sweeps the views.
        theatre.listen("details-1", Some(listening(80)));
        theatre.listen("details-1", Some(listening(81)));
        theatre.publish();
    }
    let again = theatre.connected.views.compiled() - compiled;
    assert!(again < 200, "{again} views were compiled again");
}

#[test]
fn a_proxy_that_wants_much_is_answered_after_slices_of_work() {
    let mut theatre = outside(2000);
    let (connection, _) = theatre.heard[&workload("stranger-1")];
    let names = (0..2000).map(|number| service(&format!("plain-{number}")));
    theatre.connected.proxy(connection).unwrap().subscriptions = names.collect();
    let mut slices = 0;
    loop {
        let before = theatre.connected.views.compiled();
        let progress = theatre.connected.prepare(connection, &theatre.mesh);
        let compiled = theatre.connected.views.compiled() - before;
        assert!(compiled <= 257, "{compiled} views in one slice");
        if progress == Progress::Done {
            break;
        }
        slices += 1;
    }
    assert!(slices >= 7, "{slices}");
    assert!(theatre.recipients("stranger-1").is_none(), "a part is not told");
    let before = theatre.connected.views.compiled();
    theatre.answer("stranger-1", Settling::No);
    assert_eq!(theatre.connected.views.compiled(), before);
}

#[test]
fn a_change_that_concerns_many_is_sent_in_slices() {
    let mut theatre = outside(0);
    let many: Vec<WorkloadName> =
        (0..600).map(|number| workload(&format!("many-{number}"))).collect();
    for name in &many {
        let mut one = theatre.mesh.workload(&workload("details-1")).unwrap().clone();
        one.name = name.clone();
        theatre.mesh.apply(Change::Upsert(Object::Workload(one)));
        theatre.enter(name, &["reviews"]);
        theatre.answer(&name.name.to_string(), Settling::No);
    }
    theatre.received();
    theatre.listen("reviews-v1-1", Some(listening(1)));
    let mut slices = 1;
    while theatre.connected.publish(&theatre.mesh, Settling::No, theatre.now) == Progress::More {
        assert!(theatre.connected.due_at().is_some_and(|due| due <= theatre.now));
        slices += 1;
    }
    assert!((4..100).contains(&slices), "{slices}");
    assert_eq!(theatre.received().len(), many.len());
    assert_eq!(theatre.connected.due(), 0);
    // All of them are one push.
    let id = theatre.connected.newest();
    let round = theatre.connected.rounds.of(id).unwrap();
    assert_eq!((round.recipients, round.waiting.len()), (many.len(), many.len()));
}

#[test]
fn what_a_change_of_listeners_costs_grows_with_its_clients() {
    let mut theatre = bookinfo(BOOKINFO);
    let before = theatre.connected.work();
    theatre.listen("details-1", Some(listening(1)));
    let few = theatre.connected.work() - before;
    let before = theatre.connected.work();
    theatre.listen("reviews-v1-1", Some(listening(1)));
    theatre.listen("reviews-v1-1", Some(listening(2)));
    let more = theatre.connected.work() - before;
    assert!(more > few, "{few}, {more}");
    // Proxies that are pending already cost nothing more.
    let before = theatre.connected.work();
    theatre.listen("reviews-v1-1", Some(listening(3)));
    assert_eq!(theatre.connected.work(), before);
}

#[test]
fn attending_again_changes_nothing() {
    let mut mesh = mesh(BOOKINFO);
    let before = mesh.clone();
    attend(&mut mesh);
    assert_eq!(mesh, before);
}
