//! Fuzz tests with hostile peers: the link never panics and never exceeds its bounds.

use super::random::SeededRandom;
use super::*;

#[test]
fn frames_of_any_kind_in_any_order_stay_within_bounds() {
    let mut broken_links = 0;
    let mut event_count = 0;
    for seed in 0..SEEDS {
        let mut random = SeededRandom(seed);
        let role = if random.one_in(2) { Role::Opener } else { Role::Acceptor };
        let mut link_under_test = LinkUnderTest::new(role);
        let mut is_intact = true;
        for _ in 0..FRAMES_PER_SEED {
            let frame = any_frame(&mut random, &link_under_test);
            if !link_under_test.receive_bytes(&frame, &mut random) {
                is_intact = false;
                break;
            }
        }
        broken_links += usize::from(!is_intact);
        event_count += link_under_test.event_count;
    }
    // Some links must break and some frames must be accepted; otherwise the test is void.
    assert!(
        broken_links > SEEDS as usize / 2 && event_count > SEEDS as usize * 5,
        "{broken_links} {event_count}"
    );
}

#[test]
fn a_damaged_conversation_stays_within_bounds() {
    let (wire, _) = record_conversation();
    for seed in 0..SEEDS {
        let mut random = SeededRandom(seed);
        let mut damaged_wire = BytesMut::from(&wire[..]);
        for _ in 0..=random.below_bound(4) {
            let index = random.below_bound(damaged_wire.len());
            match random.below_bound(3) {
                0 => damaged_wire[index] = random.below_bound(256) as u8,
                1 => damaged_wire.truncate(index.max(1)),
                _ => damaged_wire[index] ^= 1 << random.below_bound(8),
            }
        }
        LinkUnderTest::new(Role::Acceptor).receive_bytes(&damaged_wire, &mut random);
    }
}

/// A link with a hostile peer, and a driver that consumes received bytes as late as the window permits.
struct LinkUnderTest {
    link: Link,
    input: BytesMut,
    received_bytes: StreamMap,
    event_count: usize,
}

type StreamMap = std::collections::BTreeMap<StreamId, usize>;

impl LinkUnderTest {
    fn new(role: Role) -> Self {
        let limits = LinkLimits { max_streams: 64, window: MIN_WINDOW, ..LinkLimits::default() };
        Self {
            link: Link::new(role, limits),
            input: BytesMut::new(),
            received_bytes: StreamMap::new(),
            event_count: 0,
        }
    }

    /// Delivers bytes to the link; false once the link is broken.
    fn receive_bytes(&mut self, wire: &[u8], random: &mut SeededRandom) -> bool {
        self.input.extend_from_slice(wire);
        loop {
            let length_before = self.input.len();
            match self.link.receive(&mut self.input) {
                Ok(None) => break,
                Ok(Some(event)) => self.handle_event(event, random),
                Err(error) => {
                    assert_eq!(self.link.receive(&mut self.input), Err(error));
                    assert_eq!(self.link.stream_count(), 0);
                    assert!(!self.link.output().is_empty());
                    return false;
                }
            }
            assert!(self.input.len() <= length_before);
            self.check_invariants();
        }
        self.act_randomly(random);
        self.check_invariants();
        assert!(self.input.len() < self.link.own_limits().max_input_bytes());
        true
    }

    fn handle_event(&mut self, event: LinkEvent, random: &mut SeededRandom) {
        self.event_count += 1;
        match event {
            LinkEvent::Opened { stream, .. } => {
                self.received_bytes.insert(stream, 0);
                match random.below_bound(3) {
                    0 => self.link.reset_stream(stream, ResetCode::Refused),
                    1 => drop(self.link.send_head(
                        stream,
                        false,
                        random.one_in(2),
                        head_writer(b"200"),
                    )),
                    _ => {}
                }
            }
            LinkEvent::Data { stream, data, end_stream } => {
                assert!(end_stream || !data.is_empty());
                let received_bytes = self.received_bytes.entry(stream).or_default();
                *received_bytes += data.len();
                assert!(*received_bytes <= MIN_WINDOW as usize);
            }
            LinkEvent::Reset { stream, .. } => {
                self.received_bytes.remove(&stream);
                assert_eq!(self.link.available_credit(stream), 0);
            }
            _ => {}
        }
    }

