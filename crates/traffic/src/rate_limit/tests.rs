//! Tests of rate limits, rule by rule.

use leno_model::{
    Concurrency, FieldMatch, NamePattern, PathMatch, PeerMatch, Rate, RateLimits, RequestMatch,
    ServicePolicyKind, ValueMatch,
};
use proptest::prelude::*;

use super::*;
use crate::match_index::tests::{any_match, any_request};

const PORT: u16 = 9080;

fn port_limits(name: &str, rules: Vec<RateRule>) -> PortLimits {
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "shop", name).unwrap();
    PortLimits { policy, limits: RateLimits { rules, ..RateLimits::default() } }
}

/// Returns a rule that allows a burst of this size, and then one request per hour.
fn hourly_rule(size: u32, path: Option<&str>) -> RateRule {
    let path = path.map(|path| RequestMatch {
        path: PathMatch::Prefix(path.to_owned()),
        ..RequestMatch::default()
    });
    RateRule {
        name: "rule".to_owned(),
        requests: path.into_iter().collect(),
        peers: Vec::new(),
        key: RateLimitKey::None,
        rate: Rate { count: 1, period: Duration::from_secs(3600), burst: size },
        stop: false,
        response: FixedResponse::default(),
    }
}

fn compile_limits(policies: Vec<PortLimits>) -> CompiledLimits {
    CompiledLimits::build(&BTreeMap::from([(PORT, policies)]), None).unwrap()
}

fn service_account(name: &str) -> ServiceAccount {
    ServiceAccount::new("shop", name).unwrap()
}

struct TestRequest<'a> {
    path: &'a str,
    user: Option<&'a str>,
    from: &'a str,
}

/// Returns the number of admitted requests out of a hundred.
fn count_admitted(limits: &CompiledLimits, test_request: &TestRequest<'_>) -> usize {
    let user = test_request.user.map(|user| ("x-user".to_owned(), user.to_owned()));
    let fields: Vec<(String, String)> = user.into_iter().collect();
    let (method, query, authority) = ("GET", None, "stock.shop");
    let request =
        RequestView { method, path: test_request.path, query, authority, fields: &fields };
    let caller = service_account(test_request.from);
    let now = Duration::from_secs(7);
    (0..100).filter(|_| limits.admit_request(PORT, &request, Some(&caller), now).is_ok()).count()
}

fn get_request(path: &str) -> TestRequest<'_> {
    TestRequest { path, user: None, from: "web" }
}

#[test]
fn each_rule_that_counts_a_request_needs_a_token() {
    let limits = compile_limits(vec![port_limits(
        "a",
        vec![hourly_rule(10, None), hourly_rule(3, Some("/orders"))],
    )]);
    assert_eq!(count_admitted(&limits, &get_request("/orders/1")), 3);
    // A request that the second rule rejects takes no token of the first rule.
    assert_eq!(count_admitted(&limits, &get_request("/items")), 7);
}

#[test]
fn a_matching_rule_with_stop_ends_the_evaluation() {
    let last_rule = RateRule { stop: true, ..hourly_rule(20, Some("/orders")) };
    let limits = compile_limits(vec![port_limits("a", vec![last_rule, hourly_rule(2, None)])]);
    assert_eq!(count_admitted(&limits, &get_request("/orders/1")), 20);
    assert_eq!(count_admitted(&limits, &get_request("/items")), 2);
}

#[test]
fn alternative_encodings_of_a_path_count_against_its_limit() {
    let last_rule = RateRule { stop: true, ..hourly_rule(90, Some("/cheap")) };
    let limits =
        compile_limits(vec![port_limits("a", vec![last_rule, hourly_rule(2, Some("/orders"))])]);
    assert_eq!(count_admitted(&limits, &get_request("/orders/1")), 2);
    for path in [
        "/%6frders/1",
        "//orders/1",
        "//cheap/orders/1",
        "/orders;a=b/1",
        "/cheap/../orders",
        "/x/%2e%2e/y",
    ] {
        assert_eq!(count_admitted(&limits, &get_request(path)), 0, "{path}");
    }
    assert_eq!(count_admitted(&limits, &get_request("/cheap/1")), 90);
}

