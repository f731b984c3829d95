//! Describes the benchmark cases, and starts the applications that serve their requests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::child::{BenchProcess, ProcessSpec};
use super::contender::MAX_START_WAIT;
use super::driver::ConnectionMode;
use super::layout::Layout;
use super::spring;
use super::testbed::{BenchDefaultPolicy, MeshRules, Testbed};
use crate::ports::ChosenPorts;

/// One kind of work that every contender performs.
#[derive(Debug, Clone)]
pub(super) struct BenchCase {
    /// A short description for people.
    pub(super) name: String,
    /// The parameters of the case in JSON reports.
    pub(super) parameters: Map<String, Value>,
    /// The arrangement of proxies and applications.
    pub(super) layout: Layout,
    pub(super) application_kind: ApplicationKind,
    /// The targets of requests: a role and a path each.
    pub(super) targets: Vec<(&'static str, String)>,
    /// The number of connections of the load generator.
    pub(super) connections: u32,
    /// Requests per second; if absent, each connection sends its next request as soon as the response arrives.
    pub(super) rate: Option<u32>,
    pub(super) connection_mode: ConnectionMode,
    /// The number of cores for proxies; the testbed's proxy cores if absent.
    pub(super) proxy_cores: Option<usize>,
    pub(super) default_policy: BenchDefaultPolicy,
    pub(super) rules: MeshRules,
    /// The delay of each response of the application `data`, the last one of a chain.
    pub(super) delay: Duration,
}

impl BenchCase {
    /// Creates a case with keep-alive connections to one server, in a mesh with `defaultPolicy: deny`.
    pub(super) fn keep_alive_pair(connections: u32, body_bytes: usize) -> Self {
        let parameters = json!({ "connections": connections, "body_bytes": body_bytes });
        Self {
            name: format!(
                "{}, {}",
                format_count(connections, "connection"),
                format_size(body_bytes)
            ),
            parameters: parameters.as_object().cloned().unwrap_or_default(),
            layout: Layout::Http,
            application_kind: ApplicationKind::BuiltIn,
            targets: vec![("entry", format!("/{body_bytes}"))],
            connections,
            rate: None,
            connection_mode: ConnectionMode::KeepAlive,
            proxy_cores: None,
            default_policy: BenchDefaultPolicy::Deny,
            rules: MeshRules::None,
            delay: Duration::ZERO,
        }
    }

    /// Adds a parameter that distinguishes this case.
    pub(super) fn with_parameter(mut self, parameter: &str, value: impl Into<Value>) -> Self {
        self.parameters.insert(parameter.to_owned(), value.into());
        self
    }
}

/// The applications that serve the requests behind the contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ApplicationKind {
    /// Small built-in applications
    #[default]
    BuiltIn,
    /// Spring Cloud applications with a Eureka server, built with Maven once
    Spring,
}

impl ApplicationKind {
    /// Builds the prerequisites, which may take minutes the first time.
    ///
    /// # Errors
    /// If a prerequisite is missing; the error names it and contains a hint.
    pub(super) async fn prepare(self, testbed: &Testbed) -> anyhow::Result<()> {
        match self {
            Self::BuiltIn => Ok(()),
            Self::Spring => spring::build_programs(testbed).await.map(drop),
        }
    }

    /// Returns the timeout of the applications' first response.
    pub(super) const fn max_start_wait(self) -> Duration {
        match self {
            Self::BuiltIn => MAX_START_WAIT,
            Self::Spring => spring::MAX_START_WAIT,
        }
    }
}

/// The processes of the applications that serve a case's requests behind the contender.
#[derive(Debug)]
pub(super) struct ApplicationProcesses {
    processes: Vec<BenchProcess>,
    /// The ports of applications that count their responses, and report the count at the path `/count`.
    pub(super) counting_ports: Vec<u16>,
}

