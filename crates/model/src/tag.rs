//! Tags: which instances of a service take which requests, by the labels that they carry.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::change::ObjectKey;
use crate::name::{ServiceName, TagRouteName};
use crate::route::PathMatch;

/// How many different [`TagMatch::stem`]s the rules of a port may have: each doubles the default
/// sets that are kept.
pub const STEMS_MAX: usize = 6;

/// A `TagRoute`: tag rules for a service, a namespace or the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRoute {
    /// Its name.
    pub name: TagRouteName,
    /// The traffic to what it decides.
    pub scope: TagScope,
    /// What it says.
    pub rules: TagRules,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl TagRoute {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// A `SermantRouteRule`: one item of a configuration centre, as its service-router understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SermantRouteRule {
    /// Its name.
    pub name: TagRouteName,
    /// What it says, for each service or for all services of its namespace.
    pub entries: Vec<(TagScope, SermantRules)>,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl SermantRouteRule {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// What a configuration centre says about one service, or about all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SermantRules {
    /// Its rules of the kinds `flow` and `tag`.
    pub rules: TagRules,
    /// Its rules of the kind `lane`.
    pub lanes: Vec<LaneRule>,
}

/// A `Lane`: marks that requests get at the entrance of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its name.
    pub name: TagRouteName,
    /// The service whose workloads mark requests.
    pub service: ServiceName,
    /// Its rules.
    pub rules: Vec<LaneRule>,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl Lane {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &TagRouteName) {
        (self.created, &self.name)
    }
}

/// The traffic that tag rules decide: that to one service, or to every one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagScope {
    /// To one service, or one port of it.
    Service(ServiceName, Option<u16>),
    /// To every service of a namespace that has no rules of its own.
    Namespace(crate::name::Name),
    /// To every service that has no rules of its own or of its namespace.
    Mesh,
}

/// How the instances of a service are narrowed down before one of them is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagRules {
    /// By the request: the first rule that fits decides. In order of precedence.
    pub rules: Vec<TagRule>,
    /// What takes requests that no rule fits: the first of these that is not empty. Requests fail
    /// when all are. Without rules it says nothing.
    pub otherwise: Vec<Otherwise>,
    /// By the caller, among those that are left.
    pub by_caller: Vec<CallerRule>,
}

/// Where a rule was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleOrigin {
    /// Which kind of object holds it.
    pub dialect: TagDialect,
    /// The object.
    pub name: TagRouteName,
    /// The rule's place in it, from 0.
    pub index: u32,
}

/// Which kind of object a tag rule was written in.
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
    /// What identifies the object of this kind and name.
    #[must_use]
    pub fn object(self, name: TagRouteName) -> ObjectKey {
        match self {
            Self::TagRoute => ObjectKey::TagRoute(name),
            Self::Sermant => ObjectKey::SermantRouteRule(name),
            Self::Lane => ObjectKey::Lane(name),
        }
    }

    /// The word used in manifests.
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
    /// The object that holds the rule.
    #[must_use]
    pub fn object(&self) -> ObjectKey {
        self.dialect.object(self.name.clone())
    }
}

/// One rule: which requests go to instances with which tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TagRule {
    /// Where it was written.
    pub origin: RuleOrigin,
    /// The greater is asked first.
    pub precedence: i32,
    /// For whose requests it is.
    pub from: Callers,
    /// What a request must look like.
    pub matches: TagMatch,
    /// The sets of instances that take the requests.
    pub split: TagSplit,
    /// The sets that take the requests of a set that is empty; none when there are no targets.
    pub fallback: TagSplit,
    /// What takes the requests of an empty set after that: the first that is not empty. Requests
    /// fail when all are.
    pub otherwise: Vec<Otherwise>,
    /// What keeps a client with the target that it was given; chance decides when absent.
    pub sticky: Option<Sticky>,
}

/// Sets of instances, each with its share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagSplit {
    /// The sets.
    pub targets: Vec<TagTarget>,
    /// What the weights are.
    pub weights: Weights,
}

