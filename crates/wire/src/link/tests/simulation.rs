//! Simulation of two links joined by pipes that split data, stall, reorder frames of different streams, and
//! break, by seed.
//!
//! A failure names its seed; add it to [`DEBUG_SEEDS`] to run it separately.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn every_byte_arrives_once_in_order_and_all_streams_end() {
    let counts = run_seeds(|seed| LinkSimulation::new(seed, Order::Unchanged).run());
    // A simulation without activity proves nothing.
    if DEBUG_SEEDS.is_empty() {
        for (event, count) in [
            ("opened", counts.opened),
            ("full", counts.full),
            ("starved", counts.starved),
            ("congested", counts.congested),
            ("resets", counts.resets),
            ("rejected by GOAWAY", counts.rejected_by_go_away),
            ("trailers", counts.trailers),
            ("pongs", counts.pongs),
            ("links worn out by resets", counts.worn_out),
        ] {
            assert!(count > 10, "{event}: {count}");
        }
    }
}

/// The order of frames of different streams has no meaning (`docs/link.md`, *Streams*).
#[test]
fn every_byte_arrives_if_streams_are_reordered() {
    let counts = run_seeds(|seed| LinkSimulation::new(seed, Order::PerStream).run());
    assert!(counts.overtaken > 1_000 || !DEBUG_SEEDS.is_empty(), "{}", counts.overtaken);
}

#[test]
fn a_broken_connection_leaves_no_streams_and_reported_only_sent_bytes() {
    let lost_streams =
        run_seeds(|seed| LinkSimulation::new(seed, Order::Unchanged).run_until_disconnect())
            .cut_off;
    assert!(lost_streams > 100 || !DEBUG_SEEDS.is_empty(), "{lost_streams} streams were lost");
}

/// Runs all seeds and sums their events.
fn run_seeds(run: impl Fn(u64) -> EventCounts) -> EventCounts {
    let seeds: Vec<u64> =
        if DEBUG_SEEDS.is_empty() { (0..SEEDS).collect() } else { DEBUG_SEEDS.to_vec() };
    let mut counts = EventCounts::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(run) => counts.add(run),
            Err(_) => panic!("the simulation failed with seed {seed}"),
        }
    }
    counts
}

/// The events of a run, or their sum over all runs.
#[derive(Debug, Default, Clone, Copy)]
struct EventCounts {
    opened: usize,
    full: usize,
    starved: usize,
    congested: usize,
    resets: usize,
    rejected_by_go_away: usize,
    trailers: usize,
    pongs: usize,
    worn_out: usize,
    overtaken: usize,
    cut_off: usize,
}

impl EventCounts {
    fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.full += other.full;
        self.starved += other.starved;
        self.congested += other.congested;
        self.resets += other.resets;
        self.rejected_by_go_away += other.rejected_by_go_away;
        self.trailers += other.trailers;
        self.pongs += other.pongs;
        self.worn_out += other.worn_out;
        self.overtaken += other.overtaken;
        self.cut_off += other.cut_off;
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

/// Both ends, the pipes between them, and a record of everything sent.
struct LinkSimulation {
    order: Order,
    random: SeededRandom,
    sides: [Side; 2],
    /// Bytes that left side 0 or 1 and have not arrived.
    wires: [BytesMut; 2],
    /// Steps without arrivals from side 0 or 1.
    stalls: [u32; 2],
    sent: BTreeMap<(usize, StreamId), SentData>,
    resets: BTreeMap<StreamId, Vec<ResetCode>>,
    accepted_last: StreamId,
    rejected_after: Option<StreamId>,
    /// The clients of side 0 have short timeouts: it resets most of its streams.
    is_impatient: bool,
    counts: EventCounts,
}

/// One end with the state of its driver.
struct Side {
    link: Link,
    inbox: BytesMut,
    streams: BTreeMap<StreamId, LocalStream>,
}

/// The driver's state of a stream.
struct LocalStream {
    kind: StreamKind,
    head_sent: bool,
    /// The bytes that are still to be sent, true if trailers end the stream, and true once the end was sent.
    unsent_bytes: usize,
    trailers: bool,
    sent_end: bool,
    /// The number of received bytes, and of the unconsumed ones among them.
    received: usize,
    unconsumed_bytes: usize,
    received_end: bool,
}

/// The frames that one side sent on a stream.
#[derive(Default)]
struct SentData {
    heads: Vec<Vec<u8>>,
    heads_received: usize,
    bytes: usize,
    ended: bool,
    trailers: bool,
}

impl LinkSimulation {
    fn new(seed: u64, order: Order) -> Self {
        let mut random = SeededRandom(seed);
        let limits = |random: &mut SeededRandom| LinkLimits {
            streams_max: STREAMS_LEAST,
            window: WINDOW_LEAST + random.below_bound(50_000) as u32,
            output_max: 4_000 + random.below_bound(250_000),
            // The default ratio to the streams: a well-behaved driver never exceeds the allowance.
            churn_max: STREAMS_LEAST * (MAX_CHURN / MAX_STREAMS),
            ..LinkLimits::default()
        };
        let side = |role, random: &mut SeededRandom| Side {
            link: Link::new(role, limits(random)),
            inbox: BytesMut::new(),
            streams: BTreeMap::new(),
        };
        let sides = [side(Role::Opener, &mut random), side(Role::Acceptor, &mut random)];
        let is_impatient = random.one_in(3);
        Self {
            order,
            is_impatient,
            random,
            sides,
            wires: Default::default(),
            stalls: [0; 2],
            sent: BTreeMap::new(),
            resets: BTreeMap::new(),
            accepted_last: StreamId::NONE,
            rejected_after: None,
            counts: EventCounts::default(),
        }
    }

