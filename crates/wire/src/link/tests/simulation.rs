//! Simulation of two links joined by pipes that split data, stall, reorder frames of different streams, and
//! break, by seed.
//!
//! A failure names its seed; add it to [`DEBUG_SEEDS`] to run it separately.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::random::SeededRandom;
use super::*;

#[test]
fn every_byte_arrives_once_in_order_and_all_streams_end() {
    let event_counts = run_seeds(|seed| LinkSimulation::new(seed, Order::Unchanged).run());
    // A simulation without activity proves nothing.
    if DEBUG_SEEDS.is_empty() {
        for (event, count) in [
            ("opened", event_counts.opened_streams),
            ("full", event_counts.rejected_opens),
            ("starved", event_counts.starved_sends),
            ("congested", event_counts.congested_sends),
            ("resets", event_counts.reset_codes),
            ("rejected by GOAWAY", event_counts.abandoned_streams),
            ("trailers", event_counts.has_trailers),
            ("pongs", event_counts.pongs),
            ("links worn out by resets", event_counts.exhausted_links),
        ] {
            assert!(count > 10, "{event}: {count}");
        }
    }
}

/// The order of frames of different streams has no meaning (`docs/link.md`, *Streams*).
#[test]
fn every_byte_arrives_if_streams_are_reordered() {
    let event_counts = run_seeds(|seed| LinkSimulation::new(seed, Order::PerStream).run());
    assert!(
        event_counts.reordered_frames > 1_000 || !DEBUG_SEEDS.is_empty(),
        "{}",
        event_counts.reordered_frames
    );
}

#[test]
fn a_broken_connection_leaves_no_streams_and_reported_only_sent_bytes() {
    let lost_streams =
        run_seeds(|seed| LinkSimulation::new(seed, Order::Unchanged).run_until_disconnect())
            .lost_streams;
    assert!(lost_streams > 100 || !DEBUG_SEEDS.is_empty(), "{lost_streams} streams were lost");
}

/// Runs all seeds and sums their events.
fn run_seeds(run: impl Fn(u64) -> EventCounts) -> EventCounts {
    let seeds: Vec<u64> =
        if DEBUG_SEEDS.is_empty() { (0..SEEDS).collect() } else { DEBUG_SEEDS.to_vec() };
    let mut event_counts = EventCounts::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(run) => event_counts.add(run),
            Err(_) => panic!("the simulation failed with seed {seed}"),
        }
    }
    event_counts
}

/// The events of a run, or their sum over all runs.
#[derive(Debug, Default, Clone, Copy)]
struct EventCounts {
    opened_streams: usize,
    rejected_opens: usize,
    starved_sends: usize,
    congested_sends: usize,
    reset_codes: usize,
    abandoned_streams: usize,
    has_trailers: usize,
    pongs: usize,
    exhausted_links: usize,
    reordered_frames: usize,
    lost_streams: usize,
}

impl EventCounts {
    fn add(&mut self, other: Self) {
        self.opened_streams += other.opened_streams;
        self.rejected_opens += other.rejected_opens;
        self.starved_sends += other.starved_sends;
        self.congested_sends += other.congested_sends;
        self.reset_codes += other.reset_codes;
        self.abandoned_streams += other.abandoned_streams;
        self.has_trailers += other.has_trailers;
        self.pongs += other.pongs;
        self.exhausted_links += other.exhausted_links;
        self.reordered_frames += other.reordered_frames;
        self.lost_streams += other.lost_streams;
    }
}

/// The order of arrival of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Unchanged; pipes split anywhere.
    Unchanged,
    /// Unchanged within a stream, and no OPEN arrives earlier; pipes split between frames.
    PerStream,
}

/// Both sides of a link, the pipes between them, and a record of everything sent.
struct LinkSimulation {
    order: Order,
    random: SeededRandom,
    sides: [Side; 2],
    /// Bytes that left side 0 or 1 and have not arrived.
    bytes_in_flight: [BytesMut; 2],
    /// Steps without arrivals from side 0 or 1.
    stall_steps: [u32; 2],
    sent_data: BTreeMap<(usize, StreamId), SentData>,
    reset_codes: BTreeMap<StreamId, Vec<ResetCode>>,
    last_accepted: StreamId,
    rejected_after: Option<StreamId>,
    /// True if the clients of side 0 have short timeouts: side 0 then resets most of its streams.
    has_short_timeouts: bool,
    event_counts: EventCounts,
}

/// One side of a link, with the state of its driver.
struct Side {
    link: Link,
    input: BytesMut,
    streams: BTreeMap<StreamId, LocalStream>,
}

