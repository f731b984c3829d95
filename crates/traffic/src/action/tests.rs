//! Tests of path rewrites, redirects and combined header edits.

use leno_model::{Header, Name};

use super::*;

fn compile_actions(prefix: &str, actions: RuleActions) -> CompiledActions {
    let request =
        RequestMatch { path: PathMatch::Prefix(prefix.to_owned()), ..RequestMatch::default() };
    CompiledActions::compile(&actions, &[request]).unwrap()
}

fn rewrite_actions(path: PathEdit) -> RuleActions {
    let rewrite = UrlRewrite { path: Some(path), hostname: None };
    RuleActions { rewrite: Some(rewrite), ..RuleActions::default() }
}

fn set_header(name: &str, value: &str) -> Header {
    Header { name: name.to_owned(), value: value.to_owned() }
}

#[test]
fn no_actions_compile_to_none() {
    assert_eq!(CompiledActions::compile(&RuleActions::default(), &[]), None);
}

#[test]
fn prefix_replacement_follows_the_gateway_api_table() {
    for (path, prefix, replacement, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/foo", "/", "/xyz", "/xyz/foo"),
        ("/", "/", "/xyz", "/xyz/"),
        ("/", "/", "", "/"),
    ] {
        let actions =
            compile_actions(prefix, rewrite_actions(PathEdit::Prefix(replacement.to_owned())));
        let target = actions.rewritten_target(path, None);
        assert_eq!(target.as_deref(), Some(expected), "{path} {prefix} {replacement}");
    }
}

#[test]
fn a_rewrite_retains_the_query_and_the_asterisk_target() {
    let actions = compile_actions("/", rewrite_actions(PathEdit::Full("/a".to_owned())));
    assert_eq!(actions.rewritten_target("/b/c", Some("d=e")).as_deref(), Some("/a?d=e"));
    assert_eq!(actions.rewritten_target("/b", Some("")).as_deref(), Some("/a?"));
    assert_eq!(actions.rewritten_target("*", None), None);
    let host = RuleActions {
        rewrite: Some(UrlRewrite { hostname: Some(Name::new("a.b").unwrap()), path: None }),
        ..RuleActions::default()
    };
    let actions = compile_actions("/", host);
    assert_eq!(actions.rewritten_target("/b", None), None);
    assert_eq!(actions.rewritten_host(), Some("a.b"));
}

#[test]
fn a_redirect_omits_default_ports() {
    let unchanged = Redirect { scheme: None, hostname: None, path: None, port: None, status: 302 };
    let (http, https) = (Some(Scheme::Http), Some(Scheme::Https));
    let host = || Some(Name::new("b.example").unwrap());
    let path = || Some(PathEdit::Prefix("/z".to_owned()));
    let cases = [
        ("a:9080", unchanged.clone(), "http://a:9080/x/y?q"),
        ("a", unchanged.clone(), "http://a/x/y?q"),
        ("a:80", unchanged.clone(), "http://a/x/y?q"),
        ("[::1]", unchanged.clone(), "http://[::1]/x/y?q"),
        ("[::1]:81", unchanged.clone(), "http://[::1]:81/x/y?q"),
        ("a:9080", Redirect { scheme: https, ..unchanged.clone() }, "https://a/x/y?q"),
        ("a:9080", Redirect { scheme: http, ..unchanged.clone() }, "http://a/x/y?q"),
        (
            "a:1",
            Redirect { scheme: https, port: Some(443), ..unchanged.clone() },
            "https://a/x/y?q",
        ),
        (
            "a:1",
            Redirect { scheme: https, port: Some(80), ..unchanged.clone() },
            "https://a:80/x/y?q",
        ),
        ("a:1", Redirect { port: Some(80), ..unchanged.clone() }, "http://a/x/y?q"),
        ("a:1", Redirect { port: Some(2), ..unchanged.clone() }, "http://a:2/x/y?q"),
        ("a:1", Redirect { hostname: host(), ..unchanged.clone() }, "http://b.example:7/x/y?q"),
        ("a:1", Redirect { path: path(), ..unchanged.clone() }, "http://a:1/z/y?q"),
    ];
    for (authority, redirect, expected) in cases {
        let actions = RuleActions { redirect: Some(redirect), ..RuleActions::default() };
        let actions = compile_actions("/x", actions);
        assert!(actions.is_redirect());
        let fields: Vec<(String, String)> = Vec::new();
        let request = RequestView {
            method: "GET",
            path: "/x/y",
            query: Some("q"),
            authority,
            fields: &fields,
        };
        let redirection = actions.redirection(&request, 7).unwrap();
        assert_eq!(redirection.location, expected, "{authority}");
        assert_eq!(redirection.status, 302);
    }
}

