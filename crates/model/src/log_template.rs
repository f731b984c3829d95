//! Access log templates: text with field names in braces. Sidecars write each access log line from a template.

use std::fmt;

use crate::definition::{Definition, ManifestBuilder, ManifestValue, Schema, TextSchema};
use crate::suggest::{closest_word, join_with_or};

/// A parsed template, such as `{method} {path} {response_code}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogTemplate {
    parts: Vec<LogPart>,
}

/// A part of a template: literal text or a field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogPart {
    /// Literal text.
    Text(String),
    /// The value of a field, by its name in [`LOG_FIELDS`].
    Field(&'static str),
}

/// The reason that a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// The template is empty, or longer than [`MAX_TEMPLATE_BYTES`].
    #[error("a template must have 1 to {MAX_TEMPLATE_BYTES} bytes")]
    Length,
    /// The template contains a control character, such as a newline.
    #[error("a template must not contain control characters: each entry is one line")]
    ControlCharacter,
    /// A brace is unbalanced.
    #[error("unbalanced braces: write `{{{{` and `}}}}` for literal braces")]
    UnbalancedBrace,
    /// A name in braces is not a known field.
    #[error("`{0}` is not a field of the access log")]
    UnknownField(String),
    /// The template contains no field.
    #[error("a template must contain at least one field, such as `{{path}}`")]
    NoField,
}

impl LogTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`InvalidTemplate`] for the first error.
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        if text.is_empty() || text.len() > MAX_TEMPLATE_BYTES {
            return Err(InvalidTemplate::Length);
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidTemplate::ControlCharacter);
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut remaining = text;
        while let Some(brace) = remaining.find(['{', '}']) {
            let (literal_text, from_brace) = remaining.split_at(brace);
            literal.push_str(literal_text);
            if let Some(remainder) = from_brace.strip_prefix("{{").or(from_brace.strip_prefix("}}"))
            {
                // Two equal braces stand for one literal brace.
                literal.push_str(&from_brace[..1]);
                remaining = remainder;
                continue;
            }
            let field_and_remainder = from_brace
                .strip_prefix('{')
                .and_then(|field_and_remainder| field_and_remainder.split_once('}'));
            let (name, remainder) = field_and_remainder.ok_or(InvalidTemplate::UnbalancedBrace)?;
            let listed_field = LOG_FIELDS.iter().find(|field| **field == name);
            let field =
                *listed_field.ok_or_else(|| InvalidTemplate::UnknownField(name.to_owned()))?;
            if !literal.is_empty() {
                parts.push(LogPart::Text(std::mem::take(&mut literal)));
            }
            parts.push(LogPart::Field(field));
            remaining = remainder;
        }
        literal.push_str(remaining);
        if !literal.is_empty() {
            parts.push(LogPart::Text(literal));
        }
        match parts.iter().any(|part| matches!(part, LogPart::Field(_))) {
            true => Ok(Self { parts }),
            false => Err(InvalidTemplate::NoField),
        }
    }

    /// Rejects a template of a manifest. For an unknown field, a similar one is proposed.
    fn reject(text: &str, error: &InvalidTemplate, builder: &mut ManifestBuilder<'_>) {
        let hint = match error {
            InvalidTemplate::UnknownField(name) => match closest_word(name, LOG_FIELDS) {
                Some(word) => {
                    let corrected = text.replacen(&format!("{{{name}"), &format!("{{{word}"), 1);
                    let hint = format!("did you mean `{word}`?");
                    return builder.reject_with_replacement(error.to_string(), hint, corrected);
                }
                None => format!("use {}", join_with_or(LOG_FIELDS)),
            },
            InvalidTemplate::Length
            | InvalidTemplate::ControlCharacter
            | InvalidTemplate::UnbalancedBrace
            | InvalidTemplate::NoField => {
                "correct it, as in `{method} {path} {response_code}`".to_owned()
            }
        };
        builder.reject(error.to_string(), hint);
    }

    /// Returns the parts, in order.
    #[must_use]
    pub fn parts(&self) -> &[LogPart] {
        &self.parts
    }
}

impl Definition for LogTemplate {
    const SCHEMA: Schema = Schema::Text(&TEMPLATE);

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let text = value.into_text()?;
        Self::parse(&text).map_err(|error| Self::reject(&text, &error, builder)).ok()
    }
}

/// Formats the template so that it can be parsed again.
impl fmt::Display for LogTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                LogPart::Text(text) => {
                    f.write_str(&text.replace('{', "{{").replace('}', "}}"))?;
                }
                LogPart::Field(name) => write!(f, "{{{name}}}")?,
            }
        }
        Ok(())
    }
}

/// The fields of an access log line, in the order of its JSON.
pub const LOG_FIELDS: &[&str] = &[
    "start_time",
    "direction",
    "method",
    "path",
    "protocol",
    "authority",
    "response_code",
    "response_code_details",
    "grpc_status",
    "upstream_cluster",
    "route",
    "policy",
    "dry_run_reason",
    "peer",
    "downstream_remote",
    "upstream_host",
    "bytes_received",
    "bytes_sent",
    "duration",
    "time_to_first_byte",
    "upstream_service_time",
    "retries",
    "hedge",
    "x_forwarded_for",
    "user_agent",
    "request_id",
    "requested_server_name",
    "trace_id",
    "span_id",
];

/// The length of templates. [`LogTemplate::build`] checks the rest, because it proposes corrections.
const TEMPLATE: TextSchema = TextSchema::bounded(MAX_TEMPLATE_BYTES);
/// The maximum length of a template in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_round_trip() {
        for text in ["{path}", "{method} {path} -> {response_code}", "{{{peer}}} {{", "a{path}}}b"]
        {
            assert_eq!(LogTemplate::parse(text).unwrap().to_string(), text);
        }
        let template = LogTemplate::parse("{{{peer}}} x").unwrap();
        let text = |text: &str| LogPart::Text(text.to_owned());
        assert_eq!(template.parts(), [text("{"), LogPart::Field("peer"), text("} x")]);
    }

    #[test]
    fn invalid_templates_are_rejected() {
        let long = "{path}".repeat(MAX_TEMPLATE_BYTES);
        for (text, error) in [
            ("", InvalidTemplate::Length),
            (&*long, InvalidTemplate::Length),
            ("{path}\n", InvalidTemplate::ControlCharacter),
            ("{path", InvalidTemplate::UnbalancedBrace),
            ("path} {path}", InvalidTemplate::UnbalancedBrace),
            ("{Path}", InvalidTemplate::UnknownField("Path".to_owned())),
            ("{}", InvalidTemplate::UnknownField(String::new())),
            ("a line", InvalidTemplate::NoField),
        ] {
            assert_eq!(LogTemplate::parse(text), Err(error), "{text}");
        }
    }
}
