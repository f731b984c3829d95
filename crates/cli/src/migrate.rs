//! `leno migrate`: converts the rules of Open Service Mesh, FSM, SMI and Sermant to native resources, and
//! reports the outcome of every document.

mod access;
mod check;
mod cluster_objects;
mod config_center;
mod document;
mod mesh_config;
mod native_values;
mod report;
mod rewrite;
mod sermant;
mod setting;
mod split;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use self::check::MigrateCheckArgs;
use self::document::SourceDocument;
use self::report::MigrationReport;
use self::rewrite::{RewriteResult, rewrite};
use crate::{output, yaml};

/// Arguments of `leno migrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    step: Option<MigrateCommand>,
    /// File or directory of YAML manifests; repeatable
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    file: Vec<PathBuf>,
    /// Directory for the converted files; created if missing, and must be empty
    #[arg(short, long, value_name = "DIRECTORY", required = true)]
    output: Option<PathBuf>,
    /// Namespace for items of Sermant's configuration center, which have no namespace of their own
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
}

/// The subcommands of `leno migrate`.
#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Report which rules of files or of a cluster would be kept, changed or dropped, without writing anything
    #[command(after_help = CHECK_EXAMPLES)]
    Check(MigrateCheckArgs),
}

impl MigrateArgs {
    /// Reads and converts all documents, and writes the results only if all documents could be read.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(MigrateCommand::Check(check_args)) = self.step {
            return check_args.run();
        }
        let output_directory = self.output.context("--output is missing")?;
        check_empty_directory(&output_directory)?;
        let documents = document::read_files(&self.file, &self.namespace)?;
        let results = rewrite(&documents, &self.namespace);
        write_files(&output_directory, &documents, &results)?;
        let report = MigrationReport::from_results(&documents, &results);
        output::print_text(&report.to_text())?;
        Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INCOMPLETE) })
    }
}

/// Checks that a directory is empty or missing: existing files are never overwritten.
fn check_empty_directory(directory: &Path) -> anyhow::Result<()> {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("{} is not a directory", directory.display()));
        }
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => bail!("{} is not empty: choose another directory", directory.display()),
    }
}

/// Writes each file with the results of its documents, in their original order.
fn write_files(
    directory: &Path,
    documents: &[SourceDocument],
    results: &[RewriteResult],
) -> anyhow::Result<()> {
    let mut files: Vec<(&Path, Vec<String>)> = Vec::new();
    for (document, result) in documents.iter().zip(results) {
        let texts = replacement_texts(document, result);
        // The documents of one file follow each other.
        match files.last_mut().filter(|(path, _)| *path == document.output_file) {
            Some((_, file_texts)) => file_texts.extend(texts),
            None => files.push((&document.output_file, texts)),
        }
    }
    let non_empty_files = files.iter().filter(|(_, texts)| !texts.is_empty());
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    for (relative_path, texts) in non_empty_files {
        let output_path = directory.join(relative_path);
        let parent = output_path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        fs::write(&output_path, texts.join("---\n"))
            .with_context(|| format!("cannot write {}", output_path.display()))?;
    }
    Ok(())
}

/// Returns the texts of the documents that replace one document; empty if that document is dropped or not needed.
fn replacement_texts(document: &SourceDocument, result: &RewriteResult) -> Vec<String> {
    match result {
        RewriteResult::Native | RewriteResult::Unchanged(_) => vec![document.text.clone()],
        RewriteResult::Rewritten(objects) | RewriteResult::Changed(objects, _) => {
            objects.iter().map(yaml::write_document).collect()
        }
        RewriteResult::NotNeeded(_) | RewriteResult::Dropped(_) => Vec::new(),
    }
}

/// The result of `leno migrate` for one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationResult {
    /// The new documents, in order.
    pub documents: Vec<String>,
    /// True if no document of another mesh remains, and no document is changed or dropped.
    pub is_complete: bool,
    /// The report for the user.
    pub report: String,
}

/// Converts YAML documents like `leno migrate`, without reading or writing files.
///
/// # Errors
/// If a document cannot be read.
pub fn migrate_text(text: &str) -> anyhow::Result<MigrationResult> {
    let documents = document::read_text(text, NAMESPACE)?;
    let results = rewrite(&documents, NAMESPACE);
    let report = MigrationReport::from_results(&documents, &results);
    let pairs = documents.iter().zip(&results);
    Ok(MigrationResult {
        documents: pairs
            .flat_map(|(document, result)| replacement_texts(document, result))
            .collect(),
        is_complete: report.is_complete(),
        report: report.to_text(),
    })
}

/// The default of `--namespace`, for objects without a namespace.
const NAMESPACE: &str = "default";

/// The exit code of `leno migrate` if a rule of another mesh stays unchanged, or a rule is changed or dropped;
/// and of `leno migrate check` if a rule is dropped.
const EXIT_INCOMPLETE: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  leno migrate check -f old-mesh/
  leno migrate -f old-mesh/ -o mesh/
  leno check -f mesh/

Each input file produces a file with the same name. Native and Gateway API documents stay unchanged.
A document without an equivalent stays unchanged if Leno supports it, and is dropped otherwise; both are
reported with the reason. The report also lists objects of other meshes with features that Leno lacks,
and marks those that may have restricted access.

Exit codes: 0 every rule is native, rewritten without a difference, or not needed; 3 a rule is rewritten
with a difference, unchanged, or dropped; 1 a document could not be read, and nothing is written; 2 wrong
usage.
";

const CHECK_EXAMPLES: &str = "\
Examples:
  leno migrate check -f old-mesh/
  leno migrate check                  the cluster of the current context
  leno migrate check -o json

In a cluster the check covers all installed kinds of openservicemesh.io, flomesh.io and smi-spec.io, and
their annotations and labels on namespaces and pods.

Exit codes: 0 no rule would be dropped; 3 a rule would be dropped; 1 a document could not be read; 2 wrong
usage.
";
