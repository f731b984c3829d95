//! Reads Sermant's three kinds of rules, with one function each: `flow` rules route requests, `tag` rules route all
//! requests of a caller, and `lane` rules add headers to requests.

use std::collections::BTreeMap;

use leno_model::{
    CallerMatch, CallerRule, FallbackPolicy, LaneHeaders, LaneMark, LaneRule, Name, PathMatch,
    Quorum, RepeatedHeader, RuleOrigin, ServiceName, TagDialect, TagMatch, TagRouteName, TagRule,
    TagSet, TagSplit, TagTarget, TagValue, WeightUnit,
};

use super::condition::{RegexValidity, check_regex, read_conditions, read_headers};
use super::warn_about_unknown_fields;
use crate::field::{Field, MapFields};
use crate::schema_reader::read_definition;

/// The object that contains the rules. The origin of a rule is the object's name and the rule's index.
pub(super) struct RulesLocation<'a> {
    pub(super) name: &'a TagRouteName,
}

impl RulesLocation<'_> {
    /// Returns the origin of the rule with this index, counted from 0 in the order as written.
    pub(super) fn rule_origin(&self, index: usize) -> RuleOrigin {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        RuleOrigin { dialect: TagDialect::Sermant, name: self.name.clone(), index }
    }
}

/// Reads a rule of the kind `flow`; `Some(None)` if it is ignored with a warning.
pub(super) fn read_flow_rule(
    element: &Field<'_>,
    origin: RuleOrigin,
    priority: i32,
) -> Option<Option<TagRule>> {
    let fields = element.read_any_fields()?;
    warn_about_unknown_fields(
        element,
        &["precedence", "description", "match", "route", "fallback"],
    );
    let Some(split) = read_split(&fields, "route", ConsumerTag::Text)? else {
        return Some(None);
    };
    let fallback = match fields.find("fallback") {
        Some(_) => read_split(&fields, "fallback", ConsumerTag::Text)?,
        None => None,
    };
    let mut from = CallerMatch::default();
    let mut request_match = TagMatch { repeated: RepeatedHeader::First, ..TagMatch::default() };
    if let Some(field) = fields.find("match") {
        let conditions = field.read_any_fields()?;
        reject_dubbo_conditions(&conditions);
        warn_about_ignored_fields(
            &conditions,
            &["method", "protocol", "parameters", "cookie", "tags", "policy"],
            "flow",
        );
        from.service = read_source(&conditions, &origin.name.namespace)?;
        request_match.quorum = read_quorum(&conditions)?;
        if let Some(headers) = conditions.find("headers") {
            request_match.headers = read_headers(headers)?;
        }
        request_match.stem = read_stem(&conditions, &request_match)?;
    }
    Some(Some(TagRule {
        origin,
        priority,
        from,
        request_match,
        split,
        fallback: fallback.unwrap_or_default(),
        fallback_policy: vec![FallbackPolicy::Any],
        sticky: None,
    }))
}

/// Reads a rule of the kind `tag`; `Some(None)` if it is ignored with a warning.
pub(super) fn read_caller_rule(
    element: &Field<'_>,
    origin: RuleOrigin,
) -> Option<Option<CallerRule>> {
    let fields = element.read_any_fields()?;
    warn_about_unknown_fields(element, &["precedence", "description", "match", "route"]);
    let Some(split) = read_split(&fields, "route", ConsumerTag::Caller)? else {
        return Some(None);
    };
    let mut from = CallerMatch::default();
    let (mut min_percent, mut min_total) = (0, 0);
    if let Some(field) = fields.find("match") {
        let conditions = field.read_any_fields()?;
        let ignored_fields = [
            "method",
            "protocol",
            "parameters",
            "cookie",
            "path",
            "headers",
            "attachments",
            "args",
        ];
        warn_about_ignored_fields(&conditions, &ignored_fields, "tag");
        from.service = read_source(&conditions, &origin.name.namespace)?;
        from.quorum = read_quorum(&conditions)?;
        if let Some(tags) = conditions.find("tags") {
            from.tags = read_conditions(tags)?;
        }
        if let Some(policy) = conditions.find("policy") {
            let policy_fields = policy.read_fields(&["triggerThreshold", "minAllInstances"])?;
            let read_number = |key: &str| match policy_fields.find(key) {
                Some(field) => field.read_number(0, i32::MAX.unsigned_abs()),
                None => Some(0),
            };
            (min_percent, min_total) =
                (read_number("triggerThreshold")?, read_number("minAllInstances")?);
        }
    }
    Some(Some(CallerRule { origin, from, split, min_percent, min_total, continues: false }))
}

