//! Inputs of the benchmarks in `lookup.rs`: many rules of one kind, of which the third from the end decides.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_model::{
    Abort, Access, AccessRule, Each, EgressRule, Entry, FaultRule, Faults, FieldMatch, FieldTest,
    FixedAnswer, HostPattern, InboundPolicy, IpRange, LaneMark, LaneRule, MatchedBy, NamePattern,
    Opening, PathMatch, PeerMatch, PolicyAction, PolicyName, PolicyRule, PortLimits, PortSet,
    PortView, Protocol, Rate, RateLimits, RateRule, RequestMatch, RouteName, RouteRule, RuleOrigin,
    ServiceAccount, ServiceName, ServicePolicyKind, ServicePolicyName, SpiffeId, TagDialect,
    TagMatch, TagRouteName, TextRelation, TlsRule, TrafficPolicy, ValueMatch, ValueTest,
    WeightedBackend, WorkloadPlan,
};
use leno_traffic::fault::FaultPlan;
use leno_traffic::route::PortRoutes;
use leno_traffic::{
    Carrier, ConnectionPermit, EgressRules, InboundAccess, Lanes, Limits, Origin, TlsRoutes,
};

use crate::asked::{Asked, asked, on_a_page};
use crate::member::plan;

/// Inbound authorization, and the permit of a peer.
pub(crate) type Judged = (InboundAccess, ConnectionPermit);

/// Inbound authorization, with a peer or a client of known origin.
pub(crate) type Coming = (InboundAccess, SpiffeId);
pub(crate) type Visited = (InboundAccess, Origin);

/// A request to an external host, and that host.
pub(crate) type Sent = (Asked, &'static str);

/// The number of the deciding rule.
const fn deciding(rules: usize) -> usize {
    rules - 3
}

/// A request with the header of the deciding rule.
pub(crate) fn carrying(rules: usize) -> Asked {
    let mut asked = asked("/shop/carts");
    asked.fields.push(("x-user".to_owned(), user(deciding(rules))));
    asked
}

/// A request below the path of the deciding rule.
pub(crate) fn at_a_place(rules: usize) -> Asked {
    asked(&format!("/place-{}/7", deciding(rules)))
}

/// A request below the shop path of the deciding rule.
pub(crate) fn in_the_shop(rules: usize) -> Asked {
    asked(&format!("/shop/place-{}/7", deciding(rules)))
}

/// The account of the deciding rule.
pub(crate) fn caller(rules: usize) -> ServiceAccount {
    numbered(deciding(rules))
}

/// The host of the deciding rule.
pub(crate) fn named(rules: usize) -> &'static str {
    on_a_page(&host(deciding(rules)))
}

/// A request for that host.
pub(crate) fn to_host(rules: usize) -> Sent {
    (asked("/shop"), named(rules))
}

/// Routes with one path, each for one value of a header.
pub(crate) fn routes(rules: usize) -> PortRoutes {
    compiled(rules, |number| RequestMatch {
        headers: vec![FieldMatch {
            name: "x-user".to_owned(),
            value: ValueMatch::Exact(user(number)),
        }],
        ..at(PathMatch::Exact("/shop/carts".to_owned()))
    })
}

/// Routes with a separate regular expression each.
pub(crate) fn expressions(rules: usize) -> PortRoutes {
    compiled(rules, |number| at(PathMatch::Regex(format!("/place-{number}/[0-9]+"))))
}

fn compiled(rules: usize, request: fn(usize) -> RequestMatch) -> PortRoutes {
    let rule = |number| RouteRule {
        route: RouteName::new("shop", "carts").expect("a name"),
        matches: vec![request(number)],
        backends: vec![backend()],
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    };
    let view = PortView { routed: true, rules: (0..rules).map(rule).collect(), ..port() };
    PortRoutes::compile(&view).expect("the rules are valid")
}

/// Limits of one policy, each for one path.
pub(crate) fn limits(rules: usize) -> Limits {
    limited(rules, |number| (vec![at(PathMatch::Exact(format!("/place-{number}/7")))], Vec::new()))
}

/// Limits of one policy, each for paths below one prefix in a shop.
pub(crate) fn limits_below(rules: usize) -> Limits {
    limited(rules, |number| {
        (vec![at(PathMatch::Prefix(format!("/shop/place-{number}")))], Vec::new())
    })
}

/// Limits of one policy, each for one account.
pub(crate) fn limits_of_callers(rules: usize) -> Limits {
    limited(rules, |number| (Vec::new(), vec![only(&numbered(number))]))
}

