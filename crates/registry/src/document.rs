//! Parses YAML and JSON texts: each document becomes a tree of nodes with line and column. Bounds on size, nesting and
//! aliases limit the memory.

mod json;
mod list;
mod merge;

use std::borrow::Cow;
use std::collections::HashMap;

pub(crate) use self::list::LIST_FIELDS;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// Parses the documents of a text. A `List` is replaced by its items; empty documents are omitted.
///
/// # Errors
/// [`SyntaxError`] if the text is not YAML or exceeds a bound. No document is returned then.
pub(crate) fn parse_documents(text: &str) -> Result<Vec<DocumentNode>, SyntaxError> {
    let documents: Vec<DocumentNode> =
        parse_unexpanded_documents(text)?.into_iter().flat_map(list::expand_list).collect();
    match documents.get(MAX_DOCUMENTS) {
        Some(first_excess_document) => Err(too_many_documents(first_excess_document.position)),
        None => Ok(documents),
    }
}

/// Parses the documents of a text, without the expansion of lists; empty documents are omitted.
///
/// # Errors
/// See [`parse_documents`].
pub(crate) fn parse_unexpanded_documents(text: &str) -> Result<Vec<DocumentNode>, SyntaxError> {
    let cleaned_text = &*remove_byte_order_marks(text);
    // The parser looks ahead to the end of a flow list or map, because it may be a key. This bound limits the memory for
    // that.
    let bracket_count = cleaned_text.bytes().filter(|byte| b",[]{}".contains(byte)).count();
    if bracket_count > MAX_BRACKETS {
        let problem = format!("has more than {MAX_BRACKETS} commas and brackets");
        return Err(SyntaxError::new(TextPosition::START, problem, "split the file"));
    }
    let json_error = match parse_as_json(cleaned_text) {
        Some(Ok(documents)) => return Ok(documents),
        Some(Err(json::JsonError::Bound(error))) => return Err(error),
        Some(Err(json::JsonError::Syntax(error))) => Some(error),
        None => None,
    };
    let mut yaml_text = match &json_error {
        Some(_) => replace_surrogates(cleaned_text),
        None => Cow::Borrowed(cleaned_text),
    };
    let mut remaining_reread_bytes = MAX_REREAD_BYTES;
    loop {
        let mut builder = TreeBuilder::default();
        let Some(error) = parse_into(&mut builder, &yaml_text)? else {
            return Ok(builder.documents);
        };
        // A text with tabs after a colon is parsed again from the start, with spaces in their place.
        let corrected_text = replace_tabs(&yaml_text, &error);
        match (corrected_text, remaining_reread_bytes.checked_sub(yaml_text.len())) {
            (Some(corrected_text), Some(bytes_after_reread)) => {
                (yaml_text, remaining_reread_bytes) = (corrected_text.into(), bytes_after_reread);
            }
            _ => return Err(furthest_error(json_error, SyntaxError::from_scan_error(&error))),
        }
    }
}

/// Returns the error for a text with more than [`MAX_DOCUMENTS`] documents.
fn too_many_documents(position: TextPosition) -> SyntaxError {
    let problem = format!("has more than {MAX_DOCUMENTS} documents");
    SyntaxError::new(position, problem, "split the file")
}

/// Removes the byte order marks at the starts of documents (YAML 1.2 §5.2): at the beginning of the text, and
/// before and after a `---` line. Concatenated files contain them.
fn remove_byte_order_marks(text: &str) -> Cow<'_, str> {
    if !text.contains(BYTE_ORDER_MARK) {
        return text.into();
    }
    let mut cleaned_text = String::with_capacity(text.len());
    let mut is_at_start = true;
    for line in text.split_inclusive('\n') {
        let after_mark = line.strip_prefix(BYTE_ORDER_MARK);
        let is_removed = after_mark.is_some_and(|line| is_at_start || begins_document(line));
        let line = after_mark.filter(|_| is_removed).unwrap_or(line);
        let is_blank = line.trim().is_empty() || line.starts_with('#');
        is_at_start = matches!(line.trim_end(), "---" | "...") || is_at_start && is_blank;
        cleaned_text.push_str(line);
    }
    cleaned_text.into()
}

