//! Describes the properties of the machine that affect a mesh: kernel, processors, memory and limits.

use std::fs;

use serde_json::{Value, json};

/// Returns kernel, processors, memory and limits; unreadable values are null.
pub(super) fn describe_machine() -> Value {
    let system = rustix::system::uname();
    json!({
        "kernel": system.release().to_string_lossy(),
        "architecture": system.machine().to_string_lossy(),
        "processors": std::thread::available_parallelism().ok().map(usize::from),
        // The total, free and available memory.
        "memory": read_first_lines("/proc/meminfo", 3),
        "load": read_first_lines("/proc/loadavg", 1),
        // These two files have fewer lines.
        "limits": read_first_lines("/proc/self/limits", 20),
        "cgroup": read_first_lines("/proc/self/cgroup", 20),
        "ipv6_disabled": read_first_lines("/proc/sys/net/ipv6/conf/all/disable_ipv6", 1),
        "somaxconn": read_first_lines("/proc/sys/net/core/somaxconn", 1),
        "in_a_cluster": std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    })
}

/// Returns the first `count` lines of a file; `None` if it cannot be read.
fn read_first_lines(path: &str, count: usize) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().take(count).map(str::to_owned).collect())
}
