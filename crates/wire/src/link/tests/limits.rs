//! Tests of the limits for a peer.

use super::*;

#[test]
fn the_first_frame_is_hello_and_comes_once() {
    let write_hello = |edit: &dyn Fn(&mut LinkLimits)| {
        let mut limits = LinkLimits::default();
        edit(&mut limits);
        let mut wire = BytesMut::new();
        frame::write_hello(&mut wire, Role::Opener, &limits);
        wire
    };
    let valid_hello = write_hello(&|_| {});
    let mut other_version_hello = valid_hello.clone();
    other_version_hello[9] = 2;
    let mut same_role_hello = valid_hello.clone();
    same_role_hello[10] = 2;
    let doubled_hello = [&valid_hello[..], &valid_hello[..]].concat();
    let cases: [(&str, &[u8], GoAwayCode); 11] = [
        ("ping first", &raw_frame(FrameKind::Ping, 0, 0, b""), GoAwayCode::Protocol),
        ("another protocol", b"GET / HTTP/1.1\r\n", GoAwayCode::Protocol),
        ("another version", &other_version_hello, GoAwayCode::Version),
        ("our role", &same_role_hello, GoAwayCode::Protocol),
        ("twice", &doubled_hello, GoAwayCode::Protocol),
        ("short", &raw_frame(FrameKind::Hello, 0, 0, &[0, 1]), GoAwayCode::Protocol),
        ("long", &raw_header(TOO_LONG_HELLO_BYTES, 1, 0, 0), GoAwayCode::Protocol),
        ("few streams", &write_hello(&|limits| limits.max_streams = 1), GoAwayCode::Protocol),
        ("small window", &write_hello(&|limits| limits.window = 1), GoAwayCode::Protocol),
        ("huge window", &write_hello(&|limits| limits.window = u32::MAX), GoAwayCode::Protocol),
        ("small heads", &write_hello(&|limits| limits.max_head = 1), GoAwayCode::Protocol),
    ];
    for (name, wire, code) in cases {
        let error = receive_error(&mut Link::new(Role::Acceptor, LinkLimits::default()), wire);
        assert_eq!(error.map(|error| error.go_away_code()), Some(code), "{name}");
    }
}

#[test]
fn a_longer_hello_of_a_later_release_is_understood() {
    let mut wire = BytesMut::new();
    frame::write_hello(&mut wire, Role::Opener, &LinkLimits::default());
    wire[2] += 4;
    wire.put_u32(77);
    wire.extend_from_slice(&raw_frame(FrameKind::Open, frame::END, 1, b"GET"));
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    assert_eq!(all_events(&mut acceptor, &mut wire).len(), 2);
}

#[test]
fn limits_out_of_range_are_clamped() {
    let too_small = LinkLimits {
        max_streams: 0,
        window: 0,
        max_head: 0,
        max_frame: 0,
        ..LinkLimits::default()
    };
    let link = Link::new(Role::Opener, too_small);
    assert!(link.own_limits().is_within_range());
    let max = u32::MAX;
    let too_large = LinkLimits {
        max_streams: max,
        window: max,
        max_head: max,
        max_frame: max,
        ..LinkLimits::default()
    };
    assert!(Link::new(Role::Opener, too_large).own_limits().is_within_range());
    assert_eq!(LinkLimits::default().max_input_bytes(), MAX_HEAD as usize + 8);
    assert!(LinkLimits::default().is_within_range() && LinkLimits::minimum().is_within_range());
}

#[test]
fn frames_that_cannot_be_read_break_the_link() {
    for (name, wire) in [
        ("an unknown kind", raw_header(0, 11, 0, 1)),
        ("an unknown flag", raw_header(0, 4, 0x80, 1)),
        ("data for the link", raw_frame(FrameKind::Data, 0, 0, b"x")),
        ("a ping for a stream", raw_header(0, 9, 0, 1)),
        ("a short reset", raw_frame(FrameKind::Reset, 0, 1, b"")),
        ("a long ping", raw_frame(FrameKind::Ping, 0, 0, b"x")),
        ("a credit of 0", raw_frame(FrameKind::Credit, 0, 1, &[0; 4])),
        ("long data, before it arrives", raw_header(MAX_FRAME + 1, 4, 0, 1)),
        ("a long head, before it arrives", raw_header(MAX_HEAD + 1, 2, 0, 2)),
    ] {
        expect_acceptor_error(name, &wire, GoAwayCode::Protocol);
    }
}

