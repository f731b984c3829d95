//! Collects the violations found while a type is built from a value, with the path of each.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::{Definition, ManifestValue, Remedy, TextForm, TextProblem, TextSchema};
use crate::name::Name;

/// The state while one manifest is built.
#[derive(Debug)]
pub struct ManifestBuilder<'a> {
    /// The namespace of the manifest, which is the default of references.
    namespace: &'a Name,
    /// The directory of the manifest's file; `None` for an object of a cluster.
    directory: Option<&'a Path>,
    /// The path of the value that is being built, from the value that the reader started with.
    path: Vec<PathStep>,
    violations: Vec<Violation>,
    warnings: Vec<Violation>,
}

/// One step of a path: a key of a map, or an index of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// A key.
    Key(Cow<'static, str>),
    /// An index.
    Index(usize),
}

/// A rule that a value violates although it matches its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The path of the value, from the value that the reader started with.
    pub path: Vec<PathStep>,
    /// The problem: a predicate without its subject, such as `is listed twice`.
    pub problem: String,
    /// The form of the text that the message quotes as the subject, if it quotes the value.
    pub quoted: Option<TextForm>,
    /// The remedy, as an imperative.
    pub hint: String,
    /// The text that the hint proposes for the value.
    pub replacement: Option<String>,
}

impl<'a> ManifestBuilder<'a> {
    /// Starts the building of a manifest in a namespace.
    #[must_use]
    pub const fn new(namespace: &'a Name) -> Self {
        Self {
            namespace,
            directory: None,
            path: Vec::new(),
            violations: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Sets the directory of the manifest's file, at which relative paths start.
    #[must_use]
    pub fn in_directory(self, directory: Option<&'a Path>) -> Self {
        Self { directory, ..self }
    }

    /// Returns the namespace of the manifest.
    #[must_use]
    pub const fn namespace(&self) -> &'a Name {
        self.namespace
    }

    /// Returns the path of a file; a relative one starts at the directory of the manifest. Without a directory, it is
    /// rejected.
    pub fn resolve_path(&mut self, path: &str) -> Option<PathBuf> {
        match self.directory {
            Some(directory) => Some(directory.join(path)),
            None if Path::new(path).is_absolute() => Some(path.into()),
            None => {
                let problem = "is relative, but this document has no directory".to_owned();
                let hint = "use an absolute path on the control plane's machine".to_owned();
                let quoted = Some(TextForm::Plain);
                self.violations.push(Violation { quoted, ..self.violation(problem, hint) });
                None
            }
        }
    }

    /// Returns the violations and the warnings, in the order in which they were found.
    #[must_use]
    pub fn into_violations_and_warnings(self) -> (Vec<Violation>, Vec<Violation>) {
        (self.violations, self.warnings)
    }

    /// Builds the value of a field of the current map.
    pub fn build_field<T: Definition>(
        &mut self,
        key: &'static str,
        value: ManifestValue,
    ) -> Option<T> {
        self.within(PathStep::Key(key.into()), |builder| T::build(value, builder))
    }

    /// Builds from the value of a field of the current map, with a function.
    pub fn build_below<T>(&mut self, key: &'static str, build: impl FnOnce(&mut Self) -> T) -> T {
        self.within(PathStep::Key(key.into()), build)
    }

    /// Builds an element of the current list.
    pub(super) fn build_element<T: Definition>(
        &mut self,
        index: usize,
        value: ManifestValue,
    ) -> Option<T> {
        self.within(PathStep::Index(index), |builder| T::build(value, builder))
    }

    /// Builds from an element of the current list, with a function.
    pub fn build_at<T>(&mut self, index: usize, build: impl FnOnce(&mut Self) -> T) -> T {
        self.within(PathStep::Index(index), build)
    }

    /// Builds the value of an entry of the current map, which has any keys.
    pub fn build_entry<T: Definition>(&mut self, key: &str, value: ManifestValue) -> Option<T> {
        let step = PathStep::Key(key.to_owned().into());
        self.within(step, |builder| T::build(value, builder))
    }

    fn within<T>(&mut self, step: PathStep, build: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step);
        let built = build(self);
        self.path.pop();
        built
    }

    /// Rejects the current value.
    pub fn reject(&mut self, problem: impl Into<String>, hint: impl Into<String>) {
        self.violations.push(self.violation(problem.into(), hint.into()));
    }

    /// Rejects the current value, and proposes a text in its place.
    pub fn reject_with_replacement(
        &mut self,
        problem: impl Into<String>,
        hint: impl Into<String>,
        replacement: String,
    ) {
        let violation = self.violation(problem.into(), hint.into());
        self.violations.push(Violation { replacement: Some(replacement), ..violation });
    }

    /// Rejects the text of a field of the current map. The message quotes it in this form.
    pub fn reject_text(
        &mut self,
        key: &'static str,
        form: TextForm,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.within(PathStep::Key(key.into()), |builder| {
            let violation = builder.violation(problem.into(), hint.into());
            builder.violations.push(Violation { quoted: Some(form), ..violation });
        });
    }

    fn violation(&self, problem: String, hint: String) -> Violation {
        Violation { path: self.path.clone(), problem, quoted: None, hint, replacement: None }
    }

    /// True if a text of a field of the current map passes the check of a schema that depends on other fields. Otherwise the
    /// field is rejected.
    pub fn check_text(&mut self, key: &'static str, text: &str, schema: &TextSchema) -> bool {
        let Err(TextProblem { problem, remedy }) = schema.validate(text) else { return true };
        let (hint, replacement) = match remedy {
            Remedy::Hint(hint) => (hint.into_owned(), None),
            Remedy::Replacement(word) => (format!("did you mean `{word}`?"), Some(word)),
        };
        self.reject_text(key, schema.form, problem, hint);
        if let Some(violation) = self.violations.last_mut() {
            violation.replacement = replacement;
        }
        false
    }

    /// True if the elements of a list field are different by `key_of`. Otherwise each repeated element is rejected.
    pub fn check_unique<T, K: PartialEq>(
        &mut self,
        list: &'static str,
        elements: &[T],
        key_of: impl Fn(&T) -> K,
        problem: &str,
        hint: &str,
    ) -> bool {
        let keys: Vec<K> = elements.iter().map(key_of).collect();
        let is_repeated = |(index, key): (usize, &K)| keys[..index].contains(key).then_some(index);
        let repeated: Vec<usize> = keys.iter().enumerate().filter_map(is_repeated).collect();
        self.build_below(list, |builder| {
            for index in &repeated {
                builder.reject_element(*index, problem, hint);
            }
        });
        repeated.is_empty()
    }

    /// Returns the list and the index of the current element, such as `rules[0]`. It is the name of a rule without one.
    #[must_use]
    pub fn element_label(&self) -> String {
        match self.path.as_slice() {
            [.., PathStep::Key(list), PathStep::Index(index)] => format!("{list}[{index}]"),
            _ => String::new(),
        }
    }

    /// Warns about the current value. The manifest is accepted.
    pub fn warn(&mut self, problem: impl Into<String>, hint: impl Into<String>) {
        self.warnings.push(self.violation(problem.into(), hint.into()));
    }

    /// Rejects a field of the current map.
    pub fn reject_field(
        &mut self,
        key: &'static str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.within(PathStep::Key(key.into()), |builder| builder.reject(problem, hint));
    }

    /// Rejects an entry of the current map, which has any keys.
    pub fn reject_entry(&mut self, key: &str, problem: impl Into<String>, hint: impl Into<String>) {
        let step = PathStep::Key(key.to_owned().into());
        self.within(step, |builder| builder.reject(problem, hint));
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
