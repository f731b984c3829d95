//! Verifies hints that propose a replacement: applies the replacement to a copy of the document, and reads the copy. A
//! hint must not propose a value that would be rejected too.

use std::collections::BTreeSet;

use crate::document::{DocumentNode, NodeValue, TextPosition};
use crate::field::FieldDiagnostic;

/// A replacement proposed by a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// The same scalar, quoted.
    Quoted,
    /// The same scalar, unquoted.
    Unquoted,
    /// Another text.
    Text(String),
    /// Another number.
    Number(String),
    /// Another key for the same value.
    Key(String),
    /// A map in place of a scalar. The first candidate that the reader accepts is proposed; `quoted` is the scalar as shown
    /// in the proposal.
    Map { quoted: String, candidates: Vec<MapEntries> },
}

/// Entries of a map: keys and values. The value `None` stands for the scalar that the map replaces.
pub(crate) type MapEntries = Vec<(&'static str, Option<&'static str>)>;

/// Returns the problems to report. Applies the replacement of each problem to a copy of the document: if the replacement is
/// rejected as well, its problem is reported instead. `read` returns the problems of a document.
pub(crate) fn verify_hints(
    node: &DocumentNode,
    problems: Vec<FieldDiagnostic>,
    read: impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut remaining_map_attempts = MAX_MAP_ATTEMPTS;
    let mut reported_problems: Vec<FieldDiagnostic> = Vec::new();
    let consequence_indices = find_consequences_of_misspellings(node, &problems, &read);
    for (index, diagnostic) in problems.into_iter().enumerate() {
        if consequence_indices.contains(&index) {
            continue;
        }
        for diagnostic in verify_hint(node, diagnostic, &read, &mut remaining_map_attempts) {
            let is_duplicate = |previous: &FieldDiagnostic| {
                previous.field == diagnostic.field
                    && previous.problem == diagnostic.problem
                    && previous.hint == diagnostic.hint
            };
            if !reported_problems.iter().any(is_duplicate) {
                reported_problems.push(diagnostic);
            }
        }
    }
    reported_problems
}

