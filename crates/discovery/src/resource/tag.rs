//! Converts tag rules, which select the endpoints of a service by their tags, and caller attributes to and from
//! the wire.

mod conditions;
mod lane;

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    CallerAttributes, CallerRule, FallbackPolicy, MAX_STEMS, RuleOrigin, StickyKey, TagDialect,
    TagRule, TagRules, TagSet, TagSplit, TagTarget, TagValue, WeightUnit,
};

use self::conditions::{callers_from_wire, callers_to_wire, match_from_wire, match_to_wire};
use super::field::{InvalidField, convert_each, parse_name};
use crate::proto;

pub(super) use lane::{from_wire as lanes_from_wire, to_wire as lanes_to_wire};

pub(super) fn to_wire(rules: &TagRules) -> proto::TagRules {
    let mut sources = TagSources::default();
    proto::TagRules {
        rules: rules.rules.iter().map(|rule| rule_to_wire(rule, &mut sources)).collect(),
        fallback_policy: fallback_policy_to_wire(&rules.fallback_policy),
        by_caller: rules
            .caller_rules
            .iter()
            .map(|rule| caller_rule_to_wire(rule, &mut sources))
            .collect(),
        sources: sources.sources,
    }
}

/// Parses rules. The number of distinct path stems is limited. A stem is a regular expression for the path before its
/// last dot.
pub(super) fn from_wire(wire: proto::TagRules) -> Result<TagRules, InvalidField> {
    let sources = &wire.sources;
    let rules = convert_each("rules", wire.rules, |rule| rule_from_wire(rule, sources))?;
    let stems = rules.iter().filter_map(|rule| rule.request_match.stem.as_deref());
    if stems.collect::<BTreeSet<_>>().len() > MAX_STEMS {
        return Err(InvalidField::new(
            "rules",
            format!("have more than {MAX_STEMS} stems of paths"),
        ));
    }
    Ok(TagRules {
        rules,
        fallback_policy: fallback_policy_from_wire(&wire.fallback_policy)?,
        caller_rules: convert_each("by_caller", wire.by_caller, |rule| {
            caller_rule_from_wire(rule, sources)
        })?,
    })
}

/// The objects that contain the rules: each object once, in order of appearance.
#[derive(Default)]
struct TagSources {
    sources: Vec<proto::TagSource>,
    source_indexes: BTreeMap<(TagDialect, String), u32>,
}

impl TagSources {
    /// Returns the index of the object that contains a rule, and adds the object if it is new.
    fn source_index(&mut self, origin: &RuleOrigin) -> u32 {
        let key = (origin.dialect, origin.name.to_string());
        if let Some(index) = self.source_indexes.get(&key) {
            return *index;
        }
        let index = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        self.sources.push(source_to_wire(origin));
        self.source_indexes.insert(key, index);
        index
    }
}

fn source_to_wire(origin: &RuleOrigin) -> proto::TagSource {
    let dialect = match origin.dialect {
        TagDialect::TagRoute => proto::TagDialect::TagRoute,
        TagDialect::Sermant => proto::TagDialect::Sermant,
        TagDialect::Lane => proto::TagDialect::Lane,
    };
    proto::TagSource { dialect: dialect.into(), name: origin.name.to_string() }
}

fn origin_from_wire(source: &proto::TagSource, index: u32) -> Result<RuleOrigin, InvalidField> {
    let dialect = match proto::TagDialect::try_from(source.dialect) {
        Ok(proto::TagDialect::TagRoute) => TagDialect::TagRoute,
        Ok(proto::TagDialect::Sermant) => TagDialect::Sermant,
        Ok(proto::TagDialect::Lane) => TagDialect::Lane,
        Ok(proto::TagDialect::Unspecified) | Err(_) => {
            let reason = format!("{} is not a kind of this version", source.dialect);
            return Err(InvalidField::new("dialect", reason));
        }
    };
    Ok(RuleOrigin { dialect, name: parse_name("name", &source.name)?, index })
}

/// Parses the origin of a rule: the object at `source_index` in `sources`, and the index of the rule in that
/// object.
fn parse_origin_at(
    sources: &[proto::TagSource],
    source_index: u32,
    index: u32,
) -> Result<RuleOrigin, InvalidField> {
    let listed_source =
        usize::try_from(source_index).ok().and_then(|position| sources.get(position));
    let tag_source = listed_source
        .ok_or_else(|| InvalidField::new("source", format!("{source_index} is not listed")))?;
    origin_from_wire(tag_source, index).map_err(|invalid| invalid.with_parent("source"))
}

