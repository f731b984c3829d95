//! Builds the migration report: the outcome of every document, as text for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use super::document::{DocumentContent, SourceDocument};
use super::rewrite::RewriteResult;
use crate::yaml;

/// The outcome of one document, or of one ignored setting in a document.
#[derive(Debug, Serialize)]
pub(super) struct ReportEntry {
    /// The kind and name of the object, or the setting.
    object: String,
    /// The location of the document or the setting.
    location: String,
    outcome: DocumentOutcome,
    /// The kinds and names of the equivalent objects.
    replacements: Vec<String>,
    /// The reasons for the outcome, or the differences.
    reasons: Vec<String>,
    /// True if the dropped document or setting may have restricted access.
    widens: bool,
}

/// The outcome of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum DocumentOutcome {
    /// The document is already native, or of the Gateway API.
    Native,
    /// Converted to equivalent objects.
    Rewritten,
    /// Converted with small differences.
    Changed,
    /// No remaining object references it.
    NotNeeded,
    /// The document stays unchanged, and Leno reads it.
    Unchanged,
    /// Dropped without an equivalent.
    Dropped,
}

/// The outcomes of all documents.
pub(super) struct MigrationReport(Vec<ReportEntry>);

impl MigrationReport {
    pub(super) fn from_results(documents: &[SourceDocument], results: &[RewriteResult]) -> Self {
        let mut entries = Vec::new();
        for (document, result) in documents.iter().zip(results) {
            if matches!(document.content, DocumentContent::Comments) {
                continue;
            }
            let entry = |outcome, replacements, reasons| ReportEntry {
                object: document.title.clone(),
                location: document.location.clone(),
                outcome,
                replacements,
                reasons,
                widens: false,
            };
            let object_names =
                |objects: &[serde_json::Value]| objects.iter().map(yaml::object_name).collect();
            let to_reasons = |reason: &str| vec![reason.to_owned()];
            entries.push(match result {
                RewriteResult::Native => entry(DocumentOutcome::Native, Vec::new(), Vec::new()),
                RewriteResult::Rewritten(objects) => {
                    entry(DocumentOutcome::Rewritten, object_names(objects), Vec::new())
                }
                RewriteResult::Changed(objects, differences) => {
                    let differences =
                        differences.iter().map(|difference| (*difference).to_owned()).collect();
                    entry(DocumentOutcome::Changed, object_names(objects), differences)
                }
                RewriteResult::NotNeeded(reason) => {
                    entry(DocumentOutcome::NotNeeded, Vec::new(), to_reasons(reason))
                }
                RewriteResult::Unchanged(reason) => {
                    entry(DocumentOutcome::Unchanged, Vec::new(), to_reasons(reason))
                }
                RewriteResult::Dropped(reason) => ReportEntry {
                    widens: document.may_restrict_access(),
                    ..entry(DocumentOutcome::Dropped, Vec::new(), to_reasons(reason))
                },
            });
            if let (DocumentContent::Settings { unsupported, .. }, RewriteResult::Rewritten(_)) =
                (&document.content, result)
                && !unsupported.is_empty()
            {
                entries.push(ReportEntry {
                    widens: document.may_restrict_access(),
                    ..entry(DocumentOutcome::Dropped, Vec::new(), unsupported.clone())
                });
            }
        }
        Self(entries)
    }

    /// Adds annotations and labels of other meshes that Leno ignores.
    pub(super) fn with_ignored(mut self, ignored: Vec<IgnoredSetting>) -> Self {
        self.0.extend(ignored.into_iter().map(|IgnoredSetting { object, location, reason }| {
            ReportEntry {
                object,
                location,
                outcome: DocumentOutcome::Dropped,
                replacements: Vec::new(),
                reasons: vec![reason],
                widens: false,
            }
        }));
        self
    }

    /// True if no rule of another mesh remains, and no rule is changed or dropped.
    pub(super) fn is_complete(&self) -> bool {
        let complete_outcomes =
            [DocumentOutcome::Native, DocumentOutcome::Rewritten, DocumentOutcome::NotNeeded];
        self.0.iter().all(|entry| complete_outcomes.contains(&entry.outcome))
    }

    /// True if no rule is dropped.
    pub(super) fn is_lossless(&self) -> bool {
        self.count_outcome(DocumentOutcome::Dropped) == 0
    }

    /// Returns the entries, for programs.
    pub(super) fn entries(&self) -> &[ReportEntry] {
        &self.0
    }

    fn count_outcome(&self, outcome: DocumentOutcome) -> usize {
        self.0.iter().filter(|entry| entry.outcome == outcome).count()
    }

    /// Formats the report for people, identical before and after the files are written.
    pub(super) fn to_text(&self) -> String {
        let changed_count = self.count_outcome(DocumentOutcome::Changed);
        let changed_note = match changed_count {
            0 => String::new(),
            1 => " (1 differs in rare cases)".to_owned(),
            count => format!(" ({count} differ in rare cases)"),
        };
        let mut text = String::new();
        for entry in &self.0 {
            let Some(line) = entry.report_line() else { continue };
            let access_note = if entry.widens { ACCESS_NOTE } else { "" };
            text.extend([&*line, access_note, "\n"]);
        }
        text.push_str(&format!(
            "{} native already, {} rewritten{changed_note}, {} not needed, {} unchanged, {} dropped\n",
            self.count_outcome(DocumentOutcome::Native),
            self.count_outcome(DocumentOutcome::Rewritten) + changed_count,
            self.count_outcome(DocumentOutcome::NotNeeded),
            self.count_outcome(DocumentOutcome::Unchanged),
            self.count_outcome(DocumentOutcome::Dropped),
        ));
        text
    }
}

impl ReportEntry {
    /// Returns the line for the document; `None` if the document is native.
    fn report_line(&self) -> Option<String> {
        let (replacements, reason) = (self.replacements.join(" and "), self.reasons.join("; "));
        Some(match self.outcome {
            DocumentOutcome::Native => return None,
            DocumentOutcome::Rewritten => format!("rewritten: {self} is {replacements}"),
            DocumentOutcome::Changed => {
                format!("rewritten: {self} is {replacements}, but: {reason}")
            }
            DocumentOutcome::NotNeeded => format!("not needed: {self}: {reason}"),
            DocumentOutcome::Unchanged => format!("unchanged: {self}: {reason}"),
            DocumentOutcome::Dropped => format!("dropped: {self}: {reason}"),
        })
    }
}

impl fmt::Display for ReportEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, location, .. } = self;
        write!(f, "{object} ({location})")
    }
}

/// An annotation or label of another mesh that Leno ignores.
pub(super) struct IgnoredSetting {
    pub(super) object: String,
    pub(super) location: String,
    pub(super) reason: String,
}

/// The note on a dropped document or setting that may have denied or restricted access.
const ACCESS_NOTE: &str =
    "; access may become wider: no other rule denies or limits the same requests";
