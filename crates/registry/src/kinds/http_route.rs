//! Reads Gateway API `HTTPRoute` `v1` and `v1beta1` attached to services. The modules of other routes use its functions for
//! parents, matches, backends and durations.
//!
//! Bounds and validation of paths and names follow the resource's schema, so that a cluster accepts every
//! document that Leno accepts.

use std::time::Duration;

use leno_model::{
    FieldMatch, HttpRoute, Name, PathMatch, RequestMatch, RetryRule, RouteKind, RouteName,
    RouteParent, RouteRule, RuleActions, ServiceName, ValueMatch, WeightedBackend, is_token,
};

use super::filter::{self, RouteFamily};
use super::literal_path::read_literal_path;
use super::other_kinds::{DefaultKind, reject_other_kinds};
use super::{ObjectMetadata, persistence};
use crate::document::NodeValue;
use crate::duration::read_duration;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `HTTPRoute`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<HttpRoute> {
    let fields = spec.read_fields(&["parentRefs", "hostnames", "rules"])?;
    warn_about_hostnames(&fields);
    let name = RouteName { namespace: metadata.namespace, name: metadata.name };
    let parents = read_parents(&fields, &name.namespace);
    let rules = read_rules(spec, &fields, &name);
    Some(HttpRoute { name, parents: parents?, rules, kind: RouteKind::Http, created: 0 })
}

/// Reads the rules. Without rules, it warns and returns the default rule of the schema.
pub(super) fn read_rules(
    spec: &Field<'_>,
    fields: &MapFields<'_>,
    name: &RouteName,
) -> Vec<RouteRule> {
    let mut rules = fields.read_each("rules", MAX_RULES, |rule| read_rule(rule, name));
    persistence::reject_shared_names(fields, &rules);
    if rules.is_empty() {
        // The schema's default: one rule that matches every request, without backends.
        spec.warn(
            "has no rules, so every request gets the status 500",
            "add a rule with `backendRefs`",
        );
        rules.push(RouteRule {
            route: name.clone(),
            matches: vec![RequestMatch::default()],
            backends: Vec::new(),
            request_timeout: None,
            actions: RuleActions::default(),
            kind: RouteKind::Http,
        });
    }
    rules
}

/// Warns about host names, which have no effect on routes of services in the Gateway API. They are not rejected, because
/// the route may also be attached to a gateway.
pub(super) fn warn_about_hostnames(fields: &MapFields<'_>) {
    let hostnames = fields
        .find("hostnames")
        .filter(|field| !matches!(field.value(), NodeValue::List(names) if names.is_empty()));
    if let Some(field) = hostnames {
        field.warn(
            "is ignored: a route of a service applies to all its host names",
            "remove it, unless a gateway needs it",
        );
    }
}

/// Reads the services in `parentRefs`; their namespace defaults to `namespace`, the route's.
pub(super) fn read_parents(fields: &MapFields<'_>, namespace: &Name) -> Option<Vec<RouteParent>> {
    let field = fields.require("parentRefs")?;
    let parent_fields = field.read_list(MAX_PARENTS)?;
    if parent_fields.is_empty() {
        field.reject("is empty", "name the service that the route applies to");
        return None;
    }
    let mut parents = Vec::new();
    for parent_field in &parent_fields {
        let Some(parent) = read_parent(parent_field, namespace) else {
            continue;
        };
        if parents.contains(&parent) {
            parent_field.reject("is listed twice", "remove one of the two");
        }
        parents.push(parent);
    }
    Some(parents)
}

/// Reads one of the `parentRefs`: a service, and optionally one of its ports.
fn read_parent(parent: &Field<'_>, namespace: &Name) -> Option<RouteParent> {
    let fields =
        parent.read_fields(&["group", "kind", "name", "namespace", "sectionName", "port"])?;
    reject_other_kinds(&fields, DefaultKind::Gateway);
    if fields.find("kind").is_some() && fields.find("group").is_none() {
        parent.warn(
            "has no `group`; a cluster defaults it to the group of Gateway",
            "add `group: \"\"`",
        );
    }
    fields.reject_unsupported(
        "sectionName",
        "is not supported",
        "use `port` to name one port of the service",
    );
    let service = read_service(&fields, namespace);
    let port = fields.find("port").map(Field::read_port);
    Some(RouteParent {
        service: service?,
        port: match port {
            Some(port) => Some(port?),
            None => None,
        },
    })
}

