//! Defines the conditions on requests and callers in a `TagRoute` or `Lane`. A test of a value is an operator with its
//! operand, such as `{prefix: beta}`, or a text that the value equals.

use super::{FieldTest, NumberRelation, TagMatch, TextRelation, ValueTest};
use crate::definition::{
    Definition, Entries, HEADER_NAME, ManifestBuilder, ManifestValue, REGEX, Schema, TextProblem,
    TextSchema, normalize_header_name,
};
use crate::literal_path::LITERAL_PATH;
use crate::request_match::{PARAMETER_NAME, PathMatch};

/// The fields of a match.
#[derive(Definition)]
#[definition(builds = TagMatch)]
struct TagMatchFields {
    /// Condition on the path, without the query.
    #[field(absent = "any path")]
    path: Option<PathCondition>,
    /// Methods, one of which the request must have.
    #[field(list(0, MAX_TESTS), text = METHOD, absent = "any method")]
    methods: Vec<String>,
    /// Tests of headers, by name in any case; `host` is the host of the request. The values of a repeated header are joined
    /// by `, `.
    #[field(entries(0, MAX_TESTS), key = HEADER_NAME, absent = "any headers")]
    headers: Entries<ValueTest>,
    /// Tests of query parameters, by name. Of a repeated parameter the first value is tested, percent-decoded.
    #[field(entries(0, MAX_TESTS), key = PARAMETER_NAME, absent = "any parameters")]
    query_params: Entries<ValueTest>,
    /// Tests of the cookies of the first `Cookie` header, by name.
    #[field(entries(0, MAX_TESTS), key = COOKIE_NAME, absent = "any cookies")]
    cookies: Entries<ValueTest>,
}

impl TagMatchFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<TagMatch> {
        let headers = builder
            .build_below("headers", |builder| normalize_header_names(self.headers, builder))?;
        Some(TagMatch {
            path: self.path.map_or(PathMatch::Any, PathMatch::from),
            methods: self.methods,
            headers: into_field_tests(headers),
            query: into_field_tests(self.query_params),
            cookies: into_field_tests(self.cookies),
            ..TagMatch::default()
        })
    }
}

/// Returns the current map from headers, with names in lower case. Rejects a name that differs from a previous one only in
/// case.
pub(super) fn normalize_header_names<T>(
    entries: Entries<T>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Entries<T>> {
    let mut headers: Vec<(String, T)> = Vec::new();
    let mut has_repetition = false;
    for (key, value) in entries.0 {
        let name = normalize_header_name(&key);
        if headers.iter().any(|(previous_name, _)| *previous_name == name) {
            builder.reject_entry(&key, "is the name of another header", "remove one of the two");
            has_repetition = true;
        }
        headers.push((name, value));
    }
    (!has_repetition).then_some(Entries(headers))
}

/// Returns tests in the order of the manifest.
pub(super) fn into_field_tests(tests: Entries<ValueTest>) -> Vec<FieldTest> {
    tests.0.into_iter().map(|(name, test)| FieldTest { name, test }).collect()
}

/// A condition on a path.
#[derive(Definition)]
#[definition(noun = "condition")]
enum PathCondition {
    /// Whole path.
    #[field(text = LITERAL_PATH)]
    Exact(String),
    /// Prefix of whole path elements. A trailing slash has no effect.
    #[field(text = LITERAL_PATH)]
    Prefix(String),
    /// Regular expression for the whole path.
    #[field(text = REGEX)]
    Regex(String),
}

impl From<PathCondition> for PathMatch {
    fn from(condition: PathCondition) -> Self {
        match condition {
            PathCondition::Exact(path) => Self::Exact(path),
            PathCondition::Prefix(path) => Self::from_prefix(path),
            PathCondition::Regex(expression) => Self::Regex(expression),
        }
    }
}

/// A text is the operand of `exact`.
impl Definition for ValueTest {
    const SCHEMA: Schema =
        Schema::Either { scalar: &Schema::Text(&OPERAND), collection: &ValueTestFields::SCHEMA };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Text(text) => Some(Operator::Exact(text).into_test(false)),
            value => ValueTestFields::build(value, builder)?.build_test(builder),
        }
    }
}

