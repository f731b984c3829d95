//! Tokens of HTTP (RFC 9110 §5.6.2): names of headers, cookies and protocols.

/// True for a token: one or more visible ASCII characters without delimiters.
#[must_use]
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token_byte)
}

/// True for a byte of a token (`tchar`).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::is_token;

    #[test]
    fn delimiters_and_other_characters_are_no_token() {
        for token in ["x-a", "A", "!#$%&'*+-.^_`|~0"] {
            assert!(is_token(token), "{token}");
        }
        for text in ["", "a b", "a/b", "a:b", "a\"", "ä", "a\0", "a(b)"] {
            assert!(!is_token(text), "{text:?}");
        }
    }
}
