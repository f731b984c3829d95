//! Tests of `TLSRoute`: accepted documents and rejections.

use expect_test::expect;
use leno_model::{HostPattern, Object, RouteKind, RouteParent, ServiceName, TlsRoute};
use leno_registry::{lint_objects, read_str};

use crate::refusals::check_specs;

const TLS_ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: shops, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: secure, port: 443}]
  hostnames: [one.example.com, "*.two.example.com"]
  rules:
  - name: all
    backendRefs: [{name: one, port: 443, weight: 9}, {name: two, port: 443}]
"#;

fn read(text: &str) -> TlsRoute {
    match &read_str("f.yaml", text) {
        (objects, rejected) if rejected.is_empty() => match objects.as_slice() {
            [(Object::TlsRoute(route), _)] => route.clone(),
            other => panic!("{other:?}"),
        },
        (_, rejected) => panic!("{rejected:?}"),
    }
}

#[test]
fn reads_a_tls_route_with_all_its_parts() {
    let route = read(TLS_ROUTE);
    let service = |name: &str| ServiceName::new("shop", name).unwrap();
    assert_eq!(route.parents, [RouteParent { service: service("secure"), port: Some(443) }]);
    assert_eq!(route.rule.route.to_string(), "shop/shops");
    let hostnames: Vec<String> = route.rule.hostnames.iter().map(HostPattern::to_string).collect();
    assert_eq!(hostnames, ["one.example.com", "*.two.example.com"]);
    let backends = route.rule.backends.iter().map(|b| (b.service.clone(), b.port, b.weight));
    let backends: Vec<_> = backends.collect();
    assert_eq!(backends, [(service("one"), 443, 9), (service("two"), 443, 1)]);
    for version in ["v1alpha2", "v1alpha3"] {
        let older = TLS_ROUTE.replace("k8s.io/v1\n", &format!("k8s.io/{version}\n"));
        assert_eq!(read(&older), route, "{version}");
    }
}

#[test]
fn refuses_tls_routes_that_cannot_be_honoured() {
    let parents = "parentRefs: [{group: \"\", kind: Service, name: a}]";
    let rules = "rules: [{backendRefs: [{name: a, port: 1}]}]";
    let specs = [
        format!("{{hostnames: [a.com], {rules}}}"),
        format!("{{{parents}, {rules}}}"),
        format!("{{{parents}, hostnames: [], {rules}}}"),
        format!("{{{parents}, hostnames: [A.com], {rules}}}"),
        format!("{{{parents}, hostnames: [\"a.*.com\"], {rules}}}"),
        format!("{{{parents}, hostnames: [192.0.2.1], {rules}}}"),
        format!("{{{parents}, hostnames: [a.com, a.com], {rules}}}"),
        format!("{{{parents}, hostnames: [a.com]}}"),
        format!("{{{parents}, hostnames: [a.com], rules: []}}"),
        format!("{{{parents}, hostnames: [a.com], rules: [{{}}]}}"),
        format!("{{{parents}, hostnames: [a.com], rules: [{{backendRefs: []}}, {{}}]}}"),
        format!("{{{parents}, hostnames: [a.com], rules: [{{matches: [], backendRefs: []}}]}}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.parentRefs: is missing; add `parentRefs`
            spec.hostnames: is missing; add `hostnames`
            spec.hostnames: is empty; list the server names that the route matches
            spec.hostnames[0]: "A.com" is not a host name; use one in lower case such as shop.example.com or *.example.com
            spec.hostnames[0]: "a.*.com" is not a host name; use one in lower case such as shop.example.com or *.example.com
            spec.hostnames[0]: "192.0.2.1" is not a host name; use one in lower case such as shop.example.com or *.example.com
            spec.hostnames[1]: is listed twice; remove one of the two
            spec.rules: is missing; add `rules`
            spec.rules: is empty; add a rule with `backendRefs`
            spec.rules[0].backendRefs: is missing; add `backendRefs`
            spec.rules: has 2 elements; use at most 1
            spec.rules[0].matches: is an unknown field; remove it, or use `name` or `backendRefs`
        "#]],
    );
}

#[test]
fn what_a_tls_route_refers_to_is_looked_for() {
    let (objects, rejected) = read_str("f.yaml", TLS_ROUTE);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> = lint_objects(&objects).iter().map(|w| format!("{w}\n")).collect();
    expect![[r#"
        TLSRoute shop/shops: spec.parentRefs[0].name: there is no Service shop/secure; add the Service
        TLSRoute shop/shops: spec.rules[0].backendRefs[0].name: there is no Service shop/one; add the Service
        TLSRoute shop/shops: spec.rules[0].backendRefs[1].name: there is no Service shop/two; add the Service
    "#]].assert_eq(&lines.concat());
}

#[test]
fn a_backend_may_be_in_another_namespace_and_a_grant_names_the_kind() {
    let away = TLS_ROUTE.replace("name: two,", "name: two, namespace: away,");
    let backends = read(&away).rule.backends;
    assert_eq!(backends[1].service, ServiceName::new("away", "two").unwrap());
    let grant = "{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, \
                 metadata: {name: g, namespace: away}, spec: {to: [{group: \"\", kind: Service}], \
                 from: [{group: gateway.networking.k8s.io, kind: TLSRoute, namespace: shop}, \
                 {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]}}";
    let (objects, rejected) = read_str("f.yaml", grant);
    assert_eq!(rejected, []);
    let [(Object::ReferenceGrant(grant), _)] = &objects[..] else { panic!("{objects:?}") };
    let shop = leno_model::Name::new("shop").unwrap();
    let permits = |kind| grant.permits_route(kind, &shop, &backends[1].service);
    assert!(permits(RouteKind::Tls) && permits(RouteKind::Http) && !permits(RouteKind::Tcp));
}

#[test]
fn host_names_of_a_route_of_a_service_are_a_warning_wherever_it_is_read_from() {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let document = serde_json::json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "a", "namespace": "shop"},
            "spec": {
                "parentRefs": [{"group": "", "kind": "Service", "name": "a"}],
                "hostnames": ["a.example"],
                "rules": [{"backendRefs": [{"name": "a", "port": 1}]}],
            },
        });
        let (_, warnings) = leno_registry::read_json(&document).unwrap();
        let reported: Vec<_> =
            warnings.iter().map(|it| (&it.at.field, it.problem.as_str())).collect();
        let field = Some("spec.hostnames".to_owned());
        let reason = "is ignored: a route of a service applies to all its host names";
        assert_eq!(reported, [(&field, reason)], "{kind}");
        let (objects, rejected) = read_str("f.yaml", &document.to_string());
        assert_eq!((objects.len(), rejected), (1, Vec::new()), "{kind}");
    }
}
