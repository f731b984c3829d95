//! The outline of a document of any kind: its single values, each with its path.

use crate::document::{Node, Value, documents};

/// The single values of the first document of a text, each with its path such as `spec.a[0].b`;
/// `None` when it is no YAML, or holds nothing.
#[must_use]
pub fn outline(text: &str) -> Option<Vec<(String, String)>> {
    let documents = documents(text).ok()?;
    let mut values = Vec::new();
    collect(documents.first()?, String::new(), &mut values);
    (!values.is_empty()).then_some(values)
}

/// What is read is bounded, and so is how deep it is.
fn collect(node: &Node, path: String, values: &mut Vec<(String, String)>) {
    match &node.value {
        Value::Null => {}
        Value::Boolean(value) => values.push((path, value.to_string())),
        Value::Number(text) | Value::Text(text) => values.push((path, text.clone())),
        Value::List(list) => {
            for (index, element) in list.iter().enumerate() {
                collect(element, format!("{path}[{index}]"), values);
            }
        }
        Value::Map(map) => {
            for (key, value) in map {
                let (Value::Text(key) | Value::Number(key)) = &key.value else { continue };
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(value, below, values);
            }
        }
        Value::Tagged(_) => values.push((path, String::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::outline;

    #[test]
    fn every_single_value_has_its_path() {
        let text = "a: 1\nb: {c: [x, {d: true}], e: null}\n---\nf: 2\n";
        let found = outline(text).unwrap();
        let found: Vec<(&str, &str)> =
            found.iter().map(|(p, v)| (p.as_str(), v.as_str())).collect();
        assert_eq!(found, [("a", "1"), ("b.c[0]", "x"), ("b.c[1].d", "true")]);
        assert_eq!(outline("# nothing\n"), None);
        assert_eq!(outline("a: [\n"), None);
    }
}
