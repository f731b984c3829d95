//! Conflicting objects: the one without effect reports the other one until that is deleted.

use super::*;
use crate::status::DesiredStatus;

/// Returns the status of an object: accepted, or the object that takes precedence.
fn status_of(store: &mut ObjectStore, kind: &str, name: &str) -> String {
    let statements = store.changed_statements().expect("something is to be said");
    let is_it = |it: &&DesiredStatus| (it.target.kind, it.target.name.as_str()) == (kind, name);
    let Some(statement) = statements.iter().find(is_it) else { return "nothing".to_owned() };
    let (first, generation) = match &statement.content {
        StatusContent::Conditions(all) => (&all[0], statement.generation),
        StatusContent::Parents(parents) => (&parents[0].conditions[0], parents[0].generation),
        StatusContent::Current(Ok(())) => return "committed".to_owned(),
        StatusContent::Current(Err(cause)) => return cause.clone(),
        StatusContent::Nothing => return statement.conflict.clone().expect("it gives way"),
        other => panic!("{other:?}"),
    };
    assert_eq!((first.word, generation, &statement.conflict), ("Accepted", 2, &None));
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
    check_made(first, second, ["2025-01-01T00:00:00Z"; 2], alone, expected);
}

/// The same, with creation times.
fn check_made(
    first: (&str, &str, Value),
    second: (&str, &str, Value),
    made: [&str; 2],
    alone: &str,
    expected: &str,
) {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let put = |store: &mut ObjectStore, (kind, name, spec): &(&str, &str, Value), made: &str| {
        let (word, group) = kind.split_once('.').unwrap();
        let kind = index(word, group);
        store.apply_event(kind, custom_event(kind, name, made, spec.clone()));
        kind
    };
    let word = second.0.split('.').next().unwrap();
    put(&mut store, &second, made[1]);
    assert_eq!(status_of(&mut store, word, second.1), alone, "{word} alone");
    let kind = put(&mut store, &first, made[0]);
    assert_eq!(status_of(&mut store, word, second.1), expected, "{word}");
    store.apply_event(kind, removal_event("shop", first.1));
    assert_eq!(status_of(&mut store, word, second.1), alone, "{word} again");
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
fn a_route_without_a_say_names_the_one_that_has_it() {
    let conflicted =
        |who: &str| format!("Conflicted: {who} is attached to the same port and takes precedence");
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
    let (one, both) = (tls(&["a.example"]), tls(&["a.example", "*.b.example"]));
    assert_precedence(
        (TLS, "a", both.clone()),
        (TLS, "b", one.clone()),
        "True",
        &conflicted("TLSRoute shop/a"),
    );
    assert_precedence((TLS, "a", one), (TLS, "b", both), "True", "True");
}

#[test]
fn a_route_that_has_a_say_at_one_of_its_ports_is_accepted() {
    let mut store = listed_store();
    let two = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    let two: Served = serde_json::from_value(two).unwrap();
    store.apply_event(SERVICES, WatchEvent::Seen(Box::new(ConvertedObject::from_service(two))));
    let group = "gateway.networking.k8s.io";
    let (http, grpc) = (index("HTTPRoute", group), index("GRPCRoute", group));
    let day = "2025-01-01T00:00:00Z";
    store.apply_event(grpc, custom_event(grpc, "g", day, route_spec(Some(80))));
    store.apply_event(http, custom_event(http, "h", day, route_spec(None)));
    assert_eq!(status_of(&mut store, "HTTPRoute", "h"), "True");
    store.apply_event(http, custom_event(http, "h", day, route_spec(Some(80))));
    assert!(status_of(&mut store, "HTTPRoute", "h").starts_with("Conflicted: GRPCRoute shop/g"));
}

#[test]
fn the_oldest_of_tcp_routes_decides_whatever_it_is_called() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let kind = index("TCPRoute", "gateway.networking.k8s.io");
    store.apply_event(kind, custom_event(kind, "a", "2025-01-02T00:00:00Z", route_spec(None)));
    store.apply_event(kind, custom_event(kind, "z", "2025-01-01T00:00:00Z", route_spec(None)));
    assert!(status_of(&mut store, "TCPRoute", "a").starts_with("Conflicted: TCPRoute shop/z"));
}