/// The driver's state of a stream.
struct LocalStream {
    kind: StreamKind,
    head_sent: bool,
    /// The number of bytes that are still to be sent.
    unsent_bytes: usize,
    /// True if trailers end this direction.
    has_trailers: bool,
    /// True once the end of this direction was sent.
    end_sent: bool,
    /// The number of received bytes.
    received_bytes: usize,
    /// The number of received bytes that are not consumed.
    unconsumed_bytes: usize,
    end_received: bool,
}

/// The frames that one side sent on a stream.
#[derive(Default)]
struct SentData {
    heads: Vec<Vec<u8>>,
    heads_received: usize,
    sent_bytes: usize,
    end_sent: bool,
    has_trailers: bool,
}

impl LinkSimulation {
    fn new(seed: u64, order: Order) -> Self {
        let mut random = SeededRandom(seed);
        let limits = |random: &mut SeededRandom| LinkLimits {
            max_streams: SMALLEST_MAX_STREAMS,
            window: MIN_WINDOW + random.below_bound(50_000) as u32,
            congestion_threshold: 4_000 + random.below_bound(250_000),
            // The default ratio to the streams: a well-behaved driver never exceeds the allowance.
            max_early_resets: SMALLEST_MAX_STREAMS * (MAX_EARLY_RESETS / MAX_STREAMS),
            ..LinkLimits::default()
        };
        let side = |role, random: &mut SeededRandom| Side {
            link: Link::new(role, limits(random)),
            input: BytesMut::new(),
            streams: BTreeMap::new(),
        };
        let sides = [side(Role::Opener, &mut random), side(Role::Acceptor, &mut random)];
        let has_short_timeouts = random.one_in(3);
        Self {
            order,
            has_short_timeouts,
            random,
            sides,
            bytes_in_flight: Default::default(),
            stall_steps: [0; 2],
            sent_data: BTreeMap::new(),
            reset_codes: BTreeMap::new(),
            last_accepted: StreamId::NONE,
            rejected_after: None,
            event_counts: EventCounts::default(),
        }
    }

    fn run(mut self) -> EventCounts {
        for step in 0..STEPS {
            self.step(step);
            self.check_bounds();
        }
        self.finish_all();
        self.event_counts
    }

    /// Breaks the connection at a random moment, possibly within a frame.
    fn run_until_disconnect(mut self) -> EventCounts {
        let last = self.random.below_bound(STEPS as usize) as u32;
        for step in 0..last {
            self.step(step);
        }
        for side in [0, 1] {
            self.stall_steps[side] = 0;
            self.deliver_bytes(side, false);
        }
        self.check_bounds();
        for (index, side) in self.sides.iter_mut().enumerate() {
            for (id, local_stream) in std::mem::take(&mut side.streams) {
                // Streams without an end in both directions are known to be lost.
                assert!(!local_stream.end_sent || !local_stream.end_received);
                let sent_data = self.sent_data.get(&(1 - index, id));
                assert!(
                    local_stream.received_bytes
                        <= sent_data.map_or(0, |sent_data| sent_data.sent_bytes)
                );
                side.link.reset_stream(id, ResetCode::Failed);
                self.event_counts.lost_streams += 1;
            }
            side.link.output().clear();
            assert!(side.link.is_idle());
        }
        self.event_counts
    }

    fn step(&mut self, step: u32) {
        let side = self.random.below_bound(2);
        match self.random.below_bound(100) {
            0..=17 => self.open_stream(),
            18..=44 => self.send_data(side),
            45 if self.has_short_timeouts => self.cancel_all(),
            45..=59 => self.consume_data(side, false),
            60..=61 => self.reset_stream(side),
            62 => self.sides[side].link.ping(),
            63 => self.stall_steps[side] = self.random.below_bound(80) as u32,
            64..=80 => self.flush(side, false),
            81 if step > STEPS / 2 && self.random.one_in(30) => self.go_away(),
            _ => self.deliver_bytes(side, false),
        }
    }

    fn open_stream(&mut self) {
        let kind = if self.random.one_in(3) { StreamKind::Tcp } else { StreamKind::Http };
        let mut local_stream = LocalStream::new(kind, &mut self.random);
        local_stream.head_sent = true;
        local_stream.end_sent = local_stream.unsent_bytes == 0 && !local_stream.has_trailers;
        let head = self.random.random_head();
        let opener = &mut self.sides[0];
        if opener.link.is_congested() {
            self.event_counts.congested_sends += 1;
            return;
        }
        match opener.link.open_stream(kind, local_stream.end_sent, head_writer(&head)) {
            Ok(id) => {
                let sent_data = SentData {
                    heads: vec![head],
                    end_sent: local_stream.end_sent,
                    ..SentData::default()
                };
                self.sent_data.insert((0, id), sent_data);
                opener.streams.insert(id, local_stream);
                self.event_counts.opened_streams += 1;
            }
            Err(OpenError::Full) => self.event_counts.rejected_opens += 1,
            Err(OpenError::GoingAway) => assert!(opener.link.is_going_away()),
            Err(error) => panic!("{error}"),
        }
    }

