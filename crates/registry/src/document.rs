//! Documents: YAML text becomes trees of nodes that know their line and column, within bounds.

mod json;
mod list;
mod merge;

use std::borrow::Cow;
use std::collections::HashMap;

pub(crate) use self::list::LIST_FIELDS;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// Reads the documents of a text, with the items of a `List` in its place; empty documents are left out.
///
/// # Errors
/// [`Unreadable`] when the text is not YAML or exceeds a bound: then nothing of it is known.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>, Unreadable> {
    let documents: Vec<Node> =
        documents_as_written(text)?.into_iter().flat_map(list::documents).collect();
    match documents.get(DOCUMENTS_MAX) {
        Some(beyond) => Err(too_many_documents(beyond.mark)),
        None => Ok(documents),
    }
}

/// Reads the documents of a text; empty ones are left out.
///
/// # Errors
/// As [`documents`].
pub(crate) fn documents_as_written(text: &str) -> Result<Vec<Node>, Unreadable> {
    let text = &*without_byte_order_marks(text);
    // The parser looks ahead to the end of a list or map in brackets, which may be a key.
    let brackets = text.bytes().filter(|byte| b",[]{}".contains(byte)).count();
    if brackets > BRACKETS_MAX {
        let problem = format!("has more than {BRACKETS_MAX} commas and brackets");
        return Err(Unreadable::bound(Mark::START, problem, "split the file"));
    }
    let not_json = match read_json(text) {
        Some(Ok(documents)) => return Ok(documents),
        Some(Err(json::Failure::Bound(error))) => return Err(error),
        Some(Err(json::Failure::Syntax(error))) => Some(error),
        None => None,
    };
    let mut text = match &not_json {
        Some(_) => without_surrogates(text),
        None => Cow::Borrowed(text),
    };
    let mut bytes_left = REREAD_BYTES_MAX;
    loop {
        let mut builder = Builder::default();
        let Some(error) = read_into(&mut builder, &text)? else {
            return Ok(builder.documents);
        };
        // The text is read again: nothing before the tab changes.
        let corrected = with_spaces(&text, &error);
        match (corrected, bytes_left.checked_sub(text.len())) {
            (Some(corrected), Some(left)) => (text, bytes_left) = (corrected.into(), left),
            _ => return Err(later(not_json, Unreadable::syntax(&error))),
        }
    }
}

fn too_many_documents(mark: Mark) -> Unreadable {
    let problem = format!("has more than {DOCUMENTS_MAX} documents");
    Unreadable::bound(mark, problem, "split the file")
}

/// The text without the byte order marks at the starts of documents (YAML 1.2, 5.2): at its beginning, before a line
/// `---`, and behind one. Files that were joined have them.
fn without_byte_order_marks(text: &str) -> Cow<'_, str> {
    if !text.contains(BYTE_ORDER_MARK) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut is_at_start = true;
    for line in text.split_inclusive('\n') {
        let rest = line.strip_prefix(BYTE_ORDER_MARK);
        let is_removed = rest.is_some_and(|rest| is_at_start || begins_document(rest));
        let line = rest.filter(|_| is_removed).unwrap_or(line);
        let is_blank = line.trim().is_empty() || line.starts_with('#');
        is_at_start = matches!(line.trim_end(), "---" | "...") || is_at_start && is_blank;
        out.push_str(line);
    }
    out.into()
}

fn begins_document(line: &str) -> bool {
    let rest = line.strip_prefix("---");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Reads a text that begins with a bracket as JSON: its texts have escapes that YAML lacks. YAML in brackets begins in
/// the same way.
fn read_json(text: &str) -> Option<Result<Vec<Node>, json::Failure>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut builder = Builder::default();
    let read = json::read_into(&mut builder, text);
    Some(read.map(|()| builder.documents))
}

/// The error of the reader that came further, which understood more of the text.
fn later(json: Option<Unreadable>, yaml: Unreadable) -> Unreadable {
    let place = |error: &Unreadable| (error.mark.line, error.mark.column);
    match json {
        Some(json) if place(&json) >= place(&yaml) => json,
        _ => yaml,
    }
}

