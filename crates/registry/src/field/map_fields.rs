//! Finds the fields of a map by key, and rejects unknown, missing and unsupported fields.

use super::{Field, MapFields, UNKNOWN_FIELD};
use crate::document::NodeValue;
use crate::hint::Replacement;
use crate::suggest::{closest_word, join_with_or};

impl<'a> MapFields<'a> {
    /// Returns the map itself.
    pub(crate) fn map_field(&self) -> &Field<'a> {
        &self.map
    }

    /// Rejects unknown keys; the hint proposes a similar known key, if any.
    pub(crate) fn reject_unknown(&self, known_keys: &[&str]) {
        for (key, field) in &self.entries {
            if !known_keys.contains(key) {
                match closest_word(key, known_keys) {
                    Some(word) => {
                        let hint = format!("did you mean `{word}`?");
                        field.reject_with_replacement(
                            UNKNOWN_FIELD,
                            hint,
                            Replacement::Key(word.to_owned()),
                        );
                    }
                    None => {
                        field.reject(
                            UNKNOWN_FIELD,
                            format!("remove it, or use {}", join_with_or(known_keys)),
                        );
                    }
                }
            }
        }
    }

    /// Returns a field, or `None` if it is absent or null.
    pub(crate) fn find(&self, key: &str) -> Option<&Field<'a>> {
        let (_, field) = self.entries.iter().find(|(name, _)| *name == key)?;
        (!matches!(field.node.value, NodeValue::Null)).then_some(field)
    }

    /// Returns a field. An absent or null field is a problem.
    pub(crate) fn require(&self, key: &str) -> Option<&Field<'a>> {
        let field = self.find(key);
        if field.is_none() {
            self.map.absent_child(key).reject("is missing", format!("add `{key}`"));
        }
        field
    }

    /// Reads each element of the list `key` with `read`; elements with a problem are omitted. Empty if the list is absent.
    pub(crate) fn read_each<T>(
        &self,
        key: &str,
        max: usize,
        read: impl Fn(&Field<'a>) -> Option<T>,
    ) -> Vec<T> {
        let field = self.find(key);
        field.map(|field| field.read_each(max, read)).unwrap_or_default()
    }

    /// Rejects a known but unsupported field, unless its value is empty, false or 0.
    pub(crate) fn reject_unsupported(&self, key: &str, problem: &str, hint: &str) {
        let Some(field) = self.find(key) else { return };
        let is_empty = match field.value() {
            NodeValue::List(list) => list.is_empty(),
            NodeValue::Map(map) => map.is_empty(),
            NodeValue::Text(text) => text.is_empty(),
            NodeValue::Boolean(value) => !value,
            NodeValue::Number(text) => text == "0",
            NodeValue::Null => true,
            NodeValue::MergeKey | NodeValue::Tagged(_) => false,
        };
        if !is_empty {
            field.reject(problem, hint);
        }
    }
}
