//! Trace context propagation in request headers: parsing, continuing or starting a trace, and writing.
//!
//! W3C Trace Context (<https://www.w3.org/TR/trace-context-1/>, with the parsing rules of level 2) and B3
//! (<https://github.com/openzipkin/b3-propagation>), in one header and in several. Other parts of a context
//! (`tracestate`, baggage) are forwarded unchanged.

mod carrier;
mod hexadecimal;
mod written;

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

pub use carrier::Carrier;
pub use written::{FIELDS_MAX, Written};

/// A trace ID; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub NonZeroU128);

/// A span ID; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub NonZeroU64);

/// The context of a received request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The trace and the span of the sender; absent if the context has a sampling decision only.
    pub ids: Option<(TraceId, SpanId)>,
    /// The sampling decision of the sender.
    pub decision: Decision,
    /// True if the trace ID has 16 digits, as in older B3.
    pub is_narrow: bool,
    /// True if the context comes from `traceparent`.
    pub is_w3c: bool,
}

/// The sampling decision of the sender of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The trace is sampled.
    Sampled,
    /// The trace is not sampled.
    NotSampled,
    /// The receiver decides; B3 only.
    Deferred,
    /// The trace is sampled regardless of samplers; B3 only.
    Debug,
}

/// The propagation formats of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forms {
    /// `traceparent`.
    pub w3c: bool,
    /// `b3`.
    pub b3: bool,
    /// `X-B3-TraceId` and related headers.
    pub b3_multi: bool,
}

/// A span of a trace, and the propagation of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The span itself.
    pub id: SpanId,
    /// The parent span.
    pub parent: Option<SpanId>,
    /// True if the trace is sampled.
    pub is_sampled: bool,
    is_debug: bool,
    is_narrow: bool,
    forms: Forms,
    /// The received headers that are replaced or removed.
    replaced: &'static [&'static str],
}

impl Span {
    /// Continues the trace of a request, or starts one. `forms`: the propagation format of a new trace.
    /// `chance` returns random numbers; `samples` makes the sampling decision from one if the sender has made
    /// none.
    pub fn from_carrier(
        carrier: &Carrier<'_>,
        forms: Forms,
        chance: &mut impl FnMut() -> u64,
        samples: impl FnOnce(u64) -> bool,
    ) -> Self {
        let context = carrier.parse_context();
        let (trace, parent) = match context.and_then(|context| context.ids) {
            Some((trace, parent)) => (trace, Some(parent)),
            None => (TraceId::from_random(chance), None),
        };
        let decision = context.map_or(Decision::Deferred, |context| context.decision);
        let brought = carrier.received_forms();
        Self {
            trace,
            id: SpanId::from_random(chance),
            parent,
            is_sampled: match decision {
                Decision::Sampled | Decision::Debug => true,
                Decision::NotSampled => false,
                Decision::Deferred => samples(chance()),
            },
            is_debug: decision == Decision::Debug,
            is_narrow: parent.is_some() && context.is_some_and(|context| context.is_narrow),
            forms: if brought == Forms::default() { forms } else { brought },
            // W3C §3.3: a `tracestate` is invalid without the `traceparent` that it came with.
            replaced: carrier.header_names(context.is_some_and(|context| context.is_w3c)),
        }
    }

    /// The names of the headers that [`Written`] replaces; at least of those that are present.
    #[must_use]
    pub fn replaced_headers(&self) -> &'static [&'static str] {
        self.replaced
    }
}

impl TraceId {
    fn from_random(chance: &mut impl FnMut() -> u64) -> Self {
        // W3C level 2, §random-trace-id: at least the right half is random.
        let id = u128::from(chance()) << 64 | u128::from(chance());
        Self(NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    fn from_random(chance: &mut impl FnMut() -> u64) -> Self {
        Self(NonZeroU64::new(chance()).unwrap_or(NonZeroU64::MIN))
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests;
