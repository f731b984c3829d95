//! `leno get`: asks the running mesh.

pub(crate) mod changes;
pub(crate) mod circuits;
mod connections;
pub(crate) mod removed;
mod rules;
mod sidecars;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use leno_control::status::{ProxyStatus, Status, TrafficStatus, WorkloadStatus};
use serde::Serialize;
use serde_json::Value;

use crate::data_directory::DataArgs;
use crate::figures::counted;
use crate::log;
use crate::output::{self, Format, Listing};
use crate::tap::encoded;

/// Arguments of `leno get`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// What to ask about
    #[arg(value_enum)]
    topic: Topic,
    /// Of proxies, only those that have not applied all they were told, or refuse something
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    data: DataArgs,
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Topic {
    /// The mesh as a whole
    Status,
    /// Workloads and their sidecars
    #[value(alias = "workload")]
    Workloads,
    /// Services and their endpoints
    #[value(alias = "service")]
    Services,
    /// Certificates and how long they are valid
    #[value(alias = "certificate")]
    Certificates,
    /// Connections that sidecars hold
    #[value(alias = "connection")]
    Connections,
    /// Circuits of circuit breakers that are open or half-open
    #[value(alias = "circuit")]
    Circuits,
    /// Endpoints that sidecars have removed for a while
    Removed,
    /// Connected sidecars and what they know
    #[value(alias = "proxy", alias = "sidecars")]
    Proxies,
    /// The newest changes, each with the number that `leno explain change` follows
    #[value(alias = "change")]
    Changes,
    /// Routes
    #[value(alias = "route")]
    Routes,
    /// Access policies
    #[value(alias = "policy")]
    Policies,
    /// Rules that decided something within the last hour: of routes and of policies of every kind
    #[value(alias = "rule")]
    Rules,
    /// Documents that are refused, and warnings
    Rejected,
}

impl Topic {
    /// True if the answer has the state of the connected sidecars of one control plane.
    const fn is_about_sidecars(self) -> bool {
        match self {
            Self::Connections
            | Self::Circuits
            | Self::Removed
            | Self::Proxies
            | Self::Workloads
            | Self::Rules => true,
            Self::Status
            | Self::Services
            | Self::Certificates
            | Self::Changes
            | Self::Routes
            | Self::Policies
            | Self::Rejected => false,
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Status => "/status",
            Self::Workloads => "/workloads",
            Self::Services => "/services",
            Self::Certificates => "/certificates",
            Self::Connections | Self::Circuits | Self::Removed | Self::Proxies => "/proxies",
            Self::Changes => "/changes",
            Self::Routes => "/routes",
            Self::Policies => "/policies",
            Self::Rules => "/traffic",
            Self::Rejected => "/rejected",
        }
    }
}