#[test]
fn frames_out_of_place_break_the_link() {
    let after_end =
        [raw_frame(FrameKind::Data, frame::END, 1, b""), raw_frame(FrameKind::Data, 0, 1, b"x")]
            .concat();
    let trailers = raw_frame(FrameKind::Trailers, 0, 1, b"").repeat(2);
    for (name, wire) in [
        ("data for a stream never opened", &raw_frame(FrameKind::Data, 0, 2, b"x")[..]),
        ("a reset of it", &raw_frame(FrameKind::Reset, 0, 2, &[1])),
        ("a number twice", &raw_frame(FrameKind::Open, 0, 1, b"")),
        ("a number left out", &raw_frame(FrameKind::Open, 0, 3, b"")),
        ("a head from the opener", &raw_frame(FrameKind::Head, 0, 1, b"")),
        ("data after the end", &after_end),
        ("trailers twice", &trailers),
    ] {
        expect_acceptor_error(name, wire, GoAwayCode::Protocol);
    }
}

#[test]
fn exceeding_the_credit_or_the_window_breaks_the_link() {
    let mut overrun = raw_frame(FrameKind::Data, 0, 1, &[0; MAX_FRAME as usize]).repeat(4);
    expect_acceptor_error(
        "more credit",
        &raw_frame(FrameKind::Credit, 0, 1, &[0, 0, 0, 1]),
        FLOW_CONTROL,
    );
    expect_acceptor_error(
        "huge credit",
        &raw_frame(FrameKind::Credit, 0, 1, &[255; 4]),
        FLOW_CONTROL,
    );
    overrun.extend_from_slice(&raw_frame(FrameKind::Data, 0, 1, b"x"));
    expect_acceptor_error("more data", &overrun, FLOW_CONTROL);
}

#[test]
fn frames_that_an_acceptor_must_not_send_break_the_link() {
    let go_away =
        |last: u32| raw_frame(FrameKind::GoAway, 0, 0, &[&last.to_be_bytes()[..], &[1]].concat());
    let raised_last_stream = [go_away(0), go_away(1)].concat();
    let two_heads =
        [raw_frame(FrameKind::Head, 0, 1, b""), raw_frame(FrameKind::Head, 0, 1, b"")].concat();
    let cases: [(&str, &[u8]); 8] = [
        ("an open", &raw_frame(FrameKind::Open, 0, 2, b"")),
        ("data before the head", &raw_frame(FrameKind::Data, 0, 1, b"x")),
        ("trailers before the head", &raw_frame(FrameKind::Trailers, 0, 1, b"")),
        ("an interim end", &raw_frame(FrameKind::Head, frame::INTERIM | frame::END, 1, b"")),
        (
            "an interim rejection",
            &raw_frame(FrameKind::Head, frame::INTERIM | frame::REJECTED, 1, b""),
        ),
        ("two heads", &two_heads),
        ("a stream never opened", &raw_frame(FrameKind::Head, 0, 2, b"")),
        ("a go away that takes back", &raised_last_stream),
    ];
    for (name, wire) in cases {
        let (mut opener, mut acceptor) = connected_pair();
        open_stream(&mut opener, &mut acceptor);
        let error = receive_error(&mut opener, wire);
        assert_eq!(error.map(|error| error.go_away_code()), Some(GoAwayCode::Protocol), "{name}");
    }
}

#[test]
fn streams_beyond_the_limit_break_the_link() {
    let limits = LinkLimits { max_streams: SMALLEST_MAX_STREAMS, ..LinkLimits::default() };
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    let mut acceptor = Link::new(Role::Acceptor, limits);
    deliver_output(&mut opener, &mut acceptor);
    deliver_output(&mut acceptor, &mut opener);
    for _ in 0..SMALLEST_MAX_STREAMS {
        opener.open_stream(StreamKind::Http, true, head_writer(b"")).unwrap();
    }
    assert_eq!(opener.open_stream(StreamKind::Http, true, head_writer(b"")), Err(OpenError::Full));
    deliver_output(&mut opener, &mut acceptor);
    let mut wire = raw_frame(FrameKind::Open, 0, SMALLEST_MAX_STREAMS + 1, b"");
    let error = acceptor.receive(&mut wire).unwrap_err();
    assert_eq!(error, LinkError::StreamsExceeded { max: SMALLEST_MAX_STREAMS });
}

