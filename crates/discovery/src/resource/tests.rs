//! Tests of wire conversion: round trips of every field, errors that name the invalid one, arbitrary bytes.

mod access;
mod circuit_breaker;
mod fault;
mod gateway;
mod observability;
mod outlier_detection;
mod rate_limit;
mod request_check;
mod tags;

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leno_model::{
    Access, AccessRule, AddressEntry, AddressPort, AllowedNames, BackendEdits, ClientAuthorization,
    Cors, Egress, Endpoint, FieldMatch, Header, HeaderEdits, HostPattern, MtlsMode, Name,
    OriginPattern, OutboundListener, PathEdit, PathMatch, PersistenceType, PortConfig, PortSet,
    Protocol, Redirect, RequestMatch, RetryRule, RouteKind, RouteRule, RuleActions, Scheme,
    ServiceAccount, ServiceConfig, ServiceName, ServiceRetry, SessionPersistence, TcpRule, TlsRule,
    TrafficPolicy, TrustDomain, UrlRewrite, ValueMatch, Weight, WeightedBackend, WorkloadConfig,
    WorkloadName, WorkloadPort,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::fixture;
use crate::proto;

/// Makes an encoded resource invalid.
type Edit<W> = fn(&mut W);

proptest! {
    #[test]
    fn workload_configs_survive_a_round_trip(config in any_proxy_config()) {
        let content = encode_workload_config(&config);
        let upsert = Upsert { key: ResourceKey::Workload, content };
        prop_assert_eq!(Resource::decode(&upsert), Ok(Resource::Workload(Box::new(config))));
    }

    #[test]
    fn services_survive_a_round_trip_without_their_endpoints(service in any_service_config()) {
        let key = ResourceKey::Service(service.name.clone());
        let upsert = Upsert { key, content: encode_service(&service) };
        let mut without_endpoints = service.clone();
        without_endpoints.ports.values_mut().for_each(|port| port.endpoints.clear());
        let expected = Resource::Service(without_endpoints.clone());
        prop_assert_eq!(Resource::decode(&upsert), Ok(expected));
        prop_assert_eq!(encode_service(&without_endpoints), upsert.content);
    }

    #[test]
    fn address_entries_survive_a_round_trip(
        address in any_address(1),
        ports in btree_map(1u16.., (1u16.., any_protocol(), any::<bool>()), 0..4),
        service in any_service_name(),
    ) {
        let template = fixture::service_endpoint(&service, 1);
        let workload = template.id.workload.clone();
        let ports = ports.into_iter().map(|(number, (port, protocol, has_endpoint))| {
            let mut endpoint = template.clone();
            endpoint.id.port = port;
            let endpoint = has_endpoint.then(|| Arc::new(endpoint));
            (number, AddressPort { service: service.clone(), port, protocol, endpoint })
        });
        let workload = AddressEntry::Workload { workload, ports: ports.collect() };
        let entries = [workload, AddressEntry::Service(service.clone()), AddressEntry::External];
        for address_entry in entries {
            let key = ResourceKey::Address(address.ip());
            let upsert = Upsert { key, content: encode_address_entry(&address_entry) };
            let expected = Resource::AddressEntry(address.ip(), address_entry);
            prop_assert_eq!(Resource::decode(&upsert), Ok(expected));
        }
    }

    #[test]
    fn endpoints_survive_a_round_trip(
        address in any_address(1),
        account in prop::option::of(any_account()),
        tags in btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..3),
        weight in 0..=1000_u16,
    ) {
        let template = fixture::service_endpoint(&fixture::service_name("a"), 1);
        let weight = Weight::new(weight);
        let endpoint = Endpoint { address, account, tags, weight, ..template };
        let key = ResourceKey::Endpoint(endpoint.id.clone());
        let upsert = Upsert { key, content: encode_endpoint(&endpoint) };
        prop_assert_eq!(Resource::decode(&upsert), Ok(Resource::Endpoint(endpoint)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(content in vec(any::<u8>(), 0..200)) {
        for key in resource_keys() {
            Resource::decode(&Upsert { key, content: Bytes::from(content.clone()) }).ok();
        }
    }

    #[test]
    fn damaged_resources_never_panic(
        index in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let contents = [
            encode_workload_config(&fixture::proxy_config()),
            encode_service(&fixture::bookinfo_update().snapshot.services[&fixture::service_name("reviews")]),
            encode_endpoint(&fixture::service_endpoint(&fixture::service_name("a"), 1)),
        ];
        for (key, content) in resource_keys().into_iter().zip(contents) {
            let mut content = content.to_vec();
            let index = index.index(content.len());
            content[index] ^= 1 << bit;
            Resource::decode(&Upsert { key, content: content.into() }).ok();
        }
    }
}

#[test]
fn an_invalid_action_is_rejected_with_its_field() {
    fn actions(wire: &mut proto::Service) -> &mut proto::RuleActions {
        wire.ports[0].rules[0].actions.as_mut().unwrap()
    }
    let cases: [(Edit<proto::Service>, &str); 11] = [
        (
            |wire| actions(wire).request_headers.as_mut().unwrap().set[0].name = "Host".into(),
            "request_headers.set[0].name",
        ),
        (
            |wire| {
                actions(wire).request_headers.as_mut().unwrap().set[0].value = "a\r\nb: c".into()
            },
            "request_headers.set[0].value",
        ),
        (
            |wire| actions(wire).request_headers.as_mut().unwrap().remove.push("x-a".into()),
            "request_headers.set",
        ),
        (
            |wire| actions(wire).redirect = Some(proto::Redirect { status: 200, ..<_>::default() }),
            "redirect.status",
        ),
        (
            |wire| actions(wire).redirect = Some(proto::Redirect { status: 301, ..<_>::default() }),
            "rewrite",
        ),
        (
            |wire| {
                let edit = Some(proto::path_edit::Edit::Full("/a b".into()));
                actions(wire).rewrite.as_mut().unwrap().path = Some(proto::PathEdit { edit });
            },
            "rewrite.path",
        ),
        (
            |wire| {
                actions(wire).retry = Some(proto::RetryRule { codes: vec![200], ..<_>::default() })
            },
            "retry.codes",
        ),
        (
            |wire| actions(wire).retry = Some(proto::RetryRule { attempts: 11, ..<_>::default() }),
            "retry.attempts",
        ),
        (
            |wire| actions(wire).persistence = Some(proto::SessionPersistence::default()),
            "persistence.carrier",
        ),
        (
            |wire| {
                let (carrier, name) = (proto::Carries::Cookie.into(), Some("a;b".to_owned()));
                actions(wire).persistence =
                    Some(proto::SessionPersistence { carrier, name, ..<_>::default() });
            },
            "persistence.name",
        ),
        (
            |wire| {
                let carrier = proto::Carries::LastingCookie.into();
                actions(wire).persistence =
                    Some(proto::SessionPersistence { carrier, ..<_>::default() });
            },
            "persistence.absolute_nanoseconds",
        ),
    ];
    let name = fixture::service_name("reviews");
    for (edit, field) in cases {
        let content = encode_service(&fixture::bookinfo_update().snapshot.services[&name]);
        let field = format!("ports[0].rules[0].actions.{field}");
        check_invalid(ResourceKey::Service(name.clone()), content, edit, &field);
    }
}

#[test]
fn an_invalid_field_is_rejected_with_its_path() {
    let configs: [(Edit<proto::WorkloadConfig>, &str); 15] = [
        (|config| config.workload = "gateway".into(), "workload"),
        (|config| config.account = "bookinfo".into(), "account"),
        (|config| config.trust_domain = "Cluster".into(), "trust_domain"),
        (|config| config.address = vec![1, 2, 3], "address"),
        (|config| config.ports[0].port = 0, "ports[0].port"),
        (|config| config.ports[0].port = 65_536, "ports[0].port"),
        (|config| config.ports[0].protocol = 99, "ports[0].protocol"),
        (|config| config.ports[0].name = Some("a b".into()), "ports[0].name"),
        (|config| config.ports.push(config.ports[0].clone()), "ports"),
        (|config| config.served.push(config.served[0].clone()), "served"),
        (|config| config.outbound_listeners[0].listen = None, "outbound_listeners[0].listen"),
        (
            |config| config.outbound_listeners[0].listen.as_mut().unwrap().scope = 1,
            "outbound_listeners[0].listen",
        ),
        (|config| config.access = None, "access.mode"),
        (|config| first_access_rule(config).sources[0] = "x".into(), "access.rules[0].sources[0]"),
        (|config| first_access_rule(config).http[0].path = None, "access.rules[0].http[0].path"),
    ];
    for (edit, field) in configs {
        check_invalid(
            ResourceKey::Workload,
            encode_workload_config(&fixture::proxy_config()),
            edit,
            field,
        );
    }
    let services: [(Edit<proto::Service>, &str); 9] = [
        (|service| service.denied = true, "ports"),
        (|service| service.ports.push(service.ports[0].clone()), "ports"),
        (|service| service.ports[0].protocol = 0, "ports[0].protocol"),
        (|service| service.ports[0].rules[0].route = "/".into(), "ports[0].rules[0].route"),
        (|service| service.ports[0].rules[0].matches.clear(), "ports[0].rules[0].matches"),
        (
            |service| service.ports[0].rules[0].backends[1].service = "A/b".into(),
            "ports[0].rules[0].backends[1].service",
        ),
        (
            |service| service.ports[0].rules[0].matches[0].headers[0].name = "End-User".into(),
            "ports[0].rules[0].matches[0].headers",
        ),
        (
            |service| service.ports[0].rules[0].matches[0].headers[0].value = None,
            "ports[0].rules[0].matches[0].headers[0].value",
        ),
        (
            |service| service.ports[0].rules[0].matches[0].methods.push(String::new()),
            "ports[0].rules[0].matches[0].methods",
        ),
    ];
    let update = fixture::bookinfo_update();
    let name = fixture::service_name("reviews");
    for (edit, field) in services {
        let content = encode_service(&update.snapshot.services[&name]);
        check_invalid(ResourceKey::Service(name.clone()), content, edit, field);
    }
    let endpoints: [(Edit<proto::Endpoint>, &str); 4] = [
        (|endpoint| endpoint.address = None, "address"),
        (|endpoint| endpoint.address.as_mut().unwrap().port = 0, "address"),
        (|endpoint| endpoint.address.as_mut().unwrap().address.clear(), "address.address"),
        (|endpoint| endpoint.account = "bookinfo".into(), "account"),
    ];
    let endpoint = fixture::service_endpoint(&name, 1);
    for (edit, field) in endpoints {
        let key = ResourceKey::Endpoint(endpoint.id.clone());
        check_invalid(key, encode_endpoint(&endpoint), edit, field);
    }
}

fn check_invalid<W>(key: ResourceKey, content: Bytes, edit: Edit<W>, field: &str)
where
    W: Message + Default,
{
    let mut wire = W::decode(content).unwrap();
    edit(&mut wire);
    let upsert = Upsert { key, content: wire.encode_to_vec().into() };
    let invalid = Resource::decode(&upsert).expect_err(field);
    assert_eq!((&*invalid.field, &invalid.key), (field, &upsert.key), "{invalid}");
}

fn first_access_rule(config: &mut proto::WorkloadConfig) -> &mut proto::AccessRule {
    match config.access.as_mut().unwrap().mode.as_mut().unwrap() {
        proto::access::Mode::AllowListed(rules) => &mut rules.rules[0],
        proto::access::Mode::AllowAll(_) => panic!("the fixture is strict"),
    }
}

fn resource_keys() -> [ResourceKey; 3] {
    let service = fixture::service_name("reviews");
    let endpoint = fixture::service_endpoint(&service, 1).id;
    [ResourceKey::Workload, ResourceKey::Service(service), ResourceKey::Endpoint(endpoint)]
}

fn any_name() -> impl Strategy<Value = Name> {
    "[a-z0-9]{1,8}(-[a-z0-9]{1,4})?(\\.[a-z]{1,3})?".prop_map(|text| Name::new(&text).unwrap())
}

fn any_account() -> impl Strategy<Value = ServiceAccount> {
    (any_name(), any_name()).prop_map(|(namespace, name)| ServiceAccount { namespace, name })
}

fn any_service_name() -> impl Strategy<Value = ServiceName> {
    (any_name(), any_name()).prop_map(|(namespace, name)| ServiceName { namespace, name })
}

fn any_address(min_port: u16) -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<[u8; 4]>(), min_port..).prop_map(SocketAddr::from);
    let v6 = (any::<u128>(), min_port.., any::<u32>(), any::<u32>());
    let v6 = v6.prop_map(|(ip, port, flow, scope)| {
        SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()
    });
    prop_oneof![v4, v6]
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    use Protocol::{Detect, Grpc, Http, Http2, Tcp};
    prop::sample::select(vec![Http, Http2, Grpc, Tcp, Detect])
}

fn any_request_match() -> impl Strategy<Value = RequestMatch> {
    let path = prop_oneof![
        Just(PathMatch::Any),
        any::<String>().prop_map(PathMatch::Exact),
        any::<String>().prop_map(PathMatch::Prefix),
        any::<String>().prop_map(PathMatch::Regex),
    ];
    let value = prop_oneof![
        any::<String>().prop_map(ValueMatch::Exact),
        any::<String>().prop_map(ValueMatch::Regex),
    ];
    let field = ("[a-z:-]{1,9}", value).prop_map(|(name, value)| FieldMatch { name, value });
    let fields = vec(field, 0..3);
    (path, vec("[A-Z]{1,7}", 0..3), fields.clone(), fields)
        .prop_map(|(path, methods, headers, query)| RequestMatch { path, methods, headers, query })
}

fn any_access_rule() -> impl Strategy<Value = AccessRule> {
    let rule = (
        any_name(),
        vec(any_account(), 0..3),
        vec(any_request_match(), 0..3),
        vec(1u16.., 0..3),
        any::<bool>(),
    );
    rule.prop_map(|(name, sources, http, ports, all_ports)| AccessRule {
        policy: leno_model::PolicyName { namespace: name.clone(), name },
        sources,
        http,
        tcp: if all_ports { PortSet::All } else { PortSet::Only(ports) },
    })
}

fn workload_port((port, protocol): (u16, Protocol)) -> WorkloadPort {
    let name = Some(Name::new(&format!("p{port}")).unwrap()).filter(|_| port % 2 == 0);
    WorkloadPort { name, port, protocol }
}

fn any_proxy_config() -> impl Strategy<Value = WorkloadConfig> {
    let access = prop_oneof![
        Just(Access::AllowAll),
        vec(any_access_rule(), 0..3).prop_map(Access::AllowListed)
    ];
    let listener = (any_service_name(), 1u16.., any_address(0));
    let listener =
        listener.prop_map(|(service, port, listen)| OutboundListener { service, port, listen });
    let ports = btree_map(1u16.., any_protocol(), 0..4);
    let port_services = btree_map(1u16.., any_service_name(), 0..4);
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(Into::into),
        any::<[u8; 16]>().prop_map(Into::<IpAddr>::into)
    ];
    let modes_and_retries =
        (0..2_usize, 0..2_usize, btree_map(any_service_name(), any_service_retry(), 0..3));
    let limits = (
        rate_limit::any_port_limits(),
        request_check::any_port_checks(),
        observability::any_observability(),
        modes_and_retries,
    );
    let tags = (tags::any_caller(), tags::any_lanes(), access::any_inbound_policy(), limits);
    (any_account(), any_name(), address, ports, port_services, vec(listener, 0..3), access, tags)
        .prop_map(
            |(
                account,
                domain,
                address,
                ports,
                port_services,
                outbound_listeners,
                access,
                (caller, lanes, inbound, (limits, checks, observability, (egress, mtls, retries))),
            )| {
                WorkloadConfig {
                    workload: WorkloadName {
                        namespace: domain.clone(),
                        name: account.name.clone(),
                    },
                    account,
                    trust_domain: TrustDomain(domain),
                    address,
                    ports: ports.into_iter().map(workload_port).collect(),
                    port_services,
                    outbound_listeners,
                    access,
                    revoked: Default::default(),
                    revoked_workloads: Default::default(),
                    ca_generation: 0,
                    caller,
                    lanes: lanes.into_iter().collect(),
                    inbound,
                    limits,
                    observability,
                    egress: Egress::ALL[egress],
                    mtls: MtlsMode::ALL[mtls],
                    gateway: None,
                    ingress_rules: Vec::new(),
                    egress_rules: Vec::new(),
                    request_checks: checks,
                    retries,
                }
            },
        )
}

