//! Reads typed values from the fields of a document. A read that finds an invalid value records a diagnostic with the
//! position of the field.

mod map_fields;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use leno_model::Name;
use leno_model::definition::{LABEL, NAME, REGEX};

use crate::document::{DocumentNode, NodeValue, TextPosition};
use crate::hint::{DUPLICATE_KEY, MapEntries, Replacement};
use crate::schema_reader::read_text;
use crate::suggest::{closest_word, join_with_and, join_with_or};

/// A node with its path and the collector of diagnostics. A `read_…` method that returns `None` has recorded a
/// problem; a document with a problem is rejected as a whole.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    node: &'a DocumentNode,
    path: String,
    diagnostics: &'a DiagnosticCollector,
}

/// The fields of a map by key.
pub(crate) struct MapFields<'a> {
    /// The map itself.
    map: Field<'a>,
    /// The keys and values, without duplicates.
    entries: Vec<(&'a str, Field<'a>)>,
}

/// The problems and warnings of one document.
pub(crate) struct DiagnosticCollector {
    /// The directory that relative paths start from, if the document is in a file.
    directory: Option<PathBuf>,
    problems: RefCell<Vec<FieldDiagnostic>>,
    warnings: RefCell<Vec<FieldDiagnostic>>,
}

/// A problem or warning about one field, with its position and a hint.
pub(crate) struct FieldDiagnostic {
    pub(crate) position: TextPosition,
    /// The path of the field, such as `spec.rules[0]`; empty for the whole document.
    pub(crate) field: String,
    pub(crate) problem: String,
    pub(crate) hint: String,
    /// The replacement proposed by the hint, if any.
    pub(crate) replacement: Option<Replacement>,
}

impl DiagnosticCollector {
    /// Creates an empty collector. `file` contains the document; `None` if an API server returned the document.
    pub(crate) fn for_file(file: Option<&str>) -> Self {
        let directory =
            file.map(|file| Path::new(file).parent().unwrap_or(Path::new("")).to_owned());
        Self { directory, problems: RefCell::default(), warnings: RefCell::default() }
    }

    /// True if the document has a problem, and is therefore rejected.
    pub(crate) fn is_rejected(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// Returns the problems and the warnings.
    pub(crate) fn into_parts(self) -> (Vec<FieldDiagnostic>, Vec<FieldDiagnostic>) {
        (self.problems.into_inner(), self.warnings.into_inner())
    }
}

impl<'a> Field<'a> {
    /// Returns the root field of a document.
    pub(crate) fn root(node: &'a DocumentNode, diagnostics: &'a DiagnosticCollector) -> Self {
        let path = String::new();
        Self { node, path, diagnostics }
    }

    /// Returns the raw value.
    pub(crate) fn value(&self) -> &'a NodeValue {
        &self.node.value
    }

