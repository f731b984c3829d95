//! What must hold for any bytes taken as a body.

use leno_wire::http1::{BodyDecoder, BodyLength, Malformed};

/// However a body is cut into packets, its content, its trailers and its end are the same, and so
/// is whether it is refused; of several faults, another may come first. The first byte chooses the
/// kind of body.
pub(crate) fn check(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let length = match kind {
        b'u' => BodyLength::UntilClose,
        b'e' => BodyLength::Empty,
        b'0'..=b'9' => BodyLength::Known(u64::from(kind - b'0')),
        b'k' => BodyLength::Known(u64::MAX),
        _ => BodyLength::Chunked,
    };
    let whole = decode(length, bytes, bytes.len().max(1)).ok();
    for step in [1, 2, 3, 7] {
        assert_eq!(decode(length, bytes, step).ok(), whole, "in packets of {step}");
    }
}

/// Content, trailers, and how many bytes the body took.
#[derive(Debug, Default, PartialEq)]
struct Body {
    data: Vec<u8>,
    trailers: Option<Vec<u8>>,
    length: usize,
}

fn decode(length: BodyLength, bytes: &[u8], step: usize) -> Result<Body, Malformed> {
    let mut decoder = BodyDecoder::new(length);
    let mut body = Body::default();
    let mut end = 0;
    while end < bytes.len() && !decoder.is_complete() {
        end = bytes.len().min(end + step);
        loop {
            let available = &bytes[body.length..end];
            let piece = decoder.decode(available)?;
            assert!(piece.data.start <= piece.data.end && piece.data.end <= piece.consumed);
            assert!(piece.consumed <= available.len());
            assert_eq!(piece.complete, decoder.is_complete());
            body.data.extend_from_slice(&available[piece.data]);
            body.trailers = piece.trailers.map(|range| available[range].to_vec());
            body.length += piece.consumed;
            if piece.complete || piece.consumed == 0 {
                break;
            }
        }
    }
    decoder.end_of_input().map(|()| body)
}
