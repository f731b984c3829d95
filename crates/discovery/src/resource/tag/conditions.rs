//! Converts the request and caller conditions of tag rules to and from the wire.

use leno_model::{
    CallerMatch, FieldTest, NumberRelation, Quorum, RepeatedHeader, RequestMatch, TagMatch,
    TextRelation, ValueTest,
};

use crate::proto;
use crate::resource::field::{InvalidField, convert_each, parse_name};
use crate::resource::request;

/// Encodes caller conditions; `None` if all callers match.
pub(super) fn callers_to_wire(from: &CallerMatch) -> Option<proto::CallerMatch> {
    (*from != CallerMatch::default()).then(|| proto::CallerMatch {
        service: from.service.as_ref().map(ToString::to_string),
        tags: from.tags.iter().map(test_to_wire).collect(),
        one_is_enough: from.quorum == Quorum::Any,
    })
}

pub(super) fn callers_from_wire(
    wire: Option<proto::CallerMatch>,
) -> Result<CallerMatch, InvalidField> {
    let Some(wire) = wire else {
        return Ok(CallerMatch::default());
    };
    let service = wire.service.map(|service| parse_name("from.service", &service)).transpose()?;
    let tags = convert_each("tags", wire.tags, test_from_wire)
        .map_err(|invalid| invalid.with_parent("from"))?;
    Ok(CallerMatch { service, tags, quorum: quorum_from_wire(wire.one_is_enough) })
}

fn quorum_from_wire(one_is_enough: bool) -> Quorum {
    if one_is_enough { Quorum::Any } else { Quorum::All }
}

/// Encodes request conditions; `None` if all requests match.
pub(super) fn match_to_wire(matches: &TagMatch) -> Option<proto::TagMatch> {
    let request = RequestMatch {
        path: matches.path.clone(),
        methods: matches.methods.clone(),
        ..RequestMatch::default()
    };
    (*matches != TagMatch::default()).then(|| proto::TagMatch {
        request: (request != RequestMatch::default()).then(|| request::to_wire(&request)),
        headers: matches.headers.iter().map(test_to_wire).collect(),
        one_is_enough: matches.quorum == Quorum::Any,
        first_value: matches.repeated == RepeatedHeader::First,
        query: matches.query.iter().map(test_to_wire).collect(),
        cookies: matches.cookies.iter().map(test_to_wire).collect(),
        stem: matches.stem.clone(),
    })
}

pub(super) fn match_from_wire(wire: Option<proto::TagMatch>) -> Result<TagMatch, InvalidField> {
    let Some(wire) = wire else {
        return Ok(TagMatch::default());
    };
    let request = wire.request.map(request::from_wire).transpose();
    let request =
        request.map_err(|invalid| invalid.with_parent("matches.request"))?.unwrap_or_default();
    if !request.headers.is_empty() || !request.query.is_empty() {
        return Err(InvalidField::new("matches.request", "has headers or parameters of its own"));
    }
    let parse_tests = |field: &str, wire| {
        convert_each(field, wire, test_from_wire).map_err(|invalid| invalid.with_parent("matches"))
    };
    Ok(TagMatch {
        path: request.path,
        methods: request.methods,
        headers: parse_tests("headers", wire.headers)?,
        quorum: quorum_from_wire(wire.one_is_enough),
        repeated: if wire.first_value { RepeatedHeader::First } else { RepeatedHeader::Joined },
        query: parse_tests("query", wire.query)?,
        cookies: parse_tests("cookies", wire.cookies)?,
        stem: wire.stem,
    })
}

fn test_to_wire(test: &FieldTest) -> proto::FieldTest {
    use proto::field_test::Test;
    let wire = match &test.test {
        ValueTest::Present => Test::Present(true),
        ValueTest::Absent => Test::Present(false),
        ValueTest::Never => Test::Never(proto::Nothing {}),
        ValueTest::Text { relation, texts, ignore_case } => Test::Text(proto::TextTest {
            relation: text_relation_to_wire(*relation),
            texts: texts.clone(),
            ignore_case: *ignore_case,
        }),
        ValueTest::Number { relation, bound } => Test::Number(proto::NumberTest {
            relation: number_relation_to_wire(*relation),
            bound: *bound,
        }),
    };
    proto::FieldTest { name: test.name.clone(), test: Some(wire) }
}

fn test_from_wire(wire: proto::FieldTest) -> Result<FieldTest, InvalidField> {
    use proto::field_test::Test;
    let test = match wire.test {
        None => return Err(InvalidField::new("test", "is missing, or unknown to this version")),
        Some(Test::Present(true)) => ValueTest::Present,
        Some(Test::Present(false)) => ValueTest::Absent,
        Some(Test::Never(proto::Nothing {})) => ValueTest::Never,
        Some(Test::Text(text)) => ValueTest::Text {
            relation: text_relation_from_wire(text.relation)?,
            texts: text.texts,
            ignore_case: text.ignore_case,
        },
        Some(Test::Number(number)) => ValueTest::Number {
            relation: number_relation_from_wire(number.relation)?,
            bound: number.bound,
        },
    };
    Ok(FieldTest { name: wire.name, test })
}

fn text_relation_to_wire(relation: TextRelation) -> i32 {
    let wire = match relation {
        TextRelation::Exact => proto::TextRelation::Exact,
        TextRelation::Prefix => proto::TextRelation::Prefix,
        TextRelation::Regex => proto::TextRelation::Regex,
        TextRelation::In => proto::TextRelation::In,
        TextRelation::NotEqual => proto::TextRelation::NotEqual,
    };
    wire.into()
}

fn text_relation_from_wire(number: i32) -> Result<TextRelation, InvalidField> {
    match proto::TextRelation::try_from(number) {
        Ok(proto::TextRelation::Exact) => Ok(TextRelation::Exact),
        Ok(proto::TextRelation::Prefix) => Ok(TextRelation::Prefix),
        Ok(proto::TextRelation::Regex) => Ok(TextRelation::Regex),
        Ok(proto::TextRelation::In) => Ok(TextRelation::In),
        Ok(proto::TextRelation::NotEqual) => Ok(TextRelation::NotEqual),
        Ok(proto::TextRelation::Unspecified) | Err(_) => Err(unknown_relation_error(number)),
    }
}

fn number_relation_to_wire(relation: NumberRelation) -> i32 {
    let wire = match relation {
        NumberRelation::GreaterThan => proto::NumberRelation::GreaterThan,
        NumberRelation::AtLeast => proto::NumberRelation::AtLeast,
        NumberRelation::LessThan => proto::NumberRelation::LessThan,
        NumberRelation::AtMost => proto::NumberRelation::AtMost,
    };
    wire.into()
}

fn number_relation_from_wire(number: i32) -> Result<NumberRelation, InvalidField> {
    match proto::NumberRelation::try_from(number) {
        Ok(proto::NumberRelation::GreaterThan) => Ok(NumberRelation::GreaterThan),
        Ok(proto::NumberRelation::AtLeast) => Ok(NumberRelation::AtLeast),
        Ok(proto::NumberRelation::LessThan) => Ok(NumberRelation::LessThan),
        Ok(proto::NumberRelation::AtMost) => Ok(NumberRelation::AtMost),
        Ok(proto::NumberRelation::Unspecified) | Err(_) => Err(unknown_relation_error(number)),
    }
}

fn unknown_relation_error(number: i32) -> InvalidField {
    InvalidField::new("relation", format!("{number} is not a comparison of this version"))
}
