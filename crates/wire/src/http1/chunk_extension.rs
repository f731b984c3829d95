//! Parses chunk extensions, which the proxy does not forward. Parsing is strict, so that all recipients agree on the
//! end of the chunk size line.

use super::Malformed;
use super::cursor::{TOKEN, is_in_class};

/// A parser of the extensions of one chunk (RFC 9112 §7.1.1): `*( BWS ";" BWS name [ BWS "=" BWS ( token /
/// quoted-string ) ] )`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkExtensionParser(GrammarState);

/// The element of the grammar that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default)]
enum GrammarState {
    /// Directly after the chunk size or a quoted string.
    #[default]
    Item,
    /// In white space after the chunk size or a value: only `;` or more white space may follow.
    AfterItem,
    BeforeName,
    Name,
    AfterName,
    BeforeValue,
    Value,
    Quoted,
    Escaped,
    /// After the CR of the line.
    LineEnd,
}

/// The result of [`ChunkExtensionParser::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtensionProgress {
    /// The end of the line has not arrived.
    Incomplete,
    /// The LF at the end of the line was read.
    Complete,
}

impl ChunkExtensionParser {
    /// Reads `bytes` up to the end of the line. Returns the number of bytes that belong to the line.
    ///
    /// # Errors
    /// `LineEnd` for a bare CR or LF, `ChunkExtension` for other violations of the grammar.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(usize, ExtensionProgress), Malformed> {
        for (index, byte) in bytes.iter().enumerate() {
            match (self.0, byte) {
                (GrammarState::LineEnd, b'\n') => {
                    return Ok((index.saturating_add(1), ExtensionProgress::Complete));
                }
                (GrammarState::LineEnd, _) | (_, b'\n') => return Err(Malformed::LineEnd),
                (state, byte) => {
                    self.0 = state.next_state(*byte).ok_or(Malformed::ChunkExtension)?
                }
            }
        }
        Ok((bytes.len(), ExtensionProgress::Incomplete))
    }
}

impl GrammarState {
    /// Returns the state after `byte`; `None` if the grammar does not allow it here.
    fn next_state(self, byte: u8) -> Option<Self> {
        let is_token = is_in_class(byte, TOKEN);
        Some(match (self, byte) {
            (Self::Item | Self::Name | Self::Value, b'\r') => Self::LineEnd,
            (Self::Item | Self::AfterItem | Self::Name | Self::AfterName | Self::Value, b';') => {
                Self::BeforeName
            }
            (Self::Item | Self::AfterItem | Self::Value, b' ' | b'\t') => Self::AfterItem,
            (Self::Name | Self::AfterName, b'=') => Self::BeforeValue,
            (Self::Name | Self::AfterName, b' ' | b'\t') => Self::AfterName,
            (Self::BeforeName, b' ' | b'\t') => Self::BeforeName,
            (Self::BeforeName | Self::Name, _) if is_token => Self::Name,
            (Self::BeforeValue, b' ' | b'\t') => Self::BeforeValue,
            (Self::BeforeValue, b'"') => Self::Quoted,
            (Self::BeforeValue | Self::Value, _) if is_token => Self::Value,
            (Self::Quoted, b'"') => Self::Item,
            (Self::Quoted, b'\\') => Self::Escaped,
            // `qdtext` and the second byte of a `quoted-pair` (RFC 9110 §5.6.4).
            (Self::Quoted | Self::Escaped, b'\t' | b' '..=b'~' | 0x80..) => Self::Quoted,
            _ => return None,
        })
    }
}
