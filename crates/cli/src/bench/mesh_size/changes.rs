//! Measures changes in a running mesh: moves of one endpoint, changes of a rule, a storm (moves of all endpoints at a
//! constant rate), and a restart of the control plane. A move is a change of the listener address of a sidecar.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep, timeout};

use super::manifests::render_rule;
use super::{MAX_ROLLOUT_WAIT, POLL_INTERVAL, RunningMesh, to_mib};
use crate::bench::child::BenchProcess;
use crate::bench::crowd::{ChangeDelivery, CrowdCommand, CrowdReply, unix_micros};
use crate::bench::report::MeshChanges;
use crate::bench::sample;
use crate::bench::testbed::BenchDefaultPolicy;
use crate::bench::trial::TrialTiming;
use crate::get::MeshSocket;

const UNEXPECTED_REPLY: &str = "unexpected response of the simulated sidecars";

/// The directories of a mesh, the address of its control plane, and the durations that the user selected.
pub(super) struct ChangeSettings<'a> {
    pub(super) manifest_dir: &'a Path,
    pub(super) data_dir: &'a Path,
    pub(super) control_address: SocketAddr,
    pub(super) timing: TrialTiming,
}

impl RunningMesh<'_, '_> {
    /// Makes changes and measures their cost. Returns the control plane process that is running afterwards: the restart
    /// replaces the given one.
    pub(super) async fn measure_changes(
        &self,
        crowd: &mut BenchProcess,
        control_process: BenchProcess,
        settings: &mut ChangeSettings<'_>,
    ) -> anyhow::Result<(BenchProcess, MeshChanges)> {
        let mut changes = MeshChanges::default();
        let control_pid = control_process.pid().context("the control plane has exited")?;
        self.measure_endpoint_change(crowd, settings, &mut changes).await?;
        if self.testbed.default_policy == BenchDefaultPolicy::Deny {
            self.measure_rule_change(crowd, settings, &mut changes).await?;
        }
        self.measure_endpoint_storm(crowd, settings, control_pid, &mut changes).await?;
        let control_process =
            self.measure_restart(crowd, control_process, settings, &mut changes).await?;
        Ok((control_process, changes))
    }

    /// Moves an endpoint of the most used service.
    async fn measure_endpoint_change(
        &self,
        crowd: &mut BenchProcess,
        settings: &ChangeSettings<'_>,
        changes: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        // The last member belongs to the last service, which has the most clients. Without simulated sidecars there is
        // no endpoint to move.
        let member_count = self.setup.sidecars.saturating_sub(self.setup.real_sidecars);
        let Some(member) = member_count.checked_sub(1) else { return Ok(()) };
        let counters_before = ControlPlaneCounters::read(settings.data_dir).await?;
        let command = CrowdCommand::Endpoint { member, times: MOVE_COUNT, rest_ms: REST_MS };
        let delivery = measure_delivery(crowd, command, MAX_MOVES_WAIT).await?;
        let cost = ControlPlaneCounters::read(settings.data_dir).await?.since(&counters_before);
        changes.users = delivery.users;
        (changes.endpoint_p50_ms, changes.endpoint_p99_ms) = (delivery.p50_ms, delivery.p99_ms);
        changes.endpoint_to_non_users = delivery.to_others;
        changes.endpoint_recipients = cost.recipient_count / MOVE_COUNT as f64;
        changes.endpoint_bytes = cost.delta_bytes / MOVE_COUNT as f64;
        if delivery.missed > 0 {
            bail!("{} sidecars did not receive the update of a moved endpoint", delivery.missed);
        }
        Ok(())
    }

