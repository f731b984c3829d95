//! Executes the commands that the benchmark writes to standard input, and replies on standard output.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::command::{CrowdCommand, CrowdReply};
use super::state::{CrowdState, unix_micros};
use crate::output;

/// Executes commands until standard input ends, and then waits forever, because the crowd runs until a signal.
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
                let since_micros = unix_micros();
                output::print_raw(&serde_json::to_string(&CrowdReply::Ready)?)?;
                wait_for_config_change(state, since_micros, Duration::from_millis(max_wait_ms))
                    .await
            }
            CrowdCommand::Streams => CrowdReply::Streams(state.stream_count()),
        };
        output::print_raw(&serde_json::to_string(&reply)?)?;
    }
    std::future::pending().await
}

/// Moves one endpoint `times` times, and counts the messages to members that do not subscribe to it.
async fn move_endpoint(
    state: &CrowdState,
    member: usize,
    times: usize,
    observation_time: Duration,
) -> anyhow::Result<CrowdReply> {
    let subscribers: Vec<usize> = state.subscribers_of(member).collect();
    let mut messages_to_others = 0;
    state.clear_statistics();
    let started = Instant::now();
    for _ in 0..times {
        let counts_before = state.message_counts();
        state.move_member(member).await?;
        // Deliveries after the timeout count as missed.
        state.wait_until_complete(MAX_DELIVERY_WAIT).await;
        sleep(observation_time).await;
        let counts_after = state.message_counts();
        let count_pairs = counts_after.iter().zip(&counts_before).enumerate();
        let non_subscribers = count_pairs.filter(|(index, _)| !subscribers.contains(index));
        messages_to_others +=
            non_subscribers.map(|(_, (after, before))| after - before).sum::<usize>();
    }
    let mut delivery = state.delivery_statistics(times, started.elapsed());
    (delivery.users, delivery.to_others) = (subscribers.len(), messages_to_others);
    Ok(CrowdReply::Delivery(delivery))
}

/// Moves endpoints at a constant rate. Each move has its own scheduled time, independent of delays of the previous
/// one.
async fn move_endpoints_at_rate(
    state: &CrowdState,
    per_second: u32,
    seconds: f64,
) -> anyhow::Result<CrowdReply> {
    let change_count = (f64::from(per_second) * seconds).ceil() as usize;
    let mut move_ticks = interval(Duration::from_secs(1) / per_second.max(1));
    move_ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    state.clear_statistics();
    let started = Instant::now();
    for change in 0..change_count {
        move_ticks.tick().await;
        state.move_member(change % state.members.len()).await?;
    }
    let elapsed = started.elapsed();
    state.wait_until_complete(MAX_DELIVERY_WAIT).await;
    Ok(CrowdReply::Delivery(state.delivery_statistics(change_count, elapsed)))
}

/// Waits until the configurations of all members have changed since `since_micros`, or the timeout expires.
async fn wait_for_config_change(
    state: &CrowdState,
    since_micros: u64,
    timeout: Duration,
) -> CrowdReply {
    let deadline = Instant::now() + timeout;
    loop {
        let change_times = state.config_changes_since(since_micros);
        if change_times.len() == state.members.len() || Instant::now() >= deadline {
            return CrowdReply::ConfigChanges(change_times);
        }
        // The loop checks the deadline.
        drop(tokio::time::timeout_at(deadline, state.update_received.notified()).await);
    }
}

/// The timeout of the delivery of changes, far longer than they take.
const MAX_DELIVERY_WAIT: Duration = Duration::from_secs(10);