/// The text with one escape of YAML in place of two of JSON (RFC 8259, 7) for each character beyond the first plane: a text
/// that is JSON but for a comment is read as YAML.
fn without_surrogates(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let unit = |at: usize| {
            let digits = escape.get(at..)?.strip_prefix("\\u")?.get(..4)?;
            u16::from_str_radix(digits, 16).ok()
        };
        let units = [unit(0), unit(UNIT_BYTES)];
        let decoded = char::decode_utf16(units.into_iter().map_while(|unit| unit)).next();
        let length = match decoded {
            Some(Ok(character)) if character.len_utf16() == 2 => {
                out.push_str(&format!("\\U{:08X}", u32::from(character)));
                2 * UNIT_BYTES
            }
            // Half a pair means no character.
            Some(Err(_)) => {
                out.push_str("\\uFFFD");
                UNIT_BYTES
            }
            Some(Ok(_)) | None => {
                // An escape, whole: the second of two backslashes begins none.
                let length = escape.chars().take(2).map(char::len_utf8).sum();
                out.push_str(escape.get(..length).unwrap_or_default());
                length
            }
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    out.into()
}

/// Reads a text, up to an error of its syntax.
fn read_into(builder: &mut Builder, text: &str) -> Result<Option<ScanError>, Unreadable> {
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.take(event, Mark::of(span))?,
            Err(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

/// The text with spaces in place of the tabs behind a colon, if these are what the parser does not
/// take. YAML 1.2 (6.2, 8.2.2) allows them.
fn with_spaces(text: &str, error: &ScanError) -> Option<String> {
    if !error.info().starts_with(TAB_AFTER_COLON) {
        return None;
    }
    let (at, _) = text.char_indices().nth(error.marker().index())?;
    let (before, after) = text.split_at_checked(at)?;
    let key = before.trim_end_matches(['\t', ' ']);
    let blanks = before.len().checked_sub(key.len())?;
    before.ends_with('\t').then(|| [key, &" ".repeat(blanks), after].concat())
}

/// A value and where it starts.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) mark: Mark,
    pub(crate) value: Value,
}

impl Node {
    /// Moves it and all in it down by so many lines.
    pub(crate) fn shift(&mut self, lines: u32) {
        self.mark.line = self.mark.line.saturating_add(lines);
        match &mut self.value {
            Value::List(list) => list.iter_mut().for_each(|node| node.shift(lines)),
            Value::Map(map) => {
                for (key, value) in map {
                    key.shift(lines);
                    value.shift(lines);
                }
            }
            Value::Null
            | Value::Boolean(_)
            | Value::Number(_)
            | Value::Text(_)
            | Value::MergeKey
            | Value::Tagged(_) => {}
        }
    }
}

/// What a node holds.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Boolean(bool),
    /// A number as it was written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// Keys and values in order; keys may repeat.
    Map(Vec<(Node, Node)>),
    /// The key `<<` of a merge, until its map ends; no text and no tag can be mistaken for it.
    MergeKey,
    /// A value with a tag that means nothing here.
    Tagged(String),
}

/// A line and a column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Why a text could not be read at all.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) mark: Mark,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Mark {
    const START: Self = Self { line: 1, column: 1 };

    fn of(span: Span) -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { line: number(span.start.line()), column: number(span.start.col()).saturating_add(1) }
    }
}

impl Unreadable {
    fn syntax(error: &ScanError) -> Self {
        Self {
            mark: Mark::of(Span::empty(*error.marker())),
            problem: format!("is not YAML ({})", error.info()),
            remedy: CORRECT_SYNTAX.to_owned(),
        }
    }

    fn bound(mark: Mark, problem: String, remedy: &str) -> Self {
        Self { mark, problem, remedy: remedy.to_owned() }
    }
}

/// Builds trees from the parser's events, without recursion.
#[derive(Default)]
struct Builder {
    documents: Vec<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    copied: usize,
}

