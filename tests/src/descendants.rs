//! Reads the child processes and the states of processes from the kernel.

use std::fs;

/// A child process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildProcess {
    /// The process id.
    pub pid: u32,
    /// The command line, separated by spaces.
    pub command: String,
}

/// Returns the running child processes of `parent`.
///
/// # Panics
/// If the kernel does not list processes.
#[must_use]
pub fn child_processes(parent: u32) -> Vec<ChildProcess> {
    let entries = fs::read_dir("/proc").expect("the kernel lists processes");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        process_status(*pid).is_some_and(|(state, parent_pid)| state != 'Z' && parent_pid == parent)
    };
    pids.filter(is_child).map(|pid| ChildProcess { pid, command: command_line(pid) }).collect()
}

/// True if a process runs; false for a zombie.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    process_status(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Returns the state and the parent of a process (proc(5), `/proc/PID/stat`); `None` if there is no such process.
fn process_status(pid: u32) -> Option<(char, u32)> {
    let stat_text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name may contain any characters, including parentheses.
    let (_, after_name) = stat_text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn command_line(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ")
}
