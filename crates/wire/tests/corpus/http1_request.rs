//! Checks the invariants of request head parsing for arbitrary bytes.

use bytes::BytesMut;
use leno_wire::http1::{
    BodyLength, FieldKind, FramingPolicy, HeaderField, ParseProgress, RequestEdits, RequestHead,
    origin_form, parse_target, write_request,
};

/// Checks that an accepted head is complete, that none of its prefixes is, and that it is forwarded without a change
/// of meaning; a second hop changes nothing.
pub(crate) fn check(bytes: &[u8]) {
    let mut head = RequestHead::default();
    let Ok(ParseProgress::Complete(length)) = head.parse(bytes) else {
        return;
    };
    let bytes = &bytes[..length];
    let mut reparsed = RequestHead::default();
    for end in [length - 1, length / 2, 1] {
        assert_eq!(reparsed.parse(&bytes[..end]), Ok(ParseProgress::Partial));
    }
    let (method, target) = (head.method.slice_in(bytes), head.target.slice_in(bytes));
    parse_target(method, target).expect("an accepted head has an accepted target");
    let origin = origin_form(method, target).expect("an accepted target has an origin form");
    assert!(method == b"CONNECT" || origin.starts_with(b"/") || *origin == *b"*");

    for framing in [FramingPolicy::Keep, FramingPolicy::OutOfBand] {
        let edits = RequestEdits { framing, ..RequestEdits::default() };
        let mut written = BytesMut::new();
        write_request(bytes, &head, &edits, &mut written);
        assert_eq!(reparsed.parse(&written), Ok(ParseProgress::Complete(written.len())));
        assert_eq!(reparsed.method.slice_in(&written), method);
        assert_eq!(reparsed.target.slice_in(&written), target);
        if framing == FramingPolicy::Keep || head.body != BodyLength::Chunked {
            assert_eq!(reparsed.body, head.body);
        }
        assert!(end_to_end(bytes, &head.fields).eq(end_to_end(&written, &reparsed.fields)));
        let mut rewritten = BytesMut::new();
        write_request(&written, &reparsed, &edits, &mut rewritten);
        assert_eq!(written, rewritten);
    }
}

/// Returns the fields that must arrive. `Host` may be added, and an unnecessary length removed.
fn end_to_end<'a>(
    bytes: &'a [u8],
    fields: &'a [HeaderField],
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    fields
        .iter()
        .filter(|field| !field.hop_by_hop)
        .filter(|field| !matches!(field.kind, FieldKind::Host | FieldKind::ContentLength))
        .map(|field| (field.name.slice_in(bytes), field.value.slice_in(bytes)))
}
