//! Tests of the router against tables, and against a naive model of the precedence rules.

use std::collections::HashMap;

use leno_model::{
    BackendEdits, FieldMatch, Header, HeaderEdits, Protocol, ServiceName, ValueMatch,
};
use proptest::prelude::*;

use super::*;

fn weighted_backend(name: &str, weight: u32) -> WeightedBackend {
    let service = ServiceName::new("shop", name).unwrap();
    WeightedBackend::new(service, 80, weight)
}

fn route_rule(route: &str, matches: Vec<RequestMatch>) -> RouteRule {
    RouteRule {
        route: RouteName::new("shop", route).unwrap(),
        matches,
        backends: vec![weighted_backend("stock", 1)],
        request_timeout: None,
        actions: leno_model::RuleActions::default(),
        kind: RouteKind::default(),
    }
}

fn port_with_rules(rules: Vec<RouteRule>) -> PortConfig {
    PortConfig {
        name: None,
        protocol: Protocol::Http,
        has_attached_routes: true,
        rules,
        endpoints: Vec::new(),
        tls_rules: Vec::new(),
        traffic_policy: leno_model::TrafficPolicy::default(),
        tags: None,
        tcp_rule: None,
    }
}

fn prefix_match(path: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Prefix(path.into()), ..RequestMatch::default() }
}

fn exact_match(path: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Exact(path.into()), ..RequestMatch::default() }
}

fn regex_match(path: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Regex(path.into()), ..RequestMatch::default() }
}

fn with_conditions(
    mut request: RequestMatch,
    method: bool,
    headers: usize,
    query: usize,
) -> RequestMatch {
    let fields = |names: &[&str], count: usize| -> Vec<FieldMatch> {
        let field = |name: &&str| FieldMatch {
            name: (*name).to_owned(),
            value: ValueMatch::Exact("1".to_owned()),
        };
        names.iter().take(count).map(field).collect()
    };
    request.methods = vec!["GET".to_owned(); usize::from(method)];
    request.headers = fields(&["x-a", "x-b"], headers);
    request.query = fields(&["a", "b"], query);
    request
}

/// Returns the rule for `GET {path}?a=1&b=1` with `x-a: 1` and `x-b: 1`.
fn selected_rule(routes: &PortRoutes, path: &str) -> Option<usize> {
    let fields = vec![("x-a".to_owned(), "1".to_owned()), ("x-b".to_owned(), "1".to_owned())];
    let request = RequestView {
        method: "GET",
        path,
        query: Some("a=1&b=1"),
        authority: "stock",
        fields: &fields,
    };
    match routes.choose_backend(&request, 0) {
        RouteChoice::To { rule, .. }
        | RouteChoice::InvalidBackend { rule }
        | RouteChoice::Redirect { rule } => Some(rule.index),
        RouteChoice::NoRoute => None,
        RouteChoice::Direct => panic!("routes are attached"),
    }
}

#[test]
fn the_most_specific_match_applies_in_any_order() {
    // Each list is ordered from the most to the least specific match; all matches apply to `/a/b/c`.
    for order in [
        vec![
            exact_match("/a/b/c"),
            prefix_match("/a/b/c"),
            prefix_match("/a/b/"),
            prefix_match("/a"),
            regex_match("/a.*"),
            prefix_match("/"),
        ],
        vec![prefix_match("/a/b"), with_conditions(prefix_match("/a"), true, 2, 2)],
        vec![
            with_conditions(prefix_match("/a"), true, 0, 0),
            with_conditions(prefix_match("/a"), false, 2, 2),
        ],
        vec![
            with_conditions(prefix_match("/a"), true, 2, 0),
            with_conditions(prefix_match("/a"), true, 1, 2),
        ],
        vec![
            with_conditions(prefix_match("/a"), true, 1, 2),
            with_conditions(prefix_match("/a"), true, 1, 1),
        ],
        vec![regex_match("/a/b/c"), RequestMatch::default()],
    ] {
        for (more_specific, less_specific) in order.iter().zip(order.iter().skip(1)) {
            let compile_both = |first: &RequestMatch, second: &RequestMatch| {
                let rules = vec![
                    route_rule("r", vec![first.clone()]),
                    route_rule("r", vec![second.clone()]),
                ];
                PortRoutes::compile(&port_with_rules(rules)).unwrap()
            };
            assert_eq!(
                selected_rule(&compile_both(more_specific, less_specific), "/a/b/c"),
                Some(0),
                "{more_specific:?} {less_specific:?}"
            );
            assert_eq!(
                selected_rule(&compile_both(less_specific, more_specific), "/a/b/c"),
                Some(1),
                "{more_specific:?} {less_specific:?}"
            );
        }
    }
}