#[test]
fn a_retry_that_is_about_the_same_requests_names_the_first() {
    let retry = |services: &[&str]| {
        let to = |name: &&str| json!({"kind": "Service", "name": name, "namespace": "shop"});
        json!({
            "source": {"kind": "ServiceAccount", "name": "client", "namespace": "shop"},
            "destinations": services.iter().map(to).collect::<Vec<_>>(),
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
fn rules_about_tags_name_the_nearer_ones() {
    let rules = json!([{"split": [{"tags": {"version": "2"}}], "fallbackPolicy": "any"}]);
    let whole = json!({"scope": "namespace", "fallbackPolicy": "any", "rules": rules});
    let near = json!({"service": "web", "fallbackPolicy": "any", "rules": rules});
    let decides = "Conflicted: TagRoute shop/near takes precedence";
    assert_precedence((TAGS, "near", near.clone()), (TAGS, "whole", whole), "True", decides);
    // All objects of one service count.
    assert_precedence((TAGS, "near", near.clone()), (TAGS, "other", near.clone()), "True", "True");
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
    let both = (published.clone(), published.clone());
    assert_precedence((SERMANT, "a", both.0), (SERMANT, "b", both.1), "True", first);
}

#[test]
fn a_split_that_decides_nothing_is_reported_of_in_an_event() {
    let split = || json!({"service": "web", "backends": [{"service": "web", "weight": 1}]});
    let first = "TrafficSplit shop/a is for the same service, and is first in alphabetical order";
    assert_precedence((SPLIT, "a", split()), (SPLIT, "b", split()), "nothing", first);
    let attached = "HTTPRoute shop/r is attached to shop/web and takes precedence";
    assert_precedence((HTTP, "r", route_spec(None)), (SPLIT, "b", split()), "nothing", attached);
}

/// Kinds of which one object wins a conflict: a spec, and the result while it is alone.
fn contested_kinds() -> Vec<(&'static str, Value, &'static str)> {
    let opens = json!({
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
        ("IngressBackend.policy.openservicemesh.io", opens.clone(), "committed"),
        ("AccessControl.policy.flomesh.io", opens, "committed"),
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

/// The same for policies of Services.
fn contested_policies() -> Vec<(&'static str, Value, &'static str)> {
    let policy = |more: Value| {
        let mut spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}]});
        for (key, value) in more.as_object().unwrap() {
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

/// Kinds of which all objects count, or one for each name.
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
fn the_older_object_of_each_kind_decides_whatever_its_name() {
    let (early, late) = ("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z");
    let all = [contested_kinds(), contested_policies()].concat();
    for (kind, spec, alone) in &all {
        for (older, newer) in [("z", "a"), ("a", "z")] {
            let mut store = listed_store();
            store.apply_event(SERVICES, service_event("web", 8080));
            let (word, group) = kind.split_once('.').unwrap();
            let at = index(word, group);
            store.apply_event(at, custom_event(at, older, early, spec.clone()));
            assert_eq!(status_of(&mut store, word, older), *alone, "{word} alone");
            store.apply_event(at, custom_event(at, newer, late, spec.clone()));
            let statements = store.changed_statements().unwrap();
            let of = |name: &str| {
                let mut found = statements.iter().filter(|it| it.target.kind == word);
                found
                    .find(|it| it.target.name == name)
                    .map(|it| format!("{:?} {:?}", it.content, it.conflict))
            };
            // The loser reports the winner; no report on the winner.
            let lost = of(newer).unwrap_or_default();
            assert!(
                lost.contains(&format!("shop/{older}")),
                "{word}: {newer} after {older}: {lost}"
            );
            let won = of(older).unwrap_or_default();
            assert!(!won.contains(&format!("shop/{newer}")), "{word}: {won}");
            // An invalid object does not replace a valid one.
            store.apply_event(at, custom_event(at, newer, late, json!({"surely": "not"})));
            let statements = store.changed_statements();
            let won = statements.iter().flatten().find(|it| it.target.name == older);
            let won =
                won.map(|it| format!("{:?} {:?}", it.content, it.conflict)).unwrap_or_default();
            assert!(!won.contains(&format!("shop/{newer}")), "{word}: {won}");
        }
    }
    for served in leno_registry::served_kinds() {
        let is_contested =
            all.iter().any(|(kind, ..)| kind.starts_with(&format!("{}.", served.kind)));
        assert!(
            is_contested || ADDITIVE.contains(&served.kind),
            "{}: which one decides?",
            served.kind
        );
    }
}

#[test]
fn a_missing_reference_is_an_event_on_the_object_at_fault() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    let split = |to: &str| json!({"service": "web", "backends": [{"service": to, "weight": 1}]});
    let kind = index("TrafficSplit", "split.smi-spec.io");
    let notes = |store: &mut ObjectStore| -> Vec<(String, String)> {
        let statements = store.changed_statements().unwrap();
        let notes = statements.iter().flat_map(|it| {
            let notes = it.event_notes().into_iter();
            notes.filter_map(|(reason, note)| {
                Some((it.target.name.clone(), format!("{reason}: {}", note?)))
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
    let bad = |note: &str| ("bad".to_owned(), note.to_owned());
    assert_eq!(notes(&mut store), [bad(older), bad(missing)]);
    let targets = index("TrafficTarget", "access.smi-spec.io");
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": "shop"});
    let target = json!({
        "destination": account("web"), "sources": [account("client")],
        "rules": [{"kind": "HTTPRouteGroup", "name": "g", "matches": ["all"]}],
    });
    store.apply_event(kind, removal_event("shop", "bad"));
    store.apply_event(targets, custom_event(targets, "t", "2025-01-01T00:00:00Z", target));
    let missing = "RefNotFound: spec.rules[0].name: there is no HTTPRouteGroup shop/g";
    assert_eq!(notes(&mut store), [("t".to_owned(), missing.to_owned())]);
    let groups = index("HTTPRouteGroup", "specs.smi-spec.io");
    let all = json!({"matches": [{"name": "all", "pathRegex": ".*"}]});
    store.apply_event(groups, custom_event(groups, "g", "2025-01-01T00:00:00Z", all));
    assert_eq!(notes(&mut store), []);
}

/// Issue 27: routes decide before splits whatever their age, so the event names the missing backend.
#[test]
fn a_split_names_the_error_of_the_newer_route_that_decides_instead() {
    let mut store = listed_store();
    for name in ["web", "v1"] {
        store.apply_event(SERVICES, service_event(name, 8080));
    }
    let splits = index("TrafficSplit", "split.smi-spec.io");
    let split = json!({"service": "web", "backends": [{"service": "v1", "weight": 1}]});
    store.apply_event(splits, custom_event(splits, "old", "2025-01-01T00:00:00Z", split));
    let routes = index("HTTPRoute", "gateway.networking.k8s.io");
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
fn an_older_split_whose_backend_disappears_still_decides() {
    let split = |to: &str| json!({"service": "web", "backends": [{"service": to, "weight": 1}]});
    let mut store = listed_store();
    for name in ["web", "v1", "v2"] {
        store.apply_event(SERVICES, service_event(name, 8080));
    }
    let kind = index("TrafficSplit", "split.smi-spec.io");
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