#[test]
fn heads_of_one_stream_together_are_bounded() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    let interim = vec![b'i'; 1000];
    let mut sent_count = 0;
    while acceptor.send_head(id, true, false, head_writer(&interim)).is_ok() {
        sent_count += 1;
    }
    assert_eq!(sent_count, MAX_HEAD * SECTIONS_PER_DIRECTION / (1000 + SECTION_COST));
    // A valid sender resets the stream itself; a receiver would not have accepted more either.
    let events = deliver_output(&mut acceptor, &mut opener);
    let reset = LinkEvent::Reset { stream: id, code: ResetCode::TooLarge, reason: Bytes::new() };
    assert_eq!(events.last(), Some(&reset));
    let (mut opener, mut acceptor) = connected_pair();
    open_stream(&mut opener, &mut acceptor);
    let head = raw_frame(FrameKind::Head, frame::INTERIM, 1, &interim);
    let wire = head.repeat(sent_count as usize + 1);
    let error = receive_error(&mut opener, &wire).unwrap();
    assert_eq!(error.go_away_code(), GoAwayCode::Protocol);
}

#[test]
fn useless_frames_are_counted() {
    let ping = raw_frame(FrameKind::Ping, 0, 0, b"");
    let pong = raw_frame(FrameKind::Pong, 0, 0, b"");
    let empty = raw_frame(FrameKind::Data, 0, 1, b"");
    let late = raw_frame(FrameKind::Trailers, 0, 2, b"");
    let away = raw_frame(FrameKind::GoAway, 0, 0, &[0, 0, 0, 0, 1]);
    for (name, frame) in
        [("ping", ping), ("pong", pong), ("empty", empty), ("late", late), ("away", away)]
    {
        let (mut opener, mut acceptor) = connected_pair();
        open_stream(&mut opener, &mut acceptor);
        let closed_stream = open_stream(&mut opener, &mut acceptor);
        acceptor.reset_stream(closed_stream, ResetCode::Failed);
        let allowed = frame.repeat(MAX_USELESS_FRAMES as usize);
        assert_eq!(receive_error(&mut acceptor, &allowed), None, "{name}");
        let error = receive_error(&mut acceptor, &frame.repeat(2)).unwrap();
        assert_eq!(error.go_away_code(), GoAwayCode::Flood, "{name}");
    }
}

#[test]
fn small_credits_are_counted() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    acceptor.send_head(id, false, false, head_writer(b"200")).unwrap();
    acceptor.send_data(id, &[0; WINDOW as usize], false).unwrap();
    acceptor.output().clear();
    let credit = raw_frame(FrameKind::Credit, 0, id.number(), &1u32.to_be_bytes());
    let error = receive_error(&mut acceptor, &credit.repeat(MAX_USELESS_FRAMES as usize + 1));
    assert_eq!(error.map(|error| error.go_away_code()), Some(GoAwayCode::Flood));
}

#[test]
fn one_ping_for_each_write_is_never_a_flood() {
    let (_, mut acceptor) = connected_pair();
    for _ in 0..MAX_USELESS_FRAMES * 3 {
        assert_eq!(receive_error(&mut acceptor, &raw_frame(FrameKind::Ping, 0, 0, b"")), None);
        assert_eq!(acceptor.output().split().len(), 8);
    }
}

#[test]
fn streams_reset_before_a_response_are_a_flood() {
    let (_, mut acceptor) = connected_pair();
    let mut last_stream = 0;
    let mut open_and_reset = |acceptor: &mut Link, round_count: u32| {
        (0..round_count).find_map(|_| {
            last_stream += 1;
            let opened = raw_frame(FrameKind::Open, frame::END, last_stream, b"GET");
            let reset = raw_frame(FrameKind::Reset, 0, last_stream, &[ResetCode::Cancelled as u8]);
            receive_error(acceptor, &[opened, reset].concat())
        })
    };
    assert_eq!(open_and_reset(&mut acceptor, MAX_EARLY_RESETS), None);
    acceptor.renew_allowances();
    assert_eq!(open_and_reset(&mut acceptor, MAX_EARLY_RESETS), None);
    let error = open_and_reset(&mut acceptor, 1).unwrap();
    assert_eq!(error.go_away_code(), GoAwayCode::Flood);
}