#[test]
fn of_equally_specific_rules_the_first_applies() {
    let rules =
        vec![route_rule("a", vec![prefix_match("/x")]), route_rule("b", vec![prefix_match("/x/")])];
    let routes = PortRoutes::compile(&port_with_rules(rules)).unwrap();
    assert_eq!(selected_rule(&routes, "/x/y"), Some(0));
    assert_eq!(selected_rule(&routes, "/y"), None);
}

#[test]
fn requests_are_direct_without_routes_and_rejected_with_empty_routes() {
    let fields = Vec::<(String, String)>::new();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "", fields: &fields };
    let attached = PortRoutes::compile(&port_with_rules(Vec::new())).unwrap();
    assert!(matches!(attached.choose_backend(&request, 0), RouteChoice::NoRoute));
    assert!(!attached.is_trivial());
    let port = PortConfig { has_attached_routes: false, ..port_with_rules(Vec::new()) };
    let direct = PortRoutes::compile(&port).unwrap();
    assert!(matches!(direct.choose_backend(&request, 0), RouteChoice::Direct));
    assert!(direct.is_trivial());
}

#[test]
fn requests_that_match_no_split_rule_are_direct() {
    let fields = Vec::<(String, String)>::new();
    let request =
        |path| RequestView { method: "GET", path, query: None, authority: "", fields: &fields };
    let path = PathMatch::Exact("/split".to_owned());
    let rule = route_rule("r", vec![RequestMatch { path, ..RequestMatch::default() }]);
    let port = PortConfig { has_attached_routes: false, ..port_with_rules(vec![rule]) };
    let routes = PortRoutes::compile(&port).unwrap();
    assert!(!routes.is_trivial());
    assert!(matches!(routes.choose_backend(&request("/split"), 0), RouteChoice::To { .. }));
    assert!(matches!(routes.choose_backend(&request("/"), 0), RouteChoice::Direct));
}

/// Returns the number of requests for each backend, for 1,000 consecutive random numbers.
fn backend_shares(backends: &[(&str, u32)]) -> HashMap<String, u32> {
    let fields = Vec::<(String, String)>::new();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "", fields: &fields };
    let mut catch_all_rule = route_rule("r", vec![RequestMatch::default()]);
    catch_all_rule.backends =
        backends.iter().map(|(name, weight)| weighted_backend(name, *weight)).collect();
    let routes = PortRoutes::compile(&port_with_rules(vec![catch_all_rule])).unwrap();
    let mut shares = HashMap::new();
    for random in 0..1_000 {
        let name = match routes.choose_backend(&request, random) {
            RouteChoice::To { backend, rule, index } => {
                assert_eq!(rule.backends[index], *backend);
                backend.service.name.to_string()
            }
            RouteChoice::InvalidBackend { .. } => "invalid".to_owned(),
            choice => panic!("{choice:?}"),
        };
        *shares.entry(name).or_default() += 1;
    }
    shares
}

