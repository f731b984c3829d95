//! The hidden `leno bench crowd`: many sidecars in one process, as the control plane sees them.
//!
//! Each joins with a token of its own, follows the control plane over a stream of its own, says
//! where it listens and which services it uses, and applies what it is told, with the code that
//! sidecars have for that. None of them carries traffic.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use leno_discovery::{ALPN, Hello, InboundListener, JOIN_ALPN, Subscriber, Update, follow, join};
use leno_identity::{
    Credential, Issued, JoinBundle, PrivateKey, Roots, client_config, control_id,
    join_client_config,
};
use leno_model::{ServiceName, WorkloadName};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{limits, output, stop};

/// Arguments of the hidden `leno bench crowd`.
#[derive(Debug, Args)]
pub(crate) struct CrowdArgs {
    /// The file that says who they are
    #[arg(long)]
    plan: PathBuf,
}

/// Who is in a crowd.
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
    /// The text of its token file.
    pub(super) token: String,
    /// The port of its application.
    pub(super) port: u16,
    /// The services that it uses, and how many endpoints each has when everybody is there.
    pub(super) services: Vec<(String, usize)>,
}

impl CrowdArgs {
    /// Runs until SIGTERM or SIGINT. Prints a line when everybody knows everything.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let text = std::fs::read_to_string(&self.plan).context("the plan cannot be read")?;
        let plan: CrowdPlan = serde_json::from_str(&text).context("the plan")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, gather(plan))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn gather(plan: CrowdPlan) -> anyhow::Result<()> {
    let stop = stop::signals()?;
    tokio::pin!(stop);
    let joining = Rc::new(Semaphore::new(JOINING_MAX));
    let waiting = Rc::new(Cell::new(plan.members.len()));
    let news = Rc::new(Notify::new());
    let mut members = JoinSet::new();
    for member in plan.members {
        let news = Rc::clone(&news);
        let waiting = Rc::clone(&waiting);
        let complete = move || {
            waiting.set(waiting.get().saturating_sub(1));
            news.notify_one();
        };
        let joining = Rc::clone(&joining);
        members.spawn_local(live(member, plan.control, joining, complete));
    }
    let mut told = false;
    loop {
        if waiting.get() == 0 && !told {
            told = true;
            output::print(CONVERGED)?;
        }
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = news.notified() => {}
            Some(ended) = members.join_next() => ended.context("a member failed")??,
        }
    }
}

/// One sidecar, from its token to the end of its stream. `complete` is called once, when it knows
/// all the endpoints that it uses.
async fn live(
    member: CrowdMember,
    control: SocketAddr,
    joining: Rc<Semaphore>,
    complete: impl Fn(),
) -> anyhow::Result<()> {
    let workload: WorkloadName = member.workload.parse().context("a workload")?;
    let mut wanted = BTreeMap::new();
    for (service, endpoints) in &member.services {
        wanted.insert(service.parse::<ServiceName>().context("a service")?, *endpoints);
    }
    let permit = joining.acquire().await.context("nobody may join any more")?;
    let (stream, _credential) = enter(control, &member.token, &workload)
        .await
        .with_context(|| format!("{workload} cannot join"))?;
    drop(permit);
    // Nobody listens there: endpoints are known, not used.
    let nowhere = SocketAddr::from(([127, 0, 0, 1], member.port));
    let hello = Hello {
        workload,
        listeners: vec![InboundListener { port: member.port, address: nowhere }],
        admin: None,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        services: wanted.keys().cloned().collect(),
    };
    let told = Cell::new(false);
    let mut apply = |update: Update| {
        if !told.get() && knows(&update, &wanted) {
            told.set(true);
            complete();
        }
        Ok(())
    };
    let mut subscriber = Subscriber::new();
    // It wants nothing more, and must keep the end by which it could say so.
    let (_requests, mut requests) = mpsc::channel(1);
    let ended = follow(stream, hello, &mut subscriber, &mut requests, &mut apply).await;
    Err(ended).with_context(|| format!("{} was left alone", member.workload))
}

/// Whether every endpoint of these services is known.
fn knows(update: &Update, wanted: &BTreeMap<ServiceName, usize>) -> bool {
    wanted.iter().all(|(service, endpoints)| {
        let view = update.snapshot.services.get(service);
        view.is_some_and(|view| {
            let known = view.ports.values().map(|port| port.endpoints.len());
            known.sum::<usize>() >= *endpoints
        })
    })
}

/// Exchanges the token for a certificate, and connects with that.
async fn enter(
    control: SocketAddr,
    token: &str,
    workload: &WorkloadName,
) -> anyhow::Result<(TlsStream<TcpStream>, Arc<Credential>)> {
    let bundle = JoinBundle::parse(token).context("its token")?;
    let expected = control_id(&bundle.trust_domain);
    let config = join_client_config(&bundle.roots, &expected, &[JOIN_ALPN])?;
    let key = PrivateKey::generate();
    let stream = tls(control, config).await?;
    let issued = join(stream, &bundle.token, workload, &key.request()).await?;
    let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect())?;
    let chain = issued.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, Issued::new(chain, roots)?)?;
    let config = client_config(&credential, &expected, &[ALPN])?;
    Ok((tls(control, config).await?, Arc::new(credential)))
}

async fn tls<C>(control: SocketAddr, config: C) -> anyhow::Result<TlsStream<TcpStream>>
where
    TlsConnector: From<C>,
{
    let tcp = TcpStream::connect(control).await?;
    tcp.set_nodelay(true)?;
    let name = rustls_pki_types::ServerName::IpAddress(control.ip().into());
    Ok(TlsConnector::from(config).connect(name, tcp).await?)
}

/// What is printed when everybody knows everything.
pub(super) const CONVERGED: &str = "converged";
/// The control plane signs a bounded number of certificates at once.
const JOINING_MAX: usize = 32;
