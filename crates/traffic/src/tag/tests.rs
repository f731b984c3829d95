//! Tests of tag rules that the vectors do not cover: indexing, sticky clients, reuse and descriptions.

use std::collections::BTreeMap;

use leno_model::{
    CallerMatch, CallerRule, EndpointId, FallbackPolicy, FieldTest, LaneMark, LaneRule, PathMatch,
    Quorum, RepeatedHeader, RuleOrigin, ServiceAccount, ServiceName, StickyKey, TagDialect,
    TagMatch, TagRouteName, TagRule, TagSet, TagSplit, TagTarget, TagValue, TextRelation,
    ValueTest, WorkloadName,
};
use proptest::prelude::*;

use super::*;

fn rule_origin(index: u32) -> RuleOrigin {
    let name = TagRouteName::new("shop", "orders").unwrap();
    RuleOrigin { dialect: TagDialect::TagRoute, name, index }
}

fn tag_map(tags: &[(&str, &str)]) -> BTreeMap<String, String> {
    tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn all_tags(names: &[(&str, &str)]) -> TagSet {
    let tags = tag_map(names).into_iter();
    TagSet::All(tags.map(|(name, value)| (name, TagValue::Exact(value))).collect())
}

fn split_to(set: TagSet) -> TagSplit {
    TagSplit { targets: vec![TagTarget { weight: 1, set }], ..TagSplit::default() }
}

fn tag_rule(index: u32, matches: TagMatch, split: TagSplit) -> TagRule {
    TagRule {
        origin: rule_origin(index),
        priority: 0,
        from: CallerMatch::default(),
        request_match: matches,
        split,
        fallback: TagSplit::default(),
        fallback_policy: Vec::new(),
        sticky: None,
    }
}

fn exact_test(name: &str, value: &str) -> FieldTest {
    let test = ValueTest::Text {
        relation: TextRelation::Exact,
        texts: vec![value.to_owned()],
        ignore_case: false,
    };
    FieldTest { name: name.to_owned(), test }
}

fn by_header(name: &str, value: &str) -> TagMatch {
    TagMatch { headers: vec![exact_test(name, value)], ..TagMatch::default() }
}

fn tagged_endpoints(workloads: &[(&str, &[(&str, &str)])]) -> Endpoints {
    let endpoint = |(name, labels): &(&str, &[(&str, &str)])| {
        Arc::new(Endpoint {
            id: EndpointId {
                service: ServiceName::new("shop", "orders").unwrap(),
                port: 80,
                workload: WorkloadName::new("shop", name).unwrap(),
            },
            address: ([127, 0, 0, 1], 1).into(),
            account: ServiceAccount::new("shop", "orders").ok(),
            tags: tag_map(labels),
            weight: None,
        })
    };
    workloads.iter().map(endpoint).collect()
}

fn test_instances() -> Endpoints {
    tagged_endpoints(&[("old", &[("version", "1")]), ("new", &[("version", "2")]), ("bare", &[])])
}

fn tag_rules(rules: Vec<TagRule>) -> TagRules {
    TagRules { rules, fallback_policy: vec![FallbackPolicy::Default], caller_rules: Vec::new() }
}

fn compile_rules(rules: TagRules) -> CompiledTagRules {
    CompiledTagRules::build(&Arc::new(rules), &CallerAttributes::default(), &test_instances(), None)
        .unwrap()
}

fn request_view(fields: &Vec<(String, String)>) -> RequestView<'_> {
    RequestView { method: "GET", path: "/a", query: None, authority: "orders", fields }
}

fn one_header(name: &str, value: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), value.to_owned())]
}

fn workload_names(decision: &TagDecision<'_>) -> Vec<String> {
    let endpoints = decision.endpoints.map_or(&[][..], |endpoints| endpoints);
    endpoints.iter().map(|endpoint| endpoint.id.workload.name.to_string()).collect()
}

fn no_random() -> u64 {
    panic!("a single choice needs no random number")
}

#[test]
fn a_rule_selects_by_tags_and_other_requests_go_to_untagged_instances() {
    let compiled = compile_rules(tag_rules(vec![tag_rule(
        0,
        by_header("x", "1"),
        split_to(all_tags(&[("version", "2")])),
    )]));
    let (matching, unmatched) = (one_header("x", "1"), one_header("x", "2"));
    assert_eq!(
        workload_names(&compiled.choose_instances(&request_view(&matching), &mut no_random)),
        ["new"]
    );
    assert_eq!(
        workload_names(&compiled.choose_instances(&request_view(&unmatched), &mut no_random)),
        ["old", "bare"]
    );
    assert_eq!(
        workload_names(&compiled.choose_without_request(&mut no_random)),
        ["old", "new", "bare"]
    );
}

