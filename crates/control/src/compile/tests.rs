//! The compiled configuration of one workload, rendered as text, and the cache of service configurations.

mod access;
mod boundary;
mod gateways;
mod joining;
mod limits;
mod ports;
mod retries;
mod routes;
mod tags;
mod terminating;

use std::collections::BTreeSet;
use std::fmt::Write;

use expect_test::{Expect, expect};
use leno_model::{
    Access, ClientAuthorization, Object, PathMatch, PortSet, ServiceName, Snapshot, Weight,
    WeightedBackend, Workload,
};

use super::*;
use crate::fixture::{
    BOOKINFO, default_deny_bookinfo, mesh_with_sidecars, service_name, workload_name,
};

/// Compiles the configuration of `client` with the services `services`, and compares it as text.
#[track_caller]
fn check_config(yaml: &str, client: &str, services: &[&str], expected: &Expect) {
    let mesh = mesh_with_sidecars(yaml);
    let services: BTreeSet<ServiceName> = services.iter().map(|name| service_name(name)).collect();
    let client = mesh.workload(&workload_name(client)).unwrap();
    let root_services = used_services(client, &services);
    let compiled_config =
        compile_config(&mesh, client, &root_services, &mut ServiceConfigCache::default());
    expected.assert_eq(&render_config(&compiled_config));
}

fn render_config(compiled_config: &CompiledConfig) -> String {
    let mut text = String::new();
    let Snapshot { config, services, .. } = &*compiled_config.snapshot;
    writeln!(text, "{} is {} at {}", config.workload, config.account, config.address).unwrap();
    for (port, service) in &config.port_services {
        writeln!(text, "  serves {service} on {port}").unwrap();
    }
    for listener in &config.outbound_listeners {
        writeln!(text, "  outbound {} to {}:{}", listener.listen, listener.service, listener.port)
            .unwrap();
    }
    match &config.access {
        Access::AllowAll => writeln!(text, "  admits all clients").unwrap(),
        Access::AllowListed(rules) => {
            writeln!(text, "  admits by {} rules", rules.len()).unwrap();
            for rule in rules {
                let http = rule.http.iter().map(|request| match &request.path {
                    PathMatch::Regex(regex) => format!("{:?} {regex}", request.methods),
                    other => format!("{:?} {other:?}", request.methods),
                });
                let http: Vec<String> = http.collect();
                let tcp = match &rule.tcp {
                    PortSet::All => "all".to_owned(),
                    PortSet::Only(ports) => format!("{ports:?}"),
                };
                writeln!(text, "    {}: {:?} http {http:?} tcp {tcp}", rule.policy, rule.sources)
                    .unwrap();
            }
        }
    }
    for service_config in services.values() {
        writeln!(text, "{} {:?}", service_config.name, service_config.client_authorization)
            .unwrap();
        for (number, port) in &service_config.ports {
            let routed = if port.has_attached_routes { " routed" } else { "" };
            writeln!(text, "  {number} {}{routed}", port.protocol).unwrap();
            for rule in &port.rules {
                let backends = render_backends(&rule.backends);
                writeln!(text, "    by {} to {backends}", rule.route).unwrap();
            }
            for rule in &port.tls_rules {
                let hosts: Vec<String> = rule.hostnames.iter().map(ToString::to_string).collect();
                let (hosts, backends) = (hosts.join(" "), render_backends(&rule.backends));
                writeln!(text, "    {hosts} by {} to {backends}", rule.route).unwrap();
            }
            if let Some(rule) = &port.tcp_rule {
                let backends = render_backends(&rule.backends);
                writeln!(text, "    connections by {} to {backends}", rule.route).unwrap();
            }
            for endpoint in &port.endpoints {
                let (name, account) = (&endpoint.id.workload, endpoint.account.as_ref().unwrap());
                writeln!(text, "    {} {name} as {account}", endpoint.address).unwrap();
            }
        }
    }
    for name in &compiled_config.absent {
        writeln!(text, "{name} does not exist").unwrap();
    }
    text
}

fn render_backends(backends: &[WeightedBackend]) -> String {
    let backend = |backend: &WeightedBackend| {
        format!("{}:{}*{}", backend.service, backend.port, backend.weight)
    };
    backends.iter().map(backend).collect::<Vec<String>>().join(" ")
}

