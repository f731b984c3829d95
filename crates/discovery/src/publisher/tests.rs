//! Tests of the publisher: one delta in flight, the newest update wins, only differences, remembered
//! rejections.

use leno_model::{EndpointId, ValueMatch};

use super::*;
use crate::fixture::{
    add_route, bookinfo_update, service_config, service_endpoint, service_name, update_with,
};
use crate::message::Upsert;
use crate::subscriber::Subscriber;

/// Publishes until nothing is left to send; resources that `reject` rejects are rejected.
fn publish_all(
    publisher: &mut Publisher,
    subscriber: &mut Subscriber,
    reject: impl Fn(&Upsert) -> Option<ResourceRejection>,
) -> Vec<Delta> {
    let mut deltas = Vec::new();
    while let Some(delta) = publisher.next_delta() {
        assert!(deltas.len() < 100, "the deltas do not converge: {delta:?}");
        deltas.push(delta.clone());
        let rejections: Vec<_> = delta.upserts.iter().filter_map(&reject).collect();
        let nonce = delta.nonce;
        match subscriber.stage(delta) {
            Ok(staged_delta) if rejections.is_empty() => {
                subscriber.commit(staged_delta);
                publisher.acknowledge(nonce).unwrap();
            }
            Ok(_) => assert!(publisher.reject_delta(nonce, &rejections).is_some()),
            Err(rejections) => assert!(publisher.reject_delta(nonce, &rejections).is_some()),
        }
    }
    deltas
}

fn accept_all(_: &Upsert) -> Option<ResourceRejection> {
    None
}

fn publisher_and_subscriber(update: ConfigUpdate) -> (Publisher, Subscriber) {
    let (mut publisher, mut subscriber) = (Publisher::new(Vec::new()), Subscriber::new());
    publisher.set_update(update);
    publish_all(&mut publisher, &mut subscriber, accept_all);
    (publisher, subscriber)
}

#[test]
fn the_first_delta_contains_all_resources_and_the_next_only_differences() {
    let (mut publisher, mut subscriber) = publisher_and_subscriber(bookinfo_update());
    assert_eq!(subscriber.current_update(), Some(&bookinfo_update()));
    assert_eq!(publisher.applied_change(), Some(ChangeId(1)));

    let mut next_update = bookinfo_update();
    next_update.change = ChangeId(2);
    publisher.set_update(next_update.clone());
    assert_eq!(publisher.next_delta(), None, "an equal configuration sends nothing");
    assert_eq!(publisher.applied_change(), Some(ChangeId(2)));

    let snapshot = Arc::make_mut(&mut next_update.snapshot);
    snapshot.services.insert(service_name("ratings"), Arc::new(service_config("ratings", 4)));
    publisher.set_update(next_update.clone());
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    let keys: Vec<_> = deltas[0].upserts.iter().map(|upsert| upsert.key.clone()).collect();
    assert_eq!(keys, [ResourceKey::Endpoint(service_endpoint(&service_name("ratings"), 3).id)]);
    assert!(deltas.len() == 1 && deltas[0].removed.is_empty() && deltas[0].absent.is_none());
    assert_eq!(subscriber.current_update(), Some(&next_update));
}

#[test]
fn a_changed_endpoint_is_sent_alone() {
    let (mut publisher, mut subscriber) =
        publisher_and_subscriber(update_with(1, [service_config("ratings", 1000)]));
    let mut changed_service = service_config("ratings", 1000);
    let endpoints = &mut changed_service.ports.get_mut(&9080).unwrap().endpoints;
    Arc::make_mut(&mut endpoints[500]).address.set_port(9);
    endpoints.remove(700);
    publisher.set_update(update_with(2, [changed_service]));
    let delta = publisher.next_delta().unwrap();
    assert_eq!((delta.upserts.len(), delta.removed.len()), (1, 1));
    let wire = crate::envelope::delta_to_wire(delta.clone());
    let bytes = prost::Message::encoded_len(&wire);
    assert!(bytes < 200, "{bytes} bytes");
    let staged_delta = subscriber.stage(delta).unwrap();
    subscriber.commit(staged_delta);
    assert_eq!(subscriber.held_versions().len(), 1001);
}

#[test]
fn one_delta_is_in_flight_and_the_newest_update_wins() {
    let mut publisher = Publisher::new(Vec::new());
    publisher.set_update(update_with(1, [service_config("a", 1)]));
    let first_delta = publisher.next_delta().unwrap();
    publisher.set_update(update_with(2, [service_config("b", 1)]));
    publisher.set_update(update_with(3, [service_config("a", 1), service_config("c", 1)]));
    assert_eq!(publisher.next_delta(), None);
    assert_eq!(publisher.acknowledge(first_delta.nonce + 7), None, "not in flight");
    let acknowledged = publisher.acknowledge(first_delta.nonce);
    assert_eq!(acknowledged, Some(AcknowledgedDelta { change: ChangeId(1), whole: true }));
    assert_eq!(publisher.acknowledge(first_delta.nonce), None, "already acknowledged");
    let second_delta = publisher.next_delta().unwrap();
    assert_eq!(second_delta.change, ChangeId(3));
    assert!(second_delta.removed.is_empty(), "b was never sent");
    assert!(
        second_delta.upserts.iter().all(|upsert| upsert.key.service() == Some(&service_name("c")))
    );
}