#[test]
fn an_ambiguous_request_does_not_end_the_evaluation_at_a_stop_rule() {
    let field = |name: &str, value: &str| FieldMatch {
        name: name.to_owned(),
        value: match value.strip_prefix('~') {
            Some(pattern) => ValueMatch::Regex(pattern.to_owned()),
            None => ValueMatch::Exact(value.to_owned()),
        },
    };
    let limited_rule = |size, stop, requests: RequestMatch| {
        let requests = vec![requests];
        RateRule { requests, stop, ..hourly_rule(size, None) }
    };
    let method =
        |method: &str| RequestMatch { methods: vec![method.to_owned()], ..RequestMatch::default() };
    let query =
        |name, value| RequestMatch { query: vec![field(name, value)], ..RequestMatch::default() };
    let header =
        |name, value| RequestMatch { headers: vec![field(name, value)], ..RequestMatch::default() };
    let by_method =
        || vec![limited_rule(90, true, method("POST")), limited_rule(1, false, method("DELETE"))];
    let by_query = |ping| {
        vec![
            limited_rule(90, true, query("op", ping)),
            limited_rule(1, false, query("op", "login")),
        ]
    };
    let by_header = |probe| {
        vec![
            limited_rule(90, true, header("x-kind", probe)),
            limited_rule(1, false, header("x-kind", "real")),
        ]
    };
    for (rules, query, field, expected) in [
        (by_method(), None, None, 90),
        (by_method(), None, Some(("X-HTTP-Method-Override", "DELETE")), 1),
        (by_method(), None, Some(("x_method_override", "delete")), 1),
        (by_method(), Some("_method=DELETE"), None, 1),
        (by_method(), Some("x=1&[_method]=DELETE"), None, 1),
        (by_query("ping"), Some("op=ping"), None, 90),
        (by_query("ping"), Some("op=ping&x=1"), None, 90),
        (by_query("ping"), Some("op=ping&op=login"), None, 1),
        (by_query("ping"), Some("op=ping&Op=login"), None, 1),
        (by_query("ping"), Some("op=ping&op[]=login"), None, 1),
        (by_query("ping"), Some("op=ping&[op]=login"), None, 1),
        (by_query("~p.*"), Some("op=ping"), None, 90),
        (by_query("~p.*"), Some("op=ping;op=login"), None, 1),
        (by_query("~p.*"), Some("op=ping,login"), None, 1),
        (by_query("~p.*"), Some("op=ping%2clogin"), None, 1),
        (by_header("probe"), None, Some(("X-Kind", "probe")), 90),
        (by_header("probe"), None, Some(("x_kind", "real")), 1),
        (by_header("~p.*"), None, Some(("x-kind", "probe, real")), 1),
        (by_header("~p.*"), None, Some(("x-kind", "probe;real")), 1),
    ] {
        let limits = compile_limits(vec![port_limits("a", rules)]);
        let field = field.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let exact_field = ("x-kind".to_owned(), "probe".to_owned());
        let is_similar_name = field.as_ref().is_some_and(|(name, _)| name == "x_kind");
        let fields: Vec<_> =
            is_similar_name.then_some(exact_field).into_iter().chain(field).collect();
        let request =
            RequestView { method: "POST", path: "/item", query, authority: "", fields: &fields };
        let now = Duration::from_secs(7);
        let admitted = (0..100).filter(|_| limits.admit_request(PORT, &request, None, now).is_ok());
        assert_eq!(admitted.count(), expected, "{query:?} {fields:?}");
    }
}

#[test]
fn each_client_and_each_value_has_a_bucket_of_its_own() {
    let client = RateRule { key: RateLimitKey::Client { buckets: 10 }, ..hourly_rule(4, None) };
    let limits = compile_limits(vec![port_limits("a", vec![client])]);
    for from in ["web", "app"] {
        assert_eq!(count_admitted(&limits, &TestRequest { from, ..get_request("/") }), 4, "{from}");
    }
    let header = RateLimitKey::Header { name: "x-user".to_owned(), buckets: 10 };
    let limits = compile_limits(vec![port_limits(
        "a",
        vec![RateRule { key: header, ..hourly_rule(4, None) }],
    )]);
    for user in [Some("ann"), Some("bob"), None] {
        assert_eq!(
            count_admitted(&limits, &TestRequest { user, ..get_request("/") }),
            4,
            "{user:?}"
        );
        assert_eq!(
            count_admitted(&limits, &TestRequest { user, ..get_request("/") }),
            0,
            "{user:?}"
        );
    }
}

