//! Running contenders: processes, readiness and shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;

use super::{ProcessConfiguration, RunEnvironment};
use crate::bench::awaited::until_answered;
use crate::bench::child::{BenchProcess, ProcessSpec};
use crate::output;

/// A running contender.
#[derive(Debug, Default)]
pub(in crate::bench) struct RunningContender {
    members: Vec<ContenderProcess>,
    configured: Vec<ProcessConfiguration>,
}

/// A process of a contender.
#[derive(Debug)]
struct ContenderProcess {
    name: String,
    part: ProcessRole,
    child: BenchProcess,
}

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum ProcessRole {
    /// It carries requests: its cost is that of the contender.
    Proxy,
    /// It carries no requests, like a control plane: its cost is reported separately.
    Auxiliary,
}

impl RunningContender {
    /// Starts another process. Its parameters are kept for the report.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(
        &mut self,
        environment: &RunEnvironment<'_, '_>,
        part: ProcessRole,
        name: &str,
        launch: &ProcessSpec,
        files: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let rig = environment.rig;
        let cores = match part {
            ProcessRole::Proxy => rig.proxy_cores.as_ref(),
            ProcessRole::Auxiliary => rig.load_cores.as_ref(),
        };
        let child = BenchProcess::start(
            &launch.clone().with_cores(cores),
            &environment.dir.join(format!("{name}.log")),
        )?;
        let words = launch.command.iter().map(|word| word.to_string_lossy().into_owned());
        self.configured.push(ProcessConfiguration {
            layout: environment.layout,
            process: name.to_owned(),
            command: words.collect(),
            files,
        });
        self.members.push(ContenderProcess { name: name.to_owned(), part, child });
        Ok(())
    }

    /// Starts this program with arguments.
    ///
    /// # Errors
    /// As [`RunningContender::start`].
    pub(super) fn start_leno(
        &mut self,
        environment: &RunEnvironment<'_, '_>,
        part: ProcessRole,
        name: &str,
        arguments: Vec<String>,
        files: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let launch = ProcessSpec::leno_command(arguments)?;
        self.start(environment, part, name, &launch, files)
    }

    /// Waits until an address returns success for a path.
    ///
    /// # Errors
    /// If a process has ended, or the timeout expires: with the ends of all logs.
    pub(super) async fn until_answered(
        &mut self,
        address: SocketAddr,
        path: &str,
    ) -> anyhow::Result<()> {
        let answered = until_answered(address, path, START_MAX_WAIT, || self.check_alive());
        let answered = answered.await;
        answered.map_err(|error| {
            anyhow::anyhow!("{}{}", output::format_error(&error), self.last_words())
        })
    }

    /// Fails if one of its processes has ended.
    ///
    /// # Errors
    /// The end of that process's log.
    pub(in crate::bench) fn check_alive(&mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            if let Some(status) = member.child.try_exit_status() {
                bail!("its {} exited, {status}:\n{}", member.name, member.child.last_words());
            }
        }
        Ok(())
    }

    /// Returns the ends of its processes' logs.
    pub(in crate::bench) fn last_words(&self) -> String {
        let words = self.members.iter().filter_map(|member| {
            let words = member.child.last_words();
            (!words.is_empty()).then(|| format!("\noutput of {}:\n{words}", member.name))
        });
        words.collect()
    }

    /// Returns the names and process IDs of one role.
    pub(in crate::bench) fn role_pids(&self, part: ProcessRole) -> Vec<(String, u32)> {
        let members = self.members.iter().filter(|member| member.part == part);
        members.filter_map(|member| Some((member.name.clone(), member.child.pid()?))).collect()
    }

    /// Returns the start parameters of its processes.
    pub(in crate::bench) fn process_configurations(&self) -> &[ProcessConfiguration] {
        &self.configured
    }

    /// Stops all processes.
    pub(in crate::bench) async fn stop(self) {
        for member in self.members {
            member.child.stop().await;
        }
    }
}

/// Third-party proxies first check their configuration and load certificates.
pub(in crate::bench) const START_MAX_WAIT: Duration = Duration::from_secs(15);
