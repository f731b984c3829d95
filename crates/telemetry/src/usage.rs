//! Reads CPU time and memory of a process on this machine from `/proc` of Linux.

use std::fs;
use std::io;
use std::time::Duration;

/// The resource usage of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsage {
    /// The CPU time of all threads in user and system mode, in steps of 10 ms.
    pub cpu: Duration,
    /// Resident memory in KiB.
    pub rss_kib: u64,
    /// Resident memory in KiB, with shared pages divided among the processes that share them.
    pub pss_kib: u64,
    /// Resident memory in KiB that is not shared, which is freed when the process exits.
    pub private_kib: u64,
    /// The number of threads.
    pub threads: u32,
}

/// Reads the resource usage of a process of the same user.
///
/// # Errors
/// If there is no such process, if it belongs to another user, or if the system is not Linux.
pub fn read_usage(pid: u32) -> io::Result<ProcessUsage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let smaps_rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let (ticks, threads) = parse_stat(&stat).ok_or_else(|| malformed_file("stat"))?;
    let private_fields = ["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"];
    Ok(ProcessUsage {
        cpu: cpu_time(ticks, rustix::param::clock_ticks_per_second()),
        rss_kib: parse_kib(&smaps_rollup, "Rss:").ok_or_else(|| malformed_file("smaps_rollup"))?,
        pss_kib: parse_kib(&smaps_rollup, "Pss:").ok_or_else(|| malformed_file("smaps_rollup"))?,
        private_kib: private_fields.iter().filter_map(|name| parse_kib(&smaps_rollup, name)).sum(),
        threads,
    })
}

/// The resource usage of a process from `stat` and `statm` only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatUsage {
    /// The CPU time of all threads in user and system mode, in steps of 10 ms.
    pub cpu: Duration,
    /// Resident memory in KiB without file-backed pages, such as those of the program file.
    pub own_kib: u64,
}

/// Reads the resource usage of a process, at less cost than [`read_usage`].
///
/// # Errors
/// If there is no such process, or if the system is not Linux.
pub fn read_stat_usage(pid: u32) -> io::Result<StatUsage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (ticks, _) = parse_stat(&stat).ok_or_else(|| malformed_file("stat"))?;
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let own_page_count = parse_own_pages(&statm).ok_or_else(|| malformed_file("statm"))?;
    let page_kib = rustix::param::page_size() as u64 / 1024;
    Ok(StatUsage {
        cpu: cpu_time(ticks, rustix::param::clock_ticks_per_second()),
        own_kib: own_page_count.saturating_mul(page_kib),
    })
}

/// Returns the number of resident pages that are not file-backed, from `statm` (proc_pid_statm(5)).
fn parse_own_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_ascii_whitespace().skip(1);
    let (resident, file_backed): (u64, u64) =
        (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(resident.saturating_sub(file_backed))
}

/// Returns the CPU time in ticks and the number of threads, from `stat`. The second field is the command in
/// parentheses, which may itself contain parentheses. Fields are therefore counted from the last closing
/// parenthesis.
fn parse_stat(stat: &str) -> Option<(u64, u32)> {
    let (_, after_command) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_command.split_ascii_whitespace().collect();
    // proc_pid_stat(5) numbers fields from 1; the first field after the command is the third.
    let field = |number: usize| fields.get(number.checked_sub(3)?).copied();
    let user_ticks: u64 = field(14)?.parse().ok()?;
    let system_ticks: u64 = field(15)?.parse().ok()?;
    Some((user_ticks.saturating_add(system_ticks), field(20)?.parse().ok()?))
}

/// Converts clock ticks to a duration.
fn cpu_time(ticks: u64, ticks_per_second: u64) -> Duration {
    let ticks_per_second = ticks_per_second.max(1);
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_second);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns the value of a line such as `Rss:   1234 kB`, in KiB; `None` if there is no such line.
fn parse_kib(smaps_rollup: &str, name: &str) -> Option<u64> {
    let value = smaps_rollup.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Returns the error for a file of `/proc` with an unknown format.
fn malformed_file(file: &str) -> io::Error {
    let message = format!("`{file}` of the process is not as proc(5) describes it");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_threads_are_parsed_after_any_command() {
        let numbers = "S 1 2 3 4 5 6 7 8 9 10 250 17 18 19 20 21 5 23 24";
        for command in ["leno", "a b", "x) R 1 (y", "((", "))"] {
            let stat = format!("42 ({command}) {numbers}\n");
            assert_eq!(parse_stat(&stat), Some((267, 5)), "{command}");
        }
        for invalid in
            ["", "42 (leno", "42 (leno) S 1 2", "42 (leno) S x x x x x x x x x x x x x x x x x"]
        {
            assert_eq!(parse_stat(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn own_memory_is_parsed_from_statm() {
        assert_eq!(parse_own_pages("9000 700 600 1 0 5 0\n"), Some(100));
        assert_eq!(parse_own_pages("9000 600 700 1 0 5 0\n"), Some(0));
        for invalid in ["", "1 2", "1 x 3"] {
            assert_eq!(parse_own_pages(invalid), None, "{invalid}");
        }
        let (stat_usage, usage) =
            (read_stat_usage(std::process::id()).unwrap(), read_usage(std::process::id()).unwrap());
        assert!(
            stat_usage.own_kib > 0 && stat_usage.own_kib <= usage.rss_kib,
            "{stat_usage:?} {usage:?}"
        );
        assert!(read_stat_usage(u32::MAX).is_err());
    }

    #[test]
    fn memory_is_parsed_from_lines_in_kib() {
        let memory = "55d0-7ffe ---p 00000000 00:00 0  [rollup]\nRss:  4321 kB\nPss:  21 kB\nPss_Dirty: 5 kB\n";
        assert_eq!(parse_kib(memory, "Rss:"), Some(4321));
        assert_eq!(parse_kib(memory, "Pss:"), Some(21));
        assert_eq!(parse_kib(memory, "Swap:"), None);
        assert_eq!(parse_kib("Rss: x kB", "Rss:"), None);
    }

    #[test]
    fn ticks_are_converted_to_time() {
        assert_eq!(cpu_time(267, 100), Duration::from_millis(2_670));
        assert_eq!(cpu_time(5, 0), Duration::from_secs(5));
    }

    #[test]
    fn usage_is_read_for_this_process_but_not_for_a_missing_one() {
        let own = read_usage(std::process::id()).unwrap();
        assert!(own.rss_kib >= own.private_kib, "{own:?}");
        assert!(own.private_kib > 0 && own.pss_kib > 0 && own.threads > 0, "{own:?}");
        assert!(read_usage(u32::MAX).is_err());
    }
}
