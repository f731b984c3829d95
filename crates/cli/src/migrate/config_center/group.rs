//! Parses `servicecomb.matchGroup` items of Sermant's configuration center: each selects the requests of a
//! scenario.

use leno_registry::outline_document;
use serde_json::{Map, Value, json};

/// The requests to which the rules of a scenario apply, and the services that enforce these rules.
#[derive(Debug, Default)]
pub(super) struct MatchGroup {
    /// The services that enforce the rule; all if empty.
    pub(super) services: Vec<String>,
    /// The service that a client calls, if clients enforce the rule.
    pub(super) callee: Option<String>,
    /// Alternative matches in native form; all requests if empty.
    pub(super) matches: Vec<Value>,
}

/// The fields of a YAML map: the path and the value of each scalar, as in `("headers.user.exact", "ann")`.
type Fields = [(String, String)];

/// Parses a group, or returns the unsupported field with the reason.
pub(super) fn parse_group(content: &str) -> Result<MatchGroup, String> {
    let group_fields = outline_document(content).ok_or("not YAML, or empty")?;
    let mut group = MatchGroup::default();
    for (path, value) in group_fields.iter().filter(|(path, _)| path.starts_with("services")) {
        for service in value.split(',').map(str::trim).filter(|service| !service.is_empty()) {
            if service.contains(':') {
                return Err(format!(
                    "{path}: {service:?} selects a version, but policies apply to all versions"
                ));
            }
            group.services.push(service.to_owned());
        }
    }
    for index in 0.. {
        let prefix = format!("matches[{index}].");
        let match_fields: Vec<(String, String)> = group_fields
            .iter()
            .filter_map(|(path, value)| {
                Some((path.strip_prefix(&prefix)?.to_owned(), value.clone()))
            })
            .collect();
        if match_fields.is_empty() {
            break;
        }
        let callee = find_value(&match_fields, "serviceName").map(str::to_owned);
        if index > 0 && callee != group.callee {
            return Err(format!("{prefix}serviceName: differs from that of the previous match"));
        }
        group.callee = callee;
        let request_matches =
            build_request_matches(&match_fields).map_err(|reason| format!("{prefix}{reason}"))?;
        group.matches.extend(request_matches);
    }
    // A match without conditions selects all requests, so the other matches are redundant.
    if group.matches.iter().any(|native| native.as_object().is_some_and(Map::is_empty)) {
        group.matches.clear();
    }
    Ok(group)
}

/// Converts the fields of one match to native matches: one per method, because a native match has at most one
/// method, or a single one if the match has no methods.
fn build_request_matches(fields: &Fields) -> Result<Vec<Value>, String> {
    let mut request_match = Map::new();
    let mut headers = Vec::new();
    let mut methods = Vec::new();
    for (path, value) in fields {
        if matches!(path.as_str(), "name" | "serviceName") {
            continue;
        }
        if let Some(operator) = path.strip_prefix("apiPath.") {
            let (match_type, value) =
                convert_operator(operator, value).map_err(|reason| format!("{path}: {reason}"))?;
            let previous = request_match
                .insert("path".to_owned(), json!({"type": match_type, "value": value}));
            if previous.is_some() {
                return Err("apiPath has several operators; use only one".to_owned());
            }
        } else if let Some(header) = path.strip_prefix("headers.") {
            let (name, operator) =
                header.rsplit_once('.').ok_or_else(|| format!("{path}: no operator"))?;
            let (match_type, value) =
                convert_operator(operator, value).map_err(|reason| format!("{path}: {reason}"))?;
            headers.push(json!({"name": name, "type": match_type, "value": value}));
        } else if path.starts_with("method") {
            methods.push(value.as_str());
        } else {
            return Err(format!("{path}: unknown field"));
        }
    }
    if !headers.is_empty() {
        request_match.insert("headers".to_owned(), headers.into());
    }
    if methods.is_empty() {
        return Ok(vec![Value::Object(request_match)]);
    }
    let matches = methods.into_iter().map(|method| {
        let mut request_match = request_match.clone();
        request_match.insert("method".to_owned(), json!(method));
        Value::Object(request_match)
    });
    Ok(matches.collect())
}

/// Converts a condition to the native match type and value. The native `PathPrefix` compares whole path elements,
/// but Sermant's `prefix` compares characters, so substring operators become regular expressions.
fn convert_operator(operator: &str, value: &str) -> Result<(&'static str, String), String> {
    let escaped_value = regex::escape(value);
    let pattern = match operator {
        "exact" => return Ok(("Exact", value.to_owned())),
        "prefix" => format!("{escaped_value}.*"),
        "suffix" => format!(".*{escaped_value}"),
        "contains" => format!(".*{escaped_value}.*"),
        _ => return Err(format!("{operator} has no native equivalent")),
    };
    Ok(("RegularExpression", pattern))
}

/// Returns the value of the field with this path; `None` without such a field.
pub(super) fn find_value<'a>(fields: &'a Fields, path: &str) -> Option<&'a str> {
    fields.iter().find(|(field_path, _)| field_path == path).map(|(_, value)| value.as_str())
}
