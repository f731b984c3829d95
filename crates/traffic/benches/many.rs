//! Inputs of the benchmarks in `lookup.rs`: many rules of one kind. The third rule from the end is the deciding rule.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_model::{
    Access, AccessRule, EgressRule, FaultAbort, FaultRule, FieldMatch, FieldTest, FixedResponse,
    HostPattern, InboundPolicy, IngressProtocol, IngressRule, IpRange, LaneMark, LaneRule,
    MatchedBy, NamePattern, PathMatch, PeerMatch, PolicyAction, PolicyName, PolicyRule, PortConfig,
    PortFaults, PortLimits, PortSet, Protocol, Rate, RateLimitKey, RateLimits, RateRule,
    RequestMatch, RouteName, RouteRule, RuleOrigin, ServiceAccount, ServiceName, ServicePolicyKind,
    ServicePolicyName, SpiffeId, TagDialect, TagMatch, TagRouteName, TextRelation, TlsRule,
    TrafficPolicy, ValueMatch, ValueTest, WeightedBackend, WorkloadConfig,
};
use leno_traffic::fault::CompiledFaults;
use leno_traffic::route::PortRoutes;
use leno_traffic::{
    CompiledLimits, ConnectionOrigin, ConnectionPermit, EgressRules, InboundAccess, Lanes,
    SessionTransport, TlsRoutes,
};

use crate::member::proxy_config;
use crate::sample::{SampleRequest, on_a_page, sample_request};

/// Inbound authorization, and the permit of a peer.
pub(crate) type AccessAndPermit = (InboundAccess, ConnectionPermit);

/// Inbound authorization, and a peer or the origin of a client.
pub(crate) type AccessAndPeer = (InboundAccess, SpiffeId);
pub(crate) type AccessAndOrigin = (InboundAccess, ConnectionOrigin);

/// A request to an external host, and that host.
pub(crate) type RequestAndHost = (SampleRequest, &'static str);

/// Returns the number of the deciding rule.
const fn deciding_rule(rules: usize) -> usize {
    rules - 3
}

/// Returns a request with the header of the deciding rule.
pub(crate) fn request_for_rule(rules: usize) -> SampleRequest {
    let mut sample = sample_request("/shop/carts");
    sample.fields.push(("x-user".to_owned(), numbered_user(deciding_rule(rules))));
    sample
}

/// Returns a request below the path of the deciding rule.
pub(crate) fn request_below_path(rules: usize) -> SampleRequest {
    sample_request(&format!("/place-{}/7", deciding_rule(rules)))
}

/// Returns a request below the shop path of the deciding rule.
pub(crate) fn request_below_shop(rules: usize) -> SampleRequest {
    sample_request(&format!("/shop/place-{}/7", deciding_rule(rules)))
}

/// Returns the account of the deciding rule.
pub(crate) fn caller_of_rule(rules: usize) -> ServiceAccount {
    numbered_account(deciding_rule(rules))
}

/// Returns the host of the deciding rule.
pub(crate) fn host_of_rule(rules: usize) -> &'static str {
    on_a_page(&numbered_host(deciding_rule(rules)))
}

/// Returns a request for that host.
pub(crate) fn to_host(rules: usize) -> RequestAndHost {
    (sample_request("/shop"), host_of_rule(rules))
}

/// Returns routes with one path, each for one value of a header.
pub(crate) fn header_routes(rules: usize) -> PortRoutes {
    compile_routes(rules, |number| RequestMatch {
        headers: vec![FieldMatch {
            name: "x-user".to_owned(),
            value: ValueMatch::Exact(numbered_user(number)),
        }],
        ..path_match(PathMatch::Exact("/shop/carts".to_owned()))
    })
}

/// Returns routes with a separate regular expression each.
pub(crate) fn regex_routes(rules: usize) -> PortRoutes {
    compile_routes(rules, |number| path_match(PathMatch::Regex(format!("/place-{number}/[0-9]+"))))
}

