//! What became of every document, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::document::{Document, Found};
use super::rewrite::Fate;
use crate::yaml;

/// What became of one document, or of what it says beside its rules.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    /// Kind and name.
    object: String,
    /// Where it was found.
    place: String,
    outcome: Outcome,
    /// What says the same.
    becomes: Vec<String>,
    /// Why it is no other outcome, or what is different.
    reasons: Vec<String>,
    /// What is lost may have kept somebody out.
    widens: bool,
}

/// What becomes of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// It is native already, or of the Gateway API.
    Native,
    /// Other words say the same.
    Rewritten,
    /// Other words say nearly the same.
    Changed,
    /// Nothing refers to it any more.
    Dropped,
    /// It is read as it stands.
    Left,
    /// Nothing says it any more.
    NotKept,
}

/// What became of every document.
pub(super) struct Report(Vec<Entry>);

impl Report {
    pub(super) fn of(documents: &[Document], fates: &[Fate]) -> Self {
        let mut entries = Vec::new();
        for (document, fate) in documents.iter().zip(fates) {
            if matches!(document.found, Found::Comments) {
                continue;
            }
            let entry = |outcome, becomes, reasons| Entry {
                object: document.title.clone(),
                place: document.place.clone(),
                outcome,
                becomes,
                reasons,
                widens: false,
            };
            let names = |objects: &[serde_json::Value]| objects.iter().map(yaml::name).collect();
            let one = |why: &str| vec![why.to_owned()];
            entries.push(match fate {
                Fate::Native => entry(Outcome::Native, Vec::new(), Vec::new()),
                Fate::Rewritten(objects) => entry(Outcome::Rewritten, names(objects), Vec::new()),
                Fate::Nearly(objects, differences) => {
                    let differences = differences.iter().map(|it| (*it).to_owned()).collect();
                    entry(Outcome::Changed, names(objects), differences)
                }
                Fate::Dropped(why) => entry(Outcome::Dropped, Vec::new(), one(why)),
                Fate::Left(why) => entry(Outcome::Left, Vec::new(), one(why)),
                Fate::Lost(why) => Entry {
                    widens: document.may_keep_out(),
                    ..entry(Outcome::NotKept, Vec::new(), one(why))
                },
            });
            if let (Found::Settings { others, .. }, Fate::Rewritten(_)) = (&document.found, fate)
                && !others.is_empty()
            {
                entries.push(Entry {
                    widens: document.may_keep_out(),
                    ..entry(Outcome::NotKept, Vec::new(), others.clone())
                });
            }
        }
        Self(entries)
    }

    /// With what was found beside documents.
    pub(super) fn with(mut self, unread: Vec<Unread>) -> Self {
        self.0.extend(unread.into_iter().map(|Unread { object, place, why }| Entry {
            object,
            place,
            outcome: Outcome::NotKept,
            becomes: Vec::new(),
            reasons: vec![why],
            widens: false,
        }));
        self
    }

    /// Whether nothing foreign is left, and nothing is different or lost.
    pub(super) fn is_whole(&self) -> bool {
        let whole = [Outcome::Native, Outcome::Rewritten, Outcome::Dropped];
        self.0.iter().all(|entry| whole.contains(&entry.outcome))
    }

    /// Whether nothing is lost.
    pub(super) fn keeps_all(&self) -> bool {
        self.count(Outcome::NotKept) == 0
    }

    /// For programs.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.0.iter().filter(|entry| entry.outcome == outcome).count()
    }

    /// What was done.
    pub(super) fn told(&self) -> String {
        let line = |entry: &Entry, becomes: &str, why: &str| match entry.outcome {
            Outcome::Native => None,
            Outcome::Rewritten => Some(format!("rewritten: {entry} is {becomes}")),
            Outcome::Changed => Some(format!("rewritten: {entry} is {becomes}, but: {why}")),
            Outcome::Dropped => Some(format!("dropped: {entry}: {why}")),
            Outcome::Left => Some(format!("left as it is: {entry}: {why}")),
            Outcome::NotKept => Some(format!("not kept: {entry}: {why}")),
        };
        let changed = self.count(Outcome::Changed);
        let rewritten = self.count(Outcome::Rewritten) + self.count(Outcome::Dropped) + changed;
        let but = match changed {
            0 => String::new(),
            several => format!(" ({several} decide otherwise in a rare case)"),
        };
        let sum = format!(
            "{} native already, {rewritten} rewritten{but}, {} left as they are, {} not kept",
            self.count(Outcome::Native),
            self.count(Outcome::Left),
            self.count(Outcome::NotKept),
        );
        self.lines(line, &sum)
    }

    /// What would come of it.
    pub(super) fn foretold(&self) -> String {
        let line = |entry: &Entry, becomes: &str, why: &str| match entry.outcome {
            Outcome::Native => None,
            Outcome::Rewritten => Some(format!("kept: {entry}: as {becomes}")),
            Outcome::Changed => Some(format!("changed: {entry}: as {becomes}, but: {why}")),
            Outcome::Dropped => Some(format!("kept: {entry}: {why}")),
            Outcome::Left => Some(format!("kept: {entry}: read as it stands: {why}")),
            Outcome::NotKept => Some(format!("not kept: {entry}: {why}")),
        };
        let (changed, lost) = (self.count(Outcome::Changed), self.count(Outcome::NotKept));
        let native = self.count(Outcome::Native);
        let kept = self.0.len() - changed - lost - native;
        let sum =
            format!("{native} native already, {kept} kept, {changed} changed, {lost} not kept");
        self.lines(line, &sum)
    }

    /// A line for each entry that has one, told with what it becomes and why, and one for all.
    fn lines(&self, line: impl Fn(&Entry, &str, &str) -> Option<String>, sum: &str) -> String {
        let mut text = String::new();
        for entry in &self.0 {
            let (becomes, why) = (entry.becomes.join(" and "), entry.reasons.join("; "));
            let Some(line) = line(entry, &becomes, &why) else { continue };
            let wider = if entry.widens { WIDENS } else { "" };
            text.extend([&*line, wider, "\n"]);
        }
        text.extend([sum, "\n"]);
        text
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, place, .. } = self;
        write!(f, "{object} ({place})")
    }
}

/// Something foreign that is no document, and is not read.
pub(super) struct Unread {
    pub(super) object: String,
    pub(super) place: String,
    pub(super) why: String,
}

/// Said of what is lost and may have denied or narrowed something.
const WIDENS: &str = "; access may become wider: nothing else denies or limits what it did";