/// Reads a rule of the kind `lane`; no rules if it is ignored with a warning. A path that is also a valid expression
/// becomes two rules, one for the literal path and one for the expression; the first matching rule applies.
pub(super) fn read_lane_rule(
    element: &Field<'_>,
    origin: RuleOrigin,
    priority: i32,
) -> Option<Vec<LaneRule>> {
    let fields = element.read_any_fields()?;
    warn_about_unknown_fields(element, &["precedence", "description", "match", "route"]);
    let marks = read_marks(&fields, &origin.name.namespace)?;
    if marks.is_empty() {
        return Some(Vec::new());
    }
    let mut request_match = TagMatch { repeated: RepeatedHeader::First, ..TagMatch::default() };
    let mut paths = vec![PathMatch::Any];
    if let Some(field) = fields.find("match") {
        let conditions = field.read_any_fields()?;
        reject_dubbo_conditions(&conditions);
        let ignored_fields = ["cookie", "tags", "policy", "source", "fullMatch"];
        warn_about_ignored_fields(&conditions, &ignored_fields, "lane");
        if !is_http(&conditions)? {
            return Some(Vec::new());
        }
        if let Some(method) = conditions.find("method") {
            request_match.methods = method_case_variants(method.read_text()?);
        }
        if let Some(headers) = conditions.find("headers") {
            request_match.headers = read_headers(headers)?;
        }
        if let Some(parameters) = conditions.find("parameters") {
            request_match.query = read_conditions(parameters)?;
        }
        if let Some(path) = conditions.find("path") {
            paths = read_lane_path(path)?;
        }
    }
    let to_rule = |path| LaneRule {
        origin: origin.clone(),
        priority,
        request_match: TagMatch { path, ..request_match.clone() },
        marks: marks.clone(),
    };
    Some(paths.into_iter().map(to_rule).collect())
}

/// True if `protocol` is `http`. A rule with another protocol, or without one, never matches: this is a warning.
fn is_http(conditions: &MapFields<'_>) -> Option<bool> {
    let Some(protocol) = conditions.find("protocol") else {
        conditions
            .map_field()
            .warn("has no `protocol`, so the rule never matches", "add `protocol: http`");
        return Some(false);
    };
    let is_http = protocol.read_text()?.eq_ignore_ascii_case("http");
    if !is_http {
        protocol.warn("is for another protocol: no request matches", "use `http`");
    }
    Some(is_http)
}

/// Reads a path as a literal and, if it is a valid expression, also as an expression. An empty path matches any path.
fn read_lane_path(field: &Field<'_>) -> Option<Vec<PathMatch>> {
    let text = field.read_text()?.to_owned();
    if text.is_empty() {
        return Some(vec![PathMatch::Any]);
    }
    let mut paths = vec![PathMatch::Exact(text.clone())];
    if matches!(check_regex(field, &text)?, RegexValidity::Valid) {
        paths.push(PathMatch::Regex(text));
    }
    Some(paths)
}

/// Returns the method in upper case, in lower case and as written: Sermant ignores the case of methods, but HTTP methods
/// are case-sensitive.
fn method_case_variants(method: &str) -> Vec<String> {
    let mut variants =
        vec![method.to_ascii_uppercase(), method.to_ascii_lowercase(), method.to_owned()];
    variants.dedup();
    variants
}

/// Reads the headers that a lane adds to requests, each with the percentage of the requests that get it; empty if no route
/// is complete.
fn read_marks(fields: &MapFields<'_>, namespace: &Name) -> Option<Vec<LaneMark>> {
    let mut marks = Vec::new();
    for route in read_routes(fields, "route")? {
        let route_fields = route.read_any_fields()?;
        warn_about_unknown_fields(&route, &["weight", "tag-inject", "tags"]);
        let weight = route_fields.find("weight");
        let (Some(weight), Some(headers)) = (weight, route_fields.find("tag-inject")) else {
            warn_about_incomplete_element(&route, "a `weight` and `tag-inject`");
            continue;
        };
        let percent = weight.read_number(0, i32::MAX.unsigned_abs())?;
        let headers: LaneHeaders = read_definition(headers, namespace)?;
        marks.push(LaneMark { percent, headers: headers.into_headers() });
    }
    if marks.is_empty() {
        warn_about_incomplete_element(fields.map_field(), "a `route`");
    }
    Some(marks)
}

/// The meaning of the tag value `CONSUMER_TAG`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConsumerTag {
    /// The caller's value of the same tag.
    Caller,
    /// The text itself.
    Text,
}