#[test]
fn set_fields_replace_received_ones() {
    let edits = HeaderEdits {
        set: vec![set_header("x-set", "1")],
        add: vec![set_header("x-add", "2"), set_header("x-broken", "3\r\nx-evil: 4")],
        remove: vec!["x-gone".to_owned()],
    };
    let actions = RuleActions { request_headers: edits, ..RuleActions::default() };
    let request = compile_actions("/", actions).request;
    assert_eq!(&*request.lines, "x-set: 1\r\nx-add: 2\r\n");
    assert_eq!(request.remove.iter().map(|name| &**name).collect::<Vec<_>>(), ["x-gone", "x-set"]);
    assert_eq!(request.appended().collect::<Vec<_>>(), [("x-set", "1"), ("x-add", "2")]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let received_fields =
        [pair("X-Set", "0"), pair("x-add", "0"), pair("x-gone", "0"), pair("a", "0")];
    let edited_fields =
        [pair("x-add", "0"), pair("a", "0"), pair("x-set", "1"), pair("x-add", "2")];
    assert_eq!(request.apply_to(&received_fields), edited_fields);
    let received_fields = ["X_Set", "x.gone", "x_add", "a"].map(|name| pair(name, "0"));
    let edited_fields =
        [pair("x_add", "0"), pair("a", "0"), pair("x-set", "1"), pair("x-add", "2")];
    assert_eq!(request.apply_to(&received_fields), edited_fields);
}

#[test]
fn backend_edits_follow_the_rule_for_requests_and_precede_it_for_responses() {
    let edits = |set: &[&str], add: &[&str], remove: &[&str], source: &str| HeaderEdits {
        set: set.iter().map(|name| set_header(name, source)).collect(),
        add: add.iter().map(|name| set_header(name, source)).collect(),
        remove: remove.iter().map(|name| (*name).to_owned()).collect(),
    };
    let rule_edits = |source| edits(&["a", "b"], &["c"], &["d"], source);
    let backend_edits = |source| edits(&["a"], &["c", "d"], &["b"], source);
    let rule = RuleActions {
        request_headers: rule_edits("rule"),
        response_headers: rule_edits("rule"),
        attempt_timeout: Some(Duration::from_secs(1)),
        ..RuleActions::default()
    };
    let edits_of_backend = BackendEdits {
        request_headers: backend_edits("backend"),
        response_headers: backend_edits("backend"),
        rewrite: None,
    };
    let rule = Arc::new(compile_actions("/", rule));
    let actions = CompiledActions::for_backend(Some(&rule), &edits_of_backend, &[]);
    assert_eq!(
        actions.attempt_limit.map(AttemptLimit::time_limit),
        Some(Duration::from_secs(1)),
        "the other edits are those of the rule"
    );
    assert_eq!(actions.for_mirrors(), &*rule);
    let received = ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), "client".to_owned()));
    let edited_fields = |edits: &FieldEdits| {
        let mut edited_fields = edits.apply_to(&received);
        edited_fields.sort();
        edited_fields
            .iter()
            .map(|(name, source)| format!("{name}={source}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    // Two steps have the same result.
    assert_eq!(
        edited_fields(&actions.request),
        "a=backend c=backend c=client c=rule d=backend e=client"
    );
    assert_eq!(
        edited_fields(&actions.response),
        "a=rule b=rule c=backend c=client c=rule e=client"
    );
    let without_rule = CompiledActions::for_backend(None, &edits_of_backend, &[]);
    assert_eq!(
        edited_fields(&without_rule.request),
        "a=backend c=backend c=client d=backend d=client e=client"
    );
}

#[test]
fn backend_rewrites_take_precedence_over_those_of_the_rule() {
    let full_path = |path: &str| Some(PathEdit::Full(path.to_owned()));
    let prefix = |path: &str| Some(PathEdit::Prefix(path.to_owned()));
    let rewrite = |hostname: Option<&str>, path: Option<PathEdit>| {
        let hostname = hostname.map(|name| Name::new(name).unwrap());
        Some(UrlRewrite { hostname, path })
    };
    let rule = rewrite(Some("rule.example"), full_path("/rule"));
    for (rule_rewrite, backend_rewrite, expected) in [
        (None, rewrite(None, full_path("/own")), (Some("/own?q"), None)),
        (None, rewrite(None, prefix("/own")), (Some("/own/b?q"), None)),
        (rule.clone(), None, (Some("/rule?q"), Some("rule.example"))),
        (rule.clone(), rewrite(None, full_path("/own")), (Some("/own?q"), Some("rule.example"))),
        (rule.clone(), rewrite(Some("own.example"), None), (Some("/rule?q"), Some("own.example"))),
        (rule, rewrite(Some("own.example"), prefix("")), (Some("/b?q"), Some("own.example"))),
    ] {
        let matches = RequestMatch { path: PathMatch::Prefix("/a".to_owned()), ..<_>::default() };
        let actions = RuleActions { rewrite: rule_rewrite.clone(), ..RuleActions::default() };
        let rule = CompiledActions::compile(&actions, std::slice::from_ref(&matches)).map(Arc::new);
        let edits = BackendEdits { rewrite: backend_rewrite.clone(), ..BackendEdits::default() };
        let actions = CompiledActions::for_backend(rule.as_ref(), &edits, &[matches]);
        let rewritten = (actions.rewritten_target("/a/b", Some("q")), actions.rewritten_host());
        let rewritten = (rewritten.0.as_deref(), rewritten.1);
        assert_eq!(rewritten, expected, "{rule_rewrite:?} {backend_rewrite:?}");
        let mirror_target = actions.for_mirrors().rewritten_target("/a/b", Some("q"));
        let expected = rule_rewrite.and_then(|rewrite| rewrite.path).map(|_| "/rule?q".to_owned());
        assert_eq!(mirror_target, expected, "mirrored requests have no backend rewrite");
    }
}
