//! Table tests of access policies, alone and combined with `TrafficTarget`s.

use std::borrow::Cow;
use std::cell::Cell;

use leno_model::{
    Access, AccessRule, FieldMatch, InboundPolicy, NamePattern, PathMatch, PeerMatch, PolicyName,
    PortSet, Protocol, RequestMatch, SpiffeId, TrustDomain, ValueMatch, WorkloadConfig,
    WorkloadName,
};
use proptest::prelude::*;

use super::*;
use crate::authorize::{ConnectionPermit, Denial, InboundAccess, RequestPermit};

fn policy_rule(action: PolicyAction, name: &str) -> PolicyRule {
    PolicyRule {
        policy: PolicyName::new("stock", "guard").unwrap(),
        name: name.to_owned(),
        action,
        peers: Vec::new(),
        requests: Vec::new(),
        claims: Vec::new(),
        ports: PortSet::All,
    }
}

fn deny_rule(name: &str) -> PolicyRule {
    policy_rule(PolicyAction::Deny, name)
}

fn allow_rule(name: &str) -> PolicyRule {
    policy_rule(PolicyAction::Allow, name)
}

fn from(pattern: &str, rule: PolicyRule) -> PolicyRule {
    let (namespace, account) = pattern.split_once('/').unwrap();
    let pattern = |text| NamePattern::new(text).unwrap();
    let peer = PeerMatch { namespace: pattern(namespace), account: pattern(account) };
    PolicyRule { peers: vec![peer], ..rule }
}

fn for_requests(requests: &[(&str, PathMatch)], rule: PolicyRule) -> PolicyRule {
    let request = |(method, path): &(&str, PathMatch)| RequestMatch {
        path: path.clone(),
        methods: method.split_whitespace().map(str::to_owned).collect(),
        ..RequestMatch::default()
    };
    PolicyRule { requests: requests.iter().map(request).collect(), ..rule }
}

fn for_ports(ports: &[u16], rule: PolicyRule) -> PolicyRule {
    PolicyRule { ports: PortSet::Only(ports.to_vec()), ..rule }
}

fn path_prefix(prefix: &str) -> PathMatch {
    PathMatch::Prefix(prefix.to_owned())
}

/// Compiles rules for a workload with HTTP at port 80, a detected protocol at port 90 and TCP at port 5432.
fn compile_access(mode: Access, is_dry_run: bool, rules: Vec<PolicyRule>) -> InboundAccess {
    let port = |port, protocol| WorkloadPort { name: None, port, protocol };
    let config = WorkloadConfig::identity_only(
        WorkloadName::new("stock", "stock-1").unwrap(),
        ServiceAccount::new("stock", "stock").unwrap(),
        TrustDomain::new("cluster.local").unwrap(),
        [127, 0, 0, 1].into(),
        mode,
    );
    let ports = [(80, Protocol::Http), (90, Protocol::Detect), (5432, Protocol::Tcp)];
    let ports = ports.map(|(number, protocol)| port(number, protocol)).to_vec();
    let config = WorkloadConfig { ports, inbound: InboundPolicy { is_dry_run, rules }, ..config };
    InboundAccess::from_config(&config).unwrap()
}

fn strict_access(rules: Vec<PolicyRule>) -> InboundAccess {
    compile_access(Access::AllowListed(Vec::new()), false, rules)
}

fn connection_permit(access: &InboundAccess, peer: &str, port: u16) -> ConnectionPermit {
    let (namespace, name) = peer.split_once('/').unwrap();
    let account = ServiceAccount::new(namespace, name).unwrap();
    let trust_domain = TrustDomain::new("cluster.local").unwrap();
    access.authorize_connection(Some(&SpiffeId { trust_domain, account }), port).unwrap()
}

