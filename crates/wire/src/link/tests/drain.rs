//! Tests of draining: streams are served or rejected, and none are lost in between.

use super::*;

#[test]
fn the_acceptor_finishes_what_it_took_after_go_away() {
    let (mut opener, mut acceptor) = connected_pair();
    let served = open_stream(&mut opener, &mut acceptor);
    acceptor.go_away(GoAwayCode::Drain);
    // These two were in flight when the acceptor decided.
    let missed = opener.open_stream(StreamKind::Http, false, write(b"POST")).unwrap();
    opener.send_data(missed, &[0; 1000], true).unwrap();
    opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    assert_eq!(deliver_output(&mut opener, &mut acceptor), []);
    assert_eq!(acceptor.stream_count(), 1);

    let away = LinkEvent::GoAway { last: served, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [away]);
    assert_eq!(opener.stream_count(), 1);
    assert_eq!(opener.send_data(missed, b"", true), Err(StreamClosed));
    assert!(opener.is_going_away() && acceptor.is_going_away());
    let refused = opener.open_stream(StreamKind::Http, true, write(b"GET"));
    assert_eq!(refused, Err(OpenError::GoingAway));

    opener.send_data(served, b"", true).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.send_head(served, false, true, write(b"200")).unwrap();
    assert_eq!(
        deliver_output(&mut acceptor, &mut opener),
        [head_event(served, b"200", false, true)]
    );
    assert!(acceptor.is_idle() && opener.is_idle());
}

#[test]
fn a_drain_loses_no_stream_that_was_on_the_way() {
    let (mut opener, mut acceptor) = connected_pair();
    acceptor.drain();
    acceptor.ping();
    let id = opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    assert_eq!(deliver_output(&mut opener, &mut acceptor).len(), 1);
    let away = LinkEvent::GoAway { last: StreamId::ALL, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut acceptor, &mut opener), [away]);
    assert_eq!(opener.stream_count(), 1);

    assert_eq!(deliver_output(&mut opener, &mut acceptor), [LinkEvent::Pong]);
    acceptor.go_away(GoAwayCode::Drain);
    acceptor.send_head(id, false, true, write(b"200")).unwrap();
    let events = deliver_output(&mut acceptor, &mut opener);
    let away = LinkEvent::GoAway { last: id, code: GoAwayCode::Drain };
    assert_eq!(events, [away, head_event(id, b"200", false, true)]);
}

#[test]
fn the_answer_to_an_earlier_ping_is_no_proof_that_nothing_is_on_the_way() {
    let (mut opener, mut acceptor) = connected_pair();
    acceptor.ping();
    deliver_output(&mut acceptor, &mut opener);
    // The answer is in flight when the acceptor drains, and so is the stream after it.
    let mut answer = opener.output().split();
    acceptor.drain();
    acceptor.ping();
    let id = opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    assert_eq!(acceptor.receive(&mut answer).unwrap(), None);
    deliver_output(&mut acceptor, &mut opener);
    let events = deliver_output(&mut opener, &mut acceptor);
    assert!(
        matches!(events[..], [LinkEvent::Opened { stream, .. }, LinkEvent::Pong] if stream == id)
    );
}

#[test]
fn an_opener_that_goes_away_opens_nothing_and_the_acceptor_knows() {
    let (mut opener, mut acceptor) = connected_pair();
    let id = open_stream(&mut opener, &mut acceptor);
    opener.drain();
    opener.go_away(GoAwayCode::Idle);
    let away = LinkEvent::GoAway { last: StreamId::NONE, code: GoAwayCode::Drain };
    assert_eq!(deliver_output(&mut opener, &mut acceptor), [away]);
    assert_eq!((opener.stream_count(), acceptor.stream_count()), (1, 1));
    assert_eq!(opener.vacant_streams(), 0);
    acceptor.send_head(id, false, false, write(b"200")).unwrap();
    assert_eq!(deliver_output(&mut acceptor, &mut opener).len(), 1);
    let mut open = raw_frame(FrameKind::Open, 0, 2, b"GET");
    let error = acceptor.receive(&mut open).unwrap_err();
    assert!(matches!(error, LinkError::Misplaced { .. }), "{error}");
}

#[test]
fn the_link_retires_before_its_stream_numbers_run_out() {
    let (mut opener, mut acceptor) = connected_pair();
    opener.last = StreamId(STREAM_LAST - 2);
    acceptor.last = StreamId(STREAM_LAST - 2);
    opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    assert!(!opener.is_going_away());
    let last = opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    assert_eq!(last.number(), STREAM_LAST);
    assert_eq!(opener.open_stream(StreamKind::Http, true, write(b"")), Err(OpenError::GoingAway));
    let events = deliver_output(&mut opener, &mut acceptor);
    let away = LinkEvent::GoAway { last: StreamId::NONE, code: GoAwayCode::StreamIdsExhausted };
    assert_eq!(events.last(), Some(&away));
    assert_eq!(acceptor.stream_count(), 2);
    let (_, mut acceptor) = connected_pair();
    acceptor.last = StreamId(STREAM_LAST);
    let error = acceptor.receive(&mut raw_frame(FrameKind::Open, 0, u32::MAX, b"")).unwrap_err();
    assert!(matches!(error, LinkError::Misplaced { .. }), "{error}");
}

#[test]
fn the_last_go_away_promises_no_more_than_the_first() {
    let (mut opener, mut acceptor) = connected_pair();
    let served = open_stream(&mut opener, &mut acceptor);
    acceptor.go_away(GoAwayCode::Drain);
    opener.open_stream(StreamKind::Http, true, write(b"GET")).unwrap();
    deliver_output(&mut opener, &mut acceptor);
    acceptor.receive(&mut raw_frame(FrameKind::Data, 0, 9, b"x")).unwrap_err();
    let events = deliver_output(&mut acceptor, &mut opener);
    let away = |code| LinkEvent::GoAway { last: served, code };
    assert_eq!(events, [away(GoAwayCode::Drain), away(GoAwayCode::Protocol)]);
}
