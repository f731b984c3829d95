//! Verification of hints that propose a replacement: the replacement is applied to a copy of the document, which is
//! read again.

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
    /// A map in place of the scalar, which messages quote as `quoted`. The first accepted candidate is proposed.
    Map { quoted: String, candidates: Vec<MapEntries> },
}

/// Entries of a map. `None` stands for the scalar that the map replaces.
pub(crate) type MapEntries = Vec<(&'static str, Option<&'static str>)>;

/// Applies the replacement of each problem to a copy of the document. If the replacement is rejected as well, its
/// problem is reported instead. `read` returns the problems of a document.
pub(crate) fn apply_hints(
    node: &DocumentNode,
    problems: Vec<FieldDiagnostic>,
    read: impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut attempts_left = MAX_MAP_ATTEMPTS;
    let mut reported: Vec<FieldDiagnostic> = Vec::new();
    let consequences = caused_by_misspelling(node, &problems, &read);
    for (index, diagnostic) in problems.into_iter().enumerate() {
        if consequences.contains(&index) {
            continue;
        }
        for diagnostic in follow_hint(node, diagnostic, &read, &mut attempts_left) {
            let is_duplicate = |previous: &FieldDiagnostic| {
                previous.field == diagnostic.field
                    && previous.problem == diagnostic.problem
                    && previous.hint == diagnostic.hint
            };
            if !reported.iter().any(is_duplicate) {
                reported.push(diagnostic);
            }
        }
    }
    reported
}

