//! Encodes certificates and keys as PEM (RFC 7468).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Appends a PEM section with this label to `text`.
pub(crate) fn write_pem(text: &mut String, label: &str, der: &[u8]) {
    let encoded = STANDARD.encode(der);
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut remaining = encoded.as_str();
    while !remaining.is_empty() {
        // Base64 is ASCII: every index is a character boundary.
        let (line, following) = remaining.split_at(remaining.len().min(LINE_CHARACTERS));
        text.push_str(line);
        text.push('\n');
        remaining = following;
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

/// The label of a certificate.
pub(crate) const CERTIFICATE_LABEL: &str = "CERTIFICATE";

/// The characters per line (RFC 7468 §2).
const LINE_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn encoded_sections_are_read_back_at_every_length() {
        for length in [0, 1, 47, 48, 49, 96, 600] {
            let der: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut text = String::new();
            write_pem(&mut text, CERTIFICATE_LABEL, &der);
            assert!(text.lines().all(|line| line.len() <= LINE_CHARACTERS));
            let decoded = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(decoded.as_ref(), der);
        }
    }
}