fn limited(rules: usize, about: fn(usize) -> (Vec<RequestMatch>, Vec<PeerMatch>)) -> Limits {
    let rule = |number, (requests, peers)| RateRule {
        name: format!("rules[{number}]"),
        requests,
        peers,
        each: Each::Nothing,
        rate: Rate { count: 100, time: Duration::from_secs(1), size: 100 },
        is_last: false,
        answer: FixedAnswer::default(),
    };
    let rules = (0..rules).map(|number| rule(number, about(number))).collect();
    let limits = RateLimits { rules, ..RateLimits::default() };
    let limits = PortLimits { policy: policy(ServicePolicyKind::RateLimit), limits };
    Limits::build(&BTreeMap::from([(PORT, vec![limits])]), None).expect("limits")
}

/// Faults of one policy, each for one path.
pub(crate) fn faults(rules: usize) -> FaultPlan {
    let rule = |number| FaultRule {
        name: format!("rules[{number}]"),
        requests: vec![at(PathMatch::Exact(format!("/place-{number}/7")))],
        peers: Vec::new(),
        delay: None,
        abort: Some(Abort { share_ppm: 10_000, answer: FixedAnswer::default(), grpc: None }),
    };
    let policy = policy(ServicePolicyKind::FaultInjection);
    let rules = (0..rules).map(rule).collect();
    FaultPlan::compile(&Faults { policy, rules }).expect("faults")
}

/// Routes of TLS sessions, each for one server name.
pub(crate) fn tls_routes(rules: usize) -> TlsRoutes {
    let rule = |number| TlsRule {
        route: RouteName::new("shop", &format!("carts-{number}")).expect("a name"),
        hostnames: vec![pattern(number)],
        backends: vec![backend()],
        ungranted_weight: 0,
    };
    let tls_rules = (0..rules).map(rule).collect();
    TlsRoutes::compile(&PortView { protocol: Protocol::Tcp, tls_rules, ..port() })
}

/// Rules of an access policy that allow or deny one path each to one account.
pub(crate) fn policies(rules: usize, action: PolicyAction) -> Judged {
    let rule = |number| PolicyRule {
        action,
        requests: vec![at(PathMatch::Exact(format!("/place-{number}/7")))],
        ..allowing(&account(), number)
    };
    judged(guarded((0..rules).map(rule).collect()))
}

/// Rules of an access policy that allow one path each, every other one to the peer.
pub(crate) fn shared_policies(rules: usize) -> Judged {
    let rule = |number| {
        let peer = if number % 2 == deciding(rules) % 2 { account() } else { numbered(number) };
        let requests = vec![at(PathMatch::Exact(format!("/place-{number}/7")))];
        PolicyRule { requests, ..allowing(&peer, number) }
    };
    judged(guarded((0..rules).map(rule).collect()))
}

/// Rules of an access policy that allow everything to one account each.
pub(crate) fn policies_of_peers(rules: usize) -> Coming {
    let rule = |number| allowing(&numbered(number), number);
    let plan = guarded((0..rules).map(rule).collect());
    let access = InboundAccess::of(&plan).expect("the rules are valid");
    (access, SpiffeId { trust_domain: plan.trust_domain, account: caller(rules) })
}

fn allowing(account: &ServiceAccount, number: usize) -> PolicyRule {
    PolicyRule {
        policy: PolicyName::new("shop", "guard").expect("a name"),
        name: format!("rules[{number}]"),
        action: PolicyAction::Allow,
        peers: vec![only(account)],
        requests: Vec::new(),
        claims: Vec::new(),
        ports: PortSet::All,
    }
}

fn guarded(rules: Vec<PolicyRule>) -> WorkloadPlan {
    let inbound = InboundPolicy { is_audited: false, rules };
    WorkloadPlan { inbound, ..plan(Access::Strict(Vec::new())) }
}

fn only(account: &ServiceAccount) -> PeerMatch {
    let ServiceAccount { namespace, name } = account;
    PeerMatch { namespace: NamePattern::from(namespace), account: NamePattern::from(name) }
}

/// Policies that allow paths below one prefix each to one account.
pub(crate) fn targets(rules: usize) -> Judged {
    let rule = |number| AccessRule {
        policy: PolicyName::new("shop", &format!("place-{number}")).expect("a name"),
        sources: vec![account()],
        http: vec![at(PathMatch::Regex(format!("/place-{number}/.*")))],
        tcp: PortSet::Only(Vec::new()),
    };
    judged(plan(Access::Strict((0..rules).map(rule).collect())))
}

