//! Checks the invariants of body parsing for arbitrary bytes.

use leno_wire::http1::{BodyDecoder, BodyLength, Malformed};

/// Checks that the segmentation of a body does not affect its content, trailers, end and validity. If a body has
/// several faults, the segmentation may affect which of them is reported. Also checks that the framing of accepted
/// chunks, including extensions, has no NUL, and CR and LF only as CR LF, so that all recipients agree on the end of a
/// line. The first byte selects the kind of body.
pub(crate) fn check(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let length = match kind {
        b'u' => BodyLength::UntilClose,
        b'e' => BodyLength::Empty,
        b'0'..=b'9' => BodyLength::ContentLength(u64::from(kind - b'0')),
        b'k' => BodyLength::ContentLength(u64::MAX),
        _ => BodyLength::Chunked,
    };
    let at_once = decode_in_steps(length, bytes, bytes.len().max(1)).ok();
    if let Some(body) = &at_once {
        let lines = body.framing.split(|byte| *byte == b'\n');
        let is_forbidden_byte = |byte: &u8| matches!(byte, 0 | b'\r');
        assert!(
            lines
                .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
                .all(|line| !line.iter().any(is_forbidden_byte))
                && !body.framing.windows(2).any(|pair| pair[0] != b'\r' && pair[1] == b'\n'),
            "framing: {}",
            body.framing.escape_ascii()
        );
    }
    for step in [1, 2, 3, 7] {
        assert_eq!(decode_in_steps(length, bytes, step).ok(), at_once, "in packets of {step}");
    }
}

/// The content, trailers, and length of the body.
#[derive(Debug, Default, PartialEq)]
struct DecodedBody {
    data: Vec<u8>,
    trailers: Option<Vec<u8>>,
    /// The bytes around the content of chunks.
    framing: Vec<u8>,
    length: usize,
}

fn decode_in_steps(
    length: BodyLength,
    bytes: &[u8],
    step: usize,
) -> Result<DecodedBody, Malformed> {
    let mut decoder = BodyDecoder::new(length);
    let mut body = DecodedBody::default();
    let mut received_end = 0;
    while received_end < bytes.len() && !decoder.is_complete() {
        received_end = bytes.len().min(received_end + step);
        loop {
            let available_bytes = &bytes[body.length..received_end];
            let piece = decoder.decode(available_bytes)?;
            assert!(piece.data.start <= piece.data.end && piece.data.end <= piece.consumed);
            assert!(piece.consumed <= available_bytes.len());
            assert_eq!(piece.complete, decoder.is_complete());
            if length == BodyLength::Chunked {
                body.framing.extend_from_slice(&available_bytes[..piece.data.start]);
                let data_end = piece.trailers.as_ref().map_or(piece.consumed, |range| range.start);
                body.framing.extend_from_slice(&available_bytes[piece.data.end..data_end]);
            }
            body.data.extend_from_slice(&available_bytes[piece.data]);
            body.trailers = piece.trailers.map(|range| available_bytes[range].to_vec());
            body.length += piece.consumed;
            if piece.complete || piece.consumed == 0 {
                break;
            }
        }
    }
    decoder.end_of_input().map(|()| body)
}