    fn send_data(&mut self, side: usize) {
        if self.sides[side].link.is_congested() {
            self.event_counts.congested_sends += 1;
        } else if let Some(id) = self.pick_stream(side) {
            self.send_on_stream(side, id);
        }
    }

    fn send_on_stream(&mut self, side: usize, id: StreamId) {
        let Side { link, streams, .. } = &mut self.sides[side];
        let local_stream = streams.get_mut(&id).unwrap();
        let sent_data = self.sent_data.entry((side, id)).or_default();
        if local_stream.end_sent {
            assert_eq!(link.send_data(id, b"x", false), Err(StreamClosed));
        } else if !local_stream.head_sent && local_stream.kind == StreamKind::Http {
            let interim = self.random.one_in(4);
            local_stream.head_sent = !interim;
            local_stream.end_sent =
                !interim && local_stream.unsent_bytes == 0 && !local_stream.has_trailers;
            let head = self.random.random_head();
            link.send_head(id, interim, local_stream.end_sent, head_writer(&head)).unwrap();
            sent_data.heads.push(head);
        } else if local_stream.unsent_bytes == 0 && local_stream.has_trailers {
            link.send_trailers(id, &body_pattern(side, id, 0, 30)).unwrap();
            local_stream.end_sent = true;
            sent_data.has_trailers = true;
            self.event_counts.has_trailers += 1;
        } else {
            let requested = self.random.below_bound(local_stream.unsent_bytes + 1);
            let data = body_pattern(side, id, sent_data.sent_bytes, requested);
            let end_stream = requested == local_stream.unsent_bytes && !local_stream.has_trailers;
            let credit = link.available_credit(id) as usize;
            let accepted = link.send_data(id, &data, end_stream).unwrap();
            assert_eq!(accepted, requested.min(credit));
            self.event_counts.starved_sends += usize::from(accepted < requested);
            sent_data.sent_bytes += accepted;
            local_stream.unsent_bytes -= accepted;
            local_stream.end_sent = end_stream && accepted == requested;
        }
        sent_data.end_sent = local_stream.end_sent;
        self.drop_finished(side, id);
    }

    fn consume_data(&mut self, side: usize, consume_all: bool) {
        let Some(id) = self.pick_stream(side) else {
            return;
        };
        let Side { link, streams, .. } = &mut self.sides[side];
        let local_stream = streams.get_mut(&id).unwrap();
        let bytes = if consume_all {
            local_stream.unconsumed_bytes
        } else {
            self.random.below_bound(local_stream.unconsumed_bytes + 1)
        };
        local_stream.unconsumed_bytes -= bytes;
        link.record_consumed(id, bytes as u32);
    }

    /// Resets all streams of side 0, like clients that disconnect together.
    fn cancel_all(&mut self) {
        let open_streams: Vec<_> = self.sides[0].streams.keys().copied().collect();
        for id in open_streams.into_iter().skip(1) {
            self.reset_one(0, id);
        }
    }

    fn reset_stream(&mut self, side: usize) {
        if let Some(id) = self.pick_stream(side) {
            self.reset_one(side, id);
        }
    }

    fn reset_one(&mut self, side: usize, id: StreamId) {
        let code = ResetCode::ALL[self.random.below_bound(ResetCode::ALL.len())];
        let Side { link, streams, .. } = &mut self.sides[side];
        link.reset_stream(id, code);
        streams.remove(&id);
        self.reset_codes.entry(id).or_default().push(code);
        self.event_counts.reset_codes += 1;
    }

    fn go_away(&mut self) {
        let link = &mut self.sides[1].link;
        if self.random.one_in(2) {
            link.drain();
        } else if self.rejected_after.is_none() {
            self.rejected_after = Some(self.last_accepted);
            link.go_away(GoAwayCode::Drain);
        }
    }

    fn flush(&mut self, side: usize, flush_all: bool) {
        let takes_all = flush_all || self.order == Order::PerStream;
        let output = self.sides[side].link.output();
        let bytes =
            if takes_all { output.len() } else { self.random.below_bound(output.len() + 1) };
        self.bytes_in_flight[side].unsplit(output.split_to(bytes));
        if self.order == Order::PerStream {
            self.shuffle_frames(side);
        }
    }

