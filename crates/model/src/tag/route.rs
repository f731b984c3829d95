//! Defines the `spec` of a `TagRoute`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::condition::{COOKIE_NAME, MAX_TESTS, TAG_NAME, into_field_tests};
use super::{
    CallerMatch, CallerRule, FallbackPolicy, FieldTest, RuleOrigin, StickyKey, TagDialect,
    TagMatch, TagRoute, TagRule, TagRules, TagScope, TagSet, TagSplit, TagTarget, TagValue,
    ValueTest, WeightUnit,
};
use crate::definition::{
    Definition, Entries, HEADER_NAME, LABEL, ManifestBuilder, ManifestValue, Schema, TextSchema,
    normalize_header_name,
};
use crate::name::{Name, ServiceName, TagRouteName};

/// The `spec` of a `TagRoute`.
#[derive(Debug, Definition)]
pub struct TagRouteSpec {
    /// The traffic that the rules apply to.
    #[field(include)]
    scope: TagScope,
    /// The rules.
    #[field(include)]
    rules: TagRuleFields,
}

impl TagRouteSpec {
    /// Returns the route with this name. Its rules by request are in descending precedence.
    #[must_use]
    pub fn into_route(self, name: TagRouteName) -> TagRoute {
        let origin =
            |index| RuleOrigin { dialect: TagDialect::TagRoute, name: name.clone(), index };
        let TagRuleFields { fallback_policy, rules, prefer_same_tag } = self.rules;
        let fallback_policy = fallback_policy.unwrap_or_default().0;
        let rules = (0..).zip(rules);
        let mut rules: Vec<TagRule> =
            rules.map(|(index, rule)| rule.into_rule(origin(index), &fallback_policy)).collect();
        rules.sort_by_key(|rule| Reverse(rule.priority));
        let preferences = (0..).zip(prefer_same_tag);
        let caller_rules =
            preferences.map(|(index, preference)| preference.into_rule(origin(index))).collect();
        let rules = TagRules { rules, fallback_policy, caller_rules };
        TagRoute { name, scope: self.scope, rules, created: 0 }
    }
}

/// The fields of a scope.
#[derive(Definition)]
#[definition(
    builds = TagScope,
    cel("!has(self.port) || has(self.service)", "port requires service")
)]
struct ScopeFields {
    /// The services.
    #[field(include)]
    services: ScopeKey,
    /// Port of the service.
    #[field(integer(1, 65535), absent = "every port")]
    port: Option<u16>,
}

/// The key of a scope.
#[derive(Definition)]
#[definition(noun = "scope")]
enum ScopeKey {
    /// Service of the same namespace that the rules apply to.
    #[field(text = LABEL)]
    Service(Name),
    /// Services that the rules apply to: every service of the namespace without rules of its own, or every service of the
    /// mesh without rules of its own or of its namespace.
    Scope(ScopeWord),
}

/// The scopes of several services.
#[derive(Definition)]
enum ScopeWord {
    #[field(name = "namespace")]
    Namespace,
    #[field(name = "mesh")]
    Mesh,
}

impl ScopeFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<TagScope> {
        let namespace = builder.namespace().clone();
        let scope = match self.services {
            ScopeKey::Service(name) => {
                return Some(TagScope::Service(ServiceName { namespace, name }, self.port));
            }
            ScopeKey::Scope(ScopeWord::Namespace) => TagScope::Namespace(namespace),
            ScopeKey::Scope(ScopeWord::Mesh) => TagScope::Mesh,
        };
        if self.port.is_some() {
            builder.reject_field("port", "requires `service`", "remove it, or name a `service`");
            return None;
        }
        Some(scope)
    }
}

/// The fields of the rules.
#[derive(Debug, Definition)]
#[definition(
    check = Self::with_rules,
    cel("has(self.rules) || has(self.preferSameTag)", "has no rules: set rules or preferSameTag")
)]
struct TagRuleFields {
    /// Instances for requests that match no rule, and for requests without instances in the targets of their rule: any
    /// instance, the instances that no target of any rule selects by tags, or none. A list is tried in order: `[default, any]`
    /// or `[default, fail]`. The field is required if there are `rules`.
    fallback_policy: Option<FallbackPolicies>,
    /// Rules by request. The first rule that matches a request applies: by descending `precedence`, then of the oldest
    /// TagRoute, then by the name of the TagRoute, then by the order in the list.
    #[field(list(0, MAX_RULES))]
    rules: Vec<TagRuleSpec>,
    /// Rules by caller: preferences for instances with the same tags as the caller. The first one that applies is used.
    #[field(list(0, MAX_TARGETS))]
    prefer_same_tag: Vec<TagPreference>,
}

