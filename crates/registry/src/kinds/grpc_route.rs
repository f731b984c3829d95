//! Reads Gateway API `GRPCRoute` `v1` attached to services.
//!
//! A gRPC call is a request for the path `/SERVICE/METHOD`, so a method match becomes a path match. All other
//! fields are as in an `HTTPRoute`.

use leno_model::{
    HeaderMatches, HttpRoute, Name, PathMatch, RequestMatch, RouteKind, RouteName, RouteRule,
    RuleActions,
};

use super::filter::{self, RouteFamily};
use super::http_route::{
    MAX_MATCHES, MAX_RULES, read_backends, read_parents, warn_about_hostnames,
};
use super::{ObjectMetadata, persistence};
use crate::field::{Field, MapFields};
use crate::schema_reader::read_included;

/// Reads the `spec` of a `GRPCRoute`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<HttpRoute> {
    let fields = spec.read_fields(&["parentRefs", "hostnames", "rules"])?;
    warn_about_hostnames(&fields);
    let name = RouteName { namespace: metadata.namespace, name: metadata.name };
    let parents = read_parents(&fields, &name.namespace);
    let rules = read_rules(&fields, &name);
    if rules.is_empty() {
        // Unlike an HTTPRoute, a GRPCRoute has no default rule.
        spec.warn("has no rules, so every call gets the status 404", "add a rule");
    }
    Some(HttpRoute { name, parents: parents?, rules, kind: RouteKind::Grpc, created: 0 })
}

/// Reads the rules; empty if the field is absent.
pub(super) fn read_rules(fields: &MapFields<'_>, name: &RouteName) -> Vec<RouteRule> {
    let rules = fields.read_each("rules", MAX_RULES, |rule| read_rule(rule, name));
    persistence::reject_shared_names(fields, &rules);
    rules
}

/// Reads one of the `rules`. A rule without matches matches every call.
fn read_rule(rule: &Field<'_>, route: &RouteName) -> Option<RouteRule> {
    let fields =
        rule.read_fields(&["name", "matches", "filters", "backendRefs", "sessionPersistence"])?;
    let mut matches =
        fields.read_each("matches", MAX_MATCHES, |element| read_match(element, &route.namespace));
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
        // Unlike an HTTPRoute, a GRPCRoute has no field for timeouts.
        request_timeout: None,
        actions,
        kind: RouteKind::Grpc,
    })
}

/// Reads one of the `matches`: method and headers, both of which a call must match.
fn read_match(element: &Field<'_>, namespace: &Name) -> Option<RequestMatch> {
    let fields = element.read_fields(&["method", "headers"])?;
    let path = match fields.find("method") {
        Some(method) => read_method(method),
        None => Some(PathMatch::Any),
    };
    let HeaderMatches(headers) = read_included(&fields, namespace)?;
    Some(RequestMatch { path: path?, headers, ..RequestMatch::default() })
}

/// Reads a match of service and method, and returns the path match for it.
fn read_method(method: &Field<'_>) -> Option<PathMatch> {
    let fields = method.read_fields(&["type", "service", "method"])?;
    let is_regex = match fields.find("type") {
        Some(field) => field.read_choice(&[("Exact", false), ("RegularExpression", true)])?,
        None => false,
    };
    let (service_field, method_field) =
        (non_empty_field(&fields, "service"), non_empty_field(&fields, "method"));
    if service_field.is_none() && method_field.is_none() {
        method.reject("names neither a service nor a method", "add `service` or `method`");
        return None;
    }
    if is_regex {
        let read_segment_regex = |segment: Option<&Field<'_>>| match segment {
            Some(field) => field.read_regex().map(|text| format!("(?:{text})")),
            None => Some(ANY_SEGMENT.to_owned()),
        };
        let path = format!(
            "/{}/{}",
            read_segment_regex(service_field)?,
            read_segment_regex(method_field)?
        );
        return Some(PathMatch::Regex(path));
    }
    let service =
        service_field.map(|field| read_grpc_name(field, is_service_name, "com.example.Books"));
    let method_name = method_field.map(|field| read_grpc_name(field, is_method_name, "ListBooks"));
    match (service, method_name) {
        (Some(service), Some(method_name)) => {
            Some(PathMatch::Exact(format!("/{}/{}", service?, method_name?)))
        }
        (Some(service), None) => Some(PathMatch::Prefix(format!("/{}", service?))),
        // A name has no regular expression metacharacters.
        (None, method_name) => Some(PathMatch::Regex(format!("/{ANY_SEGMENT}/{}", method_name??))),
    }
}

/// Returns a field; `None` if it is absent or an empty text.
fn non_empty_field<'a, 'f>(fields: &'f MapFields<'a>, key: &str) -> Option<&'f Field<'a>> {
    fields.find(key).filter(|field| field.quoted_value() != "\"\"")
}

/// Reads the name of a gRPC service or method, of which `example` is an example.
fn read_grpc_name<'a>(
    field: &Field<'a>,
    is_valid: fn(&str) -> bool,
    example: &str,
) -> Option<&'a str> {
    let text = field.read_text()?;
    if !is_valid(text) || text.len() > MAX_GRPC_NAME_BYTES {
        let problem = format!("{} is not a name in gRPC", field.quoted_value());
        field.reject(problem, format!("use a name such as {example}, of at most 1024 bytes"));
        return None;
    }
    Some(text)
}

/// True for the name of a gRPC service: method names joined by dots, with an optional leading dot.
fn is_service_name(text: &str) -> bool {
    text.strip_prefix('.').unwrap_or(text).split('.').all(is_method_name)
}

/// True for the name of a gRPC method: letters, digits and `_`, not beginning with a digit.
fn is_method_name(text: &str) -> bool {
    let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().all(is_name_byte) && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// The expression for any service or any method.
const ANY_SEGMENT: &str = "[^/]+";
/// Maximum length of a service or method name.
const MAX_GRPC_NAME_BYTES: usize = 1024;