#[test]
fn a_client_receives_the_services_of_its_listeners_and_their_backends() {
    check_config(
        BOOKINFO,
        "productpage-1",
        &[],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          outbound 127.0.0.1:19080 to bookinfo/reviews:9080
          admits all clients
        bookinfo/reviews Allowed
          9080 HTTP routed
            by bookinfo/reviews to bookinfo/reviews-v1:9080*90 bookinfo/reviews-v2:9080*10
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
            10.0.0.4:19083 bookinfo/reviews-v2-1 as bookinfo/reviews-beta
        bookinfo/reviews-v1 Allowed
          9080 HTTP
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v2 Allowed
          9080 HTTP
            10.0.0.4:19083 bookinfo/reviews-v2-1 as bookinfo/reviews-beta
    "#]],
    );
}

#[test]
fn a_client_receives_the_backends_of_encrypted_sessions() {
    let route = r#"
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: details, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: details}]
  hostnames: ["*.example.com"]
  rules: [{backendRefs: [{name: reviews-v2, port: 9080}, {name: nowhere, port: 9080}]}]
"#;
    let text = [BOOKINFO, route].concat();
    check_config(
        &text,
        "stranger-1",
        &["details"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          admits all clients
        bookinfo/details Allowed
          9080 HTTP
            *.example.com by bookinfo/details to bookinfo/reviews-v2:9080*1 bookinfo/nowhere:9080*1
            10.0.0.1:19081 bookinfo/details-1 as bookinfo/details
        bookinfo/reviews-v2 Allowed
          9080 HTTP
            10.0.0.4:19083 bookinfo/reviews-v2-1 as bookinfo/reviews-beta
        bookinfo/nowhere does not exist
    "#]],
    );
}

#[test]
fn with_default_deny_a_client_reaches_the_root_of_a_split_through_a_backend() {
    let split = r#"
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: details, namespace: bookinfo}
spec: {service: details, backends: [{service: reviews-v1, weight: 1}, {service: nowhere, weight: 2}]}
"#;
    check_config(
        &default_deny_bookinfo(split),
        "productpage-1",
        &["details"],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          outbound 127.0.0.1:19080 to bookinfo/reviews:9080
          admits by 0 rules
        bookinfo/details Allowed
          9080 HTTP
            by bookinfo/details to bookinfo/reviews-v1:9080*1 bookinfo/nowhere:9080*2
            connections by bookinfo/details to bookinfo/reviews-v1:9080*1 bookinfo/nowhere:9080*2
        bookinfo/reviews Allowed
          9080 HTTP routed
            by bookinfo/reviews to bookinfo/reviews-v1:9080*90 bookinfo/reviews-v2:9080*10
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v1 Allowed
          9080 HTTP
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v2 Denied
        bookinfo/nowhere does not exist
    "#]],
    );
}

