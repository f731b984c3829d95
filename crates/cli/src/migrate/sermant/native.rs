//! Brings Sermant route rules into forms that `TagRoute` and `Lane` can express, or returns the reason why
//! there is no such form.

use leno_model::{
    CallerRule, FieldTest, LaneRule, Quorum, RepeatedHeader, TagMatch, TagRule, TagRules, TagSet,
    TagSplit, TagTarget, TagValue, TextRelation, ValueTest, WeightUnit,
};

/// The rare cases in which the converted native rules decide differently.
#[derive(Debug, Default)]
pub(super) struct DecisionDifferences {
    /// True if a rule compares only the first value of a repeated header.
    joins_repeated_headers: bool,
    /// True if a rule has a lowercase method.
    ignores_lowercase_methods: bool,
    /// True if a rule prefers instances with the caller's own tag.
    changes_untagged_callers: bool,
}

impl DecisionDifferences {
    pub(super) fn into_sentences(self) -> Vec<&'static str> {
        let headers =
            "of a repeated header all values are compared, joined, and not only the first";
        let methods = "lowercase methods no longer match a rule";
        let callers = "a client without the tag has no preference, instead of one for endpoints without \
            it; while all preferred endpoints are unhealthy, the others get the requests";
        let differences = [
            (self.joins_repeated_headers, headers),
            (self.ignores_lowercase_methods, methods),
            (self.changes_untagged_callers, callers),
        ];
        differences
            .into_iter()
            .filter(|(differs, _)| *differs)
            .map(|(_, sentence)| sentence)
            .collect()
    }
}

/// Converts rules to native form, or returns the reason why there is no native form.
pub(super) fn convert_rules(
    original: &TagRules,
    differences: &mut DecisionDifferences,
) -> Result<TagRules, String> {
    let mut rules = Vec::new();
    for rule in &original.rules {
        for request_match in convert_match(&rule.request_match, differences)? {
            rules.push(TagRule {
                request_match,
                split: convert_split(&rule.split)?,
                fallback: convert_split(&rule.fallback)?,
                ..rule.clone()
            });
        }
    }
    let caller_rules = match original.caller_rules.as_slice() {
        [] => Vec::new(),
        [rule] => vec![convert_preference(rule, differences)?],
        _ => return Err("only the first matching rule of the kind `tag` applies".to_owned()),
    };
    Ok(TagRules { rules, fallback_policy: original.fallback_policy.clone(), caller_rules })
}

/// Converts the rules of lanes to native form, or returns the reason why there is no native form.
pub(super) fn convert_lanes(
    original: &[LaneRule],
    differences: &mut DecisionDifferences,
) -> Result<Vec<LaneRule>, String> {
    let mut lanes = Vec::new();
    for rule in original {
        if rule.marks.iter().map(|mark| u64::from(mark.percent)).sum::<u64>() > 100 {
            return Err("the weights of a lane add up to more than 100".to_owned());
        }
        for mut request_match in convert_match(&rule.request_match, differences)? {
            let methods: Vec<String> =
                request_match.methods.iter().map(|method| method.to_ascii_uppercase()).collect();
            differences.ignores_lowercase_methods |= methods != request_match.methods;
            request_match.methods = methods;
            request_match.methods.dedup();
            lanes.push(LaneRule { request_match, ..rule.clone() });
        }
    }
    Ok(lanes)
}