/// Returns the reason and the rule, if any.
fn describe_decision(access: &InboundAccess, decision: Result<RequestPermit, Denial>) -> String {
    let rule = |decision: Option<&PolicyDecision>| match decision {
        None => String::new(),
        Some(PolicyDecision { rule: Some(rule), .. }) => rule.to_string(),
        Some(decision) => decision.policy.name.to_string(),
    };
    let (reason, rule) = match &decision {
        Ok(permit) => {
            let dry_run_reason =
                permit.would_deny().map(|reason| format!("not {}", reason.label()));
            (dry_run_reason.unwrap_or("ok".to_owned()), rule(access.decision(*permit)))
        }
        Err(denial) => (denial.reason.label().to_owned(), rule(denial.policy.as_ref())),
    };
    format!("{reason} {rule}").trim_end().to_owned()
}

fn decide_request(access: &InboundAccess, peer: &str, request_line: &str) -> String {
    decide_with_fields(access, peer, request_line, &[])
}

fn decide_with_fields(
    access: &InboundAccess,
    peer: &str,
    request_line: &str,
    fields: &[(&str, &str)],
) -> String {
    let (method, path) = request_line.split_once(' ').unwrap();
    let field = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let fields: Vec<(String, String)> = fields.iter().map(field).collect();
    let request = RequestView { method, path, query: None, authority: "stock", fields: &fields };
    describe_decision(
        access,
        access.authorize_request(&connection_permit(access, peer, 80), &request),
    )
}

fn decide_bytes(access: &InboundAccess, peer: &str, port: u16) -> String {
    describe_decision(access, access.authorize_tcp(&connection_permit(access, peer, port)))
}

/// Returns a `TrafficTarget` that allows `shop/web` to read everything and use all ports.
fn target_access() -> Access {
    let request = RequestMatch { methods: vec!["GET".to_owned()], ..RequestMatch::default() };
    Access::AllowListed(vec![AccessRule {
        policy: PolicyName::new("stock", "target").unwrap(),
        sources: vec![ServiceAccount::new("shop", "web").unwrap()],
        http: vec![request],
        tcp: PortSet::All,
    }])
}

#[test]
fn deny_rules_precede_allow_rules_and_the_mode_applies_last() {
    let without_rules = || compile_access(Access::AllowAll, false, Vec::new());
    assert_eq!(decide_request(&without_rules(), "shop/web", "GET /"), "ok");
    let rules = || {
        vec![
            for_requests(&[("DELETE", PathMatch::Any)], deny_rule("no-deletes")),
            from(
                "shop/*",
                for_requests(&[("GET DELETE", path_prefix("/items"))], allow_rule("items")),
            ),
        ]
    };
    for (mode, is_dry_run, expected) in [
        (
            Access::AllowAll,
            false,
            ["ok items", "denied-by-policy no-deletes", "ok", "ok", "denied-by-policy no-deletes"],
        ),
        (
            Access::AllowListed(Vec::new()),
            false,
            [
                "ok items",
                "denied-by-policy no-deletes",
                "denied",
                "denied",
                "denied-by-policy no-deletes",
            ],
        ),
        (
            Access::AllowListed(Vec::new()),
            true,
            [
                "ok items",
                "not denied-by-policy no-deletes",
                "not denied",
                "not denied",
                "not denied-by-policy no-deletes",
            ],
        ),
        (
            target_access(),
            false,
            [
                "ok items",
                "denied-by-policy no-deletes",
                "ok target",
                "denied",
                "denied-by-policy no-deletes",
            ],
        ),
    ] {
        let requests = [
            ("shop/web", "GET /items/1"),
            ("shop/web", "DELETE /items/1"),
            ("shop/web", "GET /other"),
            ("else/web", "GET /items/1"),
            ("else/web", "DELETE /other"),
        ];
        let access = compile_access(mode, is_dry_run, rules());
        let decisions =
            requests.map(|(peer, request_line)| decide_request(&access, peer, request_line));
        assert_eq!(decisions, expected, "{access:?}");
    }
    // TrafficTargets that name the peer, but do not match.
    let access = compile_access(target_access(), false, rules());
    assert_eq!(decide_request(&access, "shop/web", "POST /other"), "no-policy-route");
}

