//! Tests of bodies: whole, in pieces, and invalid.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;
use crate::http1::MAX_HEAD_BYTES;

#[test]
fn decodes_chunks() {
    let cases: [(&[u8], &[u8], &[u8]); 7] = [
        (b"0\r\n\r\n", b"", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", b""),
        (b"1\r\na\r\n2\r\nbc\r\n00\r\n\r\n", b"abc", b""),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789", b""),
        (b"0000000000000001\r\na\r\n0\r\n\r\n", b"a", b""),
        (b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n", b""),
        (b"1\r\na\r\n0\r\nX: y\r\nZ:\r\n\r\n", b"a", b"X: y\r\nZ:\r\n\r\n"),
    ];
    for (bytes, data, trailers) in cases {
        let trailers = (!trailers.is_empty()).then(|| trailers.to_vec());
        let expected = Ok((data.to_vec(), trailers, bytes.len()));
        let with_more = [bytes, b"GET / HTTP/1.1\r\n\r\n"].concat();
        for input in [bytes, &with_more] {
            for step in 1..=input.len() {
                let decoded = decode_all(BodyLength::Chunked, input, step);
                assert_eq!(decoded, expected, "{} by {step}", bytes.escape_ascii());
            }
        }
    }
}

#[test]
fn a_body_may_be_split_at_any_byte() {
    let bytes = b"5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n";
    for split in 0..bytes.len() {
        let mut decoder = BodyDecoder::new(BodyLength::Chunked);
        let mut data = Vec::new();
        let mut position = 0;
        for end in [split, bytes.len()] {
            loop {
                let piece = decoder.decode(&bytes[position..end]).unwrap();
                data.extend_from_slice(&bytes[position..end][piece.data.clone()]);
                position += piece.consumed;
                if piece.consumed == 0 || piece.complete {
                    break;
                }
            }
            assert_eq!(decoder.is_complete(), end == bytes.len());
        }
        assert_eq!(data, b"hello0123456789abcdef", "{split}");
        assert_eq!(position, bytes.len());
    }
}

#[test]
fn a_small_body_takes_one_call() {
    let bytes = b"5\r\nhello\r\n0\r\n\r\nrest";
    let mut decoder = BodyDecoder::new(BodyLength::Chunked);
    let piece = decoder.decode(bytes).unwrap();
    assert_eq!(piece, DecodedPiece { consumed: 15, data: 3..8, trailers: None, complete: true });
}

#[test]
fn rejects_malformed_chunks() {
    let malformed_bodies: [(&[u8], Malformed); 25] = [
        (b"\r\n", Malformed::ChunkSize),
        (b"\n", Malformed::ChunkSize),
        (b"g\r\n", Malformed::ChunkSize),
        (b"+1\r\na\r\n", Malformed::ChunkSize),
        (b"-1\r\n", Malformed::ChunkSize),
        (b" 1\r\n", Malformed::ChunkSize),
        (b"0x1\r\na", Malformed::ChunkSize),
        (b"10000000000000000\r\n", Malformed::ChunkSize),
        (b"00000000000000001\r\na", Malformed::ChunkSize),
        (b"1_0\r\n", Malformed::ChunkSize),
        (b"1 \r\na\r\n", Malformed::ChunkExtension),
        (b"1;\r\na\r\n", Malformed::ChunkExtension),
        (b"1;a=\r\na\r\n", Malformed::ChunkExtension),
        (b"1\na\r\n", Malformed::LineEnd),
        (b"1\r\r\na", Malformed::LineEnd),
        (b"1\rXa", Malformed::LineEnd),
        (b"1\r\nab\r\n", Malformed::ChunkEnd),
        (b"1\r\na\n", Malformed::ChunkEnd),
        (b"1\r\na\r0", Malformed::ChunkEnd),
        (b"1\r\na0\r\n\r\n", Malformed::ChunkEnd),
        (b"0\r\nContent-Length: 5\r\n\r\n", Malformed::TrailerField),
        (b"0\r\nX: y\r\ntransfer-encoding: chunked\r\n\r\n", Malformed::TrailerField),
        (b"0\r\nHost: b\r\n\r\n", Malformed::TrailerField),
        (b"0\r\nX: y\r\n folded\r\n\r\n", Malformed::FoldedField),
        (b"0\r\nX : y\r\n\r\n", Malformed::SpaceBeforeColon),
    ];
    for (bytes, fault) in malformed_bodies {
        for step in 1..=bytes.len() {
            let decoded = decode_all(BodyLength::Chunked, bytes, step);
            assert_eq!(decoded, Err(fault), "{} by {step}", bytes.escape_ascii());
        }
    }
}

#[test]
fn chunk_extensions_are_dropped() {
    for extension in [
        ";a",
        ";a=b",
        " ;\t a = b",
        ";a=\"b \\\" ; c\";d",
        ";a=\"\"",
        ";chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        ";\u{0}",
    ] {
        let is_valid = !extension.contains('\0');
        let bytes = format!("3{extension}\r\nabc\r\n0{extension}\r\nX: y\r\n\r\n");
        for step in 1..=bytes.len() {
            let decoded = decode_all(BodyLength::Chunked, bytes.as_bytes(), step);
            let expected = (b"abc".to_vec(), Some(b"X: y\r\n\r\n".to_vec()), bytes.len());
            let expected = if is_valid { Ok(expected) } else { Err(Malformed::ChunkExtension) };
            assert_eq!(decoded, expected, "{extension} by {step}");
        }
    }
}

#[test]
fn extensions_with_an_ambiguous_line_end_are_rejected() {
    for (extension, fault) in [
        (";a\n", Malformed::LineEnd),
        (";a\nb", Malformed::LineEnd),
        (";a\rb", Malformed::LineEnd),
        (";a=\"\n\"", Malformed::LineEnd),
        (";a=\"\r\n\"", Malformed::ChunkExtension),
        (";a=\"\\\r\n\"", Malformed::ChunkExtension),
        (";a=\"\\\n\"", Malformed::LineEnd),
        (";a=\"\0\"", Malformed::ChunkExtension),
        (";a=\"\x7f\"", Malformed::ChunkExtension),
        (";a=\"b", Malformed::ChunkExtension),
        (";a=\"b\"c", Malformed::ChunkExtension),
        (";a b", Malformed::ChunkExtension),
        (";a ", Malformed::ChunkExtension),
        (";=b", Malformed::ChunkExtension),
        (";;", Malformed::ChunkExtension),
        (";a=b,c", Malformed::ChunkExtension),
        (" ", Malformed::ChunkExtension),
        (" 1", Malformed::ChunkExtension),
    ] {
        let bytes = format!("3{extension}\r\nabc\r\n0\r\n\r\n");
        for step in 1..=bytes.len() {
            let decoded = decode_all(BodyLength::Chunked, bytes.as_bytes(), step);
            assert_eq!(decoded, Err(fault), "{} by {step}", extension.escape_debug());
        }
    }
}

#[test]
fn bounds_extensions_of_all_chunks_together() {
    let body = |extension_bytes: usize, count: usize| {
        let chunk = format!("1;{}\r\na\r\n", "x".repeat(extension_bytes - ";\r\n".len()));
        format!("{}0\r\n\r\n", chunk.repeat(count)).into_bytes()
    };
    let limit = MAX_CHUNK_EXTENSION_BYTES;
    for (extension_bytes, count) in [(limit, 1), (limit / 16, 16)] {
        for step in [1, 1000, 100_000] {
            assert!(decode_all(BodyLength::Chunked, &body(extension_bytes, count), step).is_ok());
            let decoded = decode_all(BodyLength::Chunked, &body(extension_bytes, count + 1), step);
            assert_eq!(decoded, Err(Malformed::ChunkExtension));
        }
    }
    let too_long = decode_all(BodyLength::Chunked, &body(limit + 1, 1), 1);
    assert_eq!(too_long, Err(Malformed::ChunkExtension));
}

#[test]
fn bounds_trailers() {
    let trailer_fields =
        |count: usize| ["0\r\n", &"X: y\r\n".repeat(count), "\r\n"].concat().into_bytes();
    assert!(decode_all(BodyLength::Chunked, &trailer_fields(MAX_FIELDS), 4096).is_ok());
    let too_many = decode_all(BodyLength::Chunked, &trailer_fields(MAX_FIELDS + 1), 4096);
    assert_eq!(too_many, Err(Malformed::TooManyFields));
    let long_trailers = [b"0\r\nX: ", vec![b'y'; MAX_HEAD_BYTES].as_slice()].concat();
    assert_eq!(decode_all(BodyLength::Chunked, &long_trailers, 4096), Err(Malformed::HeadTooLarge));
}

#[test]
fn a_known_length_ends_the_body() {
    for step in 1..8 {
        let decoded = decode_all(BodyLength::ContentLength(5), b"hello, world", step);
        assert_eq!(decoded, Ok((b"hello".to_vec(), None, 5)));
    }
    for length in [BodyLength::Empty, BodyLength::ContentLength(0)] {
        let mut decoder = BodyDecoder::new(length);
        assert!(decoder.is_complete());
        let piece = decoder.decode(b"next").unwrap();
        assert_eq!((piece.consumed, piece.complete), (0, true));
    }
    let mut decoder = BodyDecoder::new(BodyLength::ContentLength(u64::MAX));
    assert_eq!(decoder.decode(b"abc").unwrap().consumed, 3);
    assert!(!decoder.is_complete());
}

#[test]
fn only_a_body_until_close_ends_with_the_connection() {
    let mut decoder = BodyDecoder::new(BodyLength::UntilClose);
    let piece = decoder.decode(b"abc").unwrap();
    assert_eq!((piece.consumed, piece.data, piece.complete), (3, 0..3, false));
    assert_eq!(decoder.end_of_input(), Ok(()));
    assert!(decoder.is_complete());

    let truncated: [(BodyLength, &[u8]); 6] = [
        (BodyLength::ContentLength(4), b"abc"),
        (BodyLength::Chunked, b""),
        (BodyLength::Chunked, b"3\r\nab"),
        (BodyLength::Chunked, b"3\r\nabc\r\n"),
        (BodyLength::Chunked, b"0\r\n"),
        (BodyLength::Chunked, b"0\r\nX: y\r\n"),
    ];
    for (length, bytes) in truncated {
        let mut decoder = BodyDecoder::new(length);
        assert!(decoder.decode(bytes).is_ok());
        assert_eq!(decoder.end_of_input(), Err(Malformed::BodyTruncated));
    }
    assert_eq!(BodyDecoder::new(BodyLength::Empty).end_of_input(), Ok(()));
}

#[test]
fn writes_chunk_sizes() {
    let cases: [(usize, &[u8]); 7] = [
        (0, b""),
        (1, b"1\r\n"),
        (15, b"f\r\n"),
        (16, b"10\r\n"),
        (31, b"1f\r\n"),
        (0x0123_4567_89ab_cdef, b"123456789abcdef\r\n"),
        (usize::MAX, b"ffffffffffffffff\r\n"),
    ];
    for (length, expected) in cases {
        let mut output = BytesMut::new();
        write_chunk_size(length, &mut output);
        assert_eq!(output.as_ref(), expected);
    }
}

proptest! {
    #[test]
    fn written_chunks_are_decoded_unchanged(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8),
        step in 1_usize..64,
    ) {
        let mut output = BytesMut::new();
        for chunk in &chunks {
            write_chunk_size(chunk.len(), &mut output);
            output.extend_from_slice(chunk);
            output.extend_from_slice(CHUNK_END);
        }
        output.extend_from_slice(LAST_CHUNK);
        let decoded = decode_all(BodyLength::Chunked, &output, step);
        prop_assert_eq!(decoded, Ok((chunks.concat(), None, output.len())));
    }
}

type Decoded = (Vec<u8>, Option<Vec<u8>>, usize);

/// Passes `bytes` in packets of `step`, keeping unconsumed bytes as a connection does.
fn decode_all(length: BodyLength, bytes: &[u8], step: usize) -> Result<Decoded, Malformed> {
    let mut decoder = BodyDecoder::new(length);
    let (mut data, mut trailers, mut position, mut end) = (Vec::new(), None, 0, 0);
    while !decoder.is_complete() {
        end = bytes.len().min(end + step);
        loop {
            let available = &bytes[position..end];
            let piece = decoder.decode(available)?;
            assert!(piece.data.end <= piece.consumed && piece.consumed <= available.len());
            data.extend_from_slice(&available[piece.data]);
            trailers = trailers.or(piece.trailers.map(|range| available[range].to_vec()));
            position += piece.consumed;
            assert_eq!(piece.complete, decoder.is_complete());
            if piece.complete || piece.consumed == 0 {
                break;
            }
        }
        if end == bytes.len() && !decoder.is_complete() {
            decoder.end_of_input()?;
        }
    }
    Ok((data, trailers, position))
}
