//! Tag rules and lanes in compiled configurations, and the proxies that a change of them affects.

use std::collections::BTreeMap;

use leno_model::{CallerAttributes, Object};

use super::*;
use crate::fixture::parse_objects;

const RULES: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  service: reviews
  fallbackPolicy: any
  rules:
  - {from: {service: productpage}, split: [{tags: {version: v2}}]}
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: reviews, namespace: bookinfo}
spec: {service: reviews, rules: [{marks: [{headers: {x-lane: gray}}]}]}
"#;

fn compile_snapshot(yaml: &str, client: &str) -> Arc<Snapshot> {
    let mesh = mesh_with_sidecars(yaml);
    let client = mesh.workload(&workload_name(client)).unwrap();
    let services = [service_name("reviews"), service_name("details")].into_iter().collect();
    compile_config(
        &mesh,
        client,
        &used_services(client, &services),
        &mut ServiceConfigCache::default(),
    )
    .snapshot
}

#[test]
fn endpoints_carry_the_labels_that_rules_of_their_service_name() {
    let snapshot = compile_snapshot(&format!("{BOOKINFO}{RULES}"), "productpage-1");
    let tags = |name: &str| -> Vec<BTreeMap<String, String>> {
        let port = &snapshot.services[&service_name(name)].ports[&9080];
        port.endpoints.iter().map(|endpoint| endpoint.tags.clone()).collect()
    };
    let version = |version: &str| BTreeMap::from([("version".to_owned(), version.to_owned())]);
    assert_eq!(tags("reviews"), [version("v1"), version("v2")]);
    assert_eq!(tags("details"), [BTreeMap::new()]);
    let caller = &snapshot.config.caller;
    assert_eq!(caller.services, [service_name("productpage")].into());
    assert_eq!((caller.tags.len(), caller.has_parameters), (0, true));
    assert!(snapshot.config.lanes.is_empty());
}

#[test]
fn lane_rules_apply_at_the_target_ports_of_their_service() {
    let snapshot = compile_snapshot(&format!("{BOOKINFO}{RULES}"), "reviews-v2-1");
    let lanes: Vec<(u16, usize)> =
        snapshot.config.lanes.iter().map(|(port, rules)| (*port, rules.len())).collect();
    assert_eq!(lanes, [(9083, 1)]);
}

#[test]
fn configurations_have_no_tags_without_rules() {
    let snapshot = compile_snapshot(BOOKINFO, "reviews-v2-1");
    assert_eq!(snapshot.config.caller, CallerAttributes::default());
    assert!(snapshot.config.lanes.is_empty());
    for port in snapshot.services.values().flat_map(|service_config| service_config.ports.values())
    {
        assert!(port.tags.is_none());
        assert!(port.endpoints.iter().all(|endpoint| endpoint.tags.is_empty()));
    }
}

#[test]
fn a_change_of_tag_rules_affects_clients_and_workloads() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut affected_sets =
        parse_objects(RULES.trim_start_matches("\n---")).into_iter().map(|object| {
            assert!(matches!(object, Object::TagRoute(_) | Object::Lane(_)));
            (
                mesh.apply(leno_model::Change::Upsert(object.clone())),
                mesh.apply(leno_model::Change::Upsert(object)),
            )
        });
    let (route, repeated_set) = affected_sets.next().unwrap();
    assert!(route.all_proxies, "the first rule requires the attributes of all callers");
    assert_eq!(route.services, [service_name("reviews")].into());
    assert!(repeated_set.is_empty());
    let (lane, repeated_set) = affected_sets.next().unwrap();
    assert_eq!(
        lane.workloads,
        [workload_name("reviews-v1-1"), workload_name("reviews-v2-1")].into()
    );
    assert!(!lane.all_proxies && lane.services.is_empty() && repeated_set.is_empty());
}