/// Returns the indices of the problems that disappear once a misspelled key is corrected: the problem of the missing
/// key, and problems of enclosing maps.
fn find_consequences_of_misspellings(
    node: &DocumentNode,
    problems: &[FieldDiagnostic],
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> BTreeSet<usize> {
    let mut consequence_indices = BTreeSet::new();
    for diagnostic in problems {
        let Some(replacement @ Replacement::Key(_)) = &diagnostic.replacement else { continue };
        let path = path_after_replacement(&diagnostic.field, replacement);
        let is_enclosing = |other: &FieldDiagnostic| {
            let suffix = diagnostic.field.strip_prefix(&other.field);
            other.field == path
                || other.field.is_empty()
                || suffix.is_some_and(|suffix| suffix.starts_with(['.', '[']))
        };
        let enclosing_problems: Vec<(usize, &FieldDiagnostic)> =
            problems.iter().enumerate().filter(|(_, other)| is_enclosing(other)).collect();
        let mut changed_document = node.clone();
        if enclosing_problems.is_empty()
            || !apply_replacement(&mut changed_document, &diagnostic.field, replacement)
        {
            continue;
        }
        let remaining_problems = read(&changed_document);
        if remaining_problems.iter().any(|remaining| remaining.problem.starts_with(DUPLICATE_KEY)) {
            continue;
        }
        let remains = |other: &FieldDiagnostic| {
            remaining_problems.iter().any(|remaining| {
                remaining.field == other.field && remaining.problem == other.problem
            })
        };
        consequence_indices.extend(
            enclosing_problems.iter().filter(|(_, other)| !remains(other)).map(|(index, _)| *index),
        );
    }
    consequence_indices
}

/// Applies the replacement of one problem. Returns the problem if the replacement is accepted, otherwise the
/// problems of the replacement.
fn verify_hint(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    remaining_map_attempts: &mut usize,
) -> Vec<FieldDiagnostic> {
    let Some(replacement) = diagnostic.replacement.clone() else { return vec![diagnostic] };
    if let Replacement::Map { quoted, candidates } = replacement {
        return vec![propose_map(
            node,
            diagnostic,
            &quoted,
            candidates,
            read,
            remaining_map_attempts,
        )];
    }
    let path = path_after_replacement(&diagnostic.field, &replacement);
    let mut changed_document = node.clone();
    if !apply_replacement(&mut changed_document, &diagnostic.field, &replacement) {
        return vec![diagnostic];
    }
    let is_below = |other: &FieldDiagnostic| {
        let suffix = other.field.strip_prefix(&path);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['.', '[']))
    };
    let mut new_problems: Vec<FieldDiagnostic> =
        read(&changed_document).into_iter().filter(is_below).collect();
    for diagnostic in &mut new_problems {
        // Maps are tried only in the unmodified document.
        diagnostic
            .replacement
            .take_if(|replacement| matches!(replacement, Replacement::Map { .. }));
    }
    match replacement {
        Replacement::Key(key)
            if new_problems
                .iter()
                .any(|diagnostic| diagnostic.problem.starts_with(DUPLICATE_KEY)) =>
        {
            let hint = format!("remove it: `{key}` is also present");
            vec![FieldDiagnostic { hint, replacement: None, ..diagnostic }]
        }
        // The proposed key is correct; the value may have problems as well.
        Replacement::Key(_) => merge_value_problems(diagnostic, &path, new_problems),
        _ if new_problems.is_empty() => vec![diagnostic],
        Replacement::Quoted => {
            // The value has no quotes in the document, so its problem is reported without them.
            let quoted =
                format!("\"{}\"", diagnostic.problem.split(' ').next().unwrap_or_default());
            for diagnostic in &mut new_problems {
                if let Some(suffix) = diagnostic.problem.strip_prefix(&quoted) {
                    diagnostic.problem = format!("{}{suffix}", quoted.trim_matches('"'));
                }
            }
            new_problems
        }
        _ => new_problems,
    }
}

/// Combines the diagnostic of a misspelled key with the diagnostics of its value, which get the path with the key as
/// written.
fn merge_value_problems(
    mut diagnostic: FieldDiagnostic,
    path: &str,
    value_problems: Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut diagnostics = Vec::new();
    for mut value_diagnostic in value_problems {
        if value_diagnostic.field != path {
            let suffix = value_diagnostic.field.strip_prefix(path).unwrap_or_default();
            value_diagnostic.field = format!("{}{suffix}", diagnostic.field);
            diagnostics.push(value_diagnostic);
            continue;
        }
        let subject = if value_diagnostic.problem.starts_with("is ") { "Its value " } else { "" };
        diagnostic.hint.push_str(&format!(
            " {subject}{}: {}",
            value_diagnostic.problem, value_diagnostic.hint
        ));
    }
    diagnostics.insert(0, diagnostic);
    diagnostics
}

