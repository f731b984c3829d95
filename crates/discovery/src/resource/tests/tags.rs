//! Random tag rules, callers and lanes.

use std::collections::BTreeMap;

use leno_model::{
    Caller, CallerRule, Callers, FieldTest, LaneMark, LaneRule, NumberRelation, Otherwise, Quorum,
    Repeated, RuleOrigin, Sticky, TagDialect, TagMatch, TagRouteName, TagRule, TagRules, TagSet,
    TagSplit, TagTarget, TagValue, TextRelation, ValueTest, Weights,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::{name, request, service_name};

pub(super) fn rules() -> impl Strategy<Value = TagRules> {
    (vec(rule(), 0..3), otherwise(), vec(caller_rule(), 0..2))
        .prop_map(|(rules, otherwise, by_caller)| TagRules { rules, otherwise, by_caller })
}

pub(super) fn caller() -> impl Strategy<Value = Caller> {
    (btree_set(service_name(), 0..3), texts(), any::<bool>())
        .prop_map(|(services, tags, has_parameters)| Caller { services, tags, has_parameters })
}

pub(super) fn lanes() -> impl Strategy<Value = BTreeMap<u16, Vec<LaneRule>>> {
    let mark = (any::<u32>(), texts());
    let mark = mark.prop_map(|(percent, headers)| LaneMark { percent, headers });
    let rule = (origin(), any::<i32>(), matches(), vec(mark, 0..3));
    let rule = rule.prop_map(|(origin, precedence, matches, marks)| LaneRule {
        origin,
        precedence,
        matches,
        marks,
    });
    btree_map(1u16.., vec(rule, 0..3), 0..3)
}

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..3)
}

fn origin() -> impl Strategy<Value = RuleOrigin> {
    let dialects = [TagDialect::TagRoute, TagDialect::Sermant, TagDialect::Lane];
    (proptest::sample::select(dialects.to_vec()), name(), any::<u32>()).prop_map(
        |(dialect, name, index)| RuleOrigin {
            dialect,
            name: TagRouteName { namespace: name.clone(), name },
            index,
        },
    )
}

fn otherwise() -> impl Strategy<Value = Vec<Otherwise>> {
    vec(proptest::sample::select(vec![Otherwise::Any, Otherwise::Default]), 0..3)
}

fn rule() -> impl Strategy<Value = TagRule> {
    let sticky = prop_oneof![
        Just(None),
        "[a-z]{1,4}".prop_map(|name| Some(Sticky::Header(name))),
        "[a-z]{1,4}".prop_map(|name| Some(Sticky::Cookie(name)))
    ];
    (origin(), any::<i32>(), callers(), matches(), (split(), split()), otherwise(), sticky)
        .prop_map(|(origin, precedence, from, matches, (split, fallback), otherwise, sticky)| {
            TagRule { origin, precedence, from, matches, split, fallback, otherwise, sticky }
        })
}

fn caller_rule() -> impl Strategy<Value = CallerRule> {
    (origin(), callers(), split(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(
        |(origin, from, split, min_percent, min_total, goes_on)| CallerRule {
            origin,
            from,
            split,
            min_percent,
            min_total,
            goes_on,
        },
    )
}

fn split() -> impl Strategy<Value = TagSplit> {
    let value = prop_oneof!["[a-z]{0,3}".prop_map(TagValue::Is), Just(TagValue::Callers)];
    let tags = btree_map("[a-z]{1,3}", value, 0..3);
    let set = prop_oneof![
        tags.clone().prop_map(TagSet::All),
        tags.prop_map(TagSet::Any),
        Just(TagSet::Default),
        Just(TagSet::Every)
    ];
    let target = (any::<u32>(), set).prop_map(|(weight, set)| TagTarget { weight, set });
    let weights = proptest::sample::select(vec![Weights::Relative, Weights::Percent]);
    (vec(target, 0..3), weights).prop_map(|(targets, weights)| TagSplit { targets, weights })
}

fn callers() -> impl Strategy<Value = Callers> {
    (prop::option::of(service_name()), tests(), quorum())
        .prop_map(|(service, tags, quorum)| Callers { service, tags, quorum })
}

fn quorum() -> impl Strategy<Value = Quorum> {
    proptest::sample::select(vec![Quorum::All, Quorum::One])
}

fn matches() -> impl Strategy<Value = TagMatch> {
    let repeated = proptest::sample::select(vec![Repeated::Joined, Repeated::First]);
    let stem = prop::option::of("[a-z]{0,3}");
    (request(), tests(), (quorum(), repeated), tests(), tests(), stem).prop_map(
        |(request, headers, (quorum, repeated), query, cookies, stem)| TagMatch {
            path: request.path,
            methods: request.methods,
            headers,
            quorum,
            repeated,
            query,
            cookies,
            stem,
        },
    )
}

fn tests() -> impl Strategy<Value = Vec<FieldTest>> {
    let text = [
        TextRelation::Exact,
        TextRelation::Prefix,
        TextRelation::Regex,
        TextRelation::In,
        TextRelation::Not,
    ];
    let number = [
        NumberRelation::Above,
        NumberRelation::AtLeast,
        NumberRelation::Below,
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
