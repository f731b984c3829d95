//! Starts, observes and stops the processes of a contender.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;

use super::{ProcessConfiguration, TrialEnvironment};
use crate::bench::child::{BenchProcess, ProcessSpec};
use crate::bench::readiness::wait_until_ready;
use crate::output;

/// A running contender.
#[derive(Debug, Default)]
pub(in crate::bench) struct RunningContender {
    processes: Vec<ContenderProcess>,
    configurations: Vec<ProcessConfiguration>,
}

/// A process of a contender.
#[derive(Debug)]
struct ContenderProcess {
    name: String,
    role: ProcessRole,
    bench_process: BenchProcess,
}

/// The role of a process: it decides where the cost of the process is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum ProcessRole {
    /// The process carries requests: its cost is the contender's cost.
    Proxy,
    /// The process carries no requests, such as a control plane: its cost is reported separately.
    Auxiliary,
}

impl RunningContender {
    /// Starts another process of the contender. Its parameters are stored for the report.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(super) fn start(
        &mut self,
        environment: &TrialEnvironment<'_, '_>,
        role: ProcessRole,
        name: &str,
        spec: &ProcessSpec,
        files: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let testbed = environment.testbed;
        // Auxiliary processes must not compete with the proxies for CPU time.
        let cores = match role {
            ProcessRole::Proxy => testbed.proxy_cores.as_ref(),
            ProcessRole::Auxiliary => testbed.load_cores.as_ref(),
        };
        let bench_process = BenchProcess::start(
            &spec.clone().with_cores(cores),
            &environment.dir.join(format!("{name}.log")),
        )?;
        let arguments = spec.command.iter().map(|argument| argument.to_string_lossy().into_owned());
        self.configurations.push(ProcessConfiguration {
            layout: environment.layout,
            process: name.to_owned(),
            command: arguments.collect(),
            files,
        });
        self.processes.push(ContenderProcess { name: name.to_owned(), role, bench_process });
        Ok(())
    }

    /// Starts this program with arguments.
    ///
    /// # Errors
    /// The same as for [`RunningContender::start`].
    pub(super) fn start_leno(
        &mut self,
        environment: &TrialEnvironment<'_, '_>,
        role: ProcessRole,
        name: &str,
        arguments: Vec<String>,
        files: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let spec = ProcessSpec::leno_command(arguments)?;
        self.start(environment, role, name, &spec, files)
    }

    /// Waits until an address returns success for a path.
    ///
    /// # Errors
    /// If a process has exited, or the timeout expires. The error contains the last lines of all logs.
    pub(super) async fn wait_until_ready(
        &mut self,
        address: SocketAddr,
        path: &str,
    ) -> anyhow::Result<()> {
        wait_until_ready(address, path, MAX_START_WAIT, || self.check_alive())
            .await
            .map_err(|error| anyhow::anyhow!("{}{}", output::format_error(&error), self.log_tail()))
    }

    /// Fails if a process of the contender has exited.
    ///
    /// # Errors
    /// The exit status, and the last lines of the log of the process that has exited.
    pub(in crate::bench) fn check_alive(&mut self) -> anyhow::Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.bench_process.try_exit_status() {
                bail!(
                    "its {} exited, {status}:\n{}",
                    process.name,
                    process.bench_process.log_tail()
                );
            }
        }
        Ok(())
    }

    /// Returns the last lines of the logs of all processes.
    pub(in crate::bench) fn log_tail(&self) -> String {
        let log_tails = self.processes.iter().filter_map(|process| {
            let log_tail = process.bench_process.log_tail();
            (!log_tail.is_empty()).then(|| format!("\noutput of {}:\n{log_tail}", process.name))
        });
        log_tails.collect()
    }

    /// Returns the names and process IDs of the running processes with a role.
    pub(in crate::bench) fn named_pids(&self, role: ProcessRole) -> Vec<(String, u32)> {
        let processes = self.processes.iter().filter(|process| process.role == role);
        processes
            .filter_map(|process| Some((process.name.clone(), process.bench_process.pid()?)))
            .collect()
    }

    /// Returns the parameters with which the processes were started.
    pub(in crate::bench) fn process_configurations(&self) -> &[ProcessConfiguration] {
        &self.configurations
    }

    /// Stops all processes.
    pub(in crate::bench) async fn stop(self) {
        for process in self.processes {
            process.bench_process.stop().await;
        }
    }
}

/// The startup timeout: third-party proxies first check their configuration and load certificates.
pub(in crate::bench) const MAX_START_WAIT: Duration = Duration::from_secs(15);
