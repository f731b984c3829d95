//! `leno get`: queries the running mesh, and prints its objects as tables, JSON or YAML.
//!
//! [`MeshSocket`] is the client of the control plane's admin socket, for `leno get` and for other commands.

pub(crate) mod changes;
pub(crate) mod circuits;
mod connections;
pub(crate) mod ejected;
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

use crate::data_directory::DataDirectoryArgs;
use crate::figures::format_count;
use crate::log;
use crate::output::{self, Listing, OutputFormat};
use crate::tap::percent_encode;

/// Arguments of `leno get`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// Objects to show
    #[arg(value_enum, value_name = "RESOURCE")]
    resource: Resource,
    /// For proxies: show only those that are out of sync or reject a configuration
    #[arg(long)]
    out_of_sync: bool,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The objects to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resource {
    /// Settings and counts of the mesh; `leno status` lists its problems
    Status,
    /// Workloads and their sidecars
    #[value(alias = "workload")]
    Workloads,
    /// Services and their endpoints
    #[value(alias = "service")]
    Services,
    /// Certificates and their validity
    #[value(alias = "certificate")]
    Certificates,
    /// Open connections of sidecars
    #[value(alias = "connection")]
    Connections,
    /// Open and half-open circuit breakers
    #[value(alias = "circuit")]
    Circuits,
    /// Endpoints ejected by sidecars
    Ejected,
    /// Connected sidecars and their sync state
    #[value(alias = "proxy", alias = "sidecars")]
    Proxies,
    /// Recent changes, each with the ID for `leno explain change`
    #[value(alias = "change")]
    Changes,
    /// Routes
    #[value(alias = "route")]
    Routes,
    /// Policies of all kinds, and whether they are in force
    #[value(alias = "policy")]
    Policies,
    /// Rules that matched within the last hour, of routes and of all policies
    #[value(alias = "rule")]
    Rules,
    /// Rejected objects, and warnings
    Rejected,
}

impl Resource {
    /// True if the response covers only the connected sidecars of one control plane.
    const fn is_about_sidecars(self) -> bool {
        match self {
            Self::Connections
            | Self::Circuits
            | Self::Ejected
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

    /// Returns the path of the query to the control plane.
    const fn query_path(self) -> &'static str {
        match self {
            Self::Status => "/status",
            Self::Workloads => "/workloads",
            Self::Services => "/services",
            Self::Certificates => "/certificates",
            Self::Connections | Self::Circuits | Self::Ejected | Self::Proxies => "/proxies",
            Self::Changes => "/changes",
            Self::Routes => "/routes",
            Self::Policies => "/policies",
            Self::Rules => "/traffic",
            Self::Rejected => "/rejected",
        }
    }
}

impl GetArgs {
    /// Prints the objects of the selected resource.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.print_resource())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn print_resource(self) -> anyhow::Result<()> {
        let mesh = MeshSocket::from_data(&self.data.path()?);
        let mut response = mesh.query_json(self.resource.query_path()).await?;
        if self.resource.is_about_sidecars() {
            mesh.print_scope().await;
        }
        if self.out_of_sync {
            response = self.retain_out_of_sync(response)?;
        }
        // The sidecars list these objects, and the control plane only lists the sidecars.
        if self.resource == Resource::Connections {
            let proxies: Vec<ProxyStatus> = parse_response(response)?;
            let results = connections::query_connections(&mesh, &proxies).await;
            return self.print_result(&results, connections::connection_table);
        }
        if self.resource == Resource::Circuits {
            let proxies: Vec<ProxyStatus> = parse_response(response)?;
            let results = circuits::query_circuits(&mesh, &proxies).await;
            return self.print_result(&results, circuits::circuit_table);
        }
        if self.resource == Resource::Ejected {
            let proxies: Vec<ProxyStatus> = parse_response(response)?;
            let results = ejected::query_ejected(&mesh, &proxies).await;
            return self.print_result(&results, ejected::ejected_table);
        }
        if self.resource == Resource::Rules {
            let traffic: TrafficStatus = parse_response(response)?;
            return self.print_result(&traffic.rules, rules::rule_table);
        }
        if let Some(format) = self.output.structured_format() {
            return output::print_value(&response, format);
        }
        let listing = match self.resource {
            Resource::Status => {
                return output::print_text(&table::describe_status(&parse_response(response)?));
            }
            Resource::Rejected => return output::print_text(&table::format_rejections(&response)),
            Resource::Workloads => {
                let workloads: Vec<WorkloadStatus> = parse_response(response)?;
                let proxies_response = mesh.query_json(Resource::Proxies.query_path()).await?;
                let proxies: Vec<ProxyStatus> = parse_response(proxies_response)?;
                table::workload_table(&workloads, &proxies)
            }
            Resource::Services => table::service_table(
                &parse_response::<Vec<_>>(response)?,
                &self.query_traffic(&mesh).await,
            ),
            Resource::Certificates => {
                table::certificate_table(&parse_response::<Vec<_>>(response)?)
            }
            // Only proxies reach this arm: the others are printed above.
            Resource::Connections
            | Resource::Circuits
            | Resource::Ejected
            | Resource::Proxies
            | Resource::Rules => table::proxy_table(&parse_response::<Vec<_>>(response)?),
            Resource::Changes => changes::change_table(&parse_response::<Vec<_>>(response)?),
            Resource::Routes => table::route_table(
                &parse_response::<Vec<_>>(response)?,
                &self.query_traffic(&mesh).await,
            ),
            Resource::Policies => table::policy_table(
                &parse_response::<Vec<_>>(response)?,
                &self.query_traffic(&mesh).await,
            ),
        };
        output::print_raw(&listing.render(self.output))
    }

