//! Simulation of two links joined by pipes that split data, stall, reorder frames of different streams, and
//! break, by seed.
//!
//! A failure names its seed; add it to [`ALONE`] to run it separately.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn every_byte_arrives_once_and_in_order_and_everything_ends() {
    let seen = run_seeds(|seed| World::new(seed, Order::Kept).run());
    // A simulation without activity proves nothing.
    if ALONE.is_empty() {
        let Seen {
            opened, full, starved, congested, resets, refused, trailers, pongs, worn, ..
        } = seen;
        for (what, count) in [
            ("opened", opened),
            ("full", full),
            ("starved", starved),
            ("congested", congested),
            ("resets", resets),
            ("refused by go away", refused),
            ("trailers", trailers),
            ("pongs", pongs),
            ("links worn out by resets", worn),
        ] {
            assert!(count > 10, "{what}: {count}");
        }
    }
}

/// The order of frames of different streams has no meaning (`docs/link.md`, *Streams*).
#[test]
fn everything_arrives_also_when_streams_overtake_each_other() {
    let seen = run_seeds(|seed| World::new(seed, Order::PerStream).run());
    assert!(seen.overtaken > 1_000 || !ALONE.is_empty(), "{}", seen.overtaken);
}

#[test]
fn a_connection_that_breaks_has_reported_nothing_wrong_and_leaves_nothing() {
    let lost = run_seeds(|seed| World::new(seed, Order::Kept).run_until_cut()).cut_off;
    assert!(lost > 100 || !ALONE.is_empty(), "{lost} streams were lost");
}

/// Runs all seeds and sums their events.
fn run_seeds(run: impl Fn(u64) -> Seen) -> Seen {
    let seeds: Vec<u64> = if ALONE.is_empty() { (0..SEEDS).collect() } else { ALONE.to_vec() };
    let mut seen = Seen::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(run) => seen.add(run),
            Err(_) => panic!("the simulation failed with seed {seed}"),
        }
    }
    seen
}

/// The events of a run, or their sum over all runs.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    opened: usize,
    full: usize,
    starved: usize,
    congested: usize,
    resets: usize,
    refused: usize,
    trailers: usize,
    pongs: usize,
    worn: usize,
    overtaken: usize,
    cut_off: usize,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.full += other.full;
        self.starved += other.starved;
        self.congested += other.congested;
        self.resets += other.resets;
        self.refused += other.refused;
        self.trailers += other.trailers;
        self.pongs += other.pongs;
        self.worn += other.worn;
        self.overtaken += other.overtaken;
        self.cut_off += other.cut_off;
    }
}

/// The order of arrival of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Unchanged; pipes split anywhere.
    Kept,
    /// Unchanged within a stream, and no OPEN arrives earlier; pipes split between frames.
    PerStream,
}

/// Both ends, the pipes between them, and a record of everything sent.
struct World {
    order: Order,
    chance: Chance,
    sides: [Side; 2],
    /// Bytes that left side 0 or 1 and have not arrived.
    wires: [BytesMut; 2],
    /// Steps without arrivals from side 0 or 1.
    stalls: [u32; 2],
    sent: BTreeMap<(usize, StreamId), Sent>,
    resets: BTreeMap<StreamId, Vec<ResetCode>>,
    accepted_last: StreamId,
    refused_after: Option<StreamId>,
    /// The clients of side 0 have short timeouts: it resets most of its streams.
    is_impatient: bool,
    seen: Seen,
}

/// One end with the state of its driver.
struct Side {
    link: Link,
    inbox: BytesMut,
    streams: BTreeMap<StreamId, Local>,
}

/// The driver's state of a stream.
struct Local {
    kind: StreamKind,
    head_sent: bool,
    /// The remaining bytes, the kind of end, and true once it was sent.
    left: usize,
    trailers: bool,
    sent_end: bool,
    /// The received bytes, and the unconsumed ones among them.
    received: usize,
    held: usize,
    received_end: bool,
}

/// The frames that one side sent on a stream.
#[derive(Default)]
struct Sent {
    heads: Vec<Vec<u8>>,
    heads_seen: usize,
    bytes: usize,
    ended: bool,
    trailers: bool,
}

