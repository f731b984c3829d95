//! PEM encoding of certificates and keys (RFC 7468).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Appends one section to `text`.
pub(crate) fn write(text: &mut String, label: &str, der: &[u8]) {
    let encoded = STANDARD.encode(der);
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: every index is a character boundary.
        let (line, after) = rest.split_at(rest.len().min(LINE_CHARACTERS));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

/// The label of a certificate.
pub(crate) const CERTIFICATE: &str = "CERTIFICATE";

/// RFC 7468 §2: generators wrap at 64.
const LINE_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn reads_back_what_it_writes_at_every_line_length() {
        for length in [0, 1, 47, 48, 49, 96, 600] {
            let der: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut text = String::new();
            write(&mut text, CERTIFICATE, &der);
            assert!(text.lines().all(|line| line.len() <= LINE_CHARACTERS));
            let read = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(read.as_ref(), der);
        }
    }
}