    fn run(mut self) -> EventCounts {
        for step in 0..STEPS {
            self.step(step);
            self.check_bounds();
        }
        self.finish_all();
        self.counts
    }

    /// Breaks the connection at a random moment, possibly within a frame.
    fn run_until_disconnect(mut self) -> EventCounts {
        let last = self.random.below_bound(STEPS as usize) as u32;
        for step in 0..last {
            self.step(step);
        }
        for side in [0, 1] {
            self.stalls[side] = 0;
            self.deliver_bytes(side, false);
        }
        self.check_bounds();
        for (index, side) in self.sides.iter_mut().enumerate() {
            for (id, local) in std::mem::take(&mut side.streams) {
                // Streams without an end in both directions are known to be lost.
                assert!(!local.sent_end || !local.received_end);
                let sent = self.sent.get(&(1 - index, id));
                assert!(local.received <= sent.map_or(0, |sent| sent.bytes));
                side.link.reset_stream(id, ResetCode::Failed);
                self.counts.cut_off += 1;
            }
            side.link.output().clear();
            assert!(side.link.is_idle());
        }
        self.counts
    }

    fn step(&mut self, step: u32) {
        let side = self.random.below_bound(2);
        match self.random.below_bound(100) {
            0..=17 => self.open_stream(),
            18..=44 => self.send_data(side),
            45 if self.is_impatient => self.cancel_all(),
            45..=59 => self.consume_data(side, false),
            60..=61 => self.reset_stream(side),
            62 => self.sides[side].link.ping(),
            63 => self.stalls[side] = self.random.below_bound(80) as u32,
            64..=80 => self.flush(side, false),
            81 if step > STEPS / 2 && self.random.one_in(30) => self.go_away(),
            _ => self.deliver_bytes(side, false),
        }
    }

    fn open_stream(&mut self) {
        let kind = if self.random.one_in(3) { StreamKind::Tcp } else { StreamKind::Http };
        let mut local = LocalStream::new(kind, &mut self.random);
        local.head_sent = true;
        local.sent_end = local.unsent_bytes == 0 && !local.trailers;
        let head = self.random.random_head();
        let opener = &mut self.sides[0];
        if opener.link.is_congested() {
            self.counts.congested += 1;
            return;
        }
        match opener.link.open_stream(kind, local.sent_end, write(&head)) {
            Ok(id) => {
                let sent =
                    SentData { heads: vec![head], ended: local.sent_end, ..SentData::default() };
                self.sent.insert((0, id), sent);
                opener.streams.insert(id, local);
                self.counts.opened += 1;
            }
            Err(OpenError::Full) => self.counts.full += 1,
            Err(OpenError::GoingAway) => assert!(opener.link.is_going_away()),
            Err(error) => panic!("{error}"),
        }
    }

    fn send_data(&mut self, side: usize) {
        if self.sides[side].link.is_congested() {
            self.counts.congested += 1;
        } else if let Some(id) = self.pick_stream(side) {
            self.send_on_stream(side, id);
        }
    }

    fn send_on_stream(&mut self, side: usize, id: StreamId) {
        let Side { link, streams, .. } = &mut self.sides[side];
        let local = streams.get_mut(&id).unwrap();
        let sent = self.sent.entry((side, id)).or_default();
        if local.sent_end {
            assert_eq!(link.send_data(id, b"x", false), Err(StreamClosed));
        } else if !local.head_sent && local.kind == StreamKind::Http {
            let interim = self.random.one_in(4);
            local.head_sent = !interim;
            local.sent_end = !interim && local.unsent_bytes == 0 && !local.trailers;
            let head = self.random.random_head();
            link.send_head(id, interim, local.sent_end, write(&head)).unwrap();
            sent.heads.push(head);
        } else if local.unsent_bytes == 0 && local.trailers {
            link.send_trailers(id, &body_pattern(side, id, 0, 30)).unwrap();
            local.sent_end = true;
            sent.trailers = true;
            self.counts.trailers += 1;
        } else {
            let requested = self.random.below_bound(local.unsent_bytes + 1);
            let data = body_pattern(side, id, sent.bytes, requested);
            let end = requested == local.unsent_bytes && !local.trailers;
            let credit = link.available_credit(id) as usize;
            let accepted = link.send_data(id, &data, end).unwrap();
            assert_eq!(accepted, requested.min(credit));
            self.counts.starved += usize::from(accepted < requested);
            sent.bytes += accepted;
            local.unsent_bytes -= accepted;
            local.sent_end = end && accepted == requested;
        }
        sent.ended = local.sent_end;
        self.drop_finished(side, id);
    }

