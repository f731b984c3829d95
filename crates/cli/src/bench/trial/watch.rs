//! Resource readings at two moments of a trial, and their difference.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use super::{Auxiliary, CoresBusy, CpuCost, MemoryKib, OtherCosts};
use crate::admin_client;
use crate::bench::case::BackendProcesses;
use crate::bench::contender::{ProcessRole, RunningContender};
use crate::bench::cores::Cores;
use crate::bench::instructions::InstructionCount;
use crate::bench::rig::Rig;
use crate::bench::sample::{self, MemoryUsage, process_tree};
use crate::bench::statistics::round_significant;

/// The processes whose usage is read while the load runs. Process trees are resolved before the load starts, so that
/// readings are fast.
pub(super) struct WatchedProcesses {
    proxies: Vec<(String, Vec<u32>)>,
    auxiliary: Vec<(String, Vec<u32>)>,
    applications: Vec<u32>,
    load: Vec<u32>,
    /// The ports at which applications report their counts.
    counting_ports: Vec<u16>,
    cores: CoreLayout,
}

/// The cores of the proxies, and the cores of the load generator with the applications.
enum CoreLayout {
    Separate(Cores, Cores),
    /// Proxies and load share these cores.
    Shared(Cores),
    Unknown,
}

/// The usage of all processes at one moment.
pub(super) struct UsageReading {
    read_at: Instant,
    proxies: BTreeMap<String, Duration>,
    auxiliary: BTreeMap<String, Duration>,
    applications: Duration,
    load: Duration,
    /// The busy time of the proxies' cores, and of the load generator's cores; the second is zero if cores are shared.
    cores: (Duration, Duration),
    /// The number of responses of the applications; `None` if the applications do not count them.
    response_count: Option<f64>,
}

impl WatchedProcesses {
    pub(super) fn new(
        rig: &Rig,
        running_contender: &RunningContender,
        applications: &BackendProcesses,
        load_pid: u32,
    ) -> Self {
        let processes_of = |role| -> Vec<(String, Vec<u32>)> {
            running_contender
                .role_pids(role)
                .into_iter()
                .map(|(name, pid)| (name, process_tree(pid)))
                .collect()
        };
        let cores = match (&rig.proxy_cores, &rig.load_cores) {
            (Some(proxies), Some(load)) if proxies.overlaps(load) => {
                CoreLayout::Shared(proxies.union(load))
            }
            (Some(proxies), Some(load)) => CoreLayout::Separate(proxies.clone(), load.clone()),
            _ => CoreLayout::Unknown,
        };
        Self {
            proxies: processes_of(ProcessRole::Proxy),
            auxiliary: processes_of(ProcessRole::Auxiliary),
            applications: applications.pids().into_iter().flat_map(process_tree).collect(),
            load: process_tree(load_pid),
            counting_ports: applications.counting_ports.clone(),
            cores,
        }
    }

    /// Reads the usage of all processes.
    ///
    /// # Errors
    /// If an application does not report its count.
    pub(super) async fn read(&self) -> anyhow::Result<UsageReading> {
        let read_cpu_times = |processes: &[(String, Vec<u32>)]| -> BTreeMap<String, Duration> {
            processes.iter().map(|(name, pids)| (name.clone(), sample::cpu_time(pids))).collect()
        };
        // The query itself takes time under load: the mean of two counts is used.
        let earlier_count = self.response_count().await?;
        let mut reading = UsageReading {
            read_at: Instant::now(),
            proxies: read_cpu_times(&self.proxies),
            auxiliary: read_cpu_times(&self.auxiliary),
            applications: sample::cpu_time(&self.applications),
            load: sample::cpu_time(&self.load),
            cores: match &self.cores {
                CoreLayout::Separate(proxies, load) => {
                    (sample::busy_time(proxies), sample::busy_time(load))
                }
                CoreLayout::Shared(cores) => (sample::busy_time(cores), Duration::ZERO),
                CoreLayout::Unknown => (Duration::ZERO, Duration::ZERO),
            },
            response_count: None,
        };
        let later_count = self.response_count().await?;
        let both_counts = earlier_count.zip(later_count);
        reading.response_count = both_counts
            .map(|(earlier_count, later_count)| f64::midpoint(earlier_count, later_count));
        Ok(reading)
    }

