//! The requests of a scene: `servicecomb.matchGroup`.

use leno_registry::outline_document;
use serde_json::{Map, Value, json};

/// Matched requests, and the services that match them.
#[derive(Debug, Default)]
pub(super) struct MatchGroup {
    /// The services that enforce the rule; all if empty.
    pub(super) services: Vec<String>,
    /// The service that a client calls, if clients enforce the rule.
    pub(super) callee: Option<String>,
    /// Alternative matches in native form; all requests if empty.
    pub(super) matches: Vec<Value>,
}

/// Flattened values with their paths.
type Values = [(String, String)];

/// Parses a group, or returns the unsupported field and the reason.
pub(super) fn read(content: &str) -> Result<MatchGroup, String> {
    let values = outline_document(content).ok_or("not YAML, or empty")?;
    let mut group = MatchGroup::default();
    for (path, value) in values.iter().filter(|(path, _)| path.starts_with("services")) {
        for service in value.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            if service.contains(':') {
                return Err(format!(
                    "{path}: {service:?} selects a version: policies apply to all versions"
                ));
            }
            group.services.push(service.to_owned());
        }
    }
    for index in 0.. {
        let place = format!("matches[{index}].");
        let below = values.iter().filter_map(|(path, value)| {
            Some((path.strip_prefix(&place)?.to_owned(), value.clone()))
        });
        let below: Vec<(String, String)> = below.collect();
        if below.is_empty() {
            break;
        }
        let callee = find_value(&below, "serviceName").map(str::to_owned);
        if index > 0 && callee != group.callee {
            return Err(format!("{place}serviceName: differs from that of the previous match"));
        }
        group.callee = callee;
        let requests = request_matches(&below).map_err(|why| format!("{place}{why}"))?;
        group.matches.extend(requests);
    }
    // A match for all requests makes the others redundant.
    if group.matches.iter().any(|it| it.as_object().is_some_and(Map::is_empty)) {
        group.matches.clear();
    }
    Ok(group)
}

/// Returns one match per method.
fn request_matches(below: &Values) -> Result<Vec<Value>, String> {
    let mut terms = Map::new();
    let mut headers = Vec::new();
    let mut methods = Vec::new();
    for (path, value) in below {
        if matches!(path.as_str(), "name" | "serviceName") {
            continue;
        }
        if let Some(operator) = path.strip_prefix("apiPath.") {
            let (kind, value) =
                convert_operator(operator, value).map_err(|why| format!("{path}: {why}"))?;
            let twice = terms.insert("path".to_owned(), json!({"type": kind, "value": value}));
            if twice.is_some() {
                return Err("apiPath: several operators: use one expression".to_owned());
            }
        } else if let Some(rest) = path.strip_prefix("headers.") {
            let (name, operator) =
                rest.rsplit_once('.').ok_or_else(|| format!("{path}: no operator"))?;
            let (kind, value) =
                convert_operator(operator, value).map_err(|why| format!("{path}: {why}"))?;
            headers.push(json!({"name": name, "type": kind, "value": value}));
        } else if path.starts_with("method") {
            methods.push(value.as_str());
        } else {
            return Err(format!("{path}: unknown field"));
        }
    }
    if !headers.is_empty() {
        terms.insert("headers".to_owned(), headers.into());
    }
    if methods.is_empty() {
        return Ok(vec![Value::Object(terms)]);
    }
    let with = methods.into_iter().map(|method| {
        let mut terms = terms.clone();
        terms.insert("method".to_owned(), json!(method));
        Value::Object(terms)
    });
    Ok(with.collect())
}

/// Returns the native operator and value: substring operators compare characters, not path elements.
fn convert_operator(operator: &str, value: &str) -> Result<(&'static str, String), String> {
    let plain = regex::escape(value);
    let pattern = match operator {
        "exact" => return Ok(("Exact", value.to_owned())),
        "prefix" => format!("{plain}.*"),
        "suffix" => format!(".*{plain}"),
        "contains" => format!(".*{plain}.*"),
        _ => return Err(format!("{operator} has no native equivalent")),
    };
    Ok(("RegularExpression", pattern))
}

/// Returns the value at a path.
pub(super) fn find_value<'a>(values: &'a Values, path: &str) -> Option<&'a str> {
    values.iter().find(|(known, _)| known == path).map(|(_, value)| value.as_str())
}
