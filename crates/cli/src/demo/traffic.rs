//! Generates the traffic of the demo: the measured load with a progress line, the background traffic, and
//! requests of a client without permission.

use std::io::{IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use leno_load::{LoadModel, LoadPlan, LoadReport, LoadTarget, ProgressCounters, drive_load};
use tokio::sync::{oneshot, watch};

use super::bookinfo::manifests::BookinfoPorts;
use crate::figures::format_count;

/// Sends requests to bookinfo for `duration`, on a thread of its own, and shows the progress.
///
/// # Errors
/// If the load cannot be generated.
pub(super) async fn drive_bookinfo(
    ports: BookinfoPorts,
    duration: Duration,
) -> anyhow::Result<LoadReport> {
    let load_plan = build_load_plan(&ports, duration);
    let total_duration = load_plan.warm_up + load_plan.duration;
    let (progress_sender, progress_receiver) = watch::channel(ProgressCounters::default());
    tokio::select! {
        report = run_load_thread(load_plan, progress_sender) => report,
        never = show_progress(progress_receiver, total_duration) => match never {},
    }
}

/// Sends requests at a low rate for live views, and ignores the results. Never returns.
pub(super) async fn run_background_traffic(ports: BookinfoPorts) -> std::convert::Infallible {
    loop {
        let load_model = LoadModel::Open { rate: BACKGROUND_RATE, connections: CONNECTION_COUNT };
        let load_plan = LoadPlan {
            load_model,
            warm_up: Duration::ZERO,
            ..build_load_plan(&ports, BACKGROUND_RUN_DURATION)
        };
        let outcome =
            run_load_thread(load_plan, watch::channel(ProgressCounters::default()).0).await;
        if let Err(error) = outcome {
            tracing::warn!(%error, "the demo's traffic stops");
            return std::future::pending().await;
        }
    }
}

/// Generates load on a thread of its own.
async fn run_load_thread(
    load_plan: LoadPlan,
    progress_sender: watch::Sender<ProgressCounters>,
) -> anyhow::Result<LoadReport> {
    let (report_sender, report_receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || {
            let outcome = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(anyhow::Error::new)
                .and_then(|runtime| Ok(runtime.block_on(drive_load(load_plan, progress_sender))?));
            // The receiver may have been dropped.
            drop(report_sender.send(outcome));
        })
        .context("cannot start the thread of the load generator")?;
    report_receiver.await.context("the load generator failed")?
}

/// Requests ratings as a member of the mesh without permission; returns the status.
///
/// # Errors
/// If there is no response.
pub(super) async fn request_as_denied_client(ports: BookinfoPorts) -> anyhow::Result<u16> {
    let mut target = build_target(ports.denied_client_ratings, "outsider", "ratings", "/ratings/0");
    target.weight = 1;
    // Five requests, of which each must get the same status.
    let load_plan = LoadPlan {
        load_model: LoadModel::Open { rate: 10, connections: 1 },
        duration: Duration::from_millis(500),
        timeout: REQUEST_TIMEOUT,
        seed: RANDOM_SEED,
        ..LoadPlan::new(vec![target])
    };
    let report = drive_load(load_plan, watch::channel(ProgressCounters::default()).0).await?;
    let total = report.sum_targets();
    let statuses: Vec<u16> = total.status_counts().map(|(status, _)| status).collect();
    match statuses.as_slice() {
        [status] if total.failure_count() == 0 => Ok(*status),
        _ => anyhow::bail!(
            "statuses {statuses:?}, and {} requests without a response",
            total.failure_count()
        ),
    }
}

fn build_load_plan(ports: &BookinfoPorts, duration: Duration) -> LoadPlan {
    let page_target =
        |name| build_target(ports.traffic_productpage, name, "productpage", "/productpage?id=0");
    let jason = LoadTarget {
        headers: vec![("end-user".to_owned(), "jason".to_owned())],
        weight: 1,
        ..page_target("page as jason")
    };
    let gateway_target =
        build_target(ports.traffic_gateway_ratings, "ratings", "gateway-ratings", "/ratings/0");
    let targets = vec![
        LoadTarget { weight: 6, ..page_target("page") },
        jason,
        LoadTarget { weight: 7, ..gateway_target },
    ];
    LoadPlan {
        load_model: LoadModel::Closed { connections: CONNECTION_COUNT },
        duration,
        // A short run is at most one fifth longer with its warm-up.
        warm_up: WARM_UP_DURATION.min(duration / 5),
        timeout: REQUEST_TIMEOUT,
        seed: RANDOM_SEED,
        ..LoadPlan::new(targets)
    }
}

fn build_target(listener_port: u16, name: &str, service: &str, path: &str) -> LoadTarget {
    let listener_address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener_port));
    LoadTarget::get(name, listener_address, &format!("{service}.bookinfo:9080"), path)
}

/// Shows the progress in one line, if standard error is a terminal. Never returns.
async fn show_progress(
    mut progress_receiver: watch::Receiver<ProgressCounters>,
    total_duration: Duration,
) -> std::convert::Infallible {
    let is_terminal = std::io::stderr().is_terminal();
    while progress_receiver.changed().await.is_ok() {
        let counters = *progress_receiver.borrow_and_update();
        if is_terminal {
            let mut stderr = std::io::stderr().lock();
            // A failed write to the terminal does not end the run.
            drop(write!(stderr, "\r\x1b[K{}", format_progress(&counters, total_duration)));
            drop(stderr.flush());
        }
    }
    if is_terminal {
        eprint!("\r\x1b[K");
    }
    std::future::pending().await
}

fn format_progress(counters: &ProgressCounters, total_duration: Duration) -> String {
    let seconds = counters.elapsed.as_secs_f64();
    let phase = match counters.measuring {
        true => "driving",
        false => "warming up",
    };
    let rate = match seconds > 0.0 {
        true => counters.requests as f64 / seconds,
        false => 0.0,
    };
    format!(
        "{phase}: {seconds:.1} of {:.0} s, {}, {rate:.0}/s, {} failed",
        total_duration.as_secs_f64(),
        format_count(counters.requests, "request"),
        counters.requests.saturating_sub(counters.successes),
    )
}

/// The number of connections, each with one request at a time; enough to keep a small machine busy.
const CONNECTION_COUNT: usize = 8;
/// The time without measurement in which connections open and caches fill.
const WARM_UP_DURATION: Duration = Duration::from_secs(2);
/// The rate of background traffic, in requests per second; it hardly loads the machine.
const BACKGROUND_RATE: u32 = 30;
/// The duration of one run of the load generator for background traffic.
const BACKGROUND_RUN_DURATION: Duration = Duration::from_secs(60);
/// The timeout of a request; a healthy mesh responds much sooner.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The seed of the random order of requests; constant, so that the order is the same in each run.
const RANDOM_SEED: u64 = 1;
