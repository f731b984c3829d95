//! Changes in a running mesh: an endpoint, a rule, a storm, and a control plane restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep, timeout};

use super::manifests::render_rule;
use super::{LOOK_EVERY, ROLLOUT_MAX_WAIT, RunningMesh, to_mib};
use crate::bench::child::BenchProcess;
use crate::bench::crowd::{ChangeDelivery, CrowdCommand, CrowdReply, since_1970};
use crate::bench::report::MeshChanges;
use crate::bench::rig::BenchDefaultPolicy;
use crate::bench::sample;
use crate::bench::trial::RunTiming;
use crate::get::MeshSocket;

const CONFUSED: &str = "unexpected response of the simulated sidecars";

/// The files and the address of a mesh.
pub(super) struct MeshPaths<'a> {
    pub(super) file: &'a Path,
    pub(super) data: &'a Path,
    pub(super) address: SocketAddr,
    pub(super) timing: RunTiming,
}

impl RunningMesh<'_, '_> {
    /// Makes changes and measures their cost. Afterwards a different control plane process is running.
    pub(super) async fn measure_changes(
        &self,
        crowd: &mut BenchProcess,
        control: BenchProcess,
        place: &mut MeshPaths<'_>,
    ) -> anyhow::Result<(BenchProcess, MeshChanges)> {
        let mut found = MeshChanges::default();
        let pid = control.pid().context("the control plane has exited")?;
        self.measure_endpoint_change(crowd, place, &mut found).await?;
        if self.rig.default_policy == BenchDefaultPolicy::Deny {
            self.measure_rule_change(crowd, place, &mut found).await?;
        }
        self.measure_endpoint_storm(crowd, place, pid, &mut found).await?;
        let control = self.measure_restart(crowd, control, place, &mut found).await?;
        Ok((control, found))
    }

    /// Moves an endpoint of the most used service.
    async fn measure_endpoint_change(
        &self,
        crowd: &mut BenchProcess,
        place: &MeshPaths<'_>,
        found: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        let last = self.crowd.sidecars.saturating_sub(self.crowd.real);
        let Some(member) = last.checked_sub(1) else { return Ok(()) };
        let before = ControlPlaneCounters::read(place.data).await?;
        let order = CrowdCommand::Endpoint { member, times: MOVES, rest_ms: REST_MS };
        let seen = order_and_wait(crowd, order, MOVES_MAX_WAIT).await?;
        let spent = ControlPlaneCounters::read(place.data).await?.since(&before);
        found.users = seen.users;
        (found.endpoint_p50_ms, found.endpoint_p99_ms) = (seen.p50_ms, seen.p99_ms);
        found.endpoint_to_non_users = seen.to_others;
        found.endpoint_recipients = spent.recipients / MOVES as f64;
        found.endpoint_bytes = spent.bytes / MOVES as f64;
        if seen.missed > 0 {
            bail!("{} sidecars did not receive the update of a moved endpoint", seen.missed);
        }
        Ok(())
    }

    /// Changes a rule that affects all sidecars, in the files.
    async fn measure_rule_change(
        &self,
        crowd: &mut BenchProcess,
        place: &MeshPaths<'_>,
        found: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        let all = self.crowd.sidecars.saturating_sub(self.crowd.real);
        let before = ControlPlaneCounters::read(place.data).await?;
        let mut latencies = Vec::new();
        for ca_generation in 1..=RULES {
            let max_wait_ms = RULE_MAX_WAIT_MS;
            crowd.write_line(&serde_json::to_string(&CrowdCommand::Rule { max_wait_ms })?).await?;
            let CrowdReply::Ready = read_report(crowd).await? else { bail!("{CONFUSED}") };
            let began = since_1970();
            std::fs::write(place.file.join("rule.yaml"), render_rule(ca_generation))
                .context("a rule")?;
            let CrowdReply::Plans(plans) = read_report(crowd).await? else { bail!("{CONFUSED}") };
            found.rule_missed += all.saturating_sub(plans.len());
            latencies.extend(plans.iter().map(|at| at.saturating_sub(began) as f64 / 1e3));
            sleep(Duration::from_millis(REST_MS)).await;
        }
        let spent = ControlPlaneCounters::read(place.data).await?.since(&before);
        latencies.sort_by(f64::total_cmp);
        found.rule_p50_ms = quantile(&latencies, 0.5);
        found.rule_p99_ms = quantile(&latencies, 0.99);
        found.rule_recipients = spent.recipients / RULES as f64;
        found.rule_bytes = spent.bytes / RULES as f64;
        Ok(())
    }