#[test]
fn peers_match_by_account_and_namespace_with_wildcards() {
    let access = strict_access(vec![
        from("test-*/*", deny_rule("tests")),
        from("shop/web-*", allow_rule("web")),
        from("*/admin", allow_rule("admins")),
    ]);
    for (peer, expected) in [
        ("shop/web-1", "ok web"),
        ("shop/web", "denied"),
        ("elsewhere/web-1", "denied"),
        ("elsewhere/admin", "ok admins"),
        ("test-1/admin", "denied-by-policy tests"),
    ] {
        assert_eq!(decide_request(&access, peer, "GET /"), expected, "{peer}");
    }
}

#[test]
fn bytes_are_authorized_by_identity_and_port_only() {
    let by_port = strict_access(vec![for_ports(&[5432], allow_rule("database"))]);
    assert_eq!(decide_bytes(&by_port, "shop/web", 5432), "ok database");
    assert_eq!(decide_bytes(&by_port, "shop/web", 80), "denied");
    assert_eq!(decide_request(&by_port, "shop/web", "GET /"), "denied");
    // A rule that allows some requests opens no port to bytes.
    let by_request =
        strict_access(vec![for_requests(&[("GET", PathMatch::Any)], allow_rule("reads"))]);
    assert_eq!(decide_request(&by_request, "shop/web", "GET /"), "ok reads");
    assert_eq!(decide_bytes(&by_request, "shop/web", 80), "denied");
    // A rule that denies some requests denies bytes that may contain them.
    let hidden = for_requests(&[("DELETE", PathMatch::Any)], deny_rule("no-deletes"));
    let hidden = compile_access(Access::AllowAll, false, vec![hidden]);
    assert_eq!(decide_bytes(&hidden, "shop/web", 80), "denied-by-policy no-deletes");
    assert_eq!(decide_bytes(&hidden, "shop/web", 90), "denied-by-policy no-deletes");
    assert_eq!(decide_bytes(&hidden, "shop/web", 5432), "ok");
    let denied =
        compile_access(Access::AllowAll, false, vec![for_ports(&[5432], deny_rule("closed"))]);
    assert_eq!(decide_bytes(&denied, "shop/web", 5432), "denied-by-policy closed");
    assert_eq!(decide_bytes(&denied, "shop/web", 80), "ok");
    let with_target =
        compile_access(target_access(), false, vec![for_ports(&[5432], deny_rule("closed"))]);
    assert_eq!(decide_bytes(&with_target, "shop/web", 5432), "denied-by-policy closed");
    assert_eq!(decide_bytes(&with_target, "shop/web", 80), "ok target");
}

