//! Orders on standard input, and their results on standard output.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::command::{CrowdCommand, CrowdReply};
use super::state::{CrowdState, since_1970};
use crate::output;

/// Executes orders until standard input ends; then waits forever.
pub(super) async fn execute_orders(state: &CrowdState) -> anyhow::Result<()> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let reported = match serde_json::from_str(&line)? {
            CrowdCommand::Endpoint { member, times, rest_ms } => {
                move_endpoint(state, member, times, Duration::from_millis(rest_ms)).await?
            }
            CrowdCommand::Storm { per_second, seconds } => {
                move_endpoints_at_rate(state, per_second, seconds).await?
            }
            CrowdCommand::Rule { max_wait_ms } => {
                let since = since_1970();
                output::print_raw(&serde_json::to_string(&CrowdReply::Ready)?)?;
                wait_for_config_change(state, since, Duration::from_millis(max_wait_ms)).await
            }
            CrowdCommand::Streams => CrowdReply::Streams(state.stream_count()),
        };
        output::print_raw(&serde_json::to_string(&reported)?)?;
    }
    std::future::pending().await
}

async fn move_endpoint(
    state: &CrowdState,
    member: usize,
    times: usize,
    rest: Duration,
) -> anyhow::Result<CrowdReply> {
    let users: Vec<usize> = state.users_of(member).collect();
    let mut to_others = 0;
    state.clear_latencies();
    let began = Instant::now();
    for _ in 0..times {
        let before = state.message_counts();
        state.move_member(member).await?;
        state.wait_until_complete(MAX_WAIT).await;
        sleep(rest).await;
        let messages = state.message_counts();
        let more = messages.iter().zip(&before).enumerate();
        let others = more.filter(|(at, _)| !users.contains(at));
        to_others += others.map(|(_, (now, before))| now - before).sum::<usize>();
    }
    let mut seen = state.delivery_statistics(times, began.elapsed());
    (seen.users, seen.to_others) = (users.len(), to_others);
    Ok(CrowdReply::Seen(seen))
}

/// Each change has its own scheduled time, independent of delays of the previous one.
async fn move_endpoints_at_rate(
    state: &CrowdState,
    per_second: u32,
    seconds: f64,
) -> anyhow::Result<CrowdReply> {
    let changes = (f64::from(per_second) * seconds).ceil() as usize;
    let mut due = interval(Duration::from_secs(1) / per_second.max(1));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    state.clear_latencies();
    let began = Instant::now();
    for change in 0..changes {
        due.tick().await;
        state.move_member(change % state.seats.len()).await?;
    }
    let elapsed = began.elapsed();
    state.wait_until_complete(MAX_WAIT).await;
    Ok(CrowdReply::Seen(state.delivery_statistics(changes, elapsed)))
}

async fn wait_for_config_change(state: &CrowdState, since: u64, max_wait: Duration) -> CrowdReply {
    let until = Instant::now() + max_wait;
    loop {
        let plans = state.plans_since(since);
        if plans.len() == state.seats.len() || Instant::now() >= until {
            return CrowdReply::Plans(plans);
        }
        drop(tokio::time::timeout_at(until, state.changed.notified()).await);
    }
}

/// Far longer than a change takes.
const MAX_WAIT: Duration = Duration::from_secs(10);
