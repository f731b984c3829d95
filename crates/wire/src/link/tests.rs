//! Tests of the link rules, one by one.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]

mod document;
mod drain;
mod hostile;
mod limits;
mod order;
mod random;
mod simulation;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::frame::{self, FrameHeader, FrameKind};
use super::*;

#[test]
fn a_request_and_its_response_cross_the_link() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = opener
        .open_stream(StreamKind::Http, false, head_writer(b"POST / HTTP/1.1\r\n\r\n"))
        .unwrap();
    assert_eq!(opener.send_data(id, b"hello", true), Ok(5));
    let events = deliver_output(&mut opener, &mut acceptor);
    let head = Bytes::from_static(b"POST / HTTP/1.1\r\n\r\n");
    let opened = LinkEvent::Opened { stream: id, kind: StreamKind::Http, head, end_stream: false };
    assert_eq!(events, [opened, data_event(id, b"hello", true)]);

    acceptor.send_head(id, true, false, head_writer(b"100")).unwrap();
    acceptor.send_head(id, false, false, head_writer(b"200")).unwrap();
    assert_eq!(acceptor.send_data(id, b"world", false), Ok(5));
    acceptor.send_trailers(id, b"a: b\r\n").unwrap();
    let events = deliver_output(&mut acceptor, &mut opener);
    let expected = [
        head_event(id, b"100", true, false),
        head_event(id, b"200", false, false),
        data_event(id, b"world", false),
        LinkEvent::Trailers { stream: id, trailers: Bytes::from_static(b"a: b\r\n") },
    ];
    assert_eq!(events, expected);
    assert!(opener.is_idle() && acceptor.is_idle());
}

#[test]
fn frames_of_one_iteration_share_one_output() {
    let (mut opener, mut acceptor) = connected_pair();
    for _ in 0..10 {
        opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    }
    let mut wire = opener.output().split();
    assert_eq!(wire.len(), 10 * (8 + 3));
    assert_eq!(all_events(&mut acceptor, &mut wire).len(), 10);
}

#[test]
fn the_opener_may_send_before_the_hello_of_the_peer() {
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    let id = opener.open_stream(StreamKind::Http, false, head_writer(b"POST")).unwrap();
    let body = vec![7; WINDOW as usize];
    assert_eq!(opener.send_data(id, &body, true), Ok(MIN_WINDOW as usize));
    assert_eq!(opener.vacant_stream_count(), SMALLEST_MAX_STREAMS as usize - 1);
    assert_eq!(deliver_output(&mut opener, &mut acceptor).first(), Some(&LinkEvent::Ready));

    let events = deliver_output(&mut acceptor, &mut opener);
    assert_eq!(events, [LinkEvent::Ready, LinkEvent::Credit { stream: id }]);
    assert_eq!(opener.available_credit(id), WINDOW - MIN_WINDOW);
    assert_eq!(opener.vacant_stream_count(), MAX_STREAMS as usize - 1);
    let remaining_body = &body[MIN_WINDOW as usize..];
    assert_eq!(opener.send_data(id, remaining_body, true), Ok(remaining_body.len()));
}

#[test]
fn tcp_half_closes_both_ways() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = opener.open_stream(StreamKind::Tcp, false, head_writer(b"to")).unwrap();
    opener.send_data(id, b"", true).unwrap();
    let events = deliver_output(&mut opener, &mut acceptor);
    assert_eq!(events.last(), Some(&data_event(id, b"", true)));
    assert_eq!((opener.stream_count(), acceptor.stream_count()), (1, 1));
    assert_eq!(opener.send_data(id, b"late", false), Err(StreamClosed));

    // The acceptor of a TCP stream needs no head, and continues after the opener's end.
    acceptor.send_data(id, b"still here", false).unwrap();
    acceptor.send_data(id, b"", true).unwrap();
    let events = deliver_output(&mut acceptor, &mut opener);
    assert_eq!(events, [data_event(id, b"still here", false), data_event(id, b"", true)]);
    assert_eq!((opener.stream_count(), acceptor.stream_count()), (0, 0));
}

