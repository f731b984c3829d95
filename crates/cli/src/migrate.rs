//! `leno migrate`: rewrites the rules of other meshes into native ones, and lists what it could not.

mod access;
mod check;
mod document;
mod living;
mod mesh_config;
mod published;
mod report;
mod rewrite;
mod sermant;
mod setting;
mod split;
mod terms;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use self::check::CheckArgs;
use self::document::Document;
use self::report::Report;
use self::rewrite::{Fate, rewrite};
use crate::{output, yaml};

/// Arguments of `leno migrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    step: Option<Step>,
    /// A file or directory of YAML; may be given again
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    file: Vec<PathBuf>,
    /// The directory that the new files are written to; it is made, and must be empty if it is there
    #[arg(short, long, value_name = "DIRECTORY", required = true)]
    output: Option<PathBuf>,
    /// The namespace of what has none: items of Sermant's configuration centre
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
}

/// What else there is to do.
#[derive(Debug, Subcommand)]
enum Step {
    /// Say what would be kept, changed and not kept, of files or of a cluster, and write nothing
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
}

impl MigrateArgs {
    /// Reads everything, decides, and writes only when everything could be read.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Step::Check(check)) = self.step {
            return check.run();
        }
        let output = self.output.context("--output is missing")?;
        check_empty(&output)?;
        let documents = document::read(&self.file, &self.namespace)?;
        let fates = rewrite(&documents, &self.namespace);
        write(&output, &documents, &fates)?;
        let report = Report::of(&documents, &fates);
        output::print_text(&report.to_text())?;
        Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) })
    }
}

/// Nobody's files are written over.
fn check_empty(directory: &Path) -> anyhow::Result<()> {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("{} is no directory", directory.display()));
        }
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => bail!("{} is not empty: name another directory", directory.display()),
    }
}

/// Each file anew, with what became of its documents in their places.
fn write(directory: &Path, documents: &[Document], fates: &[Fate]) -> anyhow::Result<()> {
    let mut files: Vec<(&Path, Vec<String>)> = Vec::new();
    for (document, fate) in documents.iter().zip(fates) {
        let texts = texts(document, fate);
        match files.last_mut().filter(|(path, _)| *path == document.target) {
            Some((_, held)) => held.extend(texts),
            None => files.push((&document.target, texts)),
        }
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    for (path, texts) in files.iter().filter(|(_, texts)| !texts.is_empty()) {
        let path = directory.join(path);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)
            .with_context(|| format!("{} cannot be made", parent.display()))?;
        fs::write(&path, texts.join("---\n"))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

/// The documents that take the place of one.
fn texts(document: &Document, fate: &Fate) -> Vec<String> {
    match fate {
        Fate::Native | Fate::Left(_) => vec![document.text.clone()],
        Fate::Rewritten(objects) | Fate::Nearly(objects, _) => {
            objects.iter().map(yaml::write).collect()
        }
        Fate::Dropped(_) | Fate::Lost(_) => Vec::new(),
    }
}

/// The result of `leno migrate` for one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The new documents, in order.
    pub documents: Vec<String>,
    /// No foreign document is left.
    pub is_whole: bool,
    /// The report to the user.
    pub report: String,
}

/// Rewrites a text of YAML documents as `leno migrate` rewrites a file; no file is read or written.
///
/// # Errors
/// When a document cannot be read.
pub fn migrated(text: &str) -> anyhow::Result<Migrated> {
    let documents = document::read_text(text, NAMESPACE)?;
    let fates = rewrite(&documents, NAMESPACE);
    let report = Report::of(&documents, &fates);
    let pairs = documents.iter().zip(&fates);
    Ok(Migrated {
        documents: pairs.flat_map(|(document, fate)| texts(document, fate)).collect(),
        is_whole: report.is_whole(),
        report: report.to_text(),
    })
}

/// The namespace of what names none.
const NAMESPACE: &str = "default";

/// Something foreign is left, or something is lost.
const NOT_WHOLE: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  leno migrate check -f old-mesh/
  leno migrate -f old-mesh/ -o mesh/
  leno check -f mesh/

Every file is written anew under the same name. Documents that are native already, or of the Gateway
API, stay as they are. What cannot be said in other words without a change of meaning is left as it
is where Leno reads it, and not kept where it does not; both are listed, with the reason. So is an
object of another mesh that asks for what Leno does not have, and whether it may have kept somebody out.

Exit codes: 0 everything is native now; 3 something is left or not kept; 1 something could not be
read, and nothing is written; 2 wrong usage.
";

const CHECK_EXAMPLES: &str = "\
Examples:
  leno migrate check -f old-mesh/
  leno migrate check                  the cluster that kubectl would use
  leno migrate check -o json

Of a cluster it looks at every kind of openservicemesh.io, flomesh.io and smi-spec.io that is
installed, and at their annotations and labels of namespaces and pods.

Exit codes: 0 everything is kept, perhaps in other words; 3 something is not; 1 something could not
be read; 2 wrong usage.
";
