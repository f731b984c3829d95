//! Tests of the publisher: one delta in flight, newest offer wins, differences only, rejections remembered.

use leno_model::{EndpointId, ValueMatch};

use super::*;
use crate::fixture::{endpoint, named, route, service, update, world};
use crate::message::Upsert;
use crate::subscriber::Subscriber;

/// Publishes until nothing is left to send; resources that `judge` rejects are rejected.
fn settle(
    publisher: &mut Publisher,
    subscriber: &mut Subscriber,
    judge: impl Fn(&Upsert) -> Option<Refusal>,
) -> Vec<Delta> {
    let mut deltas = Vec::new();
    while let Some(delta) = publisher.next_delta() {
        assert!(deltas.len() < 100, "deltas go back and forth for ever: {delta:?}");
        deltas.push(delta.clone());
        let refusals: Vec<_> = delta.upserts.iter().filter_map(&judge).collect();
        let nonce = delta.nonce;
        match subscriber.stage(delta) {
            Ok(staged) if refusals.is_empty() => {
                subscriber.commit(staged);
                publisher.acknowledge(nonce).unwrap();
            }
            Ok(_) => assert!(publisher.refuse(nonce, &refusals).is_some()),
            Err(refusals) => assert!(publisher.refuse(nonce, &refusals).is_some()),
        }
    }
    deltas
}

fn accept_all(_: &Upsert) -> Option<Refusal> {
    None
}

fn pair(update: Update) -> (Publisher, Subscriber) {
    let (mut publisher, mut subscriber) = (Publisher::new(Vec::new()), Subscriber::new());
    publisher.offer(update);
    settle(&mut publisher, &mut subscriber, accept_all);
    (publisher, subscriber)
}

#[test]
fn the_first_delta_carries_everything_and_the_next_only_differences() {
    let (mut publisher, mut subscriber) = pair(world());
    assert_eq!(subscriber.update(), Some(&world()));
    assert_eq!(publisher.settled(), Some(ChangeId(1)));

    let mut next = world();
    next.change = ChangeId(2);
    publisher.offer(next.clone());
    assert_eq!(publisher.next_delta(), None, "equal worlds send nothing");
    assert_eq!(publisher.settled(), Some(ChangeId(2)));

    let snapshot = Arc::make_mut(&mut next.snapshot);
    snapshot.services.insert(named("ratings"), Arc::new(service("ratings", 4)));
    publisher.offer(next.clone());
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    let keys: Vec<_> = deltas[0].upserts.iter().map(|upsert| upsert.key.clone()).collect();
    assert_eq!(keys, [ResourceKey::Endpoint(endpoint(&named("ratings"), 3).id)]);
    assert!(deltas.len() == 1 && deltas[0].removed.is_empty() && deltas[0].absent.is_none());
    assert_eq!(subscriber.update(), Some(&next));
}

#[test]
fn endpoint_churn_sends_only_that_endpoint_in_few_bytes() {
    let (mut publisher, mut subscriber) = pair(update(1, [service("ratings", 1000)]));
    let mut moved = service("ratings", 1000);
    let endpoints = &mut moved.ports.get_mut(&9080).unwrap().endpoints;
    Arc::make_mut(&mut endpoints[500]).address.set_port(9);
    endpoints.remove(700);
    publisher.offer(update(2, [moved]));
    let delta = publisher.next_delta().unwrap();
    assert_eq!((delta.upserts.len(), delta.removed.len()), (1, 1));
    let wire = crate::envelope::delta_to_wire(delta.clone());
    let bytes = prost::Message::encoded_len(&wire);
    assert!(bytes < 200, "{bytes} bytes");
    let staged = subscriber.stage(delta).unwrap();
    subscriber.commit(staged);
    assert_eq!(subscriber.held().len(), 1001);
}

