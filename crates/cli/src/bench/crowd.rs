//! The hidden `leno bench crowd`: many simulated sidecars in one process, for control plane load.
//!
//! Each joins with a token of its own, keeps a stream of its own to the control plane, reports its listener
//! address and subscribed services, and applies updates with the code of real sidecars. None of them carries
//! traffic. Once all of them have all endpoints, the crowd executes orders: sidecars move, and it reports when
//! the others received the change.

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
pub(super) use self::state::since_1970;

/// Arguments of the hidden `leno bench crowd`.
#[derive(Debug, Args)]
pub(crate) struct CrowdArgs {
    /// File that lists the sidecars
    #[arg(long)]
    plan: PathBuf,
}

/// The members of a crowd.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CrowdPlan {
    /// The control plane.
    pub(super) control: SocketAddr,
    pub(super) members: Vec<CrowdMember>,
}

/// One sidecar of a crowd.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CrowdMember {
    pub(super) workload: String,
    /// The content of its token file.
    pub(super) token: String,
    /// The port of its application.
    pub(super) port: u16,
    /// The services that it uses, and the number of endpoints of each in the complete mesh.
    pub(super) services: Vec<(String, usize)>,
    /// The service that it is an endpoint of.
    pub(super) behind: String,
}

impl CrowdArgs {
    /// Runs until SIGTERM or SIGINT. Prints a line once all members have all endpoints.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let text = std::fs::read_to_string(&self.plan).context("cannot read the plan")?;
        let plan: CrowdPlan = serde_json::from_str(&text).context("the plan")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, run_members(plan))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn run_members(plan: CrowdPlan) -> anyhow::Result<()> {
    let stop = stop::stop_signal()?;
    tokio::pin!(stop);
    let joining = Rc::new(Semaphore::new(JOINING_MAX));
    let waiting = Rc::new(Cell::new(plan.members.len()));
    let changed = Rc::new(Notify::new());
    let mut members = JoinSet::new();
    let (seats, requests): (Vec<_>, Vec<_>) = plan.members.iter().map(create_seat).unzip();
    let seats = seats.into_iter().collect::<anyhow::Result<_>>()?;
    let state = Rc::new(CrowdState::new(seats));
    for ((at, member), requests) in plan.members.into_iter().enumerate().zip(requests) {
        let changed = Rc::clone(&changed);
        let waiting = Rc::clone(&waiting);
        let complete = move || {
            waiting.set(waiting.get().saturating_sub(1));
            changed.notify_one();
        };
        let (joining, state) = (Rc::clone(&joining), Rc::clone(&state));
        let life = CrowdSidecar { member, at, control: plan.control, state };
        members.spawn_local(life.run_member(joining, requests, complete));
    }
    let obeying = execute::execute_orders(&state);
    tokio::pin!(obeying);
    let mut reported = false;
    loop {
        if waiting.get() == 0 && !reported {
            reported = true;
            output::print_raw(CONVERGED)?;
        }
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = changed.notified() => {}
            obeyed = &mut obeying, if reported => return obeyed,
            Some(ended) = members.join_next() => ended.context("a member failed")??,
        }
    }
}

/// Creates the shared state of a member, and the receiver of its requests.
fn create_seat(
    member: &CrowdMember,
) -> (anyhow::Result<MemberState>, mpsc::Receiver<ProxyRequest>) {
    let (requests, receiver) = mpsc::channel(1);
    let seat = || {
        let uses = member.services.iter().map(|(service, _)| service.parse());
        anyhow::Ok(MemberState {
            workload: member.workload.parse().context("a workload")?,
            port: member.port,
            uses: uses.collect::<Result<_, _>>().context("a service")?,
            behind: Some(member.behind.parse().context("a service")?),
            requests,
        })
    };
    (seat(), receiver)
}

/// A simulated sidecar, which follows the control plane without serving traffic.
struct CrowdSidecar {
    member: CrowdMember,
    /// Its index in the crowd.
    at: usize,
    control: SocketAddr,
    state: Rc<CrowdState>,
}

