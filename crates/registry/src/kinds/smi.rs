//! Reads the SMI kinds `TrafficTarget` (v1alpha3), `HTTPRouteGroup` and `TCPRoute` (v1alpha4).

use leno_model::{
    FieldMatch, HttpRouteGroup, Name, NamedMatch, PathMatch, PolicyName, PortSet, RequestMatch,
    RouteGroupName, ServiceAccount, TargetRule, TcpRoute, TcpRouteName, TrafficTarget, ValueMatch,
};

use super::ObjectMetadata;
use super::http_route::read_header_name;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads a `TrafficTarget`.
pub(super) fn read_traffic_target(
    metadata: ObjectMetadata,
    spec: &Field<'_>,
) -> Option<TrafficTarget> {
    let fields = spec.read_fields(&["destination", "sources", "rules"])?;
    let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
    let destination =
        fields.require("destination").and_then(|field| read_destination(field, &name.namespace));
    if let Some(field) = fields.require("sources") {
        warn_if_empty(field, "no client is allowed");
    }
    let sources = fields.read_each("sources", MAX_LIST, read_account);
    if let Some(field) = fields.require("rules") {
        warn_if_empty(field, "no request is allowed");
    }
    let rules = fields.read_each("rules", MAX_LIST, |rule| read_rule(rule, &name.namespace));
    Some(TrafficTarget { name, destination: destination?, sources, rules })
}

/// Reads the account of the called workloads; it must be in the namespace of the `TrafficTarget`, `own_namespace`.
fn read_destination(field: &Field<'_>, own_namespace: &Name) -> Option<ServiceAccount> {
    let account = read_account(field)?;
    if account.namespace != *own_namespace {
        field.reject(
            format!(
                "The traffic target namespace ({own_namespace}) must match spec.Destination.Namespace ({})",
                account.namespace
            ),
            "put the TrafficTarget into the namespace of its destination",
        );
        return None;
    }
    Some(account)
}

/// Reads a reference to a ServiceAccount.
pub(super) fn read_account(field: &Field<'_>) -> Option<ServiceAccount> {
    let fields = field.read_fields(&["kind", "name", "namespace"])?;
    let kind = fields.require("kind").and_then(|kind| kind.read_choice(&[("ServiceAccount", ())]));
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace").and_then(Field::read_label);
    kind?;
    Some(ServiceAccount { namespace: namespace?, name: name? })
}

/// Reads one of the `rules`: a reference to matches of an `HTTPRouteGroup`, or to a `TCPRoute`, in the same
/// namespace.
fn read_rule(rule: &Field<'_>, namespace: &Name) -> Option<TargetRule> {
    let fields = rule.read_fields(&["kind", "name", "matches"])?;
    let name = fields.require("name").and_then(Field::read_name);
    let kind = fields.require("kind")?;
    if matches!(kind.value(), NodeValue::Text(text) if text == "UDPRoute") {
        kind.reject(
            "\"UDPRoute\" is not supported: the mesh carries no UDP",
            "remove the rule, or use `HTTPRouteGroup` or `TCPRoute`",
        );
        return None;
    }
    let is_http = kind.read_choice(&[("HTTPRouteGroup", true), ("TCPRoute", false)])?;
    let namespace = namespace.clone();
    if !is_http {
        fields.reject_unsupported(
            "matches",
            "is not supported for a TCPRoute, which allows all ports",
            "remove it",
        );
        let route = TcpRouteName { namespace, name: name? };
        return Some(TargetRule::Tcp { route });
    }
    let matches =
        fields.read_each("matches", MAX_LIST, |field| Some(field.read_text()?.to_owned()));
    if matches.is_empty() {
        rule.warn(
            "has no `matches`, and allows no request",
            "list the names of the group's matches that are allowed",
        );
    }
    let group = RouteGroupName { namespace, name: name? };
    Some(TargetRule::Http { group, matches })
}

/// Warns about an empty list and its consequence.
fn warn_if_empty(field: &Field<'_>, consequence: &str) {
    if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
        field.warn(format!("is empty, so {consequence}"), "add an element");
    }
}

