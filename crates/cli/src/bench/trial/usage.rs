//! Measures the CPU time, memory and responses of a trial's processes: reads them at two moments under load, and
//! computes the cost per request from the difference.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use super::{AuxiliaryCost, CoresBusy, CpuCost, MemoryKib, OtherCosts};
use crate::admin_client;
use crate::bench::case::ApplicationProcesses;
use crate::bench::contender::{ProcessRole, RunningContender};
use crate::bench::cores::Cores;
use crate::bench::instructions::InstructionCount;
use crate::bench::sample::{self, MemoryUsage, process_tree};
use crate::bench::statistics::round_significant;
use crate::bench::testbed::Testbed;

/// The processes whose usage is read while the load runs. Process trees are resolved in advance, so that readings are
/// fast: process IDs are those of a process and its descendants.
pub(super) struct MeasuredProcesses {
    /// The name and the process IDs of each proxy.
    proxies: Vec<(String, Vec<u32>)>,
    /// The name and the process IDs of each process of the contender that carries no requests.
    auxiliary_processes: Vec<(String, Vec<u32>)>,
    /// The process IDs of all applications.
    applications: Vec<u32>,
    /// The process IDs of the load generator.
    load_generator: Vec<u32>,
    /// The ports at which applications report their response counts.
    counting_ports: Vec<u16>,
    core_layout: CoreLayout,
}

/// The assignment of cores to the proxies, and to the load generator with the applications.
enum CoreLayout {
    /// The proxies and the load have no core in common.
    Separate { proxy_cores: Cores, load_cores: Cores },
    /// Proxies and load share these cores.
    Shared(Cores),
    /// No cores are assigned: processes run on any core.
    Unassigned,
}

/// The usage of all processes at one moment. Durations are CPU time since the start of the processes.
pub(super) struct UsageReading {
    read_at: Instant,
    proxies: BTreeMap<String, Duration>,
    auxiliary_processes: BTreeMap<String, Duration>,
    applications: Duration,
    load_generator: Duration,
    core_busy_time: CoreBusyTime,
    /// The number of responses of the applications; `None` if the applications do not count them.
    response_count: Option<f64>,
}

/// The busy time of the assigned cores, by any process, since the machine started; zero without an assignment.
struct CoreBusyTime {
    /// The busy time of the proxies' cores; of all assigned cores if proxies and load share them.
    proxy: Duration,
    /// The busy time of the load generator's cores; zero if proxies and load share cores.
    load: Duration,
}

impl MeasuredProcesses {
    pub(super) fn new(
        testbed: &Testbed,
        running_contender: &RunningContender,
        applications: &ApplicationProcesses,
        load_generator_pid: u32,
    ) -> Self {
        let processes_with_role = |role| -> Vec<(String, Vec<u32>)> {
            running_contender
                .named_pids(role)
                .into_iter()
                .map(|(name, pid)| (name, process_tree(pid)))
                .collect()
        };
        let core_layout = match (&testbed.proxy_cores, &testbed.load_cores) {
            (Some(proxy_cores), Some(load_cores)) if proxy_cores.overlaps(load_cores) => {
                CoreLayout::Shared(proxy_cores.union(load_cores))
            }
            (Some(proxy_cores), Some(load_cores)) => CoreLayout::Separate {
                proxy_cores: proxy_cores.clone(),
                load_cores: load_cores.clone(),
            },
            _ => CoreLayout::Unassigned,
        };
        Self {
            proxies: processes_with_role(ProcessRole::Proxy),
            auxiliary_processes: processes_with_role(ProcessRole::Auxiliary),
            applications: applications.pids().into_iter().flat_map(process_tree).collect(),
            load_generator: process_tree(load_generator_pid),
            counting_ports: applications.counting_ports.clone(),
            core_layout,
        }
    }

