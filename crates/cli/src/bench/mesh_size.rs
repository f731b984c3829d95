//! Meshes of a size: a control plane, a few real sidecars, a crowd, and what they take.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_identity::JoinBundle;
use tokio::time::{Instant, sleep, timeout};

use super::child::{Child, Launch};
use super::crowd::{CONVERGED, CrowdMember, CrowdPlan};
use super::report::MeshSize;
use super::rig::{Rig, TrafficMode};
use super::sample;
use super::statistics::median;
use super::trial::Timing;
use crate::ask;
use crate::get::Mesh;
use crate::ports::Ports;

/// How many sidecars a mesh has, and how many of them are processes of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crowd {
    pub(super) sidecars: usize,
    pub(super) real: usize,
}

/// Starts a mesh, lets everybody join, and measures.
///
/// # Errors
/// When something does not start, or not everybody knows everything in time.
pub(super) async fn measure(rig: &Rig, crowd: Crowd, timing: Timing) -> anyhow::Result<MeshSize> {
    let dir = rig.scratch().join("mesh");
    std::fs::create_dir_all(&dir).context("there is no place for a mesh")?;
    let mut ports = rig.ports();
    let mut stage = Stage { rig, crowd, ports: &mut ports, dir: &dir };
    let measured = stage.run(timing).await;
    // Tokens and certificates are of no use to the next one.
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::debug!(%error, "the files of a mesh stay");
    }
    measured
}

/// What is needed to run one mesh.
struct Stage<'a, 'b> {
    rig: &'a Rig,
    crowd: Crowd,
    ports: &'a mut Ports<'b>,
    dir: &'a Path,
}

impl Stage<'_, '_> {
    async fn run(&mut self, timing: Timing) -> anyhow::Result<MeshSize> {
        let file = self.dir.join("mesh.yaml");
        let manifests = self.manifests()?;
        std::fs::write(&file, manifests).context("the manifests cannot be written")?;
        let data = self.dir.join("data");
        let address = self.ports.address("control")?;
        let control = self.control(&file, &data, address)?;
        let pid = control.pid().context("the control plane ended at once")?;
        let tokens = self.tokens(&data, address).await.with_context(|| control.last_words())?;
        let before = sample::cpu(&[pid]);
        let began = Instant::now();
        let (mut crowd, real) = self.everybody(&tokens, address)?;
        let patience = ROLLOUT_PATIENCE;
        match timeout(patience, crowd.line()).await {
            Ok(Some(line)) if line == CONVERGED => {}
            Ok(_) => bail!("the crowd ended: {}", crowd.last_words()),
            Err(_) => bail!("not everybody knew everything within {patience:?}"),
        }
        let rollout = began.elapsed().as_secs_f64();
        let spent = sample::cpu(&[pid]).saturating_sub(before).as_secs_f64();
        let peak = sample::peak_kib(pid);
        self.use_doors().await?;
        sleep(timing.warm_up).await;
        let (before, began) = (sample::cpu(&[pid]), Instant::now());
        sleep(timing.duration).await;
        let steady = sample::cpu(&[pid]).saturating_sub(before).as_secs_f64();
        let steady_cores = steady / began.elapsed().as_secs_f64();
        let mib = |kib: u64| kib as f64 / 1024.0;
        let sidecars = real.iter().filter_map(Child::pid);
        let sidecars = sidecars.map(|pid| mib(sample::memory(&[pid]).private_kib));
        let measured = MeshSize {
            sidecars: self.crowd.sidecars,
            mode: self.rig.traffic_mode,
            rollout_s: rollout,
            rollout_cpu_s: spent,
            rollout_cores: spent / rollout,
            rollout_memory_mib: mib(peak),
            steady_cores,
            steady_memory_mib: mib(sample::memory(&[pid]).private_kib),
            sidecar_memory_mib: median(sidecars).unwrap_or(0.0),
        };
        crowd.stop().await;
        for sidecar in real {
            sidecar.stop().await;
        }
        control.stop().await;
        Ok(measured)
    }

