//! Merges the maps under the YAML 1.1 merge key `<<` into the map that contains the key.

use std::collections::HashSet;

use saphyr_parser::{ScalarStyle, Tag};

use super::{DocumentNode, NodeValue, SyntaxError};

/// The text of a merge key.
pub(super) const MERGE_KEY: &str = "<<";

/// True if the scalar is a merge key; a quoted `<<` is a text.
pub(super) fn is_merge_key(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
    let is_tagged = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "merge");
    text == MERGE_KEY && (is_tagged || tag.is_none() && style == ScalarStyle::Plain)
}

/// Returns the entries of a map including those of its merge keys. Entries of the map itself take precedence;
/// in a list of maps, the earlier map does. The size of the merged maps is bounded already: they are copies of aliases.
///
/// # Errors
/// [`SyntaxError`] if the value of a merge key is not a map, or an entry before the merge key is also in the merged
/// map. In the latter case parsers differ: YAML 1.1 prefers the map's own entry, kubectl (go-yaml v2) the last one
/// written.
pub(super) fn merge_entries(
    map: Vec<(DocumentNode, DocumentNode)>,
) -> Result<Vec<(DocumentNode, DocumentNode)>, SyntaxError> {
    if !map.iter().any(|(key, _)| is_merge_node(key)) {
        return Ok(map);
    }
    let own_keys: HashSet<String> = map.iter().filter_map(|(key, _)| key_text(key)).collect();
    let mut merged_keys: HashSet<String> = HashSet::new();
    let mut preceding_keys: HashSet<String> = HashSet::new();
    let mut entries: Vec<(DocumentNode, DocumentNode)> = Vec::with_capacity(map.len());
    for (key, value) in map {
        if !is_merge_node(&key) {
            preceding_keys.extend(key_text(&key));
            entries.push((key, value));
            continue;
        }
        let position = key.position;
        // The entries of an earlier `<<` precede the entries of this one.
        preceding_keys.extend(merged_keys.drain());
        for (merged_key, merged_value) in take_merged_maps(value)?.into_iter().flatten() {
            let Some(merged_text) = key_text(&merged_key) else {
                entries.push((merged_key, merged_value));
                continue;
            };
            if preceding_keys.contains(&merged_text) {
                let problem = format!(
                    "`{}` is before `<<`, which also contains it",
                    truncate_text(&merged_text)
                );
                let hint = "write one `<<` at the start of the map; of several maps, `<<: [*a, *b]`, the earlier one wins";
                return Err(SyntaxError::new(position, problem, hint));
            }
            if !own_keys.contains(&merged_text) && merged_keys.insert(merged_text) {
                entries.push((merged_key, merged_value));
            }
        }
    }
    Ok(entries)
}

/// Returns the entries of the maps under a merge key.
fn take_merged_maps(
    value: DocumentNode,
) -> Result<Vec<Vec<(DocumentNode, DocumentNode)>>, SyntaxError> {
    let position = value.position;
    let nodes = match value.value {
        NodeValue::List(list) => list,
        _ => vec![value],
    };
    let into_entries = |node: DocumentNode| match node.value {
        NodeValue::Map(map) => Ok(map),
        _ => {
            let problem = "`<<` has a value other than a map".to_owned();
            Err(SyntaxError::new(
                position,
                problem,
                "give it an alias of a map, or a list of aliases",
            ))
        }
    };
    nodes.into_iter().map(into_entries).collect()
}

fn is_merge_node(key: &DocumentNode) -> bool {
    matches!(key.value, NodeValue::MergeKey)
}

