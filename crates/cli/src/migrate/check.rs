//! `leno migrate check`: converts the rules of other meshes from files or a cluster without writing anything, and
//! reports the outcomes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::report::{IgnoredSetting, MigrationReport};
use super::rewrite::rewrite;
use super::{EXIT_INCOMPLETE, NAMESPACE, cluster_objects, document};
use crate::cluster;
use crate::output;

/// Arguments of `leno migrate check`.
#[derive(Debug, Args)]
pub(super) struct MigrateCheckArgs {
    /// File or directory of YAML manifests; repeatable [default: the cluster of the current kubeconfig context]
    #[arg(short, long = "file", value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    context: Option<String>,
    /// Namespace for items of Sermant's configuration center, which have no namespace of their own
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: MigrateCheckFormat,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum MigrateCheckFormat {
    /// Text for people
    #[default]
    Text,
    /// JSON
    Json,
}

impl MigrateCheckArgs {
    /// Converts the documents without writing files, and prints the report.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (documents, ignored): (_, Vec<IgnoredSetting>) = match self.file.is_empty() {
            false => (document::read_files(&self.file, &self.namespace)?, Vec::new()),
            true => cluster::block_on(async {
                let client = cluster::create_client_for_context(self.context.as_deref()).await?;
                cluster_objects::read_objects(&client).await
            })?,
        };
        let report =
            MigrationReport::from_results(&documents, &rewrite(&documents, &self.namespace))
                .with_ignored(ignored);
        match self.output {
            MigrateCheckFormat::Text => output::print_text(&report.to_text())?,
            MigrateCheckFormat::Json => output::print_json(&report.entries())?,
        }
        Ok(if report.is_lossless() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INCOMPLETE) })
    }
}
