//! Table tests of peers, policies and requests.

use leno_model::{PathMatch, PolicyName, RequestMatch};
use proptest::prelude::*;

use super::*;

fn trust_domain() -> TrustDomain {
    TrustDomain::new("cluster.local").unwrap()
}

fn service_account(name: &str) -> ServiceAccount {
    ServiceAccount::new("store", name).unwrap()
}

fn peer_id(name: &str) -> SpiffeId {
    SpiffeId { trust_domain: trust_domain(), account: service_account(name) }
}

fn access_rule(policy: &str, sources: &[&str], paths: &[&str], ports: &[u16]) -> AccessRule {
    let request = |path: &&str| RequestMatch {
        path: PathMatch::Regex((*path).to_owned()),
        methods: vec!["GET".to_owned()],
        ..RequestMatch::default()
    };
    AccessRule {
        policy: PolicyName::new("stock", policy).unwrap(),
        sources: sources.iter().map(|name| service_account(name)).collect(),
        http: paths.iter().map(request).collect(),
        tcp: PortSet::Only(ports.to_vec()),
    }
}

fn strict_access(rules: Vec<AccessRule>) -> InboundAccess {
    InboundAccess::compile(&Access::AllowListed(rules), &trust_domain()).unwrap()
}

/// Returns rules by which `shop` may read items, `ops` may read everything below `/admin` and use port 5432, `both` may
/// do either.
fn stock_access() -> InboundAccess {
    strict_access(vec![
        access_rule("read", &["shop", "both"], &["/items.*", "/items"], &[]),
        access_rule("operate", &["ops", "both"], &["/admin/.*"], &[5432]),
        access_rule("count", &["counter"], &[], &[]),
    ])
}

/// The connection port of tests that do not depend on ports.
const PORT: u16 = 5432;

/// Returns the decision for opaque bytes of the same peer to this port.
fn decide_tcp(
    access: &InboundAccess,
    permit: &ConnectionPermit,
    port: u16,
) -> Result<RequestPermit, Denial> {
    access.authorize_tcp(&access.authorize_connection(permit.peer(), port)?)
}

/// Formats a decision as `policy`, `reason policy` or `reason`.
fn describe_decision(access: &InboundAccess, decision: Result<RequestPermit, Denial>) -> String {
    let name = |decision: Option<&PolicyDecision>| {
        decision.map_or(String::new(), |decision| decision.policy.name.to_string())
    };
    match decision {
        Ok(permit) => match permit.would_deny() {
            None => name(access.decision(permit)),
            Some(reason) => format!("not {} {}", reason.label(), name(access.decision(permit))),
        },
        Err(denial) => format!("{} {}", denial.reason.label(), name(denial.policy.as_ref())),
    }
}

fn decide_get(access: &InboundAccess, permit: &ConnectionPermit, path: &str) -> String {
    let fields = Vec::<(String, String)>::new();
    let request =
        RequestView { method: "GET", path, query: None, authority: "stock", fields: &fields };
    describe_decision(access, access.authorize_request(permit, &request))
}

#[test]
fn connections_need_an_identity_of_this_trust_domain() {
    let foreign =
        SpiffeId { trust_domain: TrustDomain::new("other.org").unwrap(), ..peer_id("shop") };
    for access in
        [stock_access(), InboundAccess::compile(&Access::AllowAll, &trust_domain()).unwrap()]
    {
        let reason =
            |peer| access.authorize_connection(peer, PORT).map_err(|denial| denial.reason).err();
        assert_eq!(reason(None), Some(Reason::PlaintextRejected));
        assert_eq!(reason(Some(&foreign)), Some(Reason::ForeignTrustDomain));
        assert_eq!(reason(Some(&peer_id("shop"))), None);
        assert_eq!(
            access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap().peer(),
            Some(&peer_id("shop"))
        );
    }
}