fn compile_routes(rules: usize, request: fn(usize) -> RequestMatch) -> PortRoutes {
    let rule = |number| RouteRule {
        route: RouteName::new("shop", "carts").expect("the name is valid"),
        matches: vec![request(number)],
        backends: vec![test_backend()],
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    };
    let port_config = PortConfig {
        has_attached_routes: true,
        rules: (0..rules).map(rule).collect(),
        ..empty_port()
    };
    PortRoutes::compile(&port_config).expect("the rules are valid")
}

/// Returns rate limits of one policy, each for one path.
pub(crate) fn path_limits(rules: usize) -> CompiledLimits {
    compile_limits(rules, |number| {
        (vec![path_match(PathMatch::Exact(format!("/place-{number}/7")))], Vec::new())
    })
}

/// Returns rate limits of one policy, each for the paths below one prefix in a shop.
pub(crate) fn limits_below(rules: usize) -> CompiledLimits {
    compile_limits(rules, |number| {
        (vec![path_match(PathMatch::Prefix(format!("/shop/place-{number}")))], Vec::new())
    })
}

/// Returns rate limits of one policy, each for one account.
pub(crate) fn limits_of_callers(rules: usize) -> CompiledLimits {
    compile_limits(rules, |number| (Vec::new(), vec![only_caller(&numbered_account(number))]))
}

fn compile_limits(
    rules: usize,
    conditions: fn(usize) -> (Vec<RequestMatch>, Vec<PeerMatch>),
) -> CompiledLimits {
    let rule = |number, (requests, peers)| RateRule {
        name: format!("rules[{number}]"),
        requests,
        peers,
        key: RateLimitKey::None,
        rate: Rate { count: 100, period: Duration::from_secs(1), burst: 100 },
        stop: false,
        response: FixedResponse::default(),
    };
    let rules = (0..rules).map(|number| rule(number, conditions(number))).collect();
    let limits = RateLimits { rules, ..RateLimits::default() };
    let limits = PortLimits { policy: policy_name(ServicePolicyKind::RateLimit), limits };
    CompiledLimits::build(&BTreeMap::from([(PORT, vec![limits])]), None)
        .expect("the limits are valid")
}

/// Returns faults of one policy, each for one path.
pub(crate) fn path_faults(rules: usize) -> CompiledFaults {
    let rule = |number| FaultRule {
        name: format!("rules[{number}]"),
        requests: vec![path_match(PathMatch::Exact(format!("/place-{number}/7")))],
        peers: Vec::new(),
        delay: None,
        abort: Some(FaultAbort {
            share_ppm: 10_000,
            response: FixedResponse::default(),
            grpc: None,
        }),
    };
    let policy = policy_name(ServicePolicyKind::FaultInjection);
    let rules = (0..rules).map(rule).collect();
    CompiledFaults::compile(&PortFaults { policy, rules }).expect("the faults are valid")
}

/// Returns routes of TLS sessions, each for one server name.
pub(crate) fn tls_routes(rules: usize) -> TlsRoutes {
    let rule = |number| TlsRule {
        route: RouteName::new("shop", &format!("carts-{number}")).expect("the name is valid"),
        hostnames: vec![host_pattern(number)],
        backends: vec![test_backend()],
        ungranted_weight: 0,
    };
    let tls_rules = (0..rules).map(rule).collect();
    TlsRoutes::compile(&PortConfig { protocol: Protocol::Tcp, tls_rules, ..empty_port() })
}

/// Returns rules of an access policy that allow or deny one path each to one account.
pub(crate) fn access_policies(rules: usize, action: PolicyAction) -> AccessAndPermit {
    let rule = |number| PolicyRule {
        action,
        requests: vec![path_match(PathMatch::Exact(format!("/place-{number}/7")))],
        ..allow_rule(&service_account(), number)
    };
    compile_access(config_with_rules((0..rules).map(rule).collect()))
}