#[test]
fn backends_receive_their_shares() {
    for (backends, expected) in [
        (&[("v1", 90), ("v2", 10)][..], &[("v1", 900), ("v2", 100)][..]),
        (&[("v1", 1)], &[("v1", 1_000)]),
        (&[("v1", 0), ("v2", 3), ("v3", 0), ("v4", 1)], &[("v2", 750), ("v4", 250)]),
        (&[("v1", 0), ("v2", 0)], &[("invalid", 1_000)]),
        (&[], &[("invalid", 1_000)]),
        (&[("v1", u32::MAX), ("v2", u32::MAX)], &[("v1", 1_000)]),
    ] {
        let expected = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        assert_eq!(backend_shares(backends), expected, "{backends:?}");
    }
}

#[test]
fn ungranted_backends_retain_their_share() {
    let fields = Vec::<(String, String)>::new();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "", fields: &fields };
    let mut rule = route_rule("r", vec![RequestMatch::default()]);
    rule.actions.ungranted_weight = 3;
    let routes = PortRoutes::compile(&port_with_rules(vec![rule])).unwrap();
    let rejected = (0..1_000).filter(|random| {
        matches!(routes.choose_backend(&request, *random), RouteChoice::InvalidBackend { .. })
    });
    assert_eq!(rejected.count(), 750);
}

#[test]
fn an_invalid_pattern_error_contains_its_route() {
    let port = port_with_rules(vec![route_rule("r", vec![regex_match("(")])]);
    let error = PortRoutes::compile(&port).unwrap_err().to_string();
    assert!(error.starts_with("HTTPRoute shop/r: "), "{error}");
}

/// Returns a match on paths of the elements `a` and `b`: many of them match the same request.
fn any_match() -> impl Strategy<Value = RequestMatch> {
    let path = prop_oneof![
        Just(RequestMatch::default()),
        "(/[ab]){0,3}/?".prop_map(|path| prefix_match(&path)),
        "(/[ab]){1,3}".prop_map(|path| exact_match(&path)),
        prop::sample::select(vec!["/a.*", "/[ab]/.*", "/a|/b", ".*"]).prop_map(regex_match),
    ];
    (path, any::<bool>(), 0..3_usize, 0..3_usize).prop_map(|(path, has_method, headers, query)| {
        with_conditions(path, has_method, headers, query)
    })
}

/// Returns the rule that the documented order selects, by a naive comparison of all matches pair by pair.
fn naive_choice(port: &PortConfig, path: &str) -> Option<usize> {
    let mut selected_match: Option<(usize, &RequestMatch)> = None;
    for (index, rule) in port.rules.iter().enumerate() {
        for candidate in &rule.matches {
            let is_better = selected_match
                .is_none_or(|(_, selected_match)| is_more_specific(candidate, selected_match));
            if naive_matches(&candidate.path, path) && is_better {
                selected_match = Some((index, candidate));
            }
        }
    }
    selected_match.map(|(index, _)| index)
}

/// True if the path matches. Methods, headers and parameters of [`any_match`] always match the request of
/// [`selected_rule`].
fn naive_matches(path_match: &PathMatch, path: &str) -> bool {
    let elements = |path: &str| -> Vec<String> {
        path.trim_matches('/')
            .split('/')
            .filter(|element| !element.is_empty())
            .map(str::to_owned)
            .collect()
    };
    match path_match {
        PathMatch::Any => true,
        PathMatch::Exact(exact) => exact == path,
        PathMatch::Prefix(prefix) => elements(path).starts_with(&elements(prefix)),
        PathMatch::Regex(pattern) => match pattern.as_str() {
            "/a.*" => path.starts_with("/a"),
            "/[ab]/.*" => path.len() > 2 && path.as_bytes()[2] == b'/',
            "/a|/b" => path == "/a" || path == "/b",
            _ => true,
        },
    }
}