#[test]
fn a_revoked_account_is_denied_even_with_an_earlier_permit() {
    let permissive = || InboundAccess::compile(&Access::AllowAll, &trust_domain()).unwrap();
    for build in [stock_access, permissive] {
        let access = build();
        let permit = access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
        let other_permit = access.authorize_connection(Some(&peer_id("ops")), PORT).unwrap();
        assert!(!decide_get(&access, &permit, "/items").contains("revoked"));
        let access =
            InboundAccess { revoked_accounts: [peer_id("shop").account].into(), ..build() };
        let rejected = access
            .authorize_connection(Some(&peer_id("shop")), PORT)
            .map_err(|denial| denial.reason);
        assert_eq!(rejected.err(), Some(Reason::RevokedPeer));
        assert_eq!(decide_get(&access, &permit, "/items"), "revoked-peer ");
        let tcp = decide_tcp(&access, &permit, 22).map_err(|denial| denial.reason);
        assert_eq!(tcp.err(), Some(Reason::RevokedPeer));
        assert!(!decide_get(&access, &other_permit, "/items").contains("revoked"));
    }
}

#[test]
fn default_allow_allows_every_member() {
    let access = InboundAccess::compile(&Access::AllowAll, &trust_domain()).unwrap();
    let permit = access.authorize_connection(Some(&peer_id("anyone")), PORT).unwrap();
    assert_eq!(decide_get(&access, &permit, "/items/../admin"), "");
    assert!(decide_tcp(&access, &permit, 22).is_ok());
}

#[test]
fn default_deny_allows_the_union_of_the_policies_of_a_peer() {
    let access = stock_access();
    for (name, path, expected) in [
        ("shop", "/items", "read"),
        ("shop", "/items/1", "read"),
        ("shop", "/admin/x", "denied operate"),
        ("shop", "/other", "no-policy-route "),
        ("ops", "/admin/x", "operate"),
        ("ops", "/items", "denied read"),
        ("both", "/items", "read"),
        ("both", "/admin/x", "operate"),
        ("both", "/other", "no-policy-route "),
        ("counter", "/items", "denied read"),
        ("counter", "/other", "no-policy-route "),
        ("unlisted", "/items", "denied "),
        ("unlisted", "/other", "denied "),
    ] {
        let permit = access.authorize_connection(Some(&peer_id(name)), PORT).unwrap();
        assert_eq!(decide_get(&access, &permit, path), expected, "{name} {path}");
    }
}

#[test]
fn dry_run_allows_denied_requests_and_reports_the_reason() {
    let access = InboundAccess { is_dry_run: true, ..stock_access() };
    for (name, path, expected) in [
        ("shop", "/items", "read"),
        ("shop", "/admin/x", "not denied operate"),
        ("shop", "/other", "not no-policy-route "),
        ("unlisted", "/items", "not denied "),
    ] {
        let permit = access.authorize_connection(Some(&peer_id(name)), PORT).unwrap();
        assert_eq!(decide_get(&access, &permit, path), expected, "{name} {path}");
    }
    let permit = access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    assert_eq!(
        describe_decision(&access, decide_tcp(&access, &permit, 5432)),
        "not denied operate"
    );
    let permit = access.authorize_connection(Some(&peer_id("ops")), PORT).unwrap();
    assert_eq!(describe_decision(&access, decide_tcp(&access, &permit, 5432)), "operate");
    // Revoked accounts are rejected independently of policies.
    let access = InboundAccess { revoked_accounts: [peer_id("shop").account].into(), ..access };
    assert!(access.authorize_connection(None, PORT).is_err());
    assert_eq!(decide_get(&access, &permit, "/items"), "not denied read");
    let permit = stock_access().authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    assert_eq!(decide_get(&access, &permit, "/items"), "revoked-peer ");
}

#[test]
fn an_account_in_another_namespace_is_a_different_identity() {
    let access = stock_access();
    let other_account = ServiceAccount::new("elsewhere", "shop").unwrap();
    let permit = access
        .authorize_connection(Some(&SpiffeId { account: other_account, ..peer_id("shop") }), PORT)
        .unwrap();
    assert_eq!(decide_get(&access, &permit, "/items"), "denied ");
}

