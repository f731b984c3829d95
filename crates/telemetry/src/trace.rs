//! Traces: the context that requests carry in their headers, read, continued or begun, and written.
//!
//! W3C Trace Context (<https://www.w3.org/TR/trace-context-1/>, and what level 2 adds to reading it)
//! and B3 (<https://github.com/openzipkin/b3-propagation>), in one header and in several. What a
//! context says beside (`tracestate`, baggage) passes as it is.

mod carrier;
mod hexadecimal;
mod written;

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

pub use carrier::Carrier;
pub use written::{FIELDS_MAX, Written};

/// Which trace; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub NonZeroU128);

/// Which span of a trace; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub NonZeroU64);

/// What a request brought along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The trace and the span of the sender; absent when it only says whether to sample.
    pub ids: Option<(TraceId, SpanId)>,
    /// What the sender decided.
    pub decision: Decision,
    /// It wrote the trace's id with 16 digits, as old B3 does.
    pub is_narrow: bool,
    /// What it said stands in `traceparent`.
    pub is_w3c: bool,
}

/// Whether a trace is sampled, as the sender of a context decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is.
    Sampled,
    /// It is not.
    NotSampled,
    /// Whoever comes next decides; B3 only.
    Deferred,
    /// It is, whatever samplers say; B3 only.
    Debug,
}

/// In which headers a context is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forms {
    /// `traceparent`.
    pub w3c: bool,
    /// `b3`.
    pub b3: bool,
    /// `X-B3-TraceId` and its siblings.
    pub b3_multi: bool,
}

/// One span of a trace, and how its context is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The span itself.
    pub id: SpanId,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// Whether the trace is sampled.
    pub is_sampled: bool,
    is_debug: bool,
    is_narrow: bool,
    forms: Forms,
    /// What of the request is written anew, or no more.
    replaced: &'static [&'static str],
}

impl Span {
    /// Continues what a request brought, or begins a trace. `forms`: how it is written if nothing was
    /// brought. `chance` gives random numbers; `samples` decides by one where nobody has.
    pub fn of(
        carrier: &Carrier<'_>,
        forms: Forms,
        chance: &mut impl FnMut() -> u64,
        samples: impl FnOnce(u64) -> bool,
    ) -> Self {
        let context = carrier.context();
        let (trace, parent) = match context.and_then(|context| context.ids) {
            Some((trace, parent)) => (trace, Some(parent)),
            None => (TraceId::drawn(chance), None),
        };
        let decision = context.map_or(Decision::Deferred, |context| context.decision);
        let brought = carrier.forms();
        Self {
            trace,
            id: SpanId::drawn(chance),
            parent,
            is_sampled: match decision {
                Decision::Sampled | Decision::Debug => true,
                Decision::NotSampled => false,
                Decision::Deferred => samples(chance()),
            },
            is_debug: decision == Decision::Debug,
            is_narrow: parent.is_some() && context.is_some_and(|context| context.is_narrow),
            forms: if brought == Forms::default() { forms } else { brought },
            // W3C §3.3: a state means nothing without the `traceparent` that it came with.
            replaced: carrier.names(context.is_some_and(|context| context.is_w3c)),
        }
    }

    /// The names of the fields that [`Written`] takes the place of; of those that are there, at least.
    #[must_use]
    pub fn replaces(&self) -> &'static [&'static str] {
        self.replaced
    }
}

impl TraceId {
    fn drawn(chance: &mut impl FnMut() -> u64) -> Self {
        // Level 2 of W3C's, §random-trace-id: at least the right half is random.
        let id = u128::from(chance()) << 64 | u128::from(chance());
        Self(NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    fn drawn(chance: &mut impl FnMut() -> u64) -> Self {
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