impl World {
    fn new(seed: u64, order: Order) -> Self {
        let mut chance = Chance(seed);
        let limits = |chance: &mut Chance| LinkLimits {
            streams_max: STREAMS_LEAST,
            window: WINDOW_LEAST + chance.below_bound(50_000) as u32,
            output_max: 4_000 + chance.below_bound(250_000),
            // The default ratio to the streams: a well-behaved driver never exceeds the allowance.
            churn_max: STREAMS_LEAST * (CHURN_MAX / STREAMS_MAX),
            ..LinkLimits::default()
        };
        let side = |role, chance: &mut Chance| Side {
            link: Link::new(role, limits(chance)),
            inbox: BytesMut::new(),
            streams: BTreeMap::new(),
        };
        let sides = [side(Role::Opener, &mut chance), side(Role::Acceptor, &mut chance)];
        let is_impatient = chance.one_in(3);
        Self {
            order,
            is_impatient,
            chance,
            sides,
            wires: Default::default(),
            stalls: [0; 2],
            sent: BTreeMap::new(),
            resets: BTreeMap::new(),
            accepted_last: StreamId::NONE,
            refused_after: None,
            seen: Seen::default(),
        }
    }

    fn run(mut self) -> Seen {
        for step in 0..STEPS {
            self.step(step);
            self.check_bounds();
        }
        self.finish_all();
        self.seen
    }