fn rule_to_wire(rule: &TagRule, sources: &mut TagSources) -> proto::TagRule {
    let sticky_to_wire = |sticky: &StickyKey| proto::Sticky {
        by: Some(match sticky {
            StickyKey::Header(name) => proto::sticky::By::Header(name.clone()),
            StickyKey::Cookie(name) => proto::sticky::By::Cookie(name.clone()),
        }),
    };
    proto::TagRule {
        source: sources.source_index(&rule.origin),
        index: rule.origin.index,
        precedence: rule.priority,
        from: callers_to_wire(&rule.from),
        matches: match_to_wire(&rule.request_match),
        split: Some(split_to_wire(&rule.split)),
        fallback: (rule.fallback != TagSplit::default()).then(|| split_to_wire(&rule.fallback)),
        fallback_policy: fallback_policy_to_wire(&rule.fallback_policy),
        sticky: rule.sticky.as_ref().map(sticky_to_wire),
    }
}

fn rule_from_wire(
    wire: proto::TagRule,
    sources: &[proto::TagSource],
) -> Result<TagRule, InvalidField> {
    let parse_sticky = |wire: proto::Sticky| match wire.by {
        Some(proto::sticky::By::Header(name)) => Ok(StickyKey::Header(name)),
        Some(proto::sticky::By::Cookie(name)) => Ok(StickyKey::Cookie(name)),
        None => Err(InvalidField::new("sticky", "is missing, or unknown to this version")),
    };
    let fallback = wire.fallback.map(split_from_wire).transpose();
    Ok(TagRule {
        origin: parse_origin_at(sources, wire.source, wire.index)?,
        priority: wire.precedence,
        from: callers_from_wire(wire.from)?,
        request_match: match_from_wire(wire.matches)?,
        split: parse_required_split(wire.split)?,
        fallback: fallback.map_err(|invalid| invalid.with_parent("fallback"))?.unwrap_or_default(),
        fallback_policy: fallback_policy_from_wire(&wire.fallback_policy)?,
        sticky: wire.sticky.map(parse_sticky).transpose()?,
    })
}

fn caller_rule_to_wire(rule: &CallerRule, sources: &mut TagSources) -> proto::CallerRule {
    proto::CallerRule {
        source: sources.source_index(&rule.origin),
        index: rule.origin.index,
        from: callers_to_wire(&rule.from),
        split: Some(split_to_wire(&rule.split)),
        min_percent: rule.min_percent,
        min_total: rule.min_total,
        goes_on: rule.continues,
    }
}

fn caller_rule_from_wire(
    wire: proto::CallerRule,
    sources: &[proto::TagSource],
) -> Result<CallerRule, InvalidField> {
    Ok(CallerRule {
        origin: parse_origin_at(sources, wire.source, wire.index)?,
        from: callers_from_wire(wire.from)?,
        split: parse_required_split(wire.split)?,
        min_percent: wire.min_percent,
        min_total: wire.min_total,
        continues: wire.goes_on,
    })
}

fn split_to_wire(split: &TagSplit) -> proto::TagSplit {
    proto::TagSplit {
        targets: split.targets.iter().map(target_to_wire).collect(),
        percent: split.weights == WeightUnit::Percent,
    }
}

fn parse_required_split(wire: Option<proto::TagSplit>) -> Result<TagSplit, InvalidField> {
    let wire = wire.ok_or_else(|| InvalidField::new("split", "is missing"))?;
    split_from_wire(wire).map_err(|invalid| invalid.with_parent("split"))
}

fn split_from_wire(wire: proto::TagSplit) -> Result<TagSplit, InvalidField> {
    let weights = if wire.percent { WeightUnit::Percent } else { WeightUnit::Relative };
    Ok(TagSplit { targets: convert_each("targets", wire.targets, target_from_wire)?, weights })
}