    /// Reorders frames in flight where their streams are unaffected.
    fn shuffle_frames(&mut self, side: usize) {
        let mut frames = split_frames(&self.bytes_in_flight[side]);
        for _ in 0..frames.len() {
            let index = self.random.below_bound(frames.len());
            let Some([first, second]) = frames.get_mut(index..index + 2) else { continue };
            let (before, after) = (parse_header(first), parse_header(second));
            // A link-level frame applies to all frames before it. An OPEN that was sent before the end of
            // another stream could exceed the limit.
            let are_stream_frames =
                before.stream != StreamId::NONE && after.stream != StreamId::NONE;
            if are_stream_frames && before.stream != after.stream && after.kind != FrameKind::Open {
                std::mem::swap(first, second);
                self.event_counts.reordered_frames += 1;
            }
        }
        self.bytes_in_flight[side] = frames.concat().as_slice().into();
    }

    /// Delivers some of the output of `side` to the other one.
    fn deliver_bytes(&mut self, side: usize, deliver_all: bool) {
        if !deliver_all && self.stall_steps[side] > 0 {
            self.stall_steps[side] -= 1;
            return;
        }
        let wire = &mut self.bytes_in_flight[side];
        let bytes = match (deliver_all, self.order) {
            (true, _) => wire.len(),
            (false, Order::Unchanged) => self.random.below_bound(wire.len() + 1),
            (false, Order::PerStream) => {
                let frames = split_frames(wire);
                let count = self.random.below_bound(frames.len() + 1);
                frames[..count].iter().map(Vec::len).sum()
            }
        };
        let arrived_bytes = wire.split_to(bytes);
        let receiver = 1 - side;
        self.sides[receiver].input.extend_from_slice(&arrived_bytes);
        loop {
            let Side { link, input, .. } = &mut self.sides[receiver];
            match link.receive(input).unwrap() {
                Some(event) => self.handle_event(receiver, event),
                None => break,
            }
        }
        assert!(self.sides[receiver].input.len() < LinkLimits::default().max_input_bytes());
    }

    fn handle_event(&mut self, side: usize, event: LinkEvent) {
        match event {
            LinkEvent::Opened { stream, kind, head, end_stream } => {
                assert_eq!(stream.number(), self.last_accepted.number() + 1);
                assert!(self.rejected_after.is_none_or(|last| stream <= last));
                self.last_accepted = stream;
                let local_stream = LocalStream::new(kind, &mut self.random);
                self.sides[side].streams.insert(stream, local_stream);
                self.handle_head(side, stream, &head, end_stream);
            }
            LinkEvent::Head { stream, head, interim, end_stream, .. } => {
                assert!(!interim || !end_stream);
                self.handle_head(side, stream, &head, end_stream);
            }
            LinkEvent::Data { stream, data, end_stream } => {
                let local_stream = self.sides[side].streams.get_mut(&stream).unwrap();
                assert_eq!(
                    data,
                    body_pattern(1 - side, stream, local_stream.received_bytes, data.len())
                );
                local_stream.received_bytes += data.len();
                local_stream.unconsumed_bytes += data.len();
                self.handle_end(side, stream, end_stream);
            }
            LinkEvent::Trailers { stream, trailers } => {
                assert_eq!(trailers, body_pattern(1 - side, stream, 0, 30));
                assert!(self.sent_data[&(1 - side, stream)].has_trailers);
                self.handle_end(side, stream, true);
            }
            LinkEvent::Reset { stream, code, .. } => {
                assert!(self.reset_codes[&stream].contains(&code));
                self.sides[side].streams.remove(&stream).unwrap();
            }
            LinkEvent::Credit { stream } => {
                assert!(self.sides[side].link.available_credit(stream) > 0);
                assert!(!self.sides[side].streams[&stream].end_sent);
            }
            LinkEvent::GoAway { last_stream, code } if side == 1 => {
                assert_eq!((last_stream, code), (StreamId::NONE, GoAwayCode::StreamIdsExhausted));
                self.event_counts.exhausted_links += 1;
            }
            LinkEvent::GoAway { last_stream, .. } => {
                let next = StreamId(last_stream.number().saturating_add(1));
                let lost_streams = self.sides[side].streams.split_off(&next);
                self.event_counts.abandoned_streams += lost_streams.len();
            }
            LinkEvent::Pong => self.event_counts.pongs += 1,
            LinkEvent::Ready => assert!(self.sides[side].link.hello_received),
        }
    }

