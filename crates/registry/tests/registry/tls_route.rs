//! Tests of `TLSRoute`: accepted documents and rejections.

use expect_test::expect;
use leno_model::{HostPattern, Object, RouteKind, RouteParent, ServiceName, TlsRoute};
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

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

fn read_route(text: &str) -> TlsRoute {
    match &read_str("f.yaml", text) {
        (objects, rejected) if rejected.is_empty() => match objects.as_slice() {
            [(Object::TlsRoute(route), _)] => route.clone(),
            other => panic!("{other:?}"),
        },
        (_, rejected) => panic!("{rejected:?}"),
    }
}

#[test]
fn a_tls_route_is_read_with_all_fields() {
    let route = read_route(TLS_ROUTE);
    let service = |name: &str| ServiceName::new("shop", name).unwrap();
    assert_eq!(route.parents, [RouteParent { service: service("secure"), port: Some(443) }]);
    assert_eq!(route.rule.route.to_string(), "shop/shops");
    let hostnames: Vec<String> = route.rule.hostnames.iter().map(HostPattern::to_string).collect();
    assert_eq!(hostnames, ["one.example.com", "*.two.example.com"]);
    let backends = route
        .rule
        .backends
        .iter()
        .map(|backend| (backend.service.clone(), backend.port, backend.weight));
    let backends: Vec<_> = backends.collect();
    assert_eq!(backends, [(service("one"), 443, 9), (service("two"), 443, 1)]);
    for version in ["v1alpha2", "v1alpha3"] {
        let older_version = TLS_ROUTE.replace("k8s.io/v1\n", &format!("k8s.io/{version}\n"));
        assert_eq!(read_route(&older_version), route, "{version}");
    }
}

#[test]
fn unsupported_tls_routes_are_rejected() {
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
fn missing_references_of_a_tls_route_cause_warnings() {
    let (objects, rejected) = read_str("f.yaml", TLS_ROUTE);
    assert_eq!(rejected, []);
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    let lines: Vec<String> =
        lint_objects(&objects).iter().map(|warning| format!("{warning}\n")).collect();
    expect![[r#"
        TLSRoute shop/shops: spec.parentRefs[0].name: there is no Service shop/secure; add the Service
        TLSRoute shop/shops: spec.rules[0].backendRefs[0].name: there is no Service shop/one; add the Service
        TLSRoute shop/shops: spec.rules[0].backendRefs[1].name: there is no Service shop/two; add the Service
    "#]].assert_eq(&lines.concat());
}

#[test]
fn a_grant_for_tls_routes_permits_backends_in_other_namespaces() {
    let with_other_namespace = TLS_ROUTE.replace("name: two,", "name: two, namespace: away,");
    let backends = read_route(&with_other_namespace).rule.backends;
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
fn host_names_of_a_service_route_cause_a_warning() {
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
        let problems: Vec<_> = warnings
            .iter()
            .map(|warning| (&warning.location.field, warning.problem.as_str()))
            .collect();
        let field = Some("spec.hostnames".to_owned());
        let reason = "is ignored: a route of a service applies to all its host names";
        assert_eq!(problems, [(&field, reason)], "{kind}");
        let (objects, rejected) = read_str("f.yaml", &document.to_string());
        assert_eq!((objects.len(), rejected), (1, Vec::new()), "{kind}");
    }
}
