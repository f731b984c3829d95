//! Tests of `TrafficSplit`: accepted documents, rejections and warnings.

use expect_test::expect;
use leno_model::{Object, TrafficSplit};
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

const SPLIT: &str = r#"
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: canary, namespace: shop}
spec:
  service: stock.shop.svc.cluster.local
  matches:
  - {kind: HTTPRouteGroup, name: gold}
  - {apiGroup: specs.smi-spec.io, kind: HTTPRouteGroup, name: beta}
  backends:
  - {service: stock-v1, weight: 90}
  - {service: other/stock-v2, weight: 0}
"#;

fn read_split(text: &str) -> TrafficSplit {
    match &read_str("f.yaml", text) {
        (objects, rejected) if rejected.is_empty() => match objects.as_slice() {
            [(Object::TrafficSplit(split), _)] => split.clone(),
            other => panic!("{other:?}"),
        },
        (_, rejected) => panic!("{rejected:?}"),
    }
}

#[test]
fn a_traffic_split_is_read_with_all_fields() {
    let split = read_split(SPLIT);
    assert_eq!(split.name.to_string(), "shop/canary");
    assert_eq!((split.root.service.to_string(), split.root.port), ("shop/stock".to_owned(), None));
    let groups: Vec<String> = split.groups.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(groups, ["shop/gold", "shop/beta"]);
    let backends: Vec<_> = split
        .backends
        .iter()
        .map(|backend| (backend.service.to_string(), backend.weight))
        .collect();
    assert_eq!(backends, [("shop/stock-v1".to_owned(), 90), ("other/stock-v2".to_owned(), 0)]);
}

#[test]
fn the_older_version_is_read() {
    let split = read_split(
        "{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {name: s}, \
         spec: {service: a, backends: [{service: b, weight: 1}]}}",
    );
    assert_eq!(split.root.service.to_string(), "default/a");
    assert_eq!(split.groups, None);
}

#[test]
fn unsupported_traffic_splits_are_rejected() {
    let backends = "backends: [{service: b, weight: 1}]";
    let specs = [
        format!("{{{backends}}}"),
        format!("{{service: a.b.c, {backends}}}"),
        format!("{{service: a.other, {backends}}}"),
        "{service: a}".to_owned(),
        "{service: a, backends: []}".to_owned(),
        "{service: a, backends: [{service: b, weight: 0}, {service: c, weight: 0}]}".to_owned(),
        "{service: a, backends: [{service: b}, {weight: 1}]}".to_owned(),
        "{service: a, backends: [{service: b, weight: 0.5}, {service: c, weight: -1}]}".to_owned(),
        "{service: a, backends: [{service: b, weight: 1}, {service: b.default, weight: 1}]}"
            .to_owned(),
        "{service: a, backends: [{service: b, port: 80, weight: 1}]}".to_owned(),
        format!("{{service: a, {backends}, matches: []}}"),
        format!("{{service: a, {backends}, matches: [{{kind: TCPRoute, name: x}}]}}"),
        format!("{{service: a, {backends}, matches: [{{kind: HTTPRouteGroup}}]}}"),
        format!(
            "{{service: a, {backends}, matches: [{{kind: HTTPRouteGroup, name: x}}, \
             {{kind: HTTPRouteGroup, name: x}}]}}"
        ),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let metadata =
        "apiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: x}";
    check_specs(
        metadata,
        &specs,
        &expect![[r#"
        spec.service: is missing; add `service`
        spec.service: "a.b.c" is not the name of a service; use one such as reviews, reviews.shop.svc.cluster.local or shop/reviews
        spec.service: "a.other" is not in the split's namespace, default; put the TrafficSplit into the namespace of its root
        spec.backends: is missing; add `backends`
        spec.backends: is empty; list the services that take a share
        spec.backends: has no weight above 0; give at least one backend a weight above 0
        spec.backends[0].weight: is missing; add `weight`
        spec.backends[1].service: is missing; add `service`
        spec.backends[0].weight: 0.5 is not a whole number; use a number from 0 to 1000000
        spec.backends[1].weight: -1 is out of range; use a number from 0 to 1000000
        spec.backends[1]: is listed twice; remove one of the two, and add up their weights
        spec.backends[0].port: is an unknown field; remove it, or use `service` or `weight`
        spec.matches: is empty, which is ambiguous; list the HTTPRouteGroups whose requests are split, or leave `matches` out
        spec.matches[0].kind: "TCPRoute" is not a supported value; use `HTTPRouteGroup`
        spec.matches[0].name: is missing; add `name`
        spec.matches[1]: is listed twice; remove one of the two
    "#]],
    );
    let specs = format!("{{service: a, {backends}, matches: [{{kind: HTTPRouteGroup, name: x}}]}}");
    check_specs(
        &metadata.replace("v1alpha4", "v1alpha2"),
        &[&specs],
        &expect![[r#"
        spec.matches: is not a field of v1alpha2; use `apiVersion: split.smi-spec.io/v1alpha4`, or remove it
    "#]],
    );
}

#[test]
fn missing_references_and_preceding_objects_cause_warnings() {
    let manifests = r#"
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{port: 80}, {port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock-v1, namespace: shop}
spec: {selector: {app: stock}, ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock, namespace: shop, labels: {app: stock}}
spec: {ports: [{port: 80}, {port: 5432}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: golden, namespace: shop}
spec: {matches: [{name: all}]}
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: a, namespace: shop}
spec: {service: stock, backends: [{service: stock-v1, weight: 1}]}
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: b, namespace: shop}
spec: {service: stock, backends: [{service: stock, weight: 1}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: stock, port: 80}]
  rules: [{backendRefs: [{name: stock, port: 80}]}]
"#;
    let (objects, rejected) = read_str("f.yaml", &[SPLIT, manifests].concat());
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        TrafficSplit shop/canary: spec.backends[0].service: the Service shop/stock-v1 has no port 5432, so its share of requests gets the status 500; give it the ports of the root: `80` or `5432`
        TrafficSplit shop/canary: spec.backends[1].service: there is no Service other/stock-v2; add the Service
        TrafficSplit shop/canary: spec.backends[1].service: no ReferenceGrant in other permits it, so its share of requests gets the status 500; add one there, from TrafficSplits in shop to the Service
        TrafficSplit shop/canary: spec.matches[0].name: there is no HTTPRouteGroup shop/gold, so it splits no request; did you mean `golden`?
        TrafficSplit shop/canary: spec.matches[1].name: there is no HTTPRouteGroup shop/beta, so it splits no request; add the HTTPRouteGroup
        TrafficSplit shop/canary: spec.service: the HTTPRoute shop/web is attached to port 80 of it and takes precedence there; use only one of the two per port
        TrafficSplit shop/a: spec.backends[0].service: the Service shop/stock-v1 has no port 5432, so its share of requests gets the status 500; give it the ports of the root: `80` or `5432`
        TrafficSplit shop/a: spec.service: the HTTPRoute shop/web is attached to port 80 of it and takes precedence there; use only one of the two per port
        TrafficSplit shop/b: spec.service: the HTTPRoute shop/web is attached to port 80 of it and takes precedence there; use only one of the two per port
        TrafficSplit shop/b: spec.service: the TrafficSplit shop/a is for the same service and is first in alphabetical order, so this one has no effect; remove one of the two, or restrict this one with `matches`
    "#]].assert_eq(&lines.concat());
}
