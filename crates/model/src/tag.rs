//! Tag routing: selection of service instances by request and by instance labels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::change::ObjectKey;
use crate::name::{ServiceName, TagRouteName};
use crate::route::PathMatch;

/// The maximum number of distinct [`TagMatch::stem`]s in the rules of a port: each doubles the number of
/// default sets.
pub const MAX_STEMS: usize = 6;

/// A `TagRoute`: tag rules for a service, a namespace or the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRoute {
    /// The name of the route.
    pub name: TagRouteName,
    /// The traffic that the rules apply to.
    pub scope: TagScope,
    /// The tag rules.
    pub rules: TagRules,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl TagRoute {
    /// Returns the precedence among objects for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// A `SermantRouteRule`: one item of a configuration center, as Sermant's service-router interprets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SermantRouteRule {
    /// The name of the object.
    pub name: TagRouteName,
    /// The rules of each service, or of all services of the namespace.
    pub entries: Vec<(TagScope, SermantRules)>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl SermantRouteRule {
    /// Returns the precedence among objects for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// The rules of a configuration center for one service, or for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SermantRules {
    /// The rules of kind `flow` and `tag`.
    pub rules: TagRules,
    /// The rules of kind `lane`.
    pub lanes: Vec<LaneRule>,
}

/// A `Lane`: marks added to requests at the first service of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The name of the lane.
    pub name: TagRouteName,
    /// The service with the workloads that mark requests.
    pub service: ServiceName,
    /// The rules that mark requests.
    pub rules: Vec<LaneRule>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl Lane {
    /// Returns the precedence among objects for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// The traffic that tag rules apply to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagScope {
    /// Traffic to one service, or one port of it.
    Service(ServiceName, Option<u16>),
    /// Traffic to every service of a namespace without rules of its own.
    Namespace(crate::name::Name),
    /// Traffic to every service without rules of its own or of its namespace.
    Mesh,
}

/// Rules that narrow down the instances of a service before load balancing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagRules {
    /// Rules by request; the first match applies. In order of precedence.
    pub rules: Vec<TagRule>,
    /// The fallbacks for requests that match no rule: the first non-empty set. Requests fail if all are empty.
    /// Ignored without rules.
    pub fallback_policy: Vec<FallbackPolicy>,
    /// Rules by caller, applied to the remaining instances.
    pub caller_rules: Vec<CallerRule>,
}

/// The origin of a tag or lane rule: its object, and its position there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleOrigin {
    /// The kind of the object.
    pub dialect: TagDialect,
    /// The name of the object.
    pub name: TagRouteName,
    /// The rule's index in the object, from 0.
    pub index: u32,
}

/// The kind of object that contains a tag rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagDialect {
    /// A `TagRoute`.
    TagRoute,
    /// A `SermantRouteRule`.
    Sermant,
    /// A `Lane`.
    Lane,
}

impl TagDialect {
    /// Returns the identity of the object of this kind and name.
    #[must_use]
    pub fn object_key(self, name: TagRouteName) -> ObjectKey {
        match self {
            Self::TagRoute => ObjectKey::TagRoute(name),
            Self::Sermant => ObjectKey::SermantRouteRule(name),
            Self::Lane => ObjectKey::Lane(name),
        }
    }

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TagRoute => "TagRoute",
            Self::Sermant => "SermantRouteRule",
            Self::Lane => "Lane",
        }
    }
}

impl RuleOrigin {
    /// Returns the object that contains the rule.
    #[must_use]
    pub fn object_key(&self) -> ObjectKey {
        self.dialect.object_key(self.name.clone())
    }
}

/// A tag rule: forwards matching requests to instances with some tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TagRule {
    /// The origin of the rule.
    pub origin: RuleOrigin,
    /// The priority, `precedence` in documents; rules with a greater one are evaluated first.
    pub priority: i32,
    /// The callers that the rule applies to.
    pub from: CallerMatch,
    /// The conditions on the request.
    pub request_match: TagMatch,
    /// The sets of instances that receive the requests.
    pub split: TagSplit,
    /// The sets that receive the requests of an empty set; none without targets.
    pub fallback: TagSplit,
    /// The last fallbacks for the requests of an empty set: the first non-empty set. Requests fail if all are
    /// empty.
    pub fallback_policy: Vec<FallbackPolicy>,
    /// The key that pins a client to a target; the choice is random when absent.
    pub sticky: Option<StickyKey>,
}

/// Weighted sets of instances.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagSplit {
    /// The weighted sets.
    pub targets: Vec<TagTarget>,
    /// The unit of the weights.
    pub weights: WeightUnit,
}

