//! Parses JSON (RFC 8259) into the same trees as YAML, with line and column.

use super::{
    CollectionContent, DocumentNode, NO_ANCHOR, NodeValue, SyntaxError, TextPosition, TreeBuilder,
};

/// The failure to parse a text as JSON.
pub(super) enum JsonError {
    /// The text is not JSON, but may be YAML.
    Syntax(SyntaxError),
    /// The text exceeds a bound.
    Bound(SyntaxError),
}

/// Parses a sequence of JSON values, separated by white space or `---` lines, into the builder.
pub(super) fn parse_into(builder: &mut TreeBuilder, text: &str) -> Result<(), JsonError> {
    let mut reader = JsonReader { remaining: text, position: TextPosition::START };
    loop {
        reader.skip_blanks();
        if reader.remaining.is_empty() {
            return Ok(());
        }
        if reader.position.column == 1 && reader.skip_text("---") {
            continue;
        }
        reader.parse_document(builder)?;
    }
}

/// The unread part of a JSON text.
struct JsonReader<'a> {
    remaining: &'a str,
    /// The position of `remaining`.
    position: TextPosition,
}

/// The tokens that are allowed next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedToken {
    Value,
    /// A value, or the end of an empty list.
    FirstItem,
    /// A key, or the end of an empty object.
    FirstKey,
    Key,
    /// A comma, or the end of the list or object.
    Separator,
}

impl JsonReader<'_> {
    /// Parses one value, without recursion.
    fn parse_document(&mut self, builder: &mut TreeBuilder) -> Result<(), JsonError> {
        let mut expected = ExpectedToken::Value;
        loop {
            self.skip_blanks();
            let position = self.position;
            match (expected, self.peek()) {
                (ExpectedToken::FirstItem, Some(']')) | (ExpectedToken::FirstKey, Some('}')) => {
                    self.skip_character();
                    builder.end_collection().map_err(JsonError::Bound)?;
                }
                (ExpectedToken::FirstKey | ExpectedToken::Key, _) => {
                    let key = self.parse_string()?;
                    let node = DocumentNode { position, value: NodeValue::Text(key) };
                    builder.add_to_parent(node, NO_ANCHOR).map_err(JsonError::Bound)?;
                    self.skip_blanks();
                    self.expect_character(':', "a colon after the key")?;
                    expected = ExpectedToken::Value;
                    continue;
                }
                (ExpectedToken::Value | ExpectedToken::FirstItem, Some('{')) => {
                    self.skip_character();
                    let content = CollectionContent::Map(Vec::new(), None);
                    builder
                        .begin_collection(position, NO_ANCHOR, None, content)
                        .map_err(JsonError::Bound)?;
                    expected = ExpectedToken::FirstKey;
                    continue;
                }
                (ExpectedToken::Value | ExpectedToken::FirstItem, Some('[')) => {
                    self.skip_character();
                    let content = CollectionContent::List(Vec::new());
                    builder
                        .begin_collection(position, NO_ANCHOR, None, content)
                        .map_err(JsonError::Bound)?;
                    expected = ExpectedToken::FirstItem;
                    continue;
                }
                (ExpectedToken::Value | ExpectedToken::FirstItem, _) => {
                    let value = self.parse_scalar()?;
                    builder
                        .add_to_parent(DocumentNode { position, value }, NO_ANCHOR)
                        .map_err(JsonError::Bound)?;
                }
                (ExpectedToken::Separator, _) => {
                    let innermost = builder.open_collections.last();
                    let is_map = match innermost.map(|collection| &collection.content) {
                        Some(CollectionContent::Map(..)) => true,
                        Some(CollectionContent::List(_)) => false,
                        None => return Ok(()),
                    };
                    let closing_bracket = if is_map { '}' } else { ']' };
                    if self.skip_text(",") {
                        expected = if is_map { ExpectedToken::Key } else { ExpectedToken::Value };
                        continue;
                    }
                    self.expect_character(
                        closing_bracket,
                        if is_map { "a comma or }" } else { "a comma or ]" },
                    )?;
                    builder.end_collection().map_err(JsonError::Bound)?;
                }
            }
            expected = ExpectedToken::Separator;
            if builder.open_collections.is_empty() {
                return Ok(());
            }
        }
    }

    fn parse_scalar(&mut self) -> Result<NodeValue, JsonError> {
        for (word, value) in [
            ("null", NodeValue::Null),
            ("true", NodeValue::Boolean(true)),
            ("false", NodeValue::Boolean(false)),
        ] {
            if self.skip_text(word) {
                return Ok(value);
            }
        }
        match self.peek() {
            Some('"') => self.parse_string().map(NodeValue::Text),
            Some('-' | '0'..='9') => self.parse_number(),
            _ => Err(self.unexpected_token("a value")),
        }
    }

    fn parse_number(&mut self) -> Result<NodeValue, JsonError> {
        let length =
            self.remaining.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        let text = self.remaining.get(..length.unwrap_or(self.remaining.len())).unwrap_or_default();
        if !is_number(text) {
            return Err(self.unexpected_token("a number"));
        }
        let text = text.to_owned();
        self.skip_text(&text);
        Ok(NodeValue::Number(text))
    }

    fn parse_string(&mut self) -> Result<String, JsonError> {
        self.expect_character('"', "a text in quotes")?;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.skip_character();
                    return Ok(text);
                }
                Some('\\') => text.push(self.parse_escape()?),
                // Control characters must be escaped (RFC 8259 §7).
                Some(character) if character >= ' ' => {
                    self.skip_character();
                    text.push(character);
                }
                _ => return Err(self.unexpected_token("the quote that ends a text")),
            }
        }
    }

    fn parse_escape(&mut self) -> Result<char, JsonError> {
        for (escape, character) in ESCAPES {
            if self.skip_text(escape) {
                return Ok(character);
            }
        }
        let Some(unit) = self.code_unit(0) else {
            return Err(self.unexpected_token("an escape of JSON"));
        };
        let units = [Some(unit), self.code_unit(UNICODE_ESCAPE_BYTES)];
        let decoded = char::decode_utf16(units.into_iter().map_while(|unit| unit)).next();
        // An unpaired surrogate is not a character.
        let character = decoded.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER);
        for _ in 0..UNICODE_ESCAPE_BYTES * character.len_utf16() {
            self.skip_character();
        }
        Ok(character)
    }

    /// Returns the UTF-16 code unit of the escape `\uXXXX` at this byte offset, if there is one.
    fn code_unit(&self, offset: usize) -> Option<u16> {
        let digits = self.remaining.get(offset..)?.strip_prefix("\\u")?.get(..4)?;
        // `from_str_radix` would also accept a plus sign.
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
        u16::from_str_radix(digits, 16).ok()
    }

    fn peek(&self) -> Option<char> {
        self.remaining.chars().next()
    }

    fn skip_character(&mut self) {
        let mut characters = self.remaining.chars();
        match characters.next() {
            Some('\n') => {
                let line = self.position.line.saturating_add(1);
                self.position = TextPosition { line, column: 1 };
            }
            Some(_) => self.position.column = self.position.column.saturating_add(1),
            None => {}
        }
        self.remaining = characters.as_str();
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.skip_character();
        }
    }

    /// Skips `text`, which contains no line end, if it is next. Returns true if it was skipped.
    fn skip_text(&mut self, text: &str) -> bool {
        let is_next = self.remaining.starts_with(text);
        if is_next {
            text.chars().for_each(|_| self.skip_character());
        }
        is_next
    }

    fn expect_character(&mut self, character: char, expected: &str) -> Result<(), JsonError> {
        if self.peek() != Some(character) {
            return Err(self.unexpected_token(expected));
        }
        self.skip_character();
        Ok(())
    }

    /// Returns the error for a token other than `expected`, such as `a value`, at the current position.
    fn unexpected_token(&self, expected: &str) -> JsonError {
        let actual = match self.peek() {
            None => "the end".to_owned(),
            Some(character) => format!("{character:?}"),
        };
        JsonError::Syntax(SyntaxError {
            position: self.position,
            problem: format!("is not JSON (expected {expected}, found {actual})"),
            hint: super::SYNTAX_HINT.to_owned(),
        })
    }
}