    fn control(&self, file: &Path, data: &Path, address: SocketAddr) -> anyhow::Result<Child> {
        let launch = Launch::leno([
            "control".as_ref(),
            "--log-level=warn".as_ref(),
            "-f".as_ref(),
            file.as_os_str(),
            "--data".as_ref(),
            data.as_os_str(),
            "--listen".as_ref(),
            address.to_string().as_ref(),
        ])?;
        let cores = self.rig.proxy_cores.as_ref();
        Child::start(&launch.on(cores), &self.dir.join("control.log"))
    }

    /// Starts all sidecars at once.
    fn everybody(
        &mut self,
        tokens: &[String],
        control: SocketAddr,
    ) -> anyhow::Result<(Child, Vec<Child>)> {
        let (of_real, of_crowd) = tokens.split_at(self.crowd.real.min(tokens.len()));
        let members = of_crowd.iter().enumerate().map(|(index, token)| {
            let index = index + self.crowd.real;
            CrowdMember {
                workload: workload(index),
                token: token.clone(),
                port: PORT,
                services: self.used(index).map(|service| self.named(service)).collect(),
            }
        });
        let plan = CrowdPlan { control, members: members.collect() };
        let file = self.dir.join("crowd.json");
        std::fs::write(&file, serde_json::to_vec(&plan)?).context("the crowd's plan")?;
        let mut real = Vec::new();
        for (index, token) in of_real.iter().enumerate() {
            real.push(self.sidecar(index, token)?);
        }
        let launch = ["bench".as_ref(), "crowd".as_ref(), "--plan".as_ref(), file.as_os_str()];
        let launch = Launch::leno(launch)?.on(self.rig.load_cores.as_ref());
        Ok((Child::start_piped(&launch, &self.dir.join("crowd.log"))?, real))
    }

    /// Starts a real sidecar.
    fn sidecar(&mut self, index: usize, token: &str) -> anyhow::Result<Child> {
        let state = self.dir.join(format!("sidecar-{index}"));
        let token_file: PathBuf = self.dir.join(format!("sidecar-{index}.token"));
        JoinBundle::parse(token)?.save(&token_file).context("a token cannot be written")?;
        let admin = self.ports.address(&format!("admin-{index}"))?;
        let launch = Launch::leno([
            "proxy".as_ref(),
            "--log-level=warn".as_ref(),
            "--workload".as_ref(),
            workload(index).as_ref(),
            "--token-file".as_ref(),
            token_file.as_os_str(),
            "--state".as_ref(),
            state.as_os_str(),
            "--admin".as_ref(),
            admin.to_string().as_ref(),
            "--http-proxy=off".as_ref(),
            "--drain-timeout=0s".as_ref(),
        ])?;
        let cores = self.rig.load_cores.as_ref();
        Child::start(&launch.on(cores), &self.dir.join(format!("sidecar-{index}.log")))
    }

    /// One token for each workload.
    async fn tokens(&self, data: &Path, control: SocketAddr) -> anyhow::Result<Vec<String>> {
        let mesh = Mesh::at(data);
        let until = Instant::now() + START_PATIENCE;
        while mesh.ask("/status").await.is_err() {
            if Instant::now() > until {
                bail!("the control plane does not answer");
            }
            sleep(LOOK_EVERY).await;
        }
        let mut tokens = Vec::with_capacity(self.crowd.sidecars);
        for index in 0..self.crowd.sidecars {
            let path = format!("/token?workload={}", workload(index));
            let mut bundle = JoinBundle::parse(&mesh.send("POST", &path).await?)?;
            bundle.control = Some(control);
            tokens.push(bundle.render());
        }
        Ok(tokens)
    }