#[test]
fn a_sender_stops_at_the_window_and_continues_with_credit() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    let body = vec![1; WINDOW as usize + 10];
    assert_eq!(opener.send_data(id, &body, true), Ok(WINDOW as usize));
    assert_eq!(opener.send_data(id, &body[WINDOW as usize..], true), Ok(0));
    assert_eq!(opener.available_credit(id), 0);
    let received: usize = deliver_output(&mut opener, &mut acceptor).iter().map(data_len).sum();
    assert_eq!(received, WINDOW as usize);

    // CREDIT is sent once half a window is due, and not before.
    acceptor.record_consumed(id, WINDOW / 2 - 1);
    assert!(acceptor.output().is_empty());
    acceptor.record_consumed(id, 1);
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [LinkEvent::Credit { stream: id }]);
    assert_eq!(opener.available_credit(id), WINDOW / 2);
    assert_eq!(opener.send_data(id, &body[WINDOW as usize..], true), Ok(10));
    assert_eq!(deliver_output(&mut opener, &mut acceptor), [data_event(id, &[1; 10], true)]);
}

#[test]
fn credit_for_a_sender_with_credit_is_not_an_event() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.send_data(id, &[0; 40_000], false).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.record_consumed(id, 40_000);
    assert_eq!(deliver_output(&mut acceptor, &mut opener), []);
    assert_eq!(opener.available_credit(id), WINDOW);
}

#[test]
fn control_frames_need_no_credit() {
    let (mut opener, mut acceptor) = connected_pair();
    let first_stream = open_stream(&mut opener, &mut acceptor);
    let second_stream = opener.open_stream(StreamKind::Tcp, false, head_writer(b"")).unwrap();
    opener.send_data(first_stream, &[0; WINDOW as usize], false).unwrap();
    assert_eq!(opener.available_credit(first_stream), 0);
    opener.send_trailers(first_stream, b"").unwrap();
    opener.reset_stream(second_stream, ResetCode::Cancelled);
    opener.ping();
    let events = deliver_output(&mut opener, &mut acceptor);
    assert!(events.contains(&LinkEvent::Trailers { stream: first_stream, trailers: Bytes::new() }));
    assert!(events.contains(&LinkEvent::Reset {
        stream: second_stream,
        code: ResetCode::Cancelled,
        reason: Bytes::new()
    }));
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [LinkEvent::Pong]);
}

#[test]
fn data_is_split_into_frames_and_the_last_one_has_the_end() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.send_data(id, &[3; 2 * MAX_FRAME as usize + 1], true).unwrap();
    let lengths: Vec<_> = deliver_output(&mut opener, &mut acceptor)
        .iter()
        .map(|event| (data_len(event), matches!(event, LinkEvent::Data { end_stream: true, .. })))
        .collect();
    let frame = MAX_FRAME as usize;
    assert_eq!(lengths, [(frame, false), (frame, false), (1, true)]);
}

#[test]
fn an_empty_send_without_end_writes_nothing() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    assert_eq!(opener.send_data(id, b"", false), Ok(0));
    assert!(opener.output().is_empty());
}

#[test]
fn a_reset_frees_the_stream_and_late_frames_are_ignored() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    acceptor.send_head(id, false, false, head_writer(b"200")).unwrap();
    acceptor.send_data(id, &[0; WINDOW as usize], false).unwrap();
    acceptor.send_trailers(id, b"x: y\r\n").unwrap();
    opener.reset_stream(id, ResetCode::Cancelled);
    opener.reset_stream(id, ResetCode::Failed);
    assert_eq!(opener.stream_count(), 0);
    assert_eq!(opener.send_data(id, b"x", true), Err(StreamClosed));
    assert_eq!(deliver_output(&mut acceptor, &mut opener), []);

    let reset = LinkEvent::Reset { stream: id, code: ResetCode::Cancelled, reason: Bytes::new() };
    assert_eq!(deliver_output(&mut opener, &mut acceptor), [reset]);
    assert_eq!(acceptor.stream_count(), 0);
    assert_eq!(acceptor.send_head(id, false, true, head_writer(b"x")), Err(StreamClosed));
    assert_eq!(acceptor.available_credit(id), 0);
    acceptor.record_consumed(id, 5);
    acceptor.reset_stream(id, ResetCode::Failed);
    assert!(acceptor.output().is_empty());
}