#[test]
fn one_delta_is_in_flight_and_the_newest_offer_wins() {
    let mut publisher = Publisher::new(Vec::new());
    publisher.offer(update(1, [service("a", 1)]));
    let first = publisher.next_delta().unwrap();
    publisher.offer(update(2, [service("b", 1)]));
    publisher.offer(update(3, [service("a", 1), service("c", 1)]));
    assert_eq!(publisher.next_delta(), None);
    assert_eq!(publisher.acknowledge(first.nonce + 7), None, "not in flight");
    let acked = publisher.acknowledge(first.nonce);
    assert_eq!(acked, Some(Acked { change: ChangeId(1), whole: true }));
    assert_eq!(publisher.acknowledge(first.nonce), None, "already answered");
    let second = publisher.next_delta().unwrap();
    assert_eq!(second.change, ChangeId(3));
    assert!(second.removed.is_empty(), "b never left");
    assert!(second.upserts.iter().all(|u| u.key.service() == Some(&named("c"))));
}

#[test]
fn a_proxy_that_reconnects_gets_only_what_differs() {
    let (_, mut subscriber) = pair(world());
    let mut publisher = Publisher::new(subscriber.held());
    let mut changed = world();
    Arc::make_mut(&mut changed.snapshot).services.remove(&named("reviews"));
    changed.absent.clear();
    publisher.offer(changed.clone());
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(deltas.len(), 1);
    assert_eq!(deltas[0].removed, [ResourceKey::Service(named("reviews"))]);
    assert!(deltas[0].upserts.is_empty());
    assert_eq!(subscriber.update(), Some(&changed));

    let mut publisher = Publisher::new(subscriber.held());
    publisher.offer(changed);
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() == 1 && deltas[0].upserts.is_empty(), "the first one is always sent");
}

#[test]
fn a_refused_resource_is_not_sent_again_until_it_changes() {
    let bad = |upsert: &Upsert| {
        let bad = upsert.key == ResourceKey::Service(named("bad"));
        bad.then(|| Refusal::new(upsert.key.clone(), "not a regular expression"))
    };
    let (mut publisher, mut subscriber) = pair(update(1, []));
    publisher.offer(update(2, [service("bad", 2), service("good", 2)]));
    let deltas = settle(&mut publisher, &mut subscriber, bad);
    assert_eq!(deltas.len(), 2, "with it, then without");
    assert!(deltas[1].upserts.iter().all(|u| u.key.service() == Some(&named("good"))));
    assert!(subscriber.update().unwrap().snapshot.services.contains_key(&named("good")));
    let refused: Vec<_> = publisher.refused().collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].to_string(), "service bookinfo/bad: not a regular expression");
    assert_eq!(publisher.settled(), Some(ChangeId(2)));

    publisher.offer(update(3, [service("bad", 2), service("good", 3)]));
    let deltas = settle(&mut publisher, &mut subscriber, bad);
    assert!(deltas.iter().all(|d| d.upserts.iter().all(|u| bad(u).is_none())), "sent again");

    let mut repaired = service("bad", 2);
    route(&mut repaired, &["good"]);
    let repaired = update(4, [repaired, service("good", 3)]);
    publisher.offer(repaired.clone());
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&repaired));
    assert_eq!(publisher.refused().count(), 0);
}

#[test]
fn what_depends_on_a_refused_resource_waits_for_it() {
    let refuse_ratings = |upsert: &Upsert| {
        let bad = upsert.key == ResourceKey::Service(named("ratings"));
        bad.then(|| Refusal::new(upsert.key.clone(), "no"))
    };
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.offer(world());
    settle(&mut publisher, &mut subscriber, refuse_ratings);
    let services = &subscriber.update().unwrap().snapshot.services;
    assert!(services.is_empty(), "reviews refers to ratings: {services:?}");
    let refused: Vec<_> = publisher.refused().collect();
    assert_eq!(refused[1].because, Some(ResourceKey::Service(named("ratings"))), "{refused:?}");

    let mut repaired = world();
    let mut ratings = service("ratings", 3);
    ratings.ports.get_mut(&9080).unwrap().name = None;
    Arc::make_mut(&mut repaired.snapshot).services.insert(named("ratings"), Arc::new(ratings));
    publisher.offer(repaired.clone());
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&repaired), "both came");
}

#[test]
fn a_refusal_that_names_nothing_that_was_sent_waits_for_the_next_offer() {
    let (mut publisher, mut subscriber) = pair(update(1, []));
    publisher.offer(update(2, [service("a", 1)]));
    let delta = publisher.next_delta().unwrap();
    let other = Refusal::new(ResourceKey::Plan, "the address is in use");
    assert_eq!(publisher.refuse(delta.nonce, &[other]), Some(ChangeId(2)));
    assert_eq!(publisher.next_delta(), None);
    assert!(publisher.refused().all(|refusal| refusal.reason == "plan: the address is in use"));
    let next = update(3, [service("a", 1)]);
    publisher.offer(next.clone());
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&next));
}

