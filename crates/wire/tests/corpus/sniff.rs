//! Invariants of protocol detection for arbitrary bytes.

use leno_wire::sniff::{DetectedProtocol, SNIFF_BYTES_MAX, sniff_protocol};

/// A decision is reached within its bound, and more bytes never change it. Empty lines before a request do not
/// hide it.
pub(crate) fn check(bytes: &[u8]) {
    let decided = sniff_protocol(bytes);
    assert!(decided != DetectedProtocol::Incomplete || bytes.len() < SNIFF_BYTES_MAX);
    for end in 0..bytes.len() {
        let early = sniff_protocol(&bytes[..end]);
        assert!(
            early == DetectedProtocol::Incomplete || early == decided,
            "changed its mind at {end}"
        );
    }
    if decided == DetectedProtocol::Http1 && bytes.len() + 2 < SNIFF_BYTES_MAX {
        assert_eq!(sniff_protocol(&[b"\r\n", bytes].concat()), DetectedProtocol::Http1);
    }
}