    /// Reads the usage of all processes.
    ///
    /// # Errors
    /// If an application does not report its response count.
    pub(super) async fn read_usage(&self) -> anyhow::Result<UsageReading> {
        let read_cpu_times = |processes: &[(String, Vec<u32>)]| -> BTreeMap<String, Duration> {
            processes.iter().map(|(name, pids)| (name.clone(), sample::cpu_time(pids))).collect()
        };
        // A query of the counts takes time under load. The mean of the counts before and after the other readings is
        // the count at their moment.
        let count_before = self.query_response_count().await?;
        let mut reading = UsageReading {
            read_at: Instant::now(),
            proxies: read_cpu_times(&self.proxies),
            auxiliary_processes: read_cpu_times(&self.auxiliary_processes),
            applications: sample::cpu_time(&self.applications),
            load_generator: sample::cpu_time(&self.load_generator),
            core_busy_time: self.core_layout.busy_time(),
            response_count: None,
        };
        let count_after = self.query_response_count().await?;
        let both_counts = count_before.zip(count_after);
        reading.response_count =
            both_counts.map(|(count_before, count_after)| f64::midpoint(count_before, count_after));
        Ok(reading)
    }

    /// Returns the sum of the applications' response counts; `None` if no application counts.
    async fn query_response_count(&self) -> anyhow::Result<Option<f64>> {
        let mut sum = None;
        for port in &self.counting_ports {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            let response = admin_client::query_admin(address, "/count").await?;
            let count: f64 = std::str::from_utf8(&response)?.parse().context("no count")?;
            *sum.get_or_insert(0.0) += count;
        }
        Ok(sum)
    }

    /// Starts counting the instructions of all proxies. Returns `None` if the contender has no proxy.
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

    /// Returns the memory of the proxies under load; `idle_private` stays 0.
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

    /// Returns the private memory of each auxiliary process, in KiB.
    pub(super) fn auxiliary_memory_kib(&self) -> BTreeMap<String, u64> {
        self.auxiliary_processes
            .iter()
            .map(|(name, pids)| (name.clone(), sample::memory_usage(pids).private_kib))
            .collect()
    }
}

impl CoreLayout {
    fn busy_time(&self) -> CoreBusyTime {
        match self {
            Self::Separate { proxy_cores, load_cores } => CoreBusyTime {
                proxy: sample::busy_time(proxy_cores),
                load: sample::busy_time(load_cores),
            },
            Self::Shared(cores) => {
                CoreBusyTime { proxy: sample::busy_time(cores), load: Duration::ZERO }
            }
            Self::Unassigned => CoreBusyTime { proxy: Duration::ZERO, load: Duration::ZERO },
        }
    }
}

/// The difference of two readings. Usage is in seconds of CPU time.
pub(super) struct UsageDelta {
    /// The wall-clock time between the readings.
    elapsed_seconds: f64,
    /// The number of requests with a response, at least 1.
    pub(super) requests: f64,
    proxies: BTreeMap<String, f64>,
    auxiliary_processes: BTreeMap<String, f64>,
    applications: f64,
    load_generator: f64,
    core_busy_seconds: CoreBusySeconds,
    /// True if proxies and load share cores, or if no cores are assigned.
    shares_cores: bool,
}

/// [`CoreBusyTime`] between two readings, in seconds.
struct CoreBusySeconds {
    proxy: f64,
    load: f64,
}