#[test]
fn a_client_receives_its_subscriptions_and_absent_services() {
    check_config(
        BOOKINFO,
        "stranger-1",
        &["details", "nowhere"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          admits all clients
        bookinfo/details Allowed
          9080 HTTP
            10.0.0.1:19081 bookinfo/details-1 as bookinfo/details
        bookinfo/nowhere does not exist
    "#]],
    );
}

#[test]
fn a_port_is_counted_under_the_least_specific_service() {
    check_config(
        BOOKINFO,
        "reviews-v1-1",
        &[],
        &expect![[r#"
        bookinfo/reviews-v1-1 is bookinfo/reviews at 127.0.0.1
          serves bookinfo/reviews on 9082
          admits all clients
    "#]],
    );
}

#[test]
fn with_default_deny_a_client_reaches_a_service_through_a_backend_and_only_permitted_endpoints() {
    check_config(
        &default_deny_bookinfo(""),
        "productpage-1",
        &["details"],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          outbound 127.0.0.1:19080 to bookinfo/reviews:9080
          admits by 0 rules
        bookinfo/details Denied
        bookinfo/reviews Allowed
          9080 HTTP routed
            by bookinfo/reviews to bookinfo/reviews-v1:9080*90 bookinfo/reviews-v2:9080*10
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v1 Allowed
          9080 HTTP
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v2 Denied
    "#]],
    );
}

#[test]
fn a_client_that_no_policy_names_is_denied_by_default() {
    check_config(
        &default_deny_bookinfo(""),
        "stranger-1",
        &["reviews", "reviews-v1", "details"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          admits by 0 rules
        bookinfo/details Denied
        bookinfo/reviews Denied
        bookinfo/reviews-v1 Denied
    "#]],
    );
}

#[test]
fn a_server_that_denies_by_default_admits_only_the_requests_that_policies_allow() {
    check_config(
        &default_deny_bookinfo(""),
        "reviews-v1-1",
        &[],
        &expect![[r#"
        bookinfo/reviews-v1-1 is bookinfo/reviews at 127.0.0.1
          serves bookinfo/reviews on 9082
          admits by 1 rules
            bookinfo/reviews: [bookinfo/productpage] http ["[\"GET\"] /reviews/[0-9]+"] tcp []
    "#]],
    );
}

#[test]
fn a_server_that_denies_by_default_admits_no_client_without_a_policy() {
    check_config(
        &default_deny_bookinfo(""),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          admits by 0 rules
    "#]],
    );
}

#[test]
fn policies_for_one_account_apply_independently() {
    let added_objects = r#"
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: more, namespace: bookinfo}
spec:
  destination: {kind: ServiceAccount, name: reviews, namespace: bookinfo}
  sources: [{kind: ServiceAccount, name: stranger, namespace: bookinfo}]
  rules:
  - {kind: HTTPRouteGroup, name: reviews, matches: [write, read, read]}
  - {kind: TCPRoute, name: one}
  - {kind: TCPRoute, name: two}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: one, namespace: bookinfo}
spec: {matches: {ports: [9083, 9082]}}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: two, namespace: bookinfo}
spec: {matches: {ports: [9082, 70]}}
"#;
    check_config(
        &default_deny_bookinfo(added_objects),
        "reviews-v1-1",
        &[],
        &expect![[r#"
        bookinfo/reviews-v1-1 is bookinfo/reviews at 127.0.0.1
          serves bookinfo/reviews on 9082
          admits by 2 rules
            bookinfo/more: [bookinfo/stranger] http ["[\"PUT\"] /reviews/[0-9]+", "[\"GET\"] /reviews/[0-9]+"] tcp [70, 9082, 9083]
            bookinfo/reviews: [bookinfo/productpage] http ["[\"GET\"] /reviews/[0-9]+"] tcp []
    "#]],
    );
    check_config(
        &default_deny_bookinfo(added_objects),
        "stranger-1",
        &["reviews-v1", "reviews-v2"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          admits by 0 rules
        bookinfo/reviews-v1 Allowed
          9080 HTTP
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v2 Denied
    "#]],
    );
}

#[test]
fn a_missing_reference_of_a_policy_allows_nothing_and_is_reported() {
    let added_objects = r#"
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: broken, namespace: bookinfo}
spec:
  destination: {kind: ServiceAccount, name: details, namespace: bookinfo}
  sources: [{kind: ServiceAccount, name: productpage, namespace: bookinfo}]
  rules:
  - {kind: HTTPRouteGroup, name: nowhere, matches: [read]}
  - {kind: HTTPRouteGroup, name: reviews, matches: [reed]}
  - {kind: TCPRoute, name: nothing}
"#;
    check_config(
        &default_deny_bookinfo(added_objects),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          admits by 1 rules
            bookinfo/broken: [bookinfo/productpage] http [] tcp []
    "#]],
    );
    let mesh = mesh_with_sidecars(&default_deny_bookinfo(added_objects));
    let target = mesh.traffic_targets().next().unwrap();
    expect![[r#"
        [
            "HTTPRouteGroup bookinfo/nowhere does not exist",
            "HTTPRouteGroup bookinfo/reviews has no match named `reed`",
            "TCPRoute bookinfo/nothing does not exist",
        ]
    "#]]
    .assert_debug_eq(&missing_references(&mesh, target));
}

#[test]
fn a_tcp_route_without_ports_opens_all_of_them() {
    let added_objects = r#"
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: all, namespace: bookinfo}
spec:
  destination: {kind: ServiceAccount, name: details, namespace: bookinfo}
  sources: [{kind: ServiceAccount, name: productpage, namespace: bookinfo}]
  rules: [{kind: TCPRoute, name: all}]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: all, namespace: bookinfo}
spec: {matches: {}}
"#;
    check_config(
        &default_deny_bookinfo(added_objects),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          admits by 1 rules
            bookinfo/all: [bookinfo/productpage] http [] tcp all
    "#]],
    );
}

#[test]
fn a_service_without_workloads_is_allowed_or_denied_by_the_default_policy() {
    let empty = r#"
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: bookinfo}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
"#;
    let authorization = |yaml: &str| {
        let mesh = mesh_with_sidecars(yaml);
        let client = mesh.workload(&workload_name("productpage-1")).unwrap();
        let client_class = ClientClass::for_client(&mesh, client);
        let service_config =
            compile_service(&mesh, &client_class, mesh.service(&service_name("empty")).unwrap());
        (service_config.client_authorization, service_config.ports.len())
    };
    assert_eq!(authorization(&format!("{BOOKINFO}{empty}")), (ClientAuthorization::Allowed, 1));
    assert_eq!(authorization(&default_deny_bookinfo(empty)), (ClientAuthorization::Denied, 0));
}

#[test]
fn the_backends_of_backends_are_included_and_cycles_end() {
    let added_objects = r#"
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: back, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews-v2}]
  rules:
  - backendRefs: [{name: details, port: 9080}, {name: reviews, port: 9080}, {name: gone, port: 1}]
"#;
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{added_objects}"));
    let client = mesh.workload(&workload_name("stranger-1")).unwrap();
    let root_services = BTreeSet::from([service_name("reviews")]);
    let compiled_config =
        compile_config(&mesh, client, &root_services, &mut ServiceConfigCache::default());
    let services: Vec<&ServiceName> = compiled_config.snapshot.services.keys().collect();
    let expected = ["details", "reviews", "reviews-v1", "reviews-v2"].map(service_name);
    assert_eq!(services, expected.iter().collect::<Vec<_>>());
    assert_eq!(compiled_config.absent, BTreeSet::from([service_name("gone")]));
}

#[test]
fn a_port_has_the_protocol_of_its_service_or_of_all_its_workloads() {
    let protocol_with = |port: &str, v2: &str| {
        let yaml = BOOKINFO
            .replace("port: 9083, protocol: HTTP", &format!("port: 9083, protocol: {v2}"))
            .replace(
                "spec: {selector: {app: reviews}, ports: [{name: http, port: 9080",
                &format!("spec: {{selector: {{app: reviews}}, ports: [{{{port}port: 9080"),
            );
        let mesh = mesh_with_sidecars(&yaml);
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        compile_service(&mesh, &ClientClass::AllClients, reviews).ports[&9080].protocol.as_str()
    };
    assert_eq!(protocol_with("", "HTTP"), "HTTP");
    assert_eq!(protocol_with("", "TCP"), "detect");
    assert_eq!(protocol_with("appProtocol: tcp, ", "HTTP"), "TCP");
}

#[test]
fn endpoints_have_weights_where_these_differ() {
    let weights = |v1: &str, v2: &str| -> Vec<Option<u16>> {
        let yaml = BOOKINFO
            .replace("port: 9082, protocol: HTTP}]", &format!("port: 9082, protocol: HTTP}}]{v1}"))
            .replace("port: 9083, protocol: HTTP}]", &format!("port: 9083, protocol: HTTP}}]{v2}"));
        let mesh = mesh_with_sidecars(&yaml);
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        let endpoints =
            &compile_service(&mesh, &ClientClass::AllClients, reviews).ports[&9080].endpoints;
        endpoints.iter().map(|endpoint| endpoint.weight.map(|weight| weight.as_u16())).collect()
    };
    assert_eq!(weights("", ""), [None, None]);
    assert_eq!(weights(", weight: 300", ", weight: 300"), [None, None]);
    assert_eq!(weights(", weight: 300", ""), [Some(300), Some(100)]);
}

#[test]
fn a_weight_that_changes_is_reported_to_clients() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let reviews = mesh.workload(&workload_name("reviews-v1-1")).unwrap();
    let heavier = Workload { weight: Weight::new(200).unwrap(), ..reviews.clone() };
    let affected_set = mesh.apply(leno_model::Change::Upsert(Object::Workload(heavier)));
    assert!(affected_set.services.contains(&service_name("reviews")), "{affected_set:?}");
}

#[test]
fn unchanged_service_configurations_are_shared_and_changed_ones_keep_their_endpoints() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut service_configs = ServiceConfigCache::default();
    let (name, client_class) = (service_name("reviews"), ClientClass::AllClients);
    let first_config = service_configs.service_config(&mesh, &client_class, &name).unwrap();
    let mut affected_set = mesh.set_listeners(&workload_name("details-1"), None);
    affected_set.all_proxies = true;
    service_configs.mark_stale(&affected_set);
    let second_config = service_configs.service_config(&mesh, &client_class, &name).unwrap();
    assert!(Arc::ptr_eq(&first_config, &second_config));
    service_configs.mark_stale(&mesh.set_listeners(&workload_name("reviews-v2-1"), None));
    let changed_config = service_configs.service_config(&mesh, &client_class, &name).unwrap();
    assert_eq!(
        (first_config.ports[&9080].endpoints.len(), changed_config.ports[&9080].endpoints.len()),
        (2, 1)
    );
    assert!(Arc::ptr_eq(
        &first_config.ports[&9080].endpoints[0],
        &changed_config.ports[&9080].endpoints[0]
    ));
    drop((first_config, second_config, changed_config));
    service_configs.evict_unused();
    assert_eq!(service_configs.len(), 1, "a client may use it again soon");
    (0..16).for_each(|_| service_configs.evict_unused());
    assert_eq!(service_configs.len(), 0);
}

