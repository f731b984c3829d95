//! Tests of listener and rule selection by host, path and session.

use leno_model::{
    PathMatch, Redirect, RequestMatch, RouteKind, RuleActions, Scheme, ServiceName, WeightedBackend,
};

use super::*;

fn host_pattern(text: &str) -> Option<HostPattern> {
    (!text.is_empty()).then(|| text.parse().unwrap())
}

fn path_rule(route: &str, path: &str) -> RouteRule {
    RouteRule {
        route: format!("shop/{route}").parse().unwrap(),
        matches: vec![RequestMatch {
            path: PathMatch::Prefix(path.to_owned()),
            ..RequestMatch::default()
        }],
        backends: vec![WeightedBackend::new(ServiceName::new("shop", route).unwrap(), 80, 1)],
        request_timeout: None,
        actions: RuleActions::default(),
        kind: RouteKind::Http,
    }
}

fn gateway_listener(
    name: &str,
    hostname: &str,
    hosts: &[(&str, &[(&str, &str)])],
) -> GatewayListener {
    let host = |(hostname, routes): &(&str, &[(&str, &str)])| HostRules {
        hostname: host_pattern(hostname),
        rules: routes.iter().map(|(route, path)| path_rule(route, path)).collect(),
    };
    GatewayListener {
        name: Name::new(name).unwrap(),
        hostname: host_pattern(hostname),
        certificates: Vec::new(),
        hosts: hosts.iter().map(host).collect(),
    }
}

fn compile_listeners(listeners: Vec<GatewayListener>) -> HttpListeners {
    HttpListeners::compile(&listeners, &mut Vec::new())
}

fn decide_request(port: &HttpListeners, url: &str, server_name: Option<Option<&str>>) -> String {
    let (authority, path) = url.split_at(url.find('/').unwrap());
    let fields: Vec<(String, String)> = Vec::new();
    let request = RequestView { method: "GET", path, query: None, authority, fields: &fields };
    match port.choose_backend(&request, server_name, 0) {
        GatewayChoice::Route(RouteChoice::To { rule, .. }) => rule.route.name.to_string(),
        GatewayChoice::Route(choice) => format!("{choice:?}"),
        GatewayChoice::NoRoute { listener } => {
            listener.map_or("no listener".to_owned(), |name| format!("nothing at {name}"))
        }
        GatewayChoice::Misdirected => "misdirected".to_owned(),
    }
}

#[test]
fn only_the_most_specific_listener_handles_a_request() {
    let port = compile_listeners(vec![
        gateway_listener("any", "", &[("", &[("all", "/")])]),
        gateway_listener("wild", "*.example.com", &[("", &[("wild", "/wild")])]),
        gateway_listener("deep", "*.foo.example.com", &[("", &[("deep", "/")])]),
        gateway_listener("one", "abc.foo.example.com", &[("", &[("one", "/one")])]),
    ]);
    for (url, expected) in [
        ("bar.com/", "all"),
        ("example.com/", "all"),
        ("bar.example.com/wild", "wild"),
        ("bar.example.com/", "nothing at wild"),
        ("BAR.Example.COM.:8080/wild/x", "wild"),
        ("x.foo.example.com/", "deep"),
        ("y.x.foo.example.com/", "deep"),
        ("abc.foo.example.com/one", "one"),
        ("abc.foo.example.com/", "nothing at one"),
        ("[::1]:80/", "all"),
    ] {
        assert_eq!(decide_request(&port, url, None), expected, "{url}");
    }
    let without_match =
        compile_listeners(vec![gateway_listener("one", "a.com", &[("", &[("a", "/")])])]);
    assert_eq!(decide_request(&without_match, "b.com/", None), "no listener");
}

#[test]
fn within_a_listener_hosts_are_tried_by_specificity() {
    let port = compile_listeners(vec![gateway_listener(
        "any",
        "",
        &[
            ("", &[("all", "/")]),
            ("*.a.com", &[("wild", "/w")]),
            ("b.a.com", &[("b", "/b")]),
            ("b.a.com", &[("later", "/b/c")]),
        ],
    )]);
    for (url, expected) in [
        ("b.a.com/b", "b"),
        ("b.a.com/b/c", "later"),
        ("b.a.com/w", "wild"),
        ("b.a.com/x", "all"),
        ("c.a.com/b", "all"),
    ] {
        assert_eq!(decide_request(&port, url, None), expected, "{url}");
    }
}

