//! Writes the rules of `TagRoute`s and `Lane`s as YAML values.

use leno_model::{
    CallerMatch, CallerRule, FallbackPolicy, FieldTest, LaneRule, NumberRelation, PathMatch,
    TagMatch, TagRule, TagSet, TagSplit, TagTarget, TagValue, TextRelation, ValueTest,
};
use serde_json::{Map, Value, json};

/// Writes a rule of a `TagRoute`.
pub(super) fn write_rule(rule: &TagRule) -> Result<Value, String> {
    let mut manifest = json!({
        "precedence": rule.priority,
        "split": write_split(&rule.split)?,
        "fallbackPolicy": write_fallbacks(&rule.fallback_policy),
    });
    if let Some(from) = write_callers(&rule.from) {
        manifest["from"] = from;
    }
    if let Some(matches) = write_match(&rule.request_match)? {
        manifest["match"] = matches;
    }
    if !rule.fallback.targets.is_empty() {
        manifest["fallback"] = write_split(&rule.fallback)?;
    }
    Ok(manifest)
}

/// Writes an entry of `preferSameTag`.
pub(super) fn write_preference(rule: &CallerRule) -> Result<Value, String> {
    let sets = rule.split.targets.iter().map(|target| &target.set);
    let tags: Vec<&str> = sets.flat_map(TagSet::tag_names).collect();
    Ok(json!({"tags": tags, "minPercent": rule.min_percent, "minTotal": rule.min_total}))
}

/// Writes a rule of a `Lane`.
pub(super) fn write_lane_rule(rule: &LaneRule) -> Result<Value, String> {
    let marks =
        rule.marks.iter().map(|mark| json!({"percent": mark.percent, "headers": mark.headers}));
    let mut manifest = json!({"precedence": rule.priority, "marks": marks.collect::<Vec<Value>>()});
    if let Some(matches) = write_match(&rule.request_match)? {
        manifest["match"] = matches;
    }
    Ok(manifest)
}

/// Writes one fallback policy, or several in order; `fail` if there is none.
pub(super) fn write_fallbacks(policies: &[FallbackPolicy]) -> Value {
    let policy_name = |policy: &FallbackPolicy| match policy {
        FallbackPolicy::Any => "any",
        FallbackPolicy::Default => "default",
    };
    match policies {
        [] => json!("fail"),
        [policy] => json!(policy_name(policy)),
        policies => policies.iter().map(policy_name).collect(),
    }
}

/// Writes `from`; `None` if the rule applies to all callers.
fn write_callers(from: &CallerMatch) -> Option<Value> {
    let service = from.service.as_ref()?;
    Some(json!({"service": service.name.as_str(), "namespace": service.namespace.as_str()}))
}

fn write_split(split: &TagSplit) -> Result<Value, String> {
    let write_target = |target: &TagTarget| match &target.set {
        TagSet::All(tags) | TagSet::Any(tags) => {
            let to_entry = |(name, value): (&String, &TagValue)| match value {
                TagValue::Exact(value) => Ok((name.clone(), json!(value))),
                TagValue::SameAsCaller => Err("a split refers to the caller's own tag".to_owned()),
            };
            let tag_fields_result: Result<Map<String, Value>, String> =
                tags.iter().map(to_entry).collect();
            Ok(json!({"weight": target.weight, "tags": tag_fields_result?}))
        }
        TagSet::Default => Ok(json!({"weight": target.weight, "instances": "default"})),
        TagSet::AllInstances => Ok(json!({"weight": target.weight, "instances": "any"})),
    };
    split.targets.iter().map(write_target).collect()
}

/// Writes `match`; `None` if all requests match.
fn write_match(request_match: &TagMatch) -> Result<Option<Value>, String> {
    let mut match_value = Map::new();
    let path = match &request_match.path {
        PathMatch::Any => None,
        PathMatch::Exact(path) => Some(json!({"exact": path})),
        PathMatch::Prefix(path) => Some(json!({"prefix": path})),
        PathMatch::Regex(expression) => Some(json!({"regex": expression})),
    };
    match_value.extend(path.map(|path| ("path".to_owned(), path)));
    if !request_match.methods.is_empty() {
        match_value.insert("methods".to_owned(), json!(request_match.methods));
    }
    let test_lists = [
        ("headers", &request_match.headers),
        ("queryParams", &request_match.query),
        ("cookies", &request_match.cookies),
    ];
    for (key, tests) in test_lists {
        if !tests.is_empty() {
            match_value.insert(key.to_owned(), write_field_tests(tests)?);
        }
    }
    Ok((!match_value.is_empty()).then_some(Value::Object(match_value)))
}

fn write_field_tests(tests: &[FieldTest]) -> Result<Value, String> {
    let to_entry = |test: &FieldTest| Ok((test.name.clone(), write_value_test(&test.test)?));
    let test_fields_result: Result<Map<String, Value>, String> =
        tests.iter().map(to_entry).collect();
    Ok(Value::Object(test_fields_result?))
}

fn write_value_test(test: &ValueTest) -> Result<Value, String> {
    Ok(match test {
        ValueTest::Present => json!({"present": true}),
        ValueTest::Absent => json!({"present": false}),
        ValueTest::Text { relation, texts, ignore_case } => {
            // All relations except `In` have exactly one operand.
            let text = texts.first().map(String::as_str).unwrap_or_default();
            let mut value = match relation {
                TextRelation::Exact => json!({"exact": text}),
                TextRelation::Prefix => json!({"prefix": text}),
                TextRelation::Regex => json!({"regex": text}),
                TextRelation::In => json!({"in": texts}),
                TextRelation::NotEqual => json!({"not": text}),
            };
            if *ignore_case {
                value["ignoreCase"] = json!(true);
            }
            value
        }
        ValueTest::Number { relation, bound } => {
            let operator = match relation {
                NumberRelation::GreaterThan => "above",
                NumberRelation::AtLeast => "atLeast",
                NumberRelation::LessThan => "below",
                NumberRelation::AtMost => "atMost",
            };
            json!({operator: bound})
        }
        ValueTest::Never => return Err("it has a condition that never matches".to_owned()),
    })
}