#[test]
fn a_denied_path_is_denied_in_every_variant() {
    let admin_rule = || for_requests(&[("", path_prefix("/admin"))], deny_rule("admin"));
    let closed = compile_access(Access::AllowAll, false, vec![admin_rule()]);
    for path in [
        "/admin",
        "/admin/x",
        "/%61dmin",
        "/admin%2fx",
        "//admin",
        "//x/admin",
        "///x/admin",
        r"/\admin",
        "/admin;a=b/x",
        "/%2561/../admin",
        "/items/../admin",
        "/items/%2e%2e/admin",
        "/items/..;/admin",
    ] {
        assert_eq!(
            decide_request(&closed, "shop/web", &format!("GET {path}")),
            "denied-by-policy admin",
            "{path}"
        );
    }
    for path in ["/", "/administrator", "/items/admin", "/a%64", "/items;admin", "/items//x"] {
        assert_eq!(decide_request(&closed, "shop/web", &format!("GET {path}")), "ok", "{path}");
    }
    let exact = PathMatch::Exact("/a".to_owned());
    let regex = PathMatch::Regex("/b[0-9]+".to_owned());
    let closed = compile_access(
        Access::AllowAll,
        false,
        vec![for_requests(&[("", exact), ("", regex)], deny_rule("ab"))],
    );
    for (path, expected) in [
        ("/a", "denied-by-policy ab"),
        ("/%61", "denied-by-policy ab"),
        ("/b12", "denied-by-policy ab"),
        ("/%62%31", "denied-by-policy ab"),
        ("/a/b", "ok"),
        ("/bx", "ok"),
    ] {
        assert_eq!(decide_request(&closed, "shop/web", &format!("GET {path}")), expected, "{path}");
    }
    // An allow rule does not match encodings of dot segments.
    let open =
        strict_access(vec![for_requests(&[("", path_prefix("/items"))], allow_rule("items"))]);
    assert_eq!(decide_request(&open, "shop/web", "GET /items/1"), "ok items");
    assert_eq!(decide_request(&open, "shop/web", "GET /items/../admin"), "denied");
    // An allow rule does not match a path that an application may read without the first element.
    let regex = PathMatch::Regex("/.*/items".to_owned());
    let open = strict_access(vec![for_requests(&[("", regex)], allow_rule("items"))]);
    assert_eq!(decide_request(&open, "shop/web", "GET /x/items"), "ok items");
    for path in ["//x/items", r"/\x/items", "/%2fx/items", "/%2fx%252fy/items"] {
        assert_eq!(decide_request(&open, "shop/web", &format!("GET {path}")), "denied", "{path}");
    }
    // A rule for all paths matches, also as an expression.
    for path_match in [PathMatch::Any, PathMatch::Regex("/.*".to_owned())] {
        let access = strict_access(vec![for_requests(&[("", path_match)], allow_rule("all"))]);
        assert_eq!(decide_request(&access, "shop/web", "GET //x/items"), "ok all");
    }
}

#[test]
fn repetition_and_case_do_not_bypass_a_denied_header_or_method() {
    let header = |name: &str, value: ValueMatch| FieldMatch { name: name.to_owned(), value };
    let closed_for = |value| {
        let request = RequestMatch {
            headers: vec![header("x-team", value)],
            methods: vec!["PURGE".to_owned()],
            ..RequestMatch::default()
        };
        compile_access(
            Access::AllowAll,
            false,
            vec![PolicyRule { requests: vec![request], ..deny_rule("team") }],
        )
    };
    for value in [ValueMatch::Exact("red".to_owned()), ValueMatch::Regex("r.d".to_owned())] {
        let access = closed_for(value);
        for (method, fields, expected) in [
            ("PURGE", &[("x-team", "red")][..], "denied-by-policy team"),
            ("purge", &[("X-Team", "red")], "denied-by-policy team"),
            ("PURGE", &[("x-team", "blue"), ("x-team", "red")], "denied-by-policy team"),
            ("PURGE", &[("x-team", "blue")], "ok"),
            ("PURGE", &[], "ok"),
            ("GET", &[("x-team", "red")], "ok"),
        ] {
            let request_line = format!("{method} /");
            assert_eq!(
                decide_with_fields(&access, "shop/web", &request_line, fields),
                expected,
                "{fields:?}"
            );
        }
    }
}

#[test]
fn permits_of_previous_rules_are_evaluated_by_current_rules() {
    let previous_access = strict_access(vec![allow_rule("all")]);
    let permit = connection_permit(&previous_access, "shop/web", 80);
    let current_access =
        strict_access(vec![for_ports(&[80], deny_rule("closed")), allow_rule("all")]);
    assert_eq!(
        describe_decision(&previous_access, previous_access.authorize_tcp(&permit)),
        "ok all"
    );
    assert_eq!(
        describe_decision(&current_access, current_access.authorize_tcp(&permit)),
        "denied-by-policy closed"
    );
}

