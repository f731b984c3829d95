//! `leno diagnose NAMESPACE/WORKLOAD`: finds the failing step between a workload, its control plane, and
//! services.

mod calls;
mod conditions;
mod reachability;
mod steps;
mod unknown_names;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use leno_control::status::{HistoryStatus, TrafficStatus};
use leno_model::{ServiceName, WorkloadName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data_directory::DataDirectoryArgs;
use crate::explain::ExplainFormat;
use crate::get::MeshSocket;
use crate::output::{self, escape_cell};
use reachability::ServiceReachability;
use steps::{DiagnosisInputs, DiagnosisStep, EjectedResponse, StepVerdict, build_steps};

/// Arguments of `leno diagnose`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiagnoseArgs {
    /// Workload to diagnose
    #[arg(value_name = "NAMESPACE/WORKLOAD")]
    workload: WorkloadName,
    /// Service that the workload calls; its routes, endpoints and applications are examined as well
    #[arg(long, value_name = "NAMESPACE/SERVICE")]
    to: Option<ServiceName>,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
}

/// The diagnosis, as printed in structured formats.
#[derive(Debug, Serialize)]
struct Diagnosis {
    workload: String,
    /// True if no step fails.
    healthy: bool,
    steps: Vec<DiagnosisStep>,
}