    /// Removes the proxies that are in sync from the response of the control plane.
    fn retain_out_of_sync(&self, response: Value) -> anyhow::Result<Value> {
        if self.resource != Resource::Proxies {
            bail!("--out-of-sync applies to proxies only: leno get proxies --out-of-sync");
        }
        let mut proxies: Vec<ProxyStatus> = parse_response(response)?;
        proxies.retain(ProxyStatus::is_stale);
        Ok(serde_json::to_value(proxies)?)
    }

    /// Prints results in a structured format, or as a table.
    fn print_result<T: Serialize>(
        &self,
        results: &Vec<T>,
        build_table: fn(&[T]) -> Listing,
    ) -> anyhow::Result<()> {
        match self.output.structured_format() {
            Some(format) => output::print_value(results, format),
            None => output::print_raw(&build_table(results).render(self.output)),
        }
    }

    /// Returns the traffic statistics for the wide columns. The columns stay empty if the control plane is of
    /// an earlier release without these statistics.
    async fn query_traffic(&self, mesh: &MeshSocket) -> TrafficStatus {
        if self.output != OutputFormat::Wide {
            return TrafficStatus::default();
        }
        let traffic = mesh.query_json("/traffic").await.and_then(parse_response);
        traffic.unwrap_or_default()
    }
}

/// Describes the scope of a response: the sidecars of other control planes that it does not cover; `None` if it
/// covers all.
pub(crate) fn describe_scope(status: &Status) -> Option<String> {
    let other_sidecars: usize = status.other_replicas.iter().map(|peer| peer.sidecars).sum();
    if other_sidecars == 0 {
        return None;
    }
    let peers_with_sidecars = status.other_replicas.iter().filter(|peer| peer.sidecars > 0);
    let peer_texts: Vec<String> = peers_with_sidecars
        .map(|peer| match &peer.address {
            Some(address) => format!("{address} ({})", peer.sidecars),
            None => format!("an unknown address ({})", peer.sidecars),
        })
        .collect();
    Some(format!(
        "scope: this control plane has {} of {}; for the others run the command at {}",
        status.proxies,
        format_count(status.proxies + other_sidecars, "connected sidecar"),
        peer_texts.join(", ")
    ))
}

/// The admin socket of a mesh that runs on this machine.
#[derive(Debug, Clone)]
pub(crate) struct MeshSocket {
    socket_path: PathBuf,
}

impl MeshSocket {
    /// Returns the admin socket of the mesh of a data directory.
    pub(crate) fn from_data(data: &Path) -> Self {
        let config = leno_control::Config::new(data.to_owned(), Vec::new());
        Self { socket_path: config.socket_path() }
    }

    /// Queries the control plane for `path`.
    ///
    /// # Errors
    /// If no mesh responds, or the control plane rejects the query.
    pub(crate) async fn query_json(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.send_request("GET", path).await?;
        serde_json::from_str(&response).context("the response of the control plane is not JSON")
    }