/// A list or map that is not closed yet.
struct Open {
    mark: Mark,
    anchor: usize,
    tag: Option<String>,
    filling: Filling,
}

enum Filling {
    List(Vec<Node>),
    Map(Vec<(Node, Node)>, Option<Node>),
}

impl Builder {
    fn take(&mut self, event: Event<'_>, mark: Mark) -> Result<(), Unreadable> {
        match event {
            Event::DocumentStart(_) => {
                // An anchor is known to the end of its document.
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = match self.expects_key() && merge::is_key(&text, style, tag.as_deref())
                {
                    true => Value::MergeKey,
                    false => scalar(&text, style, tag.as_deref()),
                };
                self.place(Node { mark, value }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(mark, anchor, tag.as_deref(), Filling::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                let filling = Filling::Map(Vec::new(), None);
                self.begin(mark, anchor, tag.as_deref(), filling)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.copy(mark, anchor),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { filling: Filling::Map(_, None), .. }))
    }

    fn begin(
        &mut self,
        mark: Mark,
        anchor: usize,
        tag: Option<&Tag>,
        filling: Filling,
    ) -> Result<(), Unreadable> {
        if self.open.len() >= DEPTH_MAX {
            let problem = format!("is nested deeper than {DEPTH_MAX} levels");
            return Err(Unreadable::bound(mark, problem, "nest less"));
        }
        let tag = tag
            .filter(|tag| !(tag.is_yaml_core_schema() && matches!(&*tag.suffix, "map" | "seq")))
            .map(tag_name);
        self.open.push(Open { mark, anchor, tag, filling });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Unreadable> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match (open.tag, open.filling) {
            (Some(tag), _) => Value::Tagged(tag),
            (None, Filling::List(list)) => Value::List(list),
            (None, Filling::Map(map, _)) => Value::Map(merge::merged(map)?),
        };
        let node = Node { mark: open.mark, value };
        self.place(node, open.anchor)
    }

    fn copy(&mut self, mark: Mark, anchor: usize) -> Result<(), Unreadable> {
        let Some(node) = self.anchors.get(&anchor) else {
            let problem = "refers to an anchor of another document or one around itself".to_owned();
            return Err(Unreadable::bound(mark, problem, "write the value out"));
        };
        self.copied = self.copied.saturating_add(weight(node));
        if self.copied > COPIED_BYTES_MAX {
            let problem = format!("aliases copy more than {COPIED_BYTES_MAX} bytes");
            return Err(Unreadable::bound(mark, problem, "use fewer aliases"));
        }
        let value = match &node.value {
            // An alias of a merge key is a text, as kubectl reads it.
            Value::MergeKey => Value::Text(merge::KEY.to_owned()),
            value => value.clone(),
        };
        self.place(Node { mark, value }, 0)
    }

    /// Puts a finished node where it belongs.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), Unreadable> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let problem = format!("has more than {NODES_MAX} values");
            return Err(Unreadable::bound(node.mark, problem, "split the file"));
        }
        if anchor != 0 {
            self.copied = self.copied.saturating_add(weight(&node));
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.filling) {
            Some(Filling::List(list)) => list.push(node),
            Some(Filling::Map(map, key)) => match key.take() {
                Some(key) => map.push((key, node)),
                None => *key = Some(node),
            },
            None => return self.document(node),
        }
        Ok(())
    }

    fn document(&mut self, node: Node) -> Result<(), Unreadable> {
        if matches!(node.value, Value::Null) {
            return Ok(());
        }
        if self.documents.len() >= DOCUMENTS_MAX {
            return Err(too_many_documents(node.mark));
        }
        self.documents.push(node);
        Ok(())
    }
}