    /// Changes the manifest of a rule that affects all sidecars, several times.
    async fn measure_rule_change(
        &self,
        crowd: &mut BenchProcess,
        settings: &ChangeSettings<'_>,
        changes: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        let member_count = self.setup.sidecars.saturating_sub(self.setup.real_sidecars);
        let counters_before = ControlPlaneCounters::read(settings.data_dir).await?;
        let mut latencies = Vec::new();
        for version in 1..=RULE_CHANGE_COUNT {
            let max_wait_ms = MAX_RULE_WAIT_MS;
            crowd.write_line(&serde_json::to_string(&CrowdCommand::Rule { max_wait_ms })?).await?;
            let CrowdReply::Ready = read_reply(crowd).await? else { bail!("{UNEXPECTED_REPLY}") };
            let start_micros = unix_micros();
            std::fs::write(settings.manifest_dir.join("rule.yaml"), render_rule(version))
                .context("a rule")?;
            let CrowdReply::ConfigChanges(change_times) = read_reply(crowd).await? else {
                bail!("{UNEXPECTED_REPLY}")
            };
            changes.rule_missed += member_count.saturating_sub(change_times.len());
            latencies.extend(
                change_times
                    .iter()
                    .map(|change_time| change_time.saturating_sub(start_micros) as f64 / 1e3),
            );
            sleep(Duration::from_millis(REST_MS)).await;
        }
        let cost = ControlPlaneCounters::read(settings.data_dir).await?.since(&counters_before);
        latencies.sort_by(f64::total_cmp);
        changes.rule_p50_ms = quantile(&latencies, 0.5);
        changes.rule_p99_ms = quantile(&latencies, 0.99);
        changes.rule_recipients = cost.recipient_count / RULE_CHANGE_COUNT as f64;
        changes.rule_bytes = cost.delta_bytes / RULE_CHANGE_COUNT as f64;
        Ok(())
    }

    /// Moves endpoints continuously, like a rolling restart of the whole mesh.
    async fn measure_endpoint_storm(
        &self,
        crowd: &mut BenchProcess,
        settings: &ChangeSettings<'_>,
        control_pid: u32,
        changes: &mut MeshChanges,
    ) -> anyhow::Result<()> {
        let seconds = (settings.timing.duration * STORM_FACTOR).min(MAX_STORM).as_secs_f64();
        let counters_before = ControlPlaneCounters::read(settings.data_dir).await?;
        let (cpu_before, started) = (sample::cpu_time(&[control_pid]), Instant::now());
        let command = CrowdCommand::Storm { per_second: STORM_PER_SECOND, seconds };
        let max_wait = Duration::from_secs_f64(seconds * 4.0) + MAX_ROLLOUT_WAIT;
        let delivery = measure_delivery(crowd, command, max_wait).await?;
        let cpu_seconds = sample::cpu_time(&[control_pid]).saturating_sub(cpu_before).as_secs_f64();
        changes.storm_cores = cpu_seconds / started.elapsed().as_secs_f64();
        let cost = ControlPlaneCounters::read(settings.data_dir).await?.since(&counters_before);
        let change_count = delivery.changes.max(1) as f64;
        (changes.storm_s, changes.storm_per_s) = (seconds, delivery.per_second);
        (changes.storm_p50_ms, changes.storm_p99_ms) = (delivery.p50_ms, delivery.p99_ms);
        changes.storm_missed = delivery.missed;
        changes.storm_recipients = cost.recipient_count / change_count;
        changes.storm_bytes = cost.delta_bytes / change_count;
        Ok(())
    }