#[test]
fn an_invalid_pattern_error_contains_its_policy() {
    let invalid = for_requests(&[("", PathMatch::Regex("(".to_owned()))], deny_rule("bad"));
    let error = PolicyRules::compile(&[invalid], &[]).unwrap_err().to_string();
    assert!(error.starts_with("AccessPolicy stock/guard: "), "{error}");
}

/// The fields of a request with one claim in its token.
struct RequestWithClaim(&'static str, &'static str);

impl crate::request::HeaderLookup for RequestWithClaim {
    fn joined_values(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn find_similar(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn first_value(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn claim_values(&self, name: &str) -> Vec<String> {
        if name == self.0 { vec![self.1.to_owned()] } else { Vec::new() }
    }
}

#[test]
fn rules_match_token_claims() {
    let with_claim = |rule: PolicyRule| {
        let values = vec!["readers".to_owned(), "writers".to_owned()];
        let claims = vec![ClaimMatch { name: "groups".to_owned(), values }];
        PolicyRule { claims, ..rule }
    };
    for (rules, matching, expected_otherwise) in [
        (vec![with_claim(allow_rule("by"))], None, Some("no-policy-route")),
        (vec![with_claim(deny_rule("by"))], Some("denied-by-policy"), None),
    ] {
        let mode = if expected_otherwise.is_some() {
            Access::AllowListed(Vec::new())
        } else {
            Access::AllowAll
        };
        let access = compile_access(mode, false, rules);
        let peer = SpiffeId {
            trust_domain: TrustDomain::new("cluster.local").unwrap(),
            account: ServiceAccount::new("shop", "web").unwrap(),
        };
        let permit = access.authorize_connection(Some(&peer), 80).unwrap();
        for (fields, expected) in [
            (RequestWithClaim("groups", "writers"), matching),
            (RequestWithClaim("groups", "admins"), expected_otherwise),
            (RequestWithClaim("group", "readers"), expected_otherwise),
        ] {
            let view = RequestView {
                method: "GET",
                path: "/",
                query: None,
                authority: "web",
                fields: &fields,
            };
            let denied = access.authorize_request(&permit, &view).err();
            let denied = denied.map(|denial| denial.reason.label());
            let expected =
                expected.map(|label| if label == "no-policy-route" { "denied" } else { label });
            assert_eq!(denied, expected);
        }
        // Claims are not visible in bytes.
        assert!(access.authorize_tcp(&permit).is_err());
    }
}

/// The fields of a request of one user. They count how often the user is read.
struct CountingRequest {
    user: String,
    reads: Cell<usize>,
}

impl crate::request::HeaderLookup for CountingRequest {
    fn joined_values(&self, name: &str) -> Option<Cow<'_, str>> {
        self.reads.set(self.reads.get() + 1);
        (name == "x-user").then_some(Cow::Borrowed(&self.user))
    }

    fn find_similar(&self, name: &str) -> Option<Cow<'_, str>> {
        self.joined_values(name)
    }

    fn find_unique(&self, name: &str) -> Option<Cow<'_, str>> {
        self.joined_values(name)
    }

    fn first_value(&self, name: &str) -> Option<Cow<'_, str>> {
        self.joined_values(name)
    }
}

