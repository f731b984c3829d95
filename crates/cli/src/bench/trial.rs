//! A trial: one contender does one kind of work once, and is watched while it does.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::case::{Applications, Case};
use super::contender::{Configured, Contender, Part, Place, Running};
use super::cores::Cores;
use super::driver::{Demand, Driver, LatencyFound, Load};
use super::instructions::Counting;
use super::ports::Ports;
use super::rig::Rig;
use super::sample::{self, Memory};
use super::statistics::rounded;
use crate::ask;

/// What one run of one contender gave.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Trial {
    /// Which repeat it belongs to, from 1.
    pub(super) repeat: u32,
    pub(super) requests: u64,
    /// Requests without success, and why.
    pub(super) errors: u64,
    pub(super) errors_by_kind: BTreeMap<String, u64>,
    /// Responses by status, where the load generator tells.
    pub(super) statuses: BTreeMap<String, u64>,
    pub(super) rps: f64,
    pub(super) latency_ms: LatencyMs,
    /// Instructions of all proxies for each request, where the processor counts them.
    pub(super) instructions_per_request: Option<f64>,
    /// CPU time for each request: of each proxy, and of all of them.
    pub(super) cpu_us_per_request: CpuCost,
    pub(super) memory_kib: MemoryKib,
    /// What was spent beside the proxies.
    pub(super) others: Others,
    /// How many cores were busy: those of the proxies, and those of load and applications.
    pub(super) cores_busy: CoresBusy,
}

/// Latencies as clients saw them.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct LatencyMs {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// CPU time for each request, in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct CpuCost {
    pub(super) sum: f64,
    pub(super) processes: BTreeMap<String, f64>,
}

/// Memory of all proxies together.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct MemoryKib {
    /// Before the first load.
    pub(super) idle_private: u64,
    /// Under load: what ending the proxies would free.
    pub(super) load_private: u64,
    /// Under load, with a fair part of what is shared.
    pub(super) load_pss: u64,
    /// `load_private` of each proxy.
    pub(super) processes: BTreeMap<String, u64>,
}

/// What was spent beside the proxies, in microseconds of CPU time for each request.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Others {
    pub(super) applications_us_per_request: f64,
    pub(super) load_us_per_request: f64,
    /// Processes of the contender that carry no requests: CPU time and private memory.
    pub(super) beside: BTreeMap<String, Beside>,
}

/// A process that carries no requests, as a control plane.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Beside {
    pub(super) cores_busy: f64,
    pub(super) private_kib: u64,
}

/// How many cores were busy.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct CoresBusy {
    pub(super) proxies: f64,
    pub(super) load_and_applications: f64,
    /// With what is no part of the benchmark, on the cores of the proxies.
    pub(super) strangers_beside_proxies: f64,
    /// The same on the cores of load and applications.
    pub(super) strangers_beside_load: f64,
}

/// How long is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}

/// Who takes part in a trial.
#[derive(Clone, Copy)]
pub(super) struct Cast<'a> {
    pub(super) rig: &'a Rig,
    pub(super) contender: &'a Contender,
    pub(super) case: &'a Case,
    pub(super) driver: Driver,
    /// Whether the processor counts instructions.
    pub(super) counts: bool,
}

/// Runs a trial in a directory of its own. Also tells how the contender was started.
///
/// # Errors
/// When something did not start or failed on the way.
pub(super) async fn run(
    cast: Cast<'_>,
    timing: Timing,
    dir: &Path,
) -> anyhow::Result<(Trial, Vec<Configured>)> {
    let Cast { rig, contender, case, .. } = cast;
    let mut ports = rig.ports();
    let mut place =
        Place { rig, layout: case.layout, dir: dir.join("contender"), ports: &mut ports };
    let mut running = contender.start(&mut place).await?;
    let applications = Applications::start(rig, case, &mut ports, dir)?;
    let measured = measure((cast, timing, dir), &mut ports, &mut running, &applications).await;
    let configured = running.configured().to_vec();
    let words = match &measured {
        Ok(_) => String::new(),
        Err(_) => running.last_words(),
    };
    running.stop().await;
    applications.stop().await;
    Ok((measured.with_context(|| format!("it failed{words}"))?, configured))
}

