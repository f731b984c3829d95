//! Measures a control plane with many sidecars: a few real ones, and a crowd of simulated ones.

mod changes;
mod manifests;
mod traffic;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_identity::JoinBundle;
use tokio::time::{Instant, sleep, timeout};

use self::manifests::render_rule;
use self::traffic::SequentialTraffic;
use super::child::{BenchProcess, ProcessSpec};
use super::crowd::{CONVERGED_LINE, CrowdMember, CrowdPlan};
use super::report::{MeshChanges, MeshMeasurement};
use super::sample;
use super::statistics::median;
use super::testbed::Testbed;
use super::trial::TrialTiming;
use crate::admin_client;
use crate::get::MeshSocket;
use crate::ports::ChosenPorts;

/// The number of sidecars in a mesh, the number of real processes among them, and the choice to measure changes. The
/// sidecars that are no real processes are members of the simulated crowd.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeshSetup {
    pub(super) sidecars: usize,
    pub(super) real_sidecars: usize,
    pub(super) changes: ChangeMeasurement,
}

/// The choice to measure changes in a running mesh, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeMeasurement {
    Yes,
    No,
}

/// Starts a mesh, lets all sidecars join, and measures.
///
/// # Errors
/// If a process does not start, or the endpoints are not all distributed in time.
pub(super) async fn measure_mesh(
    testbed: &Testbed,
    setup: MeshSetup,
    timing: TrialTiming,
) -> anyhow::Result<MeshMeasurement> {
    let dir = testbed.scratch_directory().join("mesh");
    std::fs::create_dir_all(&dir).context("cannot create the directory of a mesh")?;
    let mut ports = testbed.ports();
    let mut mesh = RunningMesh { testbed, setup, ports: &mut ports, dir: &dir };
    let result = mesh.start_and_measure(timing).await;
    // No later mesh needs these tokens and certificates.
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::debug!(%error, "cannot remove the files of a mesh");
    }
    result
}

/// The state of one running mesh.
struct RunningMesh<'a, 'b> {
    testbed: &'a Testbed,
    setup: MeshSetup,
    ports: &'a mut ChosenPorts<'b>,
    dir: &'a Path,
}

impl RunningMesh<'_, '_> {
    /// Starts the mesh, measures its rollout, its steady state and, if requested, changes, and stops it.
    async fn start_and_measure(&mut self, timing: TrialTiming) -> anyhow::Result<MeshMeasurement> {
        let manifest_dir = &self.dir.join("mesh");
        self.write_manifests(manifest_dir).context("the manifests")?;
        let application = self.start_application()?;
        let data_dir = &self.dir.join("data");
        let control_address = self.ports.address_for("control")?;
        let mut control_process =
            self.start_control_plane(manifest_dir, data_dir, control_address)?;
        let control_pid = control_process.pid().context("the control plane exited immediately")?;
        let tokens = self.create_tokens(data_dir, control_address).await;
        let tokens = tokens.with_context(|| control_process.log_tail())?;
        // Measure the rollout: all sidecars join at once.
        let private_mib = || to_mib(sample::memory_usage(&[control_pid]).private_kib);
        let empty_mib = private_mib();
        let cpu_before = sample::cpu_time(&[control_pid]);
        let started = Instant::now();
        let (mut crowd, real_sidecars) = self.start_all_sidecars(&tokens, control_address)?;
        match timeout(MAX_ROLLOUT_WAIT, crowd.next_line()).await {
            Ok(Some(line)) if line == CONVERGED_LINE => {}
            Ok(_) => bail!("the simulated sidecars exited: {}", crowd.log_tail()),
            Err(_) => bail!("not all sidecars were in sync within {MAX_ROLLOUT_WAIT:?}"),
        }
        self.wait_until_registered(data_dir).await?;
        let rollout_seconds = started.elapsed().as_secs_f64();
        let cpu_seconds = sample::cpu_time(&[control_pid]).saturating_sub(cpu_before).as_secs_f64();
        let peak_kib = sample::peak_kib(control_pid);
        // Measure the steady state.
        self.send_first_requests().await?;
        sleep(timing.warm_up).await;
        let (cpu_before, started) = (sample::cpu_time(&[control_pid]), Instant::now());
        sleep(timing.duration).await;
        let steady_cpu_seconds =
            sample::cpu_time(&[control_pid]).saturating_sub(cpu_before).as_secs_f64();
        let steady_cores = steady_cpu_seconds / started.elapsed().as_secs_f64();
        let steady_mib = private_mib();
        let sidecar_pids = real_sidecars.iter().filter_map(BenchProcess::pid);
        let sidecar_mib = sidecar_pids.map(|pid| to_mib(sample::memory_usage(&[pid]).private_kib));
        let mut mesh_figures = MeshMeasurement {
            sidecars: self.setup.sidecars,
            mode: self.testbed.default_policy,
            rollout_s: rollout_seconds,
            rollout_cpu_s: cpu_seconds,
            rollout_cores: cpu_seconds / rollout_seconds,
            rollout_memory_mib: to_mib(peak_kib),
            steady_cores,
            steady_memory_mib: steady_mib,
            empty_memory_mib: empty_mib,
            per_sidecar_kib: (steady_mib - empty_mib) * 1024.0 / self.setup.sidecars.max(1) as f64,
            sidecar_memory_mib: median(sidecar_mib).unwrap_or(0.0),
            changes: None,
        };
        if self.setup.changes == ChangeMeasurement::Yes {
            let traffic =
                self.has_real_services().then(|| SequentialTraffic::start(self)).transpose()?;
            let mut settings =
                changes::ChangeSettings { manifest_dir, data_dir, control_address, timing };
            let (restarted_control, changes) =
                self.measure_changes(&mut crowd, control_process, &mut settings).await?;
            control_process = restarted_control;
            let (requests, failed) = match traffic {
                Some(traffic) => traffic.stop_and_count().await,
                None => (0, 0),
            };
            mesh_figures.changes = Some(MeshChanges { requests, failed, ..changes });
        }
        for process in real_sidecars.into_iter().chain([crowd, control_process]).chain(application)
        {
            process.stop().await;
        }
        Ok(mesh_figures)
    }