#[test]
fn a_service_without_instances_is_not_reported_as_a_tag_mismatch() {
    let rules = Arc::new(tag_rules(vec![tag_rule(
        0,
        TagMatch::default(),
        split_to(all_tags(&[("version", "9")])),
    )]));
    let fields = Vec::new();
    let build = |endpoints| {
        CompiledTagRules::build(&rules, &CallerAttributes::default(), &endpoints, None).unwrap()
    };
    let compiled = build(test_instances());
    assert!(compiled.choose_instances(&request_view(&fields), &mut no_random).endpoints.is_none());
    let compiled = build(tagged_endpoints(&[]));
    assert!(
        compiled
            .choose_instances(&request_view(&fields), &mut no_random)
            .endpoints
            .is_some_and(|endpoints| endpoints.is_empty())
    );
}

#[test]
fn compiled_rules_are_reused_when_instances_change() {
    let source =
        tag_rules(vec![tag_rule(0, TagMatch::default(), split_to(all_tags(&[("version", "2")])))]);
    let previous_rules = compile_rules(source.clone());
    let build = |rules: TagRules, caller: &CallerAttributes| {
        CompiledTagRules::build(
            &Arc::new(rules),
            caller,
            &tagged_endpoints(&[("n", &[("version", "2")])]),
            Some(&previous_rules),
        )
    };
    let rebuilt_rules = build(source.clone(), &CallerAttributes::default()).unwrap();
    assert!(Arc::ptr_eq(&previous_rules.compiled, &rebuilt_rules.compiled));
    assert_eq!(
        workload_names(&rebuilt_rules.choose_instances(&request_view(&Vec::new()), &mut no_random)),
        ["n"]
    );
    let other_caller = CallerAttributes { has_parameters: true, ..CallerAttributes::default() };
    let rebuilt_rules = build(source.clone(), &other_caller).unwrap();
    assert!(!Arc::ptr_eq(&previous_rules.compiled, &rebuilt_rules.compiled));
    let rebuilt_rules =
        build(TagRules { fallback_policy: Vec::new(), ..source }, &CallerAttributes::default())
            .unwrap();
    assert!(!Arc::ptr_eq(&previous_rules.compiled, &rebuilt_rules.compiled));
}

#[test]
fn a_sticky_client_retains_its_target_as_shares_grow() {
    let split = |weight| TagSplit {
        targets: [(weight, "2"), (100 - weight, "1")]
            .map(|(weight, version)| TagTarget { weight, set: all_tags(&[("version", version)]) })
            .to_vec(),
        ..TagSplit::default()
    };
    for sticky in [StickyKey::Header("x-user".to_owned()), StickyKey::Cookie("user".to_owned())] {
        let compile_with_weight = |weight| {
            let sticky = Some(sticky.clone());
            compile_rules(tag_rules(vec![TagRule {
                sticky,
                ..tag_rule(0, TagMatch::default(), split(weight))
            }]))
        };
        let (small, large) = (compile_with_weight(10), compile_with_weight(30));
        let mut shares = [0, 0];
        for user in 0..1000 {
            let fields = match &sticky {
                StickyKey::Header(name) => one_header(name, &format!("u{user}")),
                StickyKey::Cookie(name) => {
                    one_header("cookie", &format!("a=b; {name}=u{user}; c=d"))
                }
            };
            let is_at_new = |compiled: &CompiledTagRules| {
                workload_names(&compiled.choose_instances(&request_view(&fields), &mut no_random))
                    == ["new"]
            };
            assert!(!is_at_new(&small) || is_at_new(&large), "a client keeps the new version");
            shares[0] += u32::from(is_at_new(&small));
            shares[1] += u32::from(is_at_new(&large));
        }
        assert!((70..130).contains(&shares[0]) && (250..350).contains(&shares[1]), "{shares:?}");
        // Without the value the choice is random.
        let fields = Vec::new();
        let targets = [5, 95].map(|random| {
            workload_names(&small.choose_instances(&request_view(&fields), &mut || random))
        });
        assert_eq!(targets, [["new"], ["old"]]);
    }
}