/// True if the line is a document marker, `---`, with or without content after it.
fn begins_document(line: &str) -> bool {
    let after_marker = line.strip_prefix("---");
    after_marker.is_some_and(|text| text.is_empty() || text.starts_with(char::is_whitespace))
}

/// Parses a text as JSON, which has escapes that YAML lacks. Returns `None` if the text does not begin with a bracket.
/// A text that begins with a bracket may also be YAML in flow style.
fn parse_as_json(text: &str) -> Option<Result<Vec<DocumentNode>, json::JsonError>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut builder = TreeBuilder::default();
    let result = json::parse_into(&mut builder, text);
    Some(result.map(|()| builder.documents))
}

/// Returns the error of the parser that failed at the later position.
fn furthest_error(json_error: Option<SyntaxError>, yaml_error: SyntaxError) -> SyntaxError {
    let line_and_column = |error: &SyntaxError| (error.position.line, error.position.column);
    match json_error {
        Some(json_error) if line_and_column(&json_error) >= line_and_column(&yaml_error) => {
            json_error
        }
        _ => yaml_error,
    }
}

/// Replaces each JSON surrogate pair (RFC 8259 §7) by one YAML escape, so that JSON with a comment parses as
/// YAML.
fn replace_surrogates(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return text.into();
    }
    let mut replaced_text = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(escape_index) = remaining.find('\\') {
        let (before, escape) = remaining.split_at(escape_index);
        replaced_text.push_str(before);
        let code_unit = |offset: usize| {
            let digits = escape.get(offset..)?.strip_prefix("\\u")?.get(..4)?;
            u16::from_str_radix(digits, 16).ok()
        };
        let units = [code_unit(0), code_unit(UNICODE_ESCAPE_BYTES)];
        let decoded = char::decode_utf16(units.into_iter().map_while(|unit| unit)).next();
        let length = match decoded {
            Some(Ok(character)) if character.len_utf16() == 2 => {
                replaced_text.push_str(&format!("\\U{:08X}", u32::from(character)));
                2 * UNICODE_ESCAPE_BYTES
            }
            // An unpaired surrogate is not a character.
            Some(Err(_)) => {
                replaced_text.push_str("\\uFFFD");
                UNICODE_ESCAPE_BYTES
            }
            Some(Ok(_)) | None => {
                // Consumes the whole escape: the second of two backslashes does not begin another escape.
                let length = escape.chars().take(2).map(char::len_utf8).sum();
                replaced_text.push_str(escape.get(..length).unwrap_or_default());
                length
            }
        };
        remaining = escape.get(length..).unwrap_or_default();
    }
    replaced_text.push_str(remaining);
    replaced_text.into()
}

