//! Reads the fixed responses that sidecars send in place of an upstream's response, such as for a request beyond a limit.

use leno_model::{FixedResponse, Header};

use super::filter::read_header;
use crate::field::{Field, MapFields};

/// Reads the status (400 to 599), the body and the headers.
pub(super) fn read(field: &Field<'_>) -> Option<FixedResponse> {
    let fields = field.read_fields(&["status", "body", "headers"])?;
    let status = match fields.find("status") {
        Some(status) => Some(u16::try_from(status.read_number(400, 599)?).ok()?),
        None => None,
    };
    Some(FixedResponse {
        status,
        body: read_body(&fields, "body")?,
        headers: read_headers(&fields, "headers"),
    })
}

/// Reads a response body; `Some(None)` if the field is absent.
pub(super) fn read_body(fields: &MapFields<'_>, key: &str) -> Option<Option<String>> {
    let Some(field) = fields.find(key) else {
        return Some(None);
    };
    let text = field.read_text()?;
    if text.len() > MAX_BODY_BYTES {
        field.reject(format!("has {} bytes", text.len()), format!("use at most {MAX_BODY_BYTES}"));
        return None;
    }
    Some(Some(text.to_owned()))
}

/// Reads response headers, each at most once.
pub(super) fn read_headers(fields: &MapFields<'_>, key: &str) -> Vec<Header> {
    let headers = fields.read_each(key, MAX_HEADERS, read_header);
    let is_repeated = |(index, header): (usize, &Header)| {
        headers.iter().take(index).any(|previous| previous.name == header.name)
    };
    if let (Some(field), true) = (fields.find(key), headers.iter().enumerate().any(is_repeated)) {
        field
            .reject("has two headers with the same name", "join their values, separated by commas");
    }
    headers
}

/// Maximum length of a body: it is sent in one piece, also to many clients that exceed a limit.
const MAX_BODY_BYTES: usize = 4096;
/// Maximum number of headers per response, the same as for route rules.
const MAX_HEADERS: usize = 16;
