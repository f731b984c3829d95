//! Invariants of response head parsing for arbitrary bytes.

use bytes::BytesMut;
use leno_wire::http1::{
    BodyLength, FIELDS_MAX, Framing, Malformed, Parsed, RequestKind, ResponseEdits, ResponseHead,
    write_response,
};

/// An accepted head is complete, was not complete before, and is forwarded without a change of meaning, for
/// every request method; a second hop changes nothing.
pub(crate) fn check(bytes: &[u8]) {
    for answers in [RequestKind::Other, RequestKind::Head, RequestKind::Connect] {
        let mut head = ResponseHead::default();
        let Ok(Parsed::Complete(length)) = head.parse(bytes, answers) else {
            continue;
        };
        let bytes = &bytes[..length];
        let mut again = ResponseHead::default();
        for end in [length - 1, length / 2, 0] {
            assert_eq!(again.parse(&bytes[..end], answers), Ok(Parsed::Partial));
        }
        assert!((100..=999).contains(&head.status));
        assert!(answers != RequestKind::Head || head.body == BodyLength::Empty);

        for framing in [Framing::Keep, Framing::Outside, Framing::Chunked] {
            let edits = ResponseEdits { framing, ..ResponseEdits::default() };
            let mut written = BytesMut::new();
            write_response(bytes, &head, &edits, &mut written);
            let parsed = again.parse(&written, answers);
            // The proxy may add one field more than the next hop accepts.
            if parsed == Err(Malformed::TooManyFields) && head.fields.len() == FIELDS_MAX {
                continue;
            }
            assert_eq!(parsed, Ok(Parsed::Complete(written.len())));
            assert_eq!((again.status, again.tunnel), (head.status, head.tunnel));
            assert_eq!(again.reason.slice_in(&written), head.reason.slice_in(bytes));
            if framing == Framing::Keep || head.body == BodyLength::Empty {
                assert_eq!(again.body, head.body);
            }
            let mut twice = BytesMut::new();
            write_response(&written, &again, &edits, &mut twice);
            assert_eq!(written, twice);
        }
    }
}