async fn measure(
    (cast, timing, dir): (Cast<'_>, Timing, &Path),
    ports: &mut Ports<'_>,
    running: &mut Running,
    applications: &Applications,
) -> anyhow::Result<Trial> {
    let Cast { rig, case, driver, .. } = cast;
    let mut urls = Vec::new();
    for (role, path) in &case.targets {
        let address = ports.address(role)?;
        running.until_answered(address, path).await?;
        urls.push(format!("http://{address}{path}"));
    }
    sleep(SETTLE).await;
    let proxies = running.pids(Part::Proxy);
    let idle: u64 = proxies.iter().map(|(_, pid)| sample::memory(*pid).private_kib).sum();
    let demand = Demand {
        urls,
        connections: case.connections,
        rate: case.rate,
        warm_up: timing.warm_up,
        duration: timing.duration,
        connecting: case.connecting,
    };
    let load = driver.start(rig, &demand, dir).await?;
    let margin = (timing.duration / 20).min(MARGIN_MAX);
    sleep_until(load.measured_from + margin).await;
    let watched = Watched { rig, running, applications, load: &load };
    let before = watched.read().await?;
    let length = timing.duration - 2 * margin;
    let processes = watched.processes();
    let counting = match cast.counts && !processes.is_empty() {
        true => Some(Counting::start(&processes, length, dir)?),
        false => None,
    };
    sleep_until(load.measured_from + timing.duration - margin).await;
    let after = watched.read().await?;
    let memory = watched.memory(idle);
    let beside_memory: BTreeMap<String, u64> = running
        .pids(Part::Beside)
        .into_iter()
        .map(|(name, pid)| (name, sample::memory(pid).private_kib))
        .collect();
    running.check_alive()?;
    let instructions = match counting {
        Some(counting) => counting.finish().await?,
        None => None,
    };
    let found = load.finish().await?;
    if found.requests == 0 {
        bail!("no request was answered; errors: {:?}", found.errors_by_kind);
    }
    let spent = Spent::between(&before, &after, found.rps);
    Ok(Trial {
        repeat: 0,
        requests: found.requests,
        errors: found.errors,
        errors_by_kind: found.errors_by_kind,
        statuses: found.statuses,
        rps: rounded(found.rps),
        latency_ms: LatencyMs::of(found.latency_us),
        instructions_per_request: instructions.map(|n| rounded(n as f64 / spent.requests)),
        cpu_us_per_request: spent.cpu(),
        memory_kib: memory,
        others: spent.others(&beside_memory),
        cores_busy: spent.cores(),
    })
}

/// What is watched while load is under way.
struct Watched<'a> {
    rig: &'a Rig,
    running: &'a Running,
    applications: &'a Applications,
    load: &'a Load,
}

/// What everything had taken at one moment.
struct Reading {
    at: Instant,
    proxies: BTreeMap<String, Duration>,
    beside: BTreeMap<String, Duration>,
    applications: Duration,
    load: Duration,
    /// How long the cores of the proxies, and those of the load, were busy with anything.
    cores: (Duration, Duration),
    /// How many requests the applications had answered, if they count.
    answered: Option<u64>,
}

impl Watched<'_> {
    async fn read(&self) -> anyhow::Result<Reading> {
        let cpu = |part| -> BTreeMap<String, Duration> {
            let pids = self.running.pids(part).into_iter();
            pids.map(|(name, pid)| (name, sample::cpu(pid))).collect()
        };
        let load = self.load.pid().context("the load generator ended before its time")?;
        let busy = |cores: &Option<Cores>| cores.as_ref().map(sample::busy).unwrap_or_default();
        let reading = Reading {
            at: Instant::now(),
            proxies: cpu(Part::Proxy),
            beside: cpu(Part::Beside),
            applications: self.applications.pids().into_iter().map(sample::cpu).sum(),
            load: sample::cpu(load),
            cores: (busy(&self.rig.proxy_cores), busy(&self.rig.load_cores)),
            answered: self.answered().await?,
        };
        Ok(reading)
    }

    async fn answered(&self) -> anyhow::Result<Option<u64>> {
        let mut sum = None;
        for port in &self.applications.counting {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            let answer = ask::admin(address, "/count").await?;
            let count: u64 = std::str::from_utf8(&answer)?.parse().context("no count")?;
            *sum.get_or_insert(0) += count;
        }
        Ok(sum)
    }

    /// All processes that carry requests.
    fn processes(&self) -> Vec<u32> {
        self.running.pids(Part::Proxy).into_iter().flat_map(|(_, pid)| sample::tree(pid)).collect()
    }

    fn memory(&self, idle: u64) -> MemoryKib {
        let mut all = MemoryKib { idle_private: idle, ..MemoryKib::default() };
        for (name, pid) in self.running.pids(Part::Proxy) {
            let Memory { private_kib, pss_kib } = sample::memory(pid);
            all.load_private += private_kib;
            all.load_pss += pss_kib;
            all.processes.insert(name, private_kib);
        }
        all
    }
}

