//! Strategies for random tag rules, callers and lanes.

use std::collections::BTreeMap;

use leno_model::{
    CallerAttributes, CallerMatch, CallerRule, FallbackPolicy, FieldTest, LaneMark, LaneRule,
    NumberRelation, Quorum, RepeatedHeader, RuleOrigin, StickyKey, TagDialect, TagMatch,
    TagRouteName, TagRule, TagRules, TagSet, TagSplit, TagTarget, TagValue, TextRelation,
    ValueTest, WeightUnit,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::{any_name, any_request_match, any_service_name};

pub(super) fn any_tag_rules() -> impl Strategy<Value = TagRules> {
    (vec(any_tag_rule(), 0..3), any_fallback_policy(), vec(any_caller_rule(), 0..2)).prop_map(
        |(rules, fallback_policy, by_caller)| TagRules {
            rules,
            fallback_policy,
            caller_rules: by_caller,
        },
    )
}

pub(super) fn any_caller() -> impl Strategy<Value = CallerAttributes> {
    (btree_set(any_service_name(), 0..3), any_texts(), any::<bool>()).prop_map(
        |(services, tags, has_parameters)| CallerAttributes { services, tags, has_parameters },
    )
}

pub(super) fn any_lanes() -> impl Strategy<Value = BTreeMap<u16, Vec<LaneRule>>> {
    let mark = (any::<u32>(), any_texts());
    let mark = mark.prop_map(|(percent, headers)| LaneMark { percent, headers });
    let rule = (any_origin(), any::<i32>(), any_tag_match(), vec(mark, 0..3));
    let rule = rule.prop_map(|(origin, precedence, matches, marks)| LaneRule {
        origin,
        priority: precedence,
        request_match: matches,
        marks,
    });
    btree_map(1u16.., vec(rule, 0..3), 0..3)
}

fn any_texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..3)
}

fn any_origin() -> impl Strategy<Value = RuleOrigin> {
    let dialects = [TagDialect::TagRoute, TagDialect::Sermant, TagDialect::Lane];
    (proptest::sample::select(dialects.to_vec()), any_name(), any::<u32>()).prop_map(
        |(dialect, name, index)| RuleOrigin {
            dialect,
            name: TagRouteName { namespace: name.clone(), name },
            index,
        },
    )
}

fn any_fallback_policy() -> impl Strategy<Value = Vec<FallbackPolicy>> {
    vec(proptest::sample::select(vec![FallbackPolicy::Any, FallbackPolicy::Default]), 0..3)
}

fn any_tag_rule() -> impl Strategy<Value = TagRule> {
    let sticky = prop_oneof![
        Just(None),
        "[a-z]{1,4}".prop_map(|name| Some(StickyKey::Header(name))),
        "[a-z]{1,4}".prop_map(|name| Some(StickyKey::Cookie(name)))
    ];
    (
        any_origin(),
        any::<i32>(),
        any_callers(),
        any_tag_match(),
        (any_tag_split(), any_tag_split()),
        any_fallback_policy(),
        sticky,
    )
        .prop_map(
            |(origin, precedence, from, matches, (split, fallback), fallback_policy, sticky)| {
                TagRule {
                    origin,
                    priority: precedence,
                    from,
                    request_match: matches,
                    split,
                    fallback,
                    fallback_policy,
                    sticky,
                }
            },
        )
}

fn any_caller_rule() -> impl Strategy<Value = CallerRule> {
    (any_origin(), any_callers(), any_tag_split(), any::<u32>(), any::<u32>(), any::<bool>())
        .prop_map(|(origin, from, split, min_percent, min_total, goes_on)| CallerRule {
            origin,
            from,
            split,
            min_percent,
            min_total,
            continues: goes_on,
        })
}

fn any_tag_split() -> impl Strategy<Value = TagSplit> {
    let value = prop_oneof!["[a-z]{0,3}".prop_map(TagValue::Exact), Just(TagValue::SameAsCaller)];
    let tags = btree_map("[a-z]{1,3}", value, 0..3);
    let set = prop_oneof![
        tags.clone().prop_map(TagSet::All),
        tags.prop_map(TagSet::Any),
        Just(TagSet::Default),
        Just(TagSet::AllInstances)
    ];
    let target = (any::<u32>(), set).prop_map(|(weight, set)| TagTarget { weight, set });
    let weights = proptest::sample::select(vec![WeightUnit::Relative, WeightUnit::Percent]);
    (vec(target, 0..3), weights).prop_map(|(targets, weights)| TagSplit { targets, weights })
}

fn any_callers() -> impl Strategy<Value = CallerMatch> {
    (prop::option::of(any_service_name()), any_field_tests(), any_quorum())
        .prop_map(|(service, tags, quorum)| CallerMatch { service, tags, quorum })
}

fn any_quorum() -> impl Strategy<Value = Quorum> {
    proptest::sample::select(vec![Quorum::All, Quorum::Any])
}

fn any_tag_match() -> impl Strategy<Value = TagMatch> {
    let repeated = proptest::sample::select(vec![RepeatedHeader::Joined, RepeatedHeader::First]);
    let stem = prop::option::of("[a-z]{0,3}");
    (
        any_request_match(),
        any_field_tests(),
        (any_quorum(), repeated),
        any_field_tests(),
        any_field_tests(),
        stem,
    )
        .prop_map(|(request, headers, (quorum, repeated), query, cookies, stem)| TagMatch {
            path: request.path,
            methods: request.methods,
            headers,
            quorum,
            repeated,
            query,
            cookies,
            stem,
        })
}

fn any_field_tests() -> impl Strategy<Value = Vec<FieldTest>> {
    let text = [
        TextRelation::Exact,
        TextRelation::Prefix,
        TextRelation::Regex,
        TextRelation::In,
        TextRelation::NotEqual,
    ];
    let number = [
        NumberRelation::GreaterThan,
        NumberRelation::AtLeast,
        NumberRelation::LessThan,
        NumberRelation::AtMost,
    ];
    let text = (proptest::sample::select(text.to_vec()), vec("[a-z]{0,3}", 0..3), any::<bool>());
    let number = (proptest::sample::select(number.to_vec()), any::<i64>());
    let test = prop_oneof![
        Just(ValueTest::Present),
        Just(ValueTest::Absent),
        Just(ValueTest::Never),
        text.prop_map(|(relation, texts, ignore_case)| ValueTest::Text {
            relation,
            texts,
            ignore_case
        }),
        number.prop_map(|(relation, bound)| ValueTest::Number { relation, bound })
    ];
    vec(("[a-z]{1,3}", test).prop_map(|(name, test)| FieldTest { name, test }), 0..3)
}
