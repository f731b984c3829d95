//! Tag routing (Sermant): tag rules select service instances by the request, the caller and the instances' labels, and
//! lanes add headers to requests. Tags are labels of workloads, and instances are the workloads of a service. Contains
//! the rules as written and as sent to sidecars.

mod condition;
mod lane;
mod route;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub use self::lane::{LaneHeaders, LaneSpec};
pub use self::route::TagRouteSpec;

use crate::change::ObjectKey;
use crate::name::{ServiceName, TagRouteName};
use crate::request_match::PathMatch;

/// The maximum number of distinct [`TagMatch::stem`]s in the rules of a port. Each distinct stem doubles the number
/// of default sets.
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
    /// The rules by scope: those of single services, and those of all services of the namespace.
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

/// The rules of a configuration center for one scope.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SermantRules {
    /// The rules of kind `flow` and `tag`.
    pub rules: TagRules,
    /// The rules of kind `lane`.
    pub lanes: Vec<LaneRule>,
}

/// A `Lane`: rules by which the first service of a lane adds headers to requests. Later services route the requests
/// by these headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The name of the lane.
    pub name: TagRouteName,
    /// The service whose workloads' sidecars add the headers.
    pub service: ServiceName,
    /// The rules that add headers to requests.
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
    /// Traffic to one service, or to one of its ports.
    Service(ServiceName, Option<u16>),
    /// Traffic to every service of a namespace that has no rules of its own.
    Namespace(crate::name::Name),
    /// Traffic to every service for which neither the service nor its namespace has rules.
    Mesh,
}

/// Rules that select a subset of a service's instances before load balancing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagRules {
    /// The rules that match requests, in order of precedence; the first match applies.
    pub rules: Vec<TagRule>,
    /// The fallbacks for requests that match no rule: the first non-empty set of instances is used. Requests fail if
    /// all sets are empty. Ignored if `rules` is empty.
    pub fallback_policy: Vec<FallbackPolicy>,
    /// The rules that match callers, applied to the instances that `rules` select.
    pub caller_rules: Vec<CallerRule>,
}

/// The origin of a tag or lane rule: the object that contains the rule, and the rule's index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleOrigin {
    /// The dialect of the rule, which is the kind of the object.
    pub dialect: TagDialect,
    /// The name of the object.
    pub name: TagRouteName,
    /// The rule's index in the object, from 0.
    pub index: u32,
}

/// The dialect of a tag rule: the kind of object that contains the rule.
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
    /// The priority (`precedence` in manifests). Rules with a greater priority are evaluated first.
    pub priority: i32,
    /// The callers that the rule applies to.
    pub from: CallerMatch,
    /// The conditions on the request.
    pub request_match: TagMatch,
    /// The sets of instances that receive the requests.
    pub split: TagSplit,
    /// The sets that receive the requests if the selected set of `split` is empty; unused if it has no targets.
    pub fallback: TagSplit,
    /// The fallbacks if the selected sets of `split` and `fallback` are empty: the first non-empty set of instances is
    /// used. Requests fail if all sets are empty.
    pub fallback_policy: Vec<FallbackPolicy>,
    /// The key that assigns a client to a target permanently; the choice is random when absent.
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
    /// The weights are relative to their sum.
    #[default]
    Relative,
    /// The weights are percentages; the excess over 100 is ignored. If they add up to less than 100, the remaining
    /// requests of a rule's split use the fallback, or else the instances that no target of the split selects. The
    /// remaining percentage of a fallback is unused.
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
    /// The instances with all of these tags.
    All(BTreeMap<String, TagValue>),
    /// The instances with at least one of these tags; no instance if there are no tags.
    Any(BTreeMap<String, TagValue>),
    /// The instances that no target of any rule selects.
    Default,
    /// All instances.
    AllInstances,
}

/// A condition on a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagValue {
    /// The tag equals this value.
    Exact(String),
    /// The tag equals the caller's tag of the same name, or is absent if the caller does not have the tag.
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

/// The key that assigns a client to a target permanently.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StickyKey {
    /// The value of the header with this lower-case name.
    Header(String),
    /// The value of the cookie with this name.
    Cookie(String),
}

/// A match on callers; all conditions must hold. The default matches every caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CallerMatch {
    /// The service that selects the calling workload; any service when absent.
    pub service: Option<ServiceName>,
    /// The tests of the caller's tags.
    pub tags: Vec<FieldTest>,
    /// The number of tag tests that must pass.
    pub quorum: Quorum,
}

/// The number of tests that must pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Quorum {
    /// All tests must pass.
    #[default]
    All,
    /// At least one test must pass; an empty list of tests passes.
    Any,
}