#[test]
fn a_small_subset_of_many_rules_is_evaluated_correctly() {
    for (rules, tenants) in [(12, 1), (12, 3), (3000, 1), (3000, 3), (3000, 100)] {
        let by_user = |n: usize| {
            let value = ValueMatch::Exact(format!("u-{n}"));
            let headers = vec![FieldMatch { name: "x-user".to_owned(), value }];
            let request = RequestMatch { headers, ..RequestMatch::default() };
            let tenant = format!("tenant-{}/*", n % tenants);
            from(&tenant, PolicyRule { requests: vec![request], ..allow_rule(&format!("r{n}")) })
        };
        let access = strict_access((0..rules).map(by_user).collect());
        let permit = connection_permit(&access, "tenant-0/web", 80);
        // The last user of the first tenant, a user of another tenant, and a user of no tenant.
        let last_rule = rules - tenants;
        for (user, expected) in [
            (last_rule, format!("ok r{last_rule}")),
            (last_rule + 1, "denied".to_owned()),
            (rules, "denied".to_owned()),
        ] {
            if tenants == 1 && user == last_rule + 1 {
                continue;
            }
            let fields = CountingRequest { user: format!("u-{user}"), reads: Cell::new(0) };
            let (method, path) = ("GET", "/");
            let view = RequestView { method, path, query: None, authority: "", fields: &fields };
            assert_eq!(
                describe_decision(&access, access.authorize_request(&permit, &view)),
                expected,
                "{rules} {tenants}"
            );
            assert!(fields.reads.get() <= 2, "{rules} {tenants}: {}", fields.reads.get());
        }
    }
}

#[test]
fn an_allow_rule_does_not_match_an_ambiguous_field() {
    let field = |name: &str, value: &str| FieldMatch {
        name: name.to_owned(),
        value: ValueMatch::Exact(value.to_owned()),
    };
    let requests = vec![
        RequestMatch { headers: vec![field("x-role", "user")], ..RequestMatch::default() },
        RequestMatch { query: vec![field("role", "user")], ..RequestMatch::default() },
        RequestMatch {
            headers: vec![FieldMatch {
                name: "x-team".to_owned(),
                value: ValueMatch::Regex("a.*".to_owned()),
            }],
            ..RequestMatch::default()
        },
    ];
    // With few rules, which are evaluated one by one, and with many rules, which are indexed.
    for rules in [1, 20] {
        let rule =
            |n: usize| PolicyRule { requests: requests.clone(), ..allow_rule(&format!("r{n}")) };
        let access = strict_access((0..rules).map(rule).collect());
        let permit = connection_permit(&access, "shop/web", 80);
        for (query, fields, expected) in [
            (None, &[("X-Role", "user")][..], "ok r0"),
            (None, &[("x-role", "user"), ("x-roles", "root")], "ok r0"),
            (None, &[("x-role", "user"), ("x_role", "root")], "denied"),
            (None, &[("X_Role", "root"), ("x-role", "user")], "denied"),
            (None, &[("x-role", "user"), ("x.role", "")], "denied"),
            (None, &[("x_role", "user")], "denied"),
            (None, &[("x-team", "a, b")], "ok r0"),
            (None, &[("x-team", "a"), ("X-Team", "b")], "ok r0"),
            (None, &[("x-team", "a"), ("X_Team", "b")], "denied"),
            (Some("role=user"), &[], "ok r0"),
            (Some("x=1&role=user;roles=root"), &[], "denied"),
            (Some("role=user&roles=root"), &[], "ok r0"),
            (Some("role=user&role=root"), &[], "denied"),
            (Some("role=user&Role=root"), &[], "denied"),
            (Some("role=user&role[]=root"), &[], "denied"),
            (Some("role=user&[role]=root"), &[], "denied"),
            (Some("role=user&x=1;role=root"), &[], "denied"),
        ] {
            let to_owned_field =
                |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let fields: Vec<_> = fields.iter().map(to_owned_field).collect();
            let (method, path) = ("GET", "/");
            let view = RequestView { method, path, query, authority: "", fields: &fields };
            let decision = describe_decision(&access, access.authorize_request(&permit, &view));
            assert_eq!(decision, expected, "{rules}: {query:?} {fields:?}");
        }
    }
}

