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

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group,
};
use leno_model::{
    Access, AccessRule, Caller, Callers, Endpoint, EndpointId, FieldMatch, FieldTest, Otherwise,
    PathMatch, PolicyName, PortSet, PortView, Protocol, RequestMatch, RouteName, RouteRule,
    RuleOrigin, ServiceAccount, ServiceName, SpiffeId, Sticky, TagDialect, TagMatch, TagRouteName,
    TagRule, TagRules, TagSet, TagSplit, TagTarget, TagValue, TextRelation, TrustDomain,
    ValueMatch, ValueTest, WeightedBackend, WorkloadName,
};
use leno_traffic::route::{PortRoutes, RouteChoice};
use leno_traffic::{Candidates, ConnectionPermit, InboundAccess, RequestView, TagPlan, pick};

// Among twenty rules: by a prefix in the middle, or by the one that takes what is left.
#[library_benchmark]
#[bench::by_prefix(args = (routes(), "/shop/carts/42"), config = measured(1_562))]
#[bench::by_catch_all(args = (routes(), "/favicon.ico"), config = measured(1_253))]
fn route((routes, fields): (PortRoutes, Headers), path: &str) -> (PortRoutes, Headers) {
    let choice = routes.choose(&view(&fields, path), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, fields)
}

// Against ten policies, three of which name the peer: the last of them allows it, or none does.
#[library_benchmark]
#[bench::allowed(args = (access("/reviews/42"), "/reviews/42"), config = measured(1_527))]
#[bench::denied(args = (access("/reports/42"), "/reports/42"), config = measured(4_812))]
fn authorize((judged, fields): (Judged, Headers), path: &str) -> (Judged, Headers) {
    let (access, permit) = &judged;
    let decision = access.request(permit, &view(&fields, path));
    assert_eq!(black_box(decision).is_ok(), path == "/reviews/42");
    (judged, fields)
}

// A hundred times, among ten endpoints of which one backs off.
#[library_benchmark]
#[bench::hundred(args = (endpoints()), config = measured(4_484))]
fn pick_endpoint(endpoints: Endpoints) -> (Endpoints, usize) {
    let mut sum = 0;
    for turn in 0..100_u64 {
        let draw = turn.wrapping_mul(DRAW);
        sum += pick(black_box(&endpoints), draw).expect("there are endpoints");
    }
    (endpoints, sum)
}

// Among tag rules: one by header, one that draws between two sets, none that fits, and the last of
// ten and of ten thousand that each demand another value of one header.
#[library_benchmark]
#[bench::by_header(args = (tagged(by_user(1), "user-0")), config = measured(1))]
#[bench::by_draw(args = (tagged(drawn(), "user-0")), config = measured(1))]
#[bench::none_fits(args = (tagged(by_user(10), "nobody")), config = measured(1))]
#[bench::last_of_ten(args = (tagged(by_user(10), "user-9")), config = measured(1))]
#[bench::last_of_ten_thousand(args = (tagged(by_user(10_000), "user-9999")), config = measured(1))]
#[bench::sticky(args = (tagged(sticky(), "user-0")), config = measured(1))]
fn tag((plan, fields): (TagPlan, Headers)) -> (TagPlan, Headers) {
    let decision = plan.choose(&view(&fields, "/orders/42"), &mut || black_box(DRAW));
    assert!(black_box(decision).endpoints.is_some());
    (plan, fields)
}

library_benchmark_group!(name = stations, benchmarks = [route, authorize, pick_endpoint, tag]);

gungraun::main!(library_benchmark_groups = stations);

/// Fails above 103 % of this.
fn measured(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions * 3 / 100;
    let mut config = LibraryBenchmarkConfig::default();
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    config.tool(callgrind.hard_limits([(EventKind::Ir, limit)]));
    config
}

type Headers = Vec<(String, String)>;
type Judged = (InboundAccess, ConnectionPermit);

fn view<'a>(fields: &'a Headers, path: &'a str) -> RequestView<'a> {
    RequestView {
        method: "GET",
        path,
        query: Some("limit=10"),
        authority: "reviews.bookinfo:9080",
        fields,
    }
}

