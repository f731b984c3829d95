//! Parses the YAML subset of contender files: text, lists and maps. All scalars are text.

use anyhow::bail;
use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value};

/// Parses the first document of a text.
///
/// # Errors
/// If it is not YAML, or has anchors or non-text keys.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    let mut open_nodes: Vec<OpenYamlNode> = Vec::new();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, _) = event.map_err(|error| anyhow::anyhow!("it is not YAML: {error}"))?;
        let value = match event {
            Event::Scalar(scalar, ..) => Value::String(scalar.into_owned()),
            Event::SequenceStart(..) => {
                open_nodes.push(OpenYamlNode::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open_nodes.push(OpenYamlNode::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open_nodes.pop() {
                Some(OpenYamlNode::List(items)) => Value::Array(items),
                Some(OpenYamlNode::Map(entries, _)) => Value::Object(entries),
                None => bail!("it is not YAML: unexpected end of a collection"),
            },
            Event::Alias(_) => bail!("anchors are not supported: write the value out"),
            // Marks of streams and documents, and comments, contain no value.
            _ => continue,
        };
        if open_nodes.len() >= MAX_DEPTH {
            bail!("it is nested more than {MAX_DEPTH} levels deep");
        }
        match (open_nodes.last_mut(), value) {
            (None, value) => return Ok(value),
            (Some(OpenYamlNode::List(items)), value) => items.push(value),
            (Some(OpenYamlNode::Map(_, key @ None)), Value::String(text)) => *key = Some(text),
            (Some(OpenYamlNode::Map(_, None)), _) => bail!("a key is not text"),
            (Some(OpenYamlNode::Map(entries, key)), value) => {
                // The key is present: maps without one are matched above.
                let key = key.take().unwrap_or_default();
                if entries.insert(key.clone(), value).is_some() {
                    bail!("duplicate key `{key}`");
                }
            }
        }
    }
    bail!("it is empty")
}

/// An incomplete list or map.
enum OpenYamlNode {
    List(Vec<Value>),
    /// The complete entries, and the last key if its value has not been read.
    Map(Map<String, Value>, Option<String>),
}

/// The maximum nesting depth: contender files are flat.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_lists_and_maps_are_read() {
        for (text, expected) in [
            ("a: 1", json!({"a": "1"})),
            ("a: [b, {c: d}]\ne: |\n  x\n  y\n", json!({"a": ["b", {"c": "d"}], "e": "x\ny\n"})),
            ("- a\n- []\n- {}", json!(["a", [], {}])),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn ambiguous_or_invalid_yaml_is_rejected() {
        for text in ["", "a: [", "a: 1\na: 2", "[a]: b", "a: &x b\nc: *x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