#[test]
fn pings_wait_for_their_pong_and_pongs_coalesce() {
    let (mut opener, mut acceptor) = connected_pair();
    opener.ping();
    opener.ping();
    assert_eq!(opener.output().len(), 8);
    let mut wire = BytesMut::new();
    for _ in 0..100 {
        wire.extend_from_slice(&raw_frame(FrameKind::Ping, 0, 0, b""));
    }
    assert_eq!(all_events(&mut acceptor, &mut wire), []);
    assert!(!acceptor.is_idle());
    assert_eq!(acceptor.output().len(), 8);
    // The second ping waited for the PONG of the first.
    assert_eq!(deliver_output(&mut acceptor, &mut opener), []);
    assert!(acceptor.is_idle());
    assert_eq!(opener.output().len(), 16);
    assert_eq!(deliver_output(&mut opener, &mut acceptor), []);
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [LinkEvent::Pong]);
}

#[test]
fn unknown_codes_read_as_failed_and_internal() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    let mut wire = raw_frame(FrameKind::Reset, 0, id.number(), &[200]);
    let reset = LinkEvent::Reset { stream: id, code: ResetCode::Failed, reason: Bytes::new() };
    assert_eq!(all_events(&mut acceptor, &mut wire), [reset]);
    let mut wire = raw_frame(FrameKind::GoAway, 0, 0, &[0, 0, 0, 0, 200]);
    let go_away = LinkEvent::GoAway { last_stream: StreamId::NONE, code: GoAwayCode::Internal };
    assert_eq!(all_events(&mut acceptor, &mut wire), [go_away]);
    for code in ResetCode::ALL {
        assert_eq!(ResetCode::from_wire(*code as u8), *code);
    }
    for code in GoAwayCode::ALL {
        assert_eq!(GoAwayCode::from_wire(*code as u8), *code);
    }
}

#[test]
fn a_head_that_is_too_large_is_not_sent() {
    let (mut opener, mut acceptor) = connected_pair();
    let too_large_head = vec![b'x'; MAX_HEAD as usize + 1];
    let rejected = opener.open_stream(StreamKind::Http, true, head_writer(&too_large_head));
    assert_eq!(rejected, Err(OpenError::TooLarge));
    assert!(opener.is_idle());
    let largest_head = vec![b'x'; MAX_HEAD as usize];
    let id = opener.open_stream(StreamKind::Http, false, head_writer(&largest_head)).unwrap();
    assert_eq!(id.number(), 1);
    assert_eq!(deliver_output(&mut opener, &mut acceptor).len(), 1);
    assert_eq!(
        acceptor.send_head(id, false, true, head_writer(&too_large_head)),
        Err(StreamClosed)
    );
    let reset = LinkEvent::Reset { stream: id, code: ResetCode::TooLarge, reason: Bytes::new() };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [reset]);
}

#[test]
fn calls_out_of_order_reset_the_stream_but_not_the_link() {
    type MisorderedCall = fn(&mut Link, &mut Link, StreamId) -> Result<(), StreamClosed>;
    let cases: [(&str, MisorderedCall); 5] = [
        ("data before the head", |_, acceptor, id| acceptor.send_data(id, b"x", true).map(drop)),
        ("trailers before the head", |_, acceptor, id| acceptor.send_trailers(id, b"")),
        ("an interim head that ends", |_, acceptor, id| acceptor.send_head(id, true, true, |_| {})),
        ("a head from the opener", |opener, _, id| opener.send_head(id, false, false, |_| {})),
        ("two heads", |_, acceptor, id| {
            acceptor.send_head(id, false, false, |_| {})?;
            acceptor.send_head(id, false, false, |_| {})
        }),
    ];
    for (name, call) in cases {
        let (mut opener, mut acceptor) = connected_pair();
        let id = open_stream(&mut opener, &mut acceptor);
        assert_eq!(call(&mut opener, &mut acceptor, id), Err(StreamClosed), "{name}");
        deliver_output(&mut acceptor, &mut opener);
        deliver_output(&mut opener, &mut acceptor);
        assert_eq!((opener.stream_count(), acceptor.stream_count()), (0, 0), "{name}");
        open_stream(&mut opener, &mut acceptor);
    }
}

