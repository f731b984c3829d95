//! Resolves the sets of instances that tag rules select for one caller, and finds the members of each set.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use leno_model::{CallerAttributes, Endpoint, TagSet, TagTarget, TagValue};

/// The required values of tags; a tag without a value must be absent.
pub(super) type RequiredTags = BTreeMap<String, Option<String>>;

/// A set of instances, defined by their tags. The caller's tags are already resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InstanceSet {
    /// All instances.
    AllInstances,
    /// The instances with all of these tags.
    All(RequiredTags),
    /// The instances with one of these tags.
    Any(RequiredTags),
    /// The instances that are in none of these sets.
    Except(Vec<Self>),
}

impl InstanceSet {
    /// Resolves the set of a target for this caller. `excluded` are the sets that the default set excludes.
    pub(super) fn resolve(set: &TagSet, caller: &CallerAttributes, excluded: &[Self]) -> Self {
        let required_tags = |tags: &BTreeMap<String, TagValue>| {
            let required_tag = |(name, value): (&String, &TagValue)| {
                let required_value = match value {
                    TagValue::Exact(value) => Some(value.clone()),
                    TagValue::SameAsCaller => caller.tags.get(name).cloned(),
                };
                (name.clone(), required_value)
            };
            tags.iter().map(required_tag).collect()
        };
        match set {
            TagSet::AllInstances => Self::AllInstances,
            TagSet::All(tags) => Self::All(required_tags(tags)),
            TagSet::Any(tags) => Self::Any(required_tags(tags)),
            TagSet::Default => Self::Except(excluded.to_vec()),
        }
    }

    /// Returns the sets of the targets that are defined by tags.
    pub(super) fn from_targets(targets: &[TagTarget], caller: &CallerAttributes) -> Vec<Self> {
        let by_tags = targets.iter().map(|target| &target.set);
        let by_tags = by_tags.filter(|set| matches!(set, TagSet::All(_) | TagSet::Any(_)));
        by_tags.map(|set| Self::resolve(set, caller, &[])).collect()
    }

    /// Returns the set of the instances that are in none of these sets.
    pub(super) fn excluding(mut sets: Vec<Self>) -> Self {
        sets.sort();
        sets.dedup();
        match sets.is_empty() {
            true => Self::AllInstances,
            false => Self::Except(sets),
        }
    }

    /// True if an endpoint belongs to the set.
    pub(super) fn contains(&self, endpoint: &Endpoint) -> bool {
        let has_tag =
            |(name, value): (&String, &Option<String>)| endpoint.tags.get(name) == value.as_ref();
        match self {
            Self::AllInstances => true,
            Self::All(tags) => tags.iter().all(has_tag),
            Self::Any(tags) => tags.iter().any(has_tag),
            Self::Except(sets) => !sets.iter().any(|set| set.contains(endpoint)),
        }
    }

    /// Returns the members among `endpoints`; the same list object if all endpoints are members.
    pub(super) fn members_of(&self, endpoints: &Endpoints) -> Endpoints {
        let members = endpoints.iter().filter(|endpoint| self.contains(endpoint));
        let members: Vec<_> = members.cloned().collect();
        match members.len() == endpoints.len() {
            true => Arc::clone(endpoints),
            false => members.into(),
        }
    }
}

/// A shared list of endpoints.
pub type Endpoints = Arc<[Arc<Endpoint>]>;

/// Formats as `version=2, zone=a`, `one of …`, `none of (…), (…)`, `any instance` or `no instance`.
impl fmt::Display for InstanceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag_list = |tags: &RequiredTags| {
            let texts = tags.iter().map(|(name, value)| match value {
                Some(value) => format!("{name}={value}"),
                None => format!("no {name}"),
            });
            texts.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::AllInstances => f.write_str("any instance"),
            Self::All(tags) => write!(f, "{}", tag_list(tags)),
            Self::Any(tags) if tags.is_empty() => f.write_str("no instance"),
            Self::Any(tags) if tags.len() == 1 => write!(f, "{}", tag_list(tags)),
            Self::Any(tags) => write!(f, "one of {}", tag_list(tags)),
            Self::Except(sets) => {
                let sets: Vec<String> = sets.iter().map(|set| format!("({set})")).collect();
                write!(f, "none of {}", sets.join(", "))
            }
        }
    }
}