/// What the weights of a split are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Weights {
    /// Shares of their sum.
    #[default]
    Relative,
    /// Percentages; what is above 100 is cut off. What is left of 100 goes, in a split, to the
    /// fallback or else to the instances that no target of the split selects, and in a fallback
    /// to nobody.
    Percent,
}

/// A set of instances and its share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TagTarget {
    /// Its share.
    pub weight: u32,
    /// The set.
    pub set: TagSet,
}

/// A set of instances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagSet {
    /// Those that carry all of these tags.
    All(BTreeMap<String, TagValue>),
    /// Those that carry at least one of these tags; of none, nobody.
    Any(BTreeMap<String, TagValue>),
    /// Those that no target of any rule selects.
    Default,
    /// All of them.
    Every,
}

/// What a tag must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagValue {
    /// This.
    Is(String),
    /// What it is at the caller: absent when the caller does not carry it.
    Callers,
}

/// What takes requests when there is nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Otherwise {
    /// Any instance.
    Any,
    /// Those instances that no target of any rule selects.
    Default,
}

/// What keeps a client with the target that it was given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sticky {
    /// The value of this header, in lower case.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
}

/// For whose requests a rule is. The default is: for everybody's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Callers {
    /// Those behind this service.
    pub service: Option<ServiceName>,
    /// Those whose own tags pass these tests.
    pub tags: Vec<FieldTest>,
    /// How many of the tests must hold.
    pub quorum: Quorum,
}

/// How many of several tests must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Quorum {
    /// All of them.
    #[default]
    All,
    /// One is enough; of none, it holds.
    One,
}

/// What a request must look like for a tag rule; all parts must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TagMatch {
    /// The path, without the query.
    pub path: PathMatch,
    /// One of these methods; any when empty.
    pub methods: Vec<String>,
    /// Headers, by names in lower case.
    pub headers: Vec<FieldTest>,
    /// How many of the tests of headers must hold.
    pub quorum: Quorum,
    /// Which value of a repeated header is looked at.
    pub repeated: Repeated,
    /// Query parameters.
    pub query: Vec<FieldTest>,
    /// Cookies.
    pub cookies: Vec<FieldTest>,
    /// A regular expression for the path up to its last dot, or for nothing when it has none.
    /// Where it does not fit, the rule's targets are not left out of the default set either.
    pub stem: Option<String>,
}

/// Which value of a repeated header is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Repeated {
    /// All of them, joined by `", "`.
    #[default]
    Joined,
    /// The first.
    First,
}

/// A named value and what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldTest {
    /// The header, parameter, cookie or tag.
    pub name: String,
    /// What it must be.
    pub test: ValueTest,
}

/// What a value must be. What is absent passes [`ValueTest::Absent`] and no other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// There.
    Present,
    /// Not there.
    Absent,
    /// Compared as text.
    Text {
        /// How.
        relation: TextRelation,
        /// With what: one text, but for [`TextRelation::In`].
        texts: Vec<String>,
        /// Whether both are turned into lower case before.
        ignore_case: bool,
    },
    /// Compared as a 64-bit integer; what is none does not pass.
    Number {
        /// How.
        relation: NumberRelation,
        /// With what.
        bound: i64,
    },
    /// Nothing passes.
    Never,
}

/// How texts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextRelation {
    /// Equal.
    Exact,
    /// Begins with it.
    Prefix,
    /// Matches the regular expression as a whole.
    Regex,
    /// Equal to one of them.
    In,
    /// There, and not equal.
    Not,
}

/// How numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberRelation {
    /// Greater.
    Above,
    /// Greater or equal.
    AtLeast,
    /// Less.
    Below,
    /// Less or equal.
    AtMost,
}

/// A rule that looks at the caller's own tags and not at the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallerRule {
    /// Where it was written.
    pub origin: RuleOrigin,
    /// For whose requests it is.
    pub from: Callers,
    /// The sets of instances that are preferred.
    pub split: TagSplit,
    /// What share of the instances the preferred ones must be, in percent; otherwise the rule
    /// changes nothing.
    pub min_percent: u32,
    /// With fewer instances than this the share is not asked for.
    pub min_total: u32,
    /// Whether the next rule is asked when this one changes nothing.
    pub goes_on: bool,
}

