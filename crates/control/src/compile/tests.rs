//! Tests of the compiler: the configuration of one workload, as text.

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
    Workload,
};

use super::*;
use crate::fixture::{BOOKINFO, mesh_with_sidecars, service_name, strict_bookinfo, workload_name};

/// Compiles the configuration of `client` with the services `services`, and compares it as text.
#[track_caller]
fn check_config(yaml: &str, client: &str, services: &[&str], expected: &Expect) {
    let mesh = mesh_with_sidecars(yaml);
    let services: BTreeSet<ServiceName> = services.iter().map(|name| service_name(name)).collect();
    let client = mesh.workload(&workload_name(client)).unwrap();
    let wanted = used_services(client, &services);
    let compiled_config =
        compile_config(&mesh, client, &wanted, &mut ServiceConfigCache::default());
    expected.assert_eq(&render_config(&compiled_config));
}

fn render_config(compiled_config: &CompiledConfig) -> String {
    let mut out = String::new();
    let Snapshot { config: plan, services, .. } = &*compiled_config.snapshot;
    writeln!(out, "{} is {} at {}", plan.workload, plan.account, plan.address).unwrap();
    for (port, service) in &plan.port_services {
        writeln!(out, "  serves {service} on {port}").unwrap();
    }
    for listener in &plan.outbound_listeners {
        writeln!(out, "  door {} to {}:{}", listener.listen, listener.service, listener.port)
            .unwrap();
    }
    match &plan.access {
        Access::AllowAll => writeln!(out, "  lets everybody in").unwrap(),
        Access::AllowListed(rules) => {
            writeln!(out, "  lets in by {} rules", rules.len()).unwrap();
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
                writeln!(out, "    {}: {:?} http {http:?} tcp {tcp}", rule.policy, rule.sources)
                    .unwrap();
            }
        }
    }
    for view in services.values() {
        writeln!(out, "{} {:?}", view.name, view.client_authorization).unwrap();
        for (number, port) in &view.ports {
            let routed = if port.routed { " routed" } else { "" };
            writeln!(out, "  {number} {}{routed}", port.protocol).unwrap();
            for rule in &port.rules {
                let backends = rule.backends.iter();
                let backends: Vec<String> =
                    backends.map(|b| format!("{}:{}*{}", b.service, b.port, b.weight)).collect();
                writeln!(out, "    by {} to {}", rule.route, backends.join(" ")).unwrap();
            }
            for rule in &port.tls_rules {
                let hosts: Vec<String> = rule.hostnames.iter().map(ToString::to_string).collect();
                let backends = rule.backends.iter();
                let backends: Vec<String> =
                    backends.map(|b| format!("{}:{}*{}", b.service, b.port, b.weight)).collect();
                let (hosts, backends) = (hosts.join(" "), backends.join(" "));
                writeln!(out, "    {hosts} by {} to {backends}", rule.route).unwrap();
            }
            if let Some(rule) = &port.tcp_rule {
                let backends = rule.backends.iter();
                let backends: Vec<String> =
                    backends.map(|b| format!("{}:{}*{}", b.service, b.port, b.weight)).collect();
                let backends = backends.join(" ");
                writeln!(out, "    connections by {} to {backends}", rule.route).unwrap();
            }
            for endpoint in &port.endpoints {
                let (name, account) = (&endpoint.id.workload, endpoint.account.as_ref().unwrap());
                writeln!(out, "    {} {name} as {account}", endpoint.address).unwrap();
            }
        }
    }
    for name in &compiled_config.absent {
        writeln!(out, "{name} does not exist").unwrap();
    }
    out
}

