//! Reads the CPU time and memory of processes and the busy time of cores, and finds the descendants of a process.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use leno_telemetry::ProcessUsage;

use super::cores::Cores;

/// Returns the CPU time of some processes since their start.
///
/// Sums the scheduler's times of all threads, which are in nanoseconds. If the kernel does not report them, uses the
/// clock ticks of the processes. Threads and processes that have ended are not included.
pub(super) fn cpu_time(pids: &[u32]) -> Duration {
    let process_cpu_time = |pid: u32| {
        threads_cpu_time(pid).or_else(|| Some(leno_telemetry::read_usage(pid).ok()?.cpu))
    };
    pids.iter().copied().filter_map(process_cpu_time).sum()
}

/// Memory usage of some processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MemoryUsage {
    /// Private memory: the memory that would be freed if the processes exited.
    pub(super) private_kib: u64,
    /// The proportional set size.
    pub(super) pss_kib: u64,
}

/// Reads the memory usage of some processes.
pub(super) fn memory_usage(pids: &[u32]) -> MemoryUsage {
    let usages = pids.iter().filter_map(|pid| leno_telemetry::read_usage(*pid).ok());
    usages.fold(MemoryUsage::default(), |sum, ProcessUsage { private_kib, pss_kib, .. }| {
        MemoryUsage { private_kib: sum.private_kib + private_kib, pss_kib: sum.pss_kib + pss_kib }
    })
}

/// Returns the peak resident memory of a process; 0 once the process has exited.
pub(super) fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

/// Returns the busy time of some cores since boot, for all processes; in steps of 10 ms.
pub(super) fn busy_time(cores: &Cores) -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = stat.lines().filter_map(|line| busy_ticks(line, cores)).sum();
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64)
}

/// Returns the busy clock ticks in a line of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
/// Returns `None` for other lines and for other cores.
fn busy_ticks(line: &str, cores: &Cores) -> Option<u64> {
    // The line without a number is the sum of the lines of all cores.
    let core_fields =
        line.strip_prefix("cpu").filter(|core_fields| !core_fields.starts_with(' '))?;
    let mut words = core_fields.split_ascii_whitespace();
    if !cores.contains(words.next()?.parse().ok()?) {
        return None;
    }
    let tick_counts: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
    let idle_ticks = tick_counts.get(3..5)?.iter().sum::<u64>();
    Some(tick_counts.iter().sum::<u64>().saturating_sub(idle_ticks))
}

/// Returns the process IDs of a process and of its running descendants.
pub(super) fn process_tree(root_pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in numeric_names("/proc") {
        if let Some(parent) = parent_pid(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    // The loop appends the children of each process that it visits.
    let mut pids = vec![root_pid];
    let mut next_index = 0;
    while let Some(pid) = pids.get(next_index) {
        pids.extend(children.remove(pid).unwrap_or_default());
        next_index += 1;
    }
    pids
}

fn parent_pid(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may contain any characters, including parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the CPU time of the running threads of a process by the scheduler's counters; `None` if the kernel does not
/// report them, or if a thread exits meanwhile.
fn threads_cpu_time(pid: u32) -> Option<Duration> {
    let mut cpu_time = Duration::ZERO;
    let thread_ids = numeric_names(&format!("/proc/{pid}/task"));
    for thread_id in &thread_ids {
        let schedstat =
            fs::read_to_string(format!("/proc/{pid}/task/{thread_id}/schedstat")).ok()?;
        cpu_time += Duration::from_nanos(schedstat.split_ascii_whitespace().next()?.parse().ok()?);
    }
    (!thread_ids.is_empty()).then_some(cpu_time)
}

/// Returns the names in a directory of proc(5) that are numbers: process or thread IDs.
fn numeric_names(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_is_attributed_to_it() {
        let burn = ["-c", "while :; do :; done"];
        let mut child = std::process::Command::new("sh").args(burn).spawn().unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let mut cpu = cpu_time(&[child.id()]);
        while cpu < Duration::from_millis(5) && std::time::Instant::now() < deadline {
            cpu = cpu_time(&[child.id()]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(cpu >= Duration::from_millis(5), "{cpu:?}");
        assert_eq!(cpu_time(&[child.id()]), Duration::ZERO, "an exited process has no CPU time");
    }

    #[test]
    fn memory_is_private_or_shared() {
        let own_pid = std::process::id();
        let memory = memory_usage(&[own_pid]);
        assert!(memory.private_kib > 0 && memory.pss_kib > 0, "{memory:?}");
        assert!(peak_kib(own_pid) >= memory.private_kib);
    }

    #[test]
    fn a_core_is_busy_with_everything_but_waiting() {
        let cores: Cores = "1,2".parse().unwrap();
        for (line, ticks) in [
            ("cpu1 1 2 3 1000 2000 4 5 6 7 8", Some(21)),
            ("cpu0 1 2 3 1000 2000 4 5 6 7 8", None),
            ("cpu  1 2 3 1000 2000 4 5 6 7 8", None),
            ("intr 1", None),
        ] {
            assert_eq!(busy_ticks(line, &cores), ticks, "{line}");
        }
    }

    #[test]
    fn child_processes_count_for_their_parent() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(process_tree(std::process::id()).contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!process_tree(std::process::id()).contains(&child.id()));
    }
}
