//! Parses the trace context in the headers of a received request.

use std::num::{NonZeroU64, NonZeroU128};
use std::ops::Range;

use super::hexadecimal;
use super::{PropagationFormats, SamplingDecision, SpanId, TraceContext, TraceId};

/// The headers of a received request that belong to its trace context.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceHeaders<'a> {
    traceparent: HeaderOccurrence<'a>,
    b3: HeaderOccurrence<'a>,
    b3_trace_id: HeaderOccurrence<'a>,
    b3_span_id: HeaderOccurrence<'a>,
    b3_sampled: HeaderOccurrence<'a>,
    b3_flags: HeaderOccurrence<'a>,
    has_b3_parent_span: bool,
    has_tracestate: bool,
}

/// A header that should occur once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HeaderOccurrence<'a> {
    #[default]
    Absent,
    /// The value of the only occurrence.
    One(&'a [u8]),
    /// The header occurs several times, so its value is ambiguous.
    Several,
}

impl<'a> HeaderOccurrence<'a> {
    fn add_value(&mut self, value: &'a [u8]) {
        *self = match self {
            Self::Absent => Self::One(value),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    /// Returns the value; `None` if the header is absent or ambiguous.
    fn only_value(self) -> Option<&'a [u8]> {
        match self {
            Self::One(value) => Some(value),
            Self::Absent | Self::Several => None,
        }
    }

    fn is_present(self) -> bool {
        self != Self::Absent
    }
}

impl<'a> TraceHeaders<'a> {
    /// Records a header of the request. Headers that do not belong to a trace context are ignored, most of them
    /// because of their length.
    #[inline]
    pub fn record_header(&mut self, name: &[u8], value: &'a [u8]) {
        let is_named = |expected: &[u8]| name.eq_ignore_ascii_case(expected);
        match name.len() {
            2 if is_named(b"b3") => self.b3.add_value(value),
            10 if is_named(b"x-b3-flags") => self.b3_flags.add_value(value),
            10 if is_named(b"tracestate") => self.has_tracestate = true,
            11 if is_named(b"traceparent") => self.traceparent.add_value(value),
            11 if is_named(b"x-b3-spanid") => self.b3_span_id.add_value(value),
            12 if is_named(b"x-b3-traceid") => self.b3_trace_id.add_value(value),
            12 if is_named(b"x-b3-sampled") => self.b3_sampled.add_value(value),
            17 if is_named(b"x-b3-parentspanid") => self.has_b3_parent_span = true,
            _ => {}
        }
    }

    /// Parses the trace context: `traceparent` first, then `b3`, then the `X-B3-` headers. Returns `None` if
    /// there is no valid context.
    #[must_use]
    pub fn parse_context(&self) -> Option<TraceContext> {
        let w3c = self.traceparent.only_value().and_then(parse_traceparent);
        let b3_single = || self.b3.only_value().and_then(parse_b3);
        w3c.or_else(b3_single).or_else(|| self.parse_b3_multi())
    }

    /// Returns the propagation formats of the received headers, valid or not.
    #[must_use]
    pub fn received_formats(&self) -> PropagationFormats {
        let b3_multi_headers = [self.b3_trace_id, self.b3_span_id, self.b3_sampled, self.b3_flags];
        PropagationFormats {
            w3c: self.traceparent.is_present(),
            b3: self.b3.is_present(),
            b3_multi: b3_multi_headers.into_iter().any(HeaderOccurrence::is_present),
        }
    }

    /// Returns a list of header names that includes all received headers of the context, and possibly others.
    /// `tracestate` is included unless `retains_tracestate` is true.
    pub(super) fn header_names(&self, retains_tracestate: bool) -> &'static [&'static str] {
        let formats = self.received_formats();
        let has_b3 = formats.b3 || formats.b3_multi || self.has_b3_parent_span;
        match (formats.w3c, has_b3, self.has_tracestate && !retains_tracestate) {
            (false, false, false) => &[],
            (true, false, false) => &["traceparent"],
            (_, true, false) => CONTEXT_HEADERS,
            (_, _, true) => CONTEXT_AND_STATE_HEADERS,
        }
    }

