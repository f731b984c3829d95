//! The configuration of gateway proxies, and unmeshed endpoints behind gateways.

use std::net::{IpAddr, SocketAddr};

use leno_model::{
    Change, Gateway, GatewayListener, GatewayPort, GatewayPortRules, HostRules, Name, Object,
    ObjectKey, RequestMatch, RouteKind, RouteRule, RuleActions, WeightedBackend, Workload,
};

use super::*;
use crate::fixture::parse_objects;
use crate::mesh::Listeners;

/// Bookinfo with a pod of the gateway `edge`, one that falsely claims to be, and the gateway itself, with
/// routes to reviews, ratings and a missing service.
fn gateway_cluster() -> Mesh {
    let pod = |name: &str, account: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, \
             namespace: bookinfo, labels: {{gateway.networking.k8s.io/gateway-name: edge}}}}\n\
             spec: {{serviceAccount: {account}}}\n"
        )
    };
    let ratings = "---\napiVersion: v1\nkind: Service\nmetadata: {name: ratings, namespace: bookinfo}\n\
                   spec: {selector: {app: ratings}, ports: [{port: 80, targetPort: http}]}\n";
    let (proxy, impostor) = (pod("edge-1", "leno-gateway-edge"), pod("edge-liar", "stranger"));
    let mut mesh = mesh_with_sidecars(&format!("{BOOKINFO}{proxy}{impostor}{ratings}"));
    mesh.apply(Change::Upsert(Object::Gateway(gateway_with_backends(&[
        "reviews-v1",
        "ratings",
        "nobody",
    ]))));
    mesh
}

pub(super) fn gateway_with_backends(backends: &[&str]) -> Gateway {
    let backend = |name: &&str| WeightedBackend::new(service_name(name), 80, 1);
    let rule = RouteRule {
        route: "bookinfo/route".parse().unwrap(),
        matches: vec![RequestMatch::default()],
        backends: backends.iter().map(backend).collect(),
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::Http,
    };
    let listener = GatewayListener {
        name: Name::new("http").unwrap(),
        hostname: None,
        certificates: Vec::new(),
        hosts: vec![HostRules { hostname: None, rules: vec![rule] }],
    };
    Gateway {
        name: "bookinfo/edge".parse().unwrap(),
        ports: vec![GatewayPort { port: 80, serves: GatewayPortRules::Http(vec![listener]) }],
    }
}

/// A pod without a sidecar.
pub(super) fn unmeshed_workload(name: &str, labels: &str, address: [u8; 4]) -> Workload {
    let yaml = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: bookinfo, \
         labels: {labels}}}\nspec: {{serviceAccount: plain, ports: [{{name: http, port: 8080}}]}}"
    );
    match parse_objects(&yaml).pop() {
        Some(Object::Workload(workload)) => {
            Workload { sidecar: false, address: address.into(), ..workload }
        }
        other => panic!("{other:?}"),
    }
}

pub(super) fn client_config(mesh: &Mesh, client: &str, services: &[&str]) -> CompiledConfig {
    let services = services.iter().map(|name| service_name(name)).collect();
    let client = mesh.workload(&workload_name(client)).unwrap();
    compile_config(mesh, client, &services, &mut ServiceConfigCache::default())
}

pub(super) fn service_endpoints(
    compiled_config: &CompiledConfig,
    name: &str,
) -> Vec<(String, SocketAddr, bool)> {
    let ports = compiled_config.snapshot.services[&service_name(name)].ports.values();
    let endpoints = ports.flat_map(|port| &port.endpoints);
    let endpoint_list = endpoints.map(|endpoint| {
        (endpoint.id.workload.name.to_string(), endpoint.address, endpoint.account.is_some())
    });
    endpoint_list.collect()
}

#[test]
fn a_gateway_configures_only_its_own_proxies() {
    let mesh = gateway_cluster();
    let compiled_config = client_config(&mesh, "edge-1", &[]);
    assert_eq!(
        compiled_config.snapshot.config.gateway.as_deref(),
        Some(&gateway_with_backends(&["reviews-v1", "ratings", "nobody"]))
    );
    let services: Vec<String> =
        compiled_config.snapshot.services.keys().map(ToString::to_string).collect();
    assert_eq!(services, ["bookinfo/ratings", "bookinfo/reviews-v1"]);
    assert_eq!(compiled_config.absent, BTreeSet::from([service_name("nobody")]));
    for other in ["edge-liar", "productpage-1"] {
        let compiled_config = client_config(&mesh, other, &[]);
        assert_eq!(compiled_config.snapshot.config.gateway, None, "{other}");
    }
}

