//! The hidden `leno bench crowd`: simulates many sidecars in one process, to load a control plane.
//!
//! Each simulated sidecar is a member of the crowd: it joins with its own token, keeps its own stream to the
//! control plane, reports its listener address and subscribed services, and applies updates with the code of real
//! sidecars. Simulated sidecars carry no traffic. Once all of them have received all endpoints, the crowd executes
//! the commands of the benchmark: a sidecar changes its listener address, and the crowd reports when the other
//! sidecars have received the change.

mod command;
mod execute;
mod state;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use leno_discovery::{
    ALPN, ConfigUpdate, Hello, JOIN_ALPN, ProxyRequest, Subscriber, follow_control_plane, join,
};
use leno_identity::{
    CertificateBundle, Credential, JoinBundle, PrivateKey, Roots, client_config, control_id,
    join_client_config,
};
use leno_model::{ServiceName, WorkloadName};
use leno_traffic::backoff;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::state::{CrowdState, MemberState};
use crate::{limits, output, stop};

pub(super) use self::command::{ChangeDelivery, CrowdCommand, CrowdReply};
pub(super) use self::state::unix_micros;

/// Arguments of the hidden `leno bench crowd`.
#[derive(Debug, Args)]
pub(crate) struct CrowdArgs {
    /// File that lists the sidecars
    #[arg(long)]
    plan: PathBuf,
}

/// The content of the plan file: the members of a crowd and their control plane.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CrowdPlan {
    /// The address of the control plane.
    pub(super) control: SocketAddr,
    pub(super) members: Vec<CrowdMember>,
}

/// One sidecar of a crowd.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CrowdMember {
    pub(super) workload: String,
    /// The content of the sidecar's token file.
    pub(super) token: String,
    /// The port of the application behind the sidecar; nothing listens there.
    pub(super) port: u16,
    /// The services that the sidecar uses, and the number of endpoints of each in the complete mesh.
    pub(super) services: Vec<(String, usize)>,
    /// The service whose endpoint the sidecar is.
    pub(super) own_service: String,
}

impl CrowdArgs {
    /// Runs until SIGTERM or SIGINT. Prints a line once all members have all endpoints.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let plan_text = std::fs::read_to_string(&self.plan).context("cannot read the plan")?;
        let plan: CrowdPlan = serde_json::from_str(&plan_text).context("the plan")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, run_members(plan))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn run_members(plan: CrowdPlan) -> anyhow::Result<()> {
    let stop_signal = stop::stop_signal()?;
    tokio::pin!(stop_signal);
    let join_permits = Rc::new(Semaphore::new(MAX_CONCURRENT_JOINS));
    let pending_count = Rc::new(Cell::new(plan.members.len()));
    let member_converged = Rc::new(Notify::new());
    let mut tasks = JoinSet::new();
    let (members, request_receivers): (Vec<_>, Vec<_>) =
        plan.members.iter().map(create_member_state).unzip();
    let members = members.into_iter().collect::<anyhow::Result<_>>()?;
    let state = Rc::new(CrowdState::new(members));
    for ((index, member), requests) in plan.members.into_iter().enumerate().zip(request_receivers) {
        let member_converged = Rc::clone(&member_converged);
        let pending_count = Rc::clone(&pending_count);
        let on_converged = move || {
            pending_count.set(pending_count.get().saturating_sub(1));
            member_converged.notify_one();
        };
        let (join_permits, state) = (Rc::clone(&join_permits), Rc::clone(&state));
        let task = MemberTask { member, index, control_address: plan.control, state };
        tasks.spawn_local(task.run_member(join_permits, requests, on_converged));
    }
    let command_loop = execute::execute_commands(&state);
    tokio::pin!(command_loop);
    let mut convergence_reported = false;
    loop {
        if pending_count.get() == 0 && !convergence_reported {
            convergence_reported = true;
            output::print_raw(CONVERGED_LINE)?;
        }
        tokio::select! {
            () = &mut stop_signal => return Ok(()),
            () = member_converged.notified() => {}
            result = &mut command_loop, if convergence_reported => return result,
            Some(outcome) = tasks.join_next() => outcome.context("a member failed")??,
        }
    }
}

/// Creates the shared state of a member, and the receiver of its requests.
fn create_member_state(
    member: &CrowdMember,
) -> (anyhow::Result<MemberState>, mpsc::Receiver<ProxyRequest>) {
    let (request_sender, receiver) = mpsc::channel(1);
    let create_state = || {
        let used_services = member.services.iter().map(|(service, _)| service.parse());
        anyhow::Ok(MemberState {
            workload: member.workload.parse().context("a workload")?,
            port: member.port,
            used_services: used_services.collect::<Result<_, _>>().context("a service")?,
            own_service: Some(member.own_service.parse().context("a service")?),
            request_sender,
        })
    };
    (create_state(), receiver)
}

/// The task of a member, which follows the control plane without serving traffic.
struct MemberTask {
    member: CrowdMember,
    /// The member's index in the crowd.
    index: usize,
    control_address: SocketAddr,
    state: Rc<CrowdState>,
}