    async fn response_count(&self) -> anyhow::Result<Option<f64>> {
        let mut sum = None;
        for port in &self.counting_ports {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            let response = admin_client::query_admin(address, "/count").await?;
            let count: f64 = std::str::from_utf8(&response)?.parse().context("no count")?;
            *sum.get_or_insert(0.0) += count;
        }
        Ok(sum)
    }

    /// Starts counting instructions of the proxies, if there are any.
    ///
    /// # Errors
    /// If counting cannot start.
    pub(super) fn count_instructions(
        &self,
        measured_duration: Duration,
        dir: &Path,
    ) -> anyhow::Result<Option<InstructionCount>> {
        let pids: Vec<u32> = self.proxies.iter().flat_map(|(_, pids)| pids).copied().collect();
        match pids.is_empty() {
            true => Ok(None),
            false => InstructionCount::start(&pids, measured_duration, dir).map(Some),
        }
    }

    /// Returns the memory of the proxies.
    pub(super) fn proxy_memory(&self) -> MemoryKib {
        let mut memory = MemoryKib::default();
        for (name, pids) in &self.proxies {
            let MemoryUsage { private_kib, pss_kib } = sample::memory_usage(pids);
            memory.load_private += private_kib;
            memory.load_pss += pss_kib;
            memory.processes.insert(name.clone(), private_kib);
        }
        memory
    }

    /// Returns the private memory of the contender's other processes.
    pub(super) fn auxiliary_memory(&self) -> BTreeMap<String, u64> {
        let auxiliary = self.auxiliary.iter();
        auxiliary
            .map(|(name, pids)| (name.clone(), sample::memory_usage(pids).private_kib))
            .collect()
    }
}

/// The difference of two readings, in seconds of CPU time.
pub(super) struct UsageDifference {
    seconds: f64,
    /// The number of requests with a response.
    pub(super) requests: f64,
    proxies: BTreeMap<String, f64>,
    auxiliary: BTreeMap<String, f64>,
    applications: f64,
    load: f64,
    cores: (f64, f64),
    shares_cores: bool,
}

impl UsageDifference {
    /// Computes the difference. If the applications do not count responses, `rps` times the elapsed time is used.
    pub(super) fn between(before: &UsageReading, after: &UsageReading, rps: f64) -> Self {
        let cpu_seconds =
            |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
        let cpu_seconds_by_process =
            |after: &BTreeMap<String, Duration>, before: &BTreeMap<String, Duration>| {
                let seconds_by_process = after.iter().map(|(name, time)| {
                    let time_before = before.get(name).copied().unwrap_or_default();
                    (name.clone(), cpu_seconds(*time, time_before))
                });
                seconds_by_process.collect::<BTreeMap<String, f64>>()
            };
        let seconds = after.read_at.duration_since(before.read_at).as_secs_f64();
        let response_counts = after.response_count.zip(before.response_count);
        let requests = response_counts.map_or(rps * seconds, |(after, before)| after - before);
        Self {
            seconds,
            requests: requests.max(1.0),
            proxies: cpu_seconds_by_process(&after.proxies, &before.proxies),
            auxiliary: cpu_seconds_by_process(&after.auxiliary, &before.auxiliary),
            applications: cpu_seconds(after.applications, before.applications),
            load: cpu_seconds(after.load, before.load),
            cores: (
                cpu_seconds(after.cores.0, before.cores.0),
                cpu_seconds(after.cores.1, before.cores.1),
            ),
            shares_cores: after.cores.1.is_zero(),
        }
    }

    /// Converts seconds of CPU time to microseconds per request.
    fn us_per_request(&self, seconds: f64) -> f64 {
        round_significant(seconds * 1e6 / self.requests)
    }

    pub(super) fn cpu_cost(&self) -> CpuCost {
        let processes =
            self.proxies.iter().map(|(name, time)| (name.clone(), self.us_per_request(*time)));
        CpuCost {
            sum: self.us_per_request(self.proxies.values().sum()),
            processes: processes.collect(),
        }
    }

    pub(super) fn other_costs(&self, private_kib_by_process: &BTreeMap<String, u64>) -> OtherCosts {
        let auxiliary = self.auxiliary.iter().map(|(name, time)| {
            let private_kib = private_kib_by_process.get(name).copied().unwrap_or(0);
            (
                name.clone(),
                Auxiliary { cores_busy: round_significant(time / self.seconds), private_kib },
            )
        });
        OtherCosts {
            applications_us_per_request: self.us_per_request(self.applications),
            load_us_per_request: self.us_per_request(self.load),
            auxiliary: auxiliary.collect(),
        }
    }

