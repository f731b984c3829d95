//! Table tests of request matches.

use super::*;

/// True if `GET http://shop:80{target}` with `x-team: ops` and two `accept` headers matches.
fn matches_target(request: &RequestMatch, target: &str) -> bool {
    let fields: Vec<(String, String)> = [("X-Team", "ops"), ("accept", "a"), ("Accept", "b")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    RequestMatcher::compile(request).unwrap().matches(&RequestView {
        method: "GET",
        path,
        query,
        authority: "shop:80",
        fields: &fields,
    })
}

fn exact_field(name: &str, value: &str) -> FieldMatch {
    let (name, value) = (name.to_owned(), ValueMatch::Exact(value.to_owned()));
    FieldMatch { name, value }
}

fn regex_field(name: &str, pattern: &str) -> FieldMatch {
    let (name, value) = (name.to_owned(), ValueMatch::Regex(pattern.to_owned()));
    FieldMatch { name, value }
}

#[test]
fn paths_are_matched_by_kind() {
    let prefix = |path: &str| PathMatch::Prefix(path.to_owned());
    let exact = |path: &str| PathMatch::Exact(path.to_owned());
    let regex = |path: &str| PathMatch::Regex(path.to_owned());
    for (path, target, expected) in [
        (PathMatch::Any, "/a", true),
        (PathMatch::Any, "*", true),
        (exact("/a"), "/a", true),
        (exact("/a"), "/a?b=c", true),
        (exact("/a"), "/a/", false),
        (exact("/a"), "/A", false),
        (prefix("/a"), "/a", true),
        (prefix("/a"), "/a/", true),
        (prefix("/a"), "/a/b", true),
        (prefix("/a"), "/ab", false),
        (prefix("/a/"), "/a", true),
        (prefix("/a/"), "/a/b", true),
        (prefix("/a/"), "/ab", false),
        (prefix("/a/b"), "/a", false),
        (prefix("/"), "/a", true),
        (prefix("/"), "*", true),
        (prefix(""), "/a", true),
        (regex("/[a-z]+"), "/abc", true),
        (regex("/[a-z]+"), "/abc?1", true),
        (regex("/[a-z]+"), "/abc/1", false),
        (regex("[a-z]+"), "/abc", false),
    ] {
        let request = RequestMatch { path, ..RequestMatch::default() };
        assert_eq!(matches_target(&request, target), expected, "{:?} {target}", request.path);
    }
}

#[test]
fn methods_are_matched_exactly() {
    for (methods, expected) in [
        (&[][..], true),
        (&["GET"], true),
        (&["POST", "GET"], true),
        (&["POST"], false),
        (&["get"], false),
    ] {
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        let request = RequestMatch { methods, ..RequestMatch::default() };
        assert_eq!(matches_target(&request, "/"), expected, "{request:?}");
    }
}

#[test]
fn header_values_are_joined_and_names_are_case_insensitive() {
    for (headers, expected) in [
        (vec![exact_field("x-team", "ops")], true),
        (vec![exact_field("X-Team", "ops")], true),
        (vec![exact_field("x-team", "Ops")], false),
        (vec![exact_field("x-absent", "")], false),
        (vec![regex_field("x-absent", ".*")], false),
        (vec![regex_field("x-team", "(shop|ops)")], true),
        (vec![regex_field("x-team", "op")], false),
        (vec![exact_field("accept", "a, b")], true),
        (vec![exact_field("accept", "a")], false),
        (vec![regex_field("accept", ".*b.*")], true),
        (vec![exact_field(":authority", "shop:80")], true),
        (vec![exact_field("host", "shop:80")], true),
        (vec![exact_field("Host", "shop")], false),
        (vec![exact_field("x-team", "ops"), exact_field("host", "other")], false),
    ] {
        let request = RequestMatch { headers, ..RequestMatch::default() };
        assert_eq!(matches_target(&request, "/"), expected, "{request:?}");
    }
}

#[test]
fn query_parameters_are_decoded_and_the_first_value_is_matched() {
    for (query, target, expected) in [
        (exact_field("a", "1"), "/", false),
        (exact_field("a", "1"), "/?a=1", true),
        (exact_field("a", "1"), "/?b=2&a=1", true),
        (exact_field("a", "1"), "/?A=1", false),
        (exact_field("a", "1"), "/?a=2&a=1", false),
        (exact_field("a", "1"), "/?a=1&a=2", true),
        (exact_field("a", "1"), "/?aa=1", false),
        (exact_field("a", ""), "/?a", true),
        (exact_field("a", ""), "/?a=", true),
        (exact_field("a", "b=c"), "/?a=b=c", true),
        (exact_field("a", "b c"), "/?a=b%20c", true),
        (exact_field("a", "b c"), "/?a=b+c", true),
        (exact_field("a b", "c"), "/?a+b=c", true),
        (exact_field("a", "b+c"), "/?a=b+c", false),
        (exact_field("a", "b+c"), "/?a=b%2bc", true),
        (regex_field("a", "b c"), "/?a=b+c", true),
        (exact_field("ä", "ö"), "/?%C3%a4=%c3%B6", true),
        (exact_field("a", "%zz"), "/?a=%zz", true),
        (exact_field("a", "%2"), "/?a=%2", true),
        (exact_field("a", "%"), "/?a=%", true),
        (regex_field("a", "[0-9]+"), "/?a=12", true),
        (regex_field("a", "[0-9]+"), "/?a=%312", true),
        (regex_field("a", "[0-9]+"), "/?a=1x", false),
        (regex_field("a", ".*"), "/?a=%ff", false),
        (regex_field("a", ".*"), "/?a=%0a", false),
    ] {
        let request = RequestMatch { query: vec![query], ..RequestMatch::default() };
        assert_eq!(matches_target(&request, target), expected, "{:?} {target}", request.query);
    }
}

#[test]
fn all_conditions_must_hold() {
    let request = RequestMatch {
        path: PathMatch::Prefix("/a".to_owned()),
        methods: vec!["GET".to_owned()],
        headers: vec![exact_field("x-team", "ops")],
        query: vec![exact_field("v", "2")],
    };
    assert!(matches_target(&request, "/a?v=2"));
    assert!(!matches_target(&request, "/b?v=2"));
    assert!(!matches_target(&request, "/a?v=1"));
}

#[test]
fn an_invalid_pattern_error_contains_its_field() {
    for (request, field) in [
        (
            RequestMatch { path: PathMatch::Regex("(".into()), ..RequestMatch::default() },
            PatternField::Path,
        ),
        (
            RequestMatch { headers: vec![regex_field("X-A", "(")], ..RequestMatch::default() },
            PatternField::Header("x-a".to_owned()),
        ),
        (
            RequestMatch { query: vec![regex_field("a", "(")], ..RequestMatch::default() },
            PatternField::Query("a".to_owned()),
        ),
    ] {
        assert_eq!(RequestMatcher::compile(&request).unwrap_err().field, field);
    }
}

#[test]
fn only_restricted_paths_constrain_the_path() {
    for (path, expected) in [
        (PathMatch::Any, false),
        (PathMatch::Prefix("/".into()), false),
        (PathMatch::Regex(".*".into()), false),
        (PathMatch::Regex("/a.*".into()), true),
        (PathMatch::Regex(".+".into()), true),
        (PathMatch::Exact("/".into()), true),
    ] {
        let request = RequestMatch { path, ..RequestMatch::default() };
        let matcher = RequestMatcher::compile(&request).unwrap();
        assert_eq!(matcher.constrains_path(), expected, "{request:?}");
    }
}