fn is_more_specific(first: &RequestMatch, second: &RequestMatch) -> bool {
    let prefix_length = |path: &PathMatch| match path {
        PathMatch::Prefix(prefix) => prefix.trim_end_matches('/').len(),
        _ => 0,
    };
    let is_exact = |path: &PathMatch| matches!(path, PathMatch::Exact(_));
    let is_regex = |path: &PathMatch| matches!(path, PathMatch::Regex(_));
    let (first_path, second_path) = (&first.path, &second.path);
    if is_exact(first_path) != is_exact(second_path) {
        return is_exact(first_path);
    }
    if prefix_length(first_path) != prefix_length(second_path) {
        return prefix_length(first_path) > prefix_length(second_path);
    }
    if is_regex(first_path) != is_regex(second_path) {
        return is_regex(first_path);
    }
    if first.methods.is_empty() != second.methods.is_empty() {
        return second.methods.is_empty();
    }
    if first.headers.len() != second.headers.len() {
        return first.headers.len() > second.headers.len();
    }
    first.query.len() > second.query.len()
}

proptest! {
    #[test]
    fn routing_agrees_with_a_naive_model(
        rules in prop::collection::vec(prop::collection::vec(any_match(), 1..4), 0..8),
        path in "(/[ab]){1,3}",
    ) {
        let port = port_with_rules(rules.into_iter().map(|matches| route_rule("r", matches)).collect());
        let routes = PortRoutes::compile(&port).unwrap();
        prop_assert_eq!(selected_rule(&routes, &path), naive_choice(&port, &path));
    }
}

/// Returns the rule by the definition: among all matches for the request, the first by rank, then by position.
fn find_by_rank(port: &PortConfig, request: &RequestView<'_>) -> Option<usize> {
    let numbered = port.rules.iter().enumerate();
    let matches = numbered.flat_map(|(index, rule)| {
        rule.matches.iter().map(move |request_match| (index, request_match))
    });
    let matching = matches.filter(|(_, request_match)| {
        RequestMatcher::compile(request_match).unwrap().matches(request)
    });
    let best = matching
        .reduce(|best, next| if match_rank(next.1) > match_rank(best.1) { next } else { best });
    best.map(|(index, _)| index)
}

proptest! {
    #[test]
    fn indexed_routing_agrees_with_the_definition(
        rules in prop::collection::vec(prop::collection::vec(any_match(), 1..4), 0..12),
        paths in prop::collection::vec("(/[abc]{1,2}){0,4}/?", 1..8),
        method in prop_oneof![Just("GET"), Just("PUT")],
        has_second_header in any::<bool>(),
        query in prop_oneof![Just(None), Just(Some("a=1")), Just(Some("a=1&b=1"))],
    ) {
        let port = port_with_rules(rules.into_iter().map(|matches| route_rule("r", matches)).collect());
        let routes = PortRoutes::compile(&port).unwrap();
        let mut fields = vec![("x-a".to_owned(), "1".to_owned())];
        fields.extend(has_second_header.then(|| ("x-b".to_owned(), "1".to_owned())));
        for path in &paths {
            let request = RequestView { method, path, query, authority: "", fields: &fields };
            let chosen_rule = match routes.choose_backend(&request, 0) {
                RouteChoice::To { rule, .. } => Some(rule.index),
                choice => {
                    prop_assert!(matches!(choice, RouteChoice::NoRoute));
                    None
                }
            };
            prop_assert_eq!(chosen_rule, find_by_rank(&port, &request), "{}", path);
        }
    }
}

