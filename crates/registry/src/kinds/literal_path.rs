//! Reads literal paths, by the rules of [`leno_model::literal_path`].

use leno_model::literal_path::{DECODED_PATH, LITERAL_PATH};

use crate::field::Field;
use crate::schema_reader::read_text;

/// Reads a normalized path of characters that are valid in a request.
pub(super) fn read_literal_path(value: &Field<'_>) -> Option<String> {
    read_text(value, &LITERAL_PATH)
}

/// Reads a normalized path in decoded form, without escapes and parameters.
pub(super) fn read_decoded_path(value: &Field<'_>) -> Option<String> {
    read_text(value, &DECODED_PATH)
}
