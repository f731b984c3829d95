//! Tests conflicting objects: the object without effect reports the other object until that object is deleted.

use super::*;
use crate::status::DesiredStatus;

/// Returns the status of an object: accepted, or the object that takes precedence.
fn status_of(store: &mut ObjectStore, kind: &str, name: &str) -> String {
    let statuses = store.changed_statuses().expect("statuses have changed");
    let matches =
        |status: &&DesiredStatus| (status.target.kind, status.target.name.as_str()) == (kind, name);
    let Some(status) = statuses.iter().find(matches) else { return "nothing".to_owned() };
    let (first, generation) = match &status.content {
        StatusContent::Conditions(all) => (&all[0], status.generation),
        StatusContent::Parents(parents) => (&parents[0].conditions[0], parents[0].generation),
        StatusContent::Current(Ok(())) => return "committed".to_owned(),
        StatusContent::Current(Err(cause)) => return cause.clone(),
        StatusContent::NoStatus => return status.conflict.clone().expect("a conflict"),
        other => panic!("{other:?}"),
    };
    assert_eq!((first.name, generation, &status.conflict), ("Accepted", 2, &None));
    match first.status {
        "True" => "True".to_owned(),
        _ => format!("{}: {}", first.reason, first.message),
    }
}

/// Checks that the second object is in force only without the first. Both are created on the same day.
fn assert_precedence(
    first: (&str, &str, Value),
    second: (&str, &str, Value),
    alone: &str,
    expected: &str,
) {
    assert_precedence_with_times(first, second, ["2025-01-01T00:00:00Z"; 2], alone, expected);
}

/// As [`assert_precedence`], with creation times.
fn assert_precedence_with_times(
    first: (&str, &str, Value),
    second: (&str, &str, Value),
    created: [&str; 2],
    alone: &str,
    expected: &str,
) {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let apply =
        |store: &mut ObjectStore, (kind, name, spec): &(&str, &str, Value), created: &str| {
            let (kind_name, group) = kind.split_once('.').unwrap();
            let kind = kind_index(kind_name, group);
            store.apply_event(kind, custom_event(kind, name, created, spec.clone()));
            kind
        };
    let kind_name = second.0.split('.').next().unwrap();
    apply(&mut store, &second, created[1]);
    assert_eq!(status_of(&mut store, kind_name, second.1), alone, "{kind_name} alone");
    let kind = apply(&mut store, &first, created[0]);
    assert_eq!(status_of(&mut store, kind_name, second.1), expected, "{kind_name}");
    store.apply_event(kind, removal_event("shop", first.1));
    assert_eq!(status_of(&mut store, kind_name, second.1), alone, "{kind_name} again");
}

fn parent_ref(port: Option<u16>) -> Value {
    json!({"group": "", "kind": "Service", "name": "web", "port": port})
}

/// Returns a route.
fn route_spec(port: Option<u16>) -> Value {
    json!({"parentRefs": [parent_ref(port)], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]})
}

const HTTP: &str = "HTTPRoute.gateway.networking.k8s.io";
const GRPC: &str = "GRPCRoute.gateway.networking.k8s.io";
const TCP: &str = "TCPRoute.gateway.networking.k8s.io";
const TLS: &str = "TLSRoute.gateway.networking.k8s.io";
const SPLIT: &str = "TrafficSplit.split.smi-spec.io";
const TAGS: &str = "TagRoute.leno.dev";
const SERMANT: &str = "SermantRouteRule.leno.dev";
const RETRY: &str = "Retry.policy.openservicemesh.io";