/// Returns rules of an access policy that allow one path each, every other one to the peer.
pub(crate) fn shared_policies(rules: usize) -> AccessAndPermit {
    let rule = |number| {
        let peer = if number % 2 == deciding_rule(rules) % 2 {
            service_account()
        } else {
            numbered_account(number)
        };
        let requests = vec![path_match(PathMatch::Exact(format!("/place-{number}/7")))];
        PolicyRule { requests, ..allow_rule(&peer, number) }
    };
    compile_access(config_with_rules((0..rules).map(rule).collect()))
}

/// Returns rules of an access policy that allow everything to one account each.
pub(crate) fn policies_of_peers(rules: usize) -> AccessAndPeer {
    let rule = |number| allow_rule(&numbered_account(number), number);
    let config = config_with_rules((0..rules).map(rule).collect());
    let access = InboundAccess::from_config(&config).expect("the rules are valid");
    (access, SpiffeId { trust_domain: config.trust_domain, account: caller_of_rule(rules) })
}

fn allow_rule(account: &ServiceAccount, number: usize) -> PolicyRule {
    PolicyRule {
        policy: PolicyName::new("shop", "guard").expect("the name is valid"),
        name: format!("rules[{number}]"),
        action: PolicyAction::Allow,
        peers: vec![only_caller(account)],
        requests: Vec::new(),
        claims: Vec::new(),
        ports: PortSet::All,
    }
}

fn config_with_rules(rules: Vec<PolicyRule>) -> WorkloadConfig {
    let inbound = InboundPolicy { is_dry_run: false, rules };
    WorkloadConfig { inbound, ..proxy_config(Access::AllowListed(Vec::new())) }
}

fn only_caller(account: &ServiceAccount) -> PeerMatch {
    let ServiceAccount { namespace, name } = account;
    PeerMatch { namespace: NamePattern::from(namespace), account: NamePattern::from(name) }
}

/// Returns policies that allow paths below one prefix each to one account.
pub(crate) fn traffic_targets(rules: usize) -> AccessAndPermit {
    let rule = |number| AccessRule {
        policy: PolicyName::new("shop", &format!("place-{number}")).expect("the name is valid"),
        sources: vec![service_account()],
        http: vec![path_match(PathMatch::Regex(format!("/place-{number}/.*")))],
        tcp: PortSet::Only(Vec::new()),
    };
    compile_access(proxy_config(Access::AllowListed((0..rules).map(rule).collect())))
}

/// Returns ingress rules for plaintext clients, each for one path.
pub(crate) fn ingress_rules(rules: usize) -> AccessAndPermit {
    let requests = |number| vec![path_match(PathMatch::Exact(format!("/place-{number}/7")))];
    let access = compile_ingress(rules, |number| (None, Some(requests(number))));
    let origin = ConnectionOrigin { address: OUTSIDE.ip(), transport: SessionTransport::Plaintext };
    let permit = access
        .authorize_connection_from(None, PORT, Some(origin))
        .expect("an ingress rule allows the client");
    (access, permit)
}

/// Returns ingress rules for plaintext clients, each for one address.
pub(crate) fn ingress_rules_by_address(rules: usize) -> AccessAndOrigin {
    let access = compile_ingress(rules, |number| {
        (Some(vec![IpRange::from(numbered_address(number))]), None)
    });
    (
        access,
        ConnectionOrigin {
            address: numbered_address(deciding_rule(rules)),
            transport: SessionTransport::Plaintext,
        },
    )
}

/// The allowed addresses and requests of an ingress rule; all addresses or requests when absent.
type IngressConditions = (Option<Vec<IpRange>>, Option<Vec<RequestMatch>>);