impl UsageDelta {
    /// Computes the difference. If the applications do not count responses, the number of requests is `rps` times the
    /// elapsed time.
    pub(super) fn between(before: &UsageReading, after: &UsageReading, rps: f64) -> Self {
        let seconds_between =
            |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
        let seconds_by_process =
            |before: &BTreeMap<String, Duration>, after: &BTreeMap<String, Duration>| {
                let cpu_seconds = after.iter().map(|(name, time_after)| {
                    let time_before = before.get(name).copied().unwrap_or_default();
                    (name.clone(), seconds_between(time_before, *time_after))
                });
                cpu_seconds.collect::<BTreeMap<String, f64>>()
            };
        let elapsed_seconds = after.read_at.duration_since(before.read_at).as_secs_f64();
        let response_counts = before.response_count.zip(after.response_count);
        let requests = response_counts
            .map_or(rps * elapsed_seconds, |(count_before, count_after)| {
                count_after - count_before
            });
        let (busy_before, busy_after) = (&before.core_busy_time, &after.core_busy_time);
        Self {
            elapsed_seconds,
            // No division by zero if no application responded.
            requests: requests.max(1.0),
            proxies: seconds_by_process(&before.proxies, &after.proxies),
            auxiliary_processes: seconds_by_process(
                &before.auxiliary_processes,
                &after.auxiliary_processes,
            ),
            applications: seconds_between(before.applications, after.applications),
            load_generator: seconds_between(before.load_generator, after.load_generator),
            core_busy_seconds: CoreBusySeconds {
                proxy: seconds_between(busy_before.proxy, busy_after.proxy),
                load: seconds_between(busy_before.load, busy_after.load),
            },
            // Only separate load cores have a busy time of their own; see `CoreBusyTime::load`.
            shares_cores: busy_after.load.is_zero(),
        }
    }

    /// Converts seconds of CPU time to microseconds per request.
    fn us_per_request(&self, cpu_seconds: f64) -> f64 {
        round_significant(cpu_seconds * 1e6 / self.requests)
    }

    /// Returns the CPU time of the proxies per request.
    pub(super) fn cpu_cost(&self) -> CpuCost {
        let cost_by_proxy = self
            .proxies
            .iter()
            .map(|(name, cpu_seconds)| (name.clone(), self.us_per_request(*cpu_seconds)));
        CpuCost {
            sum: self.us_per_request(self.proxies.values().sum()),
            processes: cost_by_proxy.collect(),
        }
    }

    /// Returns the costs of the applications, the load generator and the auxiliary processes. `auxiliary_memory_kib`
    /// is the private memory of each auxiliary process.
    pub(super) fn other_costs(&self, auxiliary_memory_kib: &BTreeMap<String, u64>) -> OtherCosts {
        let auxiliary_costs = self.auxiliary_processes.iter().map(|(name, cpu_seconds)| {
            let private_kib = auxiliary_memory_kib.get(name).copied().unwrap_or(0);
            let cores_busy = round_significant(cpu_seconds / self.elapsed_seconds);
            (name.clone(), AuxiliaryCost { cores_busy, private_kib })
        });
        OtherCosts {
            applications_us_per_request: self.us_per_request(self.applications),
            load_us_per_request: self.us_per_request(self.load_generator),
            auxiliary: auxiliary_costs.collect(),
        }
    }