/// Replaces the hint of a diagnostic about a scalar in place of a map: the new hint proposes the first accepted
/// candidate. If no candidate is accepted, the hint is unchanged.
fn propose_map(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    quoted: &str,
    candidates: Vec<MapEntries>,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    remaining_map_attempts: &mut usize,
) -> FieldDiagnostic {
    let accepted_entries = candidates.into_iter().find(|entries| {
        let replacement =
            Replacement::Map { quoted: String::new(), candidates: vec![entries.clone()] };
        let mut changed_document = node.clone();
        if *remaining_map_attempts == 0
            || !apply_replacement(&mut changed_document, &diagnostic.field, &replacement)
        {
            return false;
        }
        *remaining_map_attempts -= 1;
        let is_below = |other: &FieldDiagnostic| {
            let suffix = other.field.strip_prefix(&diagnostic.field);
            suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['.', '[']))
        };
        !read(&changed_document).iter().any(is_below)
    });
    let hint = match accepted_entries {
        Some(entries) => {
            let entries =
                entries.iter().map(|(key, text)| format!("{key}: {}", text.unwrap_or(quoted)));
            format!("write a map, such as {{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        None => diagnostic.hint,
    };
    FieldDiagnostic { hint, replacement: None, ..diagnostic }
}

/// Returns the path of the value after the replacement. It differs from `path` only if the replacement changes the key.
fn path_after_replacement(path: &str, replacement: &Replacement) -> String {
    let Replacement::Key(key) = replacement else { return path.to_owned() };
    match parent_path(path) {
        "" => key.clone(),
        parent => format!("{parent}.{key}"),
    }
}

/// Returns the path of the enclosing map.
fn parent_path(path: &str) -> &str {
    let quoted_start = path.strip_suffix("\"]").and_then(|path| path.rfind("[\""));
    path.get(..quoted_start.or_else(|| path.rfind('.')).unwrap_or(0)).unwrap_or_default()
}

/// Applies a replacement at a path of a document; false if the path does not exist.
pub(crate) fn apply_replacement(
    node: &mut DocumentNode,
    path: &str,
    replacement: &Replacement,
) -> bool {
    replace_below(node, "", path, replacement)
}

/// Applies a replacement at `path`, in the node at `current_path` or below it.
fn replace_below(
    node: &mut DocumentNode,
    current_path: &str,
    path: &str,
    replacement: &Replacement,
) -> bool {
    if current_path == path && !matches!(replacement, Replacement::Key(_)) {
        return replace_scalar(&mut node.value, replacement);
    }
    match &mut node.value {
        NodeValue::List(list) => list.iter_mut().enumerate().any(|(index, node)| {
            let current_path = format!("{current_path}[{index}]");
            path.starts_with(&current_path) && replace_below(node, &current_path, path, replacement)
        }),
        NodeValue::Map(map) => map.iter_mut().any(|(key, node)| {
            let NodeValue::Text(key_text) = &mut key.value else { return false };
            let current_path = crate::field::append_key(current_path, key_text);
            if let Replacement::Key(new_key) = replacement
                && current_path == path
            {
                key_text.clone_from(new_key);
                return true;
            }
            path.starts_with(&current_path) && replace_below(node, &current_path, path, replacement)
        }),
        _ => false,
    }
}

/// Replaces a scalar; false if the replacement does not apply to it.
fn replace_scalar(value: &mut NodeValue, replacement: &Replacement) -> bool {
    let new_value = match (&*value, replacement) {
        (NodeValue::Number(text), Replacement::Quoted) => NodeValue::Text(text.clone()),
        (NodeValue::Boolean(value), Replacement::Quoted) => NodeValue::Text(value.to_string()),
        (NodeValue::Text(text), Replacement::Unquoted) => NodeValue::Number(text.clone()),
        (_, Replacement::Text(text)) => NodeValue::Text(text.clone()),
        (_, Replacement::Number(text)) => NodeValue::Number(text.clone()),
        (scalar, Replacement::Map { candidates, .. }) => {
            let [entries] = &candidates[..] else { return false };
            let new_node = |value| DocumentNode { position: TextPosition::default(), value };
            let to_entry = |(key, text): &(&str, Option<&str>)| {
                let value =
                    text.map_or_else(|| scalar.clone(), |text| NodeValue::Text(text.to_owned()));
                (new_node(NodeValue::Text((*key).to_owned())), new_node(value))
            };
            NodeValue::Map(entries.iter().map(to_entry).collect())
        }
        _ => return false,
    };
    *value = new_value;
    true
}

/// The start of the problem text for a duplicate key.
pub(crate) const DUPLICATE_KEY: &str = "is defined twice";
/// Maximum number of proposed maps that are verified per document: each verification reads the whole document again.
const MAX_MAP_ATTEMPTS: usize = 16;

#[cfg(test)]
mod tests;