/// What a copy of the node costs, in bytes, roughly. The depth is bounded by `DEPTH_MAX`
/// for what was written, and by `COPIED_BYTES_MAX` for what was copied into it.
fn weight(node: &Node) -> usize {
    let own = size_of::<Node>();
    match &node.value {
        Value::Null | Value::Boolean(_) | Value::MergeKey => own,
        Value::Number(text) | Value::Text(text) | Value::Tagged(text) => own + text.len(),
        Value::List(list) => own + list.iter().map(weight).sum::<usize>(),
        Value::Map(map) => {
            let entries = map.iter().map(|(key, value)| weight(key) + weight(value));
            own + entries.sum::<usize>()
        }
    }
}

/// The core schema of YAML 1.2: what a plain scalar means.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    if let Some(tag) = tag {
        return tagged_scalar(text, tag).unwrap_or_else(|| Value::Tagged(tag_name(tag)));
    }
    if style != ScalarStyle::Plain {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Boolean(true),
        "false" | "False" | "FALSE" => Value::Boolean(false),
        _ if is_number(text) => Value::Number(text.to_owned()),
        _ => Value::Text(text.to_owned()),
    }
}

/// The value of a scalar with a tag of the core schema, if it has one.
fn tagged_scalar(text: &str, tag: &Tag) -> Option<Value> {
    if !tag.is_yaml_core_schema() {
        return None;
    }
    let plain = || scalar(text, ScalarStyle::Plain, None);
    let is_whole = |text: &str| !text.contains(['.', 'e', 'E']) || text.starts_with("0x");
    match (&*tag.suffix, plain()) {
        ("str", _) => Some(Value::Text(text.to_owned())),
        ("int", value @ Value::Number(_)) if is_whole(text) => Some(value),
        ("float", value @ Value::Number(_))
        | ("bool", value @ Value::Boolean(_))
        | ("null", value @ Value::Null) => Some(value),
        _ => None,
    }
}

/// A tag as it is usually written.
fn tag_name(tag: &Tag) -> String {
    match tag.is_yaml_core_schema() {
        true => format!("!!{}", tag.suffix),
        false => tag.to_string(),
    }
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if let Some(digits) = text.strip_prefix("0x") {
        return !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return !digits.is_empty() && digits.bytes().all(|b| matches!(b, b'0'..=b'7'));
    }
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    starts && unsigned.parse::<f64>().is_ok()
}

