//! Parser of `servicecomb.matchGroup`, an item of a configuration center that selects the requests of a scenario.

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

/// Flattened values with their paths.
type Values = [(String, String)];

/// Parses a group, or returns the unsupported field with the reason.
pub(super) fn parse_group(content: &str) -> Result<MatchGroup, String> {
    let values = outline_document(content).ok_or("not YAML, or empty")?;
    let mut group = MatchGroup::default();
    for (path, value) in values.iter().filter(|(path, _)| path.starts_with("services")) {
        for service in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if service.contains(':') {
                return Err(format!(
                    "{path}: {service:?} selects a version: policies apply to all versions"
                ));
            }
            group.services.push(service.to_owned());
        }
    }
    for index in 0.. {
        let prefix = format!("matches[{index}].");
        let fields = values.iter().filter_map(|(path, value)| {
            Some((path.strip_prefix(&prefix)?.to_owned(), value.clone()))
        });
        let fields: Vec<(String, String)> = fields.collect();
        if fields.is_empty() {
            break;
        }
        let callee = find_value(&fields, "serviceName").map(str::to_owned);
        if index > 0 && callee != group.callee {
            return Err(format!("{prefix}serviceName: differs from that of the previous match"));
        }
        group.callee = callee;
        let requests =
            build_request_matches(&fields).map_err(|reason| format!("{prefix}{reason}"))?;
        group.matches.extend(requests);
    }
    // A match for all requests makes the others redundant.
    if group.matches.iter().any(|condition| condition.as_object().is_some_and(Map::is_empty)) {
        group.matches.clear();
    }
    Ok(group)
}

/// Builds one native match per method.
fn build_request_matches(fields: &Values) -> Result<Vec<Value>, String> {
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
                return Err("apiPath: several operators: use one expression".to_owned());
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

/// Returns the native operator and value: substring operators compare characters, not path elements.
fn convert_operator(operator: &str, value: &str) -> Result<(&'static str, String), String> {
    let literal = regex::escape(value);
    let pattern = match operator {
        "exact" => return Ok(("Exact", value.to_owned())),
        "prefix" => format!("{literal}.*"),
        "suffix" => format!(".*{literal}"),
        "contains" => format!(".*{literal}.*"),
        _ => return Err(format!("{operator} has no native equivalent")),
    };
    Ok(("RegularExpression", pattern))
}

/// Returns the value at a path; `None` if there is no such path.
pub(super) fn find_value<'a>(values: &'a Values, path: &str) -> Option<&'a str> {
    values.iter().find(|(field, _)| field == path).map(|(_, value)| value.as_str())
}