/// Reads the routes under `key`, which select endpoints by tags with weights. `Some(None)` if no route has both tags and a
/// weight; `None` if a field is invalid.
fn read_split(
    fields: &MapFields<'_>,
    key: &str,
    consumer_tag: ConsumerTag,
) -> Option<Option<TagSplit>> {
    let mut targets = Vec::new();
    for route in read_routes(fields, key)? {
        let route_fields = route.read_any_fields()?;
        warn_about_unknown_fields(&route, &["weight", "tags", "tag-inject"]);
        let tags = match route_fields.find("tags") {
            Some(field) => read_tags(field, consumer_tag)?,
            None => BTreeMap::new(),
        };
        let uses_caller_tags = tags.values().any(|value| *value == TagValue::SameAsCaller);
        let weight = match route_fields.find("weight") {
            // The weight of a route to instances with the caller's own tags is ignored.
            _ if uses_caller_tags => Some(100),
            Some(field) => Some(field.read_number(0, i32::MAX.unsigned_abs())?),
            None => None,
        };
        match weight.filter(|_| !tags.is_empty()) {
            Some(weight) => targets.push(TagTarget { weight, set: TagSet::Any(tags) }),
            None => warn_about_incomplete_element(&route, "a `weight` and `tags`"),
        }
    }
    if targets.is_empty() {
        warn_about_incomplete_element(fields.map_field(), &format!("a `{key}`"));
        return Some(None);
    }
    Some(Some(TagSplit { targets, weights: WeightUnit::Percent }))
}

/// Reads the elements of a list of routes; empty if the field is absent.
fn read_routes<'a>(fields: &MapFields<'a>, key: &str) -> Option<Vec<Field<'a>>> {
    match fields.find(key) {
        Some(field) => field.read_list(MAX_ROUTES),
        None => Some(Vec::new()),
    }
}

/// Reads the tags of a route's endpoints.
fn read_tags(field: &Field<'_>, consumer_tag: ConsumerTag) -> Option<BTreeMap<String, TagValue>> {
    let mut tags = BTreeMap::new();
    for (name, value) in field.read_entries()? {
        let text = value.read_literal()?;
        let tag_value = match text == "CONSUMER_TAG" && consumer_tag == ConsumerTag::Caller {
            true => TagValue::SameAsCaller,
            false => TagValue::Exact(text),
        };
        tags.insert(name.to_owned(), tag_value);
    }
    Some(tags)
}

/// Warns about an incomplete route or rule, which is ignored.
fn warn_about_incomplete_element(field: &Field<'_>, missing_fields: &str) {
    field.warn(format!("lacks {missing_fields} and is ignored"), format!("add {missing_fields}"));
}

/// Reads the expression that is compared with the part of the path before the path's last dot. Sermant uses this
/// expression only together with headers; `Some(None)` if there is no expression or it is ignored.
fn read_stem(conditions: &MapFields<'_>, request_match: &TagMatch) -> Option<Option<String>> {
    let Some(field) = conditions.find("path") else {
        return Some(None);
    };
    let text = field.read_text()?;
    if request_match.headers.is_empty() || text.is_empty() {
        field.warn("is ignored without `headers`", "remove it, or use a TagRoute");
        return Some(None);
    }
    field.warn(
        "is compared only with the part of the path before its last dot, if any",
        "use a TagRoute to match paths",
    );
    Some(Some(match check_regex(field, text)? {
        RegexValidity::Valid => text.to_owned(),
        RegexValidity::NeverMatches => NEVER_MATCHING_REGEX.to_owned(),
    }))
}

/// Reads `source`, the service of the caller; `Some(None)` if the field is absent or empty, which means any caller.
fn read_source(conditions: &MapFields<'_>, namespace: &Name) -> Option<Option<ServiceName>> {
    let Some(field) = conditions.find("source") else {
        return Some(None);
    };
    if field.read_text()?.is_empty() {
        return Some(None);
    }
    let name = field.read_label()?;
    Some(Some(ServiceName { namespace: namespace.clone(), name }))
}

/// Reads `fullMatch`: if it is false, one matching condition suffices; otherwise all conditions must match.
fn read_quorum(conditions: &MapFields<'_>) -> Option<Quorum> {
    Some(match conditions.find("fullMatch") {
        Some(field) if !field.read_boolean()? => Quorum::Any,
        _ => Quorum::All,
    })
}

/// Rejects conditions on Dubbo calls.
fn reject_dubbo_conditions(conditions: &MapFields<'_>) {
    for key in ["attachments", "args"] {
        conditions.reject_unsupported(
            key,
            "is for calls of Dubbo, which the mesh forwards without parsing them",
            "remove the rule, or match `headers`",
        );
    }
}

/// Warns about conditions that Sermant ignores in rules of this kind.
fn warn_about_ignored_fields(conditions: &MapFields<'_>, keys: &[&str], rule_kind: &str) {
    for key in keys {
        if let Some(field) = conditions.find(key) {
            field.warn(
                format!("is ignored in rules of the kind {rule_kind}"),
                "remove it, or use a TagRoute, which supports it",
            );
        }
    }
}

/// An expression that never matches.
const NEVER_MATCHING_REGEX: &str = r"[^\s\S]";
/// Maximum number of routes per rule.
const MAX_ROUTES: usize = 1024;