/// Cancellations come from clients, not from the sidecar, and must not affect its other streams.
#[test]
fn an_opener_sends_go_away_before_its_resets_are_a_flood() {
    for responses_cross in [false, true] {
        let (mut opener, mut acceptor) = connected_pair();
        let unanswered_stream = open_stream(&mut opener, &mut acceptor);
        let vacant_count = opener.vacant_stream_count() - 1;
        let open_streams: Vec<_> = (0..vacant_count)
            .map(|_| opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap())
            .collect();
        deliver_output(&mut opener, &mut acceptor);
        if responses_cross {
            // These responses restore nothing at the acceptor: its allowance is full.
            for id in &open_streams {
                acceptor.send_head(*id, false, false, head_writer(b"200")).unwrap();
            }
        }
        let responses = acceptor.output().split();
        let open_and_cancel = |opener: &mut Link, acceptor: &mut Link, round_count: u32| {
            for _ in 0..round_count {
                let id = opener.open_stream(StreamKind::Http, true, head_writer(b"GET"))?;
                opener.reset_stream(id, ResetCode::Cancelled);
                deliver_output(opener, acceptor);
            }
            Ok(())
        };
        assert_eq!(open_and_cancel(&mut opener, &mut acceptor, MAX_EARLY_RESETS / 2 - 1), Ok(()));
        all_events(&mut opener, &mut BytesMut::from(&responses[..]));
        if responses_cross {
            assert_eq!(open_and_cancel(&mut opener, &mut acceptor, MAX_STREAMS - 10), Ok(()));
        }
        let result = open_and_cancel(&mut opener, &mut acceptor, MAX_EARLY_RESETS);
        assert_eq!(result, Err(OpenError::GoingAway));
        // Open streams continue, and may be reset.
        for id in open_streams {
            opener.reset_stream(id, ResetCode::Cancelled);
        }
        deliver_output(&mut opener, &mut acceptor);
        assert_eq!((opener.stream_count(), acceptor.stream_count()), (1, 1));
        acceptor.send_head(unanswered_stream, false, true, head_writer(b"200")).unwrap();
        let response = head_event(unanswered_stream, b"200", false, true);
        assert_eq!(deliver_output(&mut acceptor, &mut opener), [response]);
    }
}

#[test]
fn responses_restore_the_reset_allowance_of_the_opener() {
    let (mut opener, mut acceptor) = connected_pair();
    for kind in [StreamKind::Http, StreamKind::Tcp] {
        for _ in 0..MAX_EARLY_RESETS * 2 {
            let cancelled_stream = opener.open_stream(kind, true, head_writer(b"")).unwrap();
            let answered_stream = opener.open_stream(kind, true, head_writer(b"")).unwrap();
            opener.reset_stream(cancelled_stream, ResetCode::Cancelled);
            deliver_output(&mut opener, &mut acceptor);
            match kind {
                StreamKind::Http => {
                    acceptor.send_head(answered_stream, true, false, head_writer(b"100")).unwrap();
                    acceptor.send_head(answered_stream, false, false, head_writer(b"200")).unwrap();
                }
                StreamKind::Tcp => {
                    assert_eq!(acceptor.send_data(answered_stream, b"x", false), Ok(1))
                }
            }
            deliver_output(&mut acceptor, &mut opener);
            opener.reset_stream(answered_stream, ResetCode::Cancelled);
        }
    }
    assert!(!opener.is_going_away());
    // An interim head is not a response, and neither is the end of a TCP connection without bytes.
    let mut round_count = 0;
    while let Ok(id) = opener.open_stream(StreamKind::Http, true, head_writer(b"")) {
        deliver_output(&mut opener, &mut acceptor);
        acceptor.send_head(id, true, false, head_writer(b"103")).unwrap();
        deliver_output(&mut acceptor, &mut opener);
        opener.reset_stream(id, ResetCode::Cancelled);
        round_count += 1;
    }
    assert_eq!(round_count, MAX_EARLY_RESETS / 2);
}