#[test]
fn a_client_knows_the_services_behind_its_listeners_and_their_backends() {
    check_config(
        BOOKINFO,
        "productpage-1",
        &[],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          door 127.0.0.1:19080 to bookinfo/reviews:9080
          lets everybody in
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
fn a_client_knows_the_backends_of_encrypted_sessions() {
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
          lets everybody in
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
fn a_strict_client_reaches_the_root_of_a_split_through_a_backend() {
    let split = r#"
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: details, namespace: bookinfo}
spec: {service: details, backends: [{service: reviews-v1, weight: 1}, {service: nowhere, weight: 2}]}
"#;
    check_config(
        &strict_bookinfo(split),
        "productpage-1",
        &["details"],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          door 127.0.0.1:19080 to bookinfo/reviews:9080
          lets in by 0 rules
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
fn a_client_knows_what_it_subscribed_to_and_what_does_not_exist() {
    check_config(
        BOOKINFO,
        "stranger-1",
        &["details", "nowhere"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          lets everybody in
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
          lets everybody in
    "#]],
    );
}

#[test]
fn a_strict_client_reaches_a_service_through_a_backend_and_only_permitted_endpoints() {
    check_config(
        &strict_bookinfo(""),
        "productpage-1",
        &["details"],
        &expect![[r#"
        bookinfo/productpage-1 is bookinfo/productpage at 127.0.0.1
          serves bookinfo/productpage on 9080
          door 127.0.0.1:19080 to bookinfo/reviews:9080
          lets in by 0 rules
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
fn a_strict_client_that_no_policy_names_is_denied_everything() {
    check_config(
        &strict_bookinfo(""),
        "stranger-1",
        &["reviews", "reviews-v1", "details"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          lets in by 0 rules
        bookinfo/details Denied
        bookinfo/reviews Denied
        bookinfo/reviews-v1 Denied
    "#]],
    );
}

#[test]
fn a_strict_server_lets_in_what_its_policies_say() {
    check_config(
        &strict_bookinfo(""),
        "reviews-v1-1",
        &[],
        &expect![[r#"
        bookinfo/reviews-v1-1 is bookinfo/reviews at 127.0.0.1
          serves bookinfo/reviews on 9082
          lets in by 1 rules
            bookinfo/reviews: [bookinfo/productpage] http ["[\"GET\"] /reviews/[0-9]+"] tcp []
    "#]],
    );
}

#[test]
fn a_strict_server_without_policy_lets_nobody_in() {
    check_config(
        &strict_bookinfo(""),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          lets in by 0 rules
    "#]],
    );
}

#[test]
fn policies_for_one_account_stand_side_by_side() {
    let more = r#"
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
        &strict_bookinfo(more),
        "reviews-v1-1",
        &[],
        &expect![[r#"
        bookinfo/reviews-v1-1 is bookinfo/reviews at 127.0.0.1
          serves bookinfo/reviews on 9082
          lets in by 2 rules
            bookinfo/more: [bookinfo/stranger] http ["[\"PUT\"] /reviews/[0-9]+", "[\"GET\"] /reviews/[0-9]+"] tcp [70, 9082, 9083]
            bookinfo/reviews: [bookinfo/productpage] http ["[\"GET\"] /reviews/[0-9]+"] tcp []
    "#]],
    );
    check_config(
        &strict_bookinfo(more),
        "stranger-1",
        &["reviews-v1", "reviews-v2"],
        &expect![[r#"
        bookinfo/stranger-1 is bookinfo/stranger at 127.0.0.1
          lets in by 0 rules
        bookinfo/reviews-v1 Allowed
          9080 HTTP
            10.0.0.3:19082 bookinfo/reviews-v1-1 as bookinfo/reviews
        bookinfo/reviews-v2 Denied
    "#]],
    );
}

#[test]
fn what_a_policy_refers_to_and_is_missing_allows_nothing_and_is_reported() {
    let more = r#"
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
        &strict_bookinfo(more),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          lets in by 1 rules
            bookinfo/broken: [bookinfo/productpage] http [] tcp []
    "#]],
    );
    let mesh = mesh_with_sidecars(&strict_bookinfo(more));
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
    let more = r#"
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
        &strict_bookinfo(more),
        "details-1",
        &[],
        &expect![[r#"
        bookinfo/details-1 is bookinfo/details at 127.0.0.1
          serves bookinfo/details on 9081
          lets in by 1 rules
            bookinfo/all: [bookinfo/productpage] http [] tcp all
    "#]],
    );
}

#[test]
fn a_service_without_workloads_is_open_in_permissive_and_closed_in_strict_mode() {
    let empty = r#"
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: bookinfo}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
"#;
    let reach = |yaml: &str| {
        let mesh = mesh_with_sidecars(yaml);
        let client = mesh.workload(&workload_name("productpage-1")).unwrap();
        let client_class = ClientClass::for_client(&mesh, client);
        let view =
            compile_service(&mesh, &client_class, mesh.service(&service_name("empty")).unwrap());
        (view.client_authorization, view.ports.len())
    };
    assert_eq!(reach(&format!("{BOOKINFO}{empty}")), (ClientAuthorization::Allowed, 1));
    assert_eq!(reach(&strict_bookinfo(empty)), (ClientAuthorization::Denied, 0));
}

#[test]
fn the_backends_of_backends_are_known_too_and_circles_end() {
    let more = r#"
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: back, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews-v2}]
  rules:
  - backendRefs: [{name: details, port: 9080}, {name: reviews, port: 9080}, {name: gone, port: 1}]
"#;
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{more}"));
    let client = mesh.workload(&workload_name("stranger-1")).unwrap();
    let wanted = BTreeSet::from([service_name("reviews")]);
    let compiled_config =
        compile_config(&mesh, client, &wanted, &mut ServiceConfigCache::default());
    let known: Vec<&ServiceName> = compiled_config.snapshot.services.keys().collect();
    let expected = ["details", "reviews", "reviews-v1", "reviews-v2"].map(service_name);
    assert_eq!(known, expected.iter().collect::<Vec<_>>());
    assert_eq!(compiled_config.absent, BTreeSet::from([service_name("gone")]));
}

#[test]
fn a_port_speaks_what_its_service_says_or_its_workloads_agree_on() {
    let with = |port: &str, v2: &str| {
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
    assert_eq!(with("", "HTTP"), "HTTP");
    assert_eq!(with("", "TCP"), "detect");
    assert_eq!(with("appProtocol: tcp, ", "HTTP"), "TCP");
}

#[test]
fn endpoints_have_weights_where_these_differ() {
    let weights = |one: &str, other: &str| -> Vec<Option<u16>> {
        let yaml = BOOKINFO
            .replace("port: 9082, protocol: HTTP}]", &format!("port: 9082, protocol: HTTP}}]{one}"))
            .replace(
                "port: 9083, protocol: HTTP}]",
                &format!("port: 9083, protocol: HTTP}}]{other}"),
            );
        let mesh = mesh_with_sidecars(&yaml);
        let reviews = mesh.service(&service_name("reviews")).unwrap();
        let endpoints =
            &compile_service(&mesh, &ClientClass::AllClients, reviews).ports[&9080].endpoints;
        endpoints.iter().map(|it| it.weight.map(|weight| weight.as_u16())).collect()
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
fn views_that_did_not_change_stay_the_same_and_changed_ones_keep_their_endpoints() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let mut views = ServiceConfigCache::default();
    let (name, client_class) = (service_name("reviews"), ClientClass::AllClients);
    let before = views.service_config(&mesh, &client_class, &name).unwrap();
    let mut affected_set = mesh.set_listeners(&workload_name("details-1"), None);
    affected_set.all_proxies = true;
    views.mark_outdated(&affected_set);
    let same = views.service_config(&mesh, &client_class, &name).unwrap();
    assert!(Arc::ptr_eq(&before, &same));
    views.mark_outdated(&mesh.set_listeners(&workload_name("reviews-v2-1"), None));
    let after = views.service_config(&mesh, &client_class, &name).unwrap();
    assert_eq!((before.ports[&9080].endpoints.len(), after.ports[&9080].endpoints.len()), (2, 1));
    assert!(Arc::ptr_eq(&before.ports[&9080].endpoints[0], &after.ports[&9080].endpoints[0]));
    drop((before, same, after));
    views.evict_unused();
    assert_eq!(views.len(), 1, "somebody may ask again soon");
    (0..16).for_each(|_| views.evict_unused());
    assert_eq!(views.len(), 0);
}

#[test]
fn explaining_assumes_that_every_application_is_where_it_says() {
    let objects = crate::fixture::parse_objects(&strict_bookinfo(""));
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
fn a_policy_reaches_the_ports_it_is_attached_to_and_the_closest_decides() {
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
    let decides = |yaml: &str, name: &str| {
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{yaml}"));
        let view = compile_service(
            &mesh,
            &ClientClass::AllClients,
            mesh.service(&service_name(name)).unwrap(),
        );
        let outlier_detection = view.ports[&9080].traffic_policy.outlier_detection.clone();
        outlier_detection.map(|outlier_detection| outlier_detection.policy.to_string())
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(decides("", "reviews-v1"), None);
    assert_eq!(decides(&outlier_detection("b", ""), "reviews-v2"), None);
    let all = format!("{}{}{sermant}", outlier_detection("b", ""), outlier_detection("c", ""));
    assert_eq!(decides(&all, "reviews-v1"), some("OutlierDetection bookinfo/b"));
    assert_eq!(decides(&all, "reviews-v2"), some("SermantRemoval bookinfo/all"));
    let closer = format!("{all}{}", outlier_detection("z", ", port: 9080"));
    assert_eq!(decides(&closer, "reviews-v1"), some("OutlierDetection bookinfo/z"));
    let other_replicas = format!("{all}{}", outlier_detection("a", ", port: 1"));
    assert_eq!(decides(&other_replicas, "reviews-v1"), some("OutlierDetection bookinfo/b"));
}