/// The unit of the weights of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WeightUnit {
    /// Relative to their sum.
    #[default]
    Relative,
    /// Percentages; the excess over 100 is cut off. The rest up to 100 goes, in a split, to the fallback or
    /// else to the instances that no target of the split selects. In a fallback the rest is unused.
    Percent,
}

/// A weighted set of instances.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TagTarget {
    /// The weight of the set.
    pub weight: u32,
    /// The set of instances.
    pub set: TagSet,
}

/// A set of instances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagSet {
    /// Instances with all of these tags.
    All(BTreeMap<String, TagValue>),
    /// Instances with at least one of these tags; empty without tags.
    Any(BTreeMap<String, TagValue>),
    /// Instances that no target of any rule selects.
    Default,
    /// All instances.
    AllInstances,
}

/// A condition on a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagValue {
    /// The tag equals this value.
    Exact(String),
    /// The tag equals that of the caller, or is absent if the caller does not have it.
    SameAsCaller,
}

/// The instances that receive requests if the selected set is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FallbackPolicy {
    /// Any instance.
    Any,
    /// The instances that no target of any rule selects.
    Default,
}

/// The key that pins a client to a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StickyKey {
    /// The value of this header, in lower case.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
}

/// The matching callers. The default matches all.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CallerMatch {
    /// Callers that are workloads of this service.
    pub service: Option<ServiceName>,
    /// Callers with tags that pass these tests.
    pub tags: Vec<FieldTest>,
    /// The number of tag tests that must pass.
    pub quorum: Quorum,
}

/// The number of tests that must pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Quorum {
    /// All tests.
    #[default]
    All,
    /// At least one test; no tests also suffice.
    One,
}

/// The conditions of a tag rule on a request; all parts must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagMatch {
    /// The path, without the query.
    pub path: PathMatch,
    /// One of these methods; any when empty.
    pub methods: Vec<String>,
    /// Tests of headers, by lower-case name.
    pub headers: Vec<FieldTest>,
    /// The number of header tests that must pass.
    pub quorum: Quorum,
    /// The tested value of a repeated header.
    pub repeated: RepeatedHeader,
    /// Tests of query parameters.
    pub query: Vec<FieldTest>,
    /// Tests of cookies.
    pub cookies: Vec<FieldTest>,
    /// A regular expression for the path up to its last dot; the text is empty without a dot. If it does not
    /// match, the rule's targets stay in the default set, too.
    pub stem: Option<String>,
}

/// The tested value of a repeated header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RepeatedHeader {
    /// All values, joined by `", "`.
    #[default]
    Joined,
    /// The first value.
    First,
}

/// A test of a named value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldTest {
    /// The name of the header, parameter, cookie or tag.
    pub name: String,
    /// The test of the value.
    pub test: ValueTest,
}

/// A test of a value. An absent value passes only [`ValueTest::Absent`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// The value is present.
    Present,
    /// The value is absent.
    Absent,
    /// A text comparison.
    Text {
        /// The relation of the value to the operands.
        relation: TextRelation,
        /// The operands: one, except for [`TextRelation::In`].
        texts: Vec<String>,
        /// True for a case-insensitive comparison.
        ignore_case: bool,
    },
    /// A comparison of 64-bit integers; other values do not pass.
    Number {
        /// The relation of the value to the operand.
        relation: NumberRelation,
        /// The operand of the comparison.
        bound: i64,
    },
    /// A test that always fails.
    Never,
}

/// The relation of a text to the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextRelation {
    /// The text equals the operand.
    Exact,
    /// The text begins with the operand.
    Prefix,
    /// The whole text matches the operand, a regular expression.
    Regex,
    /// The text equals one of the operands.
    In,
    /// The text is present and does not equal the operand.
    Not,
}

/// The relation of a number to the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberRelation {
    /// The number is greater than the operand.
    Above,
    /// The number is greater than or equal to the operand.
    AtLeast,
    /// The number is less than the operand.
    Below,
    /// The number is less than or equal to the operand.
    AtMost,
}

/// A rule that matches the caller's tags and not the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallerRule {
    /// The origin of the rule.
    pub origin: RuleOrigin,
    /// The callers that the rule applies to.
    pub from: CallerMatch,
    /// The preferred sets of instances.
    pub split: TagSplit,
    /// The minimum share of preferred instances, in percent; below it the rule has no effect.
    pub min_percent: u32,
    /// The minimum number of instances for `min_percent`; with fewer it is ignored.
    pub min_total: u32,
    /// True if the next rule is evaluated when this rule has no effect.
    pub continues: bool,
}