#[test]
fn a_route_without_effect_names_the_one_that_takes_precedence() {
    let conflicted = |name: &str| {
        format!("Conflicted: {name} is attached to the same port and takes precedence")
    };
    assert_precedence(
        (GRPC, "a", route_spec(Some(80))),
        (HTTP, "a", route_spec(None)),
        "True",
        &conflicted("GRPCRoute shop/a"),
    );
    assert_precedence((HTTP, "a", route_spec(None)), (GRPC, "b", route_spec(None)), "True", "True");
    let tcp = || route_spec(None);
    assert_precedence((TCP, "a", tcp()), (TCP, "b", tcp()), "True", &conflicted("TCPRoute shop/a"));
    assert_precedence((TCP, "c", tcp()), (TCP, "b", tcp()), "True", "True");
    let tls = |names: &[&str]| {
        let mut spec = route_spec(None);
        spec["hostnames"] = json!(names);
        spec
    };
    let (one_host, two_hosts) = (tls(&["a.example"]), tls(&["a.example", "*.b.example"]));
    assert_precedence(
        (TLS, "a", two_hosts.clone()),
        (TLS, "b", one_host.clone()),
        "True",
        &conflicted("TLSRoute shop/a"),
    );
    assert_precedence((TLS, "a", one_host), (TLS, "b", two_hosts), "True", "True");
}

#[test]
fn a_route_in_force_on_one_of_its_ports_is_accepted() {
    let mut store = listed_store();
    let service = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    let service: KubeService = serde_json::from_value(service).unwrap();
    store.apply_event(
        SERVICES,
        WatchEvent::Applied(Box::new(ConvertedObject::from_service(service))),
    );
    let group = "gateway.networking.k8s.io";
    let (http, grpc) = (kind_index("HTTPRoute", group), kind_index("GRPCRoute", group));
    let day = "2025-01-01T00:00:00Z";
    store.apply_event(grpc, custom_event(grpc, "g", day, route_spec(Some(80))));
    store.apply_event(http, custom_event(http, "h", day, route_spec(None)));
    assert_eq!(status_of(&mut store, "HTTPRoute", "h"), "True");
    store.apply_event(http, custom_event(http, "h", day, route_spec(Some(80))));
    assert!(status_of(&mut store, "HTTPRoute", "h").starts_with("Conflicted: GRPCRoute shop/g"));
}

#[test]
fn the_oldest_tcp_route_takes_precedence_whatever_its_name() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let kind = kind_index("TCPRoute", "gateway.networking.k8s.io");
    store.apply_event(kind, custom_event(kind, "a", "2025-01-02T00:00:00Z", route_spec(None)));
    store.apply_event(kind, custom_event(kind, "z", "2025-01-01T00:00:00Z", route_spec(None)));
    assert!(status_of(&mut store, "TCPRoute", "a").starts_with("Conflicted: TCPRoute shop/z"));
}

#[test]
fn a_retry_policy_for_the_same_requests_names_the_policy_in_force() {
    let retry = |services: &[&str]| {
        let destination =
            |name: &&str| json!({"kind": "Service", "name": name, "namespace": "shop"});
        json!({
            "source": {"kind": "ServiceAccount", "name": "client", "namespace": "shop"},
            "destinations": services.iter().map(destination).collect::<Vec<_>>(),
            "retryPolicy": {"retryOn": "5xx", "numRetries": 1},
        })
    };
    let first = "Retry shop/a applies to the same requests, and is first in alphabetical order";
    assert_precedence(
        (RETRY, "a", retry(&["web"])),
        (RETRY, "b", retry(&["web"])),
        "committed",
        first,
    );
    assert_precedence(
        (RETRY, "a", retry(&["other"])),
        (RETRY, "b", retry(&["web"])),
        "committed",
        "committed",
    );
    // Targets that do not exist do not count.
    assert_precedence(
        (RETRY, "a", retry(&["web"])),
        (RETRY, "b", retry(&["web", "other"])),
        "committed",
        first,
    );
}

#[test]
fn a_tag_route_of_a_namespace_names_the_one_of_a_service() {
    let rules = json!([{"split": [{"tags": {"version": "2"}}], "fallbackPolicy": "any"}]);
    let namespace_spec = json!({"scope": "namespace", "fallbackPolicy": "any", "rules": rules});
    let service_spec = json!({"service": "web", "fallbackPolicy": "any", "rules": rules});
    let expected = "Conflicted: TagRoute shop/near takes precedence";
    assert_precedence(
        (TAGS, "near", service_spec.clone()),
        (TAGS, "whole", namespace_spec),
        "True",
        expected,
    );
    // All objects of one service count.
    assert_precedence(
        (TAGS, "near", service_spec.clone()),
        (TAGS, "other", service_spec.clone()),
        "True",
        "True",
    );
    let flow = json!({
        "kind": "routematcher.sermant.io/flow",
        "rules": [{
            "precedence": 1,
            "match": {"headers": {"x-user-tier": {"exact": "gold"}}},
            "route": [{"weight": 100, "tags": {"version": "2"}}],
        }],
    });
    let published =
        json!({"compat": "sermant", "key": "servicecomb.routeRule.web", "rules": [flow]});
    let first = "Conflicted: SermantRouteRule shop/a takes precedence";
    let specs = (published.clone(), published.clone());
    assert_precedence((SERMANT, "a", specs.0), (SERMANT, "b", specs.1), "True", first);
}

