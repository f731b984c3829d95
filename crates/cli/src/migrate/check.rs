//! `leno migrate check`: what would be kept of the rules of other meshes, without writing anything.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::report::{Report, Unread};
use super::rewrite::rewrite;
use super::{NAMESPACE, NOT_WHOLE, document, living};
use crate::cluster;
use crate::output;

/// Arguments of `leno migrate check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// A file or directory of YAML; may be given again. The cluster that kubectl would use is looked at
    /// when left out
    #[arg(short, long = "file", value_name = "PATH")]
    file: Vec<PathBuf>,
    /// The context of the kubeconfig to use [default: the current one]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    context: Option<String>,
    /// The namespace of what has none: items of Sermant's configuration centre
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: CheckFormat,
}

/// How the answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum CheckFormat {
    /// For people
    #[default]
    Text,
    /// JSON
    Json,
}

impl CheckArgs {
    /// Looks, and tells.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (documents, unread): (_, Vec<Unread>) = match self.file.is_empty() {
            false => (document::read(&self.file, &self.namespace)?, Vec::new()),
            true => cluster::run(async {
                let client = cluster::client(self.context.as_deref()).await?;
                living::read(&client).await
            })?,
        };
        let report = Report::of(&documents, &rewrite(&documents, &self.namespace)).with(unread);
        match self.output {
            CheckFormat::Text => output::print_text(&report.to_text())?,
            CheckFormat::Json => output::print_json(&report.entries())?,
        }
        Ok(if report.keeps_all() { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) })
    }
}
