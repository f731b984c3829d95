//! Reader of Gateway API `GRPCRoute` `v1` attached to services.
//!
//! A gRPC call is a request for `/SERVICE/METHOD`: the method match becomes a match of this path, and the rest
//! is as in an `HTTPRoute`.

use leno_model::{
    HttpRoute, PathMatch, RequestMatch, RouteKind, RouteName, RouteRule, RuleActions,
};

use super::filter::{self, RouteFamily};
use super::http_route::{
    MATCHES_MAX, RULES_MAX, read_backends, read_headers, read_parents, warn_of_hostnames,
};
use super::{ObjectMetadata, persistence};
use crate::field::{Field, MapFields};

pub(super) fn read(head: ObjectMetadata, spec: &Field<'_>) -> Option<HttpRoute> {
    let fields = spec.read_fields(&["parentRefs", "hostnames", "rules"])?;
    warn_of_hostnames(&fields);
    let name = RouteName { namespace: head.namespace, name: head.name };
    let parents = read_parents(&fields, &name.namespace);
    let rules = read_rules(&fields, &name);
    if rules.is_empty() {
        // Unlike an HTTPRoute, it has no default rule.
        spec.warn("has no rules, so every call gets the status 404", "add a rule");
    }
    Some(HttpRoute { name, parents: parents?, rules, kind: RouteKind::Grpc, created: 0 })
}

pub(super) fn read_rules(fields: &MapFields<'_>, name: &RouteName) -> Vec<RouteRule> {
    let rules = fields.read_each("rules", RULES_MAX, |rule| read_rule(rule, name));
    persistence::refuse_shared(fields, &rules);
    rules
}

fn read_rule(rule: &Field<'_>, route: &RouteName) -> Option<RouteRule> {
    let fields =
        rule.read_fields(&["name", "matches", "filters", "backendRefs", "sessionPersistence"])?;
    let mut matches = fields.read_each("matches", MATCHES_MAX, read_match);
    if matches.is_empty() {
        matches.push(RequestMatch::default());
    }
    let mut actions = RuleActions::default();
    let (family, namespace) = (RouteFamily::Grpc, &route.namespace);
    filter::read(&fields, family, namespace, &matches, &mut actions);
    actions.persistence = persistence::read(&fields);
    let backends = read_backends(rule, &fields, family, namespace, &matches, &actions);
    Some(RouteRule {
        route: route.clone(),
        matches,
        backends,
        request_timeout: None,
        actions,
        kind: RouteKind::Grpc,
    })
}

fn read_match(element: &Field<'_>) -> Option<RequestMatch> {
    let fields = element.read_fields(&["method", "headers"])?;
    let path = match fields.find("method") {
        Some(method) => read_method(method),
        None => Some(PathMatch::Any),
    };
    let headers = read_headers(&fields);
    Some(RequestMatch { path: path?, headers, ..RequestMatch::default() })
}

/// Returns the path match for a match of service and method.
fn read_method(method: &Field<'_>) -> Option<PathMatch> {
    let fields = method.read_fields(&["type", "service", "method"])?;
    let regex = match fields.find("type") {
        Some(field) => field.read_choice(&[("Exact", false), ("RegularExpression", true)])?,
        None => false,
    };
    let (service, name) = (non_empty_field(&fields, "service"), non_empty_field(&fields, "method"));
    if service.is_none() && name.is_none() {
        method.reject("names neither a service nor a method", "add `service` or `method`");
        return None;
    }
    if regex {
        let expression = |part: Option<&Field<'_>>| match part {
            Some(field) => field.read_regex().map(|text| format!("(?:{text})")),
            None => Some(ELEMENT.to_owned()),
        };
        let path = format!("/{}/{}", expression(service)?, expression(name)?);
        return Some(PathMatch::Regex(path));
    }
    let service = service.map(|field| read_grpc_name(field, is_service, "com.example.Books"));
    let name = name.map(|field| read_grpc_name(field, is_method, "ListBooks"));
    match (service, name) {
        (Some(service), Some(name)) => Some(PathMatch::Exact(format!("/{}/{}", service?, name?))),
        (Some(service), None) => Some(PathMatch::Prefix(format!("/{}", service?))),
        // A name has no regular expression metacharacters.
        (None, name) => Some(PathMatch::Regex(format!("/{ELEMENT}/{}", name??))),
    }
}

/// Returns a field that is not empty.
fn non_empty_field<'a, 'f>(fields: &'f MapFields<'a>, key: &str) -> Option<&'f Field<'a>> {
    fields.find(key).filter(|field| field.quoted_value() != "\"\"")
}

fn read_grpc_name<'a>(field: &Field<'a>, fits: fn(&str) -> bool, example: &str) -> Option<&'a str> {
    let text = field.read_text()?;
    if !fits(text) || text.len() > NAME_BYTES_MAX {
        let problem = format!("{} is not a name in gRPC", field.quoted_value());
        field.reject(problem, format!("use a name such as {example}, of at most 1024 bytes"));
        return None;
    }
    Some(text)
}

/// True for words of letters, digits and `_` that do not begin with a digit, joined by dots; a leading dot is
/// allowed.
fn is_service(text: &str) -> bool {
    text.strip_prefix('.').unwrap_or(text).split('.').all(is_method)
}

fn is_method(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().all(word) && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// Any service, any method.
const ELEMENT: &str = "[^/]+";
const NAME_BYTES_MAX: usize = 1024;