    /// Sends a request through each door of the real sidecars, so that these know the services as
    /// they would with traffic. What comes back does not matter: nobody serves.
    async fn use_doors(&mut self) -> anyhow::Result<()> {
        for index in 0..self.crowd.real.min(self.crowd.sidecars) {
            for number in 0..USED.min(self.services()) {
                let door = self.ports.address(&format!("door-{index}-{number}"))?;
                drop(ask::admin(door, "/").await);
            }
        }
        Ok(())
    }

    /// The services that a workload uses, by number.
    fn used(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let services = self.services();
        (1..=USED.min(services)).map(move |step| (index / PER_SERVICE + step) % services)
    }

    /// A service, and how many workloads are behind it.
    fn named(&self, service: usize) -> (String, usize) {
        let left = self.crowd.sidecars - service * PER_SERVICE;
        (format!("bench/service-{service}"), left.min(PER_SERVICE))
    }

    fn services(&self) -> usize {
        self.crowd.sidecars.div_ceil(PER_SERVICE).max(1)
    }

    fn manifests(&mut self) -> anyhow::Result<String> {
        let mode = self.rig.traffic_mode;
        let mut text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
             spec: {{trafficMode: {}}}\n",
            mode.as_str()
        );
        for index in 0..self.crowd.sidecars {
            let service = index / PER_SERVICE;
            let name = workload(index);
            let name = name.trim_start_matches("bench/");
            write!(
                text,
                "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                 metadata: {{name: {name}, namespace: bench, labels: {{app: service-{service}}}}}\n\
                 spec:\n  serviceAccount: service-{service}\n  \
                 ports: [{{name: main, port: {PORT}, protocol: HTTP}}]\n"
            )?;
            if index < self.crowd.real {
                text.push_str("  outbound:\n");
                for (number, used) in self.used(index).enumerate() {
                    let door = self.ports.address(&format!("door-{index}-{number}"))?;
                    writeln!(
                        text,
                        "  - {{service: service-{used}.bench, port: 80, listen: \"{door}\"}}"
                    )?;
                }
            }
        }
        for service in 0..self.services() {
            write!(
                text,
                "---\napiVersion: v1\nkind: Service\n\
                 metadata: {{name: service-{service}, namespace: bench}}\n\
                 spec: {{selector: {{app: service-{service}}}, ports: [{{port: 80, \
                 targetPort: main}}]}}\n"
            )?;
        }
        if mode == TrafficMode::Strict {
            self.policies(&mut text)?;
        }
        Ok(text)
    }

    fn policies(&self, text: &mut String) -> anyhow::Result<()> {
        text.push_str(RULES);
        let services = self.services();
        for service in 0..services {
            write!(
                text,
                "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\n\
                 metadata: {{name: service-{service}, namespace: bench}}\nspec:\n  destination: \
                 {{kind: ServiceAccount, name: service-{service}, namespace: bench}}\n  sources:\n"
            )?;
            for step in 1..=USED.min(services) {
                let source = (service + services - step) % services;
                writeln!(
                    text,
                    "  - {{kind: ServiceAccount, name: service-{source}, namespace: bench}}"
                )?;
            }
            text.push_str("  rules: [{kind: HTTPRouteGroup, name: all, matches: [all]}]\n");
        }
        Ok(())
    }
}

fn workload(index: usize) -> String {
    format!("bench/workload-{index}")
}

/// Workloads behind a service.
pub(super) const PER_SERVICE: usize = 10;
/// Services that a workload uses.
pub(super) const USED: usize = 4;
/// Where applications would listen.
const PORT: u16 = 8080;
const RULES: &str = "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
     metadata: {name: all, namespace: bench}\n\
     spec: {matches: [{name: all, pathRegex: \"/.*\", methods: [\"*\"]}]}\n";
/// For reading some thousand documents.
const START_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Far beyond what sixteen hundred take.
const ROLLOUT_PATIENCE: Duration = Duration::from_secs(120);
