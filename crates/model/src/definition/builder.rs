//! Collects the violations found while a type is built from a value, with the path of each.

use super::{Definition, ManifestValue};
use crate::name::Name;

/// The state while one manifest is built.
#[derive(Debug)]
pub struct ManifestBuilder<'a> {
    /// The namespace of the manifest, which is the default of references.
    namespace: &'a Name,
    /// The path of the value that is being built, from the manifest's `spec`.
    path: Vec<PathStep>,
    violations: Vec<Violation>,
}

/// One step of a path: a key of a map, or an index of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathStep {
    /// A key.
    Key(&'static str),
    /// An index.
    Index(usize),
}

/// A rule that a value violates although it matches its schema. The manifest is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The path of the value, from the value that the reader started with.
    pub path: Vec<PathStep>,
    /// The problem: a predicate without its subject, such as `is listed twice`.
    pub problem: String,
    /// The remedy, as an imperative.
    pub hint: String,
}

impl<'a> ManifestBuilder<'a> {
    /// Starts the building of a manifest in a namespace.
    #[must_use]
    pub const fn new(namespace: &'a Name) -> Self {
        Self { namespace, path: Vec::new(), violations: Vec::new() }
    }

    /// Returns the namespace of the manifest.
    #[must_use]
    pub const fn namespace(&self) -> &'a Name {
        self.namespace
    }

    /// Returns the violations, in the order in which they were found.
    #[must_use]
    pub fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    /// Builds the value of a field of the current map.
    pub fn build_field<T: Definition>(
        &mut self,
        key: &'static str,
        value: ManifestValue,
    ) -> Option<T> {
        self.within(PathStep::Key(key), |builder| T::build(value, builder))
    }

    /// Builds from the value of a field of the current map, with a function.
    pub fn build_below<T>(&mut self, key: &'static str, build: impl FnOnce(&mut Self) -> T) -> T {
        self.within(PathStep::Key(key), build)
    }

    /// Builds an element of the current list.
    pub(super) fn build_element<T: Definition>(
        &mut self,
        index: usize,
        value: ManifestValue,
    ) -> Option<T> {
        self.within(PathStep::Index(index), |builder| T::build(value, builder))
    }

    fn within<T>(&mut self, step: PathStep, build: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step);
        let built = build(self);
        self.path.pop();
        built
    }

    /// Rejects the current value.
    pub fn reject(&mut self, problem: impl Into<String>, hint: impl Into<String>) {
        let (path, problem, hint) = (self.path.clone(), problem.into(), hint.into());
        self.violations.push(Violation { path, problem, hint });
    }

    /// Rejects a field of the current map.
    pub fn reject_field(
        &mut self,
        key: &'static str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.within(PathStep::Key(key), |builder| builder.reject(problem, hint));
    }

    /// Rejects an element of the current list.
    pub fn reject_element(
        &mut self,
        index: usize,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.within(PathStep::Index(index), |builder| builder.reject(problem, hint));
    }
}