#[test]
fn a_request_for_another_listener_than_its_session_is_misdirected() {
    let port = compile_listeners(vec![
        gateway_listener("any", "", &[("example.org", &[("first", "/")])]),
        gateway_listener("second", "second-example.org", &[("", &[("second", "/")])]),
        gateway_listener("wild", "*.wildcard.org", &[("", &[("wild", "/")])]),
        gateway_listener("fourth", "fourth.wildcard.org", &[("", &[("fourth", "/")])]),
    ]);
    for (name, url, expected) in [
        (Some("example.org"), "example.org/", "first"),
        (Some("example.org"), "second-example.org/", "misdirected"),
        (Some("example.org"), "unknown.org/", "nothing at any"),
        (Some("second-example.org"), "second-example.org/", "second"),
        (Some("second-example.org"), "unknown.org/", "misdirected"),
        (Some("third.wildcard.org"), "fifth.wildcard.org/", "wild"),
        (Some("third.wildcard.org"), "fourth.wildcard.org/", "misdirected"),
        (Some("fourth.wildcard.org"), "third.wildcard.org/", "misdirected"),
        (Some("unknown.org"), "example.org/", "first"),
        (None, "example.org/", "first"),
        (None, "second-example.org/", "misdirected"),
    ] {
        assert_eq!(decide_request(&port, url, Some(name)), expected, "{name:?} {url}");
    }
}

#[test]
fn an_invalid_rule_does_not_affect_others() {
    let mut invalid = path_rule("bad", "/");
    invalid.matches[0].path = PathMatch::Regex("(".to_owned());
    let mut listener = gateway_listener("any", "", &[("", &[("good", "/")])]);
    listener.hosts[0].rules.insert(0, invalid);
    let mut invalid_patterns = Vec::new();
    let port = HttpListeners::compile(&[listener], &mut invalid_patterns);
    assert_eq!(decide_request(&port, "a.com/", None), "good");
    assert_eq!(invalid_patterns.len(), 1);
    assert!(
        invalid_patterns[0].to_string().contains("HTTPRoute shop/bad"),
        "{}",
        invalid_patterns[0]
    );
}

#[test]
fn redirects_default_to_the_scheme_and_port_of_the_listener() {
    let redirect_location = |redirect: Redirect, scheme, port| {
        let mut listener = gateway_listener("any", "", &[("", &[("a", "/")])]);
        listener.hosts[0].rules[0].actions.redirect = Some(redirect);
        let listeners = compile_listeners(vec![listener]);
        let fields: Vec<(String, String)> = Vec::new();
        let authority = "a.com:1234";
        let request =
            RequestView { method: "GET", path: "/x", query: None, authority, fields: &fields };
        let actions = listeners.listeners[0].hosts[0].rules()[0].actions.clone().unwrap();
        actions.redirection_at(&request, scheme, port).unwrap().location
    };
    let unchanged = Redirect { scheme: None, hostname: None, path: None, port: None, status: 302 };
    let with_host = Redirect { hostname: Some(Name::new("b.com").unwrap()), ..unchanged.clone() };
    let with_scheme = Redirect { scheme: Some(Scheme::Https), ..unchanged.clone() };
    let with_port = Redirect { port: Some(8083), ..unchanged.clone() };
    for (redirect, scheme, port, expected) in [
        (&unchanged, Scheme::Http, 80, "http://a.com/x"),
        (&unchanged, Scheme::Http, 8080, "http://a.com:8080/x"),
        (&unchanged, Scheme::Https, 443, "https://a.com/x"),
        (&with_host, Scheme::Http, 8080, "http://b.com:8080/x"),
        (&with_scheme, Scheme::Http, 8080, "https://a.com/x"),
        (&with_port, Scheme::Https, 443, "https://a.com:8083/x"),
    ] {
        assert_eq!(redirect_location(redirect.clone(), scheme, port), expected);
    }
}