fn any_retry() -> impl Strategy<Value = RetryRule> {
    let backoff = any::<u64>().prop_map(Duration::from_nanos);
    (vec(RetryRule::CODES, 0..4), 0..=RetryRule::MAX_ATTEMPTS, backoff)
        .prop_map(|(codes, attempts, backoff)| RetryRule { codes, attempts, backoff })
}

fn any_service_retry() -> impl Strategy<Value = ServiceRetry> {
    let timeout = prop::option::of(any::<u64>().prop_map(Duration::from_nanos));
    (any_name(), any_retry(), timeout).prop_map(|(name, rule, response_timeout)| ServiceRetry {
        policy: leno_model::PolicyName { namespace: name.clone(), name },
        rule,
        response_timeout,
    })
}

fn any_header_edits() -> impl Strategy<Value = HeaderEdits> + Clone {
    btree_map("[a-z]{1,9}", "[!-~]{0,9}", 0..6).prop_map(|headers| {
        let headers = headers.into_iter().map(|(name, value)| Header { name, value });
        let headers: Vec<Header> =
            headers.filter(|header| HeaderEdits::may_edit(&header.name)).collect();
        let (set, others) = headers.split_at(headers.len() / 3);
        let (add, remove) = others.split_at(others.len() / 2);
        HeaderEdits {
            set: set.to_vec(),
            add: add.to_vec(),
            remove: remove.iter().map(|header| header.name.clone()).collect(),
        }
    })
}