/// The most documents of one file.
const DOCUMENTS_MAX: usize = 10_000;
/// The most values of one file; each costs about a hundred bytes while it is read.
const NODES_MAX: usize = 500_000;
/// The most commas and brackets of one file; each costs up to four hundred bytes while it is read.
const BRACKETS_MAX: usize = 500_000;
/// The deepest nesting; no kind needs more than a dozen levels.
const DEPTH_MAX: usize = 64;
/// What anchors and aliases may copy in one file: a few "billion laughs" stay a smile.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// The parser's complaint about a tab behind a colon.
const TAB_AFTER_COLON: &str = "':' must be followed by a valid YAML whitespace";
/// The most bytes of one file that are read again because of tabs.
const REREAD_BYTES_MAX: usize = 64 << 20;
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The length of `\uXXXX`.
const UNIT_BYTES: usize = 6;
/// The remedy of an error of syntax.
const CORRECT_SYNTAX: &str = "correct the syntax; until then the file's last good state stays";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_behind_a_colon_are_white_space() {
        let text = "kind:\tService\nmetadata:\t{name: \ta}\ntext:\t|\n  a:\tb\nlast:\t\tz # end\n";
        let shown = format!("{:?}", documents(text).unwrap()[0].value);
        for value in ["Service", "a:\\tb\\n", "\"z\""] {
            assert!(shown.contains(value), "{value}: {shown}");
        }
    }

    fn only(text: &str) -> Node {
        let mut documents = documents(text).unwrap();
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0)
    }

    #[test]
    fn marks_lines_and_columns_from_one() {
        let node = only("# caption\na:\n  b: [1, x]\n");
        assert_eq!(node.mark, Mark { line: 2, column: 1 });
        let Value::Map(map) = node.value else { panic!() };
        let Value::Map(inner) = &map[0].1.value else { panic!() };
        let Value::List(list) = &inner[0].1.value else { panic!() };
        assert_eq!(list[1].mark, Mark { line: 3, column: 10 });
    }

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        let shown = |text: &str| match only(&format!("[{text}]")).value {
            Value::List(list) => format!("{:?}", list[0].value),
            other => format!("{other:?}"),
        };
        for (text, expected) in [
            ("9080", "Number(\"9080\")"),
            ("-1.5e3", "Number(\"-1.5e3\")"),
            ("0x1F", "Number(\"0x1F\")"),
            (".inf", "Number(\".inf\")"),
            ("inf", "Text(\"inf\")"),
            ("v1", "Text(\"v1\")"),
            ("127.0.0.1", "Text(\"127.0.0.1\")"),
            ("\"9080\"", "Text(\"9080\")"),
            ("!!str 9080", "Text(\"9080\")"),
            ("!secret x", "Tagged(\"!secret\")"),
            ("!!int \"5\"", "Number(\"5\")"),
            ("!!int 0x1E", "Number(\"0x1E\")"),
            ("!!int 5.5", "Tagged(\"!!int\")"),
            ("!!int x", "Tagged(\"!!int\")"),
            ("!!float '5.5'", "Number(\"5.5\")"),
            ("!!bool 'true'", "Boolean(true)"),
            ("!!null ''", "Null"),
            ("!!binary eA==", "Tagged(\"!!binary\")"),
            ("'<<'", "Text(\"<<\")"),
            ("<<", "Text(\"<<\")"),
            ("yes", "Text(\"yes\")"),
            ("true", "Boolean(true)"),
            ("~", "Null"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn leaves_out_empty_documents() {
        for (text, count) in [
            ("", 0),
            ("# nothing\n", 0),
            ("---\n---\n", 0),
            ("---\na: 1\n---\n# x\n---\nb: 2\n...\n", 2),
            ("\u{feff}a: 1\n", 1),
            ("\u{feff}a: 1\n---\n\u{feff}b: 1\n", 2),
            ("a: 1\n---\n\n# two\n\u{feff}b: 1\n", 2),
            ("a: 1\n\u{feff}---\nb: 1\n", 2),
            ("a: |\n  x\n\u{feff}--- # two\r\nb: 1\n...\r\n\u{feff}c: 1\n", 3),
            ("\u{feff}{\"a\": \"\\ud83d\\ude00\"}\n---\n\u{feff}{\"b\": 1}\n", 2),
        ] {
            assert_eq!(documents(text).unwrap().len(), count, "{text:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_within_a_document_is_rejected() {
        for text in ["a: 1\n\u{feff}b: 1\n", "a: |\n  x\n\u{feff}b: 1\n", "a: 1\n  \u{feff}---\n"] {
            let error = documents(text).expect_err(text);
            assert!(error.problem.contains("byte order mark"), "{text:?}: {}", error.problem);
        }
    }

    #[test]
    fn refuses_what_exceeds_a_bound() {
        let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, level| {
            let below = level - 1;
            format!("{text}a{level}: &a{level} [*a{below}, *a{below}, *a{below}]\n")
        });
        let documents_many = "--- x\n".repeat(DOCUMENTS_MAX + 1);
        let nodes_many = "- 1\n".repeat(NODES_MAX + 1);
        let brackets_many = format!("[{}]", "1,".repeat(BRACKETS_MAX));
        for (text, why) in [
            (bomb, "aliases copy more"),
            ("[".repeat(100) + &"]".repeat(100), "nested deeper"),
            ("[".repeat(100_000), ""),
            ("- ".repeat(100_000), ""),
            (documents_many, "documents"),
            (nodes_many, "values"),
            (brackets_many, "commas and brackets"),
            ("a: &x 1\n---\nb: *x\n".to_owned(), ""),
            ("a: &x [*x]\n".to_owned(), ""),
        ] {
            let error = documents(&text).expect_err(why);
            assert!(error.problem.contains(why), "{why}: {}", error.problem);
        }
    }
}
