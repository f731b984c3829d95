//! A server with a stall of one second, on a mock clock.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::Timer;
use crate::drive::ThreadTask;
use crate::environment::Environment;
use crate::thread_share::ThreadShare;
use crate::{LoadModel, LoadPlan, LoadReport, LoadTarget, ProgressCounters, StopHandle};

#[tokio::test(start_paused = true)]
async fn every_request_due_during_a_stall_includes_its_waiting_time() {
    let report = run_against_stalled_server(LoadModel::Open { rate: 100, connections: 50 }).await;
    let target = report.sum_targets();
    assert_eq!((target.request_count(), target.success_count()), (1000, 1000));
    // Due at 4.00, 4.01 … 4.99, response at 5.00 or shortly after.
    assert_eq!(target.latency.count_from(ms(5)), 100);
    assert_eq!(target.latency.count_from(ms(505)), 50);
    let assert_quantile = |quantile, expected: Duration| {
        let actual = target.latency.quantile(quantile).unwrap();
        assert!(actual.abs_diff(expected) <= ms(12), "{quantile}: {actual:?}, not {expected:?}");
    };
    assert_quantile(0.5, SERVICE_TIME);
    assert_quantile(0.89, SERVICE_TIME);
    assert_quantile(0.95, ms(500));
    assert_quantile(0.99, ms(900));
    assert_quantile(1.0, ms(1000));
}

#[tokio::test(start_paused = true)]
async fn a_single_connection_also_delays_the_queue_behind_the_stall() {
    let target = run_against_stalled_server(LoadModel::Open { rate: 100, connections: 1 })
        .await
        .sum_targets();
    assert_eq!((target.request_count(), target.success_count()), (1000, 1000));
    // After the stall the connection catches up at 1000 requests per second, while more requests become due.
    let slow = target.latency.count_from(ms(5));
    assert!((100..125).contains(&slow), "{slow}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_measures_a_stall_only_once() {
    let target =
        run_against_stalled_server(LoadModel::Closed { connections: 1 }).await.sum_targets();
    assert!(target.request_count() > 4000, "{}", target.request_count());
    assert_eq!(target.latency.count_from(ms(5)), 1);
}

async fn run_against_stalled_server(load_model: LoadModel) -> LoadReport {
    let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let plan =
        LoadPlan { load_model, ..LoadPlan::new(vec![LoadTarget::get("t", address, "t", "/")]) };
    let progress_sender = watch::channel(ProgressCounters::default()).0;
    let task = ThreadTask {
        plan,
        share: ThreadShare::WHOLE,
        stop: StopHandle::default(),
        progress_sender,
    };
    let now = Instant::now();
    let second = Duration::from_secs(1);
    task.run_task(StalledServer { stall_period: now + second * 4..now + second * 5 }).await.unwrap()
}

/// An in-memory environment with one server.
struct StalledServer {
    /// The period in which the server does not respond.
    stall_period: Range<Instant>,
}

impl Environment for StalledServer {
    type Stream = DuplexStream;

    async fn connect(&self, _: SocketAddr) -> io::Result<DuplexStream> {
        let (client_end, server_end) = duplex(4096);
        spawn_local(serve_with_stall(server_end, self.stall_period.clone()));
        Ok(client_end)
    }

    fn create_timer(&self) -> io::Result<Timer> {
        Ok(Timer::from_runtime())
    }
}

async fn serve_with_stall(mut stream: DuplexStream, stall_period: Range<Instant>) {
    let mut request_bytes = [0; 4096];
    while stream.read(&mut request_bytes).await.is_ok_and(|read| read > 0) {
        sleep(SERVICE_TIME).await;
        if stall_period.contains(&Instant::now()) {
            sleep_until(stall_period.end).await;
        }
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        if stream.write_all(response).await.is_err() {
            return;
        }
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The server's normal latency.
const SERVICE_TIME: Duration = ms(1);