fn any_actions() -> impl Strategy<Value = RuleActions> {
    let headers = any_header_edits();
    let path = prop::option::of("/[a-z]{0,9}".prop_map(PathEdit::Full));
    let scheme = prop::option::of(prop_oneof![Just(Scheme::Http), Just(Scheme::Https)]);
    let status = prop::sample::select(Redirect::STATUSES.to_vec());
    let port = prop::option::of(1u16..);
    let redirect = (scheme, prop::option::of(any_name()), path.clone(), port, status);
    let redirect = redirect.prop_map(|(scheme, hostname, path, port, status)| Redirect {
        scheme,
        hostname,
        path,
        port,
        status,
    });
    let rewrite = (prop::option::of(any_name()), path);
    let rewrite = rewrite.prop_map(|(hostname, path)| UrlRewrite { hostname, path });
    let redirect_or_rewrite = prop_oneof![
        Just((None, None)),
        redirect.prop_map(|redirect| (Some(redirect), None)),
        rewrite.prop_map(|rewrite| (None, Some(rewrite))),
    ];
    let duration = || any::<u64>().prop_map(Duration::from_nanos);
    let timing = (prop::option::of(duration()), prop::option::of(any_retry()), any::<u32>());
    let mirror = (any_service_name(), 1u16.., 0..=1_000_000_u32);
    let mirror =
        mirror.prop_map(|(service, port, weight)| WeightedBackend::new(service, port, weight));
    let persistence = (prop::option::of("[a-z]{1,9}-x"), 0..3_usize, duration(), duration());
    let persistence = persistence.prop_map(|(name, kind, absolute, idle)| SessionPersistence {
        name,
        kind: [PersistenceType::Cookie, PersistenceType::LastingCookie, PersistenceType::Header]
            [kind],
        absolute_timeout: Some(absolute),
        idle_timeout: Some(idle).filter(|_| kind > 0),
        path: Some("/a".to_owned()).filter(|_| kind == 1),
    });
    let mirrors = vec(mirror, 0..=RuleActions::MAX_MIRRORS);
    let extras = (mirrors, prop::option::of(any_cors()), prop::option::of(persistence));
    (headers.clone(), headers, redirect_or_rewrite, timing, extras).prop_map(
        |(
            request_headers,
            response_headers,
            (redirect, rewrite),
            (attempt_timeout, retry, ungranted_weight),
            (mirrors, cors, persistence),
        )| {
            RuleActions {
                request_headers,
                response_headers,
                redirect,
                rewrite,
                attempt_timeout,
                retry,
                ungranted_weight,
                mirrors,
                cors,
                persistence,
            }
        },
    )
}

