//! The routes that apply at a port, their clients, and their permitted backends.

use leno_model::Change;

use super::*;
use crate::compile::service::compile_service;
use crate::fixture::parse_objects;

#[test]
fn on_a_port_with_both_kinds_of_routes_only_grpc_routes_apply() {
    let added_objects = r#"
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews, port: 9080}]
  rules: [{matches: [{method: {service: a.B}}], backendRefs: [{name: reviews-v1, port: 9080}]}]
"#;
    let rules = |yaml: &str| {
        let mesh = mesh_with_sidecars(yaml);
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        let port =
            compile_service(&mesh, &ClientClass::AllClients, reviews).ports.remove(&9080).unwrap();
        assert!(port.has_attached_routes);
        port.rules.iter().map(|rule| rule.kind.as_str()).collect::<Vec<_>>()
    };
    assert!(rules(BOOKINFO).iter().all(|kind| *kind == "HTTPRoute"));
    assert_eq!(rules(&format!("{BOOKINFO}{added_objects}")), ["GRPCRoute"]);
    let other_port = added_objects
        .replace("name: reviews, port: 9080}]\n  rules", "name: reviews, port: 1}]\n  rules");
    assert!(rules(&format!("{BOOKINFO}{other_port}")).iter().all(|kind| *kind == "HTTPRoute"));
}

#[test]
fn older_routes_come_first_and_then_the_first_by_name() {
    let route = |kind: &str, name: &str, extra_fields: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, \
             namespace: bookinfo}}\nspec:\n  parentRefs: [{{group: \"\", kind: Service, name: \
             details}}]\n  {extra_fields}rules: [{{backendRefs: [{{name: {name}, port: 9080}}]}}]\n"
        )
    };
    let (host, names) = ("hostnames: [a.example]\n  ", ["a", "b", "c"]);
    let routes = [("HTTPRoute", ""), ("TCPRoute", ""), ("TLSRoute", host)]
        .map(|(kind, extra_fields)| names.map(|name| route(kind, name, extra_fields)).concat());
    let mut mesh = mesh_with_sidecars(&[BOOKINFO, &routes.concat()].concat());
    let order = |mesh: &Mesh| {
        let details = mesh.service(&service_name("details")).unwrap();
        let port =
            compile_service(mesh, &ClientClass::AllClients, details).ports.remove(&9080).unwrap();
        let http: Vec<_> = port.rules.iter().map(|rule| rule.route.name.to_string()).collect();
        let tls: Vec<_> = port.tls_rules.iter().map(|rule| rule.route.name.to_string()).collect();
        (http.concat(), port.tcp_rule.unwrap().route.name.to_string(), tls.concat())
    };
    let expected = |all: &str| (all.to_owned(), all[..1].to_owned(), all.to_owned());
    assert_eq!(order(&mesh), expected("abc"));
    for (name, created) in [("a", 30), ("b", 10), ("c", 10)] {
        for mut object in parse_objects(&routes.concat()) {
            if object.object_key().to_string().ends_with(&format!("/{name}")) {
                object.set_created(created);
                mesh.apply(Change::Upsert(object));
            }
        }
    }
    assert_eq!(order(&mesh), expected("bca"));
}