/// Reads a service reference by `name` and `namespace`; the namespace defaults to the route's.
pub(super) fn read_service(
    fields: &MapFields<'_>,
    default_namespace: &Name,
) -> Option<ServiceName> {
    let name = fields.require("name").and_then(Field::read_label);
    let namespace = match fields.find("namespace") {
        Some(field) => field.read_label(),
        None => Some(default_namespace.clone()),
    };
    Some(ServiceName { namespace: namespace?, name: name? })
}

/// Reads one of the `rules`. A rule without matches matches every request.
fn read_rule(rule: &Field<'_>, route: &RouteName) -> Option<RouteRule> {
    let fields = rule.read_fields(&[
        "name",
        "matches",
        "filters",
        "backendRefs",
        "timeouts",
        "retry",
        "sessionPersistence",
    ])?;
    let mut matches = fields.read_each("matches", MAX_MATCHES, read_match);
    if matches.is_empty() {
        matches.push(RequestMatch::default());
    }
    let mut actions = RuleActions::default();
    let (family, namespace) = (RouteFamily::Http, &route.namespace);
    filter::read(&fields, family, namespace, &matches, &mut actions);
    let (request_timeout, attempt_timeout) = read_timeouts(&fields);
    actions.attempt_timeout = attempt_timeout;
    actions.retry = fields.find("retry").and_then(read_retry);
    actions.persistence = persistence::read(&fields);
    let backends = read_backends(rule, &fields, family, namespace, &matches, &actions);
    Some(RouteRule {
        route: route.clone(),
        matches,
        backends,
        request_timeout,
        actions,
        kind: RouteKind::Http,
    })
}

/// Reads the backends. A rule without backends is a warning, unless it redirects.
pub(super) fn read_backends(
    rule: &Field<'_>,
    fields: &MapFields<'_>,
    family: RouteFamily,
    namespace: &Name,
    matches: &[RequestMatch],
    actions: &RuleActions,
) -> Vec<WeightedBackend> {
    let backends = fields.read_each("backendRefs", MAX_BACKENDS, |backend| {
        read_request_backend(backend, family, namespace, matches)
    });
    if actions.redirect.is_none() && backends.iter().all(|backend| backend.weight == 0) {
        rule.warn(
            "has no backend with a weight above 0, so its requests get the status 500",
            "add one to `backendRefs`",
        );
    }
    backends
}

/// Reads one of the `matches`: path, method, headers and query parameters, all of which a request must match.
pub(super) fn read_match(element: &Field<'_>) -> Option<RequestMatch> {
    let fields = element.read_fields(&["path", "method", "headers", "queryParams"])?;
    let path = match fields.find("path") {
        Some(path) => read_path(path),
        None => Some(PathMatch::Any),
    };
    let method = fields.find("method").map(|field| field.read_choice(METHODS));
    let headers = read_headers(&fields);
    let query = fields.read_each("queryParams", MAX_FIELD_MATCHES, read_field_match);
    reject_repeated(&fields, "queryParams", &query);
    Some(RequestMatch {
        path: path?,
        methods: method.flatten().map(str::to_owned).into_iter().collect(),
        headers,
        query,
    })
}

/// Reads the header matches.
pub(super) fn read_headers(fields: &MapFields<'_>) -> Vec<FieldMatch> {
    let headers = fields.read_each("headers", MAX_FIELD_MATCHES, |field| {
        let mut header = read_field_match(field)?;
        header.name = read_header_name(field, &header.name)?;
        Some(header)
    });
    reject_repeated(fields, "headers", &headers);
    headers
}

/// Reads a path match. The type defaults to `PathPrefix`, and the value of an exact path or prefix to `/`.
pub(super) fn read_path(path: &Field<'_>) -> Option<PathMatch> {
    read_path_with(path, read_literal_path)
}