fn any_cors() -> impl Strategy<Value = Cors> {
    let words = || {
        let only = vec("[a-z-]{1,9}", 0..3).prop_map(AllowedNames::Only);
        prop_oneof![Just(AllowedNames::Any), only]
    };
    let origins = prop::sample::subsequence(vec!["*", "http://a", "https://*.b:8443"], 1..=3);
    let origins = origins.prop_map(|origins| {
        origins.into_iter().map(|origin| OriginPattern::new(origin).unwrap()).collect()
    });
    (origins, any::<bool>(), words(), words(), words(), any::<u32>()).prop_map(
        |(origins, credentials, methods, headers, exposed, max_age_seconds)| Cors {
            origins,
            allows_credentials: credentials,
            methods,
            headers,
            exposed_headers: exposed,
            max_age_seconds,
        },
    )
}

/// Returns a backend without edits.
fn any_plain_backend() -> impl Strategy<Value = WeightedBackend> {
    let backend = (any_service_name(), 1u16.., any::<u32>());
    backend.prop_map(|(service, port, weight)| WeightedBackend::new(service, port, weight))
}

fn any_backend() -> impl Strategy<Value = WeightedBackend> {
    let full_path = |name| PathEdit::Full(format!("/{name}"));
    let rewrite = (prop::option::of(any_name()), prop::option::of(any_name().prop_map(full_path)))
        .prop_map(|(hostname, path)| UrlRewrite { hostname, path });
    let edits = (any_header_edits(), any_header_edits(), prop::option::of(rewrite)).prop_map(
        |(request_headers, response_headers, rewrite)| {
            let edits = BackendEdits { request_headers, response_headers, rewrite };
            (edits != BackendEdits::default()).then(|| Box::new(edits))
        },
    );
    (any_plain_backend(), edits).prop_map(|(plain, edits)| WeightedBackend { edits, ..plain })
}

