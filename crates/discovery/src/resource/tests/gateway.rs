//! Tests of gateways: round trips, and keys that are never printed.

use leno_model::{
    Gateway, GatewayCertificate, GatewayListener, GatewayPort, HostPattern, HostRules, Name,
    RouteKind, RouteRule, Serves, TcpRule, TlsRule,
};

use super::*;

fn gateway() -> Gateway {
    let backend = || WeightedBackend::new(fixture::named("reviews"), 80, 1);
    let pattern = |text: &str| Some(text.parse::<HostPattern>().unwrap());
    let rule = RouteRule {
        route: "bookinfo/a".parse().unwrap(),
        matches: vec![RequestMatch::default()],
        backends: vec![backend()],
        request_timeout: None,
        actions: RuleActions { ungranted_weight: 1, ..RuleActions::default() },
        kind: RouteKind::Grpc,
    };
    let listener = |certificates| GatewayListener {
        name: Name::new("web").unwrap(),
        hostname: pattern("*.example.com"),
        certificates,
        hosts: vec![
            HostRules { hostname: pattern("a.example.com"), rules: vec![rule.clone()] },
            HostRules { hostname: None, rules: Vec::new() },
        ],
    };
    let certificate = GatewayCertificate { chain: "a chain".into(), key: "a secret".into() };
    let tls = TlsRule {
        route: "bookinfo/b".parse().unwrap(),
        hostnames: vec!["b.example.com".parse().unwrap()],
        backends: vec![backend()],
        ungranted_weight: 1,
    };
    let tcp = TcpRule {
        route: "bookinfo/c".parse().unwrap(),
        kind: RouteKind::Tcp,
        backends: vec![backend()],
        ungranted_weight: 2,
    };
    let serves = [
        Serves::Http(vec![listener(Vec::new())]),
        Serves::Https(vec![listener(vec![certificate])]),
        Serves::Passthrough(vec![tls]),
        Serves::Tcp(tcp),
    ];
    let ports = serves.into_iter().zip(1..).map(|(serves, port)| GatewayPort { port, serves });
    Gateway { name: "bookinfo/edge".parse().unwrap(), ports: ports.collect() }
}

fn plan() -> WorkloadPlan {
    WorkloadPlan { gateway: Some(Arc::new(gateway())), ..fixture::plan() }
}

#[test]
fn gateways_survive_the_journey() {
    let upsert = Upsert { key: ResourceKey::Plan, content: encode_plan(&plan()) };
    assert_eq!(Resource::decode(&upsert), Ok(Resource::Plan(Box::new(plan()))));
    let wire = proto::Plan::decode(upsert.content).unwrap();
    assert!(!format!("{wire:?}").contains("secret"));
}

#[test]
fn what_a_gateway_cannot_be_is_named() {
    fn port(plan: &mut proto::Plan, index: usize) -> &mut proto::GatewayPort {
        &mut plan.gateway.as_mut().unwrap().ports[index]
    }
    fn listener(plan: &mut proto::Plan) -> &mut proto::GatewayListener {
        match &mut port(plan, 0).serves {
            Some(proto::gateway_port::Serves::Http(http)) => &mut http.listeners[0],
            other => panic!("{other:?}"),
        }
    }
    type Edit = fn(&mut proto::Plan);
    let cases: [(Edit, &str); 6] = [
        (|p| p.gateway.as_mut().unwrap().name = "edge".into(), "gateway.name"),
        (|p| port(p, 1).port = 1, "gateway.ports"),
        (|p| port(p, 0).port = 0, "gateway.ports[0].port"),
        (|p| port(p, 2).serves = None, "gateway.ports[2].serves"),
        (|p| listener(p).hostname = Some("*".into()), "gateway.ports[0].listeners[0].hostname"),
        (
            |p| listener(p).hosts[0].rules[0].matches.clear(),
            "gateway.ports[0].listeners[0].hosts[0].rules[0].matches",
        ),
    ];
    for (edit, field) in cases {
        check(ResourceKey::Plan, encode_plan(&plan()), edit, field);
    }
}