    /// Returns the number of busy cores. Negative values become zero: clock ticks and the scheduler's counters
    /// differ slightly.
    pub(super) fn busy_cores(&self) -> CoresBusy {
        let proxy_seconds: f64 = self.proxies.values().sum();
        let load_seconds = self.applications + self.load;
        let auxiliary_seconds: f64 = self.auxiliary.values().sum();
        let round_cores = |seconds: f64| round_significant((seconds / self.seconds).max(0.0));
        let (other_on_proxy_cores, other_on_load_cores) = match self.shares_cores {
            true => (self.cores.0 - proxy_seconds - load_seconds - auxiliary_seconds, 0.0),
            false => {
                (self.cores.0 - proxy_seconds, self.cores.1 - load_seconds - auxiliary_seconds)
            }
        };
        CoresBusy {
            proxies: round_cores(proxy_seconds),
            load_and_applications: round_cores(load_seconds),
            other_processes_on_proxy_cores: round_cores(other_on_proxy_cores),
            other_processes_on_load_cores: round_cores(other_on_load_cores),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a reading after some seconds at a steady pace; `cores` is the reading of the cores.
    fn reading_after(
        started: Instant,
        seconds: f64,
        cores: (f64, f64),
        response_count: Option<f64>,
    ) -> UsageReading {
        let cpu_time = |cores: f64| Duration::from_secs_f64(cores * seconds);
        UsageReading {
            read_at: started + Duration::from_secs_f64(seconds),
            proxies: BTreeMap::from([
                ("client".into(), cpu_time(0.2)),
                ("server".into(), cpu_time(0.3)),
            ]),
            auxiliary: BTreeMap::from([("control".into(), cpu_time(0.1))]),
            applications: cpu_time(0.25),
            load: cpu_time(0.5),
            cores: (cpu_time(cores.0), cpu_time(cores.1)),
            response_count,
        }
    }

    fn usage_between(cores: (f64, f64), response_count: Option<(f64, f64)>) -> UsageDifference {
        let started = Instant::now();
        let before = reading_after(started, 10.0, cores, response_count.map(|(before, _)| before));
        let after = reading_after(started, 12.0, cores, response_count.map(|(_, after)| after));
        UsageDifference::between(&before, &after, 1000.0)
    }

    #[test]
    fn costs_are_divided_by_responses_or_else_by_the_rate() {
        for (response_count, requests) in
            [(Some((500.0, 4500.0)), 4000.0), (None, 2000.0), (Some((5.0, 5.0)), 1.0)]
        {
            let usage = usage_between((0.5, 0.85), response_count);
            assert!((usage.requests - requests).abs() < 1e-9, "{}", usage.requests);
            let cpu = usage.cpu_cost();
            assert_eq!(cpu.sum, round_significant(1e6 / requests), "a second for all of them");
            assert_eq!(cpu.processes["client"], round_significant(4e5 / requests));
            let others = usage.other_costs(&BTreeMap::from([("control".to_owned(), 7)]));
            assert_eq!(others.load_us_per_request, round_significant(1e6 / requests));
            assert_eq!(others.auxiliary["control"].cores_busy, 0.1);
            assert_eq!(others.auxiliary["control"].private_kib, 7);
        }
    }

    #[test]
    fn other_processes_are_the_remaining_busy_cores_counted_once() {
        for (core_readings, other_processes) in [
            // Separate cores: 0.5 for the proxies, 0.85 for load, applications and control plane.
            ((0.5, 0.85), (0.0, 0.0)),
            ((0.75, 1.0), (0.25, 0.15)),
            // Clock ticks lag behind: no value is negative.
            ((0.45, 0.8), (0.0, 0.0)),
            // Shared cores: one figure for all of it.
            ((1.35, 0.0), (0.0, 0.0)),
            ((1.75, 0.0), (0.4, 0.0)),
        ] {
            let cores = usage_between(core_readings, None).busy_cores();
            let actual =
                (cores.other_processes_on_proxy_cores, cores.other_processes_on_load_cores);
            let error = (actual.0 - other_processes.0).abs() + (actual.1 - other_processes.1).abs();
            assert!(error < 1e-6, "{core_readings:?}: {actual:?}");
            assert_eq!((cores.proxies, cores.load_and_applications), (0.5, 0.75));
        }
    }
}
