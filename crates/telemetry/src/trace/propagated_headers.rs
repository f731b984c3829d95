//! Writes the trace context headers of a forwarded request, without allocation.

use super::{SpanId, TraceSpan, hexadecimal};

/// The trace context headers of a forwarded request.
#[derive(Debug, Clone, Copy)]
pub struct PropagatedHeaders {
    span: TraceSpan,
    trace_digits: [u8; 32],
    span_digits: [u8; 16],
    parent_digits: [u8; 16],
    /// `00-TRACE-SPAN-FLAGS`.
    traceparent: [u8; 55],
    /// `TRACE-SPAN-DECISION-PARENT`, with 32, 16, 1 and 16 characters.
    b3: [u8; 68],
}

impl PropagatedHeaders {
    /// Writes the headers with which the receiver continues the trace of `span`.
    #[must_use]
    pub fn from_span(span: &TraceSpan) -> Self {
        let mut headers = Self {
            span: *span,
            trace_digits: [0; 32],
            span_digits: [0; 16],
            parent_digits: [0; 16],
            traceparent: *b"00-00000000000000000000000000000000-0000000000000000-00",
            b3: [b'-'; 68],
        };
        hexadecimal::write(&span.trace.0.get().to_be_bytes(), &mut headers.trace_digits);
        hexadecimal::write(&span.id.0.get().to_be_bytes(), &mut headers.span_digits);
        if span.formats.b3 || span.formats.b3_multi {
            let parent = span.parent.map_or(0, |SpanId(id)| id.get());
            hexadecimal::write(&parent.to_be_bytes(), &mut headers.parent_digits);
        }
        if span.formats.w3c {
            headers.traceparent[3..35].copy_from_slice(&headers.trace_digits);
            headers.traceparent[36..52].copy_from_slice(&headers.span_digits);
            if span.is_sampled {
                headers.traceparent[54] = b'1';
            }
        }
        if span.formats.b3 {
            headers.b3[..32].copy_from_slice(&headers.trace_digits);
            headers.b3[33..49].copy_from_slice(&headers.span_digits);
            headers.b3[50] = match (span.is_debug, span.is_sampled) {
                (true, _) => b'd',
                (false, true) => b'1',
                (false, false) => b'0',
            };
            headers.b3[52..].copy_from_slice(&headers.parent_digits);
        }
        headers
    }

    /// Returns the names and values of the headers; at most [`MAX_FIELDS`].
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let TraceSpan { formats, parent, is_sampled, is_debug, has_short_trace_id, .. } = self.span;
        // A short trace ID consists of the last 16 of 32 digits. Without a parent, `b3` ends after the decision.
        let start = if has_short_trace_id { 16 } else { 0 };
        let end = if parent.is_some() { 68 } else { 51 };
        let sampled: &[u8] = if is_sampled { b"1" } else { b"0" };
        let has_b3_multi = formats.b3_multi;
        [
            formats.w3c.then_some(("traceparent", &self.traceparent[..])),
            formats.b3.then_some(("b3", &self.b3[start..end])),
            has_b3_multi.then_some(("x-b3-traceid", &self.trace_digits[start..])),
            has_b3_multi.then_some(("x-b3-spanid", &self.span_digits[..])),
            (has_b3_multi && parent.is_some())
                .then_some(("x-b3-parentspanid", &self.parent_digits[..])),
            // The debug flag implies the sampling decision, so only one of them is written.
            has_b3_multi.then_some(match is_debug {
                true => ("x-b3-flags", &b"1"[..]),
                false => ("x-b3-sampled", sampled),
            }),
        ]
        .into_iter()
        .flatten()
    }
}

/// The maximum number of headers of a trace context.
pub const MAX_FIELDS: usize = 6;