#[test]
fn a_resource_too_large_to_send_is_named_and_the_rest_is_sent() {
    let mut large = service("large", 1);
    route(&mut large, &vec!["large"; 200_000]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.offer(update(1, [large, service("small", 1)]));
    settle(&mut publisher, &mut subscriber, accept_all);
    let oversized = publisher.take_oversized();
    assert_eq!(oversized.len(), 1);
    assert_eq!(oversized[0].key, ResourceKey::Service(named("large")));
    assert!(oversized[0].reason.contains("split it"), "{}", oversized[0]);
    let services = &subscriber.update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&named("small")]);
}

#[test]
fn a_service_with_ten_thousand_rules_arrives() {
    let mut checkout = service("checkout", 3);
    route(&mut checkout, &["checkout-stable", "checkout-canary"]);
    let rules = &mut checkout.ports.get_mut(&9080).unwrap().rules;
    let like = rules.pop().unwrap();
    // The maximum of the Gateway API for a route.
    for number in 0..10_000 {
        let mut rule = like.clone();
        rule.route = format!("bookinfo/checkout-of-the-tenants-{}", number / 16).parse().unwrap();
        rule.matches[0].headers[0].value = ValueMatch::Exact(format!("tenant-{number}"));
        rules.push(rule);
    }
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    let backends = ["checkout-stable", "checkout-canary"].map(|name| service(name, 1));
    let world = update(1, [checkout].into_iter().chain(backends));
    publisher.offer(world.clone());
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(publisher.take_oversized(), []);
    assert!(subscriber.update() == Some(&world));
}

#[test]
fn a_world_larger_than_a_message_arrives_in_parts() {
    let large = update(1, [service("a", 30_000), service("b", 30_000)]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.offer(large.clone());
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() > 1);
    for (index, delta) in deltas.iter().enumerate() {
        let wire = crate::envelope::delta_to_wire(delta.clone());
        assert!(prost::Message::encoded_len(&wire) <= crate::frame::MESSAGE_BYTES_MAX);
        assert_eq!(delta.whole, index + 1 == deltas.len());
    }
    assert!(subscriber.update() == Some(&large));

    publisher.offer(update(2, []));
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.held().len(), 1, "services take their endpoints with them");
}

/// The configuration without some endpoints of a service; their absence is uncertain.
fn without(mut world: Update, name: &str, indexes: &[u16]) -> (Update, Vec<EndpointId>) {
    let service = named(name);
    let ids: Vec<EndpointId> = indexes.iter().map(|i| endpoint(&service, *i).id).collect();
    let services = &mut Arc::make_mut(&mut world.snapshot).services;
    let view = Arc::make_mut(services.get_mut(&service).unwrap());
    view.ports.get_mut(&9080).unwrap().endpoints.retain(|held| !ids.contains(&held.id));
    (world, ids)
}

fn addresses(subscriber: &Subscriber, name: &str) -> usize {
    let services = &subscriber.update().unwrap().snapshot.services;
    services[&named(name)].ports[&9080].endpoints.len()
}

