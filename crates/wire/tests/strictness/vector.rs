//! Reads the strictness vectors from their file.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// One rule and its vectors.
pub(crate) struct StrictnessRule {
    pub(crate) text: String,
    pub(crate) rfc: String,
    pub(crate) vectors: Vec<Vector>,
}

/// Input bytes and their expected result.
pub(crate) struct Vector {
    pub(crate) name: String,
    /// `request`, `response` or `body`.
    pub(crate) message_kind: String,
    /// The method of the request that a response answers.
    pub(crate) request_method: String,
    pub(crate) bytes: Vec<u8>,
    /// True if the connection closes after the bytes.
    pub(crate) closes_connection: bool,
    /// The status of a sidecar, if it differs from that of the parser's verdict.
    #[allow(dead_code, reason = "the tests of the sidecar read it, through a path")]
    pub(crate) sidecar_status: Option<u64>,
    pub(crate) outcome: ExpectedOutcome,
}

#[derive(Debug)]
pub(crate) enum ExpectedOutcome {
    Rejected { label: String, status: Option<u64> },
    Accepted(Accepted),
}

/// The expected properties of an accepted message. Properties that a vector omits are not checked, except
/// `unparsed_bytes`.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) body: Option<String>,
    pub(crate) keep_alive: Option<bool>,
    pub(crate) content: Option<Vec<u8>>,
    pub(crate) trailers: bool,
    pub(crate) unparsed_bytes: usize,
}

impl PartialEq for Accepted {
    fn eq(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(left: Option<&T>, other: Option<&T>) -> bool {
            left.zip(other).is_none_or(|(left, other)| left == other)
        }
        agree(self.body.as_ref(), other.body.as_ref())
            && agree(self.keep_alive.as_ref(), other.keep_alive.as_ref())
            && agree(self.content.as_ref(), other.content.as_ref())
            && self.trailers == other.trailers
            && self.unparsed_bytes == other.unparsed_bytes
    }
}

/// Reads the whole file.
pub(crate) fn rules() -> Vec<StrictnessRule> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/http1/strictness.json");
    let text = fs::read_to_string(path).expect("the vectors are part of the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    read_list(&file["rules"]).iter().map(parse_rule).collect()
}

fn parse_rule(value: &Value) -> StrictnessRule {
    let vectors = read_list(&value["vectors"]).iter().map(parse_vector).collect();
    StrictnessRule { text: read_text(&value["rule"]), rfc: read_text(&value["rfc"]), vectors }
}

fn parse_vector(value: &Value) -> Vector {
    let outcome = match &value["accepted"] {
        Value::Null => ExpectedOutcome::Rejected {
            label: read_text(&value["refused"]),
            status: value["status"].as_u64(),
        },
        accepted => ExpectedOutcome::Accepted(Accepted {
            body: (!accepted["body"].is_null()).then(|| match &accepted["body"] {
                Value::String(kind) => kind.clone(),
                length => length.to_string(),
            }),
            keep_alive: accepted["keep_alive"].as_bool(),
            content: (!accepted["content"].is_null()).then(|| read_bytes(&accepted["content"])),
            trailers: accepted["trailers"].as_bool().unwrap_or_default(),
            unparsed_bytes: accepted["left"]
                .as_u64()
                .unwrap_or_default()
                .try_into()
                .expect("a length"),
        }),
    };
    Vector {
        name: read_text(&value["name"]),
        message_kind: read_text(&value["of"]),
        request_method: value["answers"].as_str().unwrap_or("GET").to_owned(),
        bytes: read_bytes(&value["bytes"]),
        closes_connection: value["ends"].as_bool().unwrap_or_default(),
        sidecar_status: value["sidecar"].as_u64(),
        outcome,
    }
}

fn read_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Array(pieces) => pieces.iter().flat_map(read_bytes).collect(),
        Value::Object(piece) => {
            let times = piece["times"].as_u64().and_then(|times| usize::try_from(times).ok());
            read_bytes(&piece["repeat"]).repeat(times.expect("a count"))
        }
        text => read_text(text).chars().map(|byte| u8::try_from(byte).expect("a byte")).collect(),
    }
}

fn read_list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn read_text(value: &Value) -> String {
    value.as_str().expect("a word").to_owned()
}
