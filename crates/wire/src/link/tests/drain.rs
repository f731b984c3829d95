//! Tests of draining: streams are served or rejected, and none are lost in between.

use super::*;

#[test]
fn the_acceptor_serves_accepted_streams_after_go_away() {
    let (mut opener, mut acceptor) = connected_pair();
    let served = open_stream(&mut opener, &mut acceptor);
    acceptor.go_away(GoAwayCode::Drain);
    // These two streams were in flight when the acceptor sent GOAWAY.
    let unprocessed = opener.open_stream(StreamKind::Http, false, head_writer(b"POST")).unwrap();
    opener.send_data(unprocessed, &[0; 1000], true).unwrap();
    opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    assert_eq!(deliver_output(&mut opener, &mut acceptor), []);
    assert_eq!(acceptor.stream_count(), 1);

    let go_away = LinkEvent::GoAway { last_stream: served, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [go_away]);
    assert_eq!(opener.stream_count(), 1);
    assert_eq!(opener.send_data(unprocessed, b"", true), Err(StreamClosed));
    assert!(opener.is_going_away() && acceptor.is_going_away());
    let rejected = opener.open_stream(StreamKind::Http, true, head_writer(b"GET"));
    assert_eq!(rejected, Err(OpenError::GoingAway));

    opener.send_data(served, b"", true).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.send_head(served, false, true, head_writer(b"200")).unwrap();
    assert_eq!(
        deliver_output(&mut acceptor, &mut opener),
        [head_event(served, b"200", false, true)]
    );
    assert!(acceptor.is_idle() && opener.is_idle());
}

#[test]
fn a_drain_loses_no_stream_in_flight() {
    let (mut opener, mut acceptor) = connected_pair();
    acceptor.drain();
    acceptor.ping();
    let id = opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    assert_eq!(deliver_output(&mut opener, &mut acceptor).len(), 1);
    let go_away = LinkEvent::GoAway { last_stream: StreamId::ALL, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [go_away]);
    assert_eq!(opener.stream_count(), 1);

    assert_eq!(deliver_output(&mut opener, &mut acceptor), [LinkEvent::Pong]);
    acceptor.go_away(GoAwayCode::Drain);
    acceptor.send_head(id, false, true, head_writer(b"200")).unwrap();
    let events = deliver_output(&mut acceptor, &mut opener);
    let go_away = LinkEvent::GoAway { last_stream: id, code: GoAwayCode::Drain };
    assert_eq!(events, [go_away, head_event(id, b"200", false, true)]);
}

#[test]
fn a_pong_to_an_earlier_ping_does_not_prove_that_no_stream_is_in_flight() {
    let (mut opener, mut acceptor) = connected_pair();
    acceptor.ping();
    deliver_output(&mut acceptor, &mut opener);
    // The PONG is in flight when the acceptor drains, and so is the stream after it.
    let mut pong = opener.output().split();
    acceptor.drain();
    acceptor.ping();
    let id = opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    assert_eq!(acceptor.receive(&mut pong).unwrap(), None);
    deliver_output(&mut acceptor, &mut opener);
    let events = deliver_output(&mut opener, &mut acceptor);
    assert!(
        matches!(events[..], [LinkEvent::Opened { stream, .. }, LinkEvent::Pong] if stream == id)
    );
}

#[test]
fn an_opener_opens_no_streams_after_go_away_and_the_acceptor_enforces_it() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.drain();
    opener.go_away(GoAwayCode::Idle);
    let go_away = LinkEvent::GoAway { last_stream: StreamId::NONE, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut opener, &mut acceptor), [go_away]);
    assert_eq!((opener.stream_count(), acceptor.stream_count()), (1, 1));
    assert_eq!(opener.vacant_stream_count(), 0);
    acceptor.send_head(id, false, false, head_writer(b"200")).unwrap();
    assert_eq!(deliver_output(&mut acceptor, &mut opener).len(), 1);
    let mut open = raw_frame(FrameKind::Open, 0, 2, b"GET");
    let error = acceptor.receive(&mut open).unwrap_err();
    assert!(matches!(error, LinkError::Misplaced { .. }), "{error}");
}

#[test]
fn the_link_goes_away_before_its_stream_numbers_run_out() {
    let (mut opener, mut acceptor) = connected_pair();
    opener.last_stream = StreamId(LAST_STREAM_NUMBER - 2);
    acceptor.last_stream = StreamId(LAST_STREAM_NUMBER - 2);
    opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    assert!(!opener.is_going_away());
    let last = opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    assert_eq!(last.number(), LAST_STREAM_NUMBER);
    assert_eq!(
        opener.open_stream(StreamKind::Http, true, head_writer(b"")),
        Err(OpenError::GoingAway)
    );
    let events = deliver_output(&mut opener, &mut acceptor);
    let go_away =
        LinkEvent::GoAway { last_stream: StreamId::NONE, code: GoAwayCode::StreamIdsExhausted };
    assert_eq!(events.last(), Some(&go_away));
    assert_eq!(acceptor.stream_count(), 2);
    let (_, mut acceptor) = connected_pair();
    acceptor.last_stream = StreamId(LAST_STREAM_NUMBER);
    let error = acceptor.receive(&mut raw_frame(FrameKind::Open, 0, u32::MAX, b"")).unwrap_err();
    assert!(matches!(error, LinkError::Misplaced { .. }), "{error}");
}

#[test]
fn a_later_go_away_never_raises_the_last_stream() {
    let (mut opener, mut acceptor) = connected_pair();
    let served = open_stream(&mut opener, &mut acceptor);
    acceptor.go_away(GoAwayCode::Drain);
    opener.open_stream(StreamKind::Http, true, head_writer(b"GET")).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.receive(&mut raw_frame(FrameKind::Data, 0, 9, b"x")).unwrap_err();
    let events = deliver_output(&mut acceptor, &mut opener);
    let go_away = |code| LinkEvent::GoAway { last_stream: served, code };
    assert_eq!(events, [go_away(GoAwayCode::Drain), go_away(GoAwayCode::Protocol)]);
}