#[test]
fn workloads_without_a_sidecar_are_called_in_plaintext() {
    let mut mesh = gateway_cluster();
    let unmeshed = unmeshed_workload("ratings-1", "{app: ratings}", [10, 9, 0, 1]);
    let affected_set = mesh.apply(Change::Upsert(Object::Workload(unmeshed.clone())));
    assert_eq!(affected_set.services, BTreeSet::from([service_name("ratings")]));
    assert!(affected_set.workloads.is_empty());
    mesh.apply(Change::Upsert(Object::Workload(unmeshed_workload(
        "reviews-v1-0",
        "{app: reviews, version: v1}",
        [10, 9, 0, 2],
    ))));
    let edge = client_config(&mesh, "edge-1", &[]);
    let ratings = ("ratings-1".to_owned(), "10.9.0.1:8080".parse().unwrap(), false);
    assert_eq!(service_endpoints(&edge, "ratings"), [ratings]);
    let reviews = service_endpoints(&edge, "reviews-v1");
    let endpoint_list: Vec<(&str, bool)> =
        reviews.iter().map(|(name, _, has_sidecar)| (&**name, *has_sidecar)).collect();
    assert_eq!(endpoint_list, [("reviews-v1-0", false), ("reviews-v1-1", true)]);
    let sidecar = client_config(&mesh, "productpage-1", &["ratings", "reviews-v1"]);
    for name in ["ratings", "reviews-v1"] {
        assert_eq!(
            service_endpoints(&sidecar, name),
            service_endpoints(&edge, name),
            "the same as for gateways"
        );
    }
    // The unmeshed pod is not a member of the mesh, and cannot report listeners.
    assert_eq!(mesh.workload(&unmeshed.name), None);
    assert!(mesh.set_listeners(&unmeshed.name, Some(Listeners::new())).is_empty());
    // The unmeshed pod becomes unready, and then gets a sidecar.
    mesh.apply(Change::Upsert(Object::Workload(Workload { ready: false, ..unmeshed.clone() })));
    assert_eq!(service_endpoints(&client_config(&mesh, "edge-1", &[]), "ratings"), []);
    mesh.apply(Change::Upsert(Object::Workload(Workload { sidecar: true, ..unmeshed.clone() })));
    assert!(mesh.workload(&unmeshed.name).is_some());
    mesh.apply(Change::Upsert(Object::Workload(unmeshed.clone())));
    assert_eq!(mesh.workload(&unmeshed.name), None);
    assert_eq!(service_endpoints(&client_config(&mesh, "edge-1", &[]), "ratings").len(), 1);
    mesh.apply(Change::Remove(ObjectKey::Workload(unmeshed.name)));
    assert_eq!(service_endpoints(&client_config(&mesh, "edge-1", &[]), "ratings"), []);
}

/// Returns the endpoints of `reviews-v1` at the gateway `edge`, with one pod with a sidecar and one without,
/// after these objects.
fn reviews_endpoints_with(policy: &str) -> Vec<(String, bool)> {
    let mut mesh = gateway_cluster();
    let unmeshed = unmeshed_workload("reviews-v1-0", "{app: reviews, version: v1}", [10, 9, 0, 2]);
    mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
    let mut service_configs = ServiceConfigCache::default();
    let root_services = BTreeSet::from([service_name("reviews-v1")]);
    let client = mesh.workload(&workload_name("edge-1")).unwrap().clone();
    let before = compile_config(&mesh, &client, &root_services, &mut service_configs);
    assert_eq!(service_endpoints(&before, "reviews-v1").len(), 2);
    for object in parse_objects(policy) {
        service_configs.mark_stale(&mesh.apply(Change::Upsert(object)));
    }
    let after = service_endpoints(
        &compile_config(&mesh, &client, &root_services, &mut service_configs),
        "reviews-v1",
    );
    after.into_iter().map(|(name, _, has_sidecar)| (name, has_sidecar)).collect()
}

#[test]
fn a_gateway_excludes_endpoints_that_cannot_enforce_a_policy_of_the_service() {
    let service_policy = |kind: &str, spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: p, namespace: bookinfo}}\n\
             spec: {{targetRefs: [{{kind: Service, name: reviews-v1}}], {spec}}}"
        )
    };
    let access_policy = |spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {{name: p, namespace: bookinfo}}\n\
             spec: {{{spec}}}"
        )
    };
    let jwt_issuers =
        r#"issuers: [{issuer: "https://issuer.test", jwks: {url: "https://issuer.test/keys"}}]"#;
    let enforceable = [
        service_policy("RateLimit", "rules: [{requests: 10, per: 1s}]"),
        service_policy("RateLimit", "concurrency: {requests: 10}"),
        service_policy("JwtValidation", jwt_issuers),
        service_policy("ExternalAuthorization", "service: {name: ratings, port: 80}"),
        // Policies for the pod with a sidecar, for the one without, and for both.
        access_policy("serviceAccounts: [reviews], deny: [{requests: [{path: {value: /admin}}]}]"),
        access_policy("serviceAccounts: [plain], deny: [{requests: [{path: {value: /admin}}]}]"),
        access_policy("deny: [{requests: [{path: {value: /admin}}]}]"),
    ];
    for policy in enforceable {
        assert_eq!(
            reviews_endpoints_with(&policy),
            [("reviews-v1-1".to_owned(), true)],
            "{policy}"
        );
    }
    // Services over the same pods: `reviews` selects those of `reviews-v1` too, and `reviews-b` forwards to the
    // same port.
    let rate_limit = service_policy("RateLimit", "concurrency: {requests: 10}");
    let other_service_policy = rate_limit.replace("name: reviews-v1", "name: reviews");
    assert_eq!(
        reviews_endpoints_with(&other_service_policy),
        [("reviews-v1-1".to_owned(), true)],
        "{other_service_policy}"
    );
    let renamed = rate_limit.replace("name: reviews-v1", "name: reviews-b");
    let another_service_policy = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: reviews-b, namespace: bookinfo}}\n\
         spec: {{selector: {{app: reviews}}, ports: [{{port: 81, targetPort: http}}]}}\n---\n{renamed}"
    );
    assert_eq!(
        reviews_endpoints_with(&another_service_policy),
        [("reviews-v1-1".to_owned(), true)],
        "{another_service_policy}"
    );
    let permitted_policies = [
        service_policy("Hedging", "after: 50ms"),
        access_policy("serviceAccounts: [details], deny: [{from: [{namespace: other}]}]"),
        // Has no effect with `defaultPolicy: allow`.
        access_policy("serviceAccounts: [reviews], allow: [{from: [{namespace: other}]}]"),
    ];
    for policy in permitted_policies {
        assert_eq!(reviews_endpoints_with(&policy).len(), 2, "{policy}");
    }
}