/// Returns the indices of the problems that only a misspelled key causes: the missing key, and the problem of an
/// enclosing map.
fn caused_by_misspelling(
    node: &DocumentNode,
    problems: &[FieldDiagnostic],
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> BTreeSet<usize> {
    let mut consequences = BTreeSet::new();
    for diagnostic in problems {
        let Some(replacement @ Replacement::Key(_)) = &diagnostic.replacement else { continue };
        let path = path_after(&diagnostic.field, replacement);
        let is_enclosing = |other: &FieldDiagnostic| {
            let rest = diagnostic.field.strip_prefix(&other.field);
            other.field == path
                || other.field.is_empty()
                || rest.is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let enclosing = problems.iter().enumerate().filter(|(_, other)| is_enclosing(other));
        let enclosing: Vec<(usize, &FieldDiagnostic)> = enclosing.collect();
        let mut changed = node.clone();
        if enclosing.is_empty() || !apply_replacement(&mut changed, &diagnostic.field, replacement)
        {
            continue;
        }
        let remaining = read(&changed);
        if remaining.iter().any(|remaining| remaining.problem.starts_with(DUPLICATE_KEY)) {
            continue;
        }
        let remains = |other: &FieldDiagnostic| {
            remaining.iter().any(|remaining| {
                remaining.field == other.field && remaining.problem == other.problem
            })
        };
        consequences
            .extend(enclosing.iter().filter(|(_, other)| !remains(other)).map(|(index, _)| *index));
    }
    consequences
}

/// Applies the replacement of one problem; returns the problem, or the problems of the replacement.
fn follow_hint(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    attempts_left: &mut usize,
) -> Vec<FieldDiagnostic> {
    let Some(replacement) = diagnostic.replacement.clone() else { return vec![diagnostic] };
    if let Replacement::Map { quoted, candidates } = replacement {
        return vec![propose_map(node, diagnostic, &quoted, candidates, read, attempts_left)];
    }
    let path = path_after(&diagnostic.field, &replacement);
    let mut changed = node.clone();
    if !apply_replacement(&mut changed, &diagnostic.field, &replacement) {
        return vec![diagnostic];
    }
    let is_below = |other: &FieldDiagnostic| {
        let rest = other.field.strip_prefix(&path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let mut new_problems: Vec<FieldDiagnostic> =
        read(&changed).into_iter().filter(is_below).collect();
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
                if let Some(rest) = diagnostic.problem.strip_prefix(&quoted) {
                    diagnostic.problem = format!("{}{rest}", quoted.trim_matches('"'));
                }
            }
            new_problems
        }
        _ => new_problems,
    }
}

/// Combines the diagnostic of a misspelled key with those of its value, under the key as written.
fn merge_value_problems(
    mut diagnostic: FieldDiagnostic,
    path: &str,
    value_problems: Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut result = Vec::new();
    for mut value in value_problems {
        if value.field != path {
            let rest = value.field.strip_prefix(path).unwrap_or_default();
            value.field = format!("{}{rest}", diagnostic.field);
            result.push(value);
            continue;
        }
        let subject = if value.problem.starts_with("is ") { "Its value " } else { "" };
        diagnostic.hint.push_str(&format!(" {subject}{}: {}", value.problem, value.hint));
    }
    result.insert(0, diagnostic);
    result
}

/// Completes a diagnostic about a scalar in place of a map with the first accepted map.
fn propose_map(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    quoted: &str,
    candidates: Vec<MapEntries>,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    attempts_left: &mut usize,
) -> FieldDiagnostic {
    let accepted = candidates.into_iter().find(|entries| {
        let replacement =
            Replacement::Map { quoted: String::new(), candidates: vec![entries.clone()] };
        let mut changed = node.clone();
        if *attempts_left == 0 || !apply_replacement(&mut changed, &diagnostic.field, &replacement)
        {
            return false;
        }
        *attempts_left -= 1;
        let is_below = |other: &FieldDiagnostic| {
            let rest = other.field.strip_prefix(&diagnostic.field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !read(&changed).iter().any(is_below)
    });
    let hint = match accepted {
        Some(entries) => {
            let entries =
                entries.iter().map(|(key, text)| format!("{key}: {}", text.unwrap_or(quoted)));
            format!("write a map, such as {{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        None => diagnostic.hint,
    };
    FieldDiagnostic { hint, replacement: None, ..diagnostic }
}

/// Returns the path of a value after a replacement, which may change its key.
fn path_after(path: &str, replacement: &Replacement) -> String {
    let Replacement::Key(key) = replacement else { return path.to_owned() };
    match parent_path(path) {
        "" => key.clone(),
        parent => format!("{parent}.{key}"),
    }
}

/// Returns the path of the enclosing map.
fn parent_path(path: &str) -> &str {
    let quoted = path.strip_suffix("\"]").and_then(|path| path.rfind("[\""));
    path.get(..quoted.or_else(|| path.rfind('.')).unwrap_or(0)).unwrap_or_default()
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

fn replace_scalar(value: &mut NodeValue, replacement: &Replacement) -> bool {
    let replaced = match (&*value, replacement) {
        (NodeValue::Number(text), Replacement::Quoted) => NodeValue::Text(text.clone()),
        (NodeValue::Boolean(value), Replacement::Quoted) => NodeValue::Text(value.to_string()),
        (NodeValue::Text(text), Replacement::Unquoted) => NodeValue::Number(text.clone()),
        (_, Replacement::Text(text)) => NodeValue::Text(text.clone()),
        (_, Replacement::Number(text)) => NodeValue::Number(text.clone()),
        (scalar, Replacement::Map { candidates, .. }) => {
            let [entries] = &candidates[..] else { return false };
            let node = |value| DocumentNode { position: TextPosition::default(), value };
            let entry = |(key, text): &(&str, Option<&str>)| {
                let value =
                    text.map_or_else(|| scalar.clone(), |text| NodeValue::Text(text.to_owned()));
                (node(NodeValue::Text((*key).to_owned())), node(value))
            };
            NodeValue::Map(entries.iter().map(entry).collect())
        }
        _ => return false,
    };
    *value = replaced;
    true
}

/// The start of the problem text for a duplicate key.
pub(crate) const DUPLICATE_KEY: &str = "is defined twice";
/// Limit of the proposed maps that are verified per document.
const MAX_MAP_ATTEMPTS: usize = 16;

#[cfg(test)]
mod tests;