#[test]
fn repeated_values_are_evaluated_once() {
    let by_user = |n: usize| {
        let header = |name: &str, value: String| FieldMatch {
            name: name.to_owned(),
            value: ValueMatch::Exact(value),
        };
        let headers = vec![header("x-user", format!("u-{n}")), header("x-other", "o".to_owned())];
        let request = RequestMatch { headers, ..RequestMatch::default() };
        PolicyRule { requests: vec![request], ..deny_rule(&format!("r{n}")) }
    };
    let access = strict_access((0..100).map(by_user).collect());
    let permit = connection_permit(&access, "shop/web", 80);
    let fields = CountingRequest { user: "u-7,".repeat(1000), reads: Cell::new(0) };
    let (method, path) = ("GET", "/");
    let view = RequestView { method, path, query: None, authority: "", fields: &fields };
    assert_eq!(describe_decision(&access, access.authorize_request(&permit, &view)), "denied");
    assert!(fields.reads.get() <= 4, "{}", fields.reads.get());
}

/// Returns rules for a small number of peers, requests, claims and ports, so that several often match;
/// `denials` of six rules deny.
fn any_rule(denials: u32) -> impl Strategy<Value = PolicyRule> {
    let path = prop_oneof![
        Just(PathMatch::Any),
        prop::sample::select(vec!["/a", "/a/b", "/b"])
            .prop_map(|text| PathMatch::Exact(text.into())),
        prop::sample::select(vec!["/a", "/a/b/", "/"])
            .prop_map(|text| PathMatch::Prefix(text.into())),
        prop::sample::select(vec!["/a/.*", "/[ab]", ".*"])
            .prop_map(|text| PathMatch::Regex(text.into())),
    ];
    let methods = prop::collection::vec(prop::sample::select(vec!["GET", "PUT"]), 0..2);
    let request = (path, methods).prop_map(|(path, methods)| RequestMatch {
        path,
        methods: methods.into_iter().map(str::to_owned).collect(),
        ..RequestMatch::default()
    });
    let claim = prop::collection::vec(prop::sample::select(vec!["readers", "writers"]), 1..3);
    let claim = claim.prop_map(|values| ClaimMatch {
        name: "groups".to_owned(),
        values: values.into_iter().map(str::to_owned).collect(),
    });
    let peer = prop::sample::select(vec!["shop/*", "else/*", "shop/web", "*/*"]);
    let action =
        prop_oneof![6 - denials => Just(PolicyAction::Allow), denials => Just(PolicyAction::Deny)];
    (
        (action, prop::collection::vec(peer, 0..3), any::<bool>()),
        prop::collection::vec(request, 0..3),
        prop::collection::vec(claim, 0..2),
    )
        .prop_map(|((action, peers, has_all_ports), requests, claims)| {
            let peers_of = |peer| from(peer, policy_rule(action, "")).peers;
            let peers = peers.into_iter().flat_map(peers_of).collect();
            let rule = PolicyRule { peers, requests, claims, ..policy_rule(action, "") };
            if has_all_ports { rule } else { for_ports(&[80], rule) }
        })
}

