//! Trace context propagation in request headers: parses the context of a received request, continues or starts
//! a trace, and writes the context of the forwarded request.
//!
//! The formats are W3C Trace Context (<https://www.w3.org/TR/trace-context-1/>, with the parsing rules of level
//! 2) and B3 (<https://github.com/openzipkin/b3-propagation>) in one header or in several headers. Other parts
//! of a context (`tracestate`, baggage) are forwarded unchanged.

mod hexadecimal;
mod propagated_headers;
mod received_headers;

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

pub use propagated_headers::{MAX_FIELDS, PropagatedHeaders};
pub use received_headers::TraceHeaders;

/// A trace ID; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub NonZeroU128);

/// A span ID; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub NonZeroU64);

/// The context of a received request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The IDs of the trace and of the sender's span; `None` if the context has a sampling decision only.
    pub ids: Option<(TraceId, SpanId)>,
    /// The sampling decision of the sender.
    pub decision: SamplingDecision,
    /// True if the trace ID has 16 digits (64 bits), as in older B3, and not 32.
    pub has_short_trace_id: bool,
    /// True if the context comes from `traceparent`.
    pub is_w3c: bool,
}

/// The sampling decision of the sender of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingDecision {
    /// The trace is sampled, which the receiver adopts.
    Sampled,
    /// The trace is not sampled, which the receiver adopts.
    NotSampled,
    /// The receiver decides; B3 only.
    Deferred,
    /// The trace is sampled regardless of samplers; B3 only.
    Debug,
}

/// The propagation formats of a context, each true if it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PropagationFormats {
    /// `traceparent`.
    pub w3c: bool,
    /// `b3`.
    pub b3: bool,
    /// `X-B3-TraceId` and related headers.
    pub b3_multi: bool,
}

/// A span of a trace, and the propagation of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSpan {
    /// The ID of the trace.
    pub trace: TraceId,
    /// The ID of this span.
    pub id: SpanId,
    /// The ID of the parent span; `None` for the first span of a trace.
    pub parent: Option<SpanId>,
    /// True if the trace is sampled.
    pub is_sampled: bool,
    /// True if the sender has set the debug flag of B3.
    is_debug: bool,
    /// True if the trace ID is written with 16 digits in B3, as it was received.
    has_short_trace_id: bool,
    /// The formats in which the context is forwarded.
    formats: PropagationFormats,
    /// The names of the received headers that are replaced or removed.
    replaced_headers: &'static [&'static str],
}

impl TraceSpan {
    /// Continues the trace of a request, or starts a trace. `formats`: the propagation formats of a new trace.
    /// `random` returns random numbers. `decide` makes the sampling decision from a random number if the sender
    /// has not made a decision.
    pub fn from_headers(
        headers: &TraceHeaders<'_>,
        formats: PropagationFormats,
        random: &mut impl FnMut() -> u64,
        decide: impl FnOnce(u64) -> bool,
    ) -> Self {
        let context = headers.parse_context();
        let (trace, parent) = match context.and_then(|context| context.ids) {
            Some((trace, parent)) => (trace, Some(parent)),
            None => (TraceId::from_random(random), None),
        };
        let decision = context.map_or(SamplingDecision::Deferred, |context| context.decision);
        let received_formats = headers.received_formats();
        Self {
            trace,
            id: SpanId::from_random(random),
            parent,
            is_sampled: match decision {
                SamplingDecision::Sampled | SamplingDecision::Debug => true,
                SamplingDecision::NotSampled => false,
                SamplingDecision::Deferred => decide(random()),
            },
            is_debug: decision == SamplingDecision::Debug,
            has_short_trace_id: parent.is_some()
                && context.is_some_and(|context| context.has_short_trace_id),
            formats: if received_formats == PropagationFormats::default() {
                formats
            } else {
                received_formats
            },
            // W3C Trace Context §3.3: a `tracestate` is invalid without the `traceparent` that it came with.
            replaced_headers: headers.header_names(context.is_some_and(|context| context.is_w3c)),
        }
    }

    /// Returns the names of the received headers to remove, since [`PropagatedHeaders`] replaces them. Some of
    /// the names may not be present.
    #[must_use]
    pub fn replaced_headers(&self) -> &'static [&'static str] {
        self.replaced_headers
    }
}

impl TraceId {
    fn from_random(random: &mut impl FnMut() -> u64) -> Self {
        // W3C Trace Context level 2 (random-trace-id) requires at least the right half to be random.
        let id = u128::from(random()) << 64 | u128::from(random());
        Self(NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    fn from_random(random: &mut impl FnMut() -> u64) -> Self {
        Self(NonZeroU64::new(random()).unwrap_or(NonZeroU64::MIN))
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