#[test]
fn resets_among_streams_with_responses_are_not_a_flood() {
    let (mut opener, mut acceptor) = connected_pair();
    for _ in 0..MAX_EARLY_RESETS * 2 {
        let cancelled_stream =
            opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
        let answered_stream =
            opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
        opener.reset_stream(cancelled_stream, ResetCode::Cancelled);
        assert_eq!(deliver_output(&mut opener, &mut acceptor).len(), 3);
        acceptor.send_head(answered_stream, false, false, head_writer(b"200")).unwrap();
        deliver_output(&mut acceptor, &mut opener);
        opener.reset_stream(answered_stream, ResetCode::Cancelled);
        deliver_output(&mut opener, &mut acceptor);
    }
}

#[test]
fn late_data_is_bounded_by_the_granted_window() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    acceptor.reset_stream(id, ResetCode::Refused);
    opener.send_data(id, &[0; WINDOW as usize], true).unwrap();
    assert_eq!(deliver_output(&mut opener, &mut acceptor), []);
    let error =
        receive_error(&mut acceptor, &raw_frame(FrameKind::Data, 0, id.number(), b"x")).unwrap();
    assert_eq!(error.go_away_code(), GoAwayCode::Flood);
}

#[test]
fn data_after_the_peer_ended_its_direction_is_a_flood() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.send_data(id, b"all", true).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.reset_stream(id, ResetCode::Failed);
    let error =
        receive_error(&mut acceptor, &raw_frame(FrameKind::Data, 0, id.number(), b"x")).unwrap();
    assert_eq!(error.go_away_code(), GoAwayCode::Flood);
}

#[test]
fn trailers_count_with_the_heads() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    let largest_section = vec![b'x'; MAX_HEAD as usize];
    acceptor.send_head(id, false, false, head_writer(&largest_section)).unwrap();
    assert_eq!(acceptor.send_trailers(id, &largest_section), Err(StreamClosed));
    let events = deliver_output(&mut acceptor, &mut opener);
    let reset = LinkEvent::Reset { stream: id, code: ResetCode::TooLarge, reason: Bytes::new() };
    assert_eq!((events.len(), events.last()), (2, Some(&reset)));

    let (mut opener, mut acceptor) = connected_pair();
    open_stream(&mut opener, &mut acceptor);
    let wire = [
        raw_frame(FrameKind::Head, 0, 1, &largest_section),
        raw_frame(FrameKind::Trailers, 0, 1, &largest_section),
    ]
    .concat();
    assert_eq!(
        receive_error(&mut opener, &wire).map(|error| error.go_away_code()),
        Some(GoAwayCode::Protocol)
    );
}

#[test]
fn allowances_cover_crossing_frames_and_useful_frames_restore_them() {
    let limits = LinkLimits {
        max_streams: 64,
        max_useless_frames: 0,
        max_early_resets: 0,
        ..LinkLimits::default()
    };
    let new_acceptor = || {
        let mut acceptor = Link::new(Role::Acceptor, limits);
        let mut hello = BytesMut::new();
        frame::write_hello(&mut hello, Role::Opener, &limits);
        assert_eq!(receive_error(&mut acceptor, &hello), None);
        acceptor
    };
    let pong = raw_frame(FrameKind::Pong, 0, 0, b"");
    let expect_allowance = |link: &mut Link, frames: usize| {
        assert_eq!(receive_error(link, &pong.repeat(frames)), None);
        assert_eq!(
            receive_error(link, &pong).map(|error| error.go_away_code()),
            Some(GoAwayCode::Flood)
        );
    };
    expect_allowance(&mut new_acceptor(), 64 * 8);

    // OPEN and DATA restore one frame each.
    let mut acceptor = new_acceptor();
    assert_eq!(receive_error(&mut acceptor, &pong.repeat(64 * 8)), None);
    let request =
        [raw_frame(FrameKind::Open, 0, 1, b""), raw_frame(FrameKind::Data, frame::END, 1, b"x")]
            .concat();
    assert_eq!(receive_error(&mut acceptor, &request), None);
    expect_allowance(&mut acceptor, 2);

    // A finished stream restores eight, for the frames that may cross with its end.
    let mut acceptor = new_acceptor();
    assert_eq!(receive_error(&mut acceptor, &pong.repeat(64 * 8)), None);
    assert_eq!(receive_error(&mut acceptor, &request), None);
    acceptor.send_head(StreamId(1), false, true, head_writer(b"200")).unwrap();
    expect_allowance(&mut acceptor, 2 + 8);

    let mut acceptor = new_acceptor();
    let open_and_reset = |number| {
        [raw_frame(FrameKind::Open, 0, number, b""), raw_frame(FrameKind::Reset, 0, number, &[1])]
    };
    for number in 1..=64 {
        assert_eq!(receive_error(&mut acceptor, &open_and_reset(number).concat()), None);
    }
    let error = receive_error(&mut acceptor, &open_and_reset(65).concat());
    assert_eq!(error.map(|error| error.go_away_code()), Some(GoAwayCode::Flood));
}