    /// Parses B3 in several headers: `X-B3-Flags: 1` is debug and overrides `X-B3-Sampled`.
    fn parse_b3_multi(&self) -> Option<TraceContext> {
        let decision = match (self.b3_flags.only_value(), self.b3_sampled.only_value()) {
            (Some(b"1"), _) => SamplingDecision::Debug,
            // Older tracers wrote words.
            (_, Some(b"1" | b"true")) => SamplingDecision::Sampled,
            (_, Some(b"0" | b"false")) => SamplingDecision::NotSampled,
            _ => SamplingDecision::Deferred,
        };
        let id_values = self.b3_trace_id.only_value().zip(self.b3_span_id.only_value());
        let ids = id_values
            .and_then(|(trace, sender)| Some((parse_b3_trace(trace)?, parse_span(sender)?)));
        if ids.is_none() && decision == SamplingDecision::Deferred {
            return None;
        }
        let has_short_trace_id =
            ids.is_some() && self.b3_trace_id.only_value().is_some_and(|id| id.len() == 16);
        Some(TraceContext { ids, decision, has_short_trace_id, is_w3c: false })
    }
}

/// Parses `version-traceid-parentid-flags` in lower case (W3C Trace Context §3.2). Additional fields of future
/// versions are ignored (§4.3).
fn parse_traceparent(value: &[u8]) -> Option<TraceContext> {
    let (prefix, suffix) = value.split_at_checked(TRACEPARENT_BYTES)?;
    let field_at = |range: Range<usize>| prefix.get(range);
    let (version, trace_digits, parent_digits, flags) =
        (field_at(0..2)?, field_at(3..35)?, field_at(36..52)?, field_at(53..55)?);
    if [2, 35, 52].iter().any(|position| prefix.get(*position) != Some(&b'-')) {
        return None;
    }
    match hexadecimal::read(version)? {
        0 if !suffix.is_empty() => return None,
        // The version ff is invalid.
        0xff => return None,
        _ if !suffix.is_empty() && !suffix.starts_with(b"-") => return None,
        _ => {}
    }
    let decision = match hexadecimal::read(flags)? & 1 {
        1 => SamplingDecision::Sampled,
        _ => SamplingDecision::NotSampled,
    };
    let ids = Some((
        TraceId(NonZeroU128::new(hexadecimal::read(trace_digits)?)?),
        parse_span(parent_digits)?,
    ));
    Some(TraceContext { ids, decision, has_short_trace_id: false, is_w3c: true })
}

/// Parses `traceid-spanid-sampled-parentid`, where the last field or the last two may be absent, or `sampled`
/// alone.
fn parse_b3(value: &[u8]) -> Option<TraceContext> {
    let parse_decision = |text: &[u8]| match text {
        b"1" => Some(SamplingDecision::Sampled),
        b"0" => Some(SamplingDecision::NotSampled),
        b"d" => Some(SamplingDecision::Debug),
        _ => None,
    };
    if let Some(decision) = parse_decision(value) {
        return Some(TraceContext {
            ids: None,
            decision,
            has_short_trace_id: false,
            is_w3c: false,
        });
    }
    let mut fields = value.split(|byte| *byte == b'-');
    let trace_digits = fields.next()?;
    let sender = parse_span(fields.next()?)?;
    let decision = match fields.next() {
        Some(text) => parse_decision(text)?,
        None => SamplingDecision::Deferred,
    };
    if let Some(parent) = fields.next() {
        parse_span(parent)?;
    }
    if fields.next().is_some() {
        return None;
    }
    let ids = Some((parse_b3_trace(trace_digits)?, sender));
    Some(TraceContext {
        ids,
        decision,
        has_short_trace_id: trace_digits.len() == 16,
        is_w3c: false,
    })
}

/// Parses a trace ID of 16 or 32 hexadecimal digits; `None` if it is not valid or zero.
fn parse_b3_trace(text: &[u8]) -> Option<TraceId> {
    let id = Some(text).filter(|text| matches!(text.len(), 16 | 32)).and_then(hexadecimal::read)?;
    Some(TraceId(NonZeroU128::new(id)?))
}

/// Parses a span ID of 16 hexadecimal digits; `None` if it is not valid or zero.
fn parse_span(text: &[u8]) -> Option<SpanId> {
    let id = Some(text).filter(|text| text.len() == 16).and_then(hexadecimal::read)?;
    Some(SpanId(NonZeroU64::new(u64::try_from(id).ok()?)?))
}

/// The headers of a trace context in all propagation formats.
const CONTEXT_HEADERS: &[&str] = &[
    "traceparent",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
];
/// The headers of a trace context in all propagation formats, and `tracestate`, which belongs to `traceparent`.
const CONTEXT_AND_STATE_HEADERS: &[&str] = &[
    "traceparent",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "tracestate",
];

/// The length of `traceparent` in bytes: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const TRACEPARENT_BYTES: usize = 55;