#[test]
fn a_rule_for_some_callers_does_not_count_other_callers() {
    let pattern = |text| NamePattern::new(text).unwrap();
    let peers = vec![PeerMatch { namespace: pattern("shop"), account: pattern("w*") }];
    let limits =
        compile_limits(vec![port_limits("a", vec![RateRule { peers, ..hourly_rule(4, None) }])]);
    assert_eq!(count_admitted(&limits, &get_request("/")), 4);
    assert_eq!(count_admitted(&limits, &TestRequest { from: "app", ..get_request("/") }), 100);
}

#[test]
fn the_first_exhausted_policy_of_a_port_is_reported() {
    let response = FixedResponse { status: Some(503), ..FixedResponse::default() };
    let small_rule = RateRule { response, ..hourly_rule(1, None) };
    let limits = compile_limits(vec![
        port_limits("a", vec![hourly_rule(5, None)]),
        port_limits("b", vec![small_rule]),
    ]);
    assert_eq!(count_admitted(&limits, &get_request("/")), 1);
    let fields = Vec::new();
    let request =
        RequestView { method: "GET", path: "/", query: None, authority: "", fields: &fields };
    let exceeded = limits.admit_request(PORT, &request, None, Duration::from_secs(7)).unwrap_err();
    assert_eq!(exceeded.policy.to_string(), "RateLimit shop/b");
    assert_eq!(exceeded.response.unwrap().status, Some(503));
    assert_eq!(exceeded.wait, Duration::from_secs(3600));
    assert!(
        limits.admit_request(1, &request, None, Duration::ZERO).is_ok(),
        "another port has no limits"
    );
}

#[test]
fn connections_have_buckets_of_their_own() {
    let rate = Rate { count: 1, period: Duration::from_secs(1), burst: 2 };
    let mut limited_policy = port_limits("a", vec![hourly_rule(1, None)]);
    limited_policy.limits.connections = Some(rate);
    let limits = compile_limits(vec![limited_policy]);
    let milliseconds = Duration::from_millis;
    assert_eq!(count_admitted(&limits, &get_request("/")), 1);
    let admitted = [0, 0, 0, 500, 1000, 1000]
        .map(|now| limits.admit_connection(PORT, milliseconds(now)).is_ok());
    assert_eq!(admitted, [true, true, false, false, true, false]);
}

#[test]
fn an_unchanged_policy_retains_its_buckets() {
    let retained = port_limits("kept", vec![hourly_rule(5, None)]);
    let first_limits =
        compile_limits(vec![retained.clone(), port_limits("other", vec![hourly_rule(50, None)])]);
    assert_eq!(count_admitted(&first_limits, &get_request("/")), 5);
    let second_policies =
        BTreeMap::from([(PORT, vec![port_limits("other", vec![hourly_rule(60, None)]), retained])]);
    let second_limits = CompiledLimits::build(&second_policies, Some(&first_limits)).unwrap();
    assert_eq!(count_admitted(&second_limits, &get_request("/")), 0);
    let changed = BTreeMap::from([(PORT, vec![port_limits("kept", vec![hourly_rule(6, None)])])]);
    let third = CompiledLimits::build(&changed, Some(&second_limits)).unwrap();
    assert_eq!(count_admitted(&third, &get_request("/")), 6);
}

fn concurrency_limit(name: &str, requests: u32) -> PortLimits {
    let concurrency = Concurrency { requests, ..Concurrency::default() };
    let mut policy = port_limits(name, Vec::new());
    policy.limits.concurrency = Some(concurrency);
    policy
}

#[test]
fn a_slot_is_released_if_another_policy_has_none() {
    let limits = compile_limits(vec![
        concurrency_limit("a", 2),
        port_limits("b", vec![hourly_rule(1, None)]),
        concurrency_limit("c", 1),
    ]);
    let now = Duration::ZERO;
    let first_slot = limits.acquire_slot(PORT, true, now).unwrap().unwrap();
    let rejection = limits.acquire_slot(PORT, true, now).unwrap_err();
    assert_eq!(
        (rejection.policy.to_string(), rejection.rule),
        ("RateLimit shop/c".to_owned(), "concurrency")
    );
    drop(first_slot);
    let _first = limits.acquire_slot(PORT, true, now).unwrap().unwrap();
    // The second request released its slot of the first policy; otherwise no slot would be free.
    assert_eq!(
        limits.acquire_slot(PORT, true, now).unwrap_err().policy.to_string(),
        "RateLimit shop/c"
    );
    assert!(limits.acquire_slot(PORT + 1, true, now).unwrap().is_none());
}

