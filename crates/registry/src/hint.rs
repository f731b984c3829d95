//! Literal replacements in hints, each tried before the user sees it.

use crate::document::{Node, Value};
use crate::field::Note;

/// A replacement that a hint spells out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// The same scalar in quotes.
    Quoted,
    /// The same scalar without quotes.
    Unquoted,
    /// Another text.
    Text(String),
    /// Another key for the same value.
    Key(String),
}

/// The problems of a document, with each literal hint followed once: a hint with a replacement that is
/// rejected as well gives way to the problem of that replacement. `read` returns the problems of a document.
pub(crate) fn followed(
    node: &Node,
    problems: Vec<Note>,
    read: impl Fn(&Node) -> Vec<Note>,
) -> Vec<Note> {
    let mut shown: Vec<Note> = Vec::new();
    for note in problems {
        for note in followed_note(node, note, &read) {
            let is_known = |known: &Note| {
                known.field == note.field
                    && known.problem == note.problem
                    && known.remedy == note.remedy
            };
            if !shown.iter().any(is_known) {
                shown.push(note);
            }
        }
    }
    shown
}

fn followed_note(node: &Node, note: Note, read: &impl Fn(&Node) -> Vec<Note>) -> Vec<Note> {
    let Some(replacement) = note.replacement.clone() else { return vec![note] };
    let path = path_after(&note.field, &replacement);
    let mut changed = node.clone();
    if !replace(&mut changed, &note.field, &replacement) {
        return vec![note];
    }
    let is_below = |other: &Note| {
        let rest = other.field.strip_prefix(&path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let mut next: Vec<Note> = read(&changed).into_iter().filter(is_below).collect();
    match replacement {
        Replacement::Key(key) if next.iter().any(|note| note.problem.starts_with(GIVEN_TWICE)) => {
            let remedy = format!("remove it: `{key}` is there as well");
            vec![Note { remedy, replacement: None, ..note }]
        }
        // The name is right then, and the value is wrong as well.
        Replacement::Key(_) => {
            next.insert(0, note);
            next
        }
        Replacement::Quoted | Replacement::Unquoted | Replacement::Text(_) if next.is_empty() => {
            vec![note]
        }
        Replacement::Quoted => {
            // The document has no quotes there.
            let quoted = format!("\"{}\"", note.problem.split(' ').next().unwrap_or_default());
            for note in &mut next {
                if let Some(rest) = note.problem.strip_prefix(&quoted) {
                    note.problem = format!("{}{rest}", quoted.trim_matches('"'));
                }
            }
            next
        }
        Replacement::Unquoted | Replacement::Text(_) => next,
    }
}

/// The path of a value once a hint about it was followed.
fn path_after(path: &str, replacement: &Replacement) -> String {
    let Replacement::Key(key) = replacement else { return path.to_owned() };
    match parent(path) {
        "" => key.clone(),
        parent => format!("{parent}.{key}"),
    }
}

/// The path of the map that an entry is in.
fn parent(path: &str) -> &str {
    let quoted = path.strip_suffix("\"]").and_then(|path| path.rfind("[\""));
    path.get(..quoted.or_else(|| path.rfind('.')).unwrap_or(0)).unwrap_or_default()
}

/// Follows a hint in a document; false when the path leads nowhere in it.
pub(crate) fn replace(node: &mut Node, path: &str, replacement: &Replacement) -> bool {
    replace_below(node, "", (path, replacement))
}

fn replace_below(node: &mut Node, here: &str, wanted: (&str, &Replacement)) -> bool {
    let (path, replacement) = wanted;
    if here == path && !matches!(replacement, Replacement::Key(_)) {
        return replace_scalar(&mut node.value, replacement);
    }
    match &mut node.value {
        Value::List(list) => list.iter_mut().enumerate().any(|(index, node)| {
            let here = format!("{here}[{index}]");
            path.starts_with(&here) && replace_below(node, &here, wanted)
        }),
        Value::Map(map) => map.iter_mut().any(|(key, node)| {
            let Value::Text(word) = &mut key.value else { return false };
            let here = crate::field::below(here, word);
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

fn replace_scalar(value: &mut Value, replacement: &Replacement) -> bool {
    let replaced = match (&*value, replacement) {
        (Value::Number(text), Replacement::Quoted) => Value::Text(text.clone()),
        (Value::Boolean(value), Replacement::Quoted) => Value::Text(value.to_string()),
        (Value::Text(text), Replacement::Unquoted) => Value::Number(text.clone()),
        (_, Replacement::Text(text)) => Value::Text(text.clone()),
        _ => return false,
    };
    *value = replaced;
    true
}

/// The beginning of the problem with a key that is there already.
pub(crate) const GIVEN_TWICE: &str = "is given twice";

#[cfg(test)]
mod tests;