#[test]
fn tcp_requires_a_policy_with_the_port() {
    let access = stock_access();
    for (name, port, expected) in [
        ("ops", 5432, "operate"),
        ("both", 5432, "operate"),
        ("ops", 80, "denied "),
        ("shop", 5432, "denied operate"),
        ("unlisted", 5432, "denied operate"),
    ] {
        let permit = access.authorize_connection(Some(&peer_id(name)), PORT).unwrap();
        assert_eq!(
            describe_decision(&access, decide_tcp(&access, &permit, port)),
            expected,
            "{name} {port}"
        );
    }
    let mut all_ports = access_rule("all", &["ops"], &[], &[]);
    all_ports.tcp = PortSet::All;
    let access = strict_access(vec![all_ports]);
    let permit = access.authorize_connection(Some(&peer_id("ops")), PORT).unwrap();
    assert_eq!(describe_decision(&access, decide_tcp(&access, &permit, 1)), "all");
}

#[test]
fn default_deny_without_policies_denies_everything() {
    let access = strict_access(Vec::new());
    let permit = access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    assert_eq!(decide_get(&access, &permit, "/"), "denied ");
    assert_eq!(describe_decision(&access, decide_tcp(&access, &permit, 80)), "denied ");
}

#[test]
fn an_earlier_permit_is_evaluated_by_current_rules() {
    let previous_access = stock_access();
    let permit = previous_access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    assert!(previous_access.is_current(&permit));

    // The indices in the permit now denote other rules.
    let current_access = strict_access(vec![
        access_rule("operate", &["ops"], &["/admin/.*"], &[5432]),
        access_rule("sell", &["shop"], &["/sell"], &[]),
    ]);
    assert!(!current_access.is_current(&permit));
    assert_eq!(decide_get(&current_access, &permit, "/admin/x"), "denied operate");
    assert_eq!(decide_get(&current_access, &permit, "/items"), "no-policy-route ");
    assert_eq!(decide_get(&current_access, &permit, "/sell"), "sell");
    assert_eq!(
        describe_decision(&current_access, current_access.authorize_tcp(&permit)),
        "denied operate"
    );

    let permissive = InboundAccess::compile(&Access::AllowAll, &trust_domain()).unwrap();
    let permit = permissive.authorize_connection(Some(&peer_id("unlisted")), PORT).unwrap();
    assert_eq!(decide_get(&current_access, &permit, "/sell"), "denied ");

    let trust_domain = TrustDomain::new("moved.org").unwrap();
    let other_mesh = InboundAccess::compile(&Access::AllowAll, &trust_domain).unwrap();
    assert_eq!(decide_get(&other_mesh, &permit, "/sell"), "foreign-trust-domain ");
}

#[test]
fn path_rules_do_not_match_paths_with_dot_segments() {
    let access = stock_access();
    let permit = access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    for path in [
        "/items/../admin/x",
        "/items/..",
        "/items/./1",
        "/items/.",
        "/items/%2e%2e/admin/x",
        "/items/%2E./admin/x",
        "/items/..%2fadmin",
        "/items%2f..%2fadmin",
        r"/items\..\admin",
        "/items/%5c..%5cadmin",
        "/items/..;a=b/admin/x",
        "/items/..;/admin/x",
    ] {
        assert_eq!(decide_get(&access, &permit, path), "no-policy-route ", "{path}");
    }
    for path in [
        "/items/...",
        "/items/.hidden",
        "/items/a..b",
        "/items/1.",
        "/items/%41",
        "/items/;a",
        "/items//1",
    ] {
        assert_eq!(decide_get(&access, &permit, path), "read", "{path}");
    }
    let everywhere = strict_access(vec![access_rule("all", &["shop"], &[".*"], &[])]);
    let permit = everywhere.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    assert_eq!(decide_get(&everywhere, &permit, "/items/../admin"), "all");
}

#[test]
fn methods_are_compared() {
    let access = stock_access();
    let permit = access.authorize_connection(Some(&peer_id("shop")), PORT).unwrap();
    let fields = Vec::<(String, String)>::new();
    let request =
        RequestView { method: "POST", path: "/items", query: None, authority: "", fields: &fields };
    assert_eq!(
        describe_decision(&access, access.authorize_request(&permit, &request)),
        "no-policy-route "
    );
}