#[test]
fn endpoints_in_doubt_stay_and_all_that_is_certain_is_sent() {
    let (_, mut subscriber) = pair(world());
    let mut publisher = Publisher::new(subscriber.held());
    let (mut partial, doubtful) = without(world(), "ratings", &[0, 2]);
    partial.change = ChangeId(2);
    Arc::make_mut(&mut Arc::make_mut(&mut partial.snapshot).plan).outbound_listeners.clear();
    let services = &mut Arc::make_mut(&mut partial.snapshot).services;
    services.insert(named("details"), Arc::new(service("details", 1)));
    publisher.offer_in_doubt(partial.clone(), doubtful.into_iter().collect());
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() == 1 && deltas[0].removed.is_empty(), "{deltas:?}");
    assert_eq!(publisher.settled(), Some(ChangeId(2)), "all that can be said has been said");
    let held = &subscriber.update().unwrap().snapshot;
    assert_eq!(held.plan, partial.snapshot.plan);
    assert_eq!((addresses(&subscriber, "details"), addresses(&subscriber, "ratings")), (1, 3));

    // One of the two comes back at another address, the other one does not.
    let (mut certain, _) = without(partial.clone(), "ratings", &[]);
    let mut moved = endpoint(&named("ratings"), 2);
    moved.address.set_port(9);
    let services = &mut Arc::make_mut(&mut certain.snapshot).services;
    let ratings = Arc::make_mut(services.get_mut(&named("ratings")).unwrap());
    ratings.ports.get_mut(&9080).unwrap().endpoints.push(Arc::new(moved));
    certain.change = ChangeId(3);
    publisher.offer(certain.clone());
    let deltas = settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(deltas[0].removed, [ResourceKey::Endpoint(endpoint(&named("ratings"), 0).id)]);
    assert_eq!(subscriber.update(), Some(&certain));
}

#[test]
fn a_new_service_that_nobody_answers_for_yet_is_held_back_with_all_that_leads_to_it() {
    let mut reviews = service("reviews", 0);
    route(&mut reviews, &["ratings"]);
    let whole = update(1, [reviews, service("ratings", 2), service("details", 1)]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    let (nobody, doubtful) = without(whole.clone(), "ratings", &[0, 1]);
    publisher.offer_in_doubt(nobody, doubtful.into_iter().collect());
    settle(&mut publisher, &mut subscriber, accept_all);
    let services = &subscriber.update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&named("details")]);

    let (somebody, doubtful) = without(whole.clone(), "ratings", &[1]);
    publisher.offer_in_doubt(somebody.clone(), doubtful.into_iter().collect());
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&somebody), "one can answer");
}

#[test]
fn what_a_held_service_leads_to_is_sent_however_it_is() {
    let whole = |routed: bool| {
        let mut reviews = service("reviews", 1);
        if routed {
            route(&mut reviews, &["ratings"]);
        }
        let mut details = service("details", 1);
        route(&mut details, &["ratings"]);
        let ratings = routed.then(|| [details, service("ratings", 1)]);
        update(1, [reviews].into_iter().chain(ratings.into_iter().flatten()))
    };
    let (mut publisher, mut subscriber) = pair(whole(false));
    let (partial, doubtful) = without(whole(true), "ratings", &[0]);
    publisher.offer_in_doubt(partial, doubtful.into_iter().collect());
    settle(&mut publisher, &mut subscriber, accept_all);
    let services = &subscriber.update().unwrap().snapshot.services;
    let names: Vec<_> = services.keys().collect();
    assert_eq!(names, [&named("ratings"), &named("reviews")], "details is new and can wait");
    assert_eq!(addresses(&subscriber, "ratings"), 0);
    publisher.offer(whole(true));
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&whole(true)));
}

#[test]
fn absent_services_that_were_not_accepted_are_reported_again() {
    let refuse_missing = |upsert: &Upsert| {
        let bad = upsert.key == ResourceKey::Service(named("missing"));
        bad.then(|| Refusal::new(upsert.key.clone(), "no"))
    };
    let (mut publisher, mut subscriber) = pair(world());
    let whole = |change: u64, endpoints: u16| {
        let mut whole = world();
        let services = &mut Arc::make_mut(&mut whole.snapshot).services;
        for name in ["missing", "details"] {
            services.insert(named(name), Arc::new(service(name, endpoints)));
        }
        let missing = Arc::make_mut(services.get_mut(&named("missing")).unwrap());
        missing.ports.get_mut(&9080).unwrap().name = (endpoints == 1).then(|| "a".parse().unwrap());
        Update { absent: BTreeSet::new(), change: ChangeId(change), ..whole }
    };
    publisher.offer(whole(2, 1));
    settle(&mut publisher, &mut subscriber, refuse_missing);
    let held = subscriber.update().unwrap();
    assert_eq!(held.absent, BTreeSet::from([named("missing")]), "reviews leads there");
    assert!(held.snapshot.services.contains_key(&named("details")), "the rest came");
    publisher.offer(whole(3, 2));
    settle(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.update(), Some(&whole(3, 2)));
}
