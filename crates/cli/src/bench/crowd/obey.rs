//! Orders on standard input, and their results on standard output.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::audience::{Audience, since_1970};
use super::order::{Order, Told};
use crate::output;

/// Executes orders until standard input ends; then waits forever.
pub(super) async fn obey(audience: &Audience) -> anyhow::Result<()> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let told = match serde_json::from_str(&line)? {
            Order::Endpoint { member, times, rest_ms } => {
                endpoint(audience, member, times, Duration::from_millis(rest_ms)).await?
            }
            Order::Storm { per_second, seconds } => storm(audience, per_second, seconds).await?,
            Order::Rule { patience_ms } => {
                let since = since_1970();
                output::print(&serde_json::to_string(&Told::Ready)?)?;
                rule(audience, since, Duration::from_millis(patience_ms)).await
            }
            Order::Streams => Told::Streams(audience.streams()),
        };
        output::print(&serde_json::to_string(&told)?)?;
    }
    std::future::pending().await
}

async fn endpoint(
    audience: &Audience,
    member: usize,
    times: usize,
    rest: Duration,
) -> anyhow::Result<Told> {
    let users: Vec<usize> = audience.users(member).collect();
    let mut to_others = 0;
    audience.begin();
    let began = Instant::now();
    for _ in 0..times {
        let before = audience.messages();
        audience.relocate(member).await?;
        audience.complete(PATIENCE).await;
        sleep(rest).await;
        let messages = audience.messages();
        let more = messages.iter().zip(&before).enumerate();
        let others = more.filter(|(at, _)| !users.contains(at));
        to_others += others.map(|(_, (now, before))| now - before).sum::<usize>();
    }
    let mut seen = audience.seen(times, began.elapsed());
    (seen.users, seen.to_others) = (users.len(), to_others);
    Ok(Told::Seen(seen))
}

/// Each change has its own scheduled time, independent of delays of the previous one.
async fn storm(audience: &Audience, per_second: u32, seconds: f64) -> anyhow::Result<Told> {
    let changes = (f64::from(per_second) * seconds).ceil() as usize;
    let mut due = interval(Duration::from_secs(1) / per_second.max(1));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    audience.begin();
    let began = Instant::now();
    for change in 0..changes {
        due.tick().await;
        audience.relocate(change % audience.seats.len()).await?;
    }
    let elapsed = began.elapsed();
    audience.complete(PATIENCE).await;
    Ok(Told::Seen(audience.seen(changes, elapsed)))
}

async fn rule(audience: &Audience, since: u64, patience: Duration) -> Told {
    let until = Instant::now() + patience;
    loop {
        let plans = audience.plans_since(since);
        if plans.len() == audience.seats.len() || Instant::now() >= until {
            return Told::Plans(plans);
        }
        drop(tokio::time::timeout_at(until, audience.news.notified()).await);
    }
}

/// Far longer than a change takes.
const PATIENCE: Duration = Duration::from_secs(10);