#[test]
fn a_reconnected_proxy_receives_only_differences() {
    let (_, mut subscriber) = publisher_and_subscriber(bookinfo_update());
    let mut publisher = Publisher::new(subscriber.held_versions());
    let mut changed = bookinfo_update();
    Arc::make_mut(&mut changed.snapshot).services.remove(&service_name("reviews"));
    changed.absent.clear();
    publisher.set_update(changed.clone());
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(deltas.len(), 1);
    assert_eq!(deltas[0].removed, [ResourceKey::Service(service_name("reviews"))]);
    assert!(deltas[0].upserts.is_empty());
    assert_eq!(subscriber.current_update(), Some(&changed));

    let mut publisher = Publisher::new(subscriber.held_versions());
    publisher.set_update(changed);
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() == 1 && deltas[0].upserts.is_empty(), "the first one is always sent");
}

#[test]
fn a_rejected_resource_is_not_sent_again_until_it_changes() {
    let reject_bad = |upsert: &Upsert| {
        let is_bad = upsert.key == ResourceKey::Service(service_name("bad"));
        is_bad.then(|| ResourceRejection::new(upsert.key.clone(), "not a regular expression"))
    };
    let (mut publisher, mut subscriber) = publisher_and_subscriber(update_with(1, []));
    publisher.set_update(update_with(2, [service_config("bad", 2), service_config("good", 2)]));
    let deltas = publish_all(&mut publisher, &mut subscriber, reject_bad);
    assert_eq!(deltas.len(), 2, "one delta with the rejected resource, one without");
    assert!(
        deltas[1].upserts.iter().all(|upsert| upsert.key.service() == Some(&service_name("good")))
    );
    assert!(
        subscriber.current_update().unwrap().snapshot.services.contains_key(&service_name("good"))
    );
    let rejections: Vec<_> = publisher.rejected_resources().collect();
    assert_eq!(rejections.len(), 1);
    assert_eq!(rejections[0].to_string(), "service bookinfo/bad: not a regular expression");
    assert_eq!(publisher.applied_change(), Some(ChangeId(2)));

    publisher.set_update(update_with(3, [service_config("bad", 2), service_config("good", 3)]));
    let deltas = publish_all(&mut publisher, &mut subscriber, reject_bad);
    assert!(
        deltas.iter().all(|delta| delta.upserts.iter().all(|upsert| reject_bad(upsert).is_none())),
        "sent again"
    );

    let mut repaired = service_config("bad", 2);
    add_route(&mut repaired, &["good"]);
    let repaired = update_with(4, [repaired, service_config("good", 3)]);
    publisher.set_update(repaired.clone());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&repaired));
    assert_eq!(publisher.rejected_resources().count(), 0);
}

#[test]
fn a_resource_waits_for_a_rejected_resource_that_it_depends_on() {
    let reject_ratings = |upsert: &Upsert| {
        let is_ratings = upsert.key == ResourceKey::Service(service_name("ratings"));
        is_ratings.then(|| ResourceRejection::new(upsert.key.clone(), "no"))
    };
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.set_update(bookinfo_update());
    publish_all(&mut publisher, &mut subscriber, reject_ratings);
    let services = &subscriber.current_update().unwrap().snapshot.services;
    assert!(services.is_empty(), "reviews refers to ratings: {services:?}");
    let rejections: Vec<_> = publisher.rejected_resources().collect();
    assert_eq!(
        rejections[1].because,
        Some(ResourceKey::Service(service_name("ratings"))),
        "{rejections:?}"
    );

    let mut repaired = bookinfo_update();
    let mut ratings = service_config("ratings", 3);
    ratings.ports.get_mut(&9080).unwrap().name = None;
    Arc::make_mut(&mut repaired.snapshot)
        .services
        .insert(service_name("ratings"), Arc::new(ratings));
    publisher.set_update(repaired.clone());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&repaired), "both resources were sent");
}