/// What happened between two readings.
struct Spent {
    seconds: f64,
    requests: f64,
    proxies: BTreeMap<String, f64>,
    beside: BTreeMap<String, f64>,
    applications: f64,
    load: f64,
    cores: (f64, f64),
}

impl Spent {
    fn between(before: &Reading, after: &Reading, rps: f64) -> Self {
        let spent = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
        let each = |after: &BTreeMap<String, Duration>, before: &BTreeMap<String, Duration>| {
            let each = after.iter().map(|(name, time)| {
                let earlier = before.get(name).copied().unwrap_or_default();
                (name.clone(), spent(*time, earlier))
            });
            each.collect::<BTreeMap<String, f64>>()
        };
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let counted = after.answered.zip(before.answered);
        let requests = counted
            .map_or(rps * seconds, |(after, before)| after.saturating_sub(before) as f64)
            .max(1.0);
        Self {
            seconds,
            requests,
            proxies: each(&after.proxies, &before.proxies),
            beside: each(&after.beside, &before.beside),
            applications: spent(after.applications, before.applications),
            load: spent(after.load, before.load),
            cores: (spent(after.cores.0, before.cores.0), spent(after.cores.1, before.cores.1)),
        }
    }

    /// Microseconds for each request.
    fn cost(&self, seconds: f64) -> f64 {
        rounded(seconds * 1e6 / self.requests)
    }

    fn cpu(&self) -> CpuCost {
        let processes = self.proxies.iter().map(|(name, time)| (name.clone(), self.cost(*time)));
        CpuCost { sum: self.cost(self.proxies.values().sum()), processes: processes.collect() }
    }

    fn others(&self, private: &BTreeMap<String, u64>) -> Others {
        let beside = self.beside.iter().map(|(name, time)| {
            let private_kib = private.get(name).copied().unwrap_or(0);
            (name.clone(), Beside { cores_busy: rounded(time / self.seconds), private_kib })
        });
        Others {
            applications_us_per_request: self.cost(self.applications),
            load_us_per_request: self.cost(self.load),
            beside: beside.collect(),
        }
    }

    /// Clock ticks and the scheduler's own count differ a little: less than nothing is nothing.
    fn cores(&self) -> CoresBusy {
        let proxies: f64 = self.proxies.values().sum();
        let beside: f64 = self.beside.values().sum();
        let ours = self.applications + self.load + beside;
        let busy = |seconds: f64| rounded((seconds / self.seconds).max(0.0));
        CoresBusy {
            proxies: busy(proxies),
            load_and_applications: busy(self.applications + self.load),
            strangers_beside_proxies: busy(self.cores.0 - proxies),
            strangers_beside_load: busy(self.cores.1 - ours),
        }
    }
}

impl LatencyMs {
    fn of(found: LatencyFound) -> Self {
        let ms = |us: Option<f64>| rounded(us.unwrap_or(0.0) / 1e3);
        Self {
            mean: ms(found.mean),
            p50: ms(found.p50),
            p90: ms(found.p90),
            p95: ms(found.p95),
            p99: ms(found.p99),
            p999: ms(found.p999),
            max: ms(found.max),
        }
    }
}

/// Proxies finish what starting left to do before their idle memory is read.
const SETTLE: Duration = Duration::from_millis(300);
/// What is measured begins and ends this much inside the load's own time at most.
const MARGIN_MAX: Duration = Duration::from_millis(250);
