//! Redacts secrets in diagnostics. It recognizes them by their form, such as that of a JWT, and by the names of
//! fields, headers and variables, such as `password`.

use anyhow::Context as _;
use regex::{Captures, Regex};
use serde_json::Value;

/// Replaces secrets in texts and in JSON values.
pub(super) struct Redaction {
    /// Patterns of secrets by their form, then of values that follow a secret's name.
    patterns: [Regex; 2],
    /// The pattern of fields, headers and variables that contain secrets, by their names.
    name_pattern: Regex,
}

impl Redaction {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// If a pattern is invalid, which the tests rule out.
    pub(super) fn new() -> anyhow::Result<Self> {
        let compile = |text: &str| Regex::new(text).context("the pattern of secrets");
        Ok(Self {
            // The form is matched first, because a named value ends with its line, and a secret form such as a
            // PEM key may continue on the next line.
            patterns: [
                compile(&format!("(?i){SECRET_FORMS}"))?,
                compile(&format!("(?i){}", NAMED_VALUES.replace("NAMES", SECRET_NAMES)))?,
            ],
            name_pattern: compile(&format!("(?i)(?:{SECRET_NAMES})$"))?,
        })
    }

    /// Returns the text without secrets; JSON stays valid.
    pub(super) fn redact_text(&self, text: &str) -> String {
        let json = serde_json::from_str::<Value>(text).ok().filter(|json| !json.is_number());
        let Some(mut json) = json else { return self.redact_string(text) };
        self.redact_value(&mut json);
        format!("{json:#}\n")
    }

    fn redact_string(&self, text: &str) -> String {
        let replacement = |captures: &Captures<'_>| {
            // The named groups of both patterns: the text before a secret, which stays.
            let prefix_groups = ["kept", "header", "quoted", "word"];
            let prefix = prefix_groups.into_iter().find_map(|name| captures.name(name));
            format!("{}{REDACTED}", prefix.map_or("", |prefix| prefix.as_str()))
        };
        let [form_pattern, value_pattern] = &self.patterns;
        value_pattern
            .replace_all(&form_pattern.replace_all(text, replacement), replacement)
            .into_owned()
    }

    fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact_string(text),
            Value::Array(list) => list.iter_mut().for_each(|value| self.redact_value(value)),
            Value::Object(map) => {
                // Headers and variables: `{name: …, value: …}`.
                let entry_name = map.get("name").and_then(Value::as_str);
                let is_secret = entry_name.is_some_and(|name| self.name_pattern.is_match(name));
                for (key, value) in map {
                    match self.name_pattern.is_match(key) || is_secret && key.starts_with("value") {
                        true => redact_entire_value(value),
                        false => self.redact_value(value),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Redacts all strings and numbers of a secret value.
fn redact_entire_value(value: &mut Value) {
    match value {
        Value::String(_) | Value::Number(_) => *value = REDACTED.into(),
        Value::Array(list) => list.iter_mut().for_each(redact_entire_value),
        Value::Object(map) => map.values_mut().for_each(redact_entire_value),
        Value::Null | Value::Bool(_) => {}
    }
}

/// The replacement of a secret.
const REDACTED: &str = "[redacted]";

/// Suffixes of secrets' names. `tokens` usually counts tokens of a bucket and is not a secret.
const SECRET_NAMES: &str = "passwd|password|passphrase|secret|token|authorization|cookie|credential|api[-_]?key|private[-_]?key";

/// The pattern of values that follow a secret's name, for which `NAMES` stands: header values to the end of the
/// line or the closing quote, other values of one word or in quotes.
const NAMED_VALUES: &str = concat!(
    r#"(?P<header>\b(?:[\w-]*-)?(?:authorization|cookie):[ \t]*)[^"'\r\n]+"#,
    r#"|(?P<quoted>\b[\w-]*(?:NAMES)["']?[ \t]*[=:][ \t]*["'])[^"'\r\n]+"#,
    r#"|(?P<word>\b[\w-]*(?:NAMES)[ \t]*[=:][ \t]*)[^\s"'&,;)]+"#,
);

/// Join tokens, signed tokens (RFC 7519), HTTP credentials (RFC 9110 section 11.4), PEM private keys (RFC
/// 7468), and the access token of the web page; the group `kept` stays in the text.
const SECRET_FORMS: &str = concat!(
    r"leno-join-[0-9a-f]+",
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*",
    r"|(?P<kept>\b(?:bearer|basic)\s+|#/live/)[\w.~+/=-]{8,}",
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_and_other_text_stays() {
        let redaction = Redaction::new().unwrap();
        for (text, expected) in [
            ("token: leno-join-00ff12", "token: [redacted]"),
            ("\"authorization\": \"Bearer abc.def-123\"", "\"authorization\": \"[redacted]\""),
            ("Authorization: basic dXNlcjpwYXNz", "Authorization: [redacted]"),
            ("sent Bearer abc.def-123 twice", "sent Bearer [redacted] twice"),
            ("set-cookie: a=b; Path=/\nnext: c", "set-cookie: [redacted]\nnext: c"),
            (
                "cookie: -----BEGIN PRIVATE KEY-----\nMHc\n-----END PRIVATE KEY-----",
                "cookie: [redacted]",
            ),
            ("DB_PASSWORD=swordfish, X=1", "DB_PASSWORD=[redacted], X=1"),
            ("x{api_key=\"swordfish\"} 1", "x{api_key=\"[redacted]\"} 1"),
            ("tokens: 5 of a bucket", "tokens: 5 of a bucket"),
            ("x eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.AbC_-9 y", "x [redacted] y"),
            (
                "a -----BEGIN EC PRIVATE KEY-----\\nMHc\n-----END EC PRIVATE KEY----- b",
                "a [redacted] b",
            ),
            ("-----BEGIN PRIVATE KEY-----\ncut", "[redacted]"),
            ("http://10.0.0.7:1/?token=00ff1122aa", "http://10.0.0.7:1/?token=[redacted]"),
            ("http://127.0.0.1:1/#/live/00ff1122aa", "http://127.0.0.1:1/#/live/[redacted]"),
            ("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\nMII"),
            ("a basic service, a bearer of news", "a basic service, a bearer of news"),
            ("shop/cart 10.0.0.7:80 /path?x=1", "shop/cart 10.0.0.7:80 /path?x=1"),
        ] {
            assert_eq!(redaction.redact_text(text), expected);
        }
    }

    #[test]
    fn json_fields_named_like_secrets_are_redacted() {
        let redaction = Redaction::new().unwrap();
        let report = serde_json::json!({
            "labels": {"app": "cart", "db-password": "sword fish"},
            "headers": [
                {"name": "X-Api-Key", "values": ["swordfish"]},
                {"name": "x-user", "value": "jason"},
            ],
            "private_key": ["swordfish", 7],
            "cookie": {"a": "swordfish"},
            "tokens": 5,
            "problem": "`Cookie: a=swordfish`\nis none: -----BEGIN PRIVATE KEY-----\nMHc",
        });
        let redacted = redaction.redact_text(&report.to_string());
        let redacted: Value = serde_json::from_str(&redacted).unwrap();
        let expected = serde_json::json!({
            "labels": {"app": "cart", "db-password": "[redacted]"},
            "headers": [
                {"name": "X-Api-Key", "values": ["[redacted]"]},
                {"name": "x-user", "value": "jason"},
            ],
            "private_key": ["[redacted]", "[redacted]"],
            "cookie": {"a": "[redacted]"},
            "tokens": 5,
            "problem": "`Cookie: [redacted]\nis none: [redacted]",
        });
        assert_eq!(redacted, expected);
    }
}