/// The conditions of a tag rule on a request; all of them must hold. The default matches every request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagMatch {
    /// The condition on the path, without the query.
    pub path: PathMatch,
    /// The methods, one of which the request must have; any method when empty.
    pub methods: Vec<String>,
    /// The tests of headers; names are in lower case.
    pub headers: Vec<FieldTest>,
    /// The number of header tests that must pass.
    pub quorum: Quorum,
    /// The tested value of a repeated header.
    pub repeated: RepeatedHeader,
    /// The tests of query parameters.
    pub query: Vec<FieldTest>,
    /// The tests of cookies.
    pub cookies: Vec<FieldTest>,
    /// A regular expression for the stem of the path: the text before the last dot, which is empty without a dot. If
    /// it does not match, the rule's targets also remain in the default set.
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
        /// The operands: exactly one, except for [`TextRelation::In`].
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
    /// A test that always fails, such as a comparison of numbers with an operand that is not a number.
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
    NotEqual,
}

/// The relation of a number to the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberRelation {
    /// The number is greater than the operand.
    GreaterThan,
    /// The number is greater than or equal to the operand.
    AtLeast,
    /// The number is less than the operand.
    LessThan,
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
    /// The sets of instances that the rule prefers.
    pub split: TagSplit,
    /// The minimum share of preferred instances, in percent. With a smaller share, the rule has no effect.
    pub min_percent: u32,
    /// The minimum total number of instances for `min_percent`. With fewer instances, `min_percent` is ignored.
    pub min_total: u32,
    /// True if the next rule is evaluated when this rule has no effect.
    pub continues: bool,
}

/// A rule of a lane: adds headers to matching requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneRule {
    /// The origin of the rule.
    pub origin: RuleOrigin,
    /// The priority (`precedence` in manifests). Rules with a greater priority are evaluated first.
    pub priority: i32,
    /// The conditions on the request.
    pub request_match: TagMatch,
    /// The marks, each for a percentage of requests. The remaining requests are not changed.
    pub marks: Vec<LaneMark>,
}

/// A mark of a lane: the headers that it adds to a percentage of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneMark {
    /// The percentage of requests that receive the headers.
    pub percent: u32,
    /// Header values by lower-case name. Headers that a request already has are not replaced.
    pub headers: BTreeMap<String, String>,
}

/// The attributes of a sidecar's workload that tag rules of other services use; empty if no rule uses them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CallerAttributes {
    /// The services that select the workload.
    pub services: BTreeSet<ServiceName>,
    /// The labels of the workload that rules use.
    pub tags: BTreeMap<String, String>,
    /// True if the workload has labels other than `version` and `zone`, which Sermant calls parameters.
    pub has_parameters: bool,
}

impl TagRules {
    /// Selects the rules of a service port from the candidates, which are ordered by decreasing specificity. Rules
    /// that match requests and rules that match callers are selected independently, each from the first candidate
    /// that has rules of that kind.
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

    /// Combines the rules of all `TagRoute`s for the same traffic. Rules of the same priority are ordered by the age
    /// of their object, then by name. The strictest fallback policy applies to requests that match no rule.
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

    /// Returns the names of the instance labels that the rules use, with duplicates.
    pub fn instance_tags(&self) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter();
        let splits = rules.flat_map(|rule| [&rule.split, &rule.fallback]);
        let splits = splits.chain(self.caller_rules.iter().map(|rule| &rule.split));
        splits.flat_map(|split| &split.targets).flat_map(|target| target.set.tag_names())
    }

    /// Returns the names of the caller labels that the rules use, and true if the rules use any attribute of callers:
    /// a label, or the service that selects the caller.
    #[must_use]
    pub fn caller_tags(&self) -> (BTreeSet<&str>, bool) {
        let mut tag_names = BTreeSet::new();
        let mut uses_callers = !self.caller_rules.is_empty();
        for caller_match in self.rules.iter().map(|rule| &rule.from) {
            uses_callers |= caller_match.service.is_some() || !caller_match.tags.is_empty();
            tag_names.extend(caller_match.tags.iter().map(|test| test.name.as_str()));
        }
        for rule in &self.caller_rules {
            tag_names.extend(rule.from.tags.iter().map(|test| test.name.as_str()));
            for target in &rule.split.targets {
                tag_names.extend(target.set.tag_names());
            }
        }
        (tag_names, uses_callers)
    }
}

impl TagSet {
    /// Returns the names of the set's tags.
    pub fn tag_names(&self) -> impl Iterator<Item = &str> {
        let tags = match self {
            Self::All(tags) | Self::Any(tags) => Some(tags),
            Self::Default | Self::AllInstances => None,
        };
        tags.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }
}

/// Returns the rank of a fallback policy, from 0 for the strictest: no fallback, then the default set only, then the
/// default set before any instance, then any instance.
fn leniency(fallback_policy: &[FallbackPolicy]) -> u8 {
    match fallback_policy {
        [] => 0,
        [FallbackPolicy::Default] => 1,
        [FallbackPolicy::Default, ..] => 2,
        [FallbackPolicy::Any, ..] => 3,
    }
}
