//! Formats numbers for reports, and escapes text for HTML pages.

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Formats a figure with about three significant digits, and with narrow no-break spaces between groups of thousands.
pub(super) fn format_figure(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude == 0.0 => "0".to_owned(),
        _ if magnitude >= 1000.0 => group_thousands(value.round() as i64),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 0.1 => format!("{value:.2}"),
        _ if magnitude >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// Formats a figure for a terminal, like [`format_figure`] but without spaces.
pub(super) fn format_plain(value: f64) -> String {
    format_figure(value).replace('\u{202f}', "")
}

/// Formats a figure of an axis, without trailing zeros.
pub(super) fn format_tick(value: f64) -> String {
    if value.abs() >= 10_000.0 {
        return format!("{}k", format_tick(value / 1000.0));
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn group_thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_as_html() {
        assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
    }

    #[test]
    fn figures_have_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.00123, "0.0012"),
            (0.0123, "0.012"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.4, "1\u{202f}234"),
            (1_234_567.0, "1\u{202f}234\u{202f}567"),
        ] {
            assert_eq!(format_figure(value), text);
            assert_eq!(format_plain(value), text.replace('\u{202f}', ""));
        }
        for (value, text) in [(0.5, "0.5"), (100.0, "100"), (20_000.0, "20k"), (0.0, "0")] {
            assert_eq!(format_tick(value), text);
        }
    }
}