    fn handle_head(&mut self, side: usize, stream: StreamId, head: &[u8], end_stream: bool) {
        let sent_data = self.sent_data.get_mut(&(1 - side, stream)).unwrap();
        assert_eq!(sent_data.heads[sent_data.heads_received], head);
        sent_data.heads_received += 1;
        self.handle_end(side, stream, end_stream);
    }

    fn handle_end(&mut self, side: usize, stream: StreamId, end_stream: bool) {
        if end_stream {
            let local_stream = self.sides[side].streams.get_mut(&stream).unwrap();
            let sent_data = &self.sent_data[&(1 - side, stream)];
            assert!(sent_data.end_sent && sent_data.heads_received == sent_data.heads.len());
            assert_eq!(local_stream.received_bytes, sent_data.sent_bytes);
            local_stream.end_received = true;
            self.drop_finished(side, stream);
        }
    }

    fn drop_finished(&mut self, side: usize, id: StreamId) {
        let local_stream = &self.sides[side].streams[&id];
        if local_stream.end_sent && local_stream.end_received {
            self.sides[side].streams.remove(&id);
        }
    }

    fn pick_stream(&mut self, side: usize) -> Option<StreamId> {
        let streams = &self.sides[side].streams;
        let index = self.random.below_bound(streams.len().max(1));
        streams.keys().nth(index).copied()
    }

    fn check_bounds(&mut self) {
        for side in &mut self.sides {
            let limits = *side.link.own_limits();
            assert_eq!(side.link.stream_count(), side.streams.len());
            assert!(side.streams.len() <= SMALLEST_MAX_STREAMS as usize);
            for local_stream in side.streams.values() {
                assert!(local_stream.unconsumed_bytes <= limits.window as usize);
            }
            // One send beyond the soft bound, and control frames for every stream.
            let beyond = MIN_WINDOW as usize + 50_000 + 20_000;
            assert!(side.link.output().len() <= limits.congestion_threshold + beyond);
        }
    }

    /// Opens no more streams, and reads and sends everything: all streams must end, and no bytes remain.
    fn finish_all(&mut self) {
        for _ in 0..MAX_FINISH_ROUNDS {
            for side in [0, 1] {
                let open_streams: Vec<_> = self.sides[side].streams.keys().copied().collect();
                for id in open_streams {
                    let local_stream = self.sides[side].streams.get_mut(&id).unwrap();
                    let bytes = std::mem::take(&mut local_stream.unconsumed_bytes);
                    let (end_sent, congested) =
                        (local_stream.end_sent, self.sides[side].link.is_congested());
                    self.sides[side].link.record_consumed(id, bytes as u32);
                    if !end_sent && !congested {
                        self.send_on_stream(side, id);
                    }
                }
                self.flush(side, true);
                self.deliver_bytes(side, true);
                self.check_bounds();
            }
            let is_idle = self.sides.iter().all(|side| side.link.is_idle());
            if is_idle && self.bytes_in_flight.iter().all(BytesMut::is_empty) {
                return;
            }
        }
        panic!("streams are left over: {:?}", self.sides.each_ref().map(|side| &side.link.streams));
    }
}

impl LocalStream {
    fn new(kind: StreamKind, random: &mut SeededRandom) -> Self {
        let size = [0, 10, 2_000, 150_000][random.below_bound(4)];
        Self {
            kind,
            head_sent: false,
            unsent_bytes: random.below_bound(size + 1),
            has_trailers: kind == StreamKind::Http && random.one_in(4),
            end_sent: false,
            received_bytes: 0,
            unconsumed_bytes: 0,
            end_received: false,
        }
    }
}

/// The frames of a wire with whole frames only.
pub(super) fn split_frames(mut wire: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !wire.is_empty() {
        let (frame, remaining_wire) = wire.split_at(8 + parse_header(wire).length as usize);
        frames.push(frame.to_vec());
        wire = remaining_wire;
    }
    frames
}

pub(super) fn parse_header(frame: &[u8]) -> FrameHeader {
    FrameHeader::peek(frame).unwrap().unwrap()
}

/// The bytes of a body at an offset, different for each offset and stream.
fn body_pattern(side: usize, stream: StreamId, offset: usize, length: usize) -> Vec<u8> {
    let start = side * 101 + stream.number() as usize * 31 + offset;
    (start..start + length).map(|index| (index % 251) as u8).collect()
}

/// Seeds per test run.
const SEEDS: u64 = 64;
/// Seeds to run instead of all, for debugging.
const DEBUG_SEEDS: &[u64] = &[];
/// Random steps per seed.
const STEPS: u32 = 3_000;
/// The maximum number of rounds until all streams must have ended.
const MAX_FINISH_ROUNDS: u32 = 3_000;
