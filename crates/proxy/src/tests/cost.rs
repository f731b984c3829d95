//! The cost of a request in steady state, both sidecars together: see `docs/performance.md`.

use std::process::Command;
use std::time::Duration;

use leno_model::{
    AccessLog, Collector, CollectorProtocol, LogFormat, Observability, PropagationFormat, Sampling,
    Signal, Tap, TapSide, Tracing,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Mesh, Setup, Sidecar, run};
use crate::{access_log, export};

/// TLS allocates for each record, however many requests it contains; a request allocates nothing.
#[test]
fn a_request_allocates_nothing() {
    let (few, many) = measure_blocks("tests::cost::allocations");
    let blocks = many.saturating_sub(few);
    let additional_exchanges = (MANY - FEW) * ROUNDS;
    assert!(
        blocks <= ROUNDS as u64 * ADDITIONAL_RECORDS * BLOCKS_PER_RECORD,
        "{blocks} blocks for {additional_exchanges} further requests; {few} blocks for the first {FEW} of each \
         round"
    );
}

/// Trace context is also propagated for unsampled requests. The log takes none of these requests, and a tap
/// watches another service.
#[test]
fn a_request_of_an_unsampled_trace_allocates_nothing() {
    let (few, many) = measure_blocks("tests::cost::allocations_with_observability");
    let blocks = many.saturating_sub(few);
    let additional_exchanges = (MANY - FEW) * ROUNDS;
    assert!(
        blocks <= ROUNDS as u64 * ADDITIONAL_RECORDS * BLOCKS_PER_RECORD,
        "{blocks} blocks for {additional_exchanges} further requests"
    );
}

/// Returns the counts of a test of this file, run in a process of its own.
fn measure_blocks(test: &str) -> (u64, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--ignored", "--nocapture"]);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let measurements = text.lines().find_map(|line| line.strip_prefix(REPORT));
    let measurements: Vec<u64> = measurements
        .unwrap_or_else(|| panic!("no report: {text}"))
        .split(' ')
        .map(|figure| figure.parse().unwrap())
        .collect();
    let [few, many] = measurements[..] else { panic!("{text}") };
    (few, many)
}

#[test]
#[ignore = "started by `a_request_allocates_nothing`, in a process of its own"]
fn allocations() {
    count_blocks(Observability::default());
}

#[test]
#[ignore = "started by a test of this file, in a process of its own"]
fn allocations_with_observability() {
    count_blocks(trace_settings("0%"));
}

fn count_blocks(observability: Observability) {
    run(async {
        let (_mesh, mut clients) = start_exchange(2, observability).await;
        exchange_all(&mut clients, ROUNDS, 2).await;
        let mut measurements = Vec::new();
        for count in [FEW, MANY] {
            // Allocations of the first round may grow once more.
            exchange_all(&mut clients[..count], ROUNDS, 2).await;
            let _profiler = dhat::Profiler::builder().testing().build();
            exchange_all(&mut clients[..count], ROUNDS, 2).await;
            measurements.push(dhat::HeapStats::get().total_blocks.to_string());
        }
        print_line(&format!("{REPORT}{}", measurements.join(" ")));
    });
}

/// Runs [`ROUNDS_FEW`] rounds. The difference to [`many_exchanges`] excludes the start of the process.
#[test]
#[ignore = "an instruction counter starts it, in a process of its own"]
fn few_exchanges() {
    run(run_rounds(ROUNDS_FEW, Observability::default()));
}

#[test]
#[ignore = "an instruction counter starts it, in a process of its own"]
fn many_exchanges() {
    run(run_rounds(ROUNDS_MANY, Observability::default()));
}

/// Runs [`ROUNDS_FEW`] rounds with one of a hundred requests traced and logged.
#[test]
#[ignore = "an instruction counter starts it, in a process of its own"]
fn few_exchanges_with_observability() {
    run(run_rounds(ROUNDS_FEW, trace_settings("1%")));
}

#[test]
#[ignore = "an instruction counter starts it, in a process of its own"]
fn many_exchanges_with_observability() {
    run(run_rounds(ROUNDS_MANY, trace_settings("1%")));
}

async fn run_rounds(count: usize, observability: Observability) {
    let (_mesh, mut clients) = start_exchange(BODY, observability).await;
    exchange_all(&mut clients, count, BODY).await;
}

