//! Tests of session persistence values and cookie paths.

use leno_model::{RouteName, RuleActions, ServiceName, WorkloadName};

use super::*;

fn endpoint_id(workload: &str) -> EndpointId {
    EndpointId {
        service: ServiceName::new("shop", "cart").unwrap(),
        port: 80,
        workload: WorkloadName::new("shop", workload).unwrap(),
    }
}

fn persistent_rule(persistence: SessionPersistence, matches: Vec<RequestMatch>) -> RouteRule {
    RouteRule {
        route: RouteName::new("shop", "cart").unwrap(),
        matches,
        backends: Vec::new(),
        request_timeout: None,
        actions: RuleActions { persistence: Some(persistence), ..RuleActions::default() },
        kind: leno_model::RouteKind::Http,
    }
}

fn compile_persistence(persistence: SessionPersistence) -> CompiledPersistence {
    CompiledPersistence::from_rule(&persistent_rule(persistence, vec![RequestMatch::default()]), 0)
        .unwrap()
}

fn persistence_of_type(kind: PersistenceType) -> SessionPersistence {
    SessionPersistence {
        name: Some("cart".into()),
        kind,
        absolute_timeout: None,
        idle_timeout: None,
        path: None,
    }
}

fn from_seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request_view<'a>(fields: &'a Vec<(String, String)>, path: &'a str) -> RequestView<'a> {
    RequestView { method: "GET", path, query: None, authority: "cart", fields }
}

/// Converts the response field of an endpoint to a request field.
fn request_fields(
    persistence: &CompiledPersistence,
    since: Option<u64>,
    now: u64,
) -> Vec<(String, String)> {
    let id = endpoint_id("cart-1");
    let (name, value) = persistence
        .response_field(&id, since.map(from_seconds), from_seconds(now), "/", false)
        .unwrap();
    match &*name {
        "set-cookie" => {
            let (pair, _) = value.split_once(';').unwrap();
            vec![("cookie".to_owned(), format!("a=b; {pair}"))]
        }
        name => vec![(name.to_owned(), value)],
    }
}

#[test]
fn only_encoded_values_are_parsed() {
    for value in [
        PersistenceValue { number: 7, started_at: None, last_sent: None },
        PersistenceValue { number: u64::MAX, started_at: Some(0), last_sent: Some(u64::MAX) },
    ] {
        assert_eq!(PersistenceValue::parse(&value.encode()), Some(value));
    }
    for text in [
        "",
        "7",
        "00000000000000g7",
        "+000000000000007",
        "0000000000000007.",
        "0000000000000007.1",
        "0000000000000007.1.",
        "0000000000000007.1.2.3",
        "0000000000000007.1.ffffffffffffffff0",
        "cart-1",
        "ä00000000000000",
    ] {
        assert_eq!(PersistenceValue::parse(text), None, "{text}");
    }
}

#[test]
fn a_value_is_valid_until_one_of_its_limits_expires() {
    let with_limits = |absolute: Option<u64>, idle: Option<u64>| SessionPersistence {
        absolute_timeout: absolute.map(from_seconds),
        idle_timeout: idle.map(from_seconds),
        ..persistence_of_type(PersistenceType::Header)
    };
    // Session start at 1000, last response at 1050.
    for (rule, now, is_valid) in [
        (with_limits(None, None), 9_999, true),
        (with_limits(Some(100), None), 1_099, true),
        (with_limits(Some(100), None), 1_100, false),
        (with_limits(None, Some(20)), 1_070, true),
        (with_limits(None, Some(20)), 1_071, false),
        (with_limits(Some(100), Some(20)), 1_069, true),
        (with_limits(Some(60), Some(20)), 1_061, false),
        // A clock that is slightly behind, and a value from the future.
        (with_limits(Some(100), None), 990, true),
        (with_limits(Some(100), Some(20)), 900, false),
    ] {
        let persistence = compile_persistence(rule.clone());
        let fields = request_fields(&persistence, Some(1_000), 1_050);
        let presented = persistence.session_value(&request_view(&fields, "/"), from_seconds(now));
        assert_eq!(presented.is_some(), is_valid, "{rule:?} at {now}");
        if let Some(presented) = presented.filter(|_| rule.absolute_timeout.is_some()) {
            assert_eq!(presented.started_at, from_seconds(1_000));
        }
    }
    // A value without times is invalid if there are limits.
    let fields_without_times = request_fields(
        &compile_persistence(persistence_of_type(PersistenceType::Header)),
        None,
        1_000,
    );
    let persistence = compile_persistence(with_limits(Some(100), None));
    assert!(
        persistence
            .session_value(&request_view(&fields_without_times, "/"), from_seconds(1_000))
            .is_none()
    );
}

#[test]
fn a_value_contains_no_name_and_is_valid_for_its_rule_only() {
    let endpoint_numbers = EndpointNumbers::default();
    let endpoint = Arc::new(Endpoint {
        id: endpoint_id("cart-1"),
        address: ([10, 1, 2, 3], 80).into(),
        account: None,
        tags: <_>::default(),
        weight: None,
    });
    let persistence = compile_persistence(persistence_of_type(PersistenceType::Cookie));
    let fields = request_fields(&persistence, None, 5);
    let value = &fields[0].1;
    for plaintext in ["cart-1", "10.1.2.3", "0a010203", "shop"] {
        assert!(!value.contains(plaintext), "{value}");
    }
    let finds_endpoint = |persistence: &CompiledPersistence| {
        let presented =
            persistence.session_value(&request_view(&fields, "/"), from_seconds(5)).unwrap();
        persistence
            .find_endpoint(&endpoint_numbers, std::slice::from_ref(&endpoint), presented)
            .is_some()
    };
    assert!(finds_endpoint(&persistence));
    let mut other_rule = persistent_rule(
        persistence_of_type(PersistenceType::Cookie),
        vec![RequestMatch::default()],
    );
    other_rule.route = RouteName::new("shop", "other").unwrap();
    assert!(!finds_endpoint(&CompiledPersistence::from_rule(&other_rule, 0).unwrap()));
    // Values are the same on every machine and in every version, because clients retain them across restarts.
    assert_eq!(value, "a=b; cart=74837e45a88bcd57");
}