/// Reads an `HTTPRouteGroup`.
pub(super) fn read_http_route_group(
    metadata: ObjectMetadata,
    spec: &Field<'_>,
) -> Option<HttpRouteGroup> {
    let fields = spec.read_fields(&["matches"])?;
    let mut matches: Vec<NamedMatch> = Vec::new();
    for element in fields.require("matches")?.read_list(MAX_LIST)? {
        let Some(named_match) = read_match(&element) else {
            continue;
        };
        if matches.iter().any(|existing| existing.name == named_match.name) {
            element.reject(
                format!("the name {:?} is used by another match", named_match.name),
                "use another name",
            );
        }
        matches.push(named_match);
    }
    Some(HttpRouteGroup {
        name: RouteGroupName { namespace: metadata.namespace, name: metadata.name },
        matches,
    })
}

/// Reads one of the `matches` of an `HTTPRouteGroup`: a name, and conditions on path, method and headers.
fn read_match(element: &Field<'_>) -> Option<NamedMatch> {
    let fields = element.read_fields(&["name", "pathRegex", "methods", "headers"])?;
    let name = fields.require("name").and_then(Field::read_text);
    let path = match fields.find("pathRegex") {
        Some(field) => field.read_regex().map(|regex| match regex.as_str() {
            "" | ".*" => PathMatch::Any,
            _ => PathMatch::Regex(regex),
        }),
        None => Some(PathMatch::Any),
    };
    let methods = read_methods(&fields);
    let headers = fields.find("headers").map(read_headers).unwrap_or_default();
    Some(NamedMatch {
        name: name?.to_owned(),
        request: RequestMatch { path: path?, methods, headers, query: Vec::new() },
    })
}

/// Reads methods. An empty list, or one with `*`, means all methods; the result is empty then.
fn read_methods(fields: &MapFields<'_>) -> Vec<String> {
    let mut methods: Vec<String> = Vec::new();
    let mut allows_any_method = false;
    for method in fields.read_each("methods", MAX_LIST, |field| field.read_choice(METHODS)) {
        allows_any_method |= method == "*";
        if !methods.iter().any(|existing| existing == method) {
            methods.push(method.to_owned());
        }
    }
    if allows_any_method {
        methods.clear();
    }
    methods
}

/// Reads a list of maps with one entry each, or one map; all entries must match.
fn read_headers(field: &Field<'_>) -> Vec<FieldMatch> {
    let maps = match field.value() {
        NodeValue::List(_) => field.read_list(MAX_LIST).unwrap_or_default(),
        _ => vec![field.clone()],
    };
    let mut headers: Vec<FieldMatch> = Vec::new();
    for (name, value) in maps.iter().filter_map(Field::read_entries).flatten() {
        let regex = value.read_regex();
        let (Some(name), Some(regex)) = (read_header_name(&value, name), regex) else {
            continue;
        };
        if headers.iter().any(|existing| existing.name == name) {
            value.reject(format!("{name} is defined twice"), "combine the two into one expression");
        }
        headers.push(FieldMatch { name, value: ValueMatch::Regex(regex) });
    }
    headers
}

/// Reads a `TCPRoute` of SMI.
pub(super) fn read_tcp_route(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<TcpRoute> {
    let fields = spec.read_fields(&["matches"])?;
    let match_fields = fields.require("matches")?.read_fields(&["ports"])?;
    let ports = match match_fields.find("ports") {
        None => PortSet::All,
        Some(field) => {
            if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
                field.reject(
                    "is empty, which is ambiguous",
                    "list the allowed ports, or leave `ports` out to allow all",
                );
                return None;
            }
            PortSet::Only(field.read_each(MAX_LIST, Field::read_port))
        }
    };
    Some(TcpRoute {
        name: TcpRouteName { namespace: metadata.namespace, name: metadata.name },
        ports,
    })
}

/// The methods of the SMI schema.
const METHODS: &[(&str, &str)] = &[
    ("*", "*"),
    ("GET", "GET"),
    ("HEAD", "HEAD"),
    ("PUT", "PUT"),
    ("POST", "POST"),
    ("DELETE", "DELETE"),
    ("CONNECT", "CONNECT"),
    ("OPTIONS", "OPTIONS"),
    ("TRACE", "TRACE"),
    ("PATCH", "PATCH"),
];
/// Maximum number of elements in a list: sources, rules, matches, methods, headers or ports.
const MAX_LIST: usize = 1024;