/// Converts a match to native matches, whose conditions must all be met. A Sermant match that needs only one of
/// several header conditions becomes one native match per header condition.
fn convert_match(
    original: &TagMatch,
    differences: &mut DecisionDifferences,
) -> Result<Vec<TagMatch>, String> {
    if original.stem.is_some() {
        return Err("its `path` is compared with the part before the last dot".to_owned());
    }
    let tests = original.headers.iter().chain(&original.query).chain(&original.cookies);
    if tests.clone().any(|test| test.test == ValueTest::Never) {
        return Err("it has a condition that never matches".to_owned());
    }
    differences.joins_repeated_headers |=
        original.repeated == RepeatedHeader::First && !original.headers.is_empty();
    let convert_all = |tests: &[FieldTest]| tests.iter().map(convert_insensitive).collect();
    let headers_result: Result<_, String> = convert_all(&original.headers);
    let query_result: Result<_, String> = convert_all(&original.query);
    let normalized = TagMatch {
        quorum: Quorum::All,
        repeated: RepeatedHeader::Joined,
        headers: headers_result?,
        query: query_result?,
        ..original.clone()
    };
    let with_header =
        |test: &FieldTest| TagMatch { headers: vec![test.clone()], ..normalized.clone() };
    let matches = match (original.quorum, normalized.headers.len()) {
        (Quorum::Any, 2..) => normalized.headers.iter().map(with_header).collect(),
        _ => vec![normalized],
    };
    if matches.iter().any(|converted| {
        has_duplicate_names(&converted.headers) || has_duplicate_names(&converted.query)
    }) {
        return Err("it has several conditions for one name".to_owned());
    }
    Ok(matches)
}

/// Converts a case-insensitive expression. Sermant lowercases both expression and value, including the escapes
/// of the expression. The equivalent is the lowercased expression with a case-insensitive flag, except if it
/// names characters by number or class.
fn convert_insensitive(test: &FieldTest) -> Result<FieldTest, String> {
    let ValueTest::Text { relation: TextRelation::Regex, texts, ignore_case: true } = &test.test
    else {
        return Ok(test.clone());
    };
    let expressions_result: Result<Vec<String>, String> = texts
        .iter()
        .map(|text| {
            let lowercase = text.to_lowercase();
            match ["\\x", "\\u", "\\p", "(?"]
                .iter()
                .find(|construct| lowercase.contains(**construct))
            {
                Some(construct) => {
                    Err(format!("its expression {lowercase:?} contains {construct:?}"))
                }
                None => Ok(format!("(?i:{lowercase})")),
            }
        })
        .collect();
    let value_test = ValueTest::Text {
        relation: TextRelation::Regex,
        texts: expressions_result?,
        ignore_case: false,
    };
    Ok(FieldTest { name: test.name.clone(), test: value_test })
}

fn has_duplicate_names(tests: &[FieldTest]) -> bool {
    let mut names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| matches!(pair, [first, second] if first == second))
}

/// Converts a split: percentages become relative weights, and each target selects instances by tags that must all
/// match.
fn convert_split(original: &TagSplit) -> Result<TagSplit, String> {
    let weight_sum: u64 = original.targets.iter().map(|target| u64::from(target.weight)).sum();
    if original.weights == WeightUnit::Percent && !original.targets.is_empty() && weight_sum != 100
    {
        return Err(format!("the weights of a split add up to {weight_sum} instead of 100"));
    }
    let targets_result: Result<Vec<TagTarget>, String> =
        original.targets.iter().map(convert_target).collect();
    Ok(TagSplit { targets: targets_result?, weights: WeightUnit::Relative })
}

fn convert_target(original: &TagTarget) -> Result<TagTarget, String> {
    let set = match &original.set {
        TagSet::Any(tags) if tags.len() > 1 => {
            return Err("it selects instances with one of several tags".to_owned());
        }
        TagSet::Any(tags) => TagSet::All(tags.clone()),
        set => set.clone(),
    };
    Ok(TagTarget { weight: original.weight, set })
}

/// Converts a preference for instances with the caller's own tag.
fn convert_preference(
    original: &CallerRule,
    differences: &mut DecisionDifferences,
) -> Result<CallerRule, String> {
    let [TagTarget { set: TagSet::Any(tags), .. }] = original.split.targets.as_slice() else {
        return Err("a rule of the kind `tag` has several targets".to_owned());
    };
    let is_own_tag = tags.len() == 1 && tags.values().all(|value| *value == TagValue::SameAsCaller);
    if !is_own_tag || !original.from.tags.is_empty() || original.from.service.is_some() {
        return Err(
            "a rule of the kind `tag` applies to some callers only, or to fixed tags".to_owned()
        );
    }
    differences.changes_untagged_callers = true;
    Ok(CallerRule { continues: true, ..original.clone() })
}
