//! `docs/link.md` matches the constants.

use super::*;

#[test]
fn the_document_has_the_numbers_of_the_code() {
    let bytes = |count: u32| match count {
        1_048_576.. => format!("{} MiB", count >> 20),
        1_024.. => format!("{} KiB", count >> 10),
        _ => count.to_string(),
    };
    let reported =
        |name, default, least, most| format!("| `{name}` | {default} | {least} | {most} |");
    let own = |name, default: String| format!("| `{name}` | {default} |");
    let size = |bytes_max: usize| bytes(u32::try_from(bytes_max).unwrap());
    for row in [
        reported(
            "streams_max",
            STREAMS_MAX.to_string(),
            STREAMS_LEAST.to_string(),
            STREAMS_MOST.to_string(),
        ),
        reported("window", bytes(WINDOW), bytes(WINDOW_LEAST), bytes(WINDOW_MOST)),
        reported("head_max", bytes(HEAD_MAX), bytes(HEAD_LEAST), bytes(HEAD_MOST)),
        reported("frame_max", bytes(FRAME_MAX), bytes(FRAME_LEAST), bytes(FRAME_MOST)),
        own("output_max", size(OUTPUT_MAX)),
        own("output_limit", size(OUTPUT_LIMIT)),
        own("idle_frames_max", IDLE_FRAMES_MAX.to_string()),
        own("churn_max", CHURN_MAX.to_string()),
        format!(
            "against {SECTIONS_PER_DIRECTION} times `head_max`, each with {SECTION_COST} bytes"
        ),
        format!("A link has {STREAM_LAST}\nof them"),
        format!("with last stream {}", StreamId::ALL),
        format!("ALPN is `{}`", std::str::from_utf8(ALPN).unwrap()),
        format!("names the version, {VERSION}, its own role"),
        format!("HELLO is {} to {} bytes long", frame::HELLO_BYTES, frame::HELLO_BYTES_MAX),
        format!("| unread DATA | `streams_max` × `window` | {} |", bytes(STREAMS_MAX * WINDOW)),
        format!("| input | one frame | {} |", bytes(HEAD_MAX)),
        format!("| END | {:#04x} |", frame::END),
        format!("| INTERIM | {:#04x} |", frame::INTERIM),
        format!("| TCP | {:#04x} |", frame::TCP),
        format!("| REJECTED | {:#04x} |", frame::REJECTED),
        format!("RESET is {} to {} bytes long", frame::RESET_BYTES, frame::RESET_BYTES_MAX),
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
        let fate = if code.is_graceful() { "finish" } else { "lost: the link closes at once" };
        let row = format!("| {} | {code:?} | {fate} |", *code as u8);
        assert!(DOCUMENT.contains(&row), "docs/link.md lacks: {row}");
    }
}

#[test]
fn the_state_of_a_full_link_is_as_small_as_the_document_says() {
    // A hash table has at most twice the capacity of its entries, plus one byte each.
    let entry = size_of::<(StreamId, Stream)>() + 1;
    assert!(entry * 2 * (STREAMS_MAX as usize) + size_of::<Link>() < 256 * 1024);
}

const DOCUMENT: &str = include_str!("../../../../../docs/link.md");
