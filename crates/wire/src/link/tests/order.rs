//! Reordered frames: an error, or the original content.
//!
//! TLS keeps the order of bytes, so two pieces of one body never change places, and the link could not detect
//! it. It checks all other frame order.

use std::collections::BTreeMap;

use super::random::SeededRandom;
use super::simulation::{parse_header, split_frames};
use super::*;

#[test]
fn frames_in_an_impossible_order_break_the_link_or_change_nothing() {
    let (mut broken_count, mut unchanged_count) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = SeededRandom(seed);
        let (wire, expected_content) = interleaved_requests(&mut random);
        for _ in 0..SWAPS_PER_SEED {
            let mut frames = split_frames(&wire);
            let [first, second] = [0; 2].map(|_| random.below_bound(frames.len()));
            let [before, after] = [first.min(second), first.max(second)];
            if is_swap_undetectable(&frames[before..=after]) {
                continue;
            }
            frames.swap(before, after);
            let mut acceptor = Link::new(Role::Acceptor, LinkLimits::default());
            let mut received_content = BTreeMap::new();
            let mut wire = BytesMut::from(frames.concat().as_slice());
            let outcome = receive_content(&mut acceptor, &mut wire, &mut received_content);
            for (stream, received_content) in &received_content {
                assert!(
                    expected_content[stream].starts_with(received_content),
                    "seed {seed}, stream {stream}"
                );
            }
            match outcome {
                Ok(()) => {
                    assert_eq!(received_content, expected_content, "seed {seed}");
                    unchanged_count += 1;
                }
                Err(_) => broken_count += 1,
            }
        }
    }
    assert!(broken_count > 500 && unchanged_count > 100, "{broken_count} {unchanged_count}");
}

/// True if a swap of the first and the last frame is undetectable: one of them moves past another piece of its
/// body, or past the trailers that end it.
fn is_swap_undetectable(frames: &[Vec<u8>]) -> bool {
    let is_piece = |frame: &&Vec<u8>| {
        matches!(parse_header(frame).kind, FrameKind::Data | FrameKind::Trailers)
    };
    [frames.first(), frames.last()].into_iter().flatten().filter(is_piece).any(|moved_frame| {
        let stream = parse_header(moved_frame).stream;
        frames.iter().filter(is_piece).filter(|frame| parse_header(frame).stream == stream).count()
            > 1
    })
}

/// Several interleaved requests with bodies, and their expected content.
fn interleaved_requests(random: &mut SeededRandom) -> (Bytes, BTreeMap<StreamId, Vec<u8>>) {
    let mut opener = Link::new(Role::Opener, LinkLimits::default());
    let mut expected_content: BTreeMap<StreamId, Vec<u8>> = BTreeMap::new();
    let mut open_streams = Vec::new();
    for _ in 0..STEPS_PER_SEED {
        if open_streams.len() < 2 || random.one_in(3) {
            let id = opener.open_stream(StreamKind::Http, false, head_writer(b"POST")).unwrap();
            expected_content.insert(id, b"POST".to_vec());
            open_streams.push(id);
            continue;
        }
        let index = random.below_bound(open_streams.len());
        let id = open_streams[index];
        let length = random.below_bound(40);
        let piece: Vec<u8> = (0..length).map(|at| (at + id.number() as usize) as u8).collect();
        let content = expected_content.get_mut(&id).unwrap();
        content.extend(&piece);
        let end_stream = random.one_in(3);
        if end_stream && random.one_in(2) {
            opener.send_data(id, &piece, false).unwrap();
            opener.send_trailers(id, TRAILERS).unwrap();
            content.extend(TRAILERS);
        } else {
            opener.send_data(id, &piece, end_stream).unwrap();
        }
        if end_stream {
            content.push(END_MARKER);
            open_streams.remove(index);
        }
    }
    (opener.output().split().freeze(), expected_content)
}

/// Receives the content of each stream, with [`END_MARKER`] after its last byte.
fn receive_content(
    link: &mut Link,
    wire: &mut BytesMut,
    received_content: &mut BTreeMap<StreamId, Vec<u8>>,
) -> Result<(), LinkError> {
    while let Some(event) = link.receive(wire)? {
        let (stream, bytes, end_stream) = match event {
            LinkEvent::Opened { stream, head, end_stream, .. } => (stream, head, end_stream),
            LinkEvent::Data { stream, data, end_stream } => (stream, data, end_stream),
            LinkEvent::Trailers { stream, trailers } => (stream, trailers, true),
            LinkEvent::Ready => continue,
            other => panic!("{other:?}"),
        };
        let content = received_content.entry(stream).or_default();
        content.extend(&bytes);
        content.extend(end_stream.then_some(END_MARKER));
    }
    Ok(())
}

const TRAILERS: &[u8] = b"a: b\r\n\r\n";
/// A byte that occurs in no piece.
const END_MARKER: u8 = 255;
/// Seeds per test run.
const SEEDS: u64 = 64;
/// Pairs of frames that are swapped in sequence, for each seed.
const SWAPS_PER_SEED: usize = 60;
/// Actions of the opener for each seed: few enough that no piece contains the end byte.
const STEPS_PER_SEED: usize = 40;
