//! Lists of objects, as printed by `kubectl get` and read by `kubectl apply`: each item becomes a document.

use super::{Mark, Node, Value};

/// Expands a document: returns the items of a list, or the document itself. A list with an unknown field, or
/// with an item that is not a map, is left unchanged and rejected as a whole.
pub(super) fn expand_list(document: Node) -> Vec<Node> {
    let mut documents = Vec::new();
    // A stack: the last node is next. The depth of a document is bounded, hence the nesting of lists.
    let mut open = vec![document];
    while let Some(node) = open.pop() {
        match list_items(node) {
            Ok(items) => open.extend(items.into_iter().rev()),
            Err(node) => documents.push(node),
        }
    }
    documents
}

/// Returns the items of a list, or the node if it is not a list.
fn list_items(mut node: Node) -> Result<Vec<Node>, Node> {
    let Some((kind, version)) = kind_and_version(&node) else { return Err(node) };
    let Value::Map(map) = &mut node.value else { return Err(node) };
    let has = |key: &Node, name: &str| matches!(&key.value, Value::Text(text) if text == name);
    let is_known = |key: &Node| LIST_FIELDS.iter().any(|name| has(key, name));
    let are_distinct =
        LIST_FIELDS.iter().all(|name| map.iter().filter(|(key, _)| has(key, name)).count() <= 1);
    if !are_distinct || !map.iter().all(|(key, _)| is_known(key)) {
        return Err(node);
    }
    let found = map.iter_mut().find(|(key, _)| has(key, "items"));
    let Some((_, Node { value: Value::List(list), .. })) = found else { return Err(node) };
    if !list.iter().all(|item| matches!(item.value, Value::Map(_))) {
        return Err(node);
    }
    let mut items = std::mem::take(list);
    if let Some(kind) = kind.strip_suffix("List").filter(|kind| !kind.is_empty()) {
        for item in &mut items {
            complete_item(item, kind, &version);
        }
    }
    Ok(items)
}

/// Returns `kind` and `apiVersion` of a list: a `List` of any objects, or a typed one such as `ServiceList`.
fn kind_and_version(node: &Node) -> Option<(String, String)> {
    let Value::Map(map) = &node.value else { return None };
    let text = |name: &str| {
        map.iter().find_map(|(key, value)| match (&key.value, &value.value) {
            (Value::Text(key), Value::Text(text)) if key == name => Some(text.clone()),
            _ => None,
        })
    };
    let (kind, version) = (text("kind")?, text("apiVersion")?);
    let is_list = kind.ends_with("List") && (kind != "List" || version == "v1");
    is_list.then_some((kind, version))
}

/// API servers omit `kind` and `apiVersion` of the items of a typed list.
fn complete_item(item: &mut Node, kind: &str, version: &str) {
    let mark = item.mark;
    let Value::Map(map) = &mut item.value else { return };
    let is_named = map.iter().any(|(key, _)| matches!(&key.value, Value::Text(it) if it == "kind"));
    if is_named {
        return;
    }
    for (key, value) in [("apiVersion", version), ("kind", kind)] {
        map.retain(|(known, _)| !matches!(&known.value, Value::Text(it) if it == key));
        map.push((text_node(mark, key), text_node(mark, value)));
    }
}

fn text_node(mark: Mark, text: &str) -> Node {
    Node { mark, value: Value::Text(text.to_owned()) }
}

/// The fields of a list.
pub(crate) const LIST_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "items"];

#[cfg(test)]
mod tests {
    use super::super::parse_documents;

    fn item_lines(text: &str) -> Vec<u32> {
        parse_documents(text).unwrap().iter().map(|document| document.mark.line).collect()
    }

    #[test]
    fn each_item_is_a_document_with_its_place() {
        const ITEMS: &str = "items:\n- kind: A\n- kind: B\n  x: 1\n";
        for (head, expected) in [
            ("apiVersion: v1\nkind: List\n", &[4, 5][..]),
            ("apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\n", &[5, 6]),
            ("apiVersion: x/v1\nkind: AList\n", &[4, 5]),
            // Rejected as a whole.
            ("apiVersion: v2\nkind: List\n", &[1]),
            ("kind: List\n", &[1]),
            ("apiVersion: v1\nkind: List\nspec: {}\n", &[1]),
            ("apiVersion: v1\nkind: List\nkind: List\n", &[1]),
        ] {
            assert_eq!(item_lines(&format!("{head}{ITEMS}")), expected, "{head}");
        }
        assert!(item_lines("apiVersion: v1\nkind: List\nitems: []\n").is_empty());
        assert_eq!(item_lines("apiVersion: v1\nkind: List\nitems: [a]\n"), [1]);
        assert_eq!(
            item_lines("{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\":\n [{}]}"),
            [2]
        );
        let nested = "apiVersion: v1\nkind: List\nitems:\n- {kind: A}\n\
            - {apiVersion: v1, kind: List, items: [{kind: B}]}\n- {kind: C}\n";
        assert_eq!(item_lines(nested), [4, 5, 6]);
    }

    #[test]
    fn items_of_a_list_of_one_kind_have_that_kind() {
        let text = "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}}]\n";
        let shown = format!("{:?}", parse_documents(text).unwrap());
        assert!(shown.contains("Text(\"Service\")") && shown.contains("Text(\"v1\")"), "{shown}");
    }
}
