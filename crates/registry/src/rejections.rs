//! Defines rejections of documents and warnings about them: location, problem and hint.

use std::collections::BTreeSet;
use std::fmt;

use leno_model::ObjectKey;
use serde::Serialize;

/// A rejected document or file. It is displayed as `mesh.yaml:12:7: HTTPRoute bookinfo/reviews: spec.rules:
/// PROBLEM; HINT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RejectedDocument {
    /// The location of the problem.
    #[serde(flatten)]
    pub location: DocumentLocation,
    /// The problem, such as `is missing`, which completes the displayed location to a sentence.
    pub problem: String,
    /// The hint: an instruction that solves the problem.
    pub hint: String,
}

/// An accepted document that probably does not have the intended effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Warning {
    /// The location of the problem.
    #[serde(flatten)]
    pub location: DocumentLocation,
    /// The problem, such as `is missing`, which completes the displayed location to a sentence.
    pub problem: String,
    /// The hint: an instruction that solves the problem.
    pub hint: String,
}

/// A location in a document; unknown parts are `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct DocumentLocation {
    /// The file, or the name given to the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column in characters, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The document's kind, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The document's namespace; absent for cluster-scoped kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The document's name, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The path of the field, such as `spec.rules[0].backendRefs[1].weight`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl DocumentLocation {
    /// Returns the location of a field of an object, without file, line and column.
    #[must_use]
    pub fn for_object(key: &ObjectKey, field: impl Into<String>) -> Self {
        let object_text = key.to_string();
        let (kind, name) = object_text.split_once(' ').unwrap_or((&object_text, ""));
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace), Some(name)),
            // A `MeshConfig` has no namespace, and its name makes no difference.
            None => (None, None),
        };
        Self {
            kind: Some(kind.to_owned()),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            field: Some(field.into()),
            ..Self::default()
        }
    }
}

impl fmt::Display for RejectedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}; {}", self.location, self.problem, self.hint)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}; {}", self.location, self.problem, self.hint)
    }
}

/// Returns the number of documents with these problems; a document with several problems counts once.
#[must_use]
pub fn count_rejected_documents(rejected: &[RejectedDocument]) -> usize {
    // A document without kind and name is identified by its position.
    let identity = |rejected: &RejectedDocument| {
        let DocumentLocation { file, line, column, kind, namespace, name, .. } =
            rejected.location.clone();
        let is_unnamed = name.is_none() && kind.is_none();
        (file, kind, namespace, name, is_unnamed.then_some((line, column)))
    };
    rejected.iter().map(identity).collect::<BTreeSet<_>>().len()
}

/// Displays the known parts, each followed by a colon, as a prefix of the problem.
impl fmt::Display for DocumentLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
                if let Some(column) = self.column {
                    write!(f, ":{column}")?;
                }
            }
            f.write_str(": ")?;
        }
        if let Some(kind) = &self.kind {
            f.write_str(kind)?;
            match (&self.namespace, &self.name) {
                (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}")?,
                (None, Some(name)) => write!(f, " {name}")?,
                (_, None) => {}
            }
            f.write_str(": ")?;
        }
        match &self.field {
            Some(field) => write!(f, "{field}: "),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_rejection() -> RejectedDocument {
        RejectedDocument {
            location: DocumentLocation {
                file: Some("mesh.yaml".into()),
                line: Some(12),
                column: Some(7),
                kind: Some("HTTPRoute".into()),
                namespace: Some("bookinfo".into()),
                name: Some("reviews".into()),
                field: Some("spec.rules".into()),
            },
            problem: "is missing".into(),
            hint: "add `rules`".into(),
        }
    }

    #[test]
    fn display_contains_location_object_field_problem_and_hint() {
        let mut rejected = test_rejection();
        assert_eq!(
            rejected.to_string(),
            "mesh.yaml:12:7: HTTPRoute bookinfo/reviews: spec.rules: is missing; add `rules`"
        );
        rejected.location =
            DocumentLocation { file: Some("mesh.yaml".into()), ..DocumentLocation::default() };
        assert_eq!(rejected.to_string(), "mesh.yaml: is missing; add `rules`");
    }

    #[test]
    fn several_problems_of_a_document_count_once() {
        let rejection_of = |name: &str, field: &str| {
            let mut rejected = test_rejection();
            rejected.location.name = Some(name.to_owned());
            rejected.location.field = Some(field.to_owned());
            rejected
        };
        let problems =
            [rejection_of("a", "spec.x"), rejection_of("a", "spec.y"), rejection_of("b", "spec.x")];
        assert_eq!(count_rejected_documents(&problems), 2);
        assert_eq!(count_rejected_documents(&[]), 0);
    }

    #[test]
    fn json_is_one_flat_object() {
        let json = serde_json::to_value(test_rejection()).unwrap();
        assert_eq!(json["line"], 12);
        assert_eq!(json["namespace"], "bookinfo");
        assert_eq!(json["hint"], "add `rules`");
    }
}
