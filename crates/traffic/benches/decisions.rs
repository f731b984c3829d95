//! Inputs of the benchmarks in `instructions.rs`.

use leno_model::{
    Access, AccessRule, FieldMatch, PathMatch, PolicyName, PortConfig, PortSet, Protocol,
    RequestMatch, RouteName, RouteRule, ServiceAccount, ServiceName, SpiffeId, TrafficPolicy,
    TrustDomain, ValueMatch, WeightedBackend,
};
use leno_traffic::route::PortRoutes;
use leno_traffic::{ConnectionPermit, InboundAccess};

use crate::sample::sample_request;

pub(crate) type AccessAndPermit = (InboundAccess, ConnectionPermit);

/// Returns routes for twelve prefixes, four of them also for a canary, three exact paths, and a default.
pub(crate) fn twenty_routes() -> PortRoutes {
    const NAMES: [&str; 12] = [
        "products", "reviews", "ratings", "details", "carts", "orders", "users", "stock", "prices",
        "offers", "images", "search",
    ];
    let mut matches: Vec<_> = NAMES.iter().map(|name| path_match(path_prefix(name))).collect();
    matches.extend(NAMES.iter().skip(3).take(4).map(|name| canary_match(path_prefix(name))));
    let paths = ["/health", "/ready", "/metrics"];
    matches.extend(paths.map(|path| path_match(PathMatch::Exact(path.to_owned()))));
    matches.push(path_match(PathMatch::Prefix("/".to_owned())));
    assert_eq!(matches.len(), 20);
    compile_routes(matches)
}

/// Returns this number of rules, each for one path.
pub(crate) fn many_routes(rules: usize, path: fn(&str) -> PathMatch) -> PortRoutes {
    let matches = (0..rules).map(|number| path_match(path(&number.to_string())));
    compile_routes(matches.collect())
}

pub(crate) fn exact_path(name: &str) -> PathMatch {
    PathMatch::Exact(format!("/shop/{name}"))
}

pub(crate) fn path_prefix(name: &str) -> PathMatch {
    PathMatch::Prefix(format!("/shop/{name}"))
}

pub(crate) fn compile_routes(matches: Vec<RequestMatch>) -> PortRoutes {
    let port_config = PortConfig {
        name: None,
        protocol: Protocol::Http,
        has_attached_routes: true,
        rules: matches.into_iter().map(split_rule).collect(),
        endpoints: Vec::new(),
        tls_rules: Vec::new(),
        traffic_policy: TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    };
    PortRoutes::compile(&port_config).expect("the rules are valid")
}

pub(crate) fn path_match(path: PathMatch) -> RequestMatch {
    RequestMatch { path, methods: vec!["GET".to_owned()], ..RequestMatch::default() }
}

pub(crate) fn canary_match(path: PathMatch) -> RequestMatch {
    let value = ValueMatch::Exact("always".to_owned());
    let header = FieldMatch { name: "x-canary".to_owned(), value };
    RequestMatch { headers: vec![header], ..path_match(path) }
}

/// Returns a rule that forwards 90 % of requests to one version, and 10 % to the next.
pub(crate) fn split_rule(request: RequestMatch) -> RouteRule {
    let backend = |(name, weight)| {
        let service = ServiceName::new("bookinfo", name).expect("the name is valid");
        WeightedBackend::new(service, 9080, weight)
    };
    RouteRule {
        route: RouteName::new("bookinfo", "shop").expect("the name is valid"),
        matches: vec![request],
        backends: [("reviews-v1", 90), ("reviews-v2", 10)].map(backend).to_vec(),
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: leno_model::RouteKind::default(),
    }
}

/// Returns the rules of ten policies, each of which allows one path to two accounts, and the permit of a peer. The peer
/// has sent a request before, so that the lazy state of regular expressions for this path is initialized.
pub(crate) fn compile_access(path: &str) -> AccessAndPermit {
    const NAMES: [&str; 10] = [
        "products", "ratings", "details", "carts", "orders", "users", "stock", "reviews", "prices",
        "offers",
    ];
    let allowed = ["products", "carts", "reviews"];
    let rules = NAMES.iter().map(|name| {
        let client = if allowed.contains(name) { "productpage" } else { "backoffice" };
        AccessRule {
            policy: PolicyName::new("bookinfo", name).expect("the name is valid"),
            sources: vec![service_account("operations"), service_account(client)],
            http: [format!("/{name}"), format!("/{name}/[0-9]+")]
                .map(|path| path_match(PathMatch::Regex(path)))
                .to_vec(),
            tcp: PortSet::Only(Vec::new()),
        }
    });
    let trust_domain = TrustDomain::new("cluster.local").expect("the name is valid");
    let access = InboundAccess::compile(&Access::AllowListed(rules.collect()), &trust_domain);
    let access = access.expect("the rules are valid");
    let peer = SpiffeId { trust_domain, account: service_account("productpage") };
    let permit = access.authorize_connection(Some(&peer), 9080).expect("the peer is a member");
    let sample = sample_request(path);
    for _ in 0..4 {
        let decision = access.authorize_request(&permit, &sample.request_view());
        assert_eq!(decision.is_ok(), path == "/reviews/42");
    }
    (access, permit)
}

pub(crate) fn service_account(name: &str) -> ServiceAccount {
    ServiceAccount::new("bookinfo", name).expect("the name is valid")
}
