//! Escapes texts from other systems for terminals and logs, and formats errors with their causes.

use std::borrow::Cow;
use std::fmt;

/// True for characters that control a terminal: controls (C0, DEL and C1), line separators, and bidirectional
/// marks.
#[must_use]
pub fn is_terminal_control(character: char) -> bool {
    // U+2028 and U+2029 separate lines and paragraphs; the other characters change the direction of text.
    character.is_control()
        || matches!(
            character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Replaces control characters by escapes such as `\n` and `\u{1b}`.
#[must_use]
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    match text.contains(is_terminal_control) {
        false => Cow::Borrowed(text),
        true => Cow::Owned(text.chars().flat_map(escape_char).collect()),
    }
}

/// Returns a character unchanged, or its escape if it is a terminal control.
pub fn escape_char(character: char) -> impl Iterator<Item = char> {
    let escaped = is_terminal_control(character).then(|| character.escape_default());
    let unescaped = (!is_terminal_control(character)).then_some(character);
    escaped.into_iter().flatten().chain(unescaped)
}

/// A writer that escapes texts with [`escape_controls`] and forwards them.
#[derive(Debug)]
pub struct EscapingWriter<W>(pub W);

impl<W: fmt::Write> fmt::Write for EscapingWriter<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&escape_controls(text))
    }
}

/// Formats an error with its causes in one line. A cause that the preceding text already contains is omitted.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io;

    use proptest::prelude::*;

    use super::*;

    /// An error and its cause, if it has one. The first text is that of the error; the others are those of its causes.
    #[derive(Debug)]
    struct ErrorChain(Vec<String>, Option<Box<ErrorChain>>);

    impl ErrorChain {
        fn from_texts(texts: &[String]) -> Option<Box<Self>> {
            let (_, causes) = texts.split_first()?;
            Some(Box::new(Self(texts.to_vec(), Self::from_texts(causes))))
        }
    }

    impl fmt::Display for ErrorChain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0[0])
        }
    }

    impl std::error::Error for ErrorChain {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            let next = self.1.as_deref()?;
            Some(next)
        }
    }

    #[test]
    fn a_cause_that_the_text_contains_is_not_repeated() {
        let full = io::Error::from_raw_os_error(28);
        let text = format!("cannot write: {full}");
        let chain =
            ErrorChain::from_texts(&[text.clone(), full.to_string(), "disk".to_owned()]).unwrap();
        assert_eq!(with_causes(&*chain), format!("{text}: disk"));
        let chain = ErrorChain::from_texts(&["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(with_causes(&*chain), "a: b");
    }

    proptest! {
        #[test]
        fn texts_are_escaped_without_loss(text in any::<String>()) {
            let escaped = escape_controls(&text);
            prop_assert!(!escaped.contains(is_terminal_control), "{escaped:?}");
            let mut written = String::new();
            EscapingWriter(&mut written).write_str(&text).unwrap();
            prop_assert_eq!(&written, &escaped);
            prop_assert_eq!(text.contains(is_terminal_control), matches!(escaped, Cow::Owned(_)));
        }

        #[test]
        fn every_error_of_a_chain_appears_once(
            texts in proptest::collection::vec("[a-c]{1,3}( [a-c]{1,3})?", 1..6)
        ) {
            let chain = ErrorChain::from_texts(&texts).unwrap();
            let text = with_causes(&*chain);
            for part in &texts {
                prop_assert!(text.contains(part.as_str()));
            }
            let (preceding, last) = text.rsplit_once(": ").unwrap_or(("", &text));
            prop_assert!(!preceding.contains(last), "{text}");
        }
    }
}