impl GetArgs {
    /// Prints the answer.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.ask())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn ask(self) -> anyhow::Result<()> {
        let mesh = Mesh::at(&self.data.path()?);
        let mut answer = mesh.ask(self.topic.path()).await?;
        if self.topic.is_about_sidecars() {
            mesh.print_scope().await;
        }
        if self.stale {
            if self.topic != Topic::Proxies {
                bail!("--stale is a question about proxies: leno get proxies --stale");
            }
            let mut proxies: Vec<ProxyStatus> = parsed(answer)?;
            proxies.retain(ProxyStatus::is_stale);
            answer = serde_json::to_value(proxies)?;
        }
        if self.topic == Topic::Connections {
            let proxies: Vec<ProxyStatus> = parsed(answer)?;
            let found = connections::of(&mesh, &proxies).await;
            return self.print(&found, connections::table);
        }
        if self.topic == Topic::Circuits {
            let proxies: Vec<ProxyStatus> = parsed(answer)?;
            let found = circuits::of(&mesh, &proxies).await;
            return self.print(&found, circuits::table);
        }
        if self.topic == Topic::Removed {
            let proxies: Vec<ProxyStatus> = parsed(answer)?;
            let found = removed::of(&mesh, &proxies).await;
            return self.print(&found, removed::table);
        }
        if self.topic == Topic::Rules {
            let found = parsed::<TrafficStatus>(answer)?.rules;
            return self.print(&found, rules::table);
        }
        if let Some(form) = self.output.structured() {
            return output::print_value(&answer, form);
        }
        let listing = match self.topic {
            Topic::Status => return output::print_text(&table::status(&parsed(answer)?)),
            Topic::Rejected => return output::print_text(&table::rejected(&answer)),
            Topic::Workloads => {
                let workloads: Vec<WorkloadStatus> = parsed(answer)?;
                let proxies: Vec<ProxyStatus> = parsed(mesh.ask(Topic::Proxies.path()).await?)?;
                table::workloads(&workloads, &proxies)
            }
            Topic::Services => {
                table::services(&parsed::<Vec<_>>(answer)?, &self.traffic(&mesh).await)
            }
            Topic::Certificates => table::certificates(&parsed::<Vec<_>>(answer)?),
            Topic::Connections
            | Topic::Circuits
            | Topic::Removed
            | Topic::Proxies
            | Topic::Rules => table::proxies(&parsed::<Vec<_>>(answer)?),
            Topic::Changes => changes::table(&parsed::<Vec<_>>(answer)?),
            Topic::Routes => table::routes(&parsed::<Vec<_>>(answer)?, &self.traffic(&mesh).await),
            Topic::Policies => {
                table::policies(&parsed::<Vec<_>>(answer)?, &self.traffic(&mesh).await)
            }
        };
        output::print(&listing.render(self.output))
    }

    /// What was found, for programs or for people.
    fn print<T: Serialize>(
        &self,
        found: &Vec<T>,
        table: fn(&[T]) -> Listing,
    ) -> anyhow::Result<()> {
        match self.output.structured() {
            Some(form) => output::print_value(found, form),
            None => output::print(&table(found).render(self.output)),
        }
    }

    /// The figures of the wide columns. A control plane of a release that has none is asked for
    /// nothing else, so that the columns stay empty.
    async fn traffic(&self, mesh: &Mesh) -> TrafficStatus {
        if self.output != Format::Wide {
            return TrafficStatus::default();
        }
        let told = mesh.ask("/traffic").await.and_then(parsed);
        told.unwrap_or_default()
    }
}

/// The number of sidecars that answers of one control plane are about, where other control planes have more.
pub(crate) fn scope(status: &Status) -> Option<String> {
    let others: usize = status.elsewhere.iter().map(|peer| peer.sidecars).sum();
    if others == 0 {
        return None;
    }
    let places = status.elsewhere.iter().filter(|peer| peer.sidecars > 0);
    let places = places.map(|peer| match &peer.address {
        Some(address) => format!("{address} ({})", peer.sidecars),
        None => format!("an unknown address ({})", peer.sidecars),
    });
    let places: Vec<String> = places.collect();
    Some(format!(
        "scope: this control plane has {} of {}; for the others run the command at {}",
        status.proxies,
        counted(status.proxies + others, "connected sidecar"),
        places.join(", ")
    ))
}

/// A mesh that runs on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Mesh {
    socket: PathBuf,
}

impl Mesh {
    /// The mesh of a data directory.
    pub(crate) fn at(data: &Path) -> Self {
        let config = leno_control::Config::new(data.to_owned(), Vec::new());
        Self { socket: config.socket() }
    }

