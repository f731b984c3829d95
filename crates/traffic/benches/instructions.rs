//! How many instructions the decisions of `traffic` may execute: 3 % above what was measured fails.
//!
//! Measured with rustc 1.95.0 for x86-64, release profile. Another compiler, allocator or C
//! library counts differently: renew the numbers in a commit of their own. `./test instructions`
//! prints what it counts; each goes, as it stands, into the `measured` of its station.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "what the macros of gungraun write keeps to none of these"
)]

mod measure;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_model::{
    Access, AccessRule, FieldMatch, PathMatch, PolicyName, PortSet, PortView, Protocol,
    RequestMatch, RouteName, RouteRule, ServiceAccount, ServiceName, SpiffeId, Treatment,
    TrustDomain, ValueMatch, WeightedBackend,
};
use leno_traffic::route::{PortRoutes, RouteChoice};
use leno_traffic::{Candidates, ConnectionPermit, InboundAccess, pick};

use self::measure::{Asked, DRAW, asked, measured};

// Among twenty rules: by a prefix in the middle, or by the one that takes what is left.
#[library_benchmark]
#[bench::by_prefix(args = (routes(), asked("/shop/carts/42")), config = measured(761))]
#[bench::by_catch_all(args = (routes(), asked("/favicon.ico")), config = measured(408))]
fn route(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose(&asked.view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Among ten rules and among ten thousand, by an exact path or by a prefix: it costs the same.
#[library_benchmark]
#[bench::exact_of_10(args = (many(10, exact), asked("/shop/7")), config = measured(329))]
#[bench::exact_of_10000(args = (many(10_000, exact), asked("/shop/9997")), config = measured(325))]
#[bench::prefix_of_10(args = (many(10, prefix), asked("/shop/7/42")), config = measured(354))]
#[bench::prefix_of_10000(args = (many(10_000, prefix), asked("/shop/9997/42")), config = measured(352))]
fn route_among(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose(&asked.view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Against ten policies, three of which name the peer: the last of them allows it, or none does.
#[library_benchmark]
#[bench::allowed(args = (access("/reviews/42"), asked("/reviews/42")), config = measured(1_221))]
#[bench::denied(args = (access("/reports/42"), asked("/reports/42")), config = measured(2_483))]
fn authorize(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.request(permit, &asked.view());
    assert_eq!(black_box(decision).is_ok(), asked.path == "/reviews/42");
    (judged, asked)
}

// A hundred times, among ten endpoints of which one backs off.
#[library_benchmark]
#[bench::hundred(args = (endpoints()), config = measured(4_129))]
fn pick_endpoint(endpoints: Endpoints) -> (Endpoints, usize) {
    let mut sum = 0;
    for turn in 0..100_u64 {
        let draw = turn.wrapping_mul(DRAW);
        sum += pick(black_box(&endpoints), draw).expect("there are endpoints");
    }
    (endpoints, sum)
}

library_benchmark_group!(
    name = stations,
    benchmarks = [route, route_among, authorize, pick_endpoint]
);

gungraun::main!(library_benchmark_groups = stations);

type Judged = (InboundAccess, ConnectionPermit);

/// Twelve prefixes, four of them for a canary as well, three exact paths, and one for the rest.
fn routes() -> PortRoutes {
    const PLACES: [&str; 12] = [
        "products", "reviews", "ratings", "details", "carts", "orders", "users", "stock", "prices",
        "offers", "images", "search",
    ];
    let mut matches: Vec<_> = PLACES.iter().map(|place| plain(prefix(place))).collect();
    matches.extend(PLACES.iter().skip(3).take(4).map(|place| canary(prefix(place))));
    let paths = ["/health", "/ready", "/metrics"];
    matches.extend(paths.map(|path| plain(PathMatch::Exact(path.to_owned()))));
    matches.push(plain(PathMatch::Prefix("/".to_owned())));
    assert_eq!(matches.len(), 20);
    compiled(matches)
}

/// So many rules, each for one place.
fn many(rules: usize, path: fn(&str) -> PathMatch) -> PortRoutes {
    let matches = (0..rules).map(|number| plain(path(&number.to_string())));
    compiled(matches.collect())
}

fn exact(place: &str) -> PathMatch {
    PathMatch::Exact(format!("/shop/{place}"))
}

fn prefix(place: &str) -> PathMatch {
    PathMatch::Prefix(format!("/shop/{place}"))
}

fn compiled(matches: Vec<RequestMatch>) -> PortRoutes {
    let view = PortView {
        name: None,
        protocol: Protocol::Http,
        routed: true,
        rules: matches.into_iter().map(rule).collect(),
        endpoints: Vec::new(),
        tls_rules: Vec::new(),
        treatment: Treatment::default(),
        tags: None,
        tcp_rule: None,
    };
    PortRoutes::compile(&view).expect("the rules are valid")
}

fn plain(path: PathMatch) -> RequestMatch {
    RequestMatch { path, methods: vec!["GET".to_owned()], ..RequestMatch::default() }
}

fn canary(path: PathMatch) -> RequestMatch {
    let value = ValueMatch::Exact("always".to_owned());
    let header = FieldMatch { name: "x-canary".to_owned(), value };
    RequestMatch { headers: vec![header], ..plain(path) }
}

/// Nine in ten to one version, the rest to the next.
fn rule(request: RequestMatch) -> RouteRule {
    let backend = |(name, weight)| {
        let service = ServiceName::new("bookinfo", name).expect("a name");
        WeightedBackend::new(service, 9080, weight)
    };
    RouteRule {
        route: RouteName::new("bookinfo", "shop").expect("a name"),
        matches: vec![request],
        backends: [("reviews-v1", 90), ("reviews-v2", 10)].map(backend).to_vec(),
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    }
}

/// Each policy allows one place to two accounts. The one that asks has asked before: what regular
/// expressions prepare when they first see a path is there.
fn access(path: &str) -> Judged {
    const PLACES: [&str; 10] = [
        "products", "ratings", "details", "carts", "orders", "users", "stock", "reviews", "prices",
        "offers",
    ];
    let named = ["products", "carts", "reviews"];
    let rules = PLACES.iter().map(|place| {
        let asking = if named.contains(place) { "productpage" } else { "backoffice" };
        AccessRule {
            policy: PolicyName::new("bookinfo", place).expect("a name"),
            sources: vec![account("operations"), account(asking)],
            http: [format!("/{place}"), format!("/{place}/[0-9]+")]
                .map(|path| plain(PathMatch::Regex(path)))
                .to_vec(),
            tcp: PortSet::Only(Vec::new()),
        }
    });
    let trust_domain = TrustDomain::new("cluster.local").expect("a name");
    let access = InboundAccess::compile(&Access::Strict(rules.collect()), &trust_domain);
    let access = access.expect("the rules are valid");
    let peer = SpiffeId { trust_domain, account: account("productpage") };
    let permit = access.connection(Some(&peer), 9080).expect("a member of the mesh");
    let asked = asked(path);
    for _ in 0..4 {
        let before = access.request(&permit, &asked.view());
        assert_eq!(before.is_ok(), path == "/reviews/42");
    }
    (access, permit)
}

fn account(name: &str) -> ServiceAccount {
    ServiceAccount::new("bookinfo", name).expect("a name")
}

/// What each has in flight, and whether it may be chosen.
struct Endpoints([(u32, bool); 10]);

impl Candidates for Endpoints {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn load(&self, index: usize) -> u32 {
        self.0.get(index).map_or(u32::MAX, |(load, _)| *load)
    }

    fn usable(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|(_, usable)| *usable)
    }
}

fn endpoints() -> Endpoints {
    let loads = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];
    Endpoints(loads.map(|load| (load, load != 9)))
}
