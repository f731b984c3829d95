//! Measures the cost of a sidecar by the number of services in the mesh. The sidecar uses the same few services each
//! time.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_identity::JoinBundle;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::child::{BenchProcess, ProcessSpec};
use super::sample;
use super::testbed::Testbed;
use crate::admin_client;
use crate::get::MeshSocket;
use crate::ports::ChosenPorts;

/// The cost of a mesh with a number of services.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MeshServices {
    /// The number of services in the mesh.
    pub(super) services: usize,
    /// The private memory of a sidecar that uses [`USED_SERVICES`] of the services.
    pub(super) sidecar_kib: u64,
    /// The number of services in the configuration of that sidecar.
    pub(super) known: u64,
    /// The private memory of the control plane.
    pub(super) control_mib: f64,
}

/// Starts a mesh with a number of services, lets one sidecar use five of them, and measures.
///
/// # Errors
/// If a process does not start, or a request gets no response.
pub(super) async fn measure_services(
    testbed: &Testbed,
    service_count: usize,
) -> anyhow::Result<MeshServices> {
    let dir = testbed.scratch_directory().join(format!("services-{service_count}"));
    std::fs::create_dir_all(dir.join("mesh")).context("cannot create the directory of a mesh")?;
    let mut ports = testbed.ports();
    let result = start_and_measure(testbed, &dir, &mut ports, service_count).await;
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::debug!(%error, "cannot remove the files of a mesh");
    }
    result
}

async fn start_and_measure(
    testbed: &Testbed,
    dir: &Path,
    ports: &mut ChosenPorts<'_>,
    service_count: usize,
) -> anyhow::Result<MeshServices> {
    let application_port = ports.port_for("application")?;
    write_manifests(&dir.join("mesh"), ports, service_count)?;
    let control_address = ports.address_for("control")?;
    let application_spec =
        ProcessSpec::leno_command(["bench", "backend", "--port", &application_port.to_string()])?;
    let application_process = BenchProcess::start(
        &application_spec.with_cores(testbed.load_cores.as_ref()),
        &dir.join("backend.log"),
    )?;
    let control_spec = ProcessSpec::leno_command([
        "control".as_ref(),
        "--log-level=warn".as_ref(),
        "-f".as_ref(),
        dir.join("mesh").as_os_str(),
        "--data".as_ref(),
        dir.join("data").as_os_str(),
        "--listen".as_ref(),
        control_address.to_string().as_ref(),
    ])?;
    let control_process = BenchProcess::start(
        &control_spec.with_cores(testbed.proxy_cores.as_ref()),
        &dir.join("control.log"),
    )?;
    let server = start_sidecar(testbed, dir, ports, control_address, "server").await?;
    let client = start_sidecar(testbed, dir, ports, control_address, "client").await?;
    // Wait until the client reaches each of its services.
    for index in 0..USED_SERVICES.min(service_count) {
        let listener_address = ports.address_for(&format!("listener-{index}"))?;
        let deadline = Instant::now() + MAX_START_WAIT;
        while let Err(error) = admin_client::query_admin(listener_address, "/").await {
            if Instant::now() > deadline {
                return Err(error).context("a service does not respond");
            }
            sleep(POLL_INTERVAL).await;
        }
    }
    let client_pid = client.pid().context("the sidecar has exited")?;
    let proxies = MeshSocket::from_data(&dir.join("data")).query_json("/proxies").await?;
    let all_proxies = proxies.as_array().into_iter().flatten();
    let client_proxies = all_proxies.filter(|proxy| proxy["workload"] == "bench/client");
    let control_pid = control_process.pid().context("the control plane has exited")?;
    let result = MeshServices {
        services: service_count,
        sidecar_kib: sample::memory_usage(&[client_pid]).private_kib,
        known: client_proxies.filter_map(|proxy| proxy["services"].as_u64()).sum(),
        control_mib: sample::memory_usage(&[control_pid]).private_kib as f64 / 1024.0,
    };
    for process in [client, server, control_process, application_process] {
        process.stop().await;
    }
    Ok(result)
}

