//! Literal replacements in hints, each verified before it is reported.

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
    /// A map around the scalar, which messages quote as `shown`; the first accepted candidate is proposed.
    Map { shown: String, candidates: Vec<MapEntries> },
}

/// Entries of a map; an absent value stands for the scalar that the map replaces.
pub(crate) type MapEntries = Vec<(&'static str, Option<&'static str>)>;

/// Applies each literal hint of a document's problems once: if the replacement is rejected as well, the problem
/// of the replacement is reported instead. `read` returns the problems of a document.
pub(crate) fn apply_hints(
    node: &DocumentNode,
    problems: Vec<FieldDiagnostic>,
    read: impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut maps_left = MAPS_TRIED_MAX;
    let mut shown: Vec<FieldDiagnostic> = Vec::new();
    let explained = caused_by_misspelling(node, &problems, &read);
    for (index, diagnostic) in problems.into_iter().enumerate() {
        if explained.contains(&index) {
            continue;
        }
        for diagnostic in followed_note(node, diagnostic, &read, &mut maps_left) {
            let is_known = |known: &FieldDiagnostic| {
                known.field == diagnostic.field
                    && known.problem == diagnostic.problem
                    && known.hint == diagnostic.hint
            };
            if !shown.iter().any(is_known) {
                shown.push(diagnostic);
            }
        }
    }
    shown
}