/// True if the text matches the number grammar of RFC 8259 §6.
fn is_number(text: &str) -> bool {
    fn skip_digits(text: &str) -> Option<&str> {
        let remaining = text.trim_start_matches(|character: char| character.is_ascii_digit());
        (remaining.len() < text.len()).then_some(remaining)
    }
    fn skip_number(text: &str) -> Option<&str> {
        let text = text.strip_prefix('-').unwrap_or(text);
        let mut remaining = match text.strip_prefix('0') {
            Some(remaining) => remaining,
            None => skip_digits(text)?,
        };
        if let Some(fraction) = remaining.strip_prefix('.') {
            remaining = skip_digits(fraction)?;
        }
        if let Some(exponent) = remaining.strip_prefix(['e', 'E']) {
            remaining = skip_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))?;
        }
        Some(remaining)
    }
    skip_number(text).is_some_and(str::is_empty)
}

/// Single-character escapes (RFC 8259 §7).
const ESCAPES: [(&str, char); 8] = [
    ("\\\"", '"'),
    ("\\\\", '\\'),
    ("\\/", '/'),
    ("\\b", '\u{8}'),
    ("\\f", '\u{c}'),
    ("\\n", '\n'),
    ("\\r", '\r'),
    ("\\t", '\t'),
];
/// The length of `\uXXXX` in bytes.
const UNICODE_ESCAPE_BYTES: usize = 6;

#[cfg(test)]
mod tests {
    use super::super::parse_documents;
    use super::*;

