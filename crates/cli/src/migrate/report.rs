//! Migration report: the outcome of every document, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::document::{Document, Found};
use super::rewrite::Fate;
use crate::yaml;

/// The outcome of one document, or of settings next to its rules.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    /// Kind and name.
    object: String,
    /// Its location.
    location: String,
    outcome: Outcome,
    /// The equivalent objects.
    replacements: Vec<String>,
    /// The reasons for the outcome, or the differences.
    reasons: Vec<String>,
    /// True if a dropped part may have restricted access.
    widens: bool,
}

/// The outcome of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// It is already native, or of the Gateway API.
    Native,
    /// Converted to equivalent objects.
    Rewritten,
    /// Converted with small differences.
    Changed,
    /// No remaining object references it.
    NotNeeded,
    /// It stays unchanged, and Leno reads it.
    Unchanged,
    /// Dropped without an equivalent.
    Dropped,
}

/// The outcomes of all documents.
pub(super) struct Report(Vec<Entry>);

impl Report {
    pub(super) fn from_fates(documents: &[Document], fates: &[Fate]) -> Self {
        let mut entries = Vec::new();
        for (document, fate) in documents.iter().zip(fates) {
            if matches!(document.found, Found::Comments) {
                continue;
            }
            let entry = |outcome, replacements, reasons| Entry {
                object: document.title.clone(),
                location: document.place.clone(),
                outcome,
                replacements,
                reasons,
                widens: false,
            };
            let names =
                |objects: &[serde_json::Value]| objects.iter().map(yaml::object_name).collect();
            let one = |why: &str| vec![why.to_owned()];
            entries.push(match fate {
                Fate::Native => entry(Outcome::Native, Vec::new(), Vec::new()),
                Fate::Rewritten(objects) => entry(Outcome::Rewritten, names(objects), Vec::new()),
                Fate::Nearly(objects, differences) => {
                    let differences = differences.iter().map(|it| (*it).to_owned()).collect();
                    entry(Outcome::Changed, names(objects), differences)
                }
                Fate::Dropped(why) => entry(Outcome::NotNeeded, Vec::new(), one(why)),
                Fate::Left(why) => entry(Outcome::Unchanged, Vec::new(), one(why)),
                Fate::Lost(why) => Entry {
                    widens: document.may_keep_out(),
                    ..entry(Outcome::Dropped, Vec::new(), one(why))
                },
            });
            if let (Found::Settings { others, .. }, Fate::Rewritten(_)) = (&document.found, fate)
                && !others.is_empty()
            {
                entries.push(Entry {
                    widens: document.may_keep_out(),
                    ..entry(Outcome::Dropped, Vec::new(), others.clone())
                });
            }
        }
        Self(entries)
    }

    /// Adds findings outside documents.
    pub(super) fn with_unread(mut self, unread: Vec<Unread>) -> Self {
        self.0.extend(unread.into_iter().map(|Unread { object, place, why }| Entry {
            object,
            location: place,
            outcome: Outcome::Dropped,
            replacements: Vec::new(),
            reasons: vec![why],
            widens: false,
        }));
        self
    }

    /// True if no foreign rule remains, and no rule is changed or dropped.
    pub(super) fn is_whole(&self) -> bool {
        let whole = [Outcome::Native, Outcome::Rewritten, Outcome::NotNeeded];
        self.0.iter().all(|entry| whole.contains(&entry.outcome))
    }

    /// True if no rule is dropped.
    pub(super) fn keeps_all(&self) -> bool {
        self.count_outcome(Outcome::Dropped) == 0
    }

    /// Returns the entries, for programs.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    fn count_outcome(&self, outcome: Outcome) -> usize {
        self.0.iter().filter(|entry| entry.outcome == outcome).count()
    }

    /// Formats the report for people, identical before and after the files are written.
    pub(super) fn to_text(&self) -> String {
        let changed = self.count_outcome(Outcome::Changed);
        let but = match changed {
            0 => String::new(),
            1 => " (1 differs in rare cases)".to_owned(),
            several => format!(" ({several} differ in rare cases)"),
        };
        let mut text = String::new();
        for entry in &self.0 {
            let Some(line) = entry.report_line() else { continue };
            let wider = if entry.widens { WIDENS } else { "" };
            text.extend([&*line, wider, "\n"]);
        }
        text.push_str(&format!(
            "{} native already, {} rewritten{but}, {} not needed, {} unchanged, {} dropped\n",
            self.count_outcome(Outcome::Native),
            self.count_outcome(Outcome::Rewritten) + changed,
            self.count_outcome(Outcome::NotNeeded),
            self.count_outcome(Outcome::Unchanged),
            self.count_outcome(Outcome::Dropped),
        ));
        text
    }
}

impl Entry {
    /// Returns the line of a document that is not native.
    fn report_line(&self) -> Option<String> {
        let (replacements, why) = (self.replacements.join(" and "), self.reasons.join("; "));
        Some(match self.outcome {
            Outcome::Native => return None,
            Outcome::Rewritten => format!("rewritten: {self} is {replacements}"),
            Outcome::Changed => format!("rewritten: {self} is {replacements}, but: {why}"),
            Outcome::NotNeeded => format!("not needed: {self}: {why}"),
            Outcome::Unchanged => format!("unchanged: {self}: {why}"),
            Outcome::Dropped => format!("dropped: {self}: {why}"),
        })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, location, .. } = self;
        write!(f, "{object} ({location})")
    }
}

/// A foreign setting outside documents that Leno ignores.
pub(super) struct Unread {
    pub(super) object: String,
    pub(super) place: String,
    pub(super) why: String,
}

/// The note on a dropped part that may have denied or restricted access.
const WIDENS: &str = "; access may become wider: no other rule denies or limits the same requests";