    /// What its control plane tells about `path`.
    ///
    /// # Errors
    /// When no mesh answers, or it refuses.
    pub(crate) async fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.send("GET", path).await?;
        serde_json::from_str(&answer).context("the answer of the control plane is not JSON")
    }

    /// The answer of the sidecar of a workload for a page of its admin address, over the stream to its control plane.
    ///
    /// # Errors
    /// When the sidecar does not answer, or its status is no success: the body says why.
    pub(crate) async fn sidecar(&self, workload: &str, path: &str) -> anyhow::Result<String> {
        match self.query_sidecar(workload, path).await? {
            (200..300, answer) => Ok(answer),
            (_, problem) => bail!("{}", problem.trim_end()),
        }
    }

    /// The readiness of the sidecar of a workload, as the sidecar reports it, or the reason why it does not answer.
    /// `None` when the sidecar or the control plane is of an earlier release, or has no time for the query.
    pub(crate) async fn sidecar_is_ready(&self, workload: &str) -> Option<Result<(), String>> {
        match self.query_sidecar(workload, "/ready").await {
            Ok((200..300, _)) => Some(Ok(())),
            Ok((404 | 429 | 501, _)) => None,
            Ok((_, problem)) => Some(Err(problem.trim_end().to_owned())),
            Err(error) => Some(Err(output::failure(&error))),
        }
    }

    async fn query_sidecar(&self, workload: &str, path: &str) -> anyhow::Result<(u16, String)> {
        let path = format!("/sidecar?workload={}&path={}", encoded(workload), encoded(path));
        let asked = leno_control::admin::ask(&self.socket, "GET", &path).await;
        asked.map_err(|error| self.unanswered(error))
    }

    /// The scope of its answers about sidecars, where other control planes have some of them.
    pub(crate) async fn scope(&self) -> Option<String> {
        let status: Status = parsed(self.ask("/status").await.ok()?).ok()?;
        scope(&status)
    }

    /// Prints the scope of an answer about sidecars for people: programs find it in `leno get status`.
    pub(crate) async fn print_scope(&self) {
        if let Some(scope) = self.scope().await {
            log::say(&scope);
        }
    }

    /// Its answer to a request of any kind.
    ///
    /// # Errors
    /// As [`Mesh::ask`].
    pub(crate) async fn send(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let asked = leno_control::admin::ask(&self.socket, method, path).await;
        let (status, answer) = asked.map_err(|error| self.unanswered(error))?;
        match status {
            200..300 => Ok(answer),
            _ => bail!("the control plane refuses: {}", answer.trim_end()),
        }
    }

    /// Follows an answer that does not end, until `each` says that it is enough.
    ///
    /// # Errors
    /// As [`Mesh::ask`], and what `each` says.
    pub(crate) async fn follow(
        &self,
        path: &str,
        each: impl FnMut(&str) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let followed = leno_control::admin::follow(&self.socket, path, each).await;
        let followed = followed.map_err(|error| match error.downcast::<io::Error>() {
            Ok(error) if error.kind() != io::ErrorKind::BrokenPipe => self.unanswered(error),
            Ok(error) => error.into(),
            Err(error) => error,
        })?;
        followed.map_err(|(_, problem)| {
            anyhow::anyhow!("the control plane refuses: {}", problem.trim_end())
        })
    }

    fn unanswered(&self, error: io::Error) -> anyhow::Error {
        let socket = self.socket.display();
        let absent =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let context = match absent {
            true => format!(
                "no mesh answers at {socket}: start one with `leno up`, or name the data \
                 directory of the one you mean with --data"
            ),
            false => format!("asking the control plane at {socket}"),
        };
        anyhow::Error::new(error).context(context)
    }
}

/// Reads an answer.
///
/// # Errors
/// When it is that of another version.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(answer: Value) -> anyhow::Result<T> {
    serde_json::from_value(answer)
        .context("the answer is not understood: is the mesh of another version of leno?")
}

const EXAMPLES: &str = "\
Examples:
  leno get workloads
  leno get services -o wide
  leno get certificates --data /var/lib/leno -o json
  leno get policies -o yaml
  leno get rejected
  leno get routes -o wide
  leno get rules
  leno get circuits
  leno get proxies --stale
";
