//! Hints of every kind of document, followed literally.

use super::*;
use crate::document::documents;
use crate::kinds;

/// The documents of all pages.
fn corpus() -> Vec<Node> {
    let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules");
    let mut nodes = Vec::new();
    for page in std::fs::read_dir(pages).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            nodes.extend(documents(block.split("```").next().unwrap()).unwrap());
        }
    }
    assert!(nodes.len() > 40, "{}", nodes.len());
    nodes
}

/// The number of values and keys of a document.
fn count(node: &Node) -> usize {
    match &node.value {
        Value::List(list) => 1 + list.iter().map(count).sum::<usize>(),
        Value::Map(map) => {
            1 + map.iter().map(|(key, value)| count(key) + count(value)).sum::<usize>()
        }
        _ => 1,
    }
}

/// Changes the value or key with this number, if it is a scalar.
fn spoil(node: &mut Node, number: &mut usize, change: &dyn Fn(&Value) -> Option<Value>) -> bool {
    if *number == 0 {
        let changed = change(&node.value);
        return changed.map(|value| node.value = value).is_some();
    }
    *number -= 1;
    match &mut node.value {
        Value::List(list) => {
            for node in list {
                let before = count(node);
                if *number < before {
                    return spoil(node, number, change);
                }
                *number -= before;
            }
            false
        }
        Value::Map(map) => {
            for node in map.iter_mut().flat_map(|(key, value)| [key, value]) {
                let before = count(node);
                if *number < before {
                    return spoil(node, number, change);
                }
                *number -= before;
            }
            false
        }
        _ => false,
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) | Value::Number(text) => Some(text.clone()),
        Value::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Replaces a value by a wrong one, where the mistake can be made.
type Mistake = Box<dyn Fn(&Value) -> Option<Value>>;

/// Mistakes of the kinds that hints are about.
fn mistakes() -> Vec<Mistake> {
    let number = |text: &'static str| -> Mistake {
        Box::new(move |value| scalar(value).map(|_| Value::Number(text.to_owned())))
    };
    vec![
        number("1"),
        number("-1"),
        number("70000"),
        number("1.5"),
        Box::new(|value| scalar(value).map(|_| Value::Boolean(true))),
        // In quotes, with another number, misspelled, in capital letters.
        Box::new(|value| scalar(value).map(Value::Text)),
        Box::new(|value| scalar(value).map(|_| Value::Text("99999999".to_owned()))),
        Box::new(|value| scalar(value).map(|text| Value::Text(text.chars().skip(1).collect()))),
        Box::new(|value| scalar(value).map(|text| Value::Text(format!("{text}s")))),
        Box::new(|value| scalar(value).map(|text| Value::Text(text.to_uppercase()))),
    ]
}

/// The problems that a user sees.
fn shown(node: &Node) -> Vec<Note> {
    followed(node, kinds::problems(None, node), |node| kinds::problems(None, node))
}

#[test]
fn a_hint_that_spells_out_a_replacement_leads_to_its_acceptance() {
    let mut hints = [0; 3];
    for document in corpus() {
        for number in 0..count(&document) {
            for mistake in mistakes() {
                let mut spoiled = document.clone();
                if !spoil(&mut spoiled, &mut number.clone(), &*mistake) {
                    continue;
                }
                let notes = shown(&spoiled);
                for note in &notes {
                    check(&spoiled, note, &notes, &mut hints);
                }
            }
        }
    }
    assert!(hints.iter().all(|count| *count > 100), "quote, unquote, other words: {hints:?}");
}

fn check(document: &Node, note: &Note, all: &[Note], hints: &mut [usize; 3]) {
    let kinds = [" in quotes", "without quotes or a tag", "did you mean"];
    let Some(kind) = kinds.iter().position(|words| note.remedy.contains(words)) else {
        assert_eq!(note.replacement, None, "{}", note.remedy);
        return;
    };
    hints[kind] += 1;
    let replacement = note.replacement.as_ref();
    let replacement = replacement.unwrap_or_else(|| panic!("{} is not tried", note.remedy));
    let mut followed = document.clone();
    // A document that is written inside a text is not followed into.
    if !replace(&mut followed, &note.field, replacement) {
        assert!(note.field.starts_with("spec.config."), "{}", note.field);
        return;
    }
    let path = path_after(&note.field, replacement);
    for other in kinds::problems(None, &followed).iter().filter(|other| other.field == path) {
        // The value of a misspelled key may be wrong as well: that problem is reported at the same time.
        let is_said = all.iter().any(|note| note.field == path && note.problem == other.problem);
        assert!(is_said, "{}: {}; {} → {}", note.field, note.problem, note.remedy, other.problem);
    }
}

#[test]
fn a_number_without_its_unit_is_no_text_that_needs_quotes() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: RateLimit\nmetadata: {name: r}\n\
        spec: {targetRefs: [{kind: Service, name: api}], rules: [{name: a, requests: 5, in: 1}]}\n";
    let document = documents(text).unwrap().remove(0);
    let notes = shown(&document);
    let note = notes.iter().find(|note| note.field.ends_with(".in")).unwrap();
    assert_eq!(note.problem, "1 is not a duration");
    assert!(note.remedy.contains("unit"), "{}", note.remedy);
}
