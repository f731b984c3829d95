//! Tests of the subscriber: a delta is applied or rejected as a whole, and unaffected resources stay the same.

use super::*;
use crate::fixture::{endpoint, named, route, service, update, world};
use crate::key::ChangeId;
use crate::message::Upsert;
use crate::publisher::Publisher;
use crate::resource::{encode_endpoint, encode_service};

fn holding(update: Update) -> Subscriber {
    Subscriber::from_bytes(&update.to_bytes()).unwrap()
}

fn delta(upserts: Vec<Upsert>, removed: Vec<ResourceKey>) -> Delta {
    Delta { nonce: 1, change: ChangeId(2), whole: true, upserts, removed, absent: None }
}

/// The delta that the control plane would send to a subscriber for this update.
fn towards(subscriber: &Subscriber, update: Update) -> Delta {
    let mut publisher = Publisher::new(subscriber.held());
    publisher.offer(update);
    publisher.next_delta().unwrap()
}

#[test]
fn untouched_services_and_endpoints_are_the_same_allocation() {
    let mut subscriber = holding(world());
    let before = subscriber.update().unwrap().snapshot.clone();
    let mut next = world();
    let ratings = Arc::new(service("ratings", 4));
    Arc::make_mut(&mut next.snapshot).services.insert(named("ratings"), ratings);
    let staged = subscriber.stage(towards(&subscriber, next)).unwrap();
    let after = subscriber.commit(staged).snapshot.clone();
    let (reviews, ratings) = (named("reviews"), named("ratings"));
    assert!(Arc::ptr_eq(&before.plan, &after.plan));
    assert!(Arc::ptr_eq(&before.services[&reviews], &after.services[&reviews]));
    assert!(!Arc::ptr_eq(&before.services[&ratings], &after.services[&ratings]));
    let endpoints =
        |snapshot: &Snapshot| snapshot.services[&ratings].ports[&9080].endpoints.clone();
    for (old, new) in endpoints(&before).iter().zip(endpoints(&after)) {
        assert!(Arc::ptr_eq(old, &new), "{:?}", old.id);
    }
    assert_eq!(endpoints(&after).len(), 4);
}

#[test]
fn a_delta_without_differences_keeps_the_snapshot() {
    let mut subscriber = holding(world());
    let before = subscriber.update().unwrap().snapshot.clone();
    let staged = subscriber.stage(delta(Vec::new(), Vec::new())).unwrap();
    let after = subscriber.commit(staged);
    assert!(Arc::ptr_eq(&before, &after.snapshot));
    assert_eq!(after.change, ChangeId(2));
}

#[test]
fn wrong_resources_are_refused_by_name_and_nothing_changes() {
    let subscriber = holding(world());
    let (held, before) = (subscriber.held(), subscriber.update().cloned());
    let mut dangling = service("ratings", 0);
    route(&mut dangling, &["nowhere"]);
    let stray = endpoint(&named("unknown"), 1);
    let mut other_port = endpoint(&named("ratings"), 1);
    other_port.id.port = 81;
    let content = encode_endpoint(&stray);
    let upsert = |key, content| Upsert { key, content };
    let service_key = |name| ResourceKey::Service(named(name));
    let cases = [
        (
            delta(vec![upsert(service_key("ratings"), encode_service(&dangling))], vec![]),
            "service bookinfo/ratings: HTTPRoute bookinfo/split refers to service \
             bookinfo/nowhere, which is neither present nor marked as absent",
        ),
        (
            delta(vec![], vec![service_key("ratings")]),
            "service bookinfo/ratings: cannot be removed: HTTPRoute bookinfo/split of bookinfo/reviews \
             refers to it",
        ),
        (
            delta(vec![upsert(ResourceKey::Endpoint(stray.id), content.clone())], vec![]),
            "endpoint bookinfo/unknown:9080 at bookinfo/unknown-00001: its service is unknown",
        ),
        (
            delta(vec![upsert(ResourceKey::Endpoint(other_port.id), content)], vec![]),
            "endpoint bookinfo/ratings:81 at bookinfo/ratings-00001: its service has no such port",
        ),
        (delta(vec![], vec![ResourceKey::Plan]), "plan: a plan can be replaced, not removed"),
        (
            delta(vec![upsert(ResourceKey::Plan, Default::default())], vec![]),
            "plan: workload: `` is not a valid name: use 1 to 253 lower-case letters, digits, `-` \
             or `.`, starting and ending with a letter or digit",
        ),
    ];
    for (delta, expected) in cases {
        let refusals = subscriber.stage(delta).map(|_| ()).expect_err(expected);
        assert_eq!(refusals[0].to_string(), expected);
    }
    assert_eq!((subscriber.held(), subscriber.update().cloned()), (held, before));
}

#[test]
fn a_service_that_is_said_to_be_absent_may_be_referred_to() {
    let mut subscriber = holding(world());
    let mut removal = delta(vec![], vec![ResourceKey::Service(named("ratings"))]);
    removal.absent = Some([named("missing"), named("ratings")].into());
    let staged = subscriber.stage(removal).unwrap();
    let update = subscriber.commit(staged);
    assert!(!update.snapshot.services.contains_key(&named("ratings")));
    let keys = subscriber.held();
    assert!(keys.iter().all(|(key, _)| key.service() != Some(&named("ratings"))), "{keys:?}");
}

#[test]
fn nothing_is_applied_before_a_plan_came() {
    let view = service("a", 0);
    let key = ResourceKey::Service(view.name.clone());
    let upsert = Upsert { key, content: encode_service(&view) };
    let refusals = Subscriber::new().stage(delta(vec![upsert], vec![])).map(|_| ()).unwrap_err();
    assert_eq!(refusals[0].key, ResourceKey::Plan);
}

#[test]
fn held_versions_are_those_of_a_world_read_from_disk() {
    let mut subscriber = Subscriber::new();
    let staged = subscriber.stage(towards(&subscriber, update(1, [service("a", 3)]))).unwrap();
    subscriber.commit(staged);
    let restored = Subscriber::from_bytes(&subscriber.to_bytes()).unwrap();
    assert_eq!(restored.held(), subscriber.held());
}
