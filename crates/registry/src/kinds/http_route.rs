//! Reads Gateway API `HTTPRoute` `v1` and `v1beta1` attached to services. The modules of other routes use its functions for
//! parents, matches, backends and durations.
//!
//! Bounds and validation of paths and names follow the resource's schema, so that a cluster accepts every
//! document that Leno accepts.

use std::time::Duration;

use leno_model::definition::{HEADER_NAME, normalize_header_name};
use leno_model::{
    HttpRoute, Name, RequestMatch, RetryRule, RouteKind, RouteName, RouteParent, RouteRule,
    RuleActions, ServiceName, WeightedBackend,
};

use super::filter::{self, RouteFamily};
use super::other_kinds::{DefaultKind, reject_other_kinds};
use super::{ObjectMetadata, persistence};
use crate::document::NodeValue;
use crate::duration::read_duration;
use crate::field::{Field, MapFields};
use crate::schema_reader::{check_text, read_definition};

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
    let mut matches = fields.read_each("matches", MAX_MATCHES, |element| {
        read_definition::<RequestMatch>(element, &route.namespace)
    });
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

/// Returns `name` in lower case, or `:authority` for `host`. Rejects `field` if it is not the name of a header.
pub(super) fn read_header_name(field: &Field<'_>, name: &str) -> Option<String> {
    check_text(name, &HEADER_NAME, field, &format!("{name:?}")).then(|| normalize_header_name(name))
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

/// Maximum number of parents per route, as in the resource's schema.
const MAX_PARENTS: usize = 32;
/// Maximum number of rules per route, as in the resource's schema.
pub(super) const MAX_RULES: usize = 16;
/// Maximum number of matches per rule, as in the resource's schema.
pub(super) const MAX_MATCHES: usize = 64;
/// Maximum number of backends per rule, as in the resource's schema.
pub(super) const MAX_BACKENDS: usize = 16;
/// Maximum weight of a backend, as in the resource's schema.
pub(super) const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum number of retry statuses: each status from 400 to 599 once.
const MAX_RETRY_CODES: usize = 200;
/// The default number of retries, as in Envoy.
const DEFAULT_RETRIES: u8 = 1;
/// The default backoff before the first retry, as in Envoy.
const DEFAULT_RETRY_BACKOFF: Duration = Duration::from_millis(25);