#[test]
fn a_gateway_affects_only_its_proxies() {
    let mut mesh = gateway_cluster();
    let proxies = BTreeSet::from([workload_name("edge-1")]);
    let changed_gateway = Change::Upsert(Object::Gateway(gateway_with_backends(&["ratings"])));
    assert_eq!(mesh.apply(changed_gateway.clone()).workloads, proxies);
    assert!(mesh.apply(changed_gateway).is_empty());
    let removal = Change::Remove(ObjectKey::Gateway("bookinfo/edge".parse().unwrap()));
    assert_eq!(mesh.apply(removal).workloads, proxies);
    assert_eq!(client_config(&mesh, "edge-1", &[]).snapshot.config.gateway, None);
}

#[test]
fn a_gateway_calls_workloads_without_a_sidecar_in_a_mesh_that_denies_by_default() {
    let mut mesh = mesh_with_sidecars(&default_deny_bookinfo(
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: ratings, namespace: bookinfo}\n\
         spec: {selector: {app: ratings}, ports: [{port: 80, targetPort: http}]}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: edge-1, namespace: \
         bookinfo, labels: {gateway.networking.k8s.io/gateway-name: edge}}\n\
         spec: {serviceAccount: leno-gateway-edge}\n",
    ));
    mesh.apply(Change::Upsert(Object::Gateway(gateway_with_backends(&[
        "details",
        "reviews-v1",
        "ratings",
    ]))));
    for (name, labels) in [("details-0", "{app: details}"), ("ratings-0", "{app: ratings}")] {
        let unmeshed = unmeshed_workload(name, labels, [10, 9, 0, 1]);
        mesh.apply(Change::Upsert(Object::Workload(unmeshed)));
    }
    let edge = client_config(&mesh, "edge-1", &[]);
    assert_eq!(service_endpoints(&edge, "ratings").len(), 1);
    // No policy lets the gateway call the pods with a sidecar, and the unmeshed endpoints of the same services are not a
    // bypass.
    for name in ["details", "reviews-v1"] {
        assert_eq!(
            edge.snapshot.services[&service_name(name)].client_authorization,
            ClientAuthorization::Denied,
            "{name}"
        );
    }
}

#[test]
fn clients_of_a_gateway_are_external() {
    let mut mesh = gateway_cluster();
    let (pod, address) = (IpAddr::from([10, 1, 0, 9]), IpAddr::from([10, 96, 0, 9]));
    let proxy = mesh.workload(&workload_name("edge-1")).unwrap().clone();
    mesh.apply(Change::Upsert(Object::Workload(Workload { address: pod, ..proxy })));
    let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: bookinfo}\n\
                spec: {selector: {gateway.networking.k8s.io/gateway-name: edge}, ports: [{port: 80}]}";
    let Some(Object::Service(mut edge)) = parse_objects(yaml).pop() else { panic!("a service") };
    edge.addresses.insert(address);
    // Without the pod that falsely claims to be a proxy.
    mesh.apply(Change::Remove(ObjectKey::Workload(workload_name("edge-liar"))));
    mesh.apply(Change::Upsert(Object::Service(edge)));
    let entry_of = |mesh: &Mesh, address| {
        let entries =
            address_entries(mesh, &BTreeSet::from([address]), &mut ServiceConfigCache::default());
        AddressEntry::clone(&entries.by_address[&address])
    };
    assert_eq!(
        [entry_of(&mesh, pod), entry_of(&mesh, address)],
        [AddressEntry::External, AddressEntry::External]
    );
    let removal = Change::Remove(ObjectKey::Gateway("bookinfo/edge".parse().unwrap()));
    let affected_set = mesh.apply(removal);
    assert!(
        affected_set.addresses.contains(&pod)
            && affected_set.services.contains(&service_name("edge"))
    );
    assert_eq!(entry_of(&mesh, address), AddressEntry::Service(service_name("edge")));
}