/// Returns a match with a small set of paths and values, several of which apply to the same request: large
/// groups are indexed by them.
fn any_field_match() -> impl Strategy<Value = RequestMatch> {
    let any_text = || {
        prop_oneof![
            prop::sample::select(vec!["1", "2", "3"])
                .prop_map(|text| ValueMatch::Exact(text.to_owned())),
            prop::sample::select(vec!["1", "[12]", ".*"])
                .prop_map(|text| ValueMatch::Regex(text.to_owned())),
        ]
    };
    let fields = |names: &'static [&'static str]| {
        let field = (prop::sample::select(names), any_text());
        prop::collection::vec(field, 0..3).prop_map(|fields| {
            let field = |(name, value): (&str, ValueMatch)| FieldMatch { name: name.into(), value };
            fields.into_iter().map(field).collect::<Vec<_>>()
        })
    };
    let methods = prop::collection::vec(prop::sample::select(vec!["GET", "PUT"]), 0..3);
    let path = prop_oneof![
        Just(PathMatch::Any),
        Just(PathMatch::Prefix("/a".to_owned())),
        Just(PathMatch::Exact("/a/b".to_owned())),
        prop::sample::select(vec!["/a/b", "/a/.*", "/(a|c)/b"])
            .prop_map(|path| PathMatch::Regex(path.to_owned())),
    ];
    let headers = fields(&["x-a", "X-B", "host"]);
    (path, methods, headers, fields(&["p", "q"])).prop_map(|(path, methods, headers, query)| {
        let methods = methods.into_iter().map(str::to_owned).collect();
        RequestMatch { path, methods, headers, query }
    })
}

proptest! {
    #[test]
    fn indexed_routing_of_one_path_agrees_with_the_definition(
        rules in prop::collection::vec(prop::collection::vec(any_field_match(), 1..3), 0..40),
        path in prop::sample::select(vec!["/a/b", "/a", "/c/b", "/", "/a/b/"]),
        method in prop::sample::select(vec!["GET", "PUT", "DELETE"]),
        (first_value, second_value, host) in ("[123]", prop::option::of("[123]"), "[123]"),
        query in prop::option::of("(p|q|%70)=(1|2|%33|%ff)(&[pq]=[123])?"),
    ) {
        let port = port_with_rules(rules.into_iter().map(|matches| route_rule("r", matches)).collect());
        let routes = PortRoutes::compile(&port).unwrap();
        let mut fields = vec![("x-a".to_owned(), first_value)];
        fields.extend(second_value.map(|second_value| ("x-b".to_owned(), second_value)));
        let request =
            RequestView { method, path, query: query.as_deref(), authority: &host, fields: &fields };
        let chosen_rule = match routes.choose_backend(&request, 0) {
            RouteChoice::To { rule, .. } => Some(rule.index),
            choice => {
                prop_assert!(matches!(choice, RouteChoice::NoRoute));
                None
            }
        };
        prop_assert_eq!(chosen_rule, find_by_rank(&port, &request));
    }
}

#[test]
fn actions_depend_on_the_backend_if_one_has_edits() {
    let header_edits = |value: &str| HeaderEdits {
        set: vec![Header { name: "x".to_owned(), value: value.to_owned() }],
        ..HeaderEdits::default()
    };
    let edits =
        BackendEdits { request_headers: header_edits("backend"), ..BackendEdits::default() };
    let edited = WeightedBackend { edits: Some(Box::new(edits)), ..weighted_backend("new", 1) };
    let edit_lines = |rule: &CompiledRouteRule, index| {
        rule.actions_at(index).map_or(String::new(), |actions| actions.request.lines.to_string())
    };
    let mut rule_source = route_rule("a", vec![prefix_match("/")]);
    rule_source.backends.push(edited);
    let routes = PortRoutes::compile(&port_with_rules(vec![rule_source.clone()])).unwrap();
    let [compiled] = routes.rules() else { panic!("one rule") };
    assert!(compiled.actions.is_none());
    assert_eq!([0, 1].map(|index| edit_lines(compiled, index)), ["", "x: backend\r\n"]);
    rule_source.actions.request_headers = header_edits("rule");
    let routes = PortRoutes::compile(&port_with_rules(vec![rule_source])).unwrap();
    let [compiled] = routes.rules() else { panic!("one rule") };
    assert_eq!([0, 1].map(|index| edit_lines(compiled, index)), ["x: rule\r\n", "x: backend\r\n"]);
}
