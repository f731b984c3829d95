//! The schemas of texts that several kinds have: names and regular expressions.

use super::{
    Definition, ManifestBuilder, ManifestValue, Schema, TextForm, TextProblem, TextSchema,
};
use crate::name::Name;
use crate::pattern::check_pattern;
use crate::token::is_token;

/// A DNS-1123 subdomain, as required for names of objects.
pub const NAME: TextSchema =
    TextSchema::new(253, check_name).with_pattern("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$");

/// A name without dots (a DNS-1123 label), as required for services and namespaces, which are parts of host names.
pub const LABEL: TextSchema = TextSchema::new(63, |text| {
    check_name(text)?;
    match text.contains('.') {
        true => {
            Err(TextProblem::new("has a dot", "use at most 63 lower-case letters, digits or `-`"))
        }
        false => Ok(()),
    }
})
.with_pattern("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");

/// A regular expression in the syntax of RE2.
pub const REGEX: TextSchema = TextSchema::new(4096, check_regex).with_form(TextForm::Regex);

/// The name of a header, in any case. `host` and `:authority` are the host of the request.
pub const HEADER_NAME: TextSchema = TextSchema::new(256, |text| {
    match text.len() <= 256 && (is_token(text) || text.eq_ignore_ascii_case(":authority")) {
        true => Ok(()),
        false => {
            Err(TextProblem::new("is not the name of a header", "use letters, digits and `-`"))
        }
    }
});

/// A text without a rule. Fields have a narrower schema, because their length must be bounded.
pub(super) const ANY_TEXT: TextSchema = TextSchema::new(usize::MAX, |_| Ok(()));

impl Definition for Name {
    const SCHEMA: Schema = Schema::Text(&NAME);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::new(&value.into_text()?).ok()
    }
}

/// Returns a name that matches [`HEADER_NAME`] in lower case; `host` is `:authority`.
#[must_use]
pub fn normalize_header_name(name: &str) -> String {
    match name.to_ascii_lowercase() {
        name if name == "host" => ":authority".to_owned(),
        name => name,
    }
}

fn check_regex(text: &str) -> Result<(), TextProblem> {
    check_pattern(text).map_err(|reason| {
        TextProblem::new(
            format!("is not a regular expression ({reason})"),
            "correct it; the syntax is RE2's, without look-around or back references",
        )
    })
}

fn check_name(text: &str) -> Result<(), TextProblem> {
    if Name::new(text).is_ok() {
        return Ok(());
    }
    let hint = match text.is_ascii() {
        true => {
            "use 1 to 253 lower-case letters, digits, `-` or `.`, \
             starting and ending with a letter or digit"
        }
        false => "use letters from a to z, digits, `-` or `.` only",
    };
    Err(TextProblem::new("is not a name", hint))
}
