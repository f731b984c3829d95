//! Tests of the subscriber: a delta is applied or rejected as a whole, and unaffected resources stay the same.

use super::*;
use crate::fixture::{
    add_route, bookinfo_update, service_config, service_endpoint, service_name, update_with,
};
use crate::key::ChangeId;
use crate::message::Upsert;
use crate::publisher::Publisher;
use crate::resource::{encode_endpoint, encode_service};

fn subscriber_with(update: ConfigUpdate) -> Subscriber {
    Subscriber::from_bytes(&update.to_bytes()).unwrap()
}

fn build_delta(upserts: Vec<Upsert>, removed: Vec<ResourceKey>) -> Delta {
    Delta { nonce: 1, change: ChangeId(2), whole: true, upserts, removed, absent: None }
}

/// Returns the delta that the control plane would send to a subscriber for this update.
fn next_delta_for(subscriber: &Subscriber, update: ConfigUpdate) -> Delta {
    let mut publisher = Publisher::new(subscriber.held_versions());
    publisher.set_update(update);
    publisher.next_delta().unwrap()
}

#[test]
fn unchanged_services_and_endpoints_keep_their_allocation() {
    let mut subscriber = subscriber_with(bookinfo_update());
    let old_snapshot = subscriber.current_update().unwrap().snapshot.clone();
    let mut next_update = bookinfo_update();
    let ratings = Arc::new(service_config("ratings", 4));
    Arc::make_mut(&mut next_update.snapshot).services.insert(service_name("ratings"), ratings);
    let staged_delta = subscriber.stage(next_delta_for(&subscriber, next_update)).unwrap();
    let new_snapshot = subscriber.commit(staged_delta).snapshot.clone();
    let (reviews, ratings) = (service_name("reviews"), service_name("ratings"));
    assert!(Arc::ptr_eq(&old_snapshot.config, &new_snapshot.config));
    assert!(Arc::ptr_eq(&old_snapshot.services[&reviews], &new_snapshot.services[&reviews]));
    assert!(!Arc::ptr_eq(&old_snapshot.services[&ratings], &new_snapshot.services[&ratings]));
    let endpoints =
        |snapshot: &Snapshot| snapshot.services[&ratings].ports[&9080].endpoints.clone();
    for (old, new) in endpoints(&old_snapshot).iter().zip(endpoints(&new_snapshot)) {
        assert!(Arc::ptr_eq(old, &new), "{:?}", old.id);
    }
    assert_eq!(endpoints(&new_snapshot).len(), 4);
}

#[test]
fn a_delta_without_differences_keeps_the_snapshot() {
    let mut subscriber = subscriber_with(bookinfo_update());
    let old_snapshot = subscriber.current_update().unwrap().snapshot.clone();
    let staged_delta = subscriber.stage(build_delta(Vec::new(), Vec::new())).unwrap();
    let new_update = subscriber.commit(staged_delta);
    assert!(Arc::ptr_eq(&old_snapshot, &new_update.snapshot));
    assert_eq!(new_update.change, ChangeId(2));
}

#[test]
fn an_invalid_resource_is_rejected_by_name_and_the_configuration_is_unchanged() {
    let subscriber = subscriber_with(bookinfo_update());
    let (old_versions, old_update) =
        (subscriber.held_versions(), subscriber.current_update().cloned());
    let mut dangling = service_config("ratings", 0);
    add_route(&mut dangling, &["nowhere"]);
    let misplaced = service_endpoint(&service_name("unknown"), 1);
    let mut other_port = service_endpoint(&service_name("ratings"), 1);
    other_port.id.port = 81;
    let content = encode_endpoint(&misplaced);
    let upsert = |key, content| Upsert { key, content };
    let service_key = |name| ResourceKey::Service(service_name(name));
    let cases = [
        (
            build_delta(vec![upsert(service_key("ratings"), encode_service(&dangling))], vec![]),
            "service bookinfo/ratings: HTTPRoute bookinfo/split refers to service \
             bookinfo/nowhere, which is neither present nor marked as absent",
        ),
        (
            build_delta(vec![], vec![service_key("ratings")]),
            "service bookinfo/ratings: cannot be removed: HTTPRoute bookinfo/split of bookinfo/reviews \
             refers to it",
        ),
        (
            build_delta(vec![upsert(ResourceKey::Endpoint(misplaced.id), content.clone())], vec![]),
            "endpoint bookinfo/unknown:9080 at bookinfo/unknown-00001: its service is unknown",
        ),
        (
            build_delta(vec![upsert(ResourceKey::Endpoint(other_port.id), content)], vec![]),
            "endpoint bookinfo/ratings:81 at bookinfo/ratings-00001: its service has no such port",
        ),
        (
            build_delta(vec![], vec![ResourceKey::Workload]),
            "plan: the workload configuration can be replaced, not removed",
        ),
        (
            build_delta(vec![upsert(ResourceKey::Workload, Default::default())], vec![]),
            "plan: workload: `` is not a valid name: use 1 to 253 lower-case letters, digits, `-` \
             or `.`, starting and ending with a letter or digit",
        ),
    ];
    for (delta, expected) in cases {
        let rejections = subscriber.stage(delta).map(|_| ()).expect_err(expected);
        assert_eq!(rejections[0].to_string(), expected);
    }
    assert_eq!(
        (subscriber.held_versions(), subscriber.current_update().cloned()),
        (old_versions, old_update)
    );
}

#[test]
fn a_route_may_refer_to_an_absent_service() {
    let mut subscriber = subscriber_with(bookinfo_update());
    let mut removal = build_delta(vec![], vec![ResourceKey::Service(service_name("ratings"))]);
    removal.absent = Some([service_name("missing"), service_name("ratings")].into());
    let staged_delta = subscriber.stage(removal).unwrap();
    let update = subscriber.commit(staged_delta);
    assert!(!update.snapshot.services.contains_key(&service_name("ratings")));
    let keys = subscriber.held_versions();
    assert!(
        keys.iter().all(|(key, _)| key.service() != Some(&service_name("ratings"))),
        "{keys:?}"
    );
}

#[test]
fn the_first_delta_must_contain_a_workload_configuration() {
    let service = service_config("a", 0);
    let key = ResourceKey::Service(service.name.clone());
    let upsert = Upsert { key, content: encode_service(&service) };
    let rejections =
        Subscriber::new().stage(build_delta(vec![upsert], vec![])).map(|_| ()).unwrap_err();
    assert_eq!(rejections[0].key, ResourceKey::Workload);
}

#[test]
fn a_stored_configuration_restores_the_held_versions() {
    let mut subscriber = Subscriber::new();
    let staged_delta = subscriber
        .stage(next_delta_for(&subscriber, update_with(1, [service_config("a", 3)])))
        .unwrap();
    subscriber.commit(staged_delta);
    let restored = Subscriber::from_bytes(&subscriber.to_bytes()).unwrap();
    assert_eq!(restored.held_versions(), subscriber.held_versions());
}