impl ApplicationProcesses {
    /// Starts the applications of a case.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(super) async fn start(
        testbed: &Testbed,
        case: &BenchCase,
        ports: &mut ChosenPorts<'_>,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        if case.application_kind == ApplicationKind::Spring {
            let processes = spring::start(testbed, ports, dir).await?;
            return Ok(Self { processes, counting_ports: Vec::new() });
        }
        let mut processes = Vec::new();
        let mut start_process = |name: &str, process_spec: ProcessSpec| {
            let process_spec = process_spec.with_cores(testbed.load_cores.as_ref());
            let child = BenchProcess::start(&process_spec, &dir.join(format!("{name}.log")));
            processes.push(child.with_context(|| format!("the application {name}"))?);
            anyhow::Ok(())
        };
        let mut counting_ports = Vec::new();
        match case.layout {
            Layout::Http | Layout::Tcp => {
                counting_ports.push(ports.port_for("backend")?);
                start_process("backend", build_backend_spec(ports, "backend", Duration::ZERO)?)?;
            }
            Layout::Fan => {
                for role in ["backend-1", "backend-2", "backend-3"] {
                    counting_ports.push(ports.port_for(role)?);
                    start_process(role, build_backend_spec(ports, role, Duration::ZERO)?)?;
                }
            }
            Layout::Bookinfo => {
                // The gateway calls ratings through the HTTP proxy of its sidecar.
                let outbound_proxy_url =
                    format!("http://127.0.0.1:{}", ports.port_for("outbound")?);
                for service in ["ratings", "gateway"] {
                    let port = ports.port_for(service)?.to_string();
                    let mut process_spec =
                        ProcessSpec::leno_command(["demo-service", service, "--port", &port])?;
                    process_spec
                        .environment
                        .push(("http_proxy".to_owned(), outbound_proxy_url.clone()));
                    start_process(service, process_spec)?;
                }
            }
            Layout::Chain | Layout::TaggedChain => {
                counting_ports.push(ports.port_for("data")?);
                start_process("data", build_backend_spec(ports, "data", case.delay)?)?;
                for role in ["provider-1", "provider-2", "provider-3"] {
                    let data = ports.port_for("data")?;
                    start_process(role, build_relay_spec(ports, role, &[data])?)?;
                }
                // The contender has assigned the ports: one listener of a sidecar, or each provider without a mesh.
                let listener_roles = ["listener-1", "listener-2", "listener-3"];
                let listener_ports: Vec<u16> =
                    listener_roles.iter().filter_map(|role| ports.assigned_port(role)).collect();
                start_process("consumer", build_relay_spec(ports, "consumer", &listener_ports)?)?;
            }
        }
        Ok(Self { processes, counting_ports })
    }

    /// Returns the process IDs of the applications.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.iter().filter_map(BenchProcess::pid).collect()
    }

    /// Fails if an application has exited.
    ///
    /// # Errors
    /// The exit status of the process.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.processes.iter_mut().find_map(BenchProcess::try_exit_status) {
            Some(status) => bail!("an application exited, {status}"),
            None => Ok(()),
        }
    }

    /// Returns the last lines of the applications' logs.
    pub(super) fn log_tail(&self) -> String {
        let log_tails = self
            .processes
            .iter()
            .map(BenchProcess::log_tail)
            .filter(|log_tail| !log_tail.is_empty());
        log_tails.map(|log_tail| format!("\noutput of an application:\n{log_tail}")).collect()
    }

    /// Stops all applications.
    pub(super) async fn stop(self) {
        for process in self.processes {
            process.stop().await;
        }
    }
}

fn build_backend_spec(
    ports: &mut ChosenPorts<'_>,
    role: &str,
    delay: Duration,
) -> anyhow::Result<ProcessSpec> {
    let (port, delay) = (ports.port_for(role)?.to_string(), format!("{}ms", delay.as_millis()));
    ProcessSpec::leno_command(["bench", "backend", "--port", &port, "--delay", &delay])
}

fn build_relay_spec(
    ports: &mut ChosenPorts<'_>,
    role: &str,
    upstream_ports: &[u16],
) -> anyhow::Result<ProcessSpec> {
    let port = ports.port_for(role)?.to_string();
    let upstream_ports: Vec<String> = upstream_ports.iter().map(ToString::to_string).collect();
    ProcessSpec::leno_command([
        "bench",
        "relay",
        "--port",
        &port,
        "--to",
        &upstream_ports.join(","),
    ])
}

/// Formats a count with its noun, such as `1 connection` or `200 connections`.
pub(super) fn format_count(count: u32, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Formats a size in bytes, such as `100 B` or `1 KiB`.
pub(super) fn format_size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1024 && bytes % 1024 == 0 => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    }
}
