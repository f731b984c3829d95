//! Sermant rules reduced to the forms of native rules.

use leno_model::{
    CallerRule, FieldTest, LaneRule, Quorum, RepeatedHeader, TagMatch, TagRule, TagRules, TagSet,
    TagSplit, TagTarget, TagValue, TextRelation, ValueTest, WeightUnit,
};

/// Rare cases in which native rules decide differently.
#[derive(Debug, Default)]
pub(super) struct DecisionDifferences {
    headers: bool,
    methods: bool,
    callers: bool,
}

impl DecisionDifferences {
    pub(super) fn into_sentences(self) -> Vec<&'static str> {
        let headers =
            "of a repeated header all values are compared, joined, and not only the first";
        let methods = "lowercase methods no longer match a rule";
        let callers = "a client without the tag has no preference, instead of one for endpoints without \
            it; while all preferred endpoints are unhealthy, the others get the requests";
        let all = [(self.headers, headers), (self.methods, methods), (self.callers, callers)];
        all.into_iter().filter(|(differs, _)| *differs).map(|(_, sentence)| sentence).collect()
    }
}

/// Converts rules to native form, or returns the reason why there is none.
pub(super) fn convert_rules(
    found: &TagRules,
    differences: &mut DecisionDifferences,
) -> Result<TagRules, String> {
    let mut rules = Vec::new();
    for rule in &found.rules {
        for matches in convert_match(&rule.matches, differences)? {
            rules.push(TagRule {
                matches,
                split: convert_split(&rule.split)?,
                fallback: convert_split(&rule.fallback)?,
                ..rule.clone()
            });
        }
    }
    let by_caller = match found.by_caller.as_slice() {
        [] => Vec::new(),
        [rule] => vec![convert_preference(rule, differences)?],
        _ => return Err("only the first matching rule of the kind `tag` applies".to_owned()),
    };
    Ok(TagRules { rules, fallback_policy: found.fallback_policy.clone(), by_caller })
}

/// Converts lanes to native form.
pub(super) fn convert_lanes(
    found: &[LaneRule],
    differences: &mut DecisionDifferences,
) -> Result<Vec<LaneRule>, String> {
    let mut lanes = Vec::new();
    for rule in found {
        if rule.marks.iter().map(|mark| u64::from(mark.percent)).sum::<u64>() > 100 {
            return Err("the weights of a lane add up to more than 100".to_owned());
        }
        for mut matches in convert_match(&rule.matches, differences)? {
            let methods: Vec<String> =
                matches.methods.iter().map(|method| method.to_ascii_uppercase()).collect();
            differences.methods |= methods != matches.methods;
            matches.methods = methods;
            matches.methods.dedup();
            lanes.push(LaneRule { matches, ..rule.clone() });
        }
    }
    Ok(lanes)
}

/// Converts a match: to several if one of several conditions is sufficient.
fn convert_match(
    found: &TagMatch,
    differences: &mut DecisionDifferences,
) -> Result<Vec<TagMatch>, String> {
    if found.stem.is_some() {
        return Err("its `path` is compared with the part before the last dot".to_owned());
    }
    let tests = found.headers.iter().chain(&found.query).chain(&found.cookies);
    if tests.clone().any(|it| it.test == ValueTest::Never) {
        return Err("it has a condition that never matches".to_owned());
    }
    differences.headers |= found.repeated == RepeatedHeader::First && !found.headers.is_empty();
    let plain = TagMatch { quorum: Quorum::All, repeated: RepeatedHeader::Joined, ..found.clone() };
    let insensitive = |tests: &[FieldTest]| tests.iter().map(convert_insensitive).collect();
    let headers: Result<_, String> = insensitive(&found.headers);
    let query: Result<_, String> = insensitive(&found.query);
    let plain = TagMatch { headers: headers?, query: query?, ..plain };
    let each = |test: &FieldTest| TagMatch { headers: vec![test.clone()], ..plain.clone() };
    let matches = match (found.quorum, plain.headers.len()) {
        (Quorum::One, 2..) => plain.headers.iter().map(each).collect(),
        _ => vec![plain],
    };
    if matches.iter().any(|it| names_twice(&it.headers) || names_twice(&it.query)) {
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
    let texts = texts.iter().map(|text| {
        let text = text.to_lowercase();
        match ["\\x", "\\u", "\\p", "(?"].iter().find(|part| text.contains(**part)) {
            Some(part) => Err(format!("its expression {text:?} contains {part:?}")),
            None => Ok(format!("(?i:{text})")),
        }
    });
    let texts: Result<Vec<String>, String> = texts.collect();
    let (relation, ignore_case) = (TextRelation::Regex, false);
    let same = ValueTest::Text { relation, texts: texts?, ignore_case };
    Ok(FieldTest { name: test.name.clone(), test: same })
}

fn names_twice(tests: &[FieldTest]) -> bool {
    let mut names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| matches!(pair, [one, other] if one == other))
}

/// Converts a split to relative weights of sets with one tag each.
fn convert_split(found: &TagSplit) -> Result<TagSplit, String> {
    let sum: u64 = found.targets.iter().map(|target| u64::from(target.weight)).sum();
    if found.weights == WeightUnit::Percent && !found.targets.is_empty() && sum != 100 {
        return Err(format!("the weights of a split add up to {sum} instead of 100"));
    }
    let targets: Result<Vec<TagTarget>, String> =
        found.targets.iter().map(convert_target).collect();
    Ok(TagSplit { targets: targets?, weights: WeightUnit::Relative })
}

fn convert_target(found: &TagTarget) -> Result<TagTarget, String> {
    let set = match &found.set {
        TagSet::Any(tags) if tags.len() > 1 => {
            return Err("it selects instances with one of several tags".to_owned());
        }
        TagSet::Any(tags) => TagSet::All(tags.clone()),
        other => other.clone(),
    };
    Ok(TagTarget { weight: found.weight, set })
}

/// Converts a preference for instances with the caller's own tag.
fn convert_preference(
    found: &CallerRule,
    differences: &mut DecisionDifferences,
) -> Result<CallerRule, String> {
    let [TagTarget { set: TagSet::Any(tags), .. }] = found.split.targets.as_slice() else {
        return Err("a rule of the kind `tag` has several targets".to_owned());
    };
    let is_same = tags.len() == 1 && tags.values().all(|value| *value == TagValue::Callers);
    if !is_same || !found.from.tags.is_empty() || found.from.service.is_some() {
        return Err(
            "a rule of the kind `tag` applies to some callers only, or to fixed tags".to_owned()
        );
    }
    differences.callers = true;
    Ok(CallerRule { goes_on: true, ..found.clone() })
}