    /// Queries the admin endpoint of a workload's sidecar, over the stream to its control plane.
    ///
    /// # Errors
    /// If the sidecar does not respond, or responds with an error status: the message is the response body.
    pub(crate) async fn query_sidecar_page(
        &self,
        workload: &str,
        path: &str,
    ) -> anyhow::Result<String> {
        match self.query_sidecar(workload, path).await? {
            (200..300, response) => Ok(response),
            (_, problem) => bail!("{}", problem.trim_end()),
        }
    }

    /// Returns the readiness that a workload's sidecar reports, or the reason why it does not respond. `None` if
    /// the sidecar or the control plane is of an earlier release, or has no capacity for the query.
    pub(crate) async fn query_sidecar_readiness(
        &self,
        workload: &str,
    ) -> Option<Result<(), String>> {
        match self.query_sidecar(workload, "/ready").await {
            Ok((200..300, _)) => Some(Ok(())),
            Ok((404 | 429 | 501, _)) => None,
            Ok((_, problem)) => Some(Err(problem.trim_end().to_owned())),
            Err(error) => Some(Err(output::format_error(&error))),
        }
    }

    /// Returns the status and the body of the sidecar's response.
    async fn query_sidecar(&self, workload: &str, path: &str) -> anyhow::Result<(u16, String)> {
        let path =
            format!("/sidecar?workload={}&path={}", percent_encode(workload), percent_encode(path));
        let outcome = leno_control::admin::query_admin(&self.socket_path, "GET", &path).await;
        outcome.map_err(|error| self.unreachable_error(error))
    }

    /// Returns the scope of responses about sidecars; `None` if no other control plane has sidecars, or the
    /// query fails.
    pub(crate) async fn query_scope(&self) -> Option<String> {
        let status: Status = parse_response(self.query_json("/status").await.ok()?).ok()?;
        describe_scope(&status)
    }

    /// Prints the scope of a response about sidecars for people; programs find it in `leno get status`.
    pub(crate) async fn print_scope(&self) {
        if let Some(scope) = self.query_scope().await {
            log::print_to_stderr(&scope);
        }
    }

    /// Sends any request to the control plane and returns the body of the response.
    ///
    /// # Errors
    /// If the control plane is unreachable, or rejects the request.
    pub(crate) async fn send_request(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let outcome = leno_control::admin::query_admin(&self.socket_path, method, path).await;
        let (status, response) = outcome.map_err(|error| self.unreachable_error(error))?;
        match status {
            200..300 => Ok(response),
            _ => bail!("the control plane rejected the request: {}", response.trim_end()),
        }
    }

    /// Reads an endless response line by line until `on_line` returns false or an error, or the response ends.
    ///
    /// # Errors
    /// If the control plane is unreachable, or rejects the request; and the errors of `on_line`.
    pub(crate) async fn follow_stream(
        &self,
        path: &str,
        on_line: impl FnMut(&str) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let outcome = leno_control::admin::follow_lines(&self.socket_path, path, on_line).await;
        let response = outcome.map_err(|error| match error.downcast::<io::Error>() {
            Ok(error) if error.kind() != io::ErrorKind::BrokenPipe => self.unreachable_error(error),
            Ok(error) => error.into(),
            Err(error) => error,
        })?;
        response.map_err(|(_, problem)| {
            anyhow::anyhow!("the control plane rejected the request: {}", problem.trim_end())
        })
    }

    fn unreachable_error(&self, error: io::Error) -> anyhow::Error {
        let socket = self.socket_path.display();
        let is_absent =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let context = match is_absent {
            true => format!(
                "no mesh responds at {socket}: start one with `leno up`, set its data directory with --data, or, {IN_KUBERNETES}"
            ),
            false => format!("cannot query the control plane at {socket}"),
        };
        anyhow::Error::new(error).context(context)
    }
}

/// Parses a response of the control plane.
///
/// # Errors
/// If the response has another format, for example because the control plane is of another version.
pub(crate) fn parse_response<T: serde::de::DeserializeOwned>(response: Value) -> anyhow::Result<T> {
    serde_json::from_value(response)
        .context("the response cannot be parsed: the mesh may run another version of leno")
}

/// The hint for users of a mesh in Kubernetes. The admin sockets of the mesh are in the pods of its control plane.
pub(crate) const IN_KUBERNETES: &str =
    "in Kubernetes, run the command in a pod of the control plane with `kubectl exec`";

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
  leno get proxies --out-of-sync
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec deploy/leno-control -- \\
        /leno get workloads --data /var/lib/leno/control
";