    /// Kills the control plane and starts another one on the same data: all sidecars reconnect at once.
    async fn measure_restart(
        &self,
        crowd: &mut BenchProcess,
        control_process: BenchProcess,
        settings: &ChangeSettings<'_>,
        changes: &mut MeshChanges,
    ) -> anyhow::Result<BenchProcess> {
        // Dropping kills the process, without a graceful shutdown.
        drop(control_process);
        let deadline = Instant::now() + MAX_ROLLOUT_WAIT;
        loop {
            let command = serde_json::to_string(&CrowdCommand::Streams)?;
            crowd.write_line(&command).await?;
            match read_reply(crowd).await? {
                CrowdReply::Streams(0) => break,
                CrowdReply::Streams(_) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                _ => bail!("the simulated sidecars stay connected to the stopped control plane"),
            }
        }
        let started = Instant::now();
        let mut control_process = self.start_control_plane(
            settings.manifest_dir,
            settings.data_dir,
            settings.control_address,
        )?;
        let sidecar_count = self.setup.sidecars as u64;
        loop {
            // The new process exits if a connection of the old one still occupies its port.
            if control_process.try_exit_status().is_some() {
                control_process = self.start_control_plane(
                    settings.manifest_dir,
                    settings.data_dir,
                    settings.control_address,
                )?;
            }
            // The new process does not respond at first, which counts as a status without proxies.
            let status = MeshSocket::from_data(settings.data_dir)
                .query_json("/status")
                .await
                .unwrap_or_default();
            let is_restored =
                status["proxies"].as_u64() == Some(sidecar_count) && status["out_of_sync"] == 0;
            if is_restored {
                break;
            }
            if started.elapsed() > MAX_ROLLOUT_WAIT {
                bail!("not all sidecars reconnected: {status}: {}", control_process.log_tail());
            }
            sleep(POLL_INTERVAL).await;
        }
        changes.reconnect_s = started.elapsed().as_secs_f64();
        changes.reconnect_bytes = ControlPlaneCounters::read(settings.data_dir).await?.delta_bytes;
        let control_pid = control_process.pid().context("the control plane exited")?;
        changes.reconnect_memory_mib = to_mib(sample::peak_kib(control_pid));
        Ok(control_process)
    }
}

/// Counters of a control plane since its start: the proxies that received updates, and the bytes of these updates.
#[derive(Debug, Clone, Copy)]
struct ControlPlaneCounters {
    recipient_count: f64,
    delta_bytes: f64,
}

impl ControlPlaneCounters {
    async fn read(data_dir: &Path) -> anyhow::Result<Self> {
        let page = MeshSocket::from_data(data_dir).send_request("GET", "/metrics").await?;
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let values: BTreeMap<&str, f64> =
            lines.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect();
        let counter = |name: &str| values.get(name).copied().with_context(|| format!("no {name}"));
        Ok(Self {
            recipient_count: counter("leno_control_push_recipients_total")?,
            delta_bytes: counter("leno_control_delta_bytes_total")?,
        })
    }

    fn since(self, counters_before: &Self) -> Self {
        Self {
            recipient_count: self.recipient_count - counters_before.recipient_count,
            delta_bytes: self.delta_bytes - counters_before.delta_bytes,
        }
    }
}

/// Sends a command to the crowd, and waits for the delivery that it reports.
async fn measure_delivery(
    crowd: &mut BenchProcess,
    command: CrowdCommand,
    max_wait: Duration,
) -> anyhow::Result<ChangeDelivery> {
    crowd.write_line(&serde_json::to_string(&command)?).await?;
    match timeout(max_wait, read_reply(crowd))
        .await
        .context("the simulated sidecars do not respond")??
    {
        CrowdReply::Delivery(delivery) => Ok(delivery),
        unexpected_reply => bail!("{UNEXPECTED_REPLY}: {unexpected_reply:?}"),
    }
}

async fn read_reply(crowd: &mut BenchProcess) -> anyhow::Result<CrowdReply> {
    let line = crowd.next_line().await;
    let line =
        line.with_context(|| format!("the simulated sidecars exited: {}", crowd.log_tail()))?;
    serde_json::from_str(&line).context("the report of the simulated sidecars")
}

/// Returns the quantile of sorted figures; 0 without figures.
fn quantile(figures: &[f64], fraction: f64) -> f64 {
    let rank = (fraction * figures.len() as f64).ceil() as usize;
    figures.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The number of moves of one endpoint.
const MOVE_COUNT: usize = 20;
/// The time after each change in which messages to non-subscribers are counted, in milliseconds.
const REST_MS: u64 = 300;
/// The timeout of all moves of one endpoint together.
const MAX_MOVES_WAIT: Duration = Duration::from_secs(300);
/// The number of rule changes.
const RULE_CHANGE_COUNT: usize = 5;
/// The timeout of one rule change, in milliseconds.
const MAX_RULE_WAIT_MS: u64 = 20_000;
/// The rate of endpoint moves during the storm, per second.
const STORM_PER_SECOND: u32 = 200;
/// The duration of the storm as a multiple of the duration that the user selected.
const STORM_FACTOR: u32 = 12;
/// The maximum duration of the storm.
const MAX_STORM: Duration = Duration::from_secs(60);