/// The fields of a test.
#[derive(Definition)]
struct ValueTestFields {
    /// The operator.
    #[field(include)]
    operator: Operator,
    /// True if the case of texts is ignored.
    #[field(absent = "`false`")]
    ignore_case: Option<bool>,
}

/// The operator of a test, with its operand. An absent value passes only `present: false`.
#[derive(Definition)]
#[definition(noun = "operator")]
enum Operator {
    /// Text that the value equals.
    #[field(text = OPERAND)]
    Exact(String),
    /// Text that the value begins with.
    #[field(text = OPERAND)]
    Prefix(String),
    /// Regular expression for the whole value.
    #[field(text = REGEX)]
    Regex(String),
    /// Texts, one of which the value equals.
    #[field(list(1, MAX_TESTS), text = OPERAND)]
    In(Vec<String>),
    /// Text that the value does not equal.
    #[field(text = OPERAND)]
    Not(String),
    /// Number that the value is greater than.
    Above(i64),
    /// Number that the value is greater than or equal to.
    AtLeast(i64),
    /// Number that the value is less than.
    Below(i64),
    /// Number that the value is less than or equal to.
    AtMost(i64),
    /// True if the value must be present, false if it must be absent.
    Present(bool),
}

impl ValueTestFields {
    fn build_test(self, builder: &mut ManifestBuilder<'_>) -> Option<ValueTest> {
        let test = self.operator.into_test(self.ignore_case.unwrap_or(false));
        if matches!(test, ValueTest::Number { .. }) && self.ignore_case.is_some() {
            builder.reject_field("ignoreCase", "is not supported for numbers", "remove it");
            return None;
        }
        Some(test)
    }
}

impl Operator {
    /// Returns the test. `ignore_case` has no effect on numbers.
    fn into_test(self, ignore_case: bool) -> ValueTest {
        let text_test = |relation, texts| ValueTest::Text { relation, texts, ignore_case };
        let number_test = |relation, bound| ValueTest::Number { relation, bound };
        match self {
            Self::Exact(text) => text_test(TextRelation::Exact, vec![text]),
            Self::Prefix(text) => text_test(TextRelation::Prefix, vec![text]),
            Self::Regex(text) => ValueTest::Text {
                relation: TextRelation::Regex,
                // The flag `i` of the expression ignores the case.
                texts: vec![if ignore_case { format!("(?i:{text})") } else { text }],
                ignore_case: false,
            },
            Self::In(texts) => text_test(TextRelation::In, texts),
            Self::Not(text) => text_test(TextRelation::NotEqual, vec![text]),
            Self::Above(bound) => number_test(NumberRelation::GreaterThan, bound),
            Self::AtLeast(bound) => number_test(NumberRelation::AtLeast, bound),
            Self::Below(bound) => number_test(NumberRelation::LessThan, bound),
            Self::AtMost(bound) => number_test(NumberRelation::AtMost, bound),
            Self::Present(true) => ValueTest::Present,
            Self::Present(false) => ValueTest::Absent,
        }
    }
}

/// A method in capital letters.
const METHOD: TextSchema = TextSchema::new(32, |text| {
    let is_method_byte = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    match (1..=32).contains(&text.len()) && text.bytes().all(is_method_byte) {
        true => Ok(()),
        false => Err(TextProblem::new(
            "is not a method",
            "use one such as GET; methods are written in capital letters",
        )),
    }
})
.with_pattern("^[A-Z-]+$");
/// The name of a cookie.
pub(super) const COOKIE_NAME: TextSchema =
    TextSchema::new(256, |text| match (1..=256).contains(&text.len()) {
        true => Ok(()),
        false => Err(TextProblem::new("is not the name of a cookie", "use 1 to 256 bytes")),
    });
/// The name of a tag, which is a label of workloads: at most a prefix of 253 bytes, a slash and 63 bytes.
pub(super) const TAG_NAME: TextSchema =
    TextSchema::new(317, |text| match (1..=317).contains(&text.len()) {
        true => Ok(()),
        false => Err(TextProblem::new("is not the name of a tag", "use 1 to 317 bytes")),
    });
/// A text that values are compared with.
const OPERAND: TextSchema = TextSchema::bounded(4096);
/// Maximum number of tests, methods or texts in a list or map.
pub(super) const MAX_TESTS: usize = 256;