fn target_to_wire(target: &TagTarget) -> proto::TagTarget {
    use proto::tag_target::Set;
    let tags_to_wire = |tags: &BTreeMap<String, TagValue>| {
        let tag_to_wire = |(name, value): (&String, &TagValue)| proto::TagValue {
            name: name.clone(),
            value: match value {
                TagValue::Exact(value) => Some(value.clone()),
                TagValue::SameAsCaller => None,
            },
        };
        proto::TagValues { tags: tags.iter().map(tag_to_wire).collect() }
    };
    let set = match &target.set {
        TagSet::All(values) => Set::All(tags_to_wire(values)),
        TagSet::Any(values) => Set::Any(tags_to_wire(values)),
        TagSet::Default => Set::Default(proto::Nothing {}),
        TagSet::AllInstances => Set::Every(proto::Nothing {}),
    };
    proto::TagTarget { weight: target.weight, set: Some(set) }
}

fn target_from_wire(wire: proto::TagTarget) -> Result<TagTarget, InvalidField> {
    use proto::tag_target::Set;
    let tags_from_wire = |wire: proto::TagValues| {
        let tag_from_wire = |tag: proto::TagValue| {
            (tag.name, tag.value.map_or(TagValue::SameAsCaller, TagValue::Exact))
        };
        wire.tags.into_iter().map(tag_from_wire).collect()
    };
    let set = match wire.set {
        None => return Err(InvalidField::new("set", "is missing, or unknown to this version")),
        Some(Set::All(values)) => TagSet::All(tags_from_wire(values)),
        Some(Set::Any(values)) => TagSet::Any(tags_from_wire(values)),
        Some(Set::Default(proto::Nothing {})) => TagSet::Default,
        Some(Set::Every(proto::Nothing {})) => TagSet::AllInstances,
    };
    Ok(TagTarget { weight: wire.weight, set })
}

fn fallback_policy_to_wire(fallback_policy: &[FallbackPolicy]) -> Vec<i32> {
    let to_number = |fallback_policy: &FallbackPolicy| match fallback_policy {
        FallbackPolicy::Any => proto::FallbackPolicy::Any.into(),
        FallbackPolicy::Default => proto::FallbackPolicy::Default.into(),
    };
    fallback_policy.iter().map(to_number).collect()
}

fn fallback_policy_from_wire(wire: &[i32]) -> Result<Vec<FallbackPolicy>, InvalidField> {
    let from_number = |number: &i32| match proto::FallbackPolicy::try_from(*number) {
        Ok(proto::FallbackPolicy::Any) => Ok(FallbackPolicy::Any),
        Ok(proto::FallbackPolicy::Default) => Ok(FallbackPolicy::Default),
        Ok(proto::FallbackPolicy::Unspecified) | Err(_) => Err(InvalidField::new(
            "fallback_policy",
            format!("{number} is unknown to this version"),
        )),
    };
    wire.iter().map(from_number).collect()
}

/// Encodes the attributes of the caller; `None` if no rule uses them.
pub(super) fn caller_to_wire(caller: &CallerAttributes) -> Option<proto::CallerAttributes> {
    (*caller != CallerAttributes::default()).then(|| proto::CallerAttributes {
        services: caller.services.iter().map(ToString::to_string).collect(),
        tags: labels_to_wire(&caller.tags),
        has_parameters: caller.has_parameters,
    })
}

pub(super) fn caller_from_wire(
    wire: proto::CallerAttributes,
) -> Result<CallerAttributes, InvalidField> {
    let services = convert_each("services", wire.services, |text| parse_name("", &text))?;
    Ok(CallerAttributes {
        services: services.into_iter().collect(),
        tags: labels_from_wire("tags", &wire.tags)?,
        has_parameters: wire.has_parameters,
    })
}

pub(super) fn labels_to_wire(labels: &BTreeMap<String, String>) -> Vec<proto::Label> {
    let label_to_wire = |(name, value): (&String, &String)| proto::Label {
        name: name.clone(),
        value: value.clone(),
    };
    labels.iter().map(label_to_wire).collect()
}

pub(super) fn labels_from_wire(
    field: &str,
    wire: &[proto::Label],
) -> Result<BTreeMap<String, String>, InvalidField> {
    let mut labels = BTreeMap::new();
    for label in wire {
        if labels.insert(label.name.clone(), label.value.clone()).is_some() {
            return Err(InvalidField::new(field, format!("`{}` appears twice", label.name)));
        }
    }
    Ok(labels)
}
