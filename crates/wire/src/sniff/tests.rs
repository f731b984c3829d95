//! Table tests of protocol detection.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;

#[test]
fn detects_a_protocol_from_the_fewest_bytes() {
    // The deciding bytes, and the decision; every shorter prefix needs more bytes.
    let cases: [(&[u8], DetectedProtocol); 27] = [
        (b"GET /", DetectedProtocol::Http1),
        (b"POST /", DetectedProtocol::Http1),
        (b"OPTIONS * HTTP/1.", DetectedProtocol::Http1),
        (b"GET http://", DetectedProtocol::Http1),
        (b"CONNECT a.b:443 HTTP/1.", DetectedProtocol::Http1),
        (b"PROPFIND /x HTTP/1.", DetectedProtocol::Http1),
        (b"M-SEARCH * HTTP/1.", DetectedProtocol::Http1),
        (b"PRI * HTTP/2.0", DetectedProtocol::Http2),
        (b"PRI * HTTP/1.", DetectedProtocol::Http1),
        (b"\x16\x03\x01\x02\x00\x01", DetectedProtocol::Tls),
        (b"\x16\x03\x2c\x00\xb9\x01", DetectedProtocol::Tls),
        (b"\x16\x03\x01\x02\x00\x02", DetectedProtocol::Opaque),
        (b"\x16\x02", DetectedProtocol::Opaque),
        (b"\x16\x03\x01\x41", DetectedProtocol::Opaque),
        (b"PING\r", DetectedProtocol::Opaque),
        (b"*1\r", DetectedProtocol::Opaque),
        (b"get key\r", DetectedProtocol::Opaque),
        (b"GET key\r", DetectedProtocol::Opaque),
        (b"EHLO a.b\r", DetectedProtocol::Opaque),
        (b"a b c", DetectedProtocol::Opaque),
        (b"\r\nGET /", DetectedProtocol::Http1),
        (b"\r\n\n\r\nPROPFIND /x HTTP/1.", DetectedProtocol::Http1),
        (b"\r\n\0", DetectedProtocol::Opaque),
        (b"\r\n\x16", DetectedProtocol::Opaque),
        (b"\0", DetectedProtocol::Opaque),
        (b" ", DetectedProtocol::Opaque),
        (b"SSH-2.0-OpenSSH_9.2p1\r", DetectedProtocol::Opaque),
    ];
    for (bytes, expected) in cases {
        for end in 0..bytes.len() {
            assert_eq!(
                sniff_protocol(&bytes[..end]),
                DetectedProtocol::Incomplete,
                "{}",
                bytes[..end].escape_ascii()
            );
        }
        assert_eq!(sniff_protocol(bytes), expected, "{}", bytes.escape_ascii());
        assert_eq!(sniff_protocol(&[bytes, b"and more"].concat()), expected);
    }
}

#[test]
fn never_needs_more_than_sniff_bytes_max() {
    let endless = [b"LIST ", vec![b'a'; MAX_SNIFF_BYTES].as_slice()].concat();
    assert_eq!(sniff_protocol(&endless[..MAX_SNIFF_BYTES - 1]), DetectedProtocol::Incomplete);
    assert_eq!(sniff_protocol(&endless[..MAX_SNIFF_BYTES]), DetectedProtocol::Opaque);
    assert_eq!(
        sniff_protocol(&[&endless[..], b" HTTP/1.1\r\n"].concat()),
        DetectedProtocol::Opaque
    );
    assert_eq!(sniff_protocol(&[b'A'; 33]), DetectedProtocol::Opaque);
    assert_eq!(sniff_protocol(&[b'\n'; MAX_SNIFF_BYTES - 1]), DetectedProtocol::Incomplete);
    assert_eq!(sniff_protocol(&[b'\n'; MAX_SNIFF_BYTES]), DetectedProtocol::Opaque);
    let late = [[b'\n'; MAX_SNIFF_BYTES - 3].as_slice(), b"GET / HTTP/1.1"].concat();
    assert_eq!(sniff_protocol(&late), DetectedProtocol::Opaque);
}

proptest! {
    #[test]
    fn more_bytes_never_change_a_decision(bytes in "([A-Z]{1,8} )?[ -~\\r\\n\\x00-\\x16]{0,60}") {
        let bytes = bytes.as_bytes();
        let decided = sniff_protocol(bytes);
        for end in 0..bytes.len() {
            let early = sniff_protocol(&bytes[..end]);
            prop_assert!(early == DetectedProtocol::Incomplete || early == decided);
        }
    }
}
