//! Lists the scalar values of a document of any kind with their paths, and finds the positions of paths. `leno migrate`
//! reads documents of other systems in this form, and the file source locates warnings by their paths.

use crate::document::{DocumentNode, NodeValue, TextPosition, parse_unexpanded_documents};

/// Returns the scalar values of the first document of a text, as pairs of a path such as `spec.a[0].b` and its value; `None`
/// if the text is not YAML, or has no values.
#[must_use]
pub fn outline_document(text: &str) -> Option<Vec<(String, String)>> {
    let documents = parse_unexpanded_documents(text).ok()?;
    let mut values = Vec::new();
    collect_scalars(documents.first()?, String::new(), &mut values);
    (!values.is_empty()).then_some(values)
}

/// Collects the scalar values of a node with their paths. The recursion is bounded, because the parser bounds the depth.
fn collect_scalars(node: &DocumentNode, path: String, values: &mut Vec<(String, String)>) {
    match &node.value {
        NodeValue::Null => {}
        NodeValue::Boolean(value) => values.push((path, value.to_string())),
        NodeValue::Number(text) | NodeValue::Text(text) => values.push((path, text.clone())),
        NodeValue::List(list) => {
            for (index, element) in list.iter().enumerate() {
                collect_scalars(element, format!("{path}[{index}]"), values);
            }
        }
        NodeValue::Map(map) => {
            for (key, value) in map {
                let (NodeValue::Text(key) | NodeValue::Number(key)) = &key.value else { continue };
                let child_path =
                    if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect_scalars(value, child_path, values);
            }
        }
        NodeValue::MergeKey | NodeValue::Tagged(_) => values.push((path, String::new())),
    }
}

/// Returns the position of a field by its path, such as `spec.a[0].b`; for an absent field, the position of its
/// parent.
pub(crate) fn field_position(document: &DocumentNode, path: &str) -> TextPosition {
    let (mut position, mut node) = (document.position, document);
    let steps = path.split('.').flat_map(|step| step.split_inclusive(']'));
    for step in steps {
        let (key, index) = match step.split_once('[') {
            Some((key, index)) => (key, Some(index.trim_end_matches(']'))),
            None => (step, None),
        };
        if !key.is_empty() {
            let NodeValue::Map(map) = &node.value else { break };
            let entry = map
                .iter()
                .find(|(name, _)| matches!(&name.value, NodeValue::Text(text) if text == key));
            let Some((name, value)) = entry else { break };
            (position, node) = (name.position, value);
        }
        let Some(index) = index else { continue };
        let NodeValue::List(list) = &node.value else { break };
        let element = index.parse().ok().and_then(|index: usize| list.get(index));
        let Some(element) = element else { break };
        (position, node) = (element.position, element);
    }
    position
}

#[cfg(test)]
mod tests {
    use super::{field_position, outline_document};
    use crate::document::parse_documents;

    #[test]
    fn each_scalar_value_has_its_path() {
        let text = "a: 1\nb: {c: [x, {d: true}], e: null}\n---\nf: 2\n";
        let outline = outline_document(text).unwrap();
        let outline: Vec<(&str, &str)> =
            outline.iter().map(|(path, value)| (path.as_str(), value.as_str())).collect();
        assert_eq!(outline, [("a", "1"), ("b.c[0]", "x"), ("b.c[1].d", "true")]);
        assert_eq!(outline_document("# nothing\n"), None);
        assert_eq!(outline_document("a: [\n"), None);
    }

    #[test]
    fn the_position_of_an_absent_field_is_that_of_its_parent() {
        let text = "kind: A\nspec:\n  rules:\n  - a: 1\n  - matches:\n    - {x: 1}\n    - path:\n        value: y\n";
        let documents = parse_documents(text).unwrap();
        for (path, line) in [
            ("kind", 1),
            ("spec", 2),
            ("spec.rules", 3),
            ("spec.rules[0]", 4),
            ("spec.rules[1].matches", 5),
            ("spec.rules[1].matches[1].path.value", 8),
            ("spec.rules[1].matches[0].path.value", 6),
            ("spec.rules[7].matches", 3),
            ("spec.rules[].filters", 3),
            ("spec.none.at.all", 2),
            ("", 1),
        ] {
            assert_eq!(field_position(&documents[0], path).line, line, "{path}");
        }
    }
}
