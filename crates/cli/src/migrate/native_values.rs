//! Writes request matches and durations as YAML values of `AccessPolicy`s and Gateway API routes.

use std::time::Duration;

use leno_model::{FieldMatch, PathMatch, RequestMatch, ValueMatch};
use serde_json::{Map, Value, json};

/// Writes a request match of an `AccessPolicy`.
pub(super) fn write_access_request(request: &RequestMatch) -> Value {
    let mut fields = Map::new();
    if !request.methods.is_empty() {
        fields.insert("methods".to_owned(), json!(request.methods));
    }
    insert_path_and_headers(request, &mut fields);
    if fields.is_empty() {
        // A match requires at least one condition: every path has this prefix.
        fields.insert("path".to_owned(), json!({"type": "PathPrefix", "value": "/"}));
    }
    Value::Object(fields)
}

/// Writes the equivalent matches of an `HTTPRoute`, which have at most one method each.
pub(super) fn write_route_matches(request: &RequestMatch) -> Vec<Value> {
    let mut fields = Map::new();
    insert_path_and_headers(request, &mut fields);
    if request.methods.is_empty() {
        return vec![Value::Object(fields)];
    }
    let methods = request.methods.iter().map(|method| {
        let mut fields = fields.clone();
        fields.insert("method".to_owned(), json!(method));
        Value::Object(fields)
    });
    methods.collect()
}

/// Inserts the path and the headers, which both kinds of matches write in the same form.
fn insert_path_and_headers(request: &RequestMatch, fields: &mut Map<String, Value>) {
    let path = match &request.path {
        PathMatch::Any => None,
        PathMatch::Exact(path) => Some(("Exact", path)),
        PathMatch::Prefix(path) => Some(("PathPrefix", path)),
        PathMatch::Regex(path) => Some(("RegularExpression", path)),
    };
    if let Some((match_type, value)) = path {
        fields.insert("path".to_owned(), json!({"type": match_type, "value": value}));
    }
    if !request.headers.is_empty() {
        let headers: Vec<Value> = request.headers.iter().map(write_header_match).collect();
        fields.insert("headers".to_owned(), Value::Array(headers));
    }
}

fn write_header_match(header_match: &FieldMatch) -> Value {
    let name = match header_match.name.as_str() {
        ":authority" => "host",
        name => name,
    };
    let (match_type, value) = match &header_match.value {
        ValueMatch::Exact(value) => ("Exact", value),
        ValueMatch::Regex(value) => ("RegularExpression", value),
    };
    json!({"name": name, "type": match_type, "value": value})
}

/// Formats a duration for manifests; `None` if it is not a whole number of milliseconds.
pub(super) fn format_duration(duration: Duration) -> Option<String> {
    let milliseconds = duration.subsec_millis();
    if duration.subsec_nanos() != milliseconds * 1_000_000 {
        return None;
    }
    Some(match (duration.as_secs(), milliseconds) {
        (seconds, 0) => format!("{seconds}s"),
        (0, milliseconds) => format!("{milliseconds}ms"),
        (seconds, milliseconds) => format!("{seconds}s{milliseconds}ms"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_seconds_and_milliseconds() {
        let time = |micros| format_duration(Duration::from_micros(micros));
        assert_eq!(time(3_600_000_000).as_deref(), Some("3600s"));
        assert_eq!(time(250_000).as_deref(), Some("250ms"));
        assert_eq!(time(1_500_000).as_deref(), Some("1s500ms"));
        assert_eq!(time(1_500), None);
    }
}