fn headers() -> Headers {
    [
        ("host", "reviews.bookinfo:9080"),
        ("user-agent", "python-requests/2.32.3"),
        ("accept", "application/json"),
        ("x-canary", "never"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// Twelve prefixes, four of them for a canary as well, three exact paths, and one for the rest.
fn routes() -> (PortRoutes, Headers) {
    const PLACES: [&str; 12] = [
        "products", "reviews", "ratings", "details", "carts", "orders", "users", "stock", "prices",
        "offers", "images", "search",
    ];
    let prefix = |place: &&str| PathMatch::Prefix(format!("/shop/{place}"));
    let mut matches: Vec<_> = PLACES.iter().map(|place| plain(prefix(place))).collect();
    matches.extend(PLACES.iter().skip(3).take(4).map(|place| canary(prefix(place))));
    let exact = ["/health", "/ready", "/metrics"];
    matches.extend(exact.map(|path| plain(PathMatch::Exact(path.to_owned()))));
    matches.push(plain(PathMatch::Prefix("/".to_owned())));
    assert_eq!(matches.len(), 20);
    let view = PortView {
        name: None,
        protocol: Protocol::Http,
        routed: true,
        rules: matches.into_iter().map(rule).collect(),
        endpoints: Vec::new(),
        tags: None,
    };
    (PortRoutes::compile(&view).expect("the rules are valid"), headers())
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
    let backend = |(name, weight)| WeightedBackend {
        service: ServiceName::new("bookinfo", name).expect("a name"),
        port: 9080,
        weight,
    };
    RouteRule {
        route: RouteName::new("bookinfo", "shop").expect("a name"),
        matches: vec![request],
        backends: [("reviews-v1", 90), ("reviews-v2", 10)].map(backend).to_vec(),
        request_timeout: None,
    }
}

/// Each policy allows one place to two accounts. The one that asks has asked before: what regular
/// expressions prepare when they first see a path is there.
fn access(path: &str) -> (Judged, Headers) {
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
    let permit = access.connection(Some(&peer)).expect("a member of the mesh");
    let fields = headers();
    for _ in 0..4 {
        let before = access.request(&permit, &view(&fields, path));
        assert_eq!(before.is_ok(), path == "/reviews/42");
    }
    ((access, permit), fields)
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

/// Tag rules for ten instances of two versions, and the headers of a user.
fn tagged(rules: Vec<TagRule>, user: &str) -> (TagPlan, Headers) {
    let endpoint = |index: u16| {
        let version = if index % 2 == 0 { "1" } else { "2" };
        let workload = format!("orders-{index}");
        Arc::new(Endpoint {
            id: EndpointId {
                service: ServiceName::new("bookinfo", "orders").expect("a name"),
                port: 9080,
                workload: WorkloadName::new("bookinfo", &workload).expect("a name"),
            },
            address: ([127, 0, 0, 1], 20_000 + index).into(),
            account: account("orders"),
            tags: BTreeMap::from([("version".to_owned(), version.to_owned())]),
        })
    };
    let endpoints: Arc<[_]> = (0..10).map(endpoint).collect();
    let otherwise = vec![Otherwise::Any];
    let rules = TagRules { rules, otherwise, by_caller: Vec::new() };
    let plan = TagPlan::build(&Arc::new(rules), &Caller::default(), &endpoints, None);
    let mut fields = headers();
    fields.push(("x-user".to_owned(), user.to_owned()));
    (plan.expect("the rules are valid"), fields)
}

fn tag_rule(index: u32, matches: TagMatch, versions: &[&str]) -> TagRule {
    let target = |version: &&str| {
        let value = TagValue::Is((*version).to_owned());
        let tags = BTreeMap::from([("version".to_owned(), value)]);
        TagTarget { weight: 1, set: TagSet::All(tags) }
    };
    let name = TagRouteName::new("bookinfo", "orders").expect("a name");
    TagRule {
        origin: RuleOrigin { dialect: TagDialect::TagRoute, name, index },
        precedence: 0,
        from: Callers::default(),
        matches,
        split: TagSplit { targets: versions.iter().map(target).collect(), ..TagSplit::default() },
        fallback: TagSplit::default(),
        otherwise: Vec::new(),
        sticky: None,
    }
}

/// So many rules, each for another user.
fn by_user(count: u32) -> Vec<TagRule> {
    let rule = |index| {
        let test = ValueTest::Text {
            relation: TextRelation::Exact,
            texts: vec![format!("user-{index}")],
            ignore_case: false,
        };
        let headers = vec![FieldTest { name: "x-user".to_owned(), test }];
        tag_rule(index, TagMatch { headers, ..TagMatch::default() }, &["2"])
    };
    (0..count).map(rule).collect()
}

fn drawn() -> Vec<TagRule> {
    vec![tag_rule(0, TagMatch::default(), &["1", "2"])]
}

fn sticky() -> Vec<TagRule> {
    let sticky = Some(Sticky::Header("x-user".to_owned()));
    vec![TagRule { sticky, ..tag_rule(0, TagMatch::default(), &["1", "2"]) }]
}

/// Odd, so that its multiples spread over all numbers.
const DRAW: u64 = 0x9E37_79B9_7F4A_7C15;