#[test]
fn a_cookie_is_found_among_others() {
    let find_cookie = |field: &str, name: &str| {
        let fields = one_header("Cookie", field);
        cookie_value(&request_view(&fields), name).map(std::borrow::Cow::into_owned)
    };
    for (field, name, expected) in [
        ("a=1", "a", Some("1")),
        ("a=1; b=2", "b", Some("2")),
        ("a=1;b=2 ; c=3", "b", Some("2")),
        ("ab=1; b=x=y", "b", Some("x=y")),
        ("a; b=", "b", Some("")),
        ("a; b=", "a", None),
        ("", "a", None),
    ] {
        assert_eq!(find_cookie(field, name).as_deref(), expected, "{field} {name}");
    }
}

#[test]
fn caller_preferences_that_continue_are_tried_in_order() {
    let preference = |index, name: &str| CallerRule {
        origin: rule_origin(index),
        from: CallerMatch {
            tags: vec![FieldTest { name: name.to_owned(), test: ValueTest::Present }],
            ..CallerMatch::default()
        },
        split: split_to(TagSet::All(BTreeMap::from([(name.to_owned(), TagValue::SameAsCaller)]))),
        min_percent: 0,
        min_total: 0,
        continues: true,
    };
    let rules = TagRules {
        caller_rules: vec![preference(0, "zone"), preference(1, "region")],
        ..TagRules::default()
    };
    let instances = tagged_endpoints(&[
        ("near", &[("zone", "a"), ("region", "r")]),
        ("far", &[("zone", "b"), ("region", "r")]),
        ("away", &[("zone", "c"), ("region", "s")]),
    ]);
    let caller_with = |tags: &[(&str, &str)]| CallerAttributes {
        tags: tag_map(tags),
        has_parameters: true,
        ..CallerAttributes::default()
    };
    for (tags, expected) in [
        (&[("zone", "a"), ("region", "r")][..], &["near"][..]),
        (&[("zone", "x"), ("region", "r")], &["near", "far"]),
        (&[("region", "s")], &["away"]),
        (&[("zone", "x"), ("region", "y")], &["near", "far", "away"]),
        (&[], &["near", "far", "away"]),
    ] {
        let caller = caller_with(tags);
        let compiled =
            CompiledTagRules::build(&Arc::new(rules.clone()), &caller, &instances, None).unwrap();
        assert_eq!(
            workload_names(&compiled.choose_without_request(&mut no_random)),
            expected,
            "{caller:?}"
        );
        assert_eq!(
            workload_names(&compiled.choose_instances(&request_view(&Vec::new()), &mut no_random)),
            expected,
            "{caller:?}"
        );
    }
    let fallback_sizes = |rules: &TagRules, tags: &[(&str, &str)]| {
        let caller = caller_with(tags);
        let compiled =
            CompiledTagRules::build(&Arc::new(rules.clone()), &caller, &instances, None).unwrap();
        let lists = compiled.choose_without_request(&mut no_random).fallbacks.into_iter();
        lists.flat_map(|lists| lists.iter().map(|list| list.len())).collect::<Vec<_>>()
    };
    assert_eq!(
        fallback_sizes(&rules, &[("zone", "a"), ("region", "r")]),
        [2, 3],
        "the fallbacks are the region and all instances"
    );
    assert_eq!(fallback_sizes(&rules, &[("zone", "a")]), [3]);
    assert_eq!(fallback_sizes(&rules, &[("zone", "x")]), [0; 0], "no instance is preferred");
    let mut sermant_rules = rules;
    sermant_rules
        .caller_rules
        .iter_mut()
        .for_each(|rule| rule.origin.dialect = TagDialect::Sermant);
    assert_eq!(
        fallback_sizes(&sermant_rules, &[("zone", "a")]),
        [0; 0],
        "rules of Sermant never yield"
    );
}

#[test]
fn outcomes_cover_every_result_with_its_probability() {
    let split = TagSplit {
        targets: [(1, "2"), (3, "1")]
            .map(|(weight, version)| TagTarget { weight, set: all_tags(&[("version", version)]) })
            .to_vec(),
        ..TagSplit::default()
    };
    let compiled = compile_rules(tag_rules(vec![tag_rule(0, TagMatch::default(), split)]));
    let outcomes = compiled.all_outcomes(Some(&request_view(&Vec::new())));
    let reported: Vec<(f64, Option<&str>)> =
        outcomes.iter().map(|outcome| (outcome.share, outcome.set.as_deref())).collect();
    assert_eq!(reported, [(0.25, Some("version=2")), (0.75, Some("version=1"))]);
    let connection_outcomes = compiled.all_outcomes(None);
    assert_eq!(connection_outcomes.len(), 1);
    assert_eq!(connection_outcomes[0].set.as_deref(), Some("any instance"));
}