/// Ingress rules for plaintext clients, each for one path.
pub(crate) fn openings(rules: usize) -> Judged {
    let requests = |number| vec![at(PathMatch::Exact(format!("/place-{number}/7")))];
    let access = open(rules, |number| (None, Some(requests(number))));
    let origin = Origin { address: OUTSIDE.ip(), carrier: Carrier::Clear };
    let permit = access.visit((None, PORT), Some(origin)).expect("it is open");
    (access, permit)
}

/// Ingress rules for plaintext clients, each for one address.
pub(crate) fn openings_by_address(rules: usize) -> Visited {
    let access = open(rules, |number| (Some(vec![IpRange::from(address(number))]), None));
    (access, Origin { address: address(deciding(rules)), carrier: Carrier::Clear })
}

type OpenTo = (Option<Vec<IpRange>>, Option<Vec<RequestMatch>>);

fn open(rules: usize, to: impl Fn(usize) -> OpenTo) -> InboundAccess {
    let opening = |number, (ranges, requests)| Opening {
        policy: format!("IngressBackend shop/place-{number}").parse().expect("a name"),
        port: PORT,
        entry: Entry::Http,
        ranges,
        accounts: Vec::new(),
        external_principals: Vec::new(),
        requests,
    };
    let openings = (0..rules).map(|number| opening(number, to(number))).collect();
    let plan = WorkloadPlan { openings, ..plan(Access::Strict(Vec::new())) };
    InboundAccess::of(&plan).expect("the rules are valid")
}

/// Lanes, each for one value of a header.
pub(crate) fn lanes(rules: usize) -> Lanes {
    let rule = |number| {
        let test = ValueTest::Text {
            relation: TextRelation::Exact,
            texts: vec![user(number)],
            ignore_case: false,
        };
        let headers = vec![FieldTest { name: "x-user".to_owned(), test }];
        let name = TagRouteName::new("shop", "carts").expect("a name");
        let index = u32::try_from(number).expect("a place");
        let marks = BTreeMap::from([("x-lane".to_owned(), "gray".to_owned())]);
        LaneRule {
            origin: RuleOrigin { dialect: TagDialect::Lane, name, index },
            precedence: 0,
            matches: TagMatch { headers, ..TagMatch::default() },
            marks: vec![LaneMark { percent: 60, headers: marks }],
        }
    };
    Lanes::compile(&BTreeMap::from([(PORT, (0..rules).map(rule).collect())])).expect("rules")
}

/// Egress rules at one port, each for one host.
pub(crate) fn egress_rules(rules: usize, matched_by: MatchedBy) -> EgressRules {
    let egress_rule = |number| EgressRule {
        policy: PolicyName::new("shop", &format!("out-{number}")).expect("a name"),
        port: OUTSIDE.port(),
        matched_by,
        hosts: vec![pattern(number)],
        ranges: Vec::new(),
        requests: None,
    };
    EgressRules::compile(&(0..rules).map(egress_rule).collect::<Vec<_>>()).expect("outlets")
}

fn judged(plan: WorkloadPlan) -> Judged {
    let access = InboundAccess::of(&plan).expect("the rules are valid");
    let peer = SpiffeId { trust_domain: plan.trust_domain, account: account() };
    let permit = access.connection(Some(&peer), PORT).expect("a member of the mesh");
    (access, permit)
}

fn port() -> PortView {
    PortView {
        name: None,
        protocol: Protocol::Http,
        routed: false,
        rules: Vec::new(),
        endpoints: Vec::new(),
        tls_rules: Vec::new(),
        traffic_policy: TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    }
}

fn at(path: PathMatch) -> RequestMatch {
    RequestMatch { path, ..RequestMatch::default() }
}

fn backend() -> WeightedBackend {
    WeightedBackend::new(ServiceName::new("shop", "carts").expect("a name"), PORT, 1)
}

fn policy(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", "carts").expect("a name")
}

pub(crate) fn account() -> ServiceAccount {
    ServiceAccount::new("shop", "web").expect("a name")
}

fn numbered(number: usize) -> ServiceAccount {
    ServiceAccount::new("shop", &format!("web-{number}")).expect("a name")
}

fn address(number: usize) -> IpAddr {
    let bits = u32::try_from(number).expect("a place");
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + bits).into()
}

fn user(number: usize) -> String {
    format!("u-{number}")
}

fn host(number: usize) -> String {
    format!("host-{number}.example")
}

fn pattern(number: usize) -> HostPattern {
    host(number).parse().expect("a host")
}

pub(crate) const PORT: u16 = 9080;
/// An unknown address.
pub(crate) const OUTSIDE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);