/// Reads a path match like [`read_path`], but reads exact paths and prefixes with `read_literal`.
pub(super) fn read_path_with(
    path: &Field<'_>,
    read_literal: impl Fn(&Field<'_>) -> Option<String>,
) -> Option<PathMatch> {
    let example = vec![("type", Some("PathPrefix")), ("value", None)];
    let fields = path.read_fields_with_examples(&["type", "value"], &[example])?;
    let match_type = match fields.find("type") {
        Some(field) => field.read_choice(&[
            ("Exact", PathMatchType::Exact),
            ("PathPrefix", PathMatchType::Prefix),
            ("RegularExpression", PathMatchType::Regex),
        ])?,
        None => PathMatchType::Prefix,
    };
    let Some(value) = fields.find("value") else {
        return match match_type {
            PathMatchType::Exact => Some(PathMatch::Exact("/".to_owned())),
            PathMatchType::Prefix => Some(PathMatch::Any),
            PathMatchType::Regex => {
                fields.require("value")?;
                None
            }
        };
    };
    match match_type {
        PathMatchType::Exact => read_literal(value).map(PathMatch::Exact),
        PathMatchType::Prefix => read_literal(value).map(normalize_prefix),
        PathMatchType::Regex => value.read_regex().map(PathMatch::Regex),
    }
}

/// The type of a path match.
#[derive(Clone, Copy)]
enum PathMatchType {
    Exact,
    Prefix,
    Regex,
}

/// Normalizes a prefix: a trailing slash has no effect, and `/` matches every path.
pub(super) fn normalize_prefix(mut path: String) -> PathMatch {
    if path.ends_with('/') {
        path.pop();
    }
    match path.is_empty() {
        true => PathMatch::Any,
        false => PathMatch::Prefix(path),
    }
}

/// Reads a match of a header or query parameter.
fn read_field_match(element: &Field<'_>) -> Option<FieldMatch> {
    let fields = element.read_fields(&["type", "name", "value"])?;
    let is_regex = match fields.find("type") {
        Some(field) => field.read_choice(&[("Exact", false), ("RegularExpression", true)])?,
        None => false,
    };
    let name = fields.require("name").and_then(Field::read_text);
    let value = fields.require("value").and_then(|field| match is_regex {
        true => field.read_regex().map(ValueMatch::Regex),
        false => Some(ValueMatch::Exact(field.read_text()?.to_owned())),
    });
    let name = name?;
    if name.is_empty() || name.len() > MAX_FIELD_NAME_BYTES {
        element.reject("has an empty name or one that is too long", "use 1 to 256 bytes");
        return None;
    }
    Some(FieldMatch { name: name.to_owned(), value: value? })
}

/// Returns `name` in lower case, or `:authority` for `host`. Rejects `field` if it is not the name of a header.
pub(super) fn read_header_name(field: &Field<'_>, name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "host" | ":authority" => Some(":authority".to_owned()),
        _ if is_token(&name) => Some(name),
        _ => {
            field.reject(
                format!("{name:?} is not the name of a header"),
                "use letters, digits and `-`",
            );
            None
        }
    }
}

/// Rejects a second match for the same name: only the first match would apply.
fn reject_repeated(fields: &MapFields<'_>, key: &str, matches: &[FieldMatch]) {
    let is_repeated = |(index, field_match): (usize, &FieldMatch)| {
        let preceding_matches = matches.iter().take(index);
        preceding_matches.map(|other| &other.name).any(|name| *name == field_match.name)
    };
    if matches.iter().enumerate().any(is_repeated)
        && let Some(field) = fields.find(key)
    {
        field.reject(
            "has two entries for one name, of which only the first would apply",
            "remove one of the two",
        );
    }
}

/// Reads a backend that receives connections. It has no filters.
pub(super) fn read_backend(element: &Field<'_>, namespace: &Name) -> Option<WeightedBackend> {
    let fields = element.read_fields(&["group", "kind", "name", "namespace", "port", "weight"])?;
    read_weighted_backend(&fields, namespace)
}

/// Reads a backend that receives requests, with its filters.
fn read_request_backend(
    element: &Field<'_>,
    family: RouteFamily,
    namespace: &Name,
    matches: &[RequestMatch],
) -> Option<WeightedBackend> {
    let fields = element.read_fields(&[
        "group",
        "kind",
        "name",
        "namespace",
        "port",
        "weight",
        "filters",
    ])?;
    let edits = filter::read_backend_filters(&fields, family, matches);
    Some(WeightedBackend { edits, ..read_weighted_backend(&fields, namespace)? })
}

/// Reads the service, the port and the weight of a backend; the weight defaults to 1.
fn read_weighted_backend(fields: &MapFields<'_>, namespace: &Name) -> Option<WeightedBackend> {
    reject_other_kinds(fields, DefaultKind::Service);
    let service = read_service(fields, namespace);
    let port = fields.require("port").and_then(Field::read_port);
    let weight = match fields.find("weight") {
        Some(field) => field.read_number(0, MAX_WEIGHT),
        None => Some(1),
    };
    Some(WeightedBackend::new(service?, port?, weight?))
}

