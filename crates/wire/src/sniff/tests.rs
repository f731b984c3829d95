//! Table tests of protocol detection.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;

#[test]
fn decides_from_the_fewest_bytes() {
    // The deciding bytes, and the decision; every shorter prefix needs more bytes.
    let cases: [(&[u8], Sniffed); 27] = [
        (b"GET /", Sniffed::Http1),
        (b"POST /", Sniffed::Http1),
        (b"OPTIONS * HTTP/1.", Sniffed::Http1),
        (b"GET http://", Sniffed::Http1),
        (b"CONNECT a.b:443 HTTP/1.", Sniffed::Http1),
        (b"PROPFIND /x HTTP/1.", Sniffed::Http1),
        (b"M-SEARCH * HTTP/1.", Sniffed::Http1),
        (b"PRI * HTTP/2.0", Sniffed::Http2),
        (b"PRI * HTTP/1.", Sniffed::Http1),
        (b"\x16\x03\x01\x02\x00\x01", Sniffed::Tls),
        (b"\x16\x03\x2c\x00\xb9\x01", Sniffed::Tls),
        (b"\x16\x03\x01\x02\x00\x02", Sniffed::Opaque),
        (b"\x16\x02", Sniffed::Opaque),
        (b"\x16\x03\x01\x41", Sniffed::Opaque),
        (b"PING\r", Sniffed::Opaque),
        (b"*1\r", Sniffed::Opaque),
        (b"get key\r", Sniffed::Opaque),
        (b"GET key\r", Sniffed::Opaque),
        (b"EHLO a.b\r", Sniffed::Opaque),
        (b"a b c", Sniffed::Opaque),
        (b"\r\nGET /", Sniffed::Http1),
        (b"\r\n\n\r\nPROPFIND /x HTTP/1.", Sniffed::Http1),
        (b"\r\n\0", Sniffed::Opaque),
        (b"\r\n\x16", Sniffed::Opaque),
        (b"\0", Sniffed::Opaque),
        (b" ", Sniffed::Opaque),
        (b"SSH-2.0-OpenSSH_9.2p1\r", Sniffed::Opaque),
    ];
    for (bytes, expected) in cases {
        for end in 0..bytes.len() {
            assert_eq!(
                sniff_protocol(&bytes[..end]),
                Sniffed::More,
                "{}",
                bytes[..end].escape_ascii()
            );
        }
        assert_eq!(sniff_protocol(bytes), expected, "{}", bytes.escape_ascii());
        assert_eq!(sniff_protocol(&[bytes, b"and more"].concat()), expected);
    }
}

#[test]
fn never_asks_for_more_than_its_bound() {
    let endless = [b"LIST ", vec![b'a'; SNIFF_BYTES_MAX].as_slice()].concat();
    assert_eq!(sniff_protocol(&endless[..SNIFF_BYTES_MAX - 1]), Sniffed::More);
    assert_eq!(sniff_protocol(&endless[..SNIFF_BYTES_MAX]), Sniffed::Opaque);
    assert_eq!(sniff_protocol(&[&endless[..], b" HTTP/1.1\r\n"].concat()), Sniffed::Opaque);
    assert_eq!(sniff_protocol(&[b'A'; 33]), Sniffed::Opaque);
    assert_eq!(sniff_protocol(&[b'\n'; SNIFF_BYTES_MAX - 1]), Sniffed::More);
    assert_eq!(sniff_protocol(&[b'\n'; SNIFF_BYTES_MAX]), Sniffed::Opaque);
    let late = [[b'\n'; SNIFF_BYTES_MAX - 3].as_slice(), b"GET / HTTP/1.1"].concat();
    assert_eq!(sniff_protocol(&late), Sniffed::Opaque);
}

proptest! {
    #[test]
    fn a_decision_stands(bytes in "([A-Z]{1,8} )?[ -~\\r\\n\\x00-\\x16]{0,60}") {
        let bytes = bytes.as_bytes();
        let decided = sniff_protocol(bytes);
        for end in 0..bytes.len() {
            let early = sniff_protocol(&bytes[..end]);
            prop_assert!(early == Sniffed::More || early == decided);
        }
    }
}
