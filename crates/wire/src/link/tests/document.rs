//! `docs/link.md` matches the constants.

use super::*;

#[test]
fn the_document_has_the_numbers_of_the_code() {
    let bytes = |count: u32| match count {
        1_048_576.. => format!("{} MiB", count >> 20),
        1_024.. => format!("{} KiB", count >> 10),
        _ => count.to_string(),
    };
    let hello_row = |name, default, min, max| format!("| `{name}` | {default} | {min} | {max} |");
    let local_row = |name, default: String| format!("| `{name}` | {default} |");
    let size = |max_bytes: usize| bytes(u32::try_from(max_bytes).unwrap());
    for row in [
        hello_row(
            "max_streams",
            MAX_STREAMS.to_string(),
            SMALLEST_MAX_STREAMS.to_string(),
            LARGEST_MAX_STREAMS.to_string(),
        ),
        hello_row("window", bytes(WINDOW), bytes(MIN_WINDOW), bytes(MAX_WINDOW)),
        hello_row("max_head", bytes(MAX_HEAD), bytes(SMALLEST_MAX_HEAD), bytes(LARGEST_MAX_HEAD)),
        hello_row(
            "max_frame",
            bytes(MAX_FRAME),
            bytes(SMALLEST_MAX_FRAME),
            bytes(LARGEST_MAX_FRAME),
        ),
        local_row("congestion_threshold", size(CONGESTION_THRESHOLD)),
        local_row("stall_threshold", size(STALL_THRESHOLD)),
        local_row("max_useless_frames", MAX_USELESS_FRAMES.to_string()),
        local_row("max_early_resets", MAX_EARLY_RESETS.to_string()),
        format!(
            "against {SECTIONS_PER_DIRECTION} times `max_head`, each with {SECTION_COST} bytes"
        ),
        format!("A link has {LAST_STREAM_NUMBER}\nof them"),
        format!("with last stream {}", StreamId::ALL),
        format!("ALPN is `{}`", std::str::from_utf8(ALPN).unwrap()),
        format!("names the version, {VERSION}, its own role"),
        format!("HELLO is {} to {} bytes long", frame::HELLO_BYTES, frame::MAX_HELLO_BYTES),
        format!("| unread DATA | `max_streams` × `window` | {} |", bytes(MAX_STREAMS * WINDOW)),
        format!("| input | one frame | {} |", bytes(MAX_HEAD)),
        format!("| END | {:#04x} |", frame::END),
        format!("| INTERIM | {:#04x} |", frame::INTERIM),
        format!("| TCP | {:#04x} |", frame::TCP),
        format!("| REJECTED | {:#04x} |", frame::REJECTED),
        format!("RESET is {} to {} bytes long", frame::RESET_BYTES, frame::MAX_RESET_BYTES),
    ] {
        assert!(DOCUMENT.contains(&row), "docs/link.md lacks: {row}");
    }
}

#[test]
fn the_document_has_every_kind_and_code() {
    for kind in [
        FrameKind::Hello,
        FrameKind::Open,
        FrameKind::Head,
        FrameKind::Data,
        FrameKind::Trailers,
        FrameKind::Reset,
        FrameKind::Credit,
        FrameKind::GoAway,
        FrameKind::Ping,
        FrameKind::Pong,
    ] {
        let row = format!("| {} | {} |", kind as u8, format!("{kind:?}").to_uppercase());
        assert!(DOCUMENT.contains(&row), "docs/link.md lacks: {row}");
    }
    for code in ResetCode::ALL {
        let start = format!("| {} | {code:?} |", *code as u8);
        let row = DOCUMENT.lines().find(|line| line.starts_with(&start));
        let safe =
            row.unwrap_or_else(|| panic!("docs/link.md lacks: {start}")).ends_with("| yes |");
        assert_eq!(safe, code.is_retry_safe(), "{start}");
    }
    for code in GoAwayCode::ALL {
        let open_streams =
            if code.is_graceful() { "finish" } else { "lost: the link closes at once" };
        let row = format!("| {} | {code:?} | {open_streams} |", *code as u8);
        assert!(DOCUMENT.contains(&row), "docs/link.md lacks: {row}");
    }
}

#[test]
fn the_state_of_a_full_link_is_as_small_as_documented() {
    // A hash table has at most twice the capacity of its entries, plus one byte each.
    let entry = size_of::<(StreamId, StreamState)>() + 1;
    assert!(entry * 2 * (MAX_STREAMS as usize) + size_of::<Link>() < 256 * 1024);
}

const DOCUMENT: &str = include_str!("../../../../../docs/link.md");