    /// Returns the directory that relative paths start from, if the document is in a file.
    pub(crate) fn directory(&self) -> Option<&'a Path> {
        self.diagnostics.directory.as_deref()
    }

    /// Returns the position of the value.
    pub(crate) fn position(&self) -> TextPosition {
        self.node.position
    }

    /// Records a problem with this field, so that the document is rejected. Other fields can be read nevertheless.
    pub(crate) fn reject(&self, problem: impl Into<String>, hint: impl Into<String>) {
        self.add_problem(self.new_diagnostic(problem.into(), hint.into()));
    }

    /// Records a problem with a hint that contains a replacement.
    pub(crate) fn reject_with_replacement(
        &self,
        problem: impl Into<String>,
        hint: impl Into<String>,
        replacement: Replacement,
    ) {
        let diagnostic = self.new_diagnostic(problem.into(), hint.into());
        self.add_problem(FieldDiagnostic { replacement: Some(replacement), ..diagnostic });
    }

    /// Records a problem with a text, and proposes the similar known `word` in its place.
    pub(crate) fn propose_word(&self, problem: impl Into<String>, word: &str) {
        let hint = format!("did you mean `{word}`?");
        self.reject_with_replacement(problem, hint, Replacement::Text(word.to_owned()));
    }

    /// Adds a problem, unless the document already has [`MAX_PROBLEMS`].
    fn add_problem(&self, diagnostic: FieldDiagnostic) {
        let mut problems = self.diagnostics.problems.borrow_mut();
        if problems.len() < MAX_PROBLEMS {
            problems.push(diagnostic);
        }
    }

    /// Records a warning about this field. It does not reject the document.
    pub(crate) fn warn(&self, problem: impl Into<String>, hint: impl Into<String>) {
        let diagnostic = self.new_diagnostic(problem.into(), hint.into());
        self.diagnostics.warnings.borrow_mut().push(diagnostic);
    }

    fn new_diagnostic(&self, problem: String, hint: String) -> FieldDiagnostic {
        let field = self.path.clone();
        FieldDiagnostic { position: self.node.position, field, problem, hint, replacement: None }
    }

    /// Returns the value as quoted in messages.
    pub(crate) fn quoted_value(&self) -> String {
        match &self.node.value {
            NodeValue::Null => "nothing".to_owned(),
            NodeValue::Boolean(value) => value.to_string(),
            NodeValue::Number(text) => truncate_text(text),
            NodeValue::Text(text) => format!("{:?}", truncate_text(text)),
            NodeValue::List(_) => "a list".to_owned(),
            NodeValue::Map(_) => "a map".to_owned(),
            NodeValue::MergeKey => "a merge key".to_owned(),
            NodeValue::Tagged(tag) => format!("a value tagged {}", truncate_text(tag)),
        }
    }

    /// Returns a URL as quoted in messages. User and password are omitted, because messages are logged.
    pub(crate) fn quoted_url(&self) -> String {
        let quoted = self.quoted_value();
        let Some((scheme, after_scheme)) = quoted.split_once("://") else { return quoted };
        let authority_length = after_scheme.find('/').unwrap_or(after_scheme.len());
        let (authority, path) = after_scheme.split_at(authority_length);
        match authority.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://...@{host}{path}"),
            None => quoted,
        }
    }

    /// Reads a text. For a number or boolean, the hint is to quote it.
    pub(crate) fn read_text(&self) -> Option<&'a str> {
        let quoted = self.quoted_value();
        match &self.node.value {
            NodeValue::Text(text) => return Some(text),
            NodeValue::Number(_) => self.reject_with_replacement(
                format!("{quoted} is a number, not text"),
                format!("write \"{quoted}\" in quotes"),
                Replacement::Quoted,
            ),
            NodeValue::Boolean(_) => self.reject_with_replacement(
                format!("{quoted} is a boolean, not text"),
                format!("write \"{quoted}\" in quotes"),
                Replacement::Quoted,
            ),
            _ => self.reject(format!("is {quoted}"), "use a text"),
        }
        None
    }

    /// Reads a boolean of an OSM or Sermant setting. The problem of another value is "is not a boolean", while that of
    /// [`Self::read_boolean`] is "is neither true nor false".
    pub(crate) fn read_flag(&self) -> Option<bool> {
        if let NodeValue::Boolean(value) = &self.node.value {
            return Some(*value);
        }
        self.reject(format!("{} is not a boolean", self.quoted_value()), "use true or false");
        None
    }

    /// Returns the first line of the value, counted from 1.
    pub(crate) fn line(&self) -> u32 {
        self.node.position.line
    }

    /// Reads a scalar as text: numbers and booleans as written. This is for values that are always texts, such as
    /// arguments and environment variables.
    pub(crate) fn read_literal(&self) -> Option<String> {
        let text = match &self.node.value {
            NodeValue::Number(text) => text.clone(),
            NodeValue::Boolean(value) => value.to_string(),
            _ => self.read_text()?.to_owned(),
        };
        if text.contains('\0') {
            self.reject("contains a NUL character", "remove it");
            return None;
        }
        Some(text)
    }

    /// Reads a text with `parse`. If that returns `None`, the problem is that the text is not `noun`.
    pub(crate) fn read_with<T>(
        &self,
        parse: impl FnOnce(&str) -> Option<T>,
        noun: impl Display,
        hint: impl Into<String>,
    ) -> Option<T> {
        let text = self.read_text()?;
        let parsed = parse(text);
        if parsed.is_none() {
            self.reject(format!("{} is not {noun}", self.quoted_value()), hint);
        }
        parsed
    }

    /// Returns the value if it is a text; records no problem for other values.
    pub(crate) fn plain_text(&self) -> Option<&'a str> {
        match &self.node.value {
            NodeValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Reads an integer from `min` to `max`, both included.
    pub(crate) fn read_number(&self, min: u32, max: u32) -> Option<u32> {
        u32::try_from(self.read_integer_within(min.into(), max.into())?).ok()
    }

    /// Reads a 64-bit integer from `min` to `max`, both included.
    pub(crate) fn read_integer_within(&self, min: i64, max: i64) -> Option<i64> {
        let quoted = self.quoted_value();
        let bounds = format!("use a number from {min} to {max}");
        match &self.node.value {
            NodeValue::Number(text) => match parse_integer(text) {
                Some(number) if (min..=max).contains(&number) => return Some(number),
                Some(_) => self.reject(format!("{quoted} is out of range"), bounds),
                None => self.reject(format!("{quoted} is not a whole number"), bounds),
            },
            NodeValue::Text(text) if parse_integer(text).is_some() => {
                let problem = format!("{quoted} is text, not a number");
                let hint = format!("write {text}, without quotes or a tag");
                self.reject_with_replacement(problem, hint, Replacement::Unquoted);
            }
            _ => self.reject(format!("{quoted} is not a number"), bounds),
        }
        None
    }

    /// Reads a 64-bit integer.
    pub(crate) fn read_integer(&self) -> Option<i64> {
        let number = match &self.node.value {
            NodeValue::Number(text) => parse_integer(text),
            _ => None,
        };
        if number.is_none() {
            let quoted = self.quoted_value();
            self.reject(format!("{quoted} is not a whole number"), "use one, without quotes");
        }
        number
    }

    /// Reads a boolean.
    pub(crate) fn read_boolean(&self) -> Option<bool> {
        if let NodeValue::Boolean(value) = self.node.value {
            return Some(value);
        }
        self.reject(
            format!("{} is neither true nor false", self.quoted_value()),
            "use true or false",
        );
        None
    }

    /// Returns a field for a document parsed from this field's text, with the same path and diagnostics.
    pub(crate) fn embedded_field<'b>(&self, node: &'b DocumentNode) -> Field<'b>
    where
        'a: 'b,
    {
        Field { node, path: self.path.clone(), diagnostics: self.diagnostics }
    }

    /// Reads a port number from 1 to 65535.
    pub(crate) fn read_port(&self) -> Option<u16> {
        let port = self.read_number(1, u32::from(u16::MAX))?;
        u16::try_from(port).ok()
    }

    /// Reads a name: a DNS-1123 subdomain.
    pub(crate) fn read_name(&self) -> Option<Name> {
        Name::new(&read_text(self, &NAME)?).ok()
    }

    /// Reads a name without dots (a DNS-1123 label), as required for services and namespaces, which are parts
    /// of host names.
    pub(crate) fn read_label(&self) -> Option<Name> {
        Name::new(&read_text(self, &LABEL)?).ok()
    }

    /// Reads one of the listed words and returns its value.
    pub(crate) fn read_choice<T: Clone>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.read_text()?;
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return Some(value.clone());
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let problem = format!("{} is not a supported value", self.quoted_value());
        match closest_word(text, &words) {
            Some(word) => self.propose_word(problem, word),
            None => self.reject(problem, format!("use {}", join_with_or(&words))),
        }
        None
    }

    /// Reads a regular expression that sidecars can compile.
    pub(crate) fn read_regex(&self) -> Option<String> {
        read_text(self, &REGEX)
    }

    /// Reads the elements of a list of at most `max` elements.
    pub(crate) fn read_list(&self, max: usize) -> Option<Vec<Self>> {
        let NodeValue::List(list) = &self.node.value else {
            self.reject(
                format!("is {}, not a list", self.quoted_value()),
                "write a list, each element after `- `",
            );
            return None;
        };
        if list.len() > max {
            self.reject(format!("has {} elements", list.len()), format!("use at most {max}"));
            return None;
        }
        let to_field = |(index, node)| Field {
            node,
            path: format!("{}[{index}]", self.path),
            diagnostics: self.diagnostics,
        };
        Some(list.iter().enumerate().map(to_field).collect())
    }

    /// Reads each element of a list with `read`; elements with a problem are omitted.
    pub(crate) fn read_each<T>(&self, max: usize, read: impl Fn(&Self) -> Option<T>) -> Vec<T> {
        let elements = self.read_list(max).unwrap_or_default();
        elements.iter().filter_map(read).collect()
    }

    /// Reads the entries of a map with arbitrary keys.
    pub(crate) fn read_entries(&self) -> Option<Vec<(&'a str, Self)>> {
        self.read_entries_with_hint("write a map of names and values")
    }

    /// Reads the entries of a map with arbitrary keys. `hint` is the hint if the value is not a map.
    fn read_entries_with_hint(&self, hint: &str) -> Option<Vec<(&'a str, Self)>> {
        let NodeValue::Map(map) = &self.node.value else {
            self.reject(self.not_a_map_problem(), hint);
            return None;
        };
        let mut entries: Vec<(&str, Self)> = Vec::with_capacity(map.len());
        let mut first_lines: BTreeMap<&str, u32> = BTreeMap::new();
        for (key, node) in map {
            let Some(text) = self.entry_key(key) else { continue };
            let entry = Field { node, path: self.child_path(text), diagnostics: self.diagnostics };
            match first_lines.insert(text, key.position.line) {
                Some(line) => Field { node: key, ..entry }.reject(
                    format!("{DUPLICATE_KEY}, first in line {line}"),
                    "remove one of the two",
                ),
                None => entries.push((text, entry)),
            }
        }
        Some(entries)
    }

    /// Returns the key of a map entry as text.
    fn entry_key(&self, key: &'a DocumentNode) -> Option<&'a str> {
        let text = key_text(key);
        if text.is_none() {
            let field = Field { node: key, ..self.clone() };
            field.reject(format!("{} cannot be a key", field.quoted_value()), "use a text as key");
        }
        text
    }

    /// Reads a map from texts to texts, such as labels.
    pub(crate) fn read_text_map(&self) -> BTreeMap<String, String> {
        let entries =
            self.read_entries_with_hint("write a map, such as {key: value}").unwrap_or_default();
        let read_pair =
            |(key, field): (&str, Self)| Some((key.to_owned(), field.read_text()?.to_owned()));
        entries.into_iter().filter_map(read_pair).collect()
    }

    /// Reads the fields of a map; an unknown key is a problem.
    pub(crate) fn read_fields(&self, known_keys: &[&'static str]) -> Option<MapFields<'a>> {
        self.read_fields_with_examples(known_keys, &[])
    }

    /// Reads the fields of a map; an unknown key is a problem. If the value is a scalar, the first of `examples` that
    /// is accepted in its place is proposed.
    pub(crate) fn read_fields_with_examples(
        &self,
        known_keys: &[&'static str],
        examples: &[MapEntries],
    ) -> Option<MapFields<'a>> {
        if !matches!(self.node.value, NodeValue::Map(_)) {
            self.reject_non_map(known_keys, examples);
            return None;
        }
        let fields = self.read_any_fields()?;
        fields.reject_unknown(known_keys);
        Some(fields)
    }

    /// Records the problem that the value is not a map. If it is a scalar, maps that contain it are candidates for a
    /// proposal: first `examples`, then a map with the scalar under each key.
    fn reject_non_map(&self, known_keys: &[&'static str], examples: &[MapEntries]) {
        let (problem, quoted) = (self.not_a_map_problem(), self.quoted_value());
        let hint = format!("write a map; its fields are {}", join_with_and(known_keys));
        // A truncated or escaped text cannot be repeated in a proposal.
        let is_quotable = match &self.node.value {
            NodeValue::Text(text) => {
                let is_unescaped = |c: char| !c.is_control() && !matches!(c, '"' | '\\');
                quoted == format!("{text:?}") && text.chars().all(is_unescaped)
            }
            NodeValue::Number(_) | NodeValue::Boolean(_) => true,
            NodeValue::Null
            | NodeValue::List(_)
            | NodeValue::Map(_)
            | NodeValue::MergeKey
            | NodeValue::Tagged(_) => false,
        };
        if !is_quotable {
            return self.reject(problem, hint);
        }
        let single_entry_maps = known_keys.iter().map(|key| vec![(*key, None)]);
        let candidates = examples.iter().cloned().chain(single_entry_maps).collect();
        self.reject_with_replacement(problem, hint, Replacement::Map { quoted, candidates });
    }

    fn not_a_map_problem(&self) -> String {
        format!("is {}, not a map", self.quoted_value())
    }

    /// Reads the fields of a map with any keys.
    pub(crate) fn read_any_fields(&self) -> Option<MapFields<'a>> {
        let entries = self.read_entries_with_hint("write a map of fields")?;
        Some(MapFields { entries, map: self.clone() })
    }

    /// Returns the entry of a map with this key; `None` if the value is no map or has no such key.
    pub(crate) fn child(&self, key: &str) -> Option<Self> {
        let NodeValue::Map(map) = &self.node.value else { return None };
        let (_, node) = map.iter().find(|(name, _)| key_text(name) == Some(key))?;
        Some(Field { node, path: self.child_path(key), diagnostics: self.diagnostics })
    }

    /// Returns a field for an absent key of a map. Its position is that of the map.
    pub(crate) fn absent_child(&self, key: &str) -> Self {
        Field { path: self.child_path(key), ..self.clone() }
    }

    /// Returns the element of a list at this index; `None` if the value is no list or is shorter.
    pub(crate) fn element(&self, index: usize) -> Option<Self> {
        let NodeValue::List(list) = &self.node.value else { return None };
        let path = format!("{}[{index}]", self.path);
        Some(Field { node: list.get(index)?, path, diagnostics: self.diagnostics })
    }

    /// Returns the path of this map's entry with the key.
    fn child_path(&self, key: &str) -> String {
        append_key(&self.path, key)
    }
}

/// Returns the key of a map entry as text: a number as written, a boolean as `true` or `false`.
fn key_text(key: &DocumentNode) -> Option<&str> {
    match &key.value {
        NodeValue::Text(text) | NodeValue::Number(text) => Some(text),
        NodeValue::Boolean(true) => Some("true"),
        NodeValue::Boolean(false) => Some("false"),
        _ => None,
    }
}

/// Returns the path of the entry `key` of the map at `path`: `spec.rules`, or `metadata.labels["a.b/c"]` if the key has
/// other characters than letters, digits, `_` and `-`.
pub(crate) fn append_key(path: &str, key: &str) -> String {
    let key = truncate_text(key);
    let is_unquoted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match (path.is_empty(), key.chars().all(is_unquoted)) {
        (true, _) => key,
        (false, true) => format!("{path}.{key}"),
        (false, false) => format!("{path}[{key:?}]"),
    }
}

/// The problem text of an unknown field.
pub const UNKNOWN_FIELD: &str = "is an unknown field";

/// Parses an integer of YAML's core schema.
fn parse_integer(text: &str) -> Option<i64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return i64::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix("0o") {
        Some(digits) => i64::from_str_radix(digits, 8).ok(),
        None => text.parse().ok(),
    }
}

/// Truncates a text for messages.
fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Maximum number of characters of a value quoted in a message.
const MAX_QUOTED_CHARACTERS: usize = 80;
/// Maximum number of problems reported per document; further problems are reported once the reported ones are corrected.
const MAX_PROBLEMS: usize = 20;