#[test]
fn a_lane_adds_headers_to_its_share_and_keeps_existing_ones() {
    let lane = LaneRule {
        origin: rule_origin(0),
        priority: 0,
        request_match: by_header("id", "1"),
        marks: vec![LaneMark {
            percent: 60,
            headers: tag_map(&[("x-lane", "gray"), ("x-way", "n")]),
        }],
    };
    let lanes = Lanes::compile(&BTreeMap::from([(80, vec![lane])])).unwrap();
    assert!(lanes.may_add_headers(80) && !lanes.may_add_headers(81));
    let marks = |port, fields: &Vec<(String, String)>, random: u64| {
        let view = request_view(fields);
        let marks = lanes.headers_for_request(port, &view, &mut || random);
        marks
            .missing_headers(&view)
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
    };
    let unmarked = one_header("id", "1");
    assert_eq!(marks(80, &unmarked, 59), ["x-lane=gray", "x-way=n"]);
    assert!(marks(80, &unmarked, 60).is_empty());
    assert!(marks(81, &unmarked, 0).is_empty());
    assert!(marks(80, &one_header("id", "2"), 0).is_empty());
    let marked = vec![unmarked[0].clone(), ("X-Lane".to_owned(), "blue".to_owned())];
    assert_eq!(marks(80, &marked, 0), ["x-way=n"]);
}

/// Returns rules with a small set of headers and values, so that several often match.
fn any_match() -> impl Strategy<Value = TagMatch> {
    let relation = prop_oneof![
        Just(TextRelation::Exact),
        Just(TextRelation::In),
        Just(TextRelation::Prefix),
        Just(TextRelation::Regex),
        Just(TextRelation::NotEqual)
    ];
    let test =
        (prop_oneof!["a", "b"], relation, prop::collection::vec("[1-3]", 1..3), any::<bool>());
    let test = test.prop_map(|(name, relation, texts, ignore_case)| FieldTest {
        name,
        test: ValueTest::Text { relation, texts, ignore_case },
    });
    let path = prop_oneof![
        3 => Just(PathMatch::Any),
        1 => prop_oneof!["/a", "/b"].prop_map(PathMatch::Exact),
        1 => prop_oneof!["/", "/a", "/a/", "/a/b", "/b"].prop_map(PathMatch::Prefix),
        1 => prop::sample::select(vec!["/[ab]", "/a/.*", "/a.*", ".*"])
            .prop_map(|text| PathMatch::Regex(text.to_owned())),
    ];
    let headers = prop::collection::vec(test, 0..3);
    (headers, path, any::<bool>(), any::<bool>()).prop_map(
        |(headers, path, one_suffices, uses_first)| TagMatch {
            headers,
            path,
            quorum: if one_suffices { Quorum::Any } else { Quorum::All },
            repeated: if uses_first { RepeatedHeader::First } else { RepeatedHeader::Joined },
            ..TagMatch::default()
        },
    )
}

proptest! {
    #[test]
    fn indexed_lookup_agrees_with_sequential_evaluation(
        matches in prop::collection::vec(any_match(), 0..12),
        fields in prop::collection::vec((prop_oneof!["a", "b"], "[1-4]"), 0..4),
        path in prop::sample::select(vec!["/a", "/a/b", "/ab", "/b", "/"]),
    ) {
        let rules = matches.iter().enumerate().map(|(index, matches)| {
            tag_rule(u32::try_from(index).unwrap(), matches.clone(), split_to(TagSet::AllInstances))
        });
        let compiled = RulesForCaller::from_rules(&tag_rules(rules.collect()), &CallerAttributes::default()).unwrap();
        let fields: Vec<(String, String)> = fields;
        let request = RequestView { path, ..request_view(&fields) };
        let expected = matches.iter().position(|matches| {
            matcher::TagMatcher::compile(matches).unwrap().matches(&request)
        });
        prop_assert_eq!(compiled.find_rule(&request).map(|rule| rule.index), expected);
        // Lanes are indexed in the same way.
        let lane_rule = |(index, matches): (u32, &TagMatch)| LaneRule {
            origin: rule_origin(index),
            priority: 0,
            request_match: matches.clone(),
            marks: Vec::new(),
        };
        let lanes = (0..).zip(&matches).map(lane_rule).collect();
        let lanes = Lanes::compile(&BTreeMap::from([(80, lanes)])).unwrap();
        let marked = lanes.headers_for_request(80, &request, &mut || 0).rule;
        let marked = marked.map(|(origin, _)| usize::try_from(origin.index).unwrap());
        prop_assert_eq!(marked, expected);
    }
}
