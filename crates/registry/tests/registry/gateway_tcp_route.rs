//! Tests of Gateway API `TCPRoute`: accepted documents, rejections and warnings.

use expect_test::expect;
use leno_model::{GatewayTcpRoute, Object, RouteKind};
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

const TCP_ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {name: db, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: db, port: 5432}]
  rules:
  - name: all
    backendRefs: [{name: old, port: 5432, weight: 9}, {name: new, namespace: other, port: 5433}]
"#;

fn read_objects(text: &str) -> Vec<Object> {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    objects.into_iter().map(|(object, _)| object).collect()
}

#[test]
fn tcp_routes_of_both_api_groups_are_read() {
    let smi = "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\n\
               metadata: {name: db, namespace: shop}\nspec: {matches: {ports: [1]}}\n";
    let objects = read_objects(&[TCP_ROUTE, smi].concat());
    let [Object::GatewayTcpRoute(GatewayTcpRoute { parents, rule, .. }), Object::TcpRoute(_)] =
        objects.as_slice()
    else {
        panic!("{objects:?}");
    };
    let parents: Vec<_> =
        parents.iter().map(|parent| (parent.service.to_string(), parent.port)).collect();
    assert_eq!(parents, [("shop/db".to_owned(), Some(5432))]);
    assert_eq!((rule.route.to_string(), rule.kind), ("shop/db".to_owned(), RouteKind::Tcp));
    let backends: Vec<_> = rule
        .backends
        .iter()
        .map(|backend| (backend.service.to_string(), backend.port, backend.weight))
        .collect();
    let expected = [("shop/old".to_owned(), 5432, 9), ("other/new".to_owned(), 5433, 1)];
    assert_eq!(backends, expected);
}

#[test]
fn unsupported_tcp_routes_are_rejected() {
    let parents = "parentRefs: [{group: \"\", kind: Service, name: a}]";
    let specs = [
        "{rules: [{backendRefs: [{name: a, port: 1}]}]}".to_owned(),
        format!("{{{parents}}}"),
        format!("{{{parents}, rules: []}}"),
        format!("{{{parents}, rules: [{{}}]}}"),
        format!("{{{parents}, rules: [{{backendRefs: [{{name: a}}]}}]}}"),
        format!("{{{parents}, rules: [{{backendRefs: []}}, {{backendRefs: []}}]}}"),
        format!("{{{parents}, hostnames: [a.com], rules: [{{backendRefs: []}}]}}"),
        format!("{{{parents}, rules: [{{filters: [], backendRefs: []}}]}}"),
        "{matches: {ports: [1]}}".to_owned(),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let metadata =
        "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {name: x}";
    check_specs(
        metadata,
        &specs,
        &expect![[r#"
        spec.parentRefs: is missing; add `parentRefs`
        spec.rules: is missing; add `rules`
        spec.rules: is empty; add a rule with `backendRefs`
        spec.rules[0].backendRefs: is missing; add `backendRefs`
        spec.rules[0].backendRefs[0].port: is missing; add `port`
        spec.rules: has 2 elements; use at most 1
        spec.hostnames: is an unknown field; remove it, or use `parentRefs` or `rules`
        spec.rules[0].filters: is an unknown field; remove it, or use `name` or `backendRefs`
        spec.matches: is an unknown field; remove it, or use `parentRefs` or `rules`
        spec.parentRefs: is missing; add `parentRefs`
        spec.rules: is missing; add `rules`
    "#]],
    );
    check_specs(
        &metadata.replace("v1alpha2", "v2"),
        &["{}"],
        &expect![[r#"
            apiVersion: "gateway.networking.k8s.io/v2" is not a supported version of TCPRoute; use `specs.smi-spec.io/v1alpha4`, `gateway.networking.k8s.io/v1` or `gateway.networking.k8s.io/v1alpha2`
        "#]],
    );
}

#[test]
fn missing_references_and_preceding_tcp_routes_cause_warnings() {
    let second = TCP_ROUTE.replace("name: db, namespace", "name: second, namespace");
    let objects = read_objects(&[TCP_ROUTE, "---", &second].concat());
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        TCPRoute shop/db: spec.parentRefs[0].name: there is no Service shop/db; add the Service
        TCPRoute shop/db: spec.rules[0].backendRefs[0].name: there is no Service shop/old; add the Service
        TCPRoute shop/db: spec.rules[0].backendRefs[1].name: there is no Service other/new; add the Service
        TCPRoute shop/db: spec.rules[0].backendRefs[1].namespace: no ReferenceGrant in other permits it, so its share of requests gets the status 500; add one there, from TCPRoutes in shop to the Service
        TCPRoute shop/second: spec.parentRefs[0].name: there is no Service shop/db; add the Service
        TCPRoute shop/second: spec.rules[0].backendRefs[0].name: there is no Service shop/old; add the Service
        TCPRoute shop/second: spec.rules[0].backendRefs[1].name: there is no Service other/new; add the Service
        TCPRoute shop/second: spec.rules[0].backendRefs[1].namespace: no ReferenceGrant in other permits it, so its share of requests gets the status 500; add one there, from TCPRoutes in shop to the Service
        TCPRoute shop/second: spec.parentRefs[0]: the TCPRoute shop/db is attached to the same port and takes precedence; remove one of the two, or name another port
    "#]].assert_eq(&lines.concat());
}