#[test]
fn a_rejection_without_a_sent_resource_withholds_the_delta_until_the_next_update() {
    let (mut publisher, mut subscriber) = publisher_and_subscriber(update_with(1, []));
    publisher.set_update(update_with(2, [service_config("a", 1)]));
    let delta = publisher.next_delta().unwrap();
    let unrelated = ResourceRejection::new(ResourceKey::Workload, "the address is in use");
    assert_eq!(publisher.reject_delta(delta.nonce, &[unrelated]), Some(ChangeId(2)));
    assert_eq!(publisher.next_delta(), None);
    assert!(
        publisher
            .rejected_resources()
            .all(|rejection| rejection.reason == "plan: the address is in use")
    );
    let next_update = update_with(3, [service_config("a", 1)]);
    publisher.set_update(next_update.clone());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&next_update));
}

#[test]
fn an_oversized_resource_is_reported_and_the_others_are_sent() {
    let mut large = service_config("large", 1);
    add_route(&mut large, &vec!["large"; 200_000]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.set_update(update_with(1, [large, service_config("small", 1)]));
    publish_all(&mut publisher, &mut subscriber, accept_all);
    let oversized = publisher.take_oversized();
    assert_eq!(oversized.len(), 1);
    assert_eq!(oversized[0].key, ResourceKey::Service(service_name("large")));
    assert!(oversized[0].reason.contains("split it"), "{}", oversized[0]);
    let services = &subscriber.current_update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&service_name("small")]);
}

#[test]
fn a_service_with_ten_thousand_rules_is_sent() {
    let mut checkout = service_config("checkout", 3);
    add_route(&mut checkout, &["checkout-stable", "checkout-canary"]);
    let rules = &mut checkout.ports.get_mut(&9080).unwrap().rules;
    let template = rules.pop().unwrap();
    // The maximum of the Gateway API for a route.
    for number in 0..10_000 {
        let mut rule = template.clone();
        rule.route = format!("bookinfo/checkout-of-the-tenants-{}", number / 16).parse().unwrap();
        rule.matches[0].headers[0].value = ValueMatch::Exact(format!("tenant-{number}"));
        rules.push(rule);
    }
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    let backends = ["checkout-stable", "checkout-canary"].map(|name| service_config(name, 1));
    let update = update_with(1, [checkout].into_iter().chain(backends));
    publisher.set_update(update.clone());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(publisher.take_oversized(), []);
    assert!(subscriber.current_update() == Some(&update));
}

#[test]
fn a_configuration_larger_than_a_message_is_sent_in_parts() {
    let large = update_with(1, [service_config("a", 30_000), service_config("b", 30_000)]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    publisher.set_update(large.clone());
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() > 1);
    for (index, delta) in deltas.iter().enumerate() {
        let wire = crate::envelope::delta_to_wire(delta.clone());
        assert!(prost::Message::encoded_len(&wire) <= crate::frame::MAX_MESSAGE_BYTES);
        assert_eq!(delta.whole, index + 1 == deltas.len());
    }
    assert!(subscriber.current_update() == Some(&large));

    publisher.set_update(update_with(2, []));
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.held_versions().len(), 1, "services take their endpoints with them");
}

/// Returns the configuration without some endpoints of a service, and the IDs of these unknown endpoints.
fn without_endpoints(
    mut update: ConfigUpdate,
    name: &str,
    indexes: &[u16],
) -> (ConfigUpdate, Vec<EndpointId>) {
    let service = service_name(name);
    let ids: Vec<EndpointId> =
        indexes.iter().map(|index| service_endpoint(&service, *index).id).collect();
    let services = &mut Arc::make_mut(&mut update.snapshot).services;
    let changed_service = Arc::make_mut(services.get_mut(&service).unwrap());
    changed_service.ports.get_mut(&9080).unwrap().endpoints.retain(|held| !ids.contains(&held.id));
    (update, ids)
}

fn endpoint_count(subscriber: &Subscriber, name: &str) -> usize {
    let services = &subscriber.current_update().unwrap().snapshot.services;
    services[&service_name(name)].ports[&9080].endpoints.len()
}

#[test]
fn unknown_endpoints_are_retained_and_other_changes_are_sent() {
    let (_, mut subscriber) = publisher_and_subscriber(bookinfo_update());
    let mut publisher = Publisher::new(subscriber.held_versions());
    let (mut partial_update, unknown_ids) =
        without_endpoints(bookinfo_update(), "ratings", &[0, 2]);
    partial_update.change = ChangeId(2);
    Arc::make_mut(&mut Arc::make_mut(&mut partial_update.snapshot).config)
        .outbound_listeners
        .clear();
    let services = &mut Arc::make_mut(&mut partial_update.snapshot).services;
    services.insert(service_name("details"), Arc::new(service_config("details", 1)));
    publisher.set_partial_update(partial_update.clone(), unknown_ids.into_iter().collect());
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    assert!(deltas.len() == 1 && deltas[0].removed.is_empty(), "{deltas:?}");
    assert_eq!(publisher.applied_change(), Some(ChangeId(2)), "all known changes were sent");
    let held = &subscriber.current_update().unwrap().snapshot;
    assert_eq!(held.config, partial_update.snapshot.config);
    assert_eq!(
        (endpoint_count(&subscriber, "details"), endpoint_count(&subscriber, "ratings")),
        (1, 3)
    );

    // One of the two comes back at another address, the other one does not.
    let (mut complete_update, _) = without_endpoints(partial_update.clone(), "ratings", &[]);
    let mut moved = service_endpoint(&service_name("ratings"), 2);
    moved.address.set_port(9);
    let services = &mut Arc::make_mut(&mut complete_update.snapshot).services;
    let ratings = Arc::make_mut(services.get_mut(&service_name("ratings")).unwrap());
    ratings.ports.get_mut(&9080).unwrap().endpoints.push(Arc::new(moved));
    complete_update.change = ChangeId(3);
    publisher.set_update(complete_update.clone());
    let deltas = publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(
        deltas[0].removed,
        [ResourceKey::Endpoint(service_endpoint(&service_name("ratings"), 0).id)]
    );
    assert_eq!(subscriber.current_update(), Some(&complete_update));
}

