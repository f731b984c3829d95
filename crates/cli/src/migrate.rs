//! `leno migrate`: rewrites the rules of other meshes into native ones, and lists what it could not.

mod access;
mod document;
mod mesh_config;
mod published;
mod rewrite;
mod sermant;
mod setting;
mod split;
mod terms;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use self::document::{Document, Found};
use self::rewrite::{Fate, rewrite};
use crate::{output, yaml};

/// Arguments of `leno migrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    /// A file or directory of YAML; may be given again
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    file: Vec<PathBuf>,
    /// The directory that the new files are written to; it is made, and must be empty if it is there
    #[arg(short, long, value_name = "DIRECTORY")]
    output: PathBuf,
    /// The namespace of what has none: items of Sermant's configuration centre
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
}

impl MigrateArgs {
    /// Reads everything, decides, and writes only when everything could be read.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        check_empty(&self.output)?;
        let documents = document::read(&self.file, &self.namespace)?;
        let fates = rewrite(&documents, &self.namespace);
        write(&self.output, &documents, &fates)?;
        let report = Report::of(&documents, &fates);
        output::print(&report.text)?;
        Ok(if report.is_whole { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) })
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
        let texts = match fate {
            Fate::Native | Fate::Left(_) => vec![document.text.clone()],
            Fate::Rewritten(objects) | Fate::Nearly(objects, _) => {
                objects.iter().map(yaml::write).collect()
            }
            Fate::Dropped(_) | Fate::Lost(_) => Vec::new(),
        };
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

/// What became of every document.
struct Report {
    text: String,
    /// Nothing foreign is left, and nothing is lost.
    is_whole: bool,
}

impl Report {
    fn of(documents: &[Document], fates: &[Fate]) -> Self {
        let mut text = String::new();
        let (mut native, mut rewritten, mut nearly, mut left, mut lost) = (0, 0, 0, 0, 0);
        for (document, fate) in documents.iter().zip(fates) {
            let told = match fate {
                Fate::Native if matches!(document.found, Found::Comments) => continue,
                Fate::Native => {
                    native += 1;
                    continue;
                }
                Fate::Rewritten(objects) => {
                    rewritten += 1;
                    let names: Vec<String> = objects.iter().map(yaml::name).collect();
                    format!("rewritten: {document} is {}", names.join(" and "))
                }
                Fate::Nearly(objects, differences) => {
                    rewritten += 1;
                    nearly += 1;
                    let names: Vec<String> = objects.iter().map(yaml::name).collect();
                    let differences = differences.join("; ");
                    format!("rewritten: {document} is {}, but: {differences}", names.join(" and "))
                }
                Fate::Dropped(why) => {
                    rewritten += 1;
                    format!("dropped: {document}: {why}")
                }
                Fate::Left(why) => {
                    left += 1;
                    format!("left as it is: {document}: {why}")
                }
                Fate::Lost(why) => {
                    lost += 1;
                    format!("not kept: {document}: {why}")
                }
            };
            writeln!(text, "{told}").expect("a String takes what is written");
            if let (Found::Settings { others, .. }, Fate::Rewritten(_)) = (&document.found, fate)
                && !others.is_empty()
            {
                lost += 1;
                writeln!(text, "not kept: {document}: {}", others.join(", "))
                    .expect("a String takes what is written");
            }
        }
        let but = match nearly {
            0 => String::new(),
            nearly => format!(" ({nearly} decide otherwise in a rare case)"),
        };
        writeln!(
            text,
            "{native} native already, {rewritten} rewritten{but}, {left} left as they are, {lost} not kept"
        )
        .expect("a String takes what is written");
        Self { text, is_whole: nearly == 0 && left == 0 && lost == 0 }
    }
}

/// Something foreign is left, or something is lost.
const NOT_WHOLE: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  leno migrate -f old-mesh/ -o mesh/
  leno check -f mesh/

Every file is written anew under the same name. Documents that are native already, or of the Gateway
API, stay as they are. What cannot be said in other words without a change of meaning is left as it
is where Leno reads it, and not kept where it does not; both are listed, with the reason.

Exit codes: 0 everything is native now; 3 something is left or not kept; 1 something could not be
read, and nothing is written; 2 wrong usage.
";