/// A rule of a lane: which requests get which headers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneRule {
    /// Where it was written.
    pub origin: RuleOrigin,
    /// The greater is asked first.
    pub precedence: i32,
    /// What a request must look like.
    pub matches: TagMatch,
    /// What it is marked with, and the percentage of requests that are; the rest is not.
    pub marks: Vec<LaneMark>,
}

/// Headers for a percentage of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneMark {
    /// The percentage.
    pub percent: u32,
    /// Header names in lower case, and values. A request that has the header keeps its own.
    pub headers: BTreeMap<String, String>,
}

/// What tag rules may ask about the workload behind a sidecar; empty when none does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Caller {
    /// The services that it is behind.
    pub services: BTreeSet<ServiceName>,
    /// Its labels, as far as rules name them.
    pub tags: BTreeMap<String, String>,
    /// Whether it has a label beside `version` and `zone`.
    pub has_parameters: bool,
}

impl TagRules {
    /// Those for a port of a service, from what is said of it, the nearest first. Those by request and those
    /// by caller are found apart: each where first there are some.
    #[must_use]
    pub fn nearest(all: impl IntoIterator<Item = Self>) -> Self {
        let mut found = Self::default();
        for rules in all {
            if found.rules.is_empty() {
                found.rules = rules.rules;
                found.otherwise = rules.otherwise;
            }
            if found.by_caller.is_empty() {
                found.by_caller = rules.by_caller;
            }
        }
        found
    }

    /// The rules of all `TagRoute`s for the same traffic; of rules of one precedence those of the oldest object
    /// come first, then by name. The strictest of them decides about requests that no rule fits.
    #[must_use]
    pub fn joined<'a>(routes: impl IntoIterator<Item = &'a TagRoute>) -> Self {
        let mut joined = Self::default();
        let mut strictest: Option<&Vec<Otherwise>> = None;
        let mut routes: Vec<&TagRoute> = routes.into_iter().collect();
        routes.sort_by_key(|route| route.precedence());
        for route in routes {
            joined.rules.extend(route.rules.rules.iter().cloned());
            joined.by_caller.extend(route.rules.by_caller.iter().cloned());
            let says = Some(&route.rules.otherwise).filter(|_| !route.rules.rules.is_empty());
            strictest = strictest.into_iter().chain(says).min_by_key(|says| leniency(says));
        }
        joined.rules.sort_by_key(|rule| Reverse(rule.precedence));
        joined.otherwise = strictest.cloned().unwrap_or_default();
        joined
    }

    /// Whether they say nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.by_caller.is_empty()
    }

    /// The labels of instances that are looked at.
    pub fn instance_tags(&self) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter();
        let splits = rules.flat_map(|rule| [&rule.split, &rule.fallback]);
        let splits = splits.chain(self.by_caller.iter().map(|rule| &rule.split));
        splits.flat_map(|split| &split.targets).flat_map(|target| target.set.tags())
    }

    /// The labels of callers that are looked at, and whether anything of callers is.
    #[must_use]
    pub fn caller_tags(&self) -> (BTreeSet<&str>, bool) {
        let mut tags = BTreeSet::new();
        let mut asks = !self.by_caller.is_empty();
        for from in self.rules.iter().map(|rule| &rule.from) {
            asks |= from.service.is_some() || !from.tags.is_empty();
            tags.extend(from.tags.iter().map(|test| test.name.as_str()));
        }
        for rule in &self.by_caller {
            tags.extend(rule.from.tags.iter().map(|test| test.name.as_str()));
            for target in &rule.split.targets {
                tags.extend(target.set.tags());
            }
        }
        (tags, asks)
    }
}

impl TagSet {
    /// The names of its tags.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        let tags = match self {
            Self::All(tags) | Self::Any(tags) => Some(tags),
            Self::Default | Self::Every => None,
        };
        tags.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }
}

/// Failing is the strictest, then the default set, then any instance as well.
fn leniency(otherwise: &[Otherwise]) -> u8 {
    match otherwise {
        [] => 0,
        [Otherwise::Default] => 1,
        [Otherwise::Default, ..] => 2,
        [Otherwise::Any, ..] => 3,
    }
}