impl MemberTask {
    /// Joins the mesh and follows the control plane until the crowd stops; reconnects when a stream ends. Calls
    /// `on_converged` once, when the member has all endpoints of its services.
    async fn run_member(
        self,
        join_permits: Rc<Semaphore>,
        mut requests: mpsc::Receiver<ProxyRequest>,
        on_converged: impl Fn(),
    ) -> anyhow::Result<()> {
        let Self { member, index, control_address, state } = self;
        let workload: WorkloadName = member.workload.parse().context("a workload")?;
        let mut expected_endpoint_counts = BTreeMap::new();
        for (service, expected_count) in &member.services {
            expected_endpoint_counts
                .insert(service.parse::<ServiceName>().context("a service")?, *expected_count);
        }
        let permit = join_permits.acquire().await.context("the join task has ended")?;
        let (first_stream, credential) = join_mesh(control_address, &member.token, &workload)
            .await
            .with_context(|| format!("{workload} cannot join"))?;
        drop(permit);
        let mut pending_stream = Some(first_stream);
        let has_converged = Cell::new(false);
        let mut apply = |update: ConfigUpdate| {
            if !has_converged.get() && has_all_endpoints(&update, &expected_endpoint_counts) {
                has_converged.set(true);
                on_converged();
            }
            state.record_update(index, &update);
            Ok(())
        };
        let mut subscriber = Subscriber::new();
        let mut failure_count = 0;
        loop {
            let connect_result = match pending_stream.take() {
                Some(first_stream) => Ok(first_stream),
                None => connect_with_credential(control_address, &credential).await,
            };
            if let Ok(stream) = connect_result {
                failure_count = 0;
                state.record_stream(true);
                let hello = Hello {
                    workload: workload.clone(),
                    // No process listens there: endpoints are distributed, not used.
                    listeners: vec![state.inbound_listener(index)],
                    admin: None,
                    pid: std::process::id(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    services: expected_endpoint_counts.keys().cloned().collect(),
                    addresses: Vec::new(),
                    dns_names: Vec::new(),
                    session: unix_micros(),
                    ca_generation: credential.ca_generation(),
                    process: 0,
                    answers_queries: false,
                    report: Default::default(),
                };
                let reason =
                    follow_control_plane(stream, hello, &mut subscriber, &mut requests, &mut apply)
                        .await;
                state.record_stream(false);
                tracing::debug!(workload = %member.workload, %reason, "disconnected");
            }
            failure_count += 1;
            // The jittered backoff of real sidecars, so that disconnected members do not reconnect at the same
            // time.
            let random_number =
                (index as u64 + 1).wrapping_mul(RANDOM_SPREAD_FACTOR).rotate_left(failure_count);
            sleep(backoff::backoff_delay(failure_count, random_number).min(MAX_RECONNECT_DELAY))
                .await;
        }
    }
}

/// True if the configuration has all endpoints of these services.
fn has_all_endpoints(
    update: &ConfigUpdate,
    expected_endpoint_counts: &BTreeMap<ServiceName, usize>,
) -> bool {
    expected_endpoint_counts.iter().all(|(service, expected_count)| {
        let service_config = update.snapshot.services.get(service);
        service_config.is_some_and(|service_config| {
            let endpoint_counts = service_config.ports.values().map(|port| port.endpoints.len());
            endpoint_counts.sum::<usize>() >= *expected_count
        })
    })
}

/// Exchanges the token for a certificate, and connects with it.
async fn join_mesh(
    control_address: SocketAddr,
    token: &str,
    workload: &WorkloadName,
) -> anyhow::Result<(TlsStream<TcpStream>, Arc<Credential>)> {
    let bundle = JoinBundle::parse(token).context("its token")?;
    let server_id = control_id(&bundle.trust_domain);
    let tls_config = join_client_config(&bundle.roots, &server_id, &[JOIN_ALPN])?;
    let key = PrivateKey::generate();
    let stream = connect_tls(control_address, tls_config).await?;
    let issued_certificate =
        join(stream, &bundle.token, workload, &key.certificate_request()).await?;
    let roots = Roots::new(issued_certificate.roots.into_iter().map(Into::into).collect())?;
    let chain = issued_certificate.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, CertificateBundle::new(chain, roots)?)?;
    let credential = Arc::new(credential);
    Ok((connect_with_credential(control_address, &credential).await?, credential))
}

/// Connects with a certificate.
async fn connect_with_credential(
    control_address: SocketAddr,
    credential: &Credential,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let server_id = control_id(&credential.id().trust_domain);
    connect_tls(control_address, client_config(credential, &server_id, &[ALPN])?).await
}

async fn connect_tls<C>(
    control_address: SocketAddr,
    tls_config: C,
) -> anyhow::Result<TlsStream<TcpStream>>
where
    TlsConnector: From<C>,
{
    let tcp = TcpStream::connect(control_address).await?;
    tcp.set_nodelay(true)?;
    let name = rustls_pki_types::ServerName::IpAddress(control_address.ip().into());
    Ok(TlsConnector::from(tls_config).connect(name, tcp).await?)
}

/// The line printed once all members have all endpoints.
pub(super) const CONVERGED_LINE: &str = "converged";
/// The maximum reconnect backoff, the same as that of real sidecars.
const MAX_RECONNECT_DELAY: std::time::Duration = std::time::Duration::from_secs(5);
/// A factor that gives neighbors in the crowd distant random numbers.
const RANDOM_SPREAD_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The maximum number of concurrent joins: the control plane signs a bounded number of certificates concurrently.
const MAX_CONCURRENT_JOINS: usize = 32;