    fn consume_data(&mut self, side: usize, consume_all: bool) {
        let Some(id) = self.pick_stream(side) else {
            return;
        };
        let Side { link, streams, .. } = &mut self.sides[side];
        let local = streams.get_mut(&id).unwrap();
        let bytes = if consume_all {
            local.unconsumed_bytes
        } else {
            self.random.below_bound(local.unconsumed_bytes + 1)
        };
        local.unconsumed_bytes -= bytes;
        link.record_consumed(id, bytes as u32);
    }

    /// Resets all streams of side 0, like clients that disconnect together.
    fn cancel_all(&mut self) {
        let open: Vec<_> = self.sides[0].streams.keys().copied().collect();
        for id in open.into_iter().skip(1) {
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
        self.resets.entry(id).or_default().push(code);
        self.counts.resets += 1;
    }

    fn go_away(&mut self) {
        let link = &mut self.sides[1].link;
        if self.random.one_in(2) {
            link.drain();
        } else if self.rejected_after.is_none() {
            self.rejected_after = Some(self.accepted_last);
            link.go_away(GoAwayCode::Drain);
        }
    }

    fn flush(&mut self, side: usize, flush_all: bool) {
        let is_full = flush_all || self.order == Order::PerStream;
        let output = self.sides[side].link.output();
        let bytes = if is_full { output.len() } else { self.random.below_bound(output.len() + 1) };
        self.wires[side].unsplit(output.split_to(bytes));
        if self.order == Order::PerStream {
            self.shuffle_frames(side);
        }
    }

    /// Reorders frames in flight where their streams are unaffected.
    fn shuffle_frames(&mut self, side: usize) {
        let mut frames = split_frames(&self.wires[side]);
        for _ in 0..frames.len() {
            let index = self.random.below_bound(frames.len());
            let Some([first, second]) = frames.get_mut(index..index + 2) else { continue };
            let (before, after) = (parse_header(first), parse_header(second));
            // A link-level frame applies to all frames before it. An OPEN that was sent before the end of
            // another stream could exceed the limit.
            let about_streams = before.stream != StreamId::NONE && after.stream != StreamId::NONE;
            if about_streams && before.stream != after.stream && after.kind != FrameKind::Open {
                std::mem::swap(first, second);
                self.counts.overtaken += 1;
            }
        }
        self.wires[side] = frames.concat().as_slice().into();
    }

    /// Delivers some of the output of `side` to the other one.
    fn deliver_bytes(&mut self, side: usize, deliver_all: bool) {
        if !deliver_all && self.stalls[side] > 0 {
            self.stalls[side] -= 1;
            return;
        }
        let wire = &mut self.wires[side];
        let bytes = match (deliver_all, self.order) {
            (true, _) => wire.len(),
            (false, Order::Unchanged) => self.random.below_bound(wire.len() + 1),
            (false, Order::PerStream) => {
                let frames = split_frames(wire);
                let count = self.random.below_bound(frames.len() + 1);
                frames[..count].iter().map(Vec::len).sum()
            }
        };
        let arrived = wire.split_to(bytes);
        let receiver = 1 - side;
        self.sides[receiver].inbox.extend_from_slice(&arrived);
        loop {
            let Side { link, inbox, .. } = &mut self.sides[receiver];
            match link.receive(inbox).unwrap() {
                Some(event) => self.handle_event(receiver, event),
                None => break,
            }
        }
        assert!(self.sides[receiver].inbox.len() < LinkLimits::default().input_max());
    }

    fn handle_event(&mut self, side: usize, event: LinkEvent) {
        match event {
            LinkEvent::Opened { stream, kind, head, end } => {
                assert_eq!(stream.number(), self.accepted_last.number() + 1);
                assert!(self.rejected_after.is_none_or(|last| stream <= last));
                self.accepted_last = stream;
                let local = LocalStream::new(kind, &mut self.random);
                self.sides[side].streams.insert(stream, local);
                self.handle_head(side, stream, &head, end);
            }
            LinkEvent::Head { stream, head, interim, end, .. } => {
                assert!(!interim || !end);
                self.handle_head(side, stream, &head, end);
            }
            LinkEvent::Data { stream, data, end } => {
                let local = self.sides[side].streams.get_mut(&stream).unwrap();
                assert_eq!(data, body_pattern(1 - side, stream, local.received, data.len()));
                local.received += data.len();
                local.unconsumed_bytes += data.len();
                self.handle_end(side, stream, end);
            }
            LinkEvent::Trailers { stream, trailers } => {
                assert_eq!(trailers, body_pattern(1 - side, stream, 0, 30));
                assert!(self.sent[&(1 - side, stream)].trailers);
                self.handle_end(side, stream, true);
            }
            LinkEvent::Reset { stream, code, .. } => {
                assert!(self.resets[&stream].contains(&code));
                self.sides[side].streams.remove(&stream).unwrap();
            }
            LinkEvent::Credit { stream } => {
                assert!(self.sides[side].link.available_credit(stream) > 0);
                assert!(!self.sides[side].streams[&stream].sent_end);
            }
            LinkEvent::GoAway { last, code } if side == 1 => {
                assert_eq!((last, code), (StreamId::NONE, GoAwayCode::StreamIdsExhausted));
                self.counts.worn_out += 1;
            }
            LinkEvent::GoAway { last, .. } => {
                let next = StreamId(last.number().saturating_add(1));
                let lost_streams = self.sides[side].streams.split_off(&next);
                self.counts.rejected_by_go_away += lost_streams.len();
            }
            LinkEvent::Pong => self.counts.pongs += 1,
            LinkEvent::Ready => assert!(self.sides[side].link.hello_received),
        }
    }

    fn handle_head(&mut self, side: usize, stream: StreamId, head: &[u8], end: bool) {
        let sent = self.sent.get_mut(&(1 - side, stream)).unwrap();
        assert_eq!(sent.heads[sent.heads_received], head);
        sent.heads_received += 1;
        self.handle_end(side, stream, end);
    }

    fn handle_end(&mut self, side: usize, stream: StreamId, end: bool) {
        if end {
            let local = self.sides[side].streams.get_mut(&stream).unwrap();
            let sent = &self.sent[&(1 - side, stream)];
            assert!(sent.ended && sent.heads_received == sent.heads.len());
            assert_eq!(local.received, sent.bytes);
            local.received_end = true;
            self.drop_finished(side, stream);
        }
    }

    fn drop_finished(&mut self, side: usize, id: StreamId) {
        let local = &self.sides[side].streams[&id];
        if local.sent_end && local.received_end {
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
            assert!(side.streams.len() <= STREAMS_LEAST as usize);
            for local in side.streams.values() {
                assert!(local.unconsumed_bytes <= limits.window as usize);
            }
            // One send beyond the soft bound, and control frames for every stream.
            let beyond = WINDOW_LEAST as usize + 50_000 + 20_000;
            assert!(side.link.output().len() <= limits.output_max + beyond);
        }
    }

    /// Opens no more streams, and reads and sends everything: all streams must end, and no bytes remain.
    fn finish_all(&mut self) {
        for _ in 0..MAX_FINISH_ROUNDS {
            for side in [0, 1] {
                let open: Vec<_> = self.sides[side].streams.keys().copied().collect();
                for id in open {
                    let local = self.sides[side].streams.get_mut(&id).unwrap();
                    let bytes = std::mem::take(&mut local.unconsumed_bytes);
                    let (sent_end, congested) =
                        (local.sent_end, self.sides[side].link.is_congested());
                    self.sides[side].link.record_consumed(id, bytes as u32);
                    if !sent_end && !congested {
                        self.send_on_stream(side, id);
                    }
                }
                self.flush(side, true);
                self.deliver_bytes(side, true);
                self.check_bounds();
            }
            let is_quiet = self.sides.iter().all(|side| side.link.is_idle());
            if is_quiet && self.wires.iter().all(BytesMut::is_empty) {
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
            trailers: kind == StreamKind::Http && random.one_in(4),
            sent_end: false,
            received: 0,
            unconsumed_bytes: 0,
            received_end: false,
        }
    }
}

/// The frames of a wire with whole frames only.
pub(super) fn split_frames(mut wire: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !wire.is_empty() {
        let (frame, rest) = wire.split_at(8 + parse_header(wire).length as usize);
        frames.push(frame.to_vec());
        wire = rest;
    }
    frames
}

pub(super) fn parse_header(frame: &[u8]) -> FrameHeader {
    FrameHeader::peek(frame).unwrap().unwrap()
}

/// A small seeded random number generator (SplitMix64).
pub(super) struct SeededRandom(pub(super) u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below_bound(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below_bound(bound) == 0
    }

    fn random_head(&mut self) -> Vec<u8> {
        let size = if self.one_in(50) { 8_000 } else { 400 };
        (0..self.below_bound(size)).map(|_| self.0 as u8).collect()
    }
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
