//! Writes YAML documents in block style, for people to edit.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns an object as a YAML document.
pub(crate) fn write_document(object: &Value) -> String {
    let mut text = String::new();
    write_block(object, 0, &mut text);
    // A scalar is a single line.
    if text.is_empty() {
        text = write_scalar(object) + "\n";
    }
    text
}

/// Returns several objects as a stream of YAML documents.
pub(crate) fn write_documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{}", write_document(object))).collect()
}

/// Returns the kind and name of an object, for people.
pub(crate) fn object_name(object: &Value) -> String {
    let text_field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text_field(&object["kind"]), text_field(&object["metadata"]["name"]));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Writes a map or a list, one entry per line, each indented by `indent` spaces. Writes nothing for a scalar or
/// an empty collection.
fn write_block(value: &Value, indent: usize, output: &mut String) {
    match value {
        Value::Object(map) => {
            for (key, field_value) in map {
                write!(output, "{:indent$}{}:", "", write_scalar(&Value::from(key.as_str())))
                    .expect("writing to a String never fails");
                write_key_value(field_value, indent, output);
            }
        }
        Value::Array(list) => {
            for element in list {
                let mut block = String::new();
                write_block(element, indent + 2, &mut block);
                // The first line of the element follows the dash.
                let item = match block.trim_start() {
                    "" => write_scalar(element) + "\n",
                    block => block.to_owned(),
                };
                write!(output, "{:indent$}- {item}", "").expect("writing to a String never fails");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Writes the value of a key: on its line, or in a block below.
fn write_key_value(value: &Value, indent: usize, output: &mut String) {
    let is_block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if is_block {
        output.push('\n');
        // List items are not indented below their key.
        write_block(value, if value.is_array() { indent } else { indent + 2 }, output);
    } else {
        writeln!(output, " {}", write_scalar(value)).expect("writing to a String never fails");
    }
}

/// Returns a scalar as YAML. A string is quoted unless it is unambiguous; the quoted form is JSON, which is valid
/// YAML.
fn write_scalar(value: &Value) -> String {
    let is_plain = |text: &str| {
        let has_plain_start =
            text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
        let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let reserved_words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
        has_plain_start
            && text.bytes().all(is_plain_byte)
            && !reserved_words.contains(&text.to_ascii_lowercase().as_str())
    };
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_yaml_parses_to_the_same_value() {
        let value = json!({
            "kind": "A",
            "list": ["a", 1, {"b": "no", "c": [["x"], {}]}, []],
            "map": {"empty": {}, "path": "/a/[0-9]+", "text": "a: b # c\n\"d\"", "1": "1", "n": null},
        });
        let text = write_document(&value);
        expect_test::expect![[r##"
            kind: A
            list:
            - a
            - 1
            - b: "no"
              c:
              - - x
              - {}
            - []
            map:
              empty: {}
              path: "/a/[0-9]+"
              text: "a: b # c\n\"d\""
              "1": "1"
              "n": null
        "##]]
        .assert_eq(&text);
        let values = [json!([]), json!({}), json!(null), json!("no"), json!(-1.5e-9), json!(true)];
        for value in values.iter().chain([&value]) {
            let text = write_document(value);
            assert_eq!(&serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
        }
    }
}