#[test]
fn a_failed_link_returns_the_same_error_again() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    let mut wire = raw_frame(FrameKind::Data, 0, 9, b"x");
    let error = acceptor.receive(&mut wire).unwrap_err();
    assert_eq!(error.go_away_code(), GoAwayCode::Protocol);
    assert_eq!(acceptor.receive(&mut raw_frame(FrameKind::Ping, 0, 0, b"")), Err(error));
    assert_eq!(acceptor.stream_count(), 0);
    assert_eq!(acceptor.send_data(id, b"x", true), Err(StreamClosed));
    acceptor.ping();
    acceptor.go_away(GoAwayCode::Drain);
    let go_away = LinkEvent::GoAway { last_stream: id, code: GoAwayCode::Protocol };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [go_away]);

    opener.receive(&mut raw_frame(FrameKind::Open, 0, 2, b"")).unwrap_err();
    assert_eq!(
        opener.open_stream(StreamKind::Http, true, head_writer(b"")),
        Err(OpenError::Broken)
    );
    assert!(opener.is_going_away());
}

#[test]
fn only_the_opener_opens_streams() {
    let (_, mut acceptor) = connected_pair();
    assert_eq!(
        acceptor.open_stream(StreamKind::Http, true, head_writer(b"")),
        Err(OpenError::Broken)
    );
    assert_eq!(acceptor.vacant_stream_count(), 0);
}

#[test]
fn data_events_share_the_input_buffer() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.send_data(id, &[5; 1000], false).unwrap();
    let mut wire = opener.output().split();
    let expected_address = wire.as_ptr().wrapping_add(8);
    match acceptor.receive(&mut wire) {
        Ok(Some(LinkEvent::Data { data, .. })) => assert_eq!(data.as_ptr(), expected_address),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_written_header_is_read_unchanged(
        length in 0u32..1 << 24,
        kind in 1u8..=10,
        stream in 1u32..,
        end_stream: bool,
    ) {
        let header_bytes = raw_header(length, kind, 0, stream);
        let header = FrameHeader::peek(&header_bytes);
        match kind {
            1 | 8..=10 => prop_assert!(header.is_err()),
            _ => {
                let header = header.unwrap().unwrap();
                prop_assert_eq!(header.length, length);
                prop_assert_eq!(header.stream.number(), stream);
                prop_assert_eq!(&header.encode()[..], &header_bytes[..]);
                let is_data = header.kind == FrameKind::Data;
                let header_with_end = header.with_flag(frame::END, end_stream && is_data);
                prop_assert_eq!(FrameHeader::peek(&header_with_end.encode()), Ok(Some(header_with_end)));
            }
        }
    }

    #[test]
    fn events_do_not_depend_on_segmentation(cuts in prop::collection::vec(1usize..40, 1..50)) {
        let (wire, expected) = record_conversation();
        let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
        let mut input = BytesMut::new();
        let mut events = Vec::new();
        let mut unsent = &wire[..];
        let mut cuts = cuts.iter().cycle();
        while !unsent.is_empty() {
            let (packet, remaining) = unsent.split_at((*cuts.next().unwrap()).min(unsent.len()));
            unsent = remaining;
            input.extend_from_slice(packet);
            events.extend(all_events(&mut acceptor, &mut input));
        }
        prop_assert_eq!(events, expected);
    }
}

/// The output of an opener in one busy iteration, and its events.
fn record_conversation() -> (Bytes, Vec<LinkEvent>) {
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    let first = opener.open_stream(StreamKind::Http, false, head_writer(b"POST /a")).unwrap();
    let second = opener.open_stream(StreamKind::Tcp, false, head_writer(b"to b")).unwrap();
    opener.send_data(second, b"bytes", false).unwrap();
    opener.send_data(first, &[1; 100], false).unwrap();
    opener.ping();
    opener.send_trailers(first, b"t: 1\r\n").unwrap();
    opener.reset_stream(second, ResetCode::TimedOut);
    opener.go_away(GoAwayCode::Idle);
    let wire = opener.output().split().freeze();
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    let events = all_events(&mut acceptor, &mut BytesMut::from(&wire[..]));
    assert_eq!(events.len(), 8);
    (wire, events)
}

/// Returns two ends with exchanged HELLOs.
fn connected_pair() -> (Link, Link) {
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    assert_eq!(deliver_output(&mut opener, &mut acceptor), [LinkEvent::Ready]);
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [LinkEvent::Ready]);
    (opener, acceptor)
}

