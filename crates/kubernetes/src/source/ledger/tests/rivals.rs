//! What gives way to another says who decides instead, until that goes.

use super::*;
use crate::status::Statement;

/// What is said of an object: whether it is accepted, or what decides instead of it.
fn said(ledger: &mut Ledger, kind: &str, name: &str) -> String {
    let statements = ledger.statements().expect("something is to be said");
    let is_it = |it: &&Statement| (it.target.kind, it.target.name.as_str()) == (kind, name);
    let Some(statement) = statements.iter().find(is_it) else { return "nothing".to_owned() };
    let (first, generation) = match &statement.said {
        Said::Conditions(all) => (&all[0], statement.generation),
        Said::Parents(parents) => (&parents[0].conditions[0], parents[0].generation),
        Said::Current(Ok(())) => return "committed".to_owned(),
        Said::Current(Err(why)) => return why.clone(),
        Said::Nothing => return statement.conflict.clone().expect("it gives way"),
        other => panic!("{other:?}"),
    };
    assert_eq!((first.word, generation, &statement.conflict), ("Accepted", 2, &None));
    match first.status {
        "True" => "True".to_owned(),
        _ => format!("{}: {}", first.reason, first.message),
    }
}

/// The second object is in force but while the first is there. Both are made on the same day.
fn check(first: (&str, &str, Value), second: (&str, &str, Value), alone: &str, expected: &str) {
    let mut ledger = settled();
    ledger.take(SERVICES, service("web", 8080));
    let day = "2025-01-01T00:00:00Z";
    let put = |ledger: &mut Ledger, (kind, name, spec): &(&str, &str, Value)| {
        let (word, group) = kind.split_once('.').unwrap();
        let kind = index(word, group);
        ledger.take(kind, custom(kind, name, day, spec.clone()));
        kind
    };
    let word = second.0.split('.').next().unwrap();
    put(&mut ledger, &second);
    assert_eq!(said(&mut ledger, word, second.1), alone, "{word} alone");
    let kind = put(&mut ledger, &first);
    assert_eq!(said(&mut ledger, word, second.1), expected, "{word}");
    ledger.take(kind, gone("shop", first.1));
    assert_eq!(said(&mut ledger, word, second.1), alone, "{word} again");
}

fn at(port: Option<u16>) -> Value {
    json!({"group": "", "kind": "Service", "name": "web", "port": port})
}

/// The rule of a route.
fn route(port: Option<u16>) -> Value {
    json!({"parentRefs": [at(port)], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]})
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
        |who: &str| format!("Conflicted: {who} is attached there too, and decides instead");
    check(
        (GRPC, "a", route(Some(80))),
        (HTTP, "a", route(None)),
        "True",
        &conflicted("GRPCRoute shop/a"),
    );
    check((HTTP, "a", route(None)), (GRPC, "b", route(None)), "True", "True");
    let tcp = || route(None);
    check((TCP, "a", tcp()), (TCP, "b", tcp()), "True", &conflicted("TCPRoute shop/a"));
    check((TCP, "c", tcp()), (TCP, "b", tcp()), "True", "True");
    let tls = |names: &[&str]| {
        let mut spec = route(None);
        spec["hostnames"] = json!(names);
        spec
    };
    let (one, both) = (tls(&["a.example"]), tls(&["a.example", "*.b.example"]));
    check(
        (TLS, "a", both.clone()),
        (TLS, "b", one.clone()),
        "True",
        &conflicted("TLSRoute shop/a"),
    );
    check((TLS, "a", one), (TLS, "b", both), "True", "True");
}

#[test]
fn a_route_that_has_a_say_at_one_of_its_ports_is_accepted() {
    let mut ledger = settled();
    let two = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                 "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    let two: Served = serde_json::from_value(two).unwrap();
    ledger.take(SERVICES, News::Seen(Box::new(Seen::service(two))));
    let group = "gateway.networking.k8s.io";
    let (http, grpc) = (index("HTTPRoute", group), index("GRPCRoute", group));
    let day = "2025-01-01T00:00:00Z";
    ledger.take(grpc, custom(grpc, "g", day, route(Some(80))));
    ledger.take(http, custom(http, "h", day, route(None)));
    assert_eq!(said(&mut ledger, "HTTPRoute", "h"), "True");
    ledger.take(http, custom(http, "h", day, route(Some(80))));
    assert!(said(&mut ledger, "HTTPRoute", "h").starts_with("Conflicted: GRPCRoute shop/g"));
}

#[test]
fn the_oldest_of_tcp_routes_decides_whatever_it_is_called() {
    let mut ledger = settled();
    ledger.take(SERVICES, service("web", 8080));
    let kind = index("TCPRoute", "gateway.networking.k8s.io");
    ledger.take(kind, custom(kind, "a", "2025-01-02T00:00:00Z", route(None)));
    ledger.take(kind, custom(kind, "z", "2025-01-01T00:00:00Z", route(None)));
    assert!(said(&mut ledger, "TCPRoute", "a").starts_with("Conflicted: TCPRoute shop/z"));
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
    let first = "Retry shop/a is about the same requests, and comes first by name";
    check((RETRY, "a", retry(&["web"])), (RETRY, "b", retry(&["web"])), "committed", first);
    check((RETRY, "a", retry(&["other"])), (RETRY, "b", retry(&["web"])), "committed", "committed");
    // What is not there is nobody's.
    check(
        (RETRY, "a", retry(&["web"])),
        (RETRY, "b", retry(&["web", "other"])),
        "committed",
        first,
    );
}

#[test]
fn rules_about_tags_name_the_nearer_ones() {
    let rules = json!([{"split": [{"tags": {"version": "2"}}], "otherwise": "any"}]);
    let whole = json!({"scope": "namespace", "otherwise": "any", "rules": rules});
    let near = json!({"service": "web", "otherwise": "any", "rules": rules});
    let decides = "Conflicted: TagRoute shop/near decides instead";
    check((TAGS, "near", near.clone()), (TAGS, "whole", whole), "True", decides);
    // Of one service all count.
    check((TAGS, "near", near.clone()), (TAGS, "other", near.clone()), "True", "True");
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
    let first = "Conflicted: SermantRouteRule shop/a decides instead";
    let both = (published.clone(), published.clone());
    check((SERMANT, "a", both.0), (SERMANT, "b", both.1), "True", first);
}

#[test]
fn a_split_that_decides_nothing_is_told_of_in_an_event() {
    let split = || json!({"service": "web", "backends": [{"service": "web", "weight": 1}]});
    let first = "TrafficSplit shop/a is for the same service, and comes first by name";
    check((SPLIT, "a", split()), (SPLIT, "b", split()), "nothing", first);
    let attached = "HTTPRoute shop/r is attached to shop/web, and decides there alone";
    check((HTTP, "r", route(None)), (SPLIT, "b", split()), "nothing", attached);
}