#[test]
fn an_explanation_assumes_the_declared_address_of_every_application() {
    let objects = crate::fixture::parse_objects(&default_deny_bookinfo(""));
    let client = workload_name("productpage-1");
    let snapshot = crate::snapshot_for(&objects, &client, &[service_name("reviews-v1")]).unwrap();
    let endpoints = &snapshot.services[&service_name("reviews-v1")].ports[&9080].endpoints;
    assert_eq!(endpoints[0].address.to_string(), "127.0.0.1:9082");
    let error = crate::snapshot_for(&objects, &workload_name("nobody"), &[]).unwrap_err();
    assert!(error.to_string().contains("bookinfo/details-1"), "{error}");
}

const OUTLIER_DETECTION: &str = r"
---
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: NAME, namespace: bookinfo}
spec: {targetRefs: [{kind: Service, name: reviews-v1TARGET}]}
";

#[test]
fn a_policy_applies_to_its_ports_and_the_most_specific_decides() {
    let outlier_detection = |name: &str, target: &str| {
        OUTLIER_DETECTION.replace("NAME", name).replace("TARGET", target)
    };
    let sermant = r"
---
apiVersion: leno.dev/v1alpha1
kind: SermantRemoval
metadata: {name: all, namespace: bookinfo}
spec: {compat: sermant, config: 'enableRemoval: true'}
";
    let deciding_policy = |yaml: &str, name: &str| {
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{yaml}"));
        let service_config = compile_service(
            &mesh,
            &ClientClass::AllClients,
            mesh.service(&service_name(name)).unwrap(),
        );
        let outlier_detection =
            service_config.ports[&9080].traffic_policy.outlier_detection.clone();
        outlier_detection.map(|outlier_detection| outlier_detection.policy.to_string())
    };
    let expected_policy = |text: &str| Some(text.to_owned());
    assert_eq!(deciding_policy("", "reviews-v1"), None);
    assert_eq!(deciding_policy(&outlier_detection("b", ""), "reviews-v2"), None);
    let policies = format!("{}{}{sermant}", outlier_detection("b", ""), outlier_detection("c", ""));
    assert_eq!(
        deciding_policy(&policies, "reviews-v1"),
        expected_policy("OutlierDetection bookinfo/b")
    );
    assert_eq!(
        deciding_policy(&policies, "reviews-v2"),
        expected_policy("SermantRemoval bookinfo/all")
    );
    let with_port_policy = format!("{policies}{}", outlier_detection("z", ", port: 9080"));
    assert_eq!(
        deciding_policy(&with_port_policy, "reviews-v1"),
        expected_policy("OutlierDetection bookinfo/z")
    );
    let other_port = format!("{policies}{}", outlier_detection("a", ", port: 1"));
    assert_eq!(
        deciding_policy(&other_port, "reviews-v1"),
        expected_policy("OutlierDetection bookinfo/b")
    );
}