#[test]
fn each_rule_without_a_name_gets_its_own() {
    let nameless =
        SessionPersistence { name: None, ..persistence_of_type(PersistenceType::Cookie) };
    let rule = persistent_rule(nameless, vec![RequestMatch::default()]);
    let name = |number| CompiledPersistence::from_rule(&rule, number).unwrap().name.to_string();
    assert_ne!(name(0), name(1));
    assert_eq!(name(0), name(0));
    assert!(SessionPersistence::is_valid_name(&name(0), PersistenceType::Header), "{}", name(0));
}

#[test]
fn a_cookie_is_set_only_if_the_client_does_not_have_it() {
    let id = endpoint_id("cart-1");
    let cookie_attributes = |persistence: SessionPersistence, since: Option<u64>, is_tls| {
        let attributes = compile_persistence(persistence).response_field(
            &id,
            since.map(from_seconds),
            from_seconds(1_030),
            "/a",
            is_tls,
        );
        attributes.map(|(name, value)| {
            assert_eq!(name, "set-cookie");
            value.split_once("; ").unwrap().1.to_owned()
        })
    };
    let lasting = SessionPersistence {
        absolute_timeout: Some(from_seconds(100)),
        ..persistence_of_type(PersistenceType::LastingCookie)
    };
    let idle = SessionPersistence {
        idle_timeout: Some(from_seconds(10)),
        ..persistence_of_type(PersistenceType::Cookie)
    };
    let idle_lasting =
        SessionPersistence { idle_timeout: Some(from_seconds(10)), ..lasting.clone() };
    for (persistence, since, is_tls, expected) in [
        (
            persistence_of_type(PersistenceType::Cookie),
            None,
            false,
            Some("Path=/a; HttpOnly; SameSite=Strict"),
        ),
        (
            persistence_of_type(PersistenceType::Cookie),
            None,
            true,
            Some("Path=/a; HttpOnly; Secure; SameSite=Strict"),
        ),
        (persistence_of_type(PersistenceType::Cookie), Some(1_000), false, None),
        (idle, Some(1_000), false, Some("Path=/a; HttpOnly; SameSite=Strict")),
        (lasting.clone(), None, false, Some("Path=/a; Max-Age=100; HttpOnly; SameSite=Strict")),
        (lasting, Some(1_000), false, None),
        // A cookie that is sent again keeps its original expiration time.
        (idle_lasting, Some(1_000), false, Some("Path=/a; Max-Age=70; HttpOnly; SameSite=Strict")),
    ] {
        let attributes = cookie_attributes(persistence.clone(), since, is_tls);
        assert_eq!(attributes.as_deref(), expected, "{persistence:?}");
    }
}

#[test]
fn a_cookie_has_the_path_of_its_rule() {
    let matches = |paths: &[PathMatch]| -> Vec<RequestMatch> {
        let request_match =
            |path: &PathMatch| RequestMatch { path: path.clone(), ..<_>::default() };
        paths.iter().map(request_match).collect()
    };
    let (prefix, exact, regex) = (
        |path: &str| PathMatch::Prefix(path.into()),
        |path: &str| PathMatch::Exact(path.into()),
        |path: &str| PathMatch::Regex(path.into()),
    );
    for (paths, request, expected) in [
        (vec![PathMatch::Any], "/a/b", "/"),
        (vec![prefix("/a")], "/a/b", "/a"),
        (vec![prefix("/a"), prefix("/a/b"), prefix("/c")], "/a/b/c", "/a/b"),
        (vec![prefix("/a"), prefix("/a/b")], "/a/bc", "/a"),
        (vec![exact("/a/")], "/a/", "/a/"),
        (vec![regex("/p1/p2/[^/]+/p3")], "/p1/p2/foo/p3", "/p1/p2"),
        (vec![regex("/p1/p.*")], "/p1/p2", "/p1"),
        (vec![regex("/p")], "/p", "/p"),
        (vec![regex(".*")], "/p", "/"),
        (vec![prefix("/a/b;c=d/e")], "/a/b;c=d/e", "/a"),
        (vec![prefix("/a\r\nb: c")], "/a", "/"),
    ] {
        let rule = persistent_rule(persistence_of_type(PersistenceType::Cookie), matches(&paths));
        let persistence = CompiledPersistence::from_rule(&rule, 0).unwrap();
        assert_eq!(
            persistence.cookie_path(&request_view(&Vec::new(), request)),
            expected,
            "{paths:?}"
        );
    }
    let persistence_with_path = SessionPersistence {
        path: Some("/shop".to_owned()),
        ..persistence_of_type(PersistenceType::Cookie)
    };
    let persistence = CompiledPersistence::from_rule(
        &persistent_rule(persistence_with_path, matches(&[prefix("/a")])),
        0,
    )
    .unwrap();
    for request in ["/a/b", "/shop/a"] {
        assert_eq!(
            persistence.cookie_path(&request_view(&Vec::new(), request)),
            "/shop",
            "{request}"
        );
    }
}
