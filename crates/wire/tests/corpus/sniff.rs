//! Checks the invariants of protocol detection for arbitrary bytes.

use leno_wire::sniff::{DetectedProtocol, MAX_SNIFF_BYTES, sniff_protocol};

/// Checks that a decision is reached within its bound, that more bytes never change it, and that empty lines before a
/// request do not hide it.
pub(crate) fn check(bytes: &[u8]) {
    let decision = sniff_protocol(bytes);
    assert!(decision != DetectedProtocol::Incomplete || bytes.len() < MAX_SNIFF_BYTES);
    for end in 0..bytes.len() {
        let early = sniff_protocol(&bytes[..end]);
        assert!(
            early == DetectedProtocol::Incomplete || early == decision,
            "the decision changed at {end}"
        );
    }
    if decision == DetectedProtocol::Http1 && bytes.len() + 2 < MAX_SNIFF_BYTES {
        assert_eq!(sniff_protocol(&[b"\r\n", bytes].concat()), DetectedProtocol::Http1);
    }
}
