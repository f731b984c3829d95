//! Sets of instances and their members.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use leno_model::{CallerAttributes, Endpoint, TagSet, TagTarget, TagValue};

/// Tags and their required state: this value, or absent.
pub(super) type RequiredTags = BTreeMap<String, Option<String>>;

/// A set of instances, fully resolved except for its members.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InstanceSet {
    /// All instances.
    Every,
    /// The instances with all of these tags.
    All(RequiredTags),
    /// The instances with one of these tags.
    Any(RequiredTags),
    /// The complement of these sets.
    Except(Vec<Self>),
}

impl InstanceSet {
    /// Resolves the set of a target for this caller. `excluded` are the sets that the default set excludes.
    pub(super) fn resolve(set: &TagSet, caller: &CallerAttributes, excluded: &[Self]) -> Self {
        let tags = |tags: &BTreeMap<String, TagValue>| {
            let value = |(name, value): (&String, &TagValue)| {
                let value = match value {
                    TagValue::Exact(value) => Some(value.clone()),
                    TagValue::SameAsCaller => caller.tags.get(name).cloned(),
                };
                (name.clone(), value)
            };
            tags.iter().map(value).collect()
        };
        match set {
            TagSet::AllInstances => Self::Every,
            TagSet::All(all) => Self::All(tags(all)),
            TagSet::Any(any) => Self::Any(tags(any)),
            TagSet::Default => Self::Except(excluded.to_vec()),
        }
    }

    /// Returns the sets that a rule defines by tags.
    pub(super) fn from_targets(targets: &[TagTarget], caller: &CallerAttributes) -> Vec<Self> {
        let by_tags = targets.iter().map(|target| &target.set);
        let by_tags = by_tags.filter(|set| matches!(set, TagSet::All(_) | TagSet::Any(_)));
        by_tags.map(|set| Self::resolve(set, caller, &[])).collect()
    }

    /// Returns the complement of these sets.
    pub(super) fn excluding(mut sets: Vec<Self>) -> Self {
        sets.sort();
        sets.dedup();
        match sets.is_empty() {
            true => Self::Every,
            false => Self::Except(sets),
        }
    }

    pub(super) fn contains(&self, endpoint: &Endpoint) -> bool {
        let has_tag =
            |(name, value): (&String, &Option<String>)| endpoint.tags.get(name) == value.as_ref();
        match self {
            Self::Every => true,
            Self::All(tags) => tags.iter().all(has_tag),
            Self::Any(tags) => tags.iter().any(has_tag),
            Self::Except(sets) => !sets.iter().any(|set| set.contains(endpoint)),
        }
    }

    /// Returns the members among `endpoints`.
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

/// `version=2, zone=a`; `one of …`; `none of (…), (…)`; `any instance`; `no instance`.
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
            Self::Every => f.write_str("any instance"),
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
