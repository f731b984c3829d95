//! Checks the invariants of a link for arbitrary received bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
use leno_wire::link::{
    Link, LinkError, LinkEvent, LinkLimits, MIN_WINDOW, ResetCode, Role, SMALLEST_MAX_STREAMS,
    StreamId, StreamKind,
};

/// Checks that the segmentation of the bytes does not affect the events and the error, and that a link keeps its limits
/// for any bytes and any concurrent sends. The first byte selects the role, the second byte seeds the random calls, and
/// the other bytes are the output of the peer.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&[role, seed], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let role = if role == b'o' { Role::Opener } else { Role::Acceptor };
    let at_once = receive_in_steps(role, bytes, bytes.len().max(1));
    for step in [1, 3, 11] {
        assert_eq!(receive_in_steps(role, bytes, step), at_once, "in packets of {step}");
    }
    RandomDriver::new(role, seed).drive(bytes);
}

/// Returns the events and the error of a link that only receives.
fn receive_in_steps(role: Role, bytes: &[u8], step: usize) -> (Vec<LinkEvent>, Option<LinkError>) {
    let mut link = start_link(role);
    let mut input = BytesMut::new();
    let mut events = Vec::new();
    for packet in bytes.chunks(step) {
        input.extend_from_slice(packet);
        loop {
            match link.receive(&mut input) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(input.len() < link.own_limits().max_input_bytes());
    }
    (events, None)
}

/// Creates a link with small limits, and for the opener some streams that its peer may answer.
fn start_link(role: Role) -> Link {
    let limits = LinkLimits {
        max_streams: SMALLEST_MAX_STREAMS,
        window: MIN_WINDOW,
        ..LinkLimits::default()
    };
    let mut link = Link::new(role, limits);
    if role == Role::Opener {
        for (kind, end_stream) in
            [(StreamKind::Http, true), (StreamKind::Http, false), (StreamKind::Tcp, false)]
        {
            let open_result =
                link.open_stream(kind, end_stream, |output| output.put_slice(b"GET / HTTP/1.1"));
            open_result.expect("a new link takes a few streams");
        }
    }
    link
}

/// A driver that responds, resets and consumes at random, determined by a seed, and counts the unread bytes.
struct RandomDriver {
    link: Link,
    seed: u64,
    unread_bytes: BTreeMap<StreamId, u32>,
}

impl RandomDriver {
    fn new(role: Role, seed: u8) -> Self {
        Self { link: start_link(role), seed: u64::from(seed) + 1, unread_bytes: BTreeMap::new() }
    }

    fn drive(mut self, bytes: &[u8]) {
        let mut input = BytesMut::from(bytes);
        loop {
            match self.link.receive(&mut input) {
                Ok(Some(event)) => self.handle_event(event),
                Ok(None) => return,
                Err(error) => {
                    assert_eq!(self.link.receive(&mut input), Err(error));
                    assert_eq!(self.link.stream_count(), 0);
                    assert!(!self.link.output().is_empty());
                    return;
                }
            }
            assert!(self.link.stream_count() <= SMALLEST_MAX_STREAMS as usize);
            let limits = *self.link.own_limits();
            assert!(self.link.output().len() <= limits.stall_threshold + limits.max_input_bytes());
        }
    }

    fn handle_event(&mut self, event: LinkEvent) {
        let stream = match event {
            LinkEvent::Opened { stream, end_stream, .. } => {
                self.unread_bytes.insert(stream, 0);
                self.record_end(stream, end_stream)
            }
            LinkEvent::Head { stream, interim, end_stream, .. } => {
                assert!(!interim || !end_stream);
                self.record_end(stream, end_stream)
            }
            LinkEvent::Data { stream, data, end_stream } => {
                assert!(end_stream || !data.is_empty());
                let unread_bytes = self.unread_bytes.entry(stream).or_default();
                *unread_bytes += u32::try_from(data.len()).expect("a frame is short");
                assert!(*unread_bytes <= MIN_WINDOW);
                self.record_end(stream, end_stream)
            }
            LinkEvent::Trailers { stream, .. } => self.record_end(stream, true),
            LinkEvent::Reset { stream, .. } => {
                assert_eq!(self.link.available_credit(stream), 0);
                self.unread_bytes.remove(&stream);
                return;
            }
            LinkEvent::Credit { stream } => {
                assert!(self.link.available_credit(stream) > 0);
                stream
            }
            LinkEvent::Ready | LinkEvent::GoAway { .. } | LinkEvent::Pong => return,
        };
        self.call_driver(stream);
    }

    fn record_end(&mut self, stream: StreamId, end_stream: bool) -> StreamId {
        if end_stream {
            self.unread_bytes.remove(&stream);
        }
        stream
    }

    /// Performs one driver call; only panics and hangs matter, not results.
    fn call_driver(&mut self, stream: StreamId) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = self.seed >> 56;
        let end_stream = random & 8 != 0;
        let head = |output: &mut BytesMut| output.put_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        match random % 8 {
            0 => drop(self.link.send_head(stream, random & 16 != 0, end_stream, head)),
            1 => drop(self.link.send_data(stream, &[7; 20_000], end_stream)),
            2 => drop(self.link.send_trailers(stream, b"a: b\r\n")),
            3 => self.link.reset_stream(stream, ResetCode::Cancelled),
            4 => self.link.output().clear(),
            5 => self.link.ping(),
            6 if random > 250 => self.link.drain(),
            _ => {
                let unread_bytes = self.unread_bytes.get_mut(&stream).map(std::mem::take);
                self.link.record_consumed(stream, unread_bytes.unwrap_or_default());
            }
        }
    }
}