/// Returns the text of a key; `None` for a null, list or map, which the reader of the fields rejects as a key.
fn key_text(key: &DocumentNode) -> Option<String> {
    match &key.value {
        NodeValue::Text(text) | NodeValue::Number(text) => Some(text.clone()),
        NodeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

fn truncate_text(text: &str) -> String {
    text.chars().take(MAX_QUOTED_CHARACTERS).flat_map(char::escape_debug).collect()
}

/// Maximum number of characters of a key quoted in a message.
const MAX_QUOTED_CHARACTERS: usize = 80;

#[cfg(test)]
mod tests {
    use super::super::parse_documents;
    use super::*;

    fn format_node(node: &DocumentNode) -> String {
        match &node.value {
            NodeValue::Map(map) => {
                let entries = map.iter().map(|(key, value)| {
                    format!("{}: {}", key_text(key).unwrap_or_default(), format_node(value))
                });
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
            NodeValue::Number(text) | NodeValue::Text(text) => text.clone(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn own_entries_and_earlier_maps_take_precedence() {
        const BASE: &str = "base: &b {x: 1, y: 1}\nother: &o {y: 2, z: 2}\nmap: ";
        for (map, expected) in [
            ("{<<: *b}", "{x: 1, y: 1}"),
            ("{<<: *b, y: 3}", "{x: 1, y: 3}"),
            ("{<<: [*b, *o]}", "{x: 1, y: 1, z: 2}"),
            ("{<<: [*o, *b], w: 3}", "{y: 2, z: 2, x: 1, w: 3}"),
            ("{<<: {v: 1}, u: 2}", "{v: 1, u: 2}"),
            ("{<<: *b, <<: {w: 1}}", "{x: 1, y: 1, w: 1}"),
            ("{<<: [{y: 3}, *b], y: 4}", "{x: 1, y: 4}"),
            ("{<<: &m {<<: *b, t: 1}, s: 1}", "{x: 1, y: 1, t: 1, s: 1}"),
            ("{\"<<\": 1}", "{<<: 1}"),
            ("{!!merge <<: *b}", "{x: 1, y: 1}"),
            ("{!!merge '<<': *b}", "{x: 1, y: 1}"),
            ("{!!str <<: 1}", "{<<: 1}"),
            ("{'<<': 1}", "{<<: 1}"),
            ("{&m <<: *b, *m : 1}", "{x: 1, y: 1, <<: 1}"),
            ("{&m <<: *b, z: *m}", "{x: 1, y: 1, z: <<}"),
            ("{w: <<}", "{w: <<}"),
        ] {
            let document = parse_documents(&format!("{BASE}{map}\n")).unwrap().remove(0);
            let NodeValue::Map(entries) = &document.value else { panic!() };
            assert_eq!(format_node(&entries[2].1), expected, "{map}");
        }
    }

    #[test]
    fn a_merge_tag_on_another_key_has_no_effect() {
        for key in
            ["!!merge foo", "!!merge ''", "!!merge {a: 1}", "!!merge [a]", "!merge <<", "! <<"]
        {
            let document = parse_documents(&format!("a: &a {{x: 1}}\nb:\n  ? {key}\n  : *a\n"));
            let document = document.unwrap().remove(0);
            let NodeValue::Map(entries) = &document.value else { panic!() };
            let NodeValue::Map(inner) = &entries[1].1.value else { panic!() };
            let [(key, value)] = inner.as_slice() else { panic!("{key}: {inner:?}") };
            assert!(matches!(key.value, NodeValue::Tagged(_)), "{key:?}");
            assert!(matches!(value.value, NodeValue::Map(_)), "{value:?}");
        }
    }

    #[test]
    fn a_merge_that_parsers_interpret_differently_is_rejected() {
        for (text, reason) in [
            ("a: &a {x: 1}\nb: {x: 2, <<: *a}\n", "`x` is before"),
            ("a: &a {x: 1}\nb: {<<: *a, <<: {x: 2}}\n", "`x` is before"),
            ("b: {<<: 1}\n", "a value other than a map"),
            ("a: &a [{x: 1}, 2]\nb: {<<: *a}\n", "a value other than a map"),
        ] {
            let error = parse_documents(text).expect_err(text);
            assert!(error.problem.contains(reason), "{text}: {}", error.problem);
            assert_eq!(error.position.line, text.lines().count() as u32, "{text}");
        }
    }

    #[test]
    fn merges_are_bounded() {
        let bomb = (1..40).fold("a0: &a0 {x0: 1}\n".to_owned(), |text, level| {
            let previous = level - 1;
            format!(
                "{text}a{level}: &a{level} {{<<: *a{previous}, x{level}: {{<<: *a{previous}}}}}\n"
            )
        });
        let error = parse_documents(&bomb).expect_err("it doubles with each line");
        assert!(error.problem.contains("aliases copy more"), "{}", error.problem);
    }
}