    /// Breaks the connection at a random moment, possibly within a frame.
    fn run_until_cut(mut self) -> Seen {
        let last = self.chance.below_bound(STEPS as usize) as u32;
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
                self.seen.cut_off += 1;
            }
            side.link.output().clear();
            assert!(side.link.is_idle());
        }
        self.seen
    }

    fn step(&mut self, step: u32) {
        let side = self.chance.below_bound(2);
        match self.chance.below_bound(100) {
            0..=17 => self.open_stream(),
            18..=44 => self.send_data(side),
            45 if self.is_impatient => self.cancel_all(),
            45..=59 => self.consume_data(side, false),
            60..=61 => self.reset_stream(side),
            62 => self.sides[side].link.ping(),
            63 => self.stalls[side] = self.chance.below_bound(80) as u32,
            64..=80 => self.flush(side, false),
            81 if step > STEPS / 2 && self.chance.one_in(30) => self.go_away(),
            _ => self.deliver_bytes(side, false),
        }
    }

    fn open_stream(&mut self) {
        let kind = if self.chance.one_in(3) { StreamKind::Tcp } else { StreamKind::Http };
        let mut local = Local::new(kind, &mut self.chance);
        local.head_sent = true;
        local.sent_end = local.left == 0 && !local.trailers;
        let head = self.chance.random_head();
        let opener = &mut self.sides[0];
        if opener.link.is_congested() {
            self.seen.congested += 1;
            return;
        }
        match opener.link.open_stream(kind, local.sent_end, write(&head)) {
            Ok(id) => {
                let sent = Sent { heads: vec![head], ended: local.sent_end, ..Sent::default() };
                self.sent.insert((0, id), sent);
                opener.streams.insert(id, local);
                self.seen.opened += 1;
            }
            Err(OpenError::Full) => self.seen.full += 1,
            Err(OpenError::GoingAway) => assert!(opener.link.is_going_away()),
            Err(error) => panic!("{error}"),
        }
    }

    fn send_data(&mut self, side: usize) {
        if self.sides[side].link.is_congested() {
            self.seen.congested += 1;
        } else if let Some(id) = self.pick_stream(side) {
            self.send_on(side, id);
        }
    }

    fn send_on(&mut self, side: usize, id: StreamId) {
        let Side { link, streams, .. } = &mut self.sides[side];
        let local = streams.get_mut(&id).unwrap();
        let sent = self.sent.entry((side, id)).or_default();
        if local.sent_end {
            assert_eq!(link.send_data(id, b"x", false), Err(StreamClosed));
        } else if !local.head_sent && local.kind == StreamKind::Http {
            let interim = self.chance.one_in(4);
            local.head_sent = !interim;
            local.sent_end = !interim && local.left == 0 && !local.trailers;
            let head = self.chance.random_head();
            link.send_head(id, interim, local.sent_end, write(&head)).unwrap();
            sent.heads.push(head);
        } else if local.left == 0 && local.trailers {
            link.send_trailers(id, &body_pattern(side, id, 0, 30)).unwrap();
            local.sent_end = true;
            sent.trailers = true;
            self.seen.trailers += 1;
        } else {
            let wanted = self.chance.below_bound(local.left + 1);
            let data = body_pattern(side, id, sent.bytes, wanted);
            let end = wanted == local.left && !local.trailers;
            let credit = link.available_credit(id) as usize;
            let accepted = link.send_data(id, &data, end).unwrap();
            assert_eq!(accepted, wanted.min(credit));
            self.seen.starved += usize::from(accepted < wanted);
            sent.bytes += accepted;
            local.left -= accepted;
            local.sent_end = end && accepted == wanted;
        }
        sent.ended = local.sent_end;
        self.drop_finished(side, id);
    }

    fn consume_data(&mut self, side: usize, all: bool) {
        let Some(id) = self.pick_stream(side) else {
            return;
        };
        let Side { link, streams, .. } = &mut self.sides[side];
        let local = streams.get_mut(&id).unwrap();
        let bytes = if all { local.held } else { self.chance.below_bound(local.held + 1) };
        local.held -= bytes;
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
        let code = ResetCode::ALL[self.chance.below_bound(ResetCode::ALL.len())];
        let Side { link, streams, .. } = &mut self.sides[side];
        link.reset_stream(id, code);
        streams.remove(&id);
        self.resets.entry(id).or_default().push(code);
        self.seen.resets += 1;
    }

    fn go_away(&mut self) {
        let link = &mut self.sides[1].link;
        if self.chance.one_in(2) {
            link.drain();
        } else if self.refused_after.is_none() {
            self.refused_after = Some(self.accepted_last);
            link.go_away(GoAwayCode::Drain);
        }
    }

    fn flush(&mut self, side: usize, all: bool) {
        let whole = all || self.order == Order::PerStream;
        let output = self.sides[side].link.output();
        let bytes = if whole { output.len() } else { self.chance.below_bound(output.len() + 1) };
        self.wires[side].unsplit(output.split_to(bytes));
        if self.order == Order::PerStream {
            self.shuffle_frames(side);
        }
    }

    /// Reorders frames in flight where their streams are unaffected.
    fn shuffle_frames(&mut self, side: usize) {
        let mut frames = split_frames(&self.wires[side]);
        for _ in 0..frames.len() {
            let place = self.chance.below_bound(frames.len());
            let Some([first, second]) = frames.get_mut(place..place + 2) else { continue };
            let (before, after) = (parse_header(first), parse_header(second));
            // A link-level frame applies to all frames before it. An OPEN that was sent before the end of
            // another stream could exceed the limit.
            let about_streams = before.stream != StreamId::NONE && after.stream != StreamId::NONE;
            if about_streams && before.stream != after.stream && after.kind != FrameKind::Open {
                std::mem::swap(first, second);
                self.seen.overtaken += 1;
            }
        }
        self.wires[side] = frames.concat().as_slice().into();
    }

    /// Delivers some of the output of `side` to the other one.
    fn deliver_bytes(&mut self, side: usize, all: bool) {
        if !all && self.stalls[side] > 0 {
            self.stalls[side] -= 1;
            return;
        }
        let wire = &mut self.wires[side];
        let bytes = match (all, self.order) {
            (true, _) => wire.len(),
            (false, Order::Kept) => self.chance.below_bound(wire.len() + 1),
            (false, Order::PerStream) => {
                let frames = split_frames(wire);
                let count = self.chance.below_bound(frames.len() + 1);
                frames[..count].iter().map(Vec::len).sum()
            }
        };
        let arrived = wire.split_to(bytes);
        let to = 1 - side;
        self.sides[to].inbox.extend_from_slice(&arrived);
        loop {
            let Side { link, inbox, .. } = &mut self.sides[to];
            match link.receive(inbox).unwrap() {
                Some(event) => self.handle_event(to, event),
                None => break,
            }
        }
        assert!(self.sides[to].inbox.len() < LinkLimits::default().input_max());
    }

    fn handle_event(&mut self, side: usize, event: LinkEvent) {
        match event {
            LinkEvent::Opened { stream, kind, head, end } => {
                assert_eq!(stream.number(), self.accepted_last.number() + 1);
                assert!(self.refused_after.is_none_or(|last| stream <= last));
                self.accepted_last = stream;
                let local = Local::new(kind, &mut self.chance);
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
                local.held += data.len();
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
                self.seen.worn += 1;
            }
            LinkEvent::GoAway { last, .. } => {
                let next = StreamId(last.number().saturating_add(1));
                let lost = self.sides[side].streams.split_off(&next);
                self.seen.refused += lost.len();
            }
            LinkEvent::Pong => self.seen.pongs += 1,
            LinkEvent::Ready => assert!(self.sides[side].link.greeted),
        }
    }

    fn handle_head(&mut self, side: usize, stream: StreamId, head: &[u8], end: bool) {
        let sent = self.sent.get_mut(&(1 - side, stream)).unwrap();
        assert_eq!(sent.heads[sent.heads_seen], head);
        sent.heads_seen += 1;
        self.handle_end(side, stream, end);
    }

    fn handle_end(&mut self, side: usize, stream: StreamId, end: bool) {
        if end {
            let local = self.sides[side].streams.get_mut(&stream).unwrap();
            let sent = &self.sent[&(1 - side, stream)];
            assert!(sent.ended && sent.heads_seen == sent.heads.len());
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
        let place = self.chance.below_bound(streams.len().max(1));
        streams.keys().nth(place).copied()
    }

    fn check_bounds(&mut self) {
        for side in &mut self.sides {
            let limits = *side.link.own_limits();
            assert_eq!(side.link.stream_count(), side.streams.len());
            assert!(side.streams.len() <= STREAMS_LEAST as usize);
            for local in side.streams.values() {
                assert!(local.held <= limits.window as usize);
            }
            // One send beyond the soft bound, and control frames for every stream.
            let beyond = WINDOW_LEAST as usize + 50_000 + 20_000;
            assert!(side.link.output().len() <= limits.output_max + beyond);
        }
    }

    /// Stops opening, reads and sends everything: all streams end and no bytes remain.
    fn finish_all(&mut self) {
        for _ in 0..ROUNDS {
            for side in [0, 1] {
                let open: Vec<_> = self.sides[side].streams.keys().copied().collect();
                for id in open {
                    let local = self.sides[side].streams.get_mut(&id).unwrap();
                    let bytes = std::mem::take(&mut local.held);
                    let (sent_end, congested) =
                        (local.sent_end, self.sides[side].link.is_congested());
                    self.sides[side].link.record_consumed(id, bytes as u32);
                    if !sent_end && !congested {
                        self.send_on(side, id);
                    }
                }
                self.flush(side, true);
                self.deliver_bytes(side, true);
                self.check_bounds();
            }
            let quiet = self.sides.iter().all(|side| side.link.is_idle());
            if quiet && self.wires.iter().all(BytesMut::is_empty) {
                return;
            }
        }
        panic!("streams are left over: {:?}", self.sides.each_ref().map(|side| &side.link.streams));
    }
}

impl Local {
    fn new(kind: StreamKind, chance: &mut Chance) -> Self {
        let size = [0, 10, 2_000, 150_000][chance.below_bound(4)];
        Self {
            kind,
            head_sent: false,
            left: chance.below_bound(size + 1),
            trailers: kind == StreamKind::Http && chance.one_in(4),
            sent_end: false,
            received: 0,
            held: 0,
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
pub(super) struct Chance(pub(super) u64);

impl Chance {
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
    (start..start + length).map(|place| (place % 251) as u8).collect()
}

/// Seeds per test run.
const SEEDS: u64 = 64;
/// Seeds to run instead of all, for debugging.
const ALONE: &[u64] = &[];
/// Random steps per seed.
const STEPS: u32 = 3_000;
/// The number of rounds within which everything must end.
const ROUNDS: u32 = 3_000;