/// A rule of a lane: adds headers to matching requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneRule {
    /// The origin of the rule.
    pub origin: RuleOrigin,
    /// The priority, `precedence` in documents; rules with a greater one are evaluated first.
    pub priority: i32,
    /// The conditions on the request.
    pub request_match: TagMatch,
    /// The added marks, each for a percentage of requests; the rest is not marked.
    pub marks: Vec<LaneMark>,
}

/// Headers for a percentage of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneMark {
    /// The percentage of requests that receive the headers.
    pub percent: u32,
    /// Header values by lower-case name. Headers that a request already has are not replaced.
    pub headers: BTreeMap<String, String>,
}

/// The attributes of a sidecar's workload that tag rules use; empty if unused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CallerAttributes {
    /// The services that select it.
    pub services: BTreeSet<ServiceName>,
    /// The labels of it that rules use.
    pub tags: BTreeMap<String, String>,
    /// True if it has labels other than `version` and `zone`.
    pub has_parameters: bool,
}

impl TagRules {
    /// Selects the rules of a service port, given the most specific first. Rules by request and rules by caller
    /// are selected independently: each from the first entry that has some.
    #[must_use]
    pub fn select_most_specific(candidates: impl IntoIterator<Item = Self>) -> Self {
        let mut selected_rules = Self::default();
        for rules in candidates {
            if selected_rules.rules.is_empty() {
                selected_rules.rules = rules.rules;
                selected_rules.fallback_policy = rules.fallback_policy;
            }
            if selected_rules.caller_rules.is_empty() {
                selected_rules.caller_rules = rules.caller_rules;
            }
        }
        selected_rules
    }

    /// Combines the rules of all `TagRoute`s for the same traffic; rules of the same precedence are ordered by
    /// the age of their object, then by name. The strictest object decides about requests that match no rule.
    #[must_use]
    pub fn merge_routes<'a>(routes: impl IntoIterator<Item = &'a TagRoute>) -> Self {
        let mut merged_rules = Self::default();
        let mut strictest_policy: Option<&Vec<FallbackPolicy>> = None;
        let mut routes: Vec<&TagRoute> = routes.into_iter().collect();
        routes.sort_by_key(|route| route.precedence());
        for route in routes {
            merged_rules.rules.extend(route.rules.rules.iter().cloned());
            merged_rules.caller_rules.extend(route.rules.caller_rules.iter().cloned());
            let policy =
                Some(&route.rules.fallback_policy).filter(|_| !route.rules.rules.is_empty());
            strictest_policy =
                strictest_policy.into_iter().chain(policy).min_by_key(|policy| leniency(policy));
        }
        merged_rules.rules.sort_by_key(|rule| Reverse(rule.priority));
        merged_rules.fallback_policy = strictest_policy.cloned().unwrap_or_default();
        merged_rules
    }

    /// True if there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.caller_rules.is_empty()
    }

    /// Returns the instance labels that the rules use.
    pub fn instance_tags(&self) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter();
        let splits = rules.flat_map(|rule| [&rule.split, &rule.fallback]);
        let splits = splits.chain(self.caller_rules.iter().map(|rule| &rule.split));
        splits.flat_map(|split| &split.targets).flat_map(|target| target.set.tag_names())
    }

    /// Returns the caller labels that the rules use. The second value is true if they use any attribute of
    /// callers.
    #[must_use]
    pub fn caller_tags(&self) -> (BTreeSet<&str>, bool) {
        let mut tags = BTreeSet::new();
        let mut uses_callers = !self.caller_rules.is_empty();
        for from in self.rules.iter().map(|rule| &rule.from) {
            uses_callers |= from.service.is_some() || !from.tags.is_empty();
            tags.extend(from.tags.iter().map(|test| test.name.as_str()));
        }
        for rule in &self.caller_rules {
            tags.extend(rule.from.tags.iter().map(|test| test.name.as_str()));
            for target in &rule.split.targets {
                tags.extend(target.set.tag_names());
            }
        }
        (tags, uses_callers)
    }
}

impl TagSet {
    /// Returns the names of its tags.
    pub fn tag_names(&self) -> impl Iterator<Item = &str> {
        let tags = match self {
            Self::All(tags) | Self::Any(tags) => Some(tags),
            Self::Default | Self::AllInstances => None,
        };
        tags.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }
}

/// Returns the rank of a fallback policy: 0 is the strictest, which fails requests; then follow the default set
/// and any instance.
fn leniency(fallback_policy: &[FallbackPolicy]) -> u8 {
    match fallback_policy {
        [] => 0,
        [FallbackPolicy::Default] => 1,
        [FallbackPolicy::Default, ..] => 2,
        [FallbackPolicy::Any, ..] => 3,
    }
}
