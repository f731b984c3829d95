//! Expands lists of objects, as `kubectl get` prints them and `kubectl apply` reads them: each item becomes a document.

use super::{DocumentNode, NodeValue, TextPosition};

/// Expands a document: returns the items of a list, or the document itself. A list with an unknown field, or
/// with an item that is not a map, is left unchanged and rejected as a whole.
pub(super) fn expand_list(document: DocumentNode) -> Vec<DocumentNode> {
    let mut documents = Vec::new();
    // A stack; the last node is expanded next. The bounded depth of a document also bounds the nesting of lists.
    let mut pending_nodes = vec![document];
    while let Some(node) = pending_nodes.pop() {
        match list_items(node) {
            Ok(items) => pending_nodes.extend(items.into_iter().rev()),
            Err(node) => documents.push(node),
        }
    }
    documents
}

/// Returns the items of a list, or the node if it is not a list.
fn list_items(mut node: DocumentNode) -> Result<Vec<DocumentNode>, DocumentNode> {
    let Some((kind, version)) = list_kind_and_version(&node) else { return Err(node) };
    let NodeValue::Map(map) = &mut node.value else { return Err(node) };
    let has_text = |key: &DocumentNode, name: &str| matches!(&key.value, NodeValue::Text(text) if text == name);
    let is_list_field = |key: &DocumentNode| LIST_FIELDS.iter().any(|name| has_text(key, name));
    let are_distinct = LIST_FIELDS
        .iter()
        .all(|name| map.iter().filter(|(key, _)| has_text(key, name)).count() <= 1);
    if !are_distinct || !map.iter().all(|(key, _)| is_list_field(key)) {
        return Err(node);
    }
    let items_entry = map.iter_mut().find(|(key, _)| has_text(key, "items"));
    let Some((_, DocumentNode { value: NodeValue::List(list), .. })) = items_entry else {
        return Err(node);
    };
    if !list.iter().all(|item| matches!(item.value, NodeValue::Map(_))) {
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

/// Returns `kind` and `apiVersion` of a list: a `List` of any objects, or a typed list such as `ServiceList`. `None` for
/// other documents.
fn list_kind_and_version(node: &DocumentNode) -> Option<(String, String)> {
    let NodeValue::Map(map) = &node.value else { return None };
    let find_text = |name: &str| {
        map.iter().find_map(|(key, value)| match (&key.value, &value.value) {
            (NodeValue::Text(key), NodeValue::Text(text)) if key == name => Some(text.clone()),
            _ => None,
        })
    };
    let (kind, version) = (find_text("kind")?, find_text("apiVersion")?);
    let is_list = kind.ends_with("List") && (kind != "List" || version == "v1");
    is_list.then_some((kind, version))
}

/// Adds `kind` and `apiVersion` to an item of a typed list, where API servers omit them.
fn complete_item(item: &mut DocumentNode, kind: &str, version: &str) {
    let position = item.position;
    let NodeValue::Map(map) = &mut item.value else { return };
    let has_kind =
        map.iter().any(|(key, _)| matches!(&key.value, NodeValue::Text(text) if text == "kind"));
    if has_kind {
        return;
    }
    for (key, value) in [("apiVersion", version), ("kind", kind)] {
        // An `apiVersion` without `kind` is replaced.
        map.retain(
            |(entry_key, _)| !matches!(&entry_key.value, NodeValue::Text(text) if text == key),
        );
        map.push((text_node(position, key), text_node(position, value)));
    }
}

fn text_node(position: TextPosition, text: &str) -> DocumentNode {
    DocumentNode { position, value: NodeValue::Text(text.to_owned()) }
}

/// The fields of a list.
pub(crate) const LIST_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "items"];

#[cfg(test)]
mod tests {
    use super::super::parse_documents;

    fn item_lines(text: &str) -> Vec<u32> {
        parse_documents(text).unwrap().iter().map(|document| document.position.line).collect()
    }

    #[test]
    fn each_item_is_a_document_with_its_position() {
        const ITEMS: &str = "items:\n- kind: A\n- kind: B\n  x: 1\n";
        for (list_start, expected) in [
            ("apiVersion: v1\nkind: List\n", &[4, 5][..]),
            ("apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\n", &[5, 6]),
            ("apiVersion: x/v1\nkind: AList\n", &[4, 5]),
            // Rejected as a whole.
            ("apiVersion: v2\nkind: List\n", &[1]),
            ("kind: List\n", &[1]),
            ("apiVersion: v1\nkind: List\nspec: {}\n", &[1]),
            ("apiVersion: v1\nkind: List\nkind: List\n", &[1]),
        ] {
            assert_eq!(item_lines(&format!("{list_start}{ITEMS}")), expected, "{list_start}");
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
    fn items_of_a_typed_list_get_its_kind_and_version() {
        let text = "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}}]\n";
        let documents = format!("{:?}", parse_documents(text).unwrap());
        assert!(
            documents.contains("Text(\"Service\")") && documents.contains("Text(\"v1\")"),
            "{documents}"
        );
    }
}
