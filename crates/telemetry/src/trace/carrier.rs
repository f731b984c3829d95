//! What a request's headers say about its trace.

use std::num::{NonZeroU64, NonZeroU128};

use super::{Context, Decision, Forms, SpanId, TraceId};

/// The headers of a request that carry a context, as they were found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Carrier<'a> {
    traceparent: Found<'a>,
    b3: Found<'a>,
    trace_id: Found<'a>,
    span_id: Found<'a>,
    sampled: Found<'a>,
    flags: Found<'a>,
}

/// A field of which there should be one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Found<'a> {
    #[default]
    Nothing,
    One(&'a [u8]),
    /// Nobody can say which of them counts.
    Several,
}

impl<'a> Found<'a> {
    fn add(&mut self, value: &'a [u8]) {
        *self = match self {
            Self::Nothing => Self::One(value),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    fn only(self) -> Option<&'a [u8]> {
        match self {
            Self::One(value) => Some(value),
            Self::Nothing | Self::Several => None,
        }
    }

    fn is_there(self) -> bool {
        self != Self::Nothing
    }
}

impl<'a> Carrier<'a> {
    /// Looks at one field of a head; most are told apart by their lengths.
    #[inline]
    pub fn note(&mut self, name: &[u8], value: &'a [u8]) {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is(b"b3") => self.b3.add(value),
            10 if is(b"x-b3-flags") => self.flags.add(value),
            11 if is(b"traceparent") => self.traceparent.add(value),
            11 if is(b"x-b3-spanid") => self.span_id.add(value),
            12 if is(b"x-b3-traceid") => self.trace_id.add(value),
            12 if is(b"x-b3-sampled") => self.sampled.add(value),
            _ => {}
        }
    }

    /// What was brought; `None` when that is nothing, or nothing that can be understood.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        let w3c = self.traceparent.only().and_then(traceparent);
        let single = || self.b3.only().and_then(b3);
        w3c.or_else(single).or_else(|| self.b3_multi())
    }

    /// In which forms something was brought, understood or not.
    #[must_use]
    pub fn forms(&self) -> Forms {
        let several = [self.trace_id, self.span_id, self.sampled, self.flags];
        Forms {
            w3c: self.traceparent.is_there(),
            b3: self.b3.is_there(),
            b3_multi: several.into_iter().any(Found::is_there),
        }
    }

    /// B3 in several headers: `X-B3-Flags: 1` is debug and stands above `X-B3-Sampled`.
    fn b3_multi(&self) -> Option<Context> {
        let decision = match (self.flags.only(), self.sampled.only()) {
            (Some(b"1"), _) => Decision::Debug,
            // Old tracers wrote words.
            (_, Some(b"1" | b"true")) => Decision::Sampled,
            (_, Some(b"0" | b"false")) => Decision::NotSampled,
            _ => Decision::Deferred,
        };
        let ids = self.trace_id.only().zip(self.span_id.only());
        let ids = ids.and_then(|(trace, sender)| Some((b3_trace(trace)?, span(sender)?)));
        if ids.is_none() && decision == Decision::Deferred {
            return None;
        }
        let is_narrow = ids.is_some() && self.trace_id.only().is_some_and(|id| id.len() == 16);
        Some(Context { ids, decision, is_narrow, is_w3c: false })
    }
}

/// W3C §3.2: `version-traceid-parentid-flags`, in lower case. Of versions to come, what is known of
/// this one is read (§4.3).
fn traceparent(value: &[u8]) -> Option<Context> {
    let (known, rest) = value.split_at_checked(TRACEPARENT_BYTES)?;
    let mut parts = known.split(|byte| *byte == b'-');
    let mut part = |length| parts.next().filter(|part| part.len() == length);
    let (version, trace, parent, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    match hexadecimal(version)? {
        0 if !rest.is_empty() => return None,
        0xff => return None,
        _ if !rest.is_empty() && !rest.starts_with(b"-") => return None,
        _ => {}
    }
    let decision = match hexadecimal(flags)? & 1 {
        1 => Decision::Sampled,
        _ => Decision::NotSampled,
    };
    let ids = Some((TraceId(NonZeroU128::new(hexadecimal(trace)?)?), span(parent)?));
    Some(Context { ids, decision, is_narrow: false, is_w3c: true })
}

/// `traceid-spanid-sampled-parentid`, of which the last two may be absent; or only `sampled`.
fn b3(value: &[u8]) -> Option<Context> {
    let decided = |text: &[u8]| match text {
        b"1" => Some(Decision::Sampled),
        b"0" => Some(Decision::NotSampled),
        b"d" => Some(Decision::Debug),
        _ => None,
    };
    if let Some(decision) = decided(value) {
        return Some(Context { ids: None, decision, is_narrow: false, is_w3c: false });
    }
    let mut parts = value.split(|byte| *byte == b'-');
    let trace = parts.next()?;
    let sender = span(parts.next()?)?;
    let decision = match parts.next() {
        Some(text) => decided(text)?,
        None => Decision::Deferred,
    };
    if let Some(parent) = parts.next() {
        span(parent)?;
    }
    if parts.next().is_some() {
        return None;
    }
    let ids = Some((b3_trace(trace)?, sender));
    Some(Context { ids, decision, is_narrow: trace.len() == 16, is_w3c: false })
}

fn b3_trace(text: &[u8]) -> Option<TraceId> {
    let id = Some(text).filter(|text| matches!(text.len(), 16 | 32)).and_then(hexadecimal)?;
    Some(TraceId(NonZeroU128::new(id)?))
}

fn span(text: &[u8]) -> Option<SpanId> {
    let id = Some(text).filter(|text| text.len() == 16).and_then(hexadecimal)?;
    Some(SpanId(NonZeroU64::new(u64::try_from(id).ok()?)?))
}

/// Digits in lower case, at most 32 of them: both specifications write nothing else.
fn hexadecimal(text: &[u8]) -> Option<u128> {
    if text.is_empty() || text.len() > 32 {
        return None;
    }
    // Sixteen digits fit into a word, which is added to faster.
    let (high, low) = text.split_at(text.len().saturating_sub(16));
    let number = u128::from(word(high)?) << 64 | u128::from(word(low)?);
    Some(number)
}

/// At most sixteen digits.
fn word(text: &[u8]) -> Option<u64> {
    let mut number = 0;
    let mut is_known = true;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => {
                is_known = false;
                0
            }
        };
        number = number << 4 | u64::from(digit);
    }
    is_known.then_some(number)
}

/// Fields that say where in a trace a request is.
pub(super) const NAMES: &[&str] = &[
    "traceparent",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
];
/// The same, and what goes with the first.
pub(super) const NAMES_AND_STATE: &[&str] = &[
    "traceparent",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "tracestate",
];

/// `00-` 32 `-` 16 `-` 2.
const TRACEPARENT_BYTES: usize = 55;