/// Opens an HTTP stream at both ends, with an incomplete request.
fn open_stream(opener: &mut Link, acceptor: &mut Link) -> StreamId {
    let id = opener
        .open_stream(StreamKind::Http, false, head_writer(b"POST / HTTP/1.1\r\n\r\n"))
        .unwrap();
    assert_eq!(deliver_output(opener, acceptor).len(), 1);
    id
}

#[test]
fn a_rejection_is_distinct_from_a_response_and_has_its_reason() {
    let (mut opener, mut acceptor) = connected_pair();
    let [first, second] = [(); 2].map(|()| open_stream(&mut opener, &mut acceptor));
    acceptor.send_rejection(first, true, head_writer(b"denied")).unwrap();
    acceptor.reset_with_reason(second, ResetCode::Denied, "denied-by-policy");
    let head = Bytes::from_static(b"denied");
    let reason = Bytes::from_static(b"denied-by-policy");
    let expected = [
        LinkEvent::Head { stream: first, head, interim: false, rejected: true, end_stream: true },
        LinkEvent::Reset { stream: second, code: ResetCode::Denied, reason },
    ];
    assert_eq!(deliver_output(&mut acceptor, &mut opener), expected);
}

#[test]
fn a_peer_of_an_earlier_release_gets_the_rejection_without_its_reason() {
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    // The HELLO of an earlier release has a zero where later releases declare their features.
    opener.output()[frame::HEADER_BYTES + 3] = 0;
    let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
    deliver_output(&mut opener, &mut acceptor);
    deliver_output(&mut acceptor, &mut opener);
    let [first, second] = [(); 2].map(|()| open_stream(&mut opener, &mut acceptor));
    acceptor.send_rejection(first, true, head_writer(b"denied")).unwrap();
    acceptor.reset_with_reason(second, ResetCode::Denied, "denied-by-policy");
    let reset = LinkEvent::Reset { stream: second, code: ResetCode::Denied, reason: Bytes::new() };
    let expected = [head_event(first, b"denied", false, true), reset];
    assert_eq!(deliver_output(&mut acceptor, &mut opener), expected);
}

#[test]
fn a_reason_that_does_not_fit_into_a_reset_is_omitted() {
    for (length, kept) in [(64, 64), (65, 0)] {
        let (mut opener, mut acceptor) = connected_pair();
        let id = open_stream(&mut opener, &mut acceptor);
        acceptor.reset_with_reason(id, ResetCode::Denied, &"x".repeat(length));
        let events = deliver_output(&mut acceptor, &mut opener);
        assert!(matches!(&events[..], [LinkEvent::Reset { reason, .. }] if reason.len() == kept));
    }
}

fn deliver_output(sender: &mut Link, receiver: &mut Link) -> Vec<LinkEvent> {
    let mut wire = sender.output().split();
    let events = all_events(receiver, &mut wire);
    assert!(wire.is_empty());
    events
}

fn all_events(link: &mut Link, wire: &mut BytesMut) -> Vec<LinkEvent> {
    std::iter::from_fn(|| link.receive(wire).unwrap()).collect()
}

fn head_writer(head: &[u8]) -> impl FnOnce(&mut BytesMut) {
    move |output| output.put_slice(head)
}

fn data_event(stream: StreamId, data: &[u8], end_stream: bool) -> LinkEvent {
    LinkEvent::Data { stream, data: Bytes::copy_from_slice(data), end_stream }
}

fn head_event(stream: StreamId, head: &[u8], interim: bool, end_stream: bool) -> LinkEvent {
    LinkEvent::Head {
        stream,
        head: Bytes::copy_from_slice(head),
        interim,
        rejected: false,
        end_stream,
    }
}

fn data_len(event: &LinkEvent) -> usize {
    match event {
        LinkEvent::Data { data, .. } => data.len(),
        _ => 0,
    }
}

fn raw_frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> BytesMut {
    let mut frame = raw_header(payload.len() as u32, kind as u8, flags, stream);
    frame.put_slice(payload);
    frame
}

fn raw_header(length: u32, kind: u8, flags: u8, stream: u32) -> BytesMut {
    let mut frame = BytesMut::new();
    frame.put_uint(u64::from(length), 3);
    frame.put_u8(kind | flags);
    frame.put_u32(stream);
    frame
}
