//! Tests of gateways: round trips, and keys that are never printed.

use leno_model::{
    Gateway, GatewayCertificate, GatewayListener, GatewayPort, GatewayPortRules, HostPattern,
    HostRules, Name, RouteKind, RouteRule, TcpRule, TlsRule,
};

use super::*;

fn gateway_config() -> Gateway {
    let backend = || WeightedBackend::new(fixture::service_name("reviews"), 80, 1);
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
        GatewayPortRules::Http(vec![listener(Vec::new())]),
        GatewayPortRules::Https(vec![listener(vec![certificate])]),
        GatewayPortRules::Passthrough(vec![tls]),
        GatewayPortRules::Tcp(tcp),
    ];
    let ports = serves.into_iter().zip(1..).map(|(serves, port)| GatewayPort { port, serves });
    Gateway { name: "bookinfo/edge".parse().unwrap(), ports: ports.collect() }
}

fn gateway_proxy_config() -> WorkloadConfig {
    WorkloadConfig { gateway: Some(Arc::new(gateway_config())), ..fixture::proxy_config() }
}

#[test]
fn gateways_survive_a_round_trip() {
    let upsert = Upsert {
        key: ResourceKey::Workload,
        content: encode_workload_config(&gateway_proxy_config()),
    };
    assert_eq!(Resource::decode(&upsert), Ok(Resource::Workload(Box::new(gateway_proxy_config()))));
    let wire = proto::WorkloadConfig::decode(upsert.content).unwrap();
    assert!(!format!("{wire:?}").contains("secret"));
}

#[test]
fn an_invalid_gateway_is_rejected_with_its_field() {
    fn gateway_port(config: &mut proto::WorkloadConfig, index: usize) -> &mut proto::GatewayPort {
        &mut config.gateway.as_mut().unwrap().ports[index]
    }
    fn first_listener(config: &mut proto::WorkloadConfig) -> &mut proto::GatewayListener {
        match &mut gateway_port(config, 0).serves {
            Some(proto::gateway_port::Serves::Http(http)) => &mut http.listeners[0],
            serves => panic!("{serves:?}"),
        }
    }
    type Edit = fn(&mut proto::WorkloadConfig);
    let cases: [(Edit, &str); 6] = [
        (|config| config.gateway.as_mut().unwrap().name = "edge".into(), "gateway.name"),
        (|config| gateway_port(config, 1).port = 1, "gateway.ports"),
        (|config| gateway_port(config, 0).port = 0, "gateway.ports[0].port"),
        (|config| gateway_port(config, 2).serves = None, "gateway.ports[2].serves"),
        (
            |config| first_listener(config).hostname = Some("*".into()),
            "gateway.ports[0].listeners[0].hostname",
        ),
        (
            |config| first_listener(config).hosts[0].rules[0].matches.clear(),
            "gateway.ports[0].listeners[0].hosts[0].rules[0].matches",
        ),
    ];
    for (edit, field) in cases {
        check_invalid(
            ResourceKey::Workload,
            encode_workload_config(&gateway_proxy_config()),
            edit,
            field,
        );
    }
}