#[test]
fn a_new_service_without_known_endpoints_is_withheld_with_the_services_that_route_to_it() {
    let mut reviews = service_config("reviews", 0);
    add_route(&mut reviews, &["ratings"]);
    let full_update =
        update_with(1, [reviews, service_config("ratings", 2), service_config("details", 1)]);
    let mut publisher = Publisher::new(Vec::new());
    let mut subscriber = Subscriber::new();
    let (without_any, unknown_ids) = without_endpoints(full_update.clone(), "ratings", &[0, 1]);
    publisher.set_partial_update(without_any, unknown_ids.into_iter().collect());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    let services = &subscriber.current_update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&service_name("details")]);

    let (with_one, unknown_ids) = without_endpoints(full_update.clone(), "ratings", &[1]);
    publisher.set_partial_update(with_one.clone(), unknown_ids.into_iter().collect());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&with_one), "one endpoint is known");
}

#[test]
fn the_backends_of_a_held_service_are_sent_even_without_endpoints() {
    let full_update = |routed: bool| {
        let mut reviews = service_config("reviews", 1);
        if routed {
            add_route(&mut reviews, &["ratings"]);
        }
        let mut details = service_config("details", 1);
        add_route(&mut details, &["ratings"]);
        let ratings = routed.then(|| [details, service_config("ratings", 1)]);
        update_with(1, [reviews].into_iter().chain(ratings.into_iter().flatten()))
    };
    let (mut publisher, mut subscriber) = publisher_and_subscriber(full_update(false));
    let (partial, unknown_ids) = without_endpoints(full_update(true), "ratings", &[0]);
    publisher.set_partial_update(partial, unknown_ids.into_iter().collect());
    publish_all(&mut publisher, &mut subscriber, accept_all);
    let services = &subscriber.current_update().unwrap().snapshot.services;
    let names: Vec<_> = services.keys().collect();
    assert_eq!(
        names,
        [&service_name("ratings"), &service_name("reviews")],
        "details is new and can wait"
    );
    assert_eq!(endpoint_count(&subscriber, "ratings"), 0);
    publisher.set_update(full_update(true));
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&full_update(true)));
}

#[test]
fn absent_services_that_were_not_accepted_are_sent_again() {
    let reject_missing = |upsert: &Upsert| {
        let is_missing = upsert.key == ResourceKey::Service(service_name("missing"));
        is_missing.then(|| ResourceRejection::new(upsert.key.clone(), "no"))
    };
    let (mut publisher, mut subscriber) = publisher_and_subscriber(bookinfo_update());
    let full_update = |change: u64, endpoints: u16| {
        let mut full_update = bookinfo_update();
        let services = &mut Arc::make_mut(&mut full_update.snapshot).services;
        for name in ["missing", "details"] {
            services.insert(service_name(name), Arc::new(service_config(name, endpoints)));
        }
        let missing = Arc::make_mut(services.get_mut(&service_name("missing")).unwrap());
        missing.ports.get_mut(&9080).unwrap().name = (endpoints == 1).then(|| "a".parse().unwrap());
        ConfigUpdate { absent: BTreeSet::new(), change: ChangeId(change), ..full_update }
    };
    publisher.set_update(full_update(2, 1));
    publish_all(&mut publisher, &mut subscriber, reject_missing);
    let held = subscriber.current_update().unwrap();
    assert_eq!(held.absent, BTreeSet::from([service_name("missing")]), "reviews routes to it");
    assert!(
        held.snapshot.services.contains_key(&service_name("details")),
        "the other service was sent"
    );
    publisher.set_update(full_update(3, 2));
    publish_all(&mut publisher, &mut subscriber, accept_all);
    assert_eq!(subscriber.current_update(), Some(&full_update(3, 2)));
}