    /// Moves endpoints continuously, like a rolling restart of the whole mesh.
    async fn measure_endpoint_storm(
        &self,
        crowd: &mut BenchProcess,
        place: &MeshPaths<'_>,
        pid: u32,
        found: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        let seconds = (place.timing.duration * STORM_FACTOR).min(STORM_MAX).as_secs_f64();
        let before = ControlPlaneCounters::read(place.data).await?;
        let (cpu, began) = (sample::cpu_time(&[pid]), Instant::now());
        let order = CrowdCommand::Storm { per_second: STORM_PER_SECOND, seconds };
        let max_wait = Duration::from_secs_f64(seconds * 4.0) + ROLLOUT_MAX_WAIT;
        let seen = order_and_wait(crowd, order, max_wait).await?;
        let spent = sample::cpu_time(&[pid]).saturating_sub(cpu).as_secs_f64();
        found.storm_cores = spent / began.elapsed().as_secs_f64();
        let counted = ControlPlaneCounters::read(place.data).await?.since(&before);
        let changes = seen.changes.max(1) as f64;
        (found.storm_s, found.storm_per_s) = (seconds, seen.per_second);
        (found.storm_p50_ms, found.storm_p99_ms) = (seen.p50_ms, seen.p99_ms);
        found.storm_missed = seen.missed;
        found.storm_recipients = counted.recipients / changes;
        found.storm_bytes = counted.bytes / changes;
        Ok(())
    }

    /// Kills the control plane and starts another one on the same data: all sidecars reconnect at once.
    async fn measure_restart(
        &self,
        crowd: &mut BenchProcess,
        control: BenchProcess,
        place: &MeshPaths<'_>,
        found: &mut MeshChanges,
    ) -> anyhow::Result<BenchProcess> {
        // Dropping kills the process, without a graceful shutdown.
        drop(control);
        let until = Instant::now() + ROLLOUT_MAX_WAIT;
        loop {
            let order = serde_json::to_string(&CrowdCommand::Streams)?;
            crowd.write_line(&order).await?;
            match read_report(crowd).await? {
                CrowdReply::Streams(0) => break,
                CrowdReply::Streams(_) if Instant::now() < until => sleep(LOOK_EVERY).await,
                _ => bail!("the simulated sidecars stay connected to the stopped control plane"),
            }
        }
        let began = Instant::now();
        let mut control = self.start_control_plane(place.file, place.data, place.address)?;
        let all = self.crowd.sidecars as u64;
        loop {
            // Another connection may occupy the port for a moment.
            if control.try_exit_status().is_some() {
                control = self.start_control_plane(place.file, place.data, place.address)?;
            }
            let status =
                MeshSocket::from_data(place.data).query_json("/status").await.unwrap_or_default();
            let back = status["proxies"].as_u64() == Some(all) && status["out_of_sync"] == 0;
            if back {
                break;
            }
            if began.elapsed() > ROLLOUT_MAX_WAIT {
                bail!("not all sidecars reconnected: {status}: {}", control.last_words());
            }
            sleep(LOOK_EVERY).await;
        }
        found.reconnect_s = began.elapsed().as_secs_f64();
        found.reconnect_bytes = ControlPlaneCounters::read(place.data).await?.bytes;
        let pid = control.pid().context("the control plane exited")?;
        found.reconnect_memory_mib = to_mib(sample::peak_kib(pid));
        Ok(control)
    }
}

/// Counters of a control plane.
#[derive(Debug, Clone, Copy)]
struct ControlPlaneCounters {
    recipients: f64,
    bytes: f64,
}

impl ControlPlaneCounters {
    async fn read(data: &Path) -> anyhow::Result<Self> {
        let page = MeshSocket::from_data(data).send_request("GET", "/metrics").await?;
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let values: BTreeMap<&str, f64> =
            lines.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect();
        let of = |name: &str| values.get(name).copied().with_context(|| format!("no {name}"));
        Ok(Self {
            recipients: of("leno_control_push_recipients_total")?,
            bytes: of("leno_control_delta_bytes_total")?,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self { recipients: self.recipients - before.recipients, bytes: self.bytes - before.bytes }
    }
}

async fn order_and_wait(
    crowd: &mut BenchProcess,
    order: CrowdCommand,
    max_wait: Duration,
) -> anyhow::Result<ChangeDelivery> {
    crowd.write_line(&serde_json::to_string(&order)?).await?;
    match timeout(max_wait, read_report(crowd))
        .await
        .context("the simulated sidecars do not respond")??
    {
        CrowdReply::Seen(seen) => Ok(seen),
        other => bail!("{CONFUSED}: {other:?}"),
    }
}

async fn read_report(crowd: &mut BenchProcess) -> anyhow::Result<CrowdReply> {
    let line = crowd.next_line().await;
    let line =
        line.with_context(|| format!("the simulated sidecars exited: {}", crowd.last_words()))?;
    serde_json::from_str(&line).context("the report of the simulated sidecars")
}

/// Returns the quantile of sorted figures.
fn quantile(figures: &[f64], share: f64) -> f64 {
    let rank = (share * figures.len() as f64).ceil() as usize;
    figures.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The number of moves of one endpoint, and the time to watch for messages to non-subscribers.
const MOVES: usize = 20;
const REST_MS: u64 = 300;
const MOVES_MAX_WAIT: Duration = Duration::from_secs(300);
/// The number of rule changes, and the timeout of each.
const RULES: usize = 5;
const RULE_MAX_WAIT_MS: u64 = 20_000;
/// The rate of moves, and the duration of the storm: one minute, unless runs are short.
const STORM_PER_SECOND: u32 = 200;
const STORM_FACTOR: u32 = 12;
const STORM_MAX: Duration = Duration::from_secs(60);