#[test]
fn an_unchanged_concurrency_limit_still_counts_requests_in_flight() {
    let first_limits = compile_limits(vec![concurrency_limit("a", 1)]);
    let _slot = first_limits.acquire_slot(PORT, true, Duration::ZERO).unwrap().unwrap();
    let unchanged = CompiledLimits::build(
        &BTreeMap::from([(PORT, vec![concurrency_limit("a", 1)])]),
        Some(&first_limits),
    );
    assert!(unchanged.unwrap().acquire_slot(PORT, true, Duration::ZERO).is_err());
    let raised = CompiledLimits::build(
        &BTreeMap::from([(PORT, vec![concurrency_limit("a", 2)])]),
        Some(&first_limits),
    );
    assert!(raised.unwrap().acquire_slot(PORT, true, Duration::ZERO).is_ok());
}

/// Generates a rule for some requests of one caller or of any caller, which may stop the evaluation.
fn any_rule() -> impl Strategy<Value = RateRule> {
    let requests = prop::collection::vec(any_match(), 0..3);
    let caller = prop::sample::select(vec!["shop/web", "shop/app", "shop/w*", "*/web", "else/web"]);
    let callers = prop::collection::vec(caller, 0..3);
    (requests, callers, prop::bool::weighted(0.2)).prop_map(|(requests, callers, stop)| {
        let pattern = |text: &str| NamePattern::new(text).unwrap();
        let peer = |caller: &str| {
            let (namespace, account) = caller.split_once('/').unwrap();
            PeerMatch { namespace: pattern(namespace), account: pattern(account) }
        };
        let peers = callers.into_iter().map(peer).collect();
        RateRule { requests, peers, stop, ..hourly_rule(3, None) }
    })
}

proptest! {
    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        policies in prop::collection::vec(prop::collection::vec(any_rule(), 0..12), 0..3),
        request_data in any_request(),
        caller in prop::option::of(prop::sample::select(vec!["web", "api"])),
    ) {
        let with_name = |(n, rule): (usize, RateRule)| RateRule { name: format!("r{n}"), ..rule };
        let policies: Vec<PortLimits> = policies
            .into_iter()
            .map(|rules| port_limits("a", rules.into_iter().enumerate().map(with_name).collect()))
            .collect();
        let (request, caller) = (request_data.request_view(), caller.map(service_account));
        let kind = PathKind::from_path(request.path);
        let variant = PathVariants::from_path(request.path, kind);
        let mut expected = Vec::new();
        for policy in &policies {
            for rule in policy.limits.rules.iter().filter(|rule| rule.matches_caller(caller.as_ref())) {
                let is_match = |matches: &dyn Fn(&RequestMatch) -> bool| {
                    rule.requests.is_empty() || rule.requests.iter().any(matches)
                };
                let denied_match = |request_match: &_| DenialMatcher::compile(request_match).unwrap().may_match(&request, &variant);
                let exact_match = |request_match: &_| {
                    let matcher = RequestMatcher::compile_for(request_match, FieldScope::SingleValue).unwrap();
                    matcher.matches(&request) && !may_override_method(&request)
                };
                if is_match(&denied_match) {
                    expected.push(rule.name.clone());
                    if rule.stop && kind == PathKind::Plain && is_match(&exact_match) {
                        break;
                    }
                }
            }
        }
        let limits = compile_limits(policies);
        let counting = limits.counting_rules(PORT, &request, caller.as_ref());
        let counting: Vec<String> = counting.iter().map(|(_, rule)| rule.name.clone()).collect();
        prop_assert_eq!(&counting, &expected);

        // Each rule has three tokens, and a request that one rule rejects takes no tokens of other rules.
        let now = Duration::from_secs(7);
        let admitted = || limits.admit_request(PORT, &request, caller.as_ref(), now).is_ok();
        if !expected.is_empty() {
            prop_assert_eq!((0..5).filter(|_| admitted()).count(), 3);
            limits.return_tokens(PORT, &request, caller.as_ref());
            prop_assert_eq!((0..5).filter(|_| admitted()).count(), 1);
        }
    }
}