impl TagRuleFields {
    fn with_rules(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.rules.is_empty() && self.prefer_same_tag.is_empty() {
            builder.reject("has no rules", "add `rules` or `preferSameTag`");
            return None;
        }
        if !self.rules.is_empty() && self.fallback_policy.is_none() {
            builder.reject_field("fallbackPolicy", "is missing", "add `fallbackPolicy`");
            return None;
        }
        Some(self)
    }
}

/// The fallbacks in order of preference. The word `fail` adds none: requests fail if no listed policy selects an instance.
#[derive(Debug, Default)]
struct FallbackPolicies(Vec<FallbackPolicy>);

/// A fallback as written in manifests.
#[derive(Clone, Copy, PartialEq, Eq, Definition)]
enum FallbackWord {
    #[field(name = "any")]
    Any,
    #[field(name = "default")]
    Default,
    #[field(name = "fail")]
    Fail,
}

impl Definition for FallbackPolicies {
    const SCHEMA: Schema = Schema::Either {
        scalar: &FallbackWord::SCHEMA,
        collection: &Schema::List { element: &FallbackWord::SCHEMA, min: 1, max: 2, unique: false },
    };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let words: Vec<FallbackWord> = match value {
            ManifestValue::List(_) => Vec::build(value, builder)?,
            word => vec![FallbackWord::build(word, builder)?],
        };
        // Requests always have an instance after `any`, and never after `fail`.
        let (last, preceding) = words.split_last()?;
        if preceding.iter().any(|word| *word != FallbackWord::Default) || preceding.contains(last) {
            builder.reject(
                "has an unreachable value",
                "use `any`, `default`, `fail`, `[default, any]` or `[default, fail]`",
            );
            return None;
        }
        let policies = words.iter().filter_map(|word| match word {
            FallbackWord::Any => Some(FallbackPolicy::Any),
            FallbackWord::Default => Some(FallbackPolicy::Default),
            FallbackWord::Fail => None,
        });
        Some(Self(policies.collect()))
    }
}

/// A rule by request.
#[derive(Debug, Definition)]
struct TagRuleSpec {
    /// Rank of the rule. A rule with a greater number is evaluated first.
    #[field(integer(0, MAX_PRECEDENCE), default = "0")]
    precedence: i32,
    /// Callers that the rule applies to.
    #[field(absent = "all callers")]
    from: Option<CallerMatch>,
    /// Conditions on the request, all of which must hold.
    #[field(name = "match", absent = "every request")]
    request_match: Option<TagMatch>,
    /// Targets among which the requests are split by weight.
    split: TagSplit,
    /// Targets for requests to a target of `split` without instances.
    #[field(absent = "no targets")]
    fallback: Option<TagSplit>,
    /// Instances for requests without instances in `split` and `fallback`.
    #[field(absent = "the `fallbackPolicy` of the TagRoute")]
    fallback_policy: Option<FallbackPolicies>,
    /// Header or cookie whose value selects the target, so that a client stays with its target. The choice is random without
    /// the value.
    #[field(absent = "a random choice")]
    sticky: Option<StickyKey>,
}

impl TagRuleSpec {
    /// Returns the rule. `inherited_policy` applies if the rule has no fallback policy.
    fn into_rule(self, origin: RuleOrigin, inherited_policy: &[FallbackPolicy]) -> TagRule {
        let fallback_policy = match self.fallback_policy {
            Some(FallbackPolicies(policies)) => policies,
            None => inherited_policy.to_vec(),
        };
        TagRule {
            origin,
            priority: self.precedence,
            from: self.from.unwrap_or_default(),
            request_match: self.request_match.unwrap_or_default(),
            split: self.split,
            fallback: self.fallback.unwrap_or_default(),
            fallback_policy,
            sticky: self.sticky,
        }
    }
}

/// The fields of a match on callers.
#[derive(Definition)]
#[definition(builds = CallerMatch)]
struct CallerMatchFields {
    /// Service that selects the calling workload.
    #[field(text = LABEL, absent = "any service")]
    service: Option<Name>,
    /// Namespace of the service.
    #[field(text = LABEL, absent = "the namespace of the TagRoute")]
    namespace: Option<Name>,
    /// Tests of the labels of the calling workload, by name.
    #[field(entries(0, MAX_TESTS), key = TAG_NAME, absent = "any labels")]
    tags: Entries<ValueTest>,
}

impl CallerMatchFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<CallerMatch> {
        let tags = into_field_tests(self.tags);
        if self.service.is_none() && tags.is_empty() {
            builder.reject("is empty", "name a `service` or `tags`, or remove it");
            return None;
        }
        let namespace = self.namespace.unwrap_or_else(|| builder.namespace().clone());
        let service = self.service.map(|name| ServiceName { namespace, name });
        Some(CallerMatch { service, tags, ..CallerMatch::default() })
    }
}