#[test]
fn errors_and_denials_contain_their_policy() {
    let invalid = Access::AllowListed(vec![access_rule("read", &["shop"], &["("], &[])]);
    let error = InboundAccess::compile(&invalid, &trust_domain()).unwrap_err().to_string();
    assert!(error.starts_with("TrafficTarget stock/read: "), "{error}");
    let denial = Denial {
        reason: Reason::Denied,
        policy: Some(PolicyDecision::from_target(PolicyName::new("stock", "read").unwrap())),
    };
    assert!(denial.to_string().contains("stock/read"), "{denial}");
}

#[test]
fn sources_with_the_same_rules_share_their_index() {
    let paths: Vec<String> = (0..50).map(|n| format!("/items/{n}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let access = strict_access(vec![
        access_rule("read", &["one", "two", "three"], &paths, &[]),
        access_rule("write", &["three"], &paths, &[]),
    ]);
    let rules_of =
        |name| access.target_rules.as_ref().unwrap().by_source[&service_account(name)].clone();
    assert!(Arc::ptr_eq(&rules_of("one"), &rules_of("two")));
    assert!(!Arc::ptr_eq(&rules_of("one"), &rules_of("three")));
}

/// Returns a rule for some of three accounts, and some requests.
fn any_rule() -> impl Strategy<Value = (Vec<&'static str>, Vec<RequestMatch>)> {
    let path = prop_oneof![
        Just(PathMatch::Any),
        prop::sample::select(vec!["/a", "/a/b", "/b"])
            .prop_map(|text| PathMatch::Exact(text.into())),
        prop::sample::select(vec!["/a", "/a/b/", "/"])
            .prop_map(|text| PathMatch::Prefix(text.into())),
        prop::sample::select(vec!["/a/.*", "/a/b", "/[ab]", "/a.*", ".*"])
            .prop_map(|text| PathMatch::Regex(text.into())),
    ];
    let methods = prop::collection::vec(prop::sample::select(vec!["GET", "PUT"]), 0..2);
    let request = (path, methods).prop_map(|(path, methods)| RequestMatch {
        path,
        methods: methods.into_iter().map(str::to_owned).collect(),
        ..RequestMatch::default()
    });
    let sources = prop::collection::vec(prop::sample::select(vec!["one", "two", "three"]), 1..3);
    (sources, prop::collection::vec(request, 0..3))
}

proptest! {
    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        rules in prop::collection::vec(any_rule(), 0..24),
        path in prop::sample::select(vec!["/a", "/a/b", "/a/b/c", "/b", "/", "/a/%62", "/a/../b"]),
        method in prop::sample::select(vec!["GET", "PUT"]),
    ) {
        let rules: Vec<AccessRule> = rules
            .into_iter()
            .enumerate()
            .map(|(n, (sources, http))| AccessRule { http, ..access_rule(&format!("p{n}"), &sources, &[], &[]) })
            .collect();
        let access = strict_access(rules.clone());
        let fields = Vec::<(String, String)>::new();
        let request = RequestView { method, path, query: None, authority: "", fields: &fields };
        let allows = |rule: &&AccessRule| {
            let kind = PathKind::from_path(path);
            rule.http.iter().any(|condition| {
                allows_path(&RequestMatcher::compile_allowing(condition).unwrap(), &request, kind)
            })
        };
        let is_for_peer = |rule: &&AccessRule| rule.sources.contains(&service_account("one"));
        let allowing = rules.iter().filter(is_for_peer).find(allows);
        let expected = match (allowing, rules.iter().find(allows), rules.iter().any(|rule| is_for_peer(&rule))) {
            (_, _, false) => "denied".to_owned(),
            (Some(allowing), _, true) => allowing.policy.name.to_string(),
            (None, Some(foreign), true) => format!("denied {}", foreign.policy.name),
            (None, None, true) => "no-policy-route".to_owned(),
        };
        let permit = access.authorize_connection(Some(&peer_id("one")), PORT).unwrap();
        let decision = describe_decision(&access, access.authorize_request(&permit, &request));
        prop_assert_eq!(decision.trim(), expected);
    }
}
