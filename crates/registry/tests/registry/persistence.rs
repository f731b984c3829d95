//! Tests of `sessionPersistence` of rules: accepted documents and rejections.

use std::time::Duration;

use expect_test::expect;
use leno_model::{Object, PersistenceType, SessionPersistence};
use leno_registry::read_str;

use crate::rejections::check_specs;

const CASES: &[&str] = &[
    "{sessionName: a b}",
    "{sessionName: \"\"}",
    "{sessionName: a, type: Header, cookieConfig: {lifetimeType: Session}}",
    "{sessionName: Set-Cookie, type: Header}",
    "{sessionName: Content-Length, type: Header}",
    "{type: Query}",
    "{absoluteTimeout: soon}",
    "{absoluteTimeout: 0s}",
    "{idleTimeout: 0h}",
    "{cookieConfig: {lifetimeType: Permanent}}",
    "{cookieConfig: {lifetimeType: Forever}}",
    "{cookieConfig: {path: /}}",
    "{name: a}",
    "{header: {name: a}}",
    "{type: Header, cookie: {name: a}}",
    "{type: Header, header: {}}",
    "{cookie: {lifetimeType: Permanent}}",
    "{cookie: {path: \"/;Domain=a\"}}",
    "{cookie: {}, cookieConfig: {}}",
    "{sessionName: a, cookie: {name: a}}",
];

fn route_spec(persistence: &str) -> String {
    format!(
        "{{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{{sessionPersistence: \
         {persistence}, backendRefs: [{{name: a, port: 80}}]}}]}}"
    )
}

fn read_persistence(kind: &str, persistence: &str) -> SessionPersistence {
    let text = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {}\n",
        route_spec(persistence)
    );
    let (objects, rejected) = read_str("f.yaml", &text);
    assert_eq!(rejected, [], "{text}");
    let rule = objects.into_iter().find_map(|(object, _)| match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => route.rules.into_iter().next(),
        _ => None,
    });
    rule.and_then(|rule| rule.actions.persistence).expect("what is read")
}

/// Returns persistence by a cookie without a configured name.
fn unnamed_cookie() -> SessionPersistence {
    SessionPersistence {
        name: None,
        kind: PersistenceType::Cookie,
        absolute_timeout: None,
        idle_timeout: None,
        path: None,
    }
}

fn check_cases(cases: &[(&str, SessionPersistence)]) {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for (text, expected) in cases {
            assert_eq!(read_persistence(kind, text), *expected, "{kind} {text}");
        }
    }
}

#[test]
fn session_persistence_is_read_with_all_fields() {
    let path = Some("/".to_owned());
    check_cases(&[
        ("{}", unnamed_cookie()),
        ("{cookie: {}}", SessionPersistence { path, ..unnamed_cookie() }),
        (
            "{absoluteTimeout: 1s, cookie: {name: cart, path: /shop, lifetimeType: Permanent}}",
            SessionPersistence {
                name: Some("cart".into()),
                kind: PersistenceType::LastingCookie,
                absolute_timeout: Some(SECOND),
                idle_timeout: None,
                path: Some("/shop".into()),
            },
        ),
        (
            "{type: Header, header: {name: X-Cart}}",
            SessionPersistence {
                name: Some("x-cart".into()),
                kind: PersistenceType::Header,
                ..unnamed_cookie()
            },
        ),
    ]);
}

#[test]
fn the_fields_of_earlier_versions_are_read() {
    check_cases(&[
        (
            "{sessionName: JSESSIONID, type: Cookie, cookieConfig: {lifetimeType: Session}, idleTimeout: 30s}",
            SessionPersistence {
                name: Some("JSESSIONID".into()),
                idle_timeout: Some(30 * SECOND),
                ..unnamed_cookie()
            },
        ),
        (
            "{absoluteTimeout: 1h30m, cookieConfig: {lifetimeType: Permanent}}",
            SessionPersistence {
                kind: PersistenceType::LastingCookie,
                absolute_timeout: Some(5400 * SECOND),
                ..unnamed_cookie()
            },
        ),
        (
            "{sessionName: X-Cart, type: Header, absoluteTimeout: 1s}",
            SessionPersistence {
                name: Some("x-cart".into()),
                kind: PersistenceType::Header,
                absolute_timeout: Some(SECOND),
                ..unnamed_cookie()
            },
        ),
    ]);
}

#[test]
fn invalid_session_persistence_is_rejected() {
    let specs: Vec<String> = CASES.iter().map(|case| route_spec(case)).collect();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.rules[0].sessionPersistence.sessionName: "a b" is not the name of a cookie; use up to 256 letters, digits, `-` and `_`, such as "cart-session"
            spec.rules[0].sessionPersistence.sessionName: "" is not the name of a cookie; use up to 256 letters, digits, `-` and `_`, such as "cart-session"
            spec.rules[0].sessionPersistence.cookieConfig: is for cookies, but `type` is `Header`; remove one of the two
            spec.rules[0].sessionPersistence.sessionName: "Set-Cookie" is not a header that can carry a session; use up to 256 letters, digits, `-` and `_`, such as "cart-session"
            spec.rules[0].sessionPersistence.sessionName: "Content-Length" is not a header that can carry a session; use up to 256 letters, digits, `-` and `_`, such as "cart-session"
            spec.rules[0].sessionPersistence.type: "Query" is not a supported value; use `Cookie` or `Header`
            spec.rules[0].sessionPersistence.absoluteTimeout: "soon" is not a duration; use a number with a unit, such as "5s" or "500ms"
            spec.rules[0].sessionPersistence.absoluteTimeout: is zero; use a duration such as "1h", or remove it
            spec.rules[0].sessionPersistence.idleTimeout: is zero; use a duration such as "1h", or remove it
            spec.rules[0].sessionPersistence: has a permanent cookie without a lifetime; add `absoluteTimeout`
            spec.rules[0].sessionPersistence.cookieConfig.lifetimeType: "Forever" is not a supported value; use `Session` or `Permanent`
            spec.rules[0].sessionPersistence.cookieConfig.path: is an unknown field; remove it, or use `lifetimeType`
            spec.rules[0].sessionPersistence.name: is an unknown field; remove it, or use `type`, `absoluteTimeout`, `cookie`, `header`, `sessionName`, `idleTimeout` or `cookieConfig`
            spec.rules[0].sessionPersistence.header: is for headers, but `type` is `Cookie`; remove one of the two
            spec.rules[0].sessionPersistence.cookie: is for cookies, but `type` is `Header`; remove one of the two
            spec.rules[0].sessionPersistence.header.name: is missing; add `name`
            spec.rules[0].sessionPersistence: has a permanent cookie without a lifetime; add `absoluteTimeout`
            spec.rules[0].sessionPersistence.cookie.path: "/;Domain=a" is not the path of a cookie; use `/` and up to 1023 visible characters but `;`
            spec.rules[0].sessionPersistence.cookieConfig: is also defined by `cookie`; remove it
            spec.rules[0].sessionPersistence.sessionName: repeats the session name; remove it
        "#]],
    );
    let rule = "{sessionPersistence: {sessionName: a}, backendRefs: [{name: a, port: 80}]}";
    let two_rules = format!(
        "{{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{rule}, {rule}]}}"
    );
    check_specs(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: x}",
        &[&two_rules],
        &expect![[r#"
            spec.rules: have two rules with a session "a", which would overwrite each other's sessions; give each rule a unique name, or none
        "#]],
    );
}

const SECOND: Duration = Duration::from_secs(1);