proptest! {
    #[test]
    fn peers_are_looked_up_for_requests_without_identity(
        rules in prop::collection::vec(any_rule(3), 1..24),
        peer in prop::option::of(prop::sample::select(vec!["shop/web", "shop/api", "else/web"])),
    ) {
        let compiled = PolicyRules::compile(&rules, &[]).unwrap().unwrap();
        let peer = peer.map(|peer| {
            let (namespace, name) = peer.split_once('/').unwrap();
            ServiceAccount::new(namespace, name).unwrap()
        });
        let peer_rules = compiled.rules_for_peer(peer.as_ref(), 80);
        let expected_rules = |action, requests| {
            let candidates = rules.iter().enumerate().filter(|(_, rule)| {
                rule.matches_caller(peer.as_ref()) && rule.ports.contains(80) && rule.action == action
            });
            let candidates = candidates.filter(|(_, rule)| rule.matches_by_request() == requests);
            candidates.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let (deny, allow) = (PolicyAction::Deny, PolicyAction::Allow);
        prop_assert_eq!(peer_rules.deny_all, expected_rules(deny, false).first().copied());
        prop_assert_eq!(peer_rules.allow_all, expected_rules(allow, false).first().copied());
        for (subset, index, action) in [
            (&peer_rules.deny_rules, &compiled.deny_index, deny),
            (&peer_rules.allow_rules, &compiled.allow_index, allow),
        ] {
            let mut found_rules: Vec<usize> = subset.rule_positions(index.as_ref()).collect();
            found_rules.dedup();
            prop_assert_eq!(found_rules, expected_rules(action, true));
        }
    }

    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        rules in (1..6_u32).prop_flat_map(|denials| prop::collection::vec(any_rule(denials), 0..24)),
        peer in prop::sample::select(vec!["shop/web", "shop/api", "else/web", "away/web"]),
        port in prop::sample::select(vec![80, 90]),
        path in prop::sample::select(vec![
            "/a", "/a/b", "/a/b/c", "/b", "/", "/a/%62", "//b", "/%61/b", "/a/../b", "/A", "/a/b.json",
        ]),
        method in prop::sample::select(vec!["GET", "PUT", "put"]),
        group in prop::sample::select(vec!["readers", "writers", "others"]),
    ) {
        let with_name = |(n, rule): (usize, PolicyRule)| PolicyRule { name: format!("r{n}"), ..rule };
        let rules: Vec<PolicyRule> = rules.into_iter().enumerate().map(with_name).collect();
        let access = strict_access(rules.clone());
        let fields = RequestWithClaim("groups", group);
        let request = RequestView { method, path, query: None, authority: "", fields: &fields };
        let permit = connection_permit(&access, peer, port);
        let (kind, account) = (PathKind::from_path(path), &permit.peer().unwrap().account);
        let variants = PathVariants::from_path(path, kind);
        let matches = |rule: &&PolicyRule| {
            let matches_request = |request_match: &RequestMatch| {
                match rule.action {
                    PolicyAction::Allow => {
                        allows_path(&RequestMatcher::compile_allowing(request_match).unwrap(), &request, kind)
                    }
                    PolicyAction::Deny => {
                        DenialMatcher::compile(request_match).unwrap().may_match(&request, &variants)
                    }
                }
            };
            rule.ports.contains(port)
                && rule.matches_caller(Some(account))
                && (rule.requests.is_empty() || rule.requests.iter().any(matches_request))
                && rule.claims.iter().all(|claim| claim.values.iter().any(|value| value == group))
        };
        // Rules for everything precede rules for some requests.
        let first_match = |action| {
            let matching = || rules.iter().filter(|rule| rule.action == action).filter(matches);
            matching().find(|rule| !rule.matches_by_request()).or(matching().next())
        };
        let expected = match (first_match(PolicyAction::Deny), first_match(PolicyAction::Allow)) {
            (Some(deny), _) => format!("denied-by-policy {}", deny.name),
            (None, Some(allow)) => format!("ok {}", allow.name),
            (None, None) => "denied".to_owned(),
        };
        prop_assert_eq!(describe_decision(&access, access.authorize_request(&permit, &request)), expected);

        let applicable = |action| {
            let rules = rules.iter().filter(move |rule| {
                rule.action == action && rule.ports.contains(port) && rule.matches_caller(Some(account))
            });
            rules.map(|rule| (rule.matches_by_request(), &rule.name))
        };
        let unconditional = |action| applicable(action).find(|(matches_by_request, _)| !matches_by_request);
        let first_denial = || applicable(PolicyAction::Deny).next();
        let expected = match (unconditional(PolicyAction::Deny).or_else(first_denial), unconditional(PolicyAction::Allow)) {
            (Some((_, deny)), _) => format!("denied-by-policy {deny}"),
            (None, Some((_, allow))) => format!("ok {allow}"),
            (None, None) => "denied".to_owned(),
        };
        prop_assert_eq!(describe_decision(&access, access.authorize_tcp(&permit)), expected);
    }
}