/// The targets of a split; at least one weight is above 0.
impl Definition for TagSplit {
    const SCHEMA: Schema =
        Schema::List { element: &TagTarget::SCHEMA, min: 1, max: MAX_TARGETS, unique: false };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let targets: Vec<TagTarget> = Vec::build(value, builder)?;
        // The reader rejects an empty list.
        if !targets.is_empty() && targets.iter().all(|target| target.weight == 0) {
            builder.reject("has no target with a weight above 0", "add one");
            return None;
        }
        Some(Self { targets, weights: WeightUnit::Relative })
    }
}

/// The fields of a target.
#[derive(Definition)]
#[definition(builds = TagTarget)]
struct TargetFields {
    /// Share of the requests, relative to the sum of the weights.
    #[field(integer(0, MAX_WEIGHT), default = "1")]
    weight: u32,
    /// The set of instances.
    #[field(include)]
    set: TargetKey,
}

/// The key of a set of instances.
#[derive(Definition)]
#[definition(noun = "instances")]
enum TargetKey {
    /// Tags, all of which the instances must have.
    #[field(entries(1, MAX_TARGETS), key = TAG_NAME, text = TAG_VALUE)]
    Tags(BTreeMap<String, String>),
    /// Set of instances: those that no target of any rule selects by tags, or any.
    Instances(InstancesWord),
}

/// The sets of instances with a name.
#[derive(Definition)]
enum InstancesWord {
    #[field(name = "default")]
    Default,
    #[field(name = "any")]
    Any,
}

impl TargetFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> TagTarget {
        let Self { weight, set } = self;
        let set = match set {
            TargetKey::Tags(tags) => {
                let exact = |(name, value)| (name, TagValue::Exact(value));
                TagSet::All(tags.into_iter().map(exact).collect())
            }
            TargetKey::Instances(InstancesWord::Default) => TagSet::Default,
            TargetKey::Instances(InstancesWord::Any) => TagSet::AllInstances,
        };
        TagTarget { weight, set }
    }
}

/// The source of the value that assigns a client to a target.
#[derive(Definition)]
#[definition(noun = "key", builds = StickyKey)]
enum StickySource {
    /// Name of the header, in any case.
    #[field(text = HEADER_NAME)]
    Header(String),
    /// Name of the cookie.
    #[field(text = COOKIE_NAME)]
    Cookie(String),
}

impl StickySource {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> StickyKey {
        match self {
            StickySource::Header(name) => StickyKey::Header(normalize_header_name(&name)),
            StickySource::Cookie(name) => StickyKey::Cookie(name),
        }
    }
}

/// A preference for the instances with the caller's values of some tags.
#[derive(Debug, Definition)]
struct TagPreference {
    /// Tags whose values must be those of the caller.
    #[field(list(1, MAX_TARGETS), text = TAG_NAME, required)]
    tags: Vec<String>,
    /// Minimum share of the preferred instances in percent. With a smaller share, the preference does not apply.
    #[field(integer(0, 100), default = "0")]
    min_percent: u32,
    /// Minimum total number of instances for `minPercent`. With fewer instances, the preference applies regardless of the
    /// share.
    #[field(integer(0, MAX_WEIGHT), default = "0")]
    min_total: u32,
}

impl TagPreference {
    /// Returns the preference as a rule that selects instances with the caller's values of the tags.
    fn into_rule(self, origin: RuleOrigin) -> CallerRule {
        let present_test =
            |name: &String| FieldTest { name: name.clone(), test: ValueTest::Present };
        let tests = self.tags.iter().map(present_test).collect();
        let same_tags = self.tags.into_iter().map(|tag| (tag, TagValue::SameAsCaller)).collect();
        let target = TagTarget { weight: 1, set: TagSet::All(same_tags) };
        CallerRule {
            origin,
            from: CallerMatch { tags: tests, ..CallerMatch::default() },
            split: TagSplit { targets: vec![target], weights: WeightUnit::Relative },
            min_percent: self.min_percent,
            min_total: self.min_total,
            continues: true,
        }
    }
}

/// The value of a tag, which is the value of a label.
const TAG_VALUE: TextSchema = TextSchema::bounded(63);
/// Maximum number of rules per object; all rules of a service are sent together.
const MAX_RULES: usize = 16_384;
/// Maximum number of targets per split, of tags per target, of preferences, and of tags per preference.
const MAX_TARGETS: usize = 64;
/// Maximum weight of a target, and maximum `minTotal`.
const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum value of `precedence`.
pub(super) const MAX_PRECEDENCE: i32 = 1_000_000;
