//! Execution of commands from standard input, with replies on standard output.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::command::{CrowdCommand, CrowdReply};
use super::state::{CrowdState, unix_micros};
use crate::output;

/// Executes commands until standard input ends; then waits forever.
pub(super) async fn execute_commands(state: &CrowdState) -> anyhow::Result<()> {
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = commands.next_line().await? {
        let reply = match serde_json::from_str(&line)? {
            CrowdCommand::Endpoint { member, times, rest_ms } => {
                move_endpoint(state, member, times, Duration::from_millis(rest_ms)).await?
            }
            CrowdCommand::Storm { per_second, seconds } => {
                move_endpoints_at_rate(state, per_second, seconds).await?
            }
            CrowdCommand::Rule { max_wait_ms } => {
                let since = unix_micros();
                output::print_raw(&serde_json::to_string(&CrowdReply::Ready)?)?;
                wait_for_config_change(state, since, Duration::from_millis(max_wait_ms)).await
            }
            CrowdCommand::Streams => CrowdReply::Streams(state.stream_count()),
        };
        output::print_raw(&serde_json::to_string(&reply)?)?;
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
    let started = Instant::now();
    for _ in 0..times {
        let before = state.message_counts();
        state.move_member(member).await?;
        state.wait_until_complete(MAX_WAIT).await;
        sleep(rest).await;
        let messages = state.message_counts();
        let increases = messages.iter().zip(&before).enumerate();
        let other_members = increases.filter(|(index, _)| !users.contains(index));
        to_others += other_members.map(|(_, (now, before))| now - before).sum::<usize>();
    }
    let mut delivery = state.delivery_statistics(times, started.elapsed());
    (delivery.users, delivery.to_others) = (users.len(), to_others);
    Ok(CrowdReply::Delivery(delivery))
}

/// Each change has its own scheduled time, independent of delays of the previous one.
async fn move_endpoints_at_rate(
    state: &CrowdState,
    per_second: u32,
    seconds: f64,
) -> anyhow::Result<CrowdReply> {
    let changes = (f64::from(per_second) * seconds).ceil() as usize;
    let mut ticks = interval(Duration::from_secs(1) / per_second.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    state.clear_latencies();
    let started = Instant::now();
    for change in 0..changes {
        ticks.tick().await;
        state.move_member(change % state.members.len()).await?;
    }
    let elapsed = started.elapsed();
    state.wait_until_complete(MAX_WAIT).await;
    Ok(CrowdReply::Delivery(state.delivery_statistics(changes, elapsed)))
}

async fn wait_for_config_change(state: &CrowdState, since: u64, timeout: Duration) -> CrowdReply {
    let deadline = Instant::now() + timeout;
    loop {
        let change_times = state.config_changes_since(since);
        if change_times.len() == state.members.len() || Instant::now() >= deadline {
            return CrowdReply::ConfigChanges(change_times);
        }
        drop(tokio::time::timeout_at(deadline, state.changed.notified()).await);
    }
}

/// The timeout of a change, far longer than it takes.
const MAX_WAIT: Duration = Duration::from_secs(10);