    fn format_value(text: &str) -> String {
        format!("{:?}", parse_documents(text).unwrap()[0].value)
    }

    #[test]
    fn all_json_escapes_are_decoded() {
        for (json, text) in [
            (r#"{"a": "\ud83d\ude00"}"#, "\u{1F600}"),
            (r#"{"a": "x\uD83D\uDE00y\u00e9"}"#, "x\u{1F600}y\u{e9}"),
            (r#"{"a": "\ud83d"}"#, "\u{FFFD}"),
            (r#"{"a": "\ud83dx"}"#, "\u{FFFD}x"),
            (r#"{"a": "\\ud83d\\ude00"}"#, r"\\ud83d\\ude00"),
            (r#"{"a": "\"\ud83d\ude00"}"#, "\\\"\u{1F600}"),
            (r#"{"a": "\u0041\/\u002f"}"#, "A//"),
            (r#"{"\u006bind": 1}"#, "kind"),
            (r#"{"a": "\b\f\n\r\t\\"}"#, r"\u{8}\u{c}\n\r\t\\"),
            (r#"{"a": [1, -2.5e+3, true, false, null, {}, []]}"#, "-2.5e+3"),
        ] {
            assert!(format_value(json).contains(text), "{json}: {}", format_value(json));
        }
        // The texts "yes" and "1" stay texts, and JSON texts have no YAML meaning.
        assert!(format_value(r#"{"a": "1", "b": "&x *y"}"#).contains("Text(\"&x *y\")"));
    }

    #[test]
    fn each_value_has_its_line_and_column() {
        let node = parse_documents("\n {\"é\": [1,\n  {\"b\": \"c\"}]}").unwrap().remove(0);
        assert_eq!(node.position, TextPosition { line: 2, column: 2 });
        let NodeValue::Map(map) = &node.value else { panic!() };
        assert_eq!(map[0].1.position, TextPosition { line: 2, column: 8 });
        let NodeValue::List(list) = &map[0].1.value else { panic!() };
        let NodeValue::Map(inner) = &list[1].value else { panic!() };
        assert_eq!(inner[0].1.position, TextPosition { line: 3, column: 9 });
    }

    #[test]
    fn documents_follow_each_other() {
        for text in ["{\"a\":1}{\"b\":2}", "{\"a\":1}\n---\n{\"b\":2}\n", "{\"a\":1} [2]"] {
            assert_eq!(parse_documents(text).unwrap().len(), 2, "{text}");
        }
    }

    #[test]
    fn errors_name_the_position_and_the_expected_token() {
        for (text, line, column, expected) in [
            ("{\"a\": 1,\n \"b\" 2}", 2, 6, "a colon after the key, found '2'"),
            // A valid YAML number.
            ("{\"a\": 01, \"b\" 2}", 1, 15, "is not YAML"),
            ("{\"a\": \"\\q\"}", 1, 8, "an escape"),
            ("{\"a\": [1, 2}", 1, 12, "a comma or ]"),
            ("{\"a\": \"b", 1, 9, "the quote"),
        ] {
            let error = parse_documents(text).expect_err(text);
            assert_eq!(error.position, TextPosition { line, column }, "{text}: {}", error.problem);
            assert!(error.problem.contains(expected), "{text}: {}", error.problem);
        }
    }

    #[test]
    fn yaml_in_braces_stays_yaml() {
        for text in ["{a: b}", "{\"a\": b}", "[a, b] # comment", "{\"a\": \"\\x41\"}", "{a: 1,}"] {
            assert_eq!(parse_documents(text).unwrap().len(), 1, "{text}");
        }
        let error = parse_documents("{a: [b}").expect_err("a bracket is open");
        assert!(error.problem.contains("is not YAML"), "{}", error.problem);
    }

    #[test]
    fn surrogate_pairs_in_json_with_a_comment_are_decoded() {
        for (text, expected) in [
            ("{\"a\": \"\\ud83d\\ude00\"} # note", "\u{1F600}"),
            ("{\"a\": \"\\ud83d\"} # note", "\u{FFFD}"),
            ("{\"a\": \"\\\\ud83d\"} # note", r"\\ud83d"),
        ] {
            assert!(format_value(text).contains(expected), "{text}: {}", format_value(text));
        }
    }

    #[test]
    fn an_error_in_yaml_after_json_is_reported_at_its_position() {
        let error =
            parse_documents("{\"a\": 1}\n---\nb: 1\nc: [1\nd: 2\n").expect_err("a bracket is open");
        assert!(error.position.line >= 4 && error.problem.contains("is not YAML"), "{error:?}");
        let error =
            parse_documents("{\"a\": 1}\n---\n{\"b\": 1,\n \"c\" 2}\n").expect_err("no colon");
        assert_eq!(error.position.line, 4, "{error:?}");
    }

    #[test]
    fn nesting_depth_is_bounded() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(parse_documents(&deep).unwrap_err().problem.contains("nested deeper"));
    }
}