#[test]
fn a_backend_in_another_namespace_needs_a_grant_there() {
    let yaml_with_remote_backend = BOOKINFO.replace(
        "{name: reviews-v2, port: 9080, weight: 10}",
        "{name: reviews-v2, namespace: away, port: 9080, weight: 10}",
    );
    let grant = |kind: &str, to: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\n\
             metadata: {{name: g, namespace: away}}\nspec:\n  from: [{{group: \
             gateway.networking.k8s.io, kind: {kind}, namespace: bookinfo}}]\n  \
             to: [{{group: \"\", kind: Service{to}}}]\n"
        )
    };
    let shares = |mesh: &Mesh| {
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        let port =
            compile_service(mesh, &ClientClass::AllClients, reviews).ports.remove(&9080).unwrap();
        let rule = port.rules.first().unwrap().clone();
        (rule.backends.len(), rule.actions.ungranted_weight)
    };
    assert_eq!(shares(&mesh_with_sidecars(&yaml_with_remote_backend)), (1, 10));
    for (kind, to, expected) in [
        ("HTTPRoute", "", (2, 0)),
        ("HTTPRoute", ", name: reviews-v2", (2, 0)),
        ("HTTPRoute", ", name: other", (1, 10)),
        ("GRPCRoute", "", (1, 10)),
    ] {
        let mut mesh = mesh_with_sidecars(&yaml_with_remote_backend);
        let granted = parse_objects(&grant(kind, to)).remove(0);
        let key = granted.object_key();
        let affected_set = mesh.apply(Change::Upsert(granted));
        assert!(affected_set.services.contains(&service_name("reviews")), "{affected_set:?}");
        assert_eq!(shares(&mesh), expected, "{kind} {to}");
        let affected_set = mesh.apply(Change::Remove(key));
        assert!(affected_set.services.contains(&service_name("reviews")), "{affected_set:?}");
        assert_eq!(shares(&mesh), (1, 10));
    }
}

#[test]
fn sessions_are_forwarded_to_another_namespace_only_with_a_grant_there() {
    let route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\n\
                 metadata: {name: tls, namespace: bookinfo}\nspec:\n  \
                 parentRefs: [{group: \"\", kind: Service, name: reviews}]\n  hostnames: [a.b]\n  \
                 rules: [{backendRefs: [{name: reviews, port: 9080}, \
                 {name: reviews-v2, namespace: away, port: 9080, weight: 10}]}]\n";
    let shares = |mesh: &Mesh| {
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        let port =
            compile_service(mesh, &ClientClass::AllClients, reviews).ports.remove(&9080).unwrap();
        let [rule] = &port.tls_rules[..] else { panic!("one rule") };
        (rule.backends.len(), rule.ungranted_weight)
    };
    for (kind, expected) in [("TLSRoute", (2, 0)), ("TCPRoute", (1, 10))] {
        let mut mesh = mesh_with_sidecars(&format!("{BOOKINFO}{route}"));
        assert_eq!(shares(&mesh), (1, 10));
        let grant = format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\n\
             metadata: {{name: g, namespace: away}}\nspec:\n  from: [{{group: \
             gateway.networking.k8s.io, kind: {kind}, namespace: bookinfo}}]\n  \
             to: [{{group: \"\", kind: Service}}]\n"
        );
        let affected_set = mesh.apply(Change::Upsert(parse_objects(&grant).remove(0)));
        assert!(affected_set.services.contains(&service_name("reviews")), "{affected_set:?}");
        assert_eq!(shares(&mesh), expected, "{kind}");
    }
}

/// Bookinfo, and a client of another namespace that has a route of its own.
const CONSUMER: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: buyer-1, namespace: shop}
spec: {serviceAccount: buyer}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mine, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews, namespace: bookinfo}]
  rules:
  - backendRefs: [{name: reviews, namespace: bookinfo, port: 9080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mine, namespace: elsewhere}
spec:
  parentRefs: [{group: "", kind: Service, name: details, namespace: bookinfo}]
  rules:
  - backendRefs: [{name: reviews, namespace: bookinfo, port: 9080, weight: 3}]
"#;

/// Returns the routes that apply for a client, and the weight of the first rule without permission.
fn applied_routes(mesh: &Mesh, client: &str, service: &str) -> (Vec<String>, u32) {
    let (namespace, name) = client.split_once('/').unwrap();
    let name = leno_model::WorkloadName::new(namespace, name).unwrap();
    let client = mesh.workload(&name).unwrap();
    let root_services = BTreeSet::from([service_name(service)]);
    let compiled_config =
        compile_config(mesh, client, &root_services, &mut ServiceConfigCache::default());
    let rules = &compiled_config.snapshot.services[&service_name(service)].ports[&9080].rules;
    let ungranted = rules.first().map_or(0, |rule| rule.actions.ungranted_weight);
    (rules.iter().map(|rule| rule.route.to_string()).collect(), ungranted)
}

#[test]
fn routes_of_another_namespace_apply_only_to_its_own_clients() {
    for denies_by_default in [false, true] {
        let settings = "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
                    spec: {defaultPolicy: dry-run, namespaces: [{name: bank, defaultPolicy: deny}]}\n";
        let settings = if denies_by_default { settings } else { "" };
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{CONSUMER}{settings}"));
        assert_eq!(mesh.has_default_deny(), denies_by_default);
        assert_eq!(
            applied_routes(&mesh, "shop/buyer-1", "reviews"),
            (vec!["shop/mine".to_owned()], 0)
        );
        let producer_routes = (vec!["bookinfo/reviews".to_owned()], 0);
        assert_eq!(applied_routes(&mesh, "bookinfo/productpage-1", "reviews"), producer_routes);
        // These clients have no route: the routes of other consumers do not apply.
        assert_eq!(applied_routes(&mesh, "shop/buyer-1", "details"), (Vec::new(), 0));
        assert_eq!(applied_routes(&mesh, "bookinfo/productpage-1", "details"), (Vec::new(), 0));
    }
}

#[test]
fn without_a_grant_a_route_may_only_refer_to_its_own_service() {
    let yaml_with_remote_backend = CONSUMER.replace(
        "{name: reviews, namespace: bookinfo, port: 9080}]",
        "{name: details, namespace: bookinfo, port: 9080, weight: 7}]",
    );
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{yaml_with_remote_backend}"));
    assert_eq!(applied_routes(&mesh, "shop/buyer-1", "reviews"), (vec!["shop/mine".to_owned()], 7));
}

#[test]
fn only_a_client_with_its_own_routes_has_its_own_service_configuration() {
    let mut mesh = mesh_with_sidecars(&format!("{BOOKINFO}{CONSUMER}"));
    let mut service_configs = ServiceConfigCache::default();
    let buyer = leno_model::WorkloadName::new("shop", "buyer-1").unwrap();
    let mut configs_of = |mesh: &Mesh, name: &str| {
        let class_of = |name: &leno_model::WorkloadName| {
            ClientClass::for_client(mesh, mesh.workload(name).unwrap())
        };
        let other_client_config = service_configs
            .service_config(mesh, &class_of(&workload_name("stranger-1")), &service_name(name))
            .unwrap();
        let own_config =
            service_configs.service_config(mesh, &class_of(&buyer), &service_name(name)).unwrap();
        (other_client_config, own_config)
    };
    let (other_client_config, own_config) = configs_of(&mesh, "details");
    assert!(Arc::ptr_eq(&other_client_config, &own_config), "one configuration for both");
    let (other_client_config, own_config) = configs_of(&mesh, "reviews");
    assert_ne!(other_client_config, own_config);
    let own_route = parse_objects(CONSUMER).remove(1);
    let affected_set = mesh.apply(Change::Remove(own_route.object_key()));
    assert_eq!(affected_set.services, BTreeSet::from([service_name("reviews")]));
    let (other_client_config, own_config) = configs_of(&mesh, "reviews");
    assert!(Arc::ptr_eq(&other_client_config, &own_config), "the configuration of producers again");
}