#[test]
fn no_frame_follows_the_last_go_away() {
    let ping = raw_frame(FrameKind::Ping, 0, 0, b"");
    let misplaced = raw_frame(FrameKind::Data, 0, 9, b"x");
    expect_acceptor_error("a ping and a fault", &[ping, misplaced].concat(), GoAwayCode::Protocol);
}

#[test]
fn an_opener_also_respects_its_own_stream_limit() {
    let mut opener =
        Link::new(Role::Opener, LinkLimits { max_streams: 100, ..LinkLimits::default() });
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    deliver_output(&mut acceptor, &mut opener);
    assert_eq!(opener.vacant_stream_count(), 100);
}

#[test]
fn a_peer_that_sends_requests_without_reading_stalls_the_link() {
    let limits = LinkLimits { stall_threshold: 100_000, ..LinkLimits::default() };
    let mut acceptor = Link::new(Role::Acceptor, limits);
    let mut opener = Link::new(Role::Opener, limits);
    deliver_output(&mut opener, &mut acceptor);
    let error = (1..20_000).find_map(|number| {
        let mut wire = raw_frame(FrameKind::Open, frame::END, number, b"GET");
        match acceptor.receive(&mut wire) {
            Ok(Some(LinkEvent::Opened { stream, .. })) => {
                acceptor.reset_stream(stream, ResetCode::Refused)
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => return Some(error),
        }
        None
    });
    let error = error.unwrap();
    assert!(matches!(error, LinkError::Stalled { bytes } if bytes <= 100_000 + 9), "{error}");
}

#[test]
fn congestion_is_reported_from_the_threshold_on() {
    let (mut opener, mut acceptor) = connected_pair();
    let mut written = 0;
    while !opener.is_congested() {
        let id = opener.open_stream(StreamKind::Http, false, head_writer(b"POST")).unwrap();
        written += 8 + 4 + opener.send_data(id, &[0; 60_000], false).unwrap() + 4 * 8;
        assert_eq!(opener.output().len(), written);
    }
    assert!((CONGESTION_THRESHOLD..CONGESTION_THRESHOLD + 61_000).contains(&written));
    deliver_output(&mut opener, &mut acceptor);
    assert!(!opener.is_congested());
}

/// Asserts that these bytes break a link with an open stream 1, with this code.
fn expect_acceptor_error(name: &str, wire: &[u8], code: GoAwayCode) {
    let (mut opener, mut acceptor) = connected_pair();
    open_stream(&mut opener, &mut acceptor);
    let error = receive_error(&mut acceptor, wire);
    assert_eq!(error.map(|error| error.go_away_code()), Some(code), "{name}");
    let go_away = raw_frame(
        FrameKind::GoAway,
        0,
        0,
        &[0, 0, 0, acceptor.last_stream.number() as u8, code as u8],
    );
    assert!(acceptor.output().ends_with(&go_away), "{name}");
}

/// The error caused by these bytes, if any; the output is kept.
fn receive_error(link: &mut Link, wire: &[u8]) -> Option<LinkError> {
    let mut input = BytesMut::from(wire);
    loop {
        match link.receive(&mut input) {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

const TOO_LONG_HELLO_BYTES: u32 = 257;
const FLOW_CONTROL: GoAwayCode = GoAwayCode::FlowControl;