    /// Performs a random action of a driver.
    fn act_randomly(&mut self, random: &mut SeededRandom) {
        let stream = StreamId(random.below_bound(8) as u32);
        let write_get = head_writer(b"GET");
        match random.below_bound(6) {
            0 => drop(self.link.open_stream(StreamKind::Http, random.one_in(2), write_get)),
            1 => drop(self.link.send_data(stream, &[1; 700], random.one_in(5))),
            2 => self.link.reset_stream(stream, ResetCode::Cancelled),
            3 => self.link.output().clear(),
            4 => self.link.ping(),
            _ => {
                let received_bytes = self.received_bytes.remove(&stream).unwrap_or_default();
                self.link.record_consumed(stream, received_bytes as u32);
            }
        }
    }

    fn check_invariants(&mut self) {
        assert!(self.link.stream_count() <= 64);
        assert!(self.link.credited_streams.len() <= SMALLEST_MAX_STREAMS as usize);
        assert!(self.link.output().len() <= 700 * 64 * 8);
    }
}

/// Returns a frame that is often plausible: HELLO first, stream numbers near those in use.
fn any_frame(random: &mut SeededRandom, link_under_test: &LinkUnderTest) -> BytesMut {
    if !link_under_test.link.hello_received && !random.one_in(20) {
        let mut hello = BytesMut::new();
        let role = match link_under_test.link.role {
            Role::Opener => Role::Acceptor,
            Role::Acceptor => Role::Opener,
        };
        frame::write_hello(&mut hello, role, &LinkLimits::default());
        return hello;
    }
    let kinds = match link_under_test.link.role {
        _ if random.one_in(50) => [1, 2, 3, 5, 7, 8, 11, 15],
        Role::Opener if link_under_test.link.last_stream == StreamId::NONE => [9; 8],
        Role::Opener => [3, 4, 4, 4, 6, 6, 9, 10],
        Role::Acceptor => [2, 2, 2, 4, 4, 4, 6, 9],
    };
    let kind = kinds[random.below_bound(kinds.len())];
    let last_stream = link_under_test.link.last_stream.number() as usize;
    let stream = match kind {
        1 | 8..=10 => 0,
        2 => last_stream + 1,
        _ => 1 + random.below_bound(last_stream.max(1)),
    };
    let stream = if random.one_in(100) { random.below_bound(6) } else { stream } as u32;
    let kind = if random.one_in(10) { kind } else { plausible_kind(kind, stream, link_under_test) };
    let flags = match random.below_bound(12) {
        0 if matches!(kind, 2..=4) => frame::END,
        1 if kind == 2 => frame::TCP,
        1 if kind == 3 => frame::INTERIM,
        2 if random.one_in(50) => 0x80,
        _ => 0,
    };
    let length = match kind {
        6 => 1,
        7 => 4,
        8 => 5,
        9 | 10 => 0,
        _ if random.one_in(10) => random.below_bound(17_000),
        _ => random.below_bound(300),
    };
    let payload: Vec<u8> = (0..length).map(|_| random.below_bound(256) as u8).collect();
    let mut frame = raw_header(length as u32, kind, flags, stream);
    match kind {
        7 => frame.put_u32(random.below_bound(40_000) as u32),
        8 => frame.put_slice(&[0, 0, 0, random.below_bound(8) as u8, 1]),
        _ => frame.put_slice(&payload),
    }
    frame
}

/// The kind that the state of the stream allows, instead of one that breaks the link at once.
fn plausible_kind(kind: u8, stream: u32, link_under_test: &LinkUnderTest) -> u8 {
    let state = link_under_test.link.streams.get(&StreamId(stream));
    match state.map(|state| state.receive_direction.clone()) {
        Some(direction) if direction.is_ended() => 6,
        Some(mut direction) if matches!(kind, 3..=5) => {
            if direction.accept_data(false).is_ok() {
                4
            } else {
                3
            }
        }
        _ => kind,
    }
}

/// Seeds per test run.
const SEEDS: u64 = 2_000;
/// Frames per seed, while the link is intact.
const FRAMES_PER_SEED: u32 = 60;
