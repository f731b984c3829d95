//! Describes the machine, so that readers of a report can interpret the figures.

use std::fs;

use serde::Serialize;

/// The properties of the machine that a reader needs to interpret the figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MachineInfo {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_mib: u64,
    pub(super) kernel: String,
    pub(super) system: String,
    /// True for a virtual machine, as far as the processor reports it.
    pub(super) virtual_machine: bool,
    /// The one-minute load average of the machine before the benchmark (the first figure of `/proc/loadavg`).
    pub(super) load_before: f64,
    /// The fraction of CPU time since boot that the hypervisor gave to other guests, between 0 and 1.
    pub(super) stolen: f64,
}

impl MachineInfo {
    /// Reads the properties from Linux.
    pub(super) fn read_info() -> Self {
        let cpuinfo = read_or_empty("/proc/cpuinfo");
        let meminfo = read_or_empty("/proc/meminfo");
        let memory_kib =
            field_value(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        Self {
            processor: field_value(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or(0u64) / 1024,
            kernel: read_or_empty("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: pretty_name(&read_or_empty("/etc/os-release")),
            virtual_machine: field_value(&cpuinfo, "flags")
                .is_some_and(|flags| flags.contains("hypervisor")),
            load_before: load_average(),
            stolen: parse_stolen_time(&read_or_empty("/proc/stat")),
        }
    }
}

/// Returns the number of runnable processes, as a one-minute average.
pub(super) fn load_average() -> f64 {
    read_or_empty("/proc/loadavg")
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0)
}

/// Reads a file; empty if it cannot be read.
fn read_or_empty(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of a line such as `model name : x`.
fn field_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns the name of the distribution from a file in the format of os-release(5); `Linux` if the file has none.
fn pretty_name(release: &str) -> String {
    let line = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or("Linux").trim_matches('"').to_owned()
}

/// Returns the stolen fraction of CPU time. In proc_stat(5), the eighth figure of the first line is the stolen time.
fn parse_stolen_time(stat: &str) -> f64 {
    let line = stat.lines().next().unwrap_or_default();
    let cpu_times: Vec<f64> =
        line.split_ascii_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
    // The figures after the eighth are guest times, which the first two figures include.
    let total_time: f64 = cpu_times.iter().take(8).sum();
    cpu_times.get(7).filter(|_| total_time > 0.0).map_or(0.0, |stolen| stolen / total_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_parsed() {
        assert_eq!(field_value("a\t: b\nmodel name\t: X 9\n", "model name"), Some("X 9"));
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"X 1\"\n"), "X 1");
        assert_eq!(parse_stolen_time("cpu  10 0 10 60 0 0 0 20 5 5\n"), 0.2);
        assert_eq!(parse_stolen_time(""), 0.0);
        assert!(MachineInfo::read_info().cores > 0);
    }
}