#[test]
fn a_split_without_effect_has_an_event() {
    let split = || json!({"service": "web", "backends": [{"service": "web", "weight": 1}]});
    let first = "TrafficSplit shop/a is for the same service, and is first in alphabetical order";
    assert_precedence((SPLIT, "a", split()), (SPLIT, "b", split()), "nothing", first);
    let attached = "HTTPRoute shop/r is attached to shop/web and takes precedence";
    assert_precedence((HTTP, "r", route_spec(None)), (SPLIT, "b", split()), "nothing", attached);
}

/// Kinds with conflicts: a spec, and the status of an object without a conflict.
fn contested_kinds() -> Vec<(&'static str, Value, &'static str)> {
    let ingress_spec = json!({
        "backends": [{"name": "web", "port": {"number": 8080, "protocol": "http"}}],
        "sources": [{"kind": "IPRange", "name": "10.0.0.0/8"}],
    });
    let mut tls = route_spec(None);
    tls["hostnames"] = json!(["a.example"]);
    let client = json!({"kind": "ServiceAccount", "name": "client", "namespace": "shop"});
    let host = "web.shop.svc.cluster.local";
    let removal =
        "rules:\n- {key: default-rule, scaleUpLimit: 0.6, minInstanceNum: 1, errorRate: 0.6}\n";
    let flow = json!({
        "kind": "routematcher.sermant.io/flow",
        "rules": [{"precedence": 1, "match": {"headers": {"x": {"exact": "y"}}},
                   "route": [{"weight": 100, "tags": {"version": "2"}}]}],
    });
    vec![
        (
            SPLIT,
            json!({"service": "web", "backends": [{"service": "web", "weight": 1}]}),
            "nothing",
        ),
        (TCP, route_spec(None), "True"),
        (TLS, tls, "True"),
        (
            RETRY,
            json!({
                "source": client,
                "destinations": [{"kind": "Service", "name": "web", "namespace": "shop"}],
                "retryPolicy": {"retryOn": "5xx", "numRetries": 1},
            }),
            "committed",
        ),
        ("IngressBackend.policy.openservicemesh.io", ingress_spec.clone(), "committed"),
        ("AccessControl.policy.flomesh.io", ingress_spec, "committed"),
        (
            "UpstreamTrafficSetting.policy.openservicemesh.io",
            json!({"host": host, "connectionSettings": {"tcp": {"maxConnections": 3}}}),
            "committed",
        ),
        (
            SERMANT,
            json!({"compat": "sermant", "key": "servicecomb.routeRule.web", "rules": [flow]}),
            "True",
        ),
        (
            "SermantRemoval.leno.dev",
            json!({"compat": "sermant", "config": format!("enableRemoval: true\n{removal}")}),
            "True",
        ),
    ]
}

