//! YAML output in block style, for people to edit.

use std::fmt::Write as _;

use serde_json::Value;

/// Writes an object as a document.
pub(crate) fn write(object: &Value) -> String {
    let mut out = String::new();
    write_block(object, 0, &mut out);
    // A scalar is a single line.
    if out.is_empty() {
        out = write_scalar(object) + "\n";
    }
    out
}

/// Writes several objects as a stream of documents.
pub(crate) fn write_documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{}", write(object))).collect()
}

/// Returns the kind and name of an object, for people.
pub(crate) fn object_name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

fn write_block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                write!(out, "{:indent$}{}:", "", write_scalar(&Value::from(key.as_str())))
                    .expect("writing to a String never fails");
                write_below(value, indent, out);
            }
        }
        Value::Array(list) => {
            for element in list {
                let mut inner = String::new();
                write_block(element, indent + 2, &mut inner);
                let inner = inner.trim_start();
                let line =
                    if inner.is_empty() { write_scalar(element) + "\n" } else { inner.to_owned() };
                write!(out, "{:indent$}- {line}", "").expect("writing to a String never fails");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Writes the value of a key: on its line, or in a block below.
fn write_below(value: &Value, indent: usize, out: &mut String) {
    let is_block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if is_block {
        out.push('\n');
        // List items are not indented below their key.
        write_block(value, if value.is_array() { indent } else { indent + 2 }, out);
    } else {
        writeln!(out, " {}", write_scalar(value)).expect("writing to a String never fails");
    }
}

/// Writes a scalar; a string is quoted unless it is unambiguous. JSON is valid YAML.
fn write_scalar(value: &Value) -> String {
    let plain = |text: &str| {
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'/');
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
        let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
        begins && text.bytes().all(fits) && !words.contains(&text.to_ascii_lowercase().as_str())
    };
    match value {
        Value::String(text) if plain(text) => text.clone(),
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
        let text = write(&value);
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
        let nothing = [json!([]), json!({}), json!(null), json!("no"), json!(-1.5e-9), json!(true)];
        for value in nothing.iter().chain([&value]) {
            let text = write(value);
            assert_eq!(&serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
        }
    }
}
