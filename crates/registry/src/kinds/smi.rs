//! Reader of SMI: `TrafficTarget` v1alpha3, `HTTPRouteGroup` and `TCPRoute` v1alpha4.

use leno_model::{
    FieldMatch, HttpRouteGroup, Name, NamedMatch, PathMatch, PolicyName, PortSet, RequestMatch,
    RouteGroupName, ServiceAccount, TargetRule, TcpRoute, TcpRouteName, TrafficTarget, ValueMatch,
};

use super::ObjectMetadata;
use super::http_route::header_name;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

pub(super) fn traffic_target(head: ObjectMetadata, spec: &Field<'_>) -> Option<TrafficTarget> {
    let fields = spec.read_fields(&["destination", "sources", "rules"])?;
    let name = PolicyName { namespace: head.namespace, name: head.name };
    let destination =
        fields.require("destination").and_then(|field| read_destination(field, &name.namespace));
    if let Some(field) = fields.require("sources") {
        warn_if_empty(field, "no client is allowed");
    }
    let sources = fields.read_each("sources", LIST_MAX, read_account);
    if let Some(field) = fields.require("rules") {
        warn_if_empty(field, "no request is allowed");
    }
    let rules = fields.read_each("rules", LIST_MAX, |rule| read_rule(rule, &name.namespace));
    Some(TrafficTarget { name, destination: destination?, sources, rules })
}

fn read_destination(field: &Field<'_>, own: &Name) -> Option<ServiceAccount> {
    let account = read_account(field)?;
    if account.namespace != *own {
        field.reject(
            format!(
                "The traffic target namespace ({own}) must match spec.Destination.Namespace ({})",
                account.namespace
            ),
            "put the TrafficTarget into the namespace of its destination",
        );
        return None;
    }
    Some(account)
}

pub(super) fn read_account(field: &Field<'_>) -> Option<ServiceAccount> {
    let fields = field.read_fields(&["kind", "name", "namespace"])?;
    let kind = fields.require("kind").and_then(|kind| kind.read_choice(&[("ServiceAccount", ())]));
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace").and_then(Field::read_label);
    kind?;
    Some(ServiceAccount { namespace: namespace?, name: name? })
}

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
    let http = kind.read_choice(&[("HTTPRouteGroup", true), ("TCPRoute", false)])?;
    let namespace = namespace.clone();
    if !http {
        fields.reject_unsupported(
            "matches",
            "is not supported for a TCPRoute, which allows all ports",
            "remove it",
        );
        let route = TcpRouteName { namespace, name: name? };
        return Some(TargetRule::Tcp { route });
    }
    let matches =
        fields.read_each("matches", LIST_MAX, |field| Some(field.read_text()?.to_owned()));
    if matches.is_empty() {
        rule.warn(
            "has no `matches`, and allows no request",
            "list the names of the group's matches that are allowed",
        );
    }
    let group = RouteGroupName { namespace, name: name? };
    Some(TargetRule::Http { group, matches })
}

fn warn_if_empty(field: &Field<'_>, consequence: &str) {
    if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
        field.warn(format!("is empty, so {consequence}"), "add an element");
    }
}

pub(super) fn http_route_group(head: ObjectMetadata, spec: &Field<'_>) -> Option<HttpRouteGroup> {
    let fields = spec.read_fields(&["matches"])?;
    let mut matches: Vec<NamedMatch> = Vec::new();
    for element in fields.require("matches")?.read_list(LIST_MAX)? {
        let Some(named) = read_match(&element) else {
            continue;
        };
        if matches.iter().any(|known| known.name == named.name) {
            element.reject(
                format!("the name {:?} is used by another match", named.name),
                "use another name",
            );
        }
        matches.push(named);
    }
    Some(HttpRouteGroup {
        name: RouteGroupName { namespace: head.namespace, name: head.name },
        matches,
    })
}

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

/// Reads methods; an empty list, or `*` in it, means all methods.
pub(super) fn read_methods(fields: &MapFields<'_>) -> Vec<String> {
    let mut methods: Vec<String> = Vec::new();
    let mut any = false;
    for method in fields.read_each("methods", LIST_MAX, |field| field.read_choice(METHODS)) {
        any |= method == "*";
        if !methods.iter().any(|known| known == method) {
            methods.push(method.to_owned());
        }
    }
    if any {
        methods.clear();
    }
    methods
}

/// Reads a list of maps with one entry each, or one map; all entries must match.
fn read_headers(field: &Field<'_>) -> Vec<FieldMatch> {
    let maps = match field.value() {
        NodeValue::List(_) => field.read_list(LIST_MAX).unwrap_or_default(),
        _ => vec![field.clone()],
    };
    let mut headers: Vec<FieldMatch> = Vec::new();
    for (name, value) in maps.iter().filter_map(Field::read_entries).flatten() {
        let regex = value.read_regex();
        let (Some(name), Some(regex)) = (header_name(&value, name), regex) else {
            continue;
        };
        if headers.iter().any(|known| known.name == name) {
            value.reject(format!("{name} is defined twice"), "combine the two into one expression");
        }
        headers.push(FieldMatch { name, value: ValueMatch::Regex(regex) });
    }
    headers
}

pub(super) fn tcp_route(head: ObjectMetadata, spec: &Field<'_>) -> Option<TcpRoute> {
    let fields = spec.read_fields(&["matches"])?;
    let matches = fields.require("matches")?.read_fields(&["ports"])?;
    let ports = match matches.find("ports") {
        None => PortSet::All,
        Some(field) => {
            if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
                field.reject(
                    "is empty, which is ambiguous",
                    "list the allowed ports, or leave `ports` out to allow all",
                );
                return None;
            }
            PortSet::Only(field.read_each(LIST_MAX, Field::read_port))
        }
    };
    Some(TcpRoute { name: TcpRouteName { namespace: head.namespace, name: head.name }, ports })
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
/// Limit of sources, rules, matches, headers or ports per object.
const LIST_MAX: usize = 1024;