/// As [`contested_kinds`], for policies of Services.
fn contested_policies() -> Vec<(&'static str, Value, &'static str)> {
    let policy = |fields: Value| {
        let mut spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}]});
        for (key, value) in fields.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let keys = json!({"keys": [{
        "kty": "EC", "crv": "P-256", "kid": "a", "use": "sig",
        "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    }]});
    let issuer = json!({"issuer": "https://a.example", "jwks": {"inline": keys.to_string()}});
    vec![
        ("OutlierDetection.leno.dev", policy(json!({"consecutiveFailures": 3})), "True"),
        ("CircuitBreaker.leno.dev", policy(json!({"limits": {"requests": 3}})), "True"),
        (
            "RateLimit.leno.dev",
            policy(json!({"rules": [{"name": "all", "requests": 5, "per": "1s"}]})),
            "True",
        ),
        (
            "FaultInjection.leno.dev",
            policy(json!({"rules": [{"name": "all", "delay": {"fixedDelay": "1s"}}]})),
            "True",
        ),
        ("LoadBalancing.leno.dev", policy(json!({"algorithm": "LeastRequest"})), "True"),
        ("Hedging.leno.dev", policy(json!({"after": "50ms"})), "True"),
        ("JwtValidation.leno.dev", policy(json!({"issuers": [issuer]})), "True"),
        (
            "ExternalAuthorization.leno.dev",
            policy(json!({"service": {"name": "web", "port": 80}})),
            "True",
        ),
    ]
}

/// Kinds of objects that do not conflict, or only by name.
const ADDITIVE: &[&str] = &[
    "AccessCert",
    "AccessPolicy",
    "Egress",
    "GRPCRoute",
    "HTTPRoute",
    "HTTPRouteGroup",
    "Lane",
    "MeshConfig",
    "ReferenceGrant",
    "TCPRoute",
    "TagRoute",
    "TrafficTarget",
    // Named after its Service.
    "TrafficWarmup",
];

#[test]
fn the_older_object_of_each_kind_takes_precedence_whatever_its_name() {
    let (early, late) = ("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z");
    let contested = [contested_kinds(), contested_policies()].concat();
    for (kind, spec, alone) in &contested {
        for (older, newer) in [("z", "a"), ("a", "z")] {
            let mut store = listed_store();
            store.apply_event(SERVICES, service_event("web", 8080));
            let (kind_name, group) = kind.split_once('.').unwrap();
            let kind_index = kind_index(kind_name, group);
            store.apply_event(kind_index, custom_event(kind_index, older, early, spec.clone()));
            assert_eq!(status_of(&mut store, kind_name, older), *alone, "{kind_name} alone");
            store.apply_event(kind_index, custom_event(kind_index, newer, late, spec.clone()));
            let statuses = store.changed_statuses().unwrap();
            let describe_status = |name: &str| {
                let mut of_kind = statuses.iter().filter(|status| status.target.kind == kind_name);
                of_kind
                    .find(|status| status.target.name == name)
                    .map(|status| format!("{:?} {:?}", status.content, status.conflict))
            };
            // The status of the newer object names the older one. The status of the older object names no conflict.
            let newer_status = describe_status(newer).unwrap_or_default();
            assert!(
                newer_status.contains(&format!("shop/{older}")),
                "{kind_name}: {newer} after {older}: {newer_status}"
            );
            let older_status = describe_status(older).unwrap_or_default();
            assert!(
                !older_status.contains(&format!("shop/{newer}")),
                "{kind_name}: {older_status}"
            );
            // An invalid object does not replace a valid one.
            store.apply_event(
                kind_index,
                custom_event(kind_index, newer, late, json!({"surely": "not"})),
            );
            let statuses = store.changed_statuses();
            let older_status = statuses.iter().flatten().find(|status| status.target.name == older);
            let older_status = older_status
                .map(|status| format!("{:?} {:?}", status.content, status.conflict))
                .unwrap_or_default();
            assert!(
                !older_status.contains(&format!("shop/{newer}")),
                "{kind_name}: {older_status}"
            );
        }
    }
    for served in leno_registry::served_kinds() {
        let is_contested =
            contested.iter().any(|(kind, ..)| kind.starts_with(&format!("{}.", served.kind)));
        assert!(
            is_contested || ADDITIVE.contains(&served.kind),
            "{}: neither contested nor additive",
            served.kind
        );
    }
}

#[test]
fn a_missing_reference_is_an_event_of_the_object_that_contains_it() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let split =
        |backend: &str| json!({"service": "web", "backends": [{"service": backend, "weight": 1}]});
    let kind = kind_index("TrafficSplit", "split.smi-spec.io");
    let notes = |store: &mut ObjectStore| -> Vec<(String, String)> {
        let statuses = store.changed_statuses().unwrap();
        let notes = statuses.iter().flat_map(|status| {
            let notes = status.event_notes().into_iter();
            notes.filter_map(|(reason, note)| {
                Some((status.target.name.clone(), format!("{reason}: {}", note?)))
            })
        });
        notes.collect()
    };
    store.apply_event(kind, custom_event(kind, "good", "2025-01-01T00:00:00Z", split("web")));
    assert_eq!(notes(&mut store), []);
    store.apply_event(kind, custom_event(kind, "bad", "2025-01-02T00:00:00Z", split("v9")));
    let missing =
        "RefNotFound: spec.backends[0].service: there is no Service shop/v9 that selects pods";
    let older = "Conflicted: TrafficSplit shop/good is for the same service, and is older";
    let of_bad = |note: &str| ("bad".to_owned(), note.to_owned());
    assert_eq!(notes(&mut store), [of_bad(older), of_bad(missing)]);
    let targets = kind_index("TrafficTarget", "access.smi-spec.io");
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": "shop"});
    let target = json!({
        "destination": account("web"), "sources": [account("client")],
        "rules": [{"kind": "HTTPRouteGroup", "name": "g", "matches": ["all"]}],
    });
    store.apply_event(kind, removal_event("shop", "bad"));
    store.apply_event(targets, custom_event(targets, "t", "2025-01-01T00:00:00Z", target));
    let missing = "RefNotFound: spec.rules[0].name: there is no HTTPRouteGroup shop/g";
    assert_eq!(notes(&mut store), [("t".to_owned(), missing.to_owned())]);
    let groups = kind_index("HTTPRouteGroup", "specs.smi-spec.io");
    let groups_spec = json!({"matches": [{"name": "all", "pathRegex": ".*"}]});
    store.apply_event(groups, custom_event(groups, "g", "2025-01-01T00:00:00Z", groups_spec));
    assert_eq!(notes(&mut store), []);
}

/// Issue 27: routes decide before splits whatever their age, so the event names the missing backend.
#[test]
fn a_split_names_the_error_of_the_newer_route_that_takes_precedence() {
    let mut store = listed_store();
    for name in ["web", "v1"] {
        store.apply_event(SERVICES, service_event(name, 8080));
    }
    let splits = kind_index("TrafficSplit", "split.smi-spec.io");
    let split = json!({"service": "web", "backends": [{"service": "v1", "weight": 1}]});
    store.apply_event(splits, custom_event(splits, "old", "2025-01-01T00:00:00Z", split));
    let routes = kind_index("HTTPRoute", "gateway.networking.k8s.io");
    let mut spec = route_spec(None);
    spec["rules"][0]["backendRefs"][0]["name"] = json!("v2");
    store.apply_event(routes, custom_event(routes, "new", "2025-02-01T00:00:00Z", spec));
    assert_eq!(
        status_of(&mut store, "TrafficSplit", "old"),
        "HTTPRoute shop/new is attached to shop/web and takes precedence; it has an error of its \
         own: there is no Service shop/v2 that selects pods"
    );
}

/// An object in force does not depend on the existence of its backends.
#[test]
fn an_older_split_with_a_deleted_backend_takes_precedence() {
    let split =
        |backend: &str| json!({"service": "web", "backends": [{"service": backend, "weight": 1}]});
    let mut store = listed_store();
    for name in ["web", "v1", "v2"] {
        store.apply_event(SERVICES, service_event(name, 8080));
    }
    let kind = kind_index("TrafficSplit", "split.smi-spec.io");
    store.apply_event(kind, custom_event(kind, "old", "2025-01-01T00:00:00Z", split("v1")));
    store.apply_event(kind, custom_event(kind, "new", "2025-02-01T00:00:00Z", split("v2")));
    let conflict = "TrafficSplit shop/old is for the same service, and is older";
    assert_eq!(status_of(&mut store, "TrafficSplit", "new"), conflict);
    store.apply_event(SERVICES, removal_event("shop", "v1"));
    let error = "spec.backends[0].service: there is no Service shop/v1 that selects pods";
    assert_eq!(
        status_of(&mut store, "TrafficSplit", "new"),
        format!("{conflict}; it has an error of its own: {error}")
    );
}