/// Selects the problems caused only by a misspelled key: the missing key, and the enclosing map if it has no
/// other.
fn caused_by_misspelling(
    node: &DocumentNode,
    problems: &[FieldDiagnostic],
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
) -> BTreeSet<usize> {
    let mut explained = BTreeSet::new();
    for diagnostic in problems {
        let Some(replacement @ Replacement::Key(_)) = &diagnostic.replacement else { continue };
        let path = path_after(&diagnostic.field, replacement);
        let is_around = |other: &FieldDiagnostic| {
            let rest = diagnostic.field.strip_prefix(&other.field);
            other.field == path
                || other.field.is_empty()
                || rest.is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let around = problems.iter().enumerate().filter(|(_, other)| is_around(other));
        let around: Vec<(usize, &FieldDiagnostic)> = around.collect();
        let mut changed = node.clone();
        if around.is_empty() || !apply_replacement(&mut changed, &diagnostic.field, replacement) {
            continue;
        }
        let left = read(&changed);
        if left.iter().any(|left| left.problem.starts_with(GIVEN_TWICE)) {
            continue;
        }
        let is_left = |other: &FieldDiagnostic| {
            left.iter().any(|left| left.field == other.field && left.problem == other.problem)
        };
        explained.extend(around.iter().filter(|(_, other)| !is_left(other)).map(|(at, _)| *at));
    }
    explained
}

fn followed_note(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    maps_left: &mut usize,
) -> Vec<FieldDiagnostic> {
    let Some(replacement) = diagnostic.replacement.clone() else { return vec![diagnostic] };
    if let Replacement::Map { shown, candidates } = replacement {
        return vec![with_map(node, diagnostic, &shown, candidates, read, maps_left)];
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
    let mut next: Vec<FieldDiagnostic> = read(&changed).into_iter().filter(is_below).collect();
    for diagnostic in &mut next {
        // Maps are tried only in the unmodified document.
        diagnostic.replacement.take_if(|it| matches!(it, Replacement::Map { .. }));
    }
    match replacement {
        Replacement::Key(key)
            if next.iter().any(|diagnostic| diagnostic.problem.starts_with(GIVEN_TWICE)) =>
        {
            let hint = format!("remove it: `{key}` is also present");
            vec![FieldDiagnostic { hint, replacement: None, ..diagnostic }]
        }
        // The name is correct then, and the value is wrong as well.
        Replacement::Key(_) => with_value(diagnostic, &path, next),
        _ if next.is_empty() => vec![diagnostic],
        Replacement::Quoted => {
            // The document has no quotes there.
            let quoted =
                format!("\"{}\"", diagnostic.problem.split(' ').next().unwrap_or_default());
            for diagnostic in &mut next {
                if let Some(rest) = diagnostic.problem.strip_prefix(&quoted) {
                    diagnostic.problem = format!("{}{rest}", quoted.trim_matches('"'));
                }
            }
            next
        }
        _ => next,
    }
}

/// Combines the diagnostic of a misspelled key with those of its value, under the key as written.
fn with_value(
    mut diagnostic: FieldDiagnostic,
    path: &str,
    next: Vec<FieldDiagnostic>,
) -> Vec<FieldDiagnostic> {
    let mut below = Vec::new();
    for mut value in next {
        if value.field != path {
            let rest = value.field.strip_prefix(path).unwrap_or_default();
            value.field = format!("{}{rest}", diagnostic.field);
            below.push(value);
            continue;
        }
        let subject = if value.problem.starts_with("is ") { "Its value " } else { "" };
        diagnostic.hint.push_str(&format!(" {subject}{}: {}", value.problem, value.hint));
    }
    below.insert(0, diagnostic);
    below
}

/// Completes a diagnostic about a scalar in place of a map with the first accepted map.
fn with_map(
    node: &DocumentNode,
    diagnostic: FieldDiagnostic,
    shown: &str,
    candidates: Vec<MapEntries>,
    read: &impl Fn(&DocumentNode) -> Vec<FieldDiagnostic>,
    maps_left: &mut usize,
) -> FieldDiagnostic {
    let accepted = candidates.into_iter().find(|entries| {
        let replacement =
            Replacement::Map { shown: String::new(), candidates: vec![entries.clone()] };
        let mut changed = node.clone();
        if *maps_left == 0 || !apply_replacement(&mut changed, &diagnostic.field, &replacement) {
            return false;
        }
        *maps_left -= 1;
        let is_below = |other: &FieldDiagnostic| {
            let rest = other.field.strip_prefix(&diagnostic.field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !read(&changed).iter().any(is_below)
    });
    let hint = match accepted {
        Some(entries) => {
            let entries =
                entries.iter().map(|(key, text)| format!("{key}: {}", text.unwrap_or(shown)));
            format!("write a map, such as {{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        None => diagnostic.hint,
    };
    FieldDiagnostic { hint, replacement: None, ..diagnostic }
}

/// Returns the path of a value after a hint is applied.
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

/// Applies a hint to a document; false if the path does not exist.
pub(crate) fn apply_replacement(
    node: &mut DocumentNode,
    path: &str,
    replacement: &Replacement,
) -> bool {
    replace_below(node, "", (path, replacement))
}

fn replace_below(node: &mut DocumentNode, here: &str, wanted: (&str, &Replacement)) -> bool {
    let (path, replacement) = wanted;
    if here == path && !matches!(replacement, Replacement::Key(_)) {
        return replace_scalar(&mut node.value, replacement);
    }
    match &mut node.value {
        NodeValue::List(list) => list.iter_mut().enumerate().any(|(index, node)| {
            let here = format!("{here}[{index}]");
            path.starts_with(&here) && replace_below(node, &here, wanted)
        }),
        NodeValue::Map(map) => map.iter_mut().any(|(key, node)| {
            let NodeValue::Text(word) = &mut key.value else { return false };
            let here = crate::field::append_key(here, word);
            if let Replacement::Key(other) = replacement
                && here == path
            {
                word.clone_from(other);
                return true;
            }
            path.starts_with(&here) && replace_below(node, &here, wanted)
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
                    text.map_or_else(|| scalar.clone(), |it| NodeValue::Text(it.to_owned()));
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
pub(crate) const GIVEN_TWICE: &str = "is defined twice";
/// Limit of the maps tried per document.
const MAPS_TRIED_MAX: usize = 16;

#[cfg(test)]
mod tests;
