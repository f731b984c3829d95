//! Counts the instructions of `wire` operations. A count more than 3 % above the recorded one fails.
//!
//! Measured with rustc 1.95.0 for x86-64, release profile. Another compiler, allocator or C library counts
//! differently: update the numbers in a separate commit. `./test instructions` prints the counts; copy each
//! into the `measured` of its benchmark.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "the code that gungraun's macros generate violates these lints"
)]

use std::hint::black_box;

use bytes::{BufMut, BytesMut};
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group,
};
use leno_wire::http1::{
    FramingPolicy, ParseProgress, RequestEdits, RequestHead, RequestKind, ResponseEdits,
    ResponseHead, write_request, write_response,
};
use leno_wire::link::{Link, LinkEvent, LinkLimits, Role, StreamKind};

#[library_benchmark(config = measured(3_381))]
#[bench::of_a_service(parsed_request())]
fn parse_request((mut head, output): (RequestHead, BytesMut)) -> (RequestHead, BytesMut) {
    let parsed = head.parse(black_box(REQUEST));
    assert_eq!(parsed, Ok(ParseProgress::Complete(REQUEST.len())));
    (head, output)
}

#[library_benchmark(config = measured(2_299))]
#[bench::of_a_service(parsed_response())]
fn parse_response((mut head, output): (ResponseHead, BytesMut)) -> (ResponseHead, BytesMut) {
    let parsed = head.parse(black_box(RESPONSE), RequestKind::Other);
    assert_eq!(parsed, Ok(ParseProgress::Complete(RESPONSE.len())));
    (head, output)
}

// Encodes a request for a link.
#[library_benchmark(config = measured(662))]
#[bench::of_a_service(parsed_request())]
fn encode_request((head, mut output): (RequestHead, BytesMut)) -> (RequestHead, BytesMut) {
    let edits = RequestEdits { framing: FramingPolicy::OutOfBand, ..RequestEdits::default() };
    write_request(black_box(REQUEST), &head, &edits, &mut output);
    (head, output)
}

// Encodes a response from a link for a client.
#[library_benchmark(config = measured(625))]
#[bench::of_a_service(parsed_response())]
fn encode_response((head, mut output): (ResponseHead, BytesMut)) -> (ResponseHead, BytesMut) {
    write_response(black_box(RESPONSE), &head, &ResponseEdits::default(), &mut output);
    (head, output)
}

// Transfers a request without a body: one frame written, one read.
#[library_benchmark(config = measured(794))]
#[bench::of_a_service(LinkPair::warmed_up())]
fn link_request(mut link_pair: LinkPair) -> LinkPair {
    link_pair.send_request();
    link_pair
}

// Transfers a response with a body of 1 KiB: two frames written, two read.
#[library_benchmark(config = measured(1_577))]
#[bench::of_a_service(LinkPair::with_request())]
fn link_response(mut link_pair: LinkPair) -> LinkPair {
    link_pair.send_response();
    link_pair
}

library_benchmark_group!(
    name = operations,
    benchmarks = [
        parse_request,
        parse_response,
        encode_request,
        encode_response,
        link_request,
        link_response
    ]
);

gungraun::main!(library_benchmark_groups = operations);

/// Returns a configuration that fails above 103 % of the measured count.
fn measured(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions + instructions * 3 / 100;
    let mut config = LibraryBenchmarkConfig::default();
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    config.tool(callgrind.hard_limits([(EventKind::Ir, limit)]));
    config
}

/// Returns a head with its allocation, and an output buffer with capacity.
fn parsed_request() -> (RequestHead, BytesMut) {
    let mut head = RequestHead::default();
    head.parse(REQUEST).expect("the request is valid");
    (head, BytesMut::with_capacity(BUFFER_BYTES))
}

fn parsed_response() -> (ResponseHead, BytesMut) {
    let mut head = ResponseHead::default();
    head.parse(RESPONSE, RequestKind::Other).expect("the response is valid");
    (head, BytesMut::with_capacity(BUFFER_BYTES))
}

/// Both ends of a link, each with the bytes that it has received and not yet parsed.
struct LinkPair {
    opener_end: (Link, BytesMut),
    acceptor_end: (Link, BytesMut),
    events: Vec<LinkEvent>,
}

impl LinkPair {
    /// Creates a pair with buffers that have grown to the size for the first streams.
    fn warmed_up() -> Self {
        let new_end =
            |role| (Link::new(role, LinkLimits::default()), BytesMut::with_capacity(BUFFER_BYTES));
        let mut link_pair = Self {
            opener_end: new_end(Role::Opener),
            acceptor_end: new_end(Role::Acceptor),
            events: Vec::with_capacity(8),
        };
        transfer_output(
            &mut link_pair.opener_end,
            &mut link_pair.acceptor_end,
            &mut link_pair.events,
        );
        transfer_output(
            &mut link_pair.acceptor_end,
            &mut link_pair.opener_end,
            &mut link_pair.events,
        );
        for _ in 0..4 {
            link_pair.send_request();
            link_pair.send_response();
            link_pair.events.clear();
        }
        link_pair
    }

    fn with_request() -> Self {
        let mut link_pair = Self::warmed_up();
        link_pair.send_request();
        link_pair
    }

    fn send_request(&mut self) {
        let write = |output: &mut BytesMut| output.put_slice(REQUEST);
        let open_result = self.opener_end.0.open_stream(StreamKind::Http, true, write);
        open_result.expect("the link is free");
        transfer_output(&mut self.opener_end, &mut self.acceptor_end, &mut self.events);
    }

    fn send_response(&mut self) {
        let Some(LinkEvent::Opened { stream, .. }) = self.events.pop() else {
            unreachable!("the request came before");
        };
        let acceptor = &mut self.acceptor_end.0;
        let write = |output: &mut BytesMut| output.put_slice(RESPONSE);
        acceptor.send_head(stream, false, false, write).expect("the stream is open");
        let sent_bytes = acceptor.send_data(stream, &[b'x'; 1024], true);
        assert_eq!(sent_bytes, Ok(1024));
        transfer_output(&mut self.acceptor_end, &mut self.opener_end, &mut self.events);
    }
}

/// Transfers the output of one end to the other, as TLS would.
fn transfer_output(
    sender: &mut (Link, BytesMut),
    receiver: &mut (Link, BytesMut),
    events: &mut Vec<LinkEvent>,
) {
    let output = sender.0.output();
    receiver.1.extend_from_slice(output);
    output.clear();
    while let Some(event) =
        receiver.0.receive(&mut receiver.1).expect("the peer keeps to the protocol")
    {
        events.push(event);
    }
}

const BUFFER_BYTES: usize = 16 * 1024;

/// A call between services: from a client library, with tracing.
const REQUEST: &[u8] = b"GET /reviews/42?limit=10 HTTP/1.1\r\n\
    host: reviews.bookinfo:9080\r\n\
    user-agent: python-requests/2.32.3\r\n\
    accept: application/json\r\n\
    accept-encoding: gzip, deflate\r\n\
    connection: keep-alive\r\n\
    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
    x-request-id: 5f2d7c1e-93a4-4c1b-8d1f-0c8f6b6d2a77\r\n\r\n";

/// The response to [`REQUEST`].
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    content-type: application/json\r\n\
    content-length: 1024\r\n\
    date: Sat, 21 Nov 2026 12:00:00 GMT\r\n\
    server: reviews\r\n\
    cache-control: max-age=60\r\n\
    etag: \"a1b2c3d4\"\r\n\r\n";
