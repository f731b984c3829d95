//! `leno status`: is the mesh healthy, and if not, what to do.

mod findings;
mod rejections;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use leno_control::status::{HistoryStatus, TrafficStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data_directory::DataArgs;
use crate::explain::ExplainFormat;
use crate::figures::{counted, rate};
use crate::get::{Mesh, scope};
use crate::output;

use self::findings::{Facts, Finding, Weight, ailing, judge};

/// Arguments of `leno status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    data: DataArgs,
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Verdict {
    /// Whether nothing is wrong.
    healthy: bool,
    /// What is wrong, or worth knowing.
    findings: Vec<Finding>,
    /// What the judgement is about; absent when no control plane answers.
    mesh: Option<leno_control::status::Status>,
}

impl StatusArgs {
    /// Prints the verdict; succeeds when nothing is wrong.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let path = self.data.path()?;
        let (verdict, text) = runtime.block_on(async {
            let mesh = Mesh::at(&path);
            match facts(&mesh).await {
                Ok(facts) => {
                    let findings = judge(&facts);
                    let text = text(&facts, &findings, &self.data.hint());
                    (Verdict::of(findings, Some(facts.status)), text)
                }
                Err(error) => {
                    let finding = Finding::unreachable(&error);
                    let text = format!("the mesh cannot be judged: 1 problem\n{}", finding.told());
                    (Verdict::of(vec![finding], None), text)
                }
            }
        });
        match self.output.structured() {
            Some(form) => output::print_value(&verdict, form)?,
            None => output::print_text(&text)?,
        }
        Ok(if verdict.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Verdict {
    fn of(findings: Vec<Finding>, mesh: Option<leno_control::status::Status>) -> Self {
        let healthy = findings.iter().all(|finding| finding.weight == Weight::Notice);
        Self { healthy, findings, mesh }
    }
}

async fn facts(mesh: &Mesh) -> anyhow::Result<Facts> {
    let traffic: TrafficStatus = asked(mesh, "/traffic").await?;
    let mut reasons = Vec::new();
    for service in traffic.services.iter().filter(|service| ailing(&service.rates)) {
        let path = format!("/history?service={}", service.name);
        let history: Option<HistoryStatus> = asked(mesh, &path).await?;
        // Only what is so now: what it failed with an hour ago is no longer why.
        let most = history.into_iter().flat_map(|history| history.recent_reasons);
        let most = most.max_by_key(|(_, count)| *count).map(|(reason, _)| reason);
        reasons.push((service.name.clone(), most));
    }
    Ok(Facts {
        services: asked(mesh, "/services").await?,
        // A control plane of an earlier release does not report these.
        rejected_joins: asked(mesh, "/rejected-joins").await.unwrap_or_default(),
        directory: asked(mesh, "/state").await.ok(),
        status: asked(mesh, "/status").await?,
        workloads: asked(mesh, "/workloads").await?,
        proxies: asked(mesh, "/proxies").await?,
        certificates: asked(mesh, "/certificates").await?,
        routes: asked(mesh, "/routes").await?,
        policies: asked(mesh, "/policies").await?,
        rejected: mesh.ask("/rejected").await?,
        traffic,
        reasons: reasons.into_iter().collect(),
    })
}

async fn asked<T: DeserializeOwned>(mesh: &Mesh, path: &str) -> anyhow::Result<T> {
    serde_json::from_value(mesh.ask(path).await?)
        .context("the answer is not understood: is the mesh of another version of leno?")
}

fn text(facts: &Facts, findings: &[Finding], hint: &str) -> String {
    let status = &facts.status;
    let problems = findings.iter().filter(|finding| finding.weight == Weight::Problem).count();
    let verdict = match problems {
        0 => "healthy".to_owned(),
        1 => "1 problem".to_owned(),
        several => format!("{several} problems"),
    };
    let edges = facts.traffic.edges.iter().filter(|edge| edge.kind != "route");
    let requests = rate(edges.map(|edge| edge.rates.per_second).sum());
    let mut text = format!(
        "{} ({}): {verdict}\n  {}, {}, {} connected, {requests}\n",
        status.trust_domain,
        status.traffic_mode,
        counted(status.services, "service"),
        counted(status.workloads, "workload"),
        counted(status.proxies, "sidecar"),
    );
    if let Some(scope) = scope(status) {
        text.push_str(&format!("  {scope}\n"));
    }
    for finding in findings {
        text.push_str(&finding.told());
    }
    match &status.page {
        Some(page) => text.push_str(&format!("  page: {page}\n")),
        None => text.push_str(&format!("  more: leno get proxies{hint}, leno top{hint}\n")),
    }
    text
}

const EXAMPLES: &str = "\
Examples:
  leno status
  leno status --data /var/lib/leno -o json

Exit codes: 0 nothing is wrong; 1 something is, or no control plane answers; 2 wrong usage.
";
