//! A small configuration for tests: a gateway, services of one port, and routes between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    Access, AccessRule, AddressEntry, ClientAuthorization, DnsRecord, Endpoint, EndpointId,
    FieldMatch, Header, HeaderEdits, Name, OutboundListener, PathEdit, PathMatch, PortConfig,
    PortSet, Protocol, RequestMatch, RouteKind, RouteRule, RuleActions, ServiceAccount,
    ServiceConfig, ServiceName, Snapshot, TrustDomain, UrlRewrite, ValueMatch, WeightedBackend,
    WorkloadConfig, WorkloadName, WorkloadPort,
};

use crate::key::ChangeId;
use crate::message::{ConfigUpdate, Hello, InboundListener};

/// Returns a configuration with two services: `reviews` routes to `ratings` and to an absent service.
pub(crate) fn bookinfo_update() -> ConfigUpdate {
    let mut reviews = service_config("reviews", 2);
    add_route(&mut reviews, &["ratings", "missing"]);
    let mut update = update_with(1, [reviews, service_config("ratings", 3)]);
    update.absent.insert(service_name("missing"));
    let address_entry = Arc::new(AddressEntry::External);
    Arc::make_mut(&mut update.snapshot).addresses.insert([10, 96, 0, 7].into(), address_entry);
    let dns_record: DnsRecord = [IpAddr::from([10, 96, 0, 7])].into_iter().collect();
    Arc::make_mut(&mut update.snapshot).names.insert(service_name("reviews"), Arc::new(dns_record));
    update
}

/// Returns a configuration with these services, for the gateway of the fixture. `change`: the ID of its newest change.
pub(crate) fn update_with(
    change: u64,
    services: impl IntoIterator<Item = ServiceConfig>,
) -> ConfigUpdate {
    let services = services.into_iter().map(|service| (service.name.clone(), Arc::new(service)));
    let snapshot = Snapshot {
        config: Arc::new(proxy_config()),
        services: services.collect(),
        addresses: BTreeMap::new(),
        names: BTreeMap::new(),
    };
    ConfigUpdate { snapshot: Arc::new(snapshot), absent: BTreeSet::new(), change: ChangeId(change) }
}

/// Returns a service in the namespace `bookinfo` with port 9080 and this many endpoints.
pub(crate) fn service_config(name: &str, endpoint_count: u16) -> ServiceConfig {
    let name = service_name(name);
    let endpoints = (0..endpoint_count).map(|index| Arc::new(service_endpoint(&name, index)));
    let port = PortConfig {
        name: Some(Name::new("http").unwrap()),
        protocol: Protocol::Http,
        has_attached_routes: false,
        rules: Vec::new(),
        endpoints: endpoints.collect(),
        tls_rules: Vec::new(),
        traffic_policy: leno_model::TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    let ports = BTreeMap::from([(9080, port)]);
    ServiceConfig {
        name,
        client_authorization: ClientAuthorization::Allowed,
        ports,
        waits_for_endpoint: false,
    }
}

/// Routes `/v2` of a service to these backends.
pub(crate) fn add_route(service: &mut ServiceConfig, backends: &[&str]) {
    let port = service.ports.get_mut(&9080).unwrap();
    port.has_attached_routes = true;
    port.rules.push(RouteRule {
        route: "bookinfo/split".parse().unwrap(),
        matches: vec![RequestMatch {
            path: PathMatch::Prefix("/v2".into()),
            methods: vec!["GET".into()],
            headers: vec![FieldMatch {
                name: "end-user".into(),
                value: ValueMatch::Exact("jason".into()),
            }],
            query: vec![],
        }],
        backends: backends.iter().map(|name| weighted_backend(name)).collect(),
        request_timeout: Some(Duration::from_millis(1500)),
        actions: RuleActions {
            request_headers: HeaderEdits {
                set: vec![Header { name: "x-a".into(), value: "b".into() }],
                ..HeaderEdits::default()
            },
            rewrite: Some(UrlRewrite { hostname: None, path: Some(PathEdit::Full("/a".into())) }),
            ..RuleActions::default()
        },
        kind: RouteKind::Http,
    });
}

/// Returns the endpoint of a service with this index, which determines its workload and its port on loopback.
pub(crate) fn service_endpoint(service: &ServiceName, index: u16) -> Endpoint {
    let workload = WorkloadName::new("bookinfo", &format!("{}-{index:05}", service.name)).unwrap();
    Endpoint {
        id: EndpointId { service: service.clone(), port: 9080, workload },
        address: SocketAddr::from(([127, 0, 0, 1], 20_000 + index)),
        account: ServiceAccount::new("bookinfo", service.name.as_str()).ok(),
        tags: BTreeMap::new(),
        weight: None,
    }
}

/// Returns the configuration of the gateway: port 9080, one access rule, and one outbound listener for `reviews`.
pub(crate) fn proxy_config() -> WorkloadConfig {
    let access = Access::AllowListed(vec![AccessRule {
        policy: "bookinfo/clients".parse().unwrap(),
        sources: vec![ServiceAccount::new("bookinfo", "client").unwrap()],
        http: vec![RequestMatch::default()],
        tcp: PortSet::Only(vec![9080]),
    }]);
    let identity_only = WorkloadConfig::identity_only(
        workload_name(),
        ServiceAccount::new("bookinfo", "gateway").unwrap(),
        TrustDomain::new("cluster.local").unwrap(),
        [127, 0, 0, 1].into(),
        access,
    );
    WorkloadConfig {
        ports: vec![WorkloadPort { name: None, port: 9080, protocol: Protocol::Detect }],
        port_services: BTreeMap::from([(9080, service_name("gateway"))]),
        outbound_listeners: vec![OutboundListener {
            service: service_name("reviews"),
            port: 9080,
            listen: SocketAddr::from(([127, 0, 0, 1], 19_081)),
        }],
        ..identity_only
    }
}

/// Returns the Hello of the gateway, with a subscription of each kind.
pub(crate) fn gateway_hello() -> Hello {
    Hello {
        workload: workload_name(),
        listeners: vec![InboundListener {
            port: 9080,
            address: SocketAddr::from(([127, 0, 0, 1], 15_003)),
        }],
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 15_901))),
        pid: 7,
        version: "0.1.0".into(),
        services: vec![service_name("reviews")],
        addresses: vec![[10, 96, 0, 7].into()],
        dns_names: vec![service_name("reviews")],
        session: 1,
        ca_generation: 0,
        process: 0,
        answers_queries: false,
        report: Default::default(),
    }
}

pub(crate) fn workload_name() -> WorkloadName {
    WorkloadName::new("bookinfo", "gateway-1").unwrap()
}

pub(crate) fn service_name(service: &str) -> ServiceName {
    ServiceName::new("bookinfo", service).unwrap()
}

/// Returns port 9080 of a service as a backend with the weight 50.
fn weighted_backend(name: &str) -> WeightedBackend {
    WeightedBackend::new(service_name(name), 9080, 50)
}