    fn write_manifests(&mut self, manifest_dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(manifest_dir)?;
        std::fs::write(manifest_dir.join("mesh.yaml"), self.render_manifests()?)?;
        std::fs::write(manifest_dir.join("rule.yaml"), render_rule(0))?;
        Ok(())
    }

    /// Starts the application behind the real sidecars.
    fn start_application(&mut self) -> anyhow::Result<Option<BenchProcess>> {
        if self.setup.real_sidecars == 0 {
            return Ok(None);
        }
        let port = self.ports.port_for("application")?.to_string();
        let spec = ProcessSpec::leno_command(["bench", "backend", "--port", &port])?;
        let cores = self.testbed.load_cores.as_ref();
        BenchProcess::start(&spec.with_cores(cores), &self.dir.join("application.log")).map(Some)
    }

    /// Waits until the control plane reports all sidecars as registered, including the real ones.
    async fn wait_until_registered(&self, data_dir: &Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + MAX_ROLLOUT_WAIT;
        loop {
            let status = MeshSocket::from_data(data_dir).query_json("/status").await?;
            let registered = status["registered"].as_u64().unwrap_or_default();
            if registered >= self.setup.sidecars as u64 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("only {registered} sidecars are ready");
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn start_control_plane(
        &self,
        manifest_dir: &Path,
        data_dir: &Path,
        control_address: SocketAddr,
    ) -> anyhow::Result<BenchProcess> {
        let spec = ProcessSpec::leno_command([
            "control".as_ref(),
            "--log-level=warn".as_ref(),
            "-f".as_ref(),
            manifest_dir.as_os_str(),
            "--data".as_ref(),
            data_dir.as_os_str(),
            "--listen".as_ref(),
            control_address.to_string().as_ref(),
        ])?;
        let cores = self.testbed.proxy_cores.as_ref();
        BenchProcess::start(&spec.with_cores(cores), &self.dir.join("control.log"))
    }

    /// Starts all sidecars at once. Returns the process of the simulated sidecars, and the real sidecars.
    fn start_all_sidecars(
        &mut self,
        tokens: &[String],
        control_address: SocketAddr,
    ) -> anyhow::Result<(BenchProcess, Vec<BenchProcess>)> {
        let (real_tokens, crowd_tokens) =
            tokens.split_at(self.setup.real_sidecars.min(tokens.len()));
        self.ports.port_for("application")?;
        let members = crowd_tokens.iter().enumerate().map(|(index, token)| {
            let index = index + self.setup.real_sidecars;
            let used_services = self.used_services(index).into_iter();
            anyhow::Ok(CrowdMember {
                workload: workload_name(index),
                token: token.clone(),
                port: self.application_port(index)?,
                services: used_services
                    .map(|service| self.service_name_and_size(service))
                    .collect(),
                own_service: self.service_name_and_size(index / WORKLOADS_PER_SERVICE).0,
            })
        });
        let plan = CrowdPlan {
            control: control_address,
            members: members.collect::<anyhow::Result<_>>()?,
        };
        let plan_file = self.dir.join("crowd.json");
        std::fs::write(&plan_file, serde_json::to_vec(&plan)?)
            .context("the plan of the simulated sidecars")?;
        let mut real_sidecars = Vec::new();
        for (index, token) in real_tokens.iter().enumerate() {
            real_sidecars.push(self.start_sidecar(index, token)?);
        }
        let arguments =
            ["bench".as_ref(), "crowd".as_ref(), "--plan".as_ref(), plan_file.as_os_str()];
        let spec =
            ProcessSpec::leno_command(arguments)?.with_cores(self.testbed.load_cores.as_ref());
        Ok((BenchProcess::start_interactive(&spec, &self.dir.join("crowd.log"))?, real_sidecars))
    }

    /// Starts a real sidecar.
    fn start_sidecar(&mut self, index: usize, token: &str) -> anyhow::Result<BenchProcess> {
        let state_directory = self.dir.join(format!("sidecar-{index}"));
        let token_file: PathBuf = self.dir.join(format!("sidecar-{index}.token"));
        JoinBundle::parse(token)?.save(&token_file).context("cannot write a token")?;
        let admin_address = self.ports.address_for(&format!("admin-{index}"))?;
        let spec = ProcessSpec::leno_command([
            "proxy".as_ref(),
            "--log-level=warn".as_ref(),
            "--workload".as_ref(),
            workload_name(index).as_ref(),
            "--token-file".as_ref(),
            token_file.as_os_str(),
            "--state".as_ref(),
            state_directory.as_os_str(),
            "--admin".as_ref(),
            admin_address.to_string().as_ref(),
            "--http-proxy=off".as_ref(),
            "--drain-timeout=0s".as_ref(),
        ])?;
        let cores = self.testbed.load_cores.as_ref();
        BenchProcess::start(&spec.with_cores(cores), &self.dir.join(format!("sidecar-{index}.log")))
    }

    /// Creates one token per workload.
    async fn create_tokens(
        &self,
        data_dir: &Path,
        control_address: SocketAddr,
    ) -> anyhow::Result<Vec<String>> {
        let mesh_socket = MeshSocket::from_data(data_dir);
        let deadline = Instant::now() + MAX_START_WAIT;
        while mesh_socket.query_json("/status").await.is_err() {
            if Instant::now() > deadline {
                bail!("the control plane does not respond");
            }
            sleep(POLL_INTERVAL).await;
        }
        let mut tokens = Vec::with_capacity(self.setup.sidecars);
        for index in 0..self.setup.sidecars {
            let path = format!("/token?workload={}", workload_name(index));
            let mut bundle = JoinBundle::parse(&mesh_socket.send_request("POST", &path).await?)?;
            bundle.control_addresses = vec![control_address];
            tokens.push(bundle.render());
        }
        Ok(tokens)
    }

    /// Sends a request through each outbound listener of the real sidecars, so that they subscribe to the
    /// services as they would with traffic. The responses are ignored.
    async fn send_first_requests(&mut self) -> anyhow::Result<()> {
        for index in 0..self.setup.real_sidecars.min(self.setup.sidecars) {
            for service_index in 0..self.used_services(index).len() {
                let listener_address =
                    self.ports.address_for(&format!("listener-{index}-{service_index}"))?;
                drop(admin_client::query_admin(listener_address, "/").await);
            }
        }
        Ok(())
    }
}

fn to_mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn workload_name(index: usize) -> String {
    format!("bench/workload-{index}")
}

/// The number of workloads per service.
pub(super) const WORKLOADS_PER_SERVICE: usize = 10;
/// The number of services that a workload uses.
pub(super) const USED_SERVICES: usize = 4;
/// The startup timeout of the control plane, which reads some thousand manifests.
const MAX_START_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The timeout of a rollout, far longer than 1,600 sidecars need.
const MAX_ROLLOUT_WAIT: Duration = Duration::from_secs(120);