fn compile_ingress(rules: usize, conditions: impl Fn(usize) -> IngressConditions) -> InboundAccess {
    let ingress_rule = |number, (ranges, requests)| IngressRule {
        policy: format!("IngressBackend shop/place-{number}").parse().expect("the name is valid"),
        port: PORT,
        protocol: IngressProtocol::Http,
        ranges,
        accounts: Vec::new(),
        external_principals: Vec::new(),
        requests,
    };
    let ingress_rules = (0..rules).map(|number| ingress_rule(number, conditions(number))).collect();
    let config = WorkloadConfig { ingress_rules, ..proxy_config(Access::AllowListed(Vec::new())) };
    InboundAccess::from_config(&config).expect("the rules are valid")
}

/// Returns lanes, each for one value of a header.
pub(crate) fn header_lanes(rules: usize) -> Lanes {
    let rule = |number| {
        let test = ValueTest::Text {
            relation: TextRelation::Exact,
            texts: vec![numbered_user(number)],
            ignore_case: false,
        };
        let headers = vec![FieldTest { name: "x-user".to_owned(), test }];
        let name = TagRouteName::new("shop", "carts").expect("the name is valid");
        let index = u32::try_from(number).expect("the index fits");
        let marks = BTreeMap::from([("x-lane".to_owned(), "gray".to_owned())]);
        LaneRule {
            origin: RuleOrigin { dialect: TagDialect::Lane, name, index },
            priority: 0,
            request_match: TagMatch { headers, ..TagMatch::default() },
            marks: vec![LaneMark { percent: 60, headers: marks }],
        }
    };
    Lanes::compile(&BTreeMap::from([(PORT, (0..rules).map(rule).collect())]))
        .expect("the rules are valid")
}

/// Returns egress rules at one port, each for one host.
pub(crate) fn egress_rules(rules: usize, matched_by: MatchedBy) -> EgressRules {
    let egress_rule = |number| EgressRule {
        policy: PolicyName::new("shop", &format!("out-{number}")).expect("the name is valid"),
        port: OUTSIDE.port(),
        matched_by,
        hosts: vec![host_pattern(number)],
        ranges: Vec::new(),
        requests: None,
    };
    EgressRules::compile(&(0..rules).map(egress_rule).collect::<Vec<_>>())
        .expect("the rules are valid")
}

fn compile_access(config: WorkloadConfig) -> AccessAndPermit {
    let access = InboundAccess::from_config(&config).expect("the rules are valid");
    let peer = SpiffeId { trust_domain: config.trust_domain, account: service_account() };
    let permit = access.authorize_connection(Some(&peer), PORT).expect("the peer is a member");
    (access, permit)
}

fn empty_port() -> PortConfig {
    PortConfig {
        name: None,
        protocol: Protocol::Http,
        has_attached_routes: false,
        rules: Vec::new(),
        endpoints: Vec::new(),
        tls_rules: Vec::new(),
        traffic_policy: TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    }
}

fn path_match(path: PathMatch) -> RequestMatch {
    RequestMatch { path, ..RequestMatch::default() }
}

fn test_backend() -> WeightedBackend {
    WeightedBackend::new(ServiceName::new("shop", "carts").expect("the name is valid"), PORT, 1)
}

fn policy_name(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", "carts").expect("the name is valid")
}

pub(crate) fn service_account() -> ServiceAccount {
    ServiceAccount::new("shop", "web").expect("the name is valid")
}

fn numbered_account(number: usize) -> ServiceAccount {
    ServiceAccount::new("shop", &format!("web-{number}")).expect("the name is valid")
}

fn numbered_address(number: usize) -> IpAddr {
    let bits = u32::try_from(number).expect("the index fits");
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + bits).into()
}

fn numbered_user(number: usize) -> String {
    format!("u-{number}")
}

fn numbered_host(number: usize) -> String {
    format!("host-{number}.example")
}

fn host_pattern(number: usize) -> HostPattern {
    numbered_host(number).parse().expect("the host is valid")
}

pub(crate) const PORT: u16 = 9080;
/// An address outside the mesh.
pub(crate) const OUTSIDE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);
