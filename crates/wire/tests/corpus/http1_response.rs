//! Checks the invariants of response head parsing for arbitrary bytes.

use bytes::BytesMut;
use leno_wire::http1::{
    BodyLength, FramingPolicy, MAX_FIELDS, Malformed, ParseProgress, RequestKind, ResponseEdits,
    ResponseHead, write_response,
};

/// Checks that an accepted head is complete, that none of its prefixes is, and that it is forwarded without a change
/// of meaning, for every request method; a second hop changes nothing.
pub(crate) fn check(bytes: &[u8]) {
    for request_kind in [RequestKind::Other, RequestKind::Head, RequestKind::Connect] {
        let mut head = ResponseHead::default();
        let Ok(ParseProgress::Complete(length)) = head.parse(bytes, request_kind) else {
            continue;
        };
        let bytes = &bytes[..length];
        let mut reparsed = ResponseHead::default();
        for end in [length - 1, length / 2, 0] {
            assert_eq!(reparsed.parse(&bytes[..end], request_kind), Ok(ParseProgress::Partial));
        }
        assert!((100..=999).contains(&head.status));
        assert!(request_kind != RequestKind::Head || head.body == BodyLength::Empty);

        for framing in [FramingPolicy::Keep, FramingPolicy::OutOfBand, FramingPolicy::Chunked] {
            let edits = ResponseEdits { framing, ..ResponseEdits::default() };
            let mut written = BytesMut::new();
            write_response(bytes, &head, &edits, &mut written);
            let parsed = reparsed.parse(&written, request_kind);
            // The proxy may add one field more than the next hop accepts.
            if parsed == Err(Malformed::TooManyFields) && head.fields.len() == MAX_FIELDS {
                continue;
            }
            assert_eq!(parsed, Ok(ParseProgress::Complete(written.len())));
            assert_eq!((reparsed.status, reparsed.tunnel), (head.status, head.tunnel));
            assert_eq!(reparsed.reason.slice_in(&written), head.reason.slice_in(bytes));
            if framing == FramingPolicy::Keep || head.body == BodyLength::Empty {
                assert_eq!(reparsed.body, head.body);
            }
            let mut rewritten = BytesMut::new();
            write_response(&written, &reparsed, &edits, &mut rewritten);
            assert_eq!(written, rewritten);
        }
    }
}
