//! Fixed responses, which sidecars send in place of an upstream's response, such as for a request beyond a limit.

use crate::action::Header;
use crate::definition::{Definition, ManifestBuilder, TextSchema};

/// A response that the sidecar sends instead of an upstream response.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Definition)]
pub struct FixedResponse {
    /// Status of the response.
    #[field(integer(400, 599), absent = "the default status of the reason")]
    pub status: Option<u16>,
    /// Body of the response.
    #[field(text = BODY, absent = "a sentence about the reason")]
    pub body: Option<String>,
    /// Additional headers of the response, each name once.
    #[field(list(0, MAX_HEADERS), check = check_headers)]
    pub headers: Vec<Header>,
}

impl FixedResponse {
    /// True for a valid status of a fixed response: a final status, not one without a body (RFC 9110
    /// §15.3.5, §15.3.6, §15.4.5).
    #[must_use]
    pub const fn is_valid_status(status: u16) -> bool {
        matches!(status, 200..=599) && !matches!(status, 204 | 205 | 304)
    }
}

/// Rejects a header with the name of an earlier header of the field `headers`.
pub(crate) fn check_headers(
    headers: Vec<Header>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<Header>> {
    let name_of = |header: &Header| header.name.clone();
    let (problem, hint) =
        ("has the name of another header", "join their values, separated by commas");
    builder.check_unique("headers", &headers, name_of, problem, hint).then_some(headers)
}

/// The body of a fixed response, which is sent in one piece, also to many clients that exceed a limit.
pub const BODY: TextSchema = TextSchema::bounded(4096);
/// Maximum number of headers per response, the same as for route rules.
pub(crate) const MAX_HEADERS: usize = 16;
