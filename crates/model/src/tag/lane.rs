//! Defines the `spec` of a `Lane`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::condition::normalize_header_names;
use super::route::MAX_PRECEDENCE;
use super::{Lane, LaneMark, LaneRule, RuleOrigin, TagDialect, TagMatch};
use crate::definition::{
    Definition, Entries, HEADER_NAME, LABEL, ManifestBuilder, ManifestValue, Schema, TextForm,
    TextProblem, TextSchema, normalize_header_name,
};
use crate::name::{Name, ServiceName, TagRouteName};

/// The `spec` of a `Lane`.
#[derive(Debug, Definition)]
pub struct LaneSpec {
    /// Service whose workloads' sidecars add the headers to incoming requests.
    #[field(text = LABEL)]
    service: Name,
    /// Rules that add headers. The first rule that matches a request applies: by descending `precedence`, then of the oldest
    /// Lane, then by the name of the Lane, then by the order in the list.
    #[field(list(0, 1024), required)]
    rules: Vec<LaneRuleSpec>,
}

impl LaneSpec {
    /// Returns the lane with this name. Its rules are in descending precedence.
    #[must_use]
    pub fn into_lane(self, name: TagRouteName) -> Lane {
        let to_rule = |(index, rule): (u32, LaneRuleSpec)| LaneRule {
            origin: RuleOrigin { dialect: TagDialect::Lane, name: name.clone(), index },
            priority: rule.precedence,
            request_match: rule.request_match.unwrap_or_default(),
            marks: rule.marks,
        };
        let mut rules: Vec<LaneRule> = (0..).zip(self.rules).map(to_rule).collect();
        rules.sort_by_key(|rule| Reverse(rule.priority));
        let service = ServiceName { namespace: name.namespace.clone(), name: self.service };
        Lane { name, service, rules, created: 0 }
    }
}

/// A rule of a lane.
#[derive(Debug, Definition)]
#[definition(check = Self::with_valid_percentages)]
struct LaneRuleSpec {
    /// Rank of the rule. A rule with a greater number is evaluated first.
    #[field(integer(0, MAX_PRECEDENCE), default = "0")]
    precedence: i32,
    /// Conditions on the request, all of which must hold.
    #[field(name = "match", absent = "every request")]
    request_match: Option<TagMatch>,
    /// Headers to add, each for a random share of the matching requests: 1 to 100 percent in total. The remaining requests
    /// are not changed.
    #[field(list(1, 64), required)]
    marks: Vec<LaneMark>,
}

impl LaneRuleSpec {
    fn with_valid_percentages(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let total_percent: u32 = self.marks.iter().map(|mark| mark.percent).sum();
        // The reader rejects an empty list.
        if !self.marks.is_empty() && !(1..=100).contains(&total_percent) {
            let problem = format!("has {total_percent} percent in total");
            builder.reject_field("marks", problem, "use 1 to 100 in total");
            return None;
        }
        Some(self)
    }
}

/// The fields of a mark.
#[derive(Definition)]
#[definition(builds = LaneMark)]
struct LaneMarkFields {
    /// Percentage of the requests that receive the headers.
    #[field(integer(0, 100), default = "100")]
    percent: u32,
    /// Values of the headers, by name in any case. A header that the request already has is not replaced.
    headers: LaneHeaders,
}

impl LaneMarkFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> LaneMark {
        let Self { percent, headers } = self;
        LaneMark { percent, headers: headers.0 }
    }
}

/// The values of headers that a lane adds, by lower-case name; at least one.
#[derive(Debug)]
pub struct LaneHeaders(BTreeMap<String, String>);

impl LaneHeaders {
    /// Returns the values by lower-case name.
    #[must_use]
    pub fn into_headers(self) -> BTreeMap<String, String> {
        self.0
    }
}

impl Definition for LaneHeaders {
    const SCHEMA: Schema =
        Schema::Entries { key: &ADDED_HEADER, value: &Schema::Text(&ADDED_VALUE), min: 1, max: 64 };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let headers: Entries<String> = Entries::build(value, builder)?;
        let Entries(headers) = normalize_header_names(headers, builder)?;
        Some(Self(headers.into_iter().collect()))
    }
}

/// The name of a header that applications may add.
const ADDED_HEADER: TextSchema = TextSchema::new(256, |text| {
    HEADER_NAME.validate(text)?;
    match RESERVED_HEADERS.contains(&normalize_header_name(text).as_str()) {
        true => Err(TextProblem::new("is not for applications", "use a header of your own")),
        false => Ok(()),
    }
});
/// The value of a header that a lane adds.
const ADDED_VALUE: TextSchema = TextSchema::new(4096, |text| {
    let is_visible = |byte: u8| byte == b'\t' || (0x20..0x7f).contains(&byte);
    match text.len() <= 4096 && text.bytes().all(is_visible) && text.trim() == text {
        true => Ok(()),
        false => Err(TextProblem::new(
            "is not the value of a header",
            "use at most 4096 printable ASCII characters without outer blanks",
        )),
    }
})
.with_form(TextForm::Literal);
/// Headers that sidecars set themselves.
const RESERVED_HEADERS: &[&str] = &[
    ":authority",
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