impl CrowdSidecar {
    /// Runs from the token to the end of the crowd; reconnects when a stream ends. `complete` is called once,
    /// when it has all endpoints of its services.
    async fn run_member(
        self,
        joining: Rc<Semaphore>,
        mut requests: mpsc::Receiver<ProxyRequest>,
        complete: impl Fn(),
    ) -> anyhow::Result<()> {
        let Self { member, at, control, state } = self;
        let workload: WorkloadName = member.workload.parse().context("a workload")?;
        let mut wanted = BTreeMap::new();
        for (service, endpoints) in &member.services {
            wanted.insert(service.parse::<ServiceName>().context("a service")?, *endpoints);
        }
        let permit = joining.acquire().await.context("the join task has ended")?;
        let (first, credential) = join_mesh(control, &member.token, &workload)
            .await
            .with_context(|| format!("{workload} cannot join"))?;
        drop(permit);
        let mut stream = Some(first);
        let reported = Cell::new(false);
        let mut apply = |update: ConfigUpdate| {
            if !reported.get() && has_all_endpoints(&update, &wanted) {
                reported.set(true);
                complete();
            }
            state.record_update(at, &update);
            Ok(())
        };
        let mut subscriber = Subscriber::new();
        let mut failures = 0;
        loop {
            let connected = match stream.take() {
                Some(stream) => Ok(stream),
                None => connect_with_credential(control, &credential).await,
            };
            if let Ok(stream) = connected {
                failures = 0;
                state.record_stream(true);
                let hello = Hello {
                    workload: workload.clone(),
                    // No process listens there: endpoints are distributed, not used.
                    listeners: vec![state.listener_address(at)],
                    admin: None,
                    pid: std::process::id(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    services: wanted.keys().cloned().collect(),
                    addresses: Vec::new(),
                    dns_names: Vec::new(),
                    session: since_1970(),
                    ca_generation: credential.ca_generation(),
                    process: 0,
                    answers_queries: false,
                    report: Default::default(),
                };
                let ended =
                    follow_control_plane(stream, hello, &mut subscriber, &mut requests, &mut apply)
                        .await;
                state.record_stream(false);
                tracing::debug!(workload = %member.workload, reason = %ended, "disconnected");
            }
            failures += 1;
            // The jittered backoff of real sidecars, so that disconnected members do not reconnect at the same
            // time.
            let draw = (at as u64 + 1).wrapping_mul(SPREAD).rotate_left(failures);
            sleep(backoff::backoff_delay(failures, draw).min(RECONNECT_MAX)).await;
        }
    }
}

/// True if all endpoints of these services are known.
fn has_all_endpoints(update: &ConfigUpdate, wanted: &BTreeMap<ServiceName, usize>) -> bool {
    wanted.iter().all(|(service, endpoints)| {
        let view = update.snapshot.services.get(service);
        view.is_some_and(|view| {
            let known = view.ports.values().map(|port| port.endpoints.len());
            known.sum::<usize>() >= *endpoints
        })
    })
}

/// Exchanges the token for a certificate, and connects with it.
async fn join_mesh(
    control: SocketAddr,
    token: &str,
    workload: &WorkloadName,
) -> anyhow::Result<(TlsStream<TcpStream>, Arc<Credential>)> {
    let bundle = JoinBundle::parse(token).context("its token")?;
    let expected = control_id(&bundle.trust_domain);
    let config = join_client_config(&bundle.roots, &expected, &[JOIN_ALPN])?;
    let key = PrivateKey::generate();
    let stream = connect_tls(control, config).await?;
    let issued = join(stream, &bundle.token, workload, &key.certificate_request()).await?;
    let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect())?;
    let chain = issued.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, CertificateBundle::new(chain, roots)?)?;
    let credential = Arc::new(credential);
    Ok((connect_with_credential(control, &credential).await?, credential))
}

/// Connects with a certificate.
async fn connect_with_credential(
    control: SocketAddr,
    credential: &Credential,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let expected = control_id(&credential.id().trust_domain);
    connect_tls(control, client_config(credential, &expected, &[ALPN])?).await
}

async fn connect_tls<C>(control: SocketAddr, config: C) -> anyhow::Result<TlsStream<TcpStream>>
where
    TlsConnector: From<C>,
{
    let tcp = TcpStream::connect(control).await?;
    tcp.set_nodelay(true)?;
    let name = rustls_pki_types::ServerName::IpAddress(control.ip().into());
    Ok(TlsConnector::from(config).connect(name, tcp).await?)
}

/// The line printed once all members have all endpoints.
pub(super) const CONVERGED: &str = "converged";
/// The maximum reconnect backoff, as in sidecars.
const RECONNECT_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// Neighbors in the crowd draw distant random numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The control plane signs a bounded number of certificates concurrently.
const JOINING_MAX: usize = 32;