    /// Returns the number of cores that each group of processes kept busy. Negative differences become zero: clock
    /// ticks and the scheduler's counters differ slightly.
    pub(super) fn cores_busy(&self) -> CoresBusy {
        let proxy_seconds: f64 = self.proxies.values().sum();
        let load_seconds = self.applications + self.load_generator;
        let auxiliary_seconds: f64 = self.auxiliary_processes.values().sum();
        let to_cores =
            |cpu_seconds: f64| round_significant((cpu_seconds / self.elapsed_seconds).max(0.0));
        let CoreBusySeconds { proxy: proxy_cores_busy, load: load_cores_busy } =
            self.core_busy_seconds;
        let (other_on_proxy_cores, other_on_load_cores) = match self.shares_cores {
            true => (proxy_cores_busy - proxy_seconds - load_seconds - auxiliary_seconds, 0.0),
            false => (
                proxy_cores_busy - proxy_seconds,
                load_cores_busy - load_seconds - auxiliary_seconds,
            ),
        };
        CoresBusy {
            proxies: to_cores(proxy_seconds),
            load_and_applications: to_cores(load_seconds),
            other_processes_on_proxy_cores: to_cores(other_on_proxy_cores),
            other_processes_on_load_cores: to_cores(other_on_load_cores),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a reading `elapsed_seconds` after the start at a steady pace. `busy_cores` is the number of busy cores
    /// among the proxies' cores and among the load generator's cores.
    fn reading_after(
        started: Instant,
        elapsed_seconds: f64,
        busy_cores: (f64, f64),
        response_count: Option<f64>,
    ) -> UsageReading {
        let cpu_time = |cores: f64| Duration::from_secs_f64(cores * elapsed_seconds);
        UsageReading {
            read_at: started + Duration::from_secs_f64(elapsed_seconds),
            proxies: BTreeMap::from([
                ("client".into(), cpu_time(0.2)),
                ("server".into(), cpu_time(0.3)),
            ]),
            auxiliary_processes: BTreeMap::from([("control".into(), cpu_time(0.1))]),
            applications: cpu_time(0.25),
            load_generator: cpu_time(0.5),
            core_busy_time: CoreBusyTime {
                proxy: cpu_time(busy_cores.0),
                load: cpu_time(busy_cores.1),
            },
            response_count,
        }
    }

    /// Returns the usage of two seconds. `response_counts` are the counts at the start and at the end.
    fn usage_of_two_seconds(
        busy_cores: (f64, f64),
        response_counts: Option<(f64, f64)>,
    ) -> UsageDelta {
        let started = Instant::now();
        let (count_before, count_after) = response_counts.unzip();
        let before = reading_after(started, 10.0, busy_cores, count_before);
        let after = reading_after(started, 12.0, busy_cores, count_after);
        UsageDelta::between(&before, &after, 1000.0)
    }

    #[test]
    fn costs_are_divided_by_responses_or_else_by_the_rate() {
        for (response_counts, requests) in
            [(Some((500.0, 4500.0)), 4000.0), (None, 2000.0), (Some((5.0, 5.0)), 1.0)]
        {
            let usage = usage_of_two_seconds((0.5, 0.85), response_counts);
            assert!((usage.requests - requests).abs() < 1e-9, "{} requests", usage.requests);
            let cpu_cost = usage.cpu_cost();
            let expected_sum = round_significant(1e6 / requests);
            assert_eq!(cpu_cost.sum, expected_sum, "both proxies used one second of CPU time");
            assert_eq!(cpu_cost.processes["client"], round_significant(4e5 / requests));
            let others = usage.other_costs(&BTreeMap::from([("control".to_owned(), 7)]));
            assert_eq!(others.load_us_per_request, round_significant(1e6 / requests));
            assert_eq!(others.auxiliary["control"].cores_busy, 0.1);
            assert_eq!(others.auxiliary["control"].private_kib, 7);
        }
    }

    #[test]
    fn other_processes_are_the_remaining_busy_cores_counted_once() {
        for (busy_cores, expected_others) in [
            // Separate cores: 0.5 for the proxies, 0.85 for load, applications and control plane.
            ((0.5, 0.85), (0.0, 0.0)),
            ((0.75, 1.0), (0.25, 0.15)),
            // Clock ticks lag behind: no value is negative.
            ((0.45, 0.8), (0.0, 0.0)),
            // Shared cores: the first figure covers all cores.
            ((1.35, 0.0), (0.0, 0.0)),
            ((1.75, 0.0), (0.4, 0.0)),
        ] {
            let cores_busy = usage_of_two_seconds(busy_cores, None).cores_busy();
            let others = (
                cores_busy.other_processes_on_proxy_cores,
                cores_busy.other_processes_on_load_cores,
            );
            let error = (others.0 - expected_others.0).abs() + (others.1 - expected_others.1).abs();
            assert!(error < 1e-6, "{busy_cores:?} busy cores: {others:?} by other processes");
            assert_eq!((cores_busy.proxies, cores_busy.load_and_applications), (0.5, 0.75));
        }
    }
}