/// Creates a mesh with an application that responds with `body` bytes, and its clients.
async fn start_exchange(body: usize, observability: Observability) -> (Mesh, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(serve_responses(tcp, response_bytes(body)));
        }
    });
    let has_observability = observability != Observability::default();
    let mut setup = Setup { observability, ..Setup::default() };
    // An idle pause would free buffers that the next request allocates again.
    setup.limits.rest_after = Duration::from_secs(10);
    let mut mesh = Mesh::new(address, setup).await;
    for sidecar in [&mut mesh.client, &mut mesh.server].into_iter().filter(|_| has_observability) {
        sidecar.worker.config_store.observability.replace_taps(&[unused_tap()]);
        take_all(sidecar);
    }
    let mut clients = Vec::new();
    for _ in 0..MANY {
        clients.push(TcpStream::connect(mesh.listener).await.unwrap());
    }
    (mesh, clients)
}

/// Returns settings that trace and log this share, and all failures.
fn trace_settings(sampling: &str) -> Observability {
    let sampling = Sampling::parse(sampling).unwrap();
    let collector =
        Collector::parse(Signal::Traces, CollectorProtocol::OtlpHttp, "http://127.0.0.1:1")
            .unwrap();
    let initial_format = PropagationFormat::W3c;
    let tracing = Tracing { sampling, errors: true, propagation: initial_format, collector };
    let log = AccessLog { sampling, errors: true, format: LogFormat::Json, collector: None };
    Observability { tracing: Some(tracing), access_log: Some(log), metrics: None }
}

/// A tap of a service without requests.
fn unused_tap() -> Tap {
    Tap {
        id: 1,
        service: "bookinfo/reviews".parse().unwrap(),
        side: TapSide::Both,
        path: String::new(),
        method: String::new(),
        status: None,
        from: None,
        per_second: 100,
    }
}

/// Consumes log entries and spans as the control thread does: lines are written, spans encoded.
fn take_all(sidecar: &mut Sidecar) {
    let (lines, spans) = sidecar.take_receivers();
    tokio::task::spawn_local(async move {
        let (mut lines, mut text) = (lines, String::new());
        while let Some(entry) = lines.recv().await {
            text.clear();
            access_log::append_log_line(&entry, &LogFormat::Json, &mut text);
        }
    });
    tokio::task::spawn_local(export::encode_all(spans));
}

async fn serve_responses(mut tcp: TcpStream, response: Vec<u8>) {
    let mut request = [0; 1024];
    while tcp.read(&mut request).await.is_ok_and(|read| read > 0) {
        tcp.write_all(&response).await.unwrap();
    }
}

/// Sends a request from every client, all of them at once in each round.
async fn exchange_all(clients: &mut [TcpStream], rounds: usize, body: usize) {
    let length = response_bytes(body).len();
    let mut response = [0; 4096];
    for _ in 0..rounds {
        for client in &mut *clients {
            client.write_all(REQUEST).await.unwrap();
        }
        for client in &mut *clients {
            client.read_exact(&mut response[..length]).await.unwrap();
        }
    }
}

/// Returns the response of the application; no sidecar adds a byte to it.
fn response_bytes(body: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {body}\r\n\r\n");
    [head.into_bytes(), vec![b'x'; body]].concat()
}

fn print_line(line: &str) {
    std::io::Write::write_all(&mut std::io::stdout(), format!("\n{line}\n").as_bytes()).unwrap();
}

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The numbers of concurrent clients between which the allocations of one request are computed.
const FEW: usize = 8;
pub(super) const MANY: usize = 64;
/// The number of TLS records that the additional requests of a round may need, in both directions.
const ADDITIONAL_RECORDS: u64 = 4;
/// Allocations of the TLS library for each record: to encrypt it, and to decrypt it.
const BLOCKS_PER_RECORD: u64 = 2;
const ROUNDS: usize = 100;
/// The numbers of rounds of [`MANY`] exchanges each, between which the instructions of one exchange are
/// computed.
pub(super) const ROUNDS_FEW: usize = 50;
pub(super) const ROUNDS_MANY: usize = 300;
const BODY: usize = 1024;
const REPORT: &str = "blocks: ";
/// A request with the headers of a typical client library.
const REQUEST: &[u8] = b"GET /ratings/1 HTTP/1.1\r\nhost: ratings.bookinfo:9080\r\n\
    user-agent: cost/1\r\naccept: */*\r\n\r\n";