impl DiagnoseArgs {
    /// Prints the steps; the exit code is 0 if none fails.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mesh = MeshSocket::from_data(&self.data.path()?);
        let workload = self.workload.to_string();
        let to = self.to.map(|service| service.to_string());
        let inputs = runtime.block_on(collect_inputs(&mesh, &workload, to.as_deref()))?;
        let mut steps = build_steps(&inputs, &workload, to.as_deref());
        for hint in steps.iter_mut().filter_map(|step| step.hint.as_mut()) {
            *hint = self.data.add_data_option(hint);
        }
        let healthy = steps.iter().all(|step| step.verdict != StepVerdict::Problem);
        match self.output.structured_format() {
            Some(format) => output::print_value(&Diagnosis { workload, healthy, steps }, format)?,
            None => output::print_text(&render_steps(&workload, &steps))?,
        }
        Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Queries the control plane, and the workload's sidecar if it is connected.
async fn collect_inputs(
    mesh: &MeshSocket,
    workload: &str,
    to: Option<&str>,
) -> anyhow::Result<DiagnosisInputs> {
    let traffic: TrafficStatus = query_mesh(mesh, "/traffic").await?;
    let mut inputs = DiagnosisInputs {
        status: query_mesh(mesh, "/status").await?,
        workloads: query_mesh(mesh, "/workloads").await?,
        services: query_mesh(mesh, "/services").await?,
        proxies: query_mesh(mesh, "/proxies").await?,
        certificates: query_mesh(mesh, "/certificates").await?,
        routes: query_mesh(mesh, "/routes").await?,
        policies: query_mesh(mesh, "/policies").await?,
        // Control planes of earlier releases do not report rejected joins.
        rejected_joins: query_mesh(mesh, "/rejected-joins").await.unwrap_or_default(),
        histories: BTreeMap::new(),
        rejections: traffic.rejections,
        edges: traffic.edges,
        readiness: None,
        ejected_endpoints: Vec::new(),
        reachability: Vec::new(),
        unknown_names: Vec::new(),
        decision: None,
    };
    for service in services_with_history(&inputs, workload, to) {
        let service = service.as_str();
        let history: Option<HistoryStatus> =
            query_mesh(mesh, &format!("/history?service={service}")).await?;
        inputs.histories.extend(history.map(|history| (service.to_owned(), history)));
    }
    let proxy = inputs.proxies.iter().find(|proxy| proxy.workload == workload);
    if proxy.is_some() {
        inputs.readiness = mesh.query_sidecar_readiness(workload).await;
        // Ejected endpoints only add notices, so a diagnosis is possible without them.
        let ejected_page = mesh.query_sidecar_page(workload, "/ejected").await.ok();
        let ejected_response =
            ejected_page.and_then(|page| serde_json::from_str::<EjectedResponse>(&page).ok());
        inputs.ejected_endpoints =
            ejected_response.map(|response| response.ejected).unwrap_or_default();
        let (existing_services, unknown_names) = find_called_services(&inputs, workload, to);
        for service in existing_services.into_iter().take(reachability::MAX_TESTED_SERVICES) {
            inputs
                .reachability
                .extend(ServiceReachability::query_sidecar(mesh, workload, &service).await);
        }
        inputs.unknown_names = unknown_names;
    }
    if let Some(service) =
        to.and_then(|to| inputs.services.iter().find(|service| service.name == to))
    {
        inputs.decision = reachability::query_decision_step(mesh, workload, service).await;
    }
    Ok(inputs)
}

/// Returns the services whose histories are needed: the services of the workload, the services at which its
/// requests fail, and `to`.
fn services_with_history(
    inputs: &DiagnosisInputs,
    workload: &str,
    to: Option<&str>,
) -> BTreeSet<String> {
    let workload_status =
        inputs.workloads.iter().find(|workload_status| workload_status.name == workload);
    let failing_services = workload_status
        .filter(|_| to.is_none())
        .map(|workload_status| calls::failing_services(inputs, workload_status))
        .into_iter()
        .flatten()
        .take(reachability::MAX_TESTED_SERVICES);
    let selecting_services = workload_status
        .into_iter()
        .flat_map(|workload_status| &workload_status.services)
        .map(String::as_str);
    selecting_services.chain(failing_services).chain(to).map(str::to_owned).collect()
}

/// Returns the existing services that a workload calls, and the called names that no service has. With `to`,
/// returns only `to` if it exists, and no names.
fn find_called_services(
    inputs: &DiagnosisInputs,
    workload: &str,
    to: Option<&str>,
) -> (Vec<String>, Vec<String>) {
    let exists = |name: &String| inputs.services.iter().any(|service| service.name == *name);
    match to {
        Some(to) => (Some(to.to_owned()).filter(exists).into_iter().collect(), Vec::new()),
        None => calls::services_called_by_name(inputs, workload)
            .into_iter()
            .map(str::to_owned)
            .partition(exists),
    }
}

async fn query_mesh<T: DeserializeOwned>(mesh: &MeshSocket, path: &str) -> anyhow::Result<T> {
    serde_json::from_value(mesh.query_json(path).await?)
        .context("the response cannot be parsed: the mesh may run another version of leno")
}

fn render_steps(workload: &str, steps: &[DiagnosisStep]) -> String {
    let failed_count = steps.iter().filter(|step| step.verdict == StepVerdict::Problem).count();
    let verdict = match failed_count {
        0 => "no step fails".to_owned(),
        1 => "one step fails".to_owned(),
        count => format!("{count} steps fail"),
    };
    let mut text = format!("{workload}: {verdict}\n");
    for DiagnosisStep { name, verdict, message, hint } in steps {
        let symbol = verdict.symbol();
        text.push_str(&format!("  {symbol} {name:<12} {}\n", escape_cell(message)));
        if let Some(hint) = hint {
            text.push_str(&format!("      {:<12} {}\n", "", escape_cell(hint)));
        }
    }
    text
}

const EXAMPLES: &str = "\
Examples:
  leno diagnose shop/cart-1                       sidecar, identity, application, listeners, policies, requests to it and from it, connectivity
  leno diagnose shop/cart-1 --to shop/stock       also the path to a service that it calls, with the applications of its endpoints
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec deploy/leno-control -- \\
        /leno diagnose shop/cart-1 --data /var/lib/leno/control

The sidecar itself tests connectivity: it connects to endpoints with mutual TLS, and sends no request to
the application. The control plane evaluates policies, as its web page does.

Exit codes: 0 no step fails; 1 a step fails, or no control plane responds; 2 wrong usage.
";