async fn start_sidecar(
    testbed: &Testbed,
    dir: &Path,
    ports: &mut ChosenPorts<'_>,
    control_address: SocketAddr,
    name: &str,
) -> anyhow::Result<BenchProcess> {
    let mesh_socket = MeshSocket::from_data(&dir.join("data"));
    let deadline = Instant::now() + MAX_START_WAIT;
    let token = loop {
        match mesh_socket.send_request("POST", &format!("/token?workload=bench/{name}")).await {
            Ok(token) => break token,
            Err(error) if Instant::now() > deadline => return Err(error),
            // The control plane does not listen yet.
            Err(_) => sleep(POLL_INTERVAL).await,
        }
    };
    let mut bundle = JoinBundle::parse(&token)?;
    bundle.control_addresses = vec![control_address];
    let token_file = dir.join(format!("{name}.token"));
    bundle.save(&token_file).context("cannot write a token")?;
    let admin_address = ports.address_for(&format!("admin-{name}"))?;
    let spec = ProcessSpec::leno_command([
        "proxy".as_ref(),
        "--log-level=warn".as_ref(),
        format!("--workload=bench/{name}").as_ref(),
        "--token-file".as_ref(),
        token_file.as_os_str(),
        "--state".as_ref(),
        dir.join(name).as_os_str(),
        "--admin".as_ref(),
        admin_address.to_string().as_ref(),
        "--http-proxy=off".as_ref(),
        "--drain-timeout=0s".as_ref(),
    ])?;
    let child = BenchProcess::start(
        &spec.with_cores(testbed.load_cores.as_ref()),
        &dir.join(format!("{name}.log")),
    )?;
    while admin_client::query_admin(admin_address, "/ready").await.is_err() {
        if Instant::now() > deadline {
            bail!("a sidecar is not ready: {}", child.log_tail());
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(child)
}

/// Writes the manifests into several files, because the number of documents in a file is limited.
fn write_manifests(
    dir: &Path,
    ports: &mut ChosenPorts<'_>,
    service_count: usize,
) -> anyhow::Result<()> {
    let application_port = ports.port_for("application")?;
    let mut manifests = String::new();
    for name in ["server", "client"] {
        write!(
            manifests,
            "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: {name}, namespace: bench, labels: {{app: {name}}}}}\n\
             spec:\n  serviceAccount: {name}\n"
        )?;
    }
    // The client is the last workload so far, so that the listeners belong to it.
    manifests.push_str("  outbound:\n");
    for index in 0..USED_SERVICES.min(service_count) {
        let listener_address = ports.address_for(&format!("listener-{index}"))?;
        writeln!(
            manifests,
            "  - {{service: service-{index}.bench, port: 80, listen: \"{listener_address}\"}}"
        )?;
    }
    // Only the server has an application port.
    let workload_manifests = manifests.replacen(
        "serviceAccount: server\n",
        &format!(
            "serviceAccount: server\n  ports: [{{name: main, port: {application_port}, protocol: HTTP}}]\n"
        ),
        1,
    );
    std::fs::write(dir.join("workloads.yaml"), workload_manifests).context("the manifests")?;
    for first_service in (0..service_count).step_by(SERVICES_PER_FILE) {
        let mut service_manifests = String::new();
        for index in first_service..service_count.min(first_service + SERVICES_PER_FILE) {
            write!(
                service_manifests,
                "---\napiVersion: v1\nkind: Service\n\
                 metadata: {{name: service-{index}, namespace: bench}}\n\
                 spec: {{selector: {{app: server}}, ports: [{{port: 80, targetPort: main}}]}}\n"
            )?;
        }
        std::fs::write(dir.join(format!("services-{first_service}.yaml")), service_manifests)
            .context("the manifests")?;
    }
    Ok(())
}

/// The number of services that the sidecar uses.
pub(super) const USED_SERVICES: usize = 5;
/// The number of services in a file: half of the maximum number of documents in a file.
const SERVICES_PER_FILE: usize = 5000;
/// The startup timeout of the control plane, which reads ten thousand manifests.
const MAX_START_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