/// Reads the timeouts of the whole request and of one attempt; `None` if there is no limit.
fn read_timeouts(rule: &MapFields<'_>) -> (Option<Duration>, Option<Duration>) {
    let Some(fields) =
        rule.find("timeouts").and_then(|field| field.read_fields(&["request", "backendRequest"]))
    else {
        return (None, None);
    };
    // In the schema, zero means "no limit".
    let read_timeout = |key: &str| {
        let timeout = fields.find(key).and_then(read_duration);
        timeout.filter(|timeout| !timeout.is_zero())
    };
    let (request_timeout, attempt_timeout) =
        (read_timeout("request"), read_timeout("backendRequest"));
    if let (Some(request_limit), Some(attempt_limit), Some(field)) =
        (request_timeout, attempt_timeout, fields.find("backendRequest"))
        && attempt_limit > request_limit
    {
        field.reject(
            format!("{} is longer than `request`, which includes it", field.quoted_value()),
            "lower it, or raise `request`",
        );
    }
    (request_timeout, attempt_timeout)
}

/// Reads the field `retry` of a rule. The Gateway API calls the maximum number of retries `attempts`; the first attempt is
/// not counted.
fn read_retry(field: &Field<'_>) -> Option<RetryRule> {
    let fields = field.read_fields(&["codes", "attempts", "backoff"])?;
    let mut codes = fields.read_each("codes", MAX_RETRY_CODES, |code| {
        let (min, max) = (*RetryRule::CODES.start(), *RetryRule::CODES.end());
        u16::try_from(code.read_number(min.into(), max.into())?).ok()
    });
    let code_count = codes.len();
    codes.sort_unstable();
    codes.dedup();
    if codes.len() < code_count
        && let Some(field) = fields.find("codes")
    {
        field.reject("names a status twice", "remove one of the two");
    }
    let max_retries = match fields.find("attempts") {
        Some(field) => read_max_retries(field)?,
        None => DEFAULT_RETRIES,
    };
    let backoff = match fields.find("backoff") {
        Some(field) => read_duration(field)?,
        None => DEFAULT_RETRY_BACKOFF,
    };
    Some(RetryRule { codes, attempts: max_retries, backoff })
}

/// Reads the maximum number of retries. The Gateway API has no upper bound: a number above [`RetryRule::MAX_ATTEMPTS`] is
/// replaced by that bound, with a warning.
fn read_max_retries(field: &Field<'_>) -> Option<u8> {
    let number = field.read_number(0, i32::MAX.unsigned_abs())?;
    let upper_bound = RetryRule::MAX_ATTEMPTS;
    let accepted_number = u8::try_from(number).ok().filter(|number| *number <= upper_bound);
    if accepted_number.is_none() {
        let problem = format!("{number} exceeds the limit of {upper_bound}");
        field.warn(problem, format!("use at most {upper_bound}"));
    }
    Some(accepted_number.unwrap_or(upper_bound))
}

/// The methods of the resource's schema.
const METHODS: &[(&str, &str)] = &[
    ("GET", "GET"),
    ("HEAD", "HEAD"),
    ("POST", "POST"),
    ("PUT", "PUT"),
    ("DELETE", "DELETE"),
    ("CONNECT", "CONNECT"),
    ("OPTIONS", "OPTIONS"),
    ("TRACE", "TRACE"),
    ("PATCH", "PATCH"),
];
/// Maximum number of parents per route, as in the resource's schema.
const MAX_PARENTS: usize = 32;
/// Maximum number of rules per route, as in the resource's schema.
pub(super) const MAX_RULES: usize = 16;
/// Maximum number of matches per rule, as in the resource's schema.
pub(super) const MAX_MATCHES: usize = 64;
/// Maximum number of backends per rule, as in the resource's schema.
pub(super) const MAX_BACKENDS: usize = 16;
/// Maximum number of headers or query parameters per match, as in the resource's schema.
const MAX_FIELD_MATCHES: usize = 16;
/// Maximum length of a header or query parameter name, as in the resource's schema.
const MAX_FIELD_NAME_BYTES: usize = 256;
/// Maximum weight of a backend, as in the resource's schema.
pub(super) const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum number of retry statuses: each status from 400 to 599 once.
const MAX_RETRY_CODES: usize = 200;
/// The default number of retries, as in Envoy.
pub(super) const DEFAULT_RETRIES: u8 = 1;
/// The default backoff before the first retry, as in Envoy.
pub(super) const DEFAULT_RETRY_BACKOFF: Duration = Duration::from_millis(25);