/// Parses a YAML text into the builder, up to the first syntax error of the parser. Returns that error; `None` if there is
/// none.
///
/// # Errors
/// [`SyntaxError`] if the text exceeds a bound.
fn parse_into(builder: &mut TreeBuilder, text: &str) -> Result<Option<ScanError>, SyntaxError> {
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.handle_event(event, TextPosition::from_span(span))?,
            Err(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

/// Replaces the tabs after the colon at which the parser failed by spaces; `None` if the error has another reason. YAML 1.2
/// (§6.2 and §8.2.2) allows tabs there, but the parser does not.
fn replace_tabs(text: &str, error: &ScanError) -> Option<String> {
    if !error.info().starts_with(TAB_AFTER_COLON) {
        return None;
    }
    let (byte_index, _) = text.char_indices().nth(error.marker().index())?;
    let (before, after) = text.split_at_checked(byte_index)?;
    let before_blanks = before.trim_end_matches(['\t', ' ']);
    let blank_count = before.len().checked_sub(before_blanks.len())?;
    before.ends_with('\t').then(|| [before_blanks, &" ".repeat(blank_count), after].concat())
}

/// A value and its position.
#[derive(Debug, Clone)]
pub(crate) struct DocumentNode {
    pub(crate) position: TextPosition,
    pub(crate) value: NodeValue,
}

impl DocumentNode {
    /// Moves the node and its descendants down by this number of lines.
    pub(crate) fn shift_lines(&mut self, line_count: u32) {
        self.position.line = self.position.line.saturating_add(line_count);
        match &mut self.value {
            NodeValue::List(list) => list.iter_mut().for_each(|node| node.shift_lines(line_count)),
            NodeValue::Map(map) => {
                for (key, value) in map {
                    key.shift_lines(line_count);
                    value.shift_lines(line_count);
                }
            }
            NodeValue::Null
            | NodeValue::Boolean(_)
            | NodeValue::Number(_)
            | NodeValue::Text(_)
            | NodeValue::MergeKey
            | NodeValue::Tagged(_) => {}
        }
    }
}

/// The value of a node.
#[derive(Debug, Clone)]
pub(crate) enum NodeValue {
    Null,
    Boolean(bool),
    /// A number as written.
    Number(String),
    Text(String),
    List(Vec<DocumentNode>),
    /// Keys and values in order. Keys may occur more than once.
    Map(Vec<(DocumentNode, DocumentNode)>),
    /// The merge key `<<` in a map that is not closed yet; when the map is closed, [`merge`] replaces it by the merged
    /// entries.
    MergeKey,
    /// A value with an unsupported tag.
    Tagged(String),
}

/// A line and a column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TextPosition {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// The reason that a text cannot be parsed.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) position: TextPosition,
    pub(crate) problem: String,
    pub(crate) hint: String,
}

impl TextPosition {
    const START: Self = Self { line: 1, column: 1 };

    fn from_span(span: Span) -> Self {
        let to_u32 = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        // The parser counts lines from 1, but columns from 0.
        let column = to_u32(span.start.col()).saturating_add(1);
        Self { line: to_u32(span.start.line()), column }
    }
}

impl SyntaxError {
    fn from_scan_error(error: &ScanError) -> Self {
        Self {
            position: TextPosition::from_span(Span::empty(*error.marker())),
            problem: format!("is not YAML ({})", error.info()),
            hint: SYNTAX_HINT.to_owned(),
        }
    }

    fn new(position: TextPosition, problem: String, hint: &str) -> Self {
        Self { position, problem, hint: hint.to_owned() }
    }
}

/// Builds trees from the parser's events, without recursion.
#[derive(Default)]
struct TreeBuilder {
    documents: Vec<DocumentNode>,
    /// The lists and maps around the next node, outermost first.
    open_collections: Vec<OpenCollection>,
    /// The nodes with an anchor in the current document, by the parser's anchor number.
    anchors: HashMap<usize, DocumentNode>,
    /// The number of nodes added in this text.
    node_count: usize,
    /// The approximate size of the copies that anchors and aliases caused in this text.
    copied_bytes: usize,
}

/// A list or map that is not closed yet.
struct OpenCollection {
    position: TextPosition,
    /// The parser's anchor number, or [`NO_ANCHOR`].
    anchor: usize,
    /// The tag, unless it is that of an ordinary list or map.
    tag: Option<String>,
    content: CollectionContent,
}

/// The content of an open list or map.
enum CollectionContent {
    List(Vec<DocumentNode>),
    /// The entries, and the key of the next value; `None` if the next node is a key.
    Map(Vec<(DocumentNode, DocumentNode)>, Option<DocumentNode>),
}

impl TreeBuilder {
    /// Adds the value that an event of the parser begins, completes or copies to the tree.
    fn handle_event(
        &mut self,
        event: Event<'_>,
        position: TextPosition,
    ) -> Result<(), SyntaxError> {
        match event {
            Event::DocumentStart(_) => {
                // Anchors are scoped to one document.
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value =
                    match self.expects_key() && merge::is_merge_key(&text, style, tag.as_deref()) {
                        true => NodeValue::MergeKey,
                        false => parse_scalar(&text, style, tag.as_deref()),
                    };
                self.add_to_parent(DocumentNode { position, value }, anchor)
            }
            Event::SequenceStart(anchor, tag) => self.begin_collection(
                position,
                anchor,
                tag.as_deref(),
                CollectionContent::List(Vec::new()),
            ),
            Event::MappingStart(anchor, tag) => {
                let content = CollectionContent::Map(Vec::new(), None);
                self.begin_collection(position, anchor, tag.as_deref(), content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection(),
            Event::Alias(anchor) => self.copy_alias(position, anchor),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    /// True if the next node is the key of a map entry.
    fn expects_key(&self) -> bool {
        matches!(
            self.open_collections.last(),
            Some(OpenCollection { content: CollectionContent::Map(_, None), .. })
        )
    }

    /// Opens a list or map.
    fn begin_collection(
        &mut self,
        position: TextPosition,
        anchor: usize,
        tag: Option<&Tag>,
        content: CollectionContent,
    ) -> Result<(), SyntaxError> {
        if self.open_collections.len() >= MAX_DEPTH {
            let problem = format!("is nested deeper than {MAX_DEPTH} levels");
            return Err(SyntaxError::new(position, problem, "nest less"));
        }
        let tag = tag
            .filter(|tag| !(tag.is_yaml_core_schema() && matches!(&*tag.suffix, "map" | "seq")))
            .map(tag_name);
        self.open_collections.push(OpenCollection { position, anchor, tag, content });
        Ok(())
    }

    /// Closes the innermost list or map, and adds it to its parent. The content of a collection with an unsupported tag is
    /// dropped.
    fn end_collection(&mut self) -> Result<(), SyntaxError> {
        let Some(collection) = self.open_collections.pop() else {
            return Ok(());
        };
        let value = match (collection.tag, collection.content) {
            (Some(tag), _) => NodeValue::Tagged(tag),
            (None, CollectionContent::List(list)) => NodeValue::List(list),
            (None, CollectionContent::Map(map, _)) => NodeValue::Map(merge::merge_entries(map)?),
        };
        let node = DocumentNode { position: collection.position, value };
        self.add_to_parent(node, collection.anchor)
    }

    /// Adds a copy of the node with this anchor.
    fn copy_alias(&mut self, position: TextPosition, anchor: usize) -> Result<(), SyntaxError> {
        let Some(node) = self.anchors.get(&anchor) else {
            let problem =
                "refers to an anchor of another document, or of a value that contains the alias"
                    .to_owned();
            return Err(SyntaxError::new(position, problem, "write the value out"));
        };
        self.copied_bytes = self.copied_bytes.saturating_add(copy_size(node));
        if self.copied_bytes > MAX_COPIED_BYTES {
            let problem = format!("aliases copy more than {MAX_COPIED_BYTES} bytes");
            return Err(SyntaxError::new(position, problem, "use fewer aliases"));
        }
        let value = match &node.value {
            // An alias of a merge key is a text, as in kubectl.
            NodeValue::MergeKey => NodeValue::Text(merge::MERGE_KEY.to_owned()),
            value => value.clone(),
        };
        self.add_to_parent(DocumentNode { position, value }, NO_ANCHOR)
    }

    /// Adds a complete node to the innermost open list or map, or as a document if none is open.
    fn add_to_parent(&mut self, node: DocumentNode, anchor: usize) -> Result<(), SyntaxError> {
        self.node_count += 1;
        if self.node_count > MAX_NODES {
            let problem = format!("has more than {MAX_NODES} values");
            return Err(SyntaxError::new(node.position, problem, "split the file"));
        }
        if anchor != NO_ANCHOR {
            self.copied_bytes = self.copied_bytes.saturating_add(copy_size(&node));
            self.anchors.insert(anchor, node.clone());
        }
        match self.open_collections.last_mut().map(|collection| &mut collection.content) {
            Some(CollectionContent::List(list)) => list.push(node),
            Some(CollectionContent::Map(map, key)) => match key.take() {
                Some(key) => map.push((key, node)),
                None => *key = Some(node),
            },
            None => return self.add_document(node),
        }
        Ok(())
    }

    /// Adds a document, unless it is empty.
    fn add_document(&mut self, node: DocumentNode) -> Result<(), SyntaxError> {
        if matches!(node.value, NodeValue::Null) {
            return Ok(());
        }
        if self.documents.len() >= MAX_DOCUMENTS {
            return Err(too_many_documents(node.position));
        }
        self.documents.push(node);
        Ok(())
    }
}

/// Returns the approximate size of a copy of the node in bytes. The recursion is bounded by `MAX_DEPTH` for written
/// nodes, and by `MAX_COPIED_BYTES` for copied nodes.
fn copy_size(node: &DocumentNode) -> usize {
    let node_size = size_of::<DocumentNode>();
    match &node.value {
        NodeValue::Null | NodeValue::Boolean(_) | NodeValue::MergeKey => node_size,
        NodeValue::Number(text) | NodeValue::Text(text) | NodeValue::Tagged(text) => {
            node_size + text.len()
        }
        NodeValue::List(list) => node_size + list.iter().map(copy_size).sum::<usize>(),
        NodeValue::Map(map) => {
            let entries = map.iter().map(|(key, value)| copy_size(key) + copy_size(value));
            node_size + entries.sum::<usize>()
        }
    }
}

/// Interprets a scalar by the core schema of YAML 1.2: by its tag, if it has one; as text, if it is quoted or a block.
fn parse_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> NodeValue {
    if let Some(tag) = tag {
        return parse_tagged_scalar(text, tag).unwrap_or_else(|| NodeValue::Tagged(tag_name(tag)));
    }
    if style != ScalarStyle::Plain {
        return NodeValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => NodeValue::Null,
        "true" | "True" | "TRUE" => NodeValue::Boolean(true),
        "false" | "False" | "FALSE" => NodeValue::Boolean(false),
        _ if is_number(text) => NodeValue::Number(text.to_owned()),
        _ => NodeValue::Text(text.to_owned()),
    }
}

/// Returns the value of a scalar with a core schema tag; `None` for another tag, or a text that does not match it.
fn parse_tagged_scalar(text: &str, tag: &Tag) -> Option<NodeValue> {
    if !tag.is_yaml_core_schema() {
        return None;
    }
    let parse_plain = || parse_scalar(text, ScalarStyle::Plain, None);
    let is_whole = |text: &str| !text.contains(['.', 'e', 'E']) || text.starts_with("0x");
    match (&*tag.suffix, parse_plain()) {
        ("str", _) => Some(NodeValue::Text(text.to_owned())),
        ("int", value @ NodeValue::Number(_)) if is_whole(text) => Some(value),
        ("float", value @ NodeValue::Number(_))
        | ("bool", value @ NodeValue::Boolean(_))
        | ("null", value @ NodeValue::Null) => Some(value),
        _ => None,
    }
}

/// Returns a tag as written in YAML, such as `!!int` for `tag:yaml.org,2002:int`.
fn tag_name(tag: &Tag) -> String {
    match tag.is_yaml_core_schema() {
        true => format!("!!{}", tag.suffix),
        false => tag.to_string(),
    }
}

/// True for the integers and floating-point numbers of the core schema, including `.inf` and `.nan`.
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
    let is_numeric_start = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    is_numeric_start && unsigned.parse::<f64>().is_ok()
}

/// Maximum number of documents per text.
const MAX_DOCUMENTS: usize = 10_000;
/// Maximum number of nodes per file; each takes about 100 bytes while parsing.
const MAX_NODES: usize = 500_000;
/// Maximum number of commas and brackets per file; each takes up to 400 bytes while parsing.
const MAX_BRACKETS: usize = 500_000;
/// Maximum nesting depth; no kind needs more than a dozen levels.
const MAX_DEPTH: usize = 64;
/// Maximum number of bytes that aliases copy in one file; it stops "billion laughs" attacks.
const MAX_COPIED_BYTES: usize = 1 << 20;

/// The parser's anchor number of a node without an anchor.
const NO_ANCHOR: usize = 0;
/// The parser's error for a tab after a colon.
const TAB_AFTER_COLON: &str = "':' must be followed by a valid YAML whitespace";
/// Maximum number of bytes of one file that are parsed again because of tabs: each tab causes another parse of the file.
const MAX_REREAD_BYTES: usize = 64 << 20;
/// U+FEFF, with which some editors begin UTF-8 files.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The length of `\uXXXX` in bytes.
const UNICODE_ESCAPE_BYTES: usize = 6;
/// The hint for a syntax error.
const SYNTAX_HINT: &str =
    "correct the syntax; until then the file's last valid state stays in force";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_after_a_colon_are_white_space() {
        let text = "kind:\tService\nmetadata:\t{name: \ta}\ntext:\t|\n  a:\tb\nlast:\t\tz # end\n";
        let value_text = format!("{:?}", parse_documents(text).unwrap()[0].value);
        for value in ["Service", "a:\\tb\\n", "\"z\""] {
            assert!(value_text.contains(value), "{value}: {value_text}");
        }
    }

    fn parse_single(text: &str) -> DocumentNode {
        let mut documents = parse_documents(text).unwrap();
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0)
    }

    #[test]
    fn lines_and_columns_count_from_one() {
        let node = parse_single("# caption\na:\n  b: [1, x]\n");
        assert_eq!(node.position, TextPosition { line: 2, column: 1 });
        let NodeValue::Map(map) = node.value else { panic!() };
        let NodeValue::Map(inner) = &map[0].1.value else { panic!() };
        let NodeValue::List(list) = &inner[0].1.value else { panic!() };
        assert_eq!(list[1].position, TextPosition { line: 3, column: 10 });
    }

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        let format_scalar = |text: &str| match parse_single(&format!("[{text}]")).value {
            NodeValue::List(list) => format!("{:?}", list[0].value),
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
            assert_eq!(format_scalar(text), expected, "{text}");
        }
    }

    #[test]
    fn empty_documents_are_omitted() {
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
            assert_eq!(parse_documents(text).unwrap().len(), count, "{text:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_within_a_document_is_rejected() {
        for text in ["a: 1\n\u{feff}b: 1\n", "a: |\n  x\n\u{feff}b: 1\n", "a: 1\n  \u{feff}---\n"] {
            let error = parse_documents(text).expect_err(text);
            assert!(error.problem.contains("byte order mark"), "{text:?}: {}", error.problem);
        }
    }

    #[test]
    fn texts_that_exceed_a_bound_are_rejected() {
        let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, level| {
            let previous = level - 1;
            format!("{text}a{level}: &a{level} [*a{previous}, *a{previous}, *a{previous}]\n")
        });
        let excess_documents = "--- x\n".repeat(MAX_DOCUMENTS + 1);
        let excess_nodes = "- 1\n".repeat(MAX_NODES + 1);
        let excess_brackets = format!("[{}]", "1,".repeat(MAX_BRACKETS));
        for (text, reason) in [
            (bomb, "aliases copy more"),
            ("[".repeat(100) + &"]".repeat(100), "nested deeper"),
            ("[".repeat(100_000), ""),
            ("- ".repeat(100_000), ""),
            (excess_documents, "documents"),
            (excess_nodes, "values"),
            (excess_brackets, "commas and brackets"),
            ("a: &x 1\n---\nb: *x\n".to_owned(), ""),
            ("a: &x [*x]\n".to_owned(), ""),
        ] {
            let error = parse_documents(&text).expect_err(reason);
            assert!(error.problem.contains(reason), "{reason}: {}", error.problem);
        }
    }
}