fn any_route_rule() -> impl Strategy<Value = RouteRule> {
    let timeout = prop::option::of(any::<u64>().prop_map(Duration::from_nanos));
    let kind = prop_oneof![
        Just(RouteKind::Http),
        Just(RouteKind::Grpc),
        Just(RouteKind::Split),
        Just(RouteKind::Tcp)
    ];
    let rule = (
        any_name(),
        vec(any_request_match(), 1..3),
        vec(any_backend(), 0..3),
        timeout,
        any_actions(),
        kind,
    );
    rule.prop_map(|(name, matches, backends, request_timeout, actions, kind)| RouteRule {
        route: leno_model::RouteName { namespace: name.clone(), name },
        matches,
        backends,
        request_timeout,
        actions,
        kind,
    })
}

fn any_service_config() -> impl Strategy<Value = ServiceConfig> {
    let host = (any_name(), any::<bool>()).prop_map(|(name, is_exact)| match is_exact {
        true => HostPattern::Exact(name),
        false => HostPattern::Below(name),
    });
    let tls_rule = (any_name(), vec(host, 1..3), vec(any_plain_backend(), 0..3), any::<u32>());
    let tls_rule = tls_rule.prop_map(|(name, hostnames, backends, ungranted_weight)| TlsRule {
        route: leno_model::RouteName { namespace: name.clone(), name },
        hostnames,
        backends,
        ungranted_weight,
    });
    let tcp_rule = (any_name(), vec(any_plain_backend(), 0..3), any::<u32>());
    let tcp_rule = tcp_rule.prop_map(|(name, backends, ungranted_weight)| TcpRule {
        route: leno_model::RouteName { namespace: name.clone(), name },
        kind: RouteKind::Split,
        backends,
        ungranted_weight,
    });
    let rules = (vec(any_route_rule(), 0..3), vec(tls_rule, 0..3), prop::option::of(tcp_rule));
    let tags = prop::option::of(tags::any_tag_rules().prop_map(Arc::new));
    let port = (
        prop::option::of(any_name()),
        any_protocol(),
        any::<bool>(),
        rules,
        (any_traffic_policy(), tags),
    );
    let port = port.prop_map(
        |(name, protocol, routed, (rules, tls_rules, tcp_rule), (traffic_policy, tags))| {
            PortConfig {
                name,
                protocol,
                has_attached_routes: routed,
                rules,
                endpoints: vec![Arc::new(fixture::service_endpoint(
                    &fixture::service_name("a"),
                    1,
                ))],
                tls_rules,
                traffic_policy,
                tags,
                tcp_rule,
            }
        },
    );
    (any_service_name(), any::<(bool, bool)>(), btree_map(1u16.., port, 0..3)).prop_map(
        |(name, (denied, awaited), ports)| match denied {
            true => ServiceConfig {
                name,
                client_authorization: ClientAuthorization::Denied,
                ports: BTreeMap::new(),
                waits_for_endpoint: awaited,
            },
            false => ServiceConfig {
                name,
                client_authorization: ClientAuthorization::Allowed,
                ports,
                waits_for_endpoint: awaited,
            },
        },
    )
}

fn any_traffic_policy() -> impl Strategy<Value = TrafficPolicy> {
    let breaker = prop::option::of(circuit_breaker::any_breaker());
    let client_side = (
        prop::option::of(fault::any_faults()),
        prop::option::of(fault::any_balancing()),
        prop::option::of(fault::any_hedging()),
    );
    (prop::option::of(outlier_detection::any_outlier_detection()), breaker, client_side).prop_map(
        |(outlier_detection, breaker, (faults, balancing, hedging))| TrafficPolicy {
            outlier_detection,
            breaker,
            faults,
            balancing,
            hedging,
        },
    )
}
