//! `leno bug-report`: collects diagnostics of a mesh in one archive, without secrets.

mod machine;
mod redact;

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use leno_control::status::ProxyStatus;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::data_directory::DataDirectoryArgs;
use crate::figures::format_count;
use crate::get::MeshSocket;
use crate::output;
use redact::Redaction;

/// Arguments of `leno bug-report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BugReportArgs {
    /// Output file, which must not exist, or `-` for standard output [default: leno-bug-report-TIME.tar.gz in
    /// the working directory, else in the directory for temporary files, else in the data directory]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    data: DataDirectoryArgs,
}

impl BugReportArgs {
    /// Collects all available diagnostics into the archive, and prints the files that are missing in it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let now = OffsetDateTime::now_utc();
        let data_directory = self.data.path()?;
        let (path, writer) = match self.out {
            Some(path) => (path.clone(), create_private_file(&path)?),
            None => create_in_first_writable(
                &default_file_name(now),
                &[&std::env::temp_dir(), &data_directory],
            )?,
        };
        let writes_to_stdout = path == Path::new("-");
        let mut archive = ReportArchive::new(writer)?;
        let collection_result =
            runtime.block_on(collect_pages(&MeshSocket::from_data(&data_directory), &mut archive));
        let archive_result = collection_result
            .and_then(|is_complete| Ok((is_complete, archive.finish_archive(now)?)));
        if archive_result.is_err() && !writes_to_stdout {
            // An incomplete archive is useless.
            std::fs::remove_file(&path).ok();
        }
        let (is_complete, (file_count, missing_files)) =
            archive_result.with_context(|| path.display().to_string())?;
        let summary = render_summary(&path, file_count, &missing_files);
        match writes_to_stdout {
            true => eprint!("{summary}"),
            false => output::print_text(&summary)?,
        }
        // A partial report is still useful, but the exit code reports it to scripts.
        Ok(match is_complete {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// Queries the control plane and then each of its sidecars. Returns false if the control plane does not
/// respond.
async fn collect_pages(mesh: &MeshSocket, archive: &mut ReportArchive) -> anyhow::Result<bool> {
    let mut proxies = Vec::new();
    for (name, path) in CONTROL_PAGES {
        let file = format!("control/{name}.json");
        match mesh.query_json(path).await {
            Ok(page) => {
                if *path == "/proxies" {
                    // A page of another version of Leno is added to the report, but its sidecars are not queried.
                    proxies = serde_json::from_value(page.clone()).unwrap_or_default();
                }
                archive.add_json(&file, &page)?;
            }
            // If the first query fails, the control plane is unreachable, and all others would fail as well.
            Err(error) if archive.file_count == 0 => {
                archive.record_missing("control", &error);
                return Ok(false);
            }
            Err(error) => archive.record_missing(&file, &error),
        }
    }
    match mesh.send_request("GET", "/metrics").await {
        Ok(page) => archive.add_file("control/metrics.txt", &page)?,
        Err(error) => archive.record_missing("control/metrics.txt", &error),
    }
    let queried_count = proxies.len().min(MAX_SIDECARS);
    if queried_count < proxies.len() {
        let notice = format!("only the first {MAX_SIDECARS} of {} are queried", proxies.len());
        archive.record_missing("sidecars", &anyhow::anyhow!(notice));
    }
    if let Some(scope) = mesh.query_scope().await {
        archive.record_missing("sidecars", &anyhow::anyhow!(scope));
    }
    for proxy in proxies.iter().take(queried_count) {
        collect_sidecar(mesh, proxy, archive).await?;
    }
    Ok(true)
}

async fn collect_sidecar(
    mesh: &MeshSocket,
    proxy: &ProxyStatus,
    archive: &mut ReportArchive,
) -> anyhow::Result<()> {
    let folder = format!("sidecars/{}", proxy.workload.replace('/', "."));
    for (name, path) in SIDECAR_PAGES {
        let file = format!("{folder}/{name}");
        match mesh.query_sidecar_page(&proxy.workload, path).await {
            Ok(page) => archive.add_file(&file, &page)?,
            Err(error) => {
                archive.record_missing(&file, &error);
                // The remaining queries would fail as well.
                break;
            }
        }
    }
    Ok(())
}

/// Creates a file that only its owner may read, or opens standard output for `-`.
fn create_private_file(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        if std::io::stdout().is_terminal() {
            bail!("the report is binary: redirect it to a file, or use --out FILE");
        }
        return Ok(Box::new(std::io::stdout()));
    }
    let open_result = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    Ok(Box::new(open_result.with_context(|| format!("cannot write {}", path.display()))?))
}

/// Creates the file in the working directory, or in the first of these directories that is writable: a pod has
/// a read-only root file system.
fn create_in_first_writable(
    name: &Path,
    directories: &[&Path],
) -> anyhow::Result<(PathBuf, Box<dyn Write>)> {
    let first_error = match create_private_file(name) {
        Ok(file) => return Ok((name.to_owned(), file)),
        Err(error) => error,
    };
    let mut paths = directories.iter().map(|directory| directory.join(name));
    let opened_file =
        paths.find_map(|path| create_private_file(&path).ok().map(|file| (path, file)));
    opened_file.ok_or_else(|| {
        first_error.context("no writable directory; use --out FILE, or --out - for standard output")
    })
}

/// The archive that is being written, with a list of the files that could not be collected.
struct ReportArchive {
    tar_builder: tar::Builder<GzEncoder<Box<dyn Write>>>,
    redaction: Redaction,
    /// The size that further files may have in total, before compression.
    remaining_bytes: usize,
    /// The number of files in the archive.
    file_count: usize,
    /// The names of files or folders that could not be collected, each with the reason.
    missing_files: Vec<String>,
}

impl ReportArchive {
    fn new(writer: Box<dyn Write>) -> anyhow::Result<Self> {
        let tar_builder = tar::Builder::new(GzEncoder::new(writer, Compression::default()));
        Ok(Self {
            tar_builder,
            redaction: Redaction::new()?,
            remaining_bytes: MAX_UNCOMPRESSED_BYTES,
            file_count: 0,
            missing_files: Vec::new(),
        })
    }

    fn add_json(&mut self, name: &str, value: &Value) -> anyhow::Result<()> {
        self.add_file(name, &format!("{value:#}\n"))
    }

    fn add_file(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = self.redaction.redact_text(text);
        let Some(remaining_bytes) = self.remaining_bytes.checked_sub(text.len()) else {
            let error =
                anyhow::anyhow!("the report would be larger than {MAX_UNCOMPRESSED_BYTES} bytes");
            self.record_missing(name, &error);
            return Ok(());
        };
        self.remaining_bytes = remaining_bytes;
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len())?);
        header.set_mode(0o600);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        header.set_mtime(now.as_secs());
        let path = Path::new("leno-bug-report").join(name);
        self.tar_builder.append_data(&mut header, path, text.as_bytes())?;
        self.file_count += 1;
        Ok(())
    }

    /// Records a file or folder that could not be collected, with the reason.
    fn record_missing(&mut self, name: &str, error: &anyhow::Error) {
        self.missing_files.push(format!("{name}: {}", output::format_error(error)));
    }

    /// Writes the description and the end of the archive. Returns the number of files, and the missing files.
    fn finish_archive(mut self, now: OffsetDateTime) -> anyhow::Result<(usize, Vec<String>)> {
        let description = json!({
            "leno": env!("CARGO_PKG_VERSION"),
            "at": now.format(&Rfc3339)?,
            "machine": machine::describe_machine(),
            "missing": self.missing_files,
        });
        self.add_json("about.json", &description)?;
        self.tar_builder.into_inner()?.finish()?.flush()?;
        Ok((self.file_count, self.missing_files))
    }
}

fn default_file_name(now: OffsetDateTime) -> PathBuf {
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = now.to_hms();
    format!("leno-bug-report-{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z.tar.gz")
        .into()
}

fn render_summary(path: &Path, file_count: usize, missing_files: &[String]) -> String {
    let mut text = format!(
        "{}: {}. It contains names, addresses and rules, but no keys, tokens, bodies and environments of \
         applications. Review it before you send it.\n",
        path.display(),
        format_count(file_count, "file")
    );
    for missing_file in missing_files {
        text.push_str(&format!("  missing: {missing_file}\n"));
    }
    text
}

/// The queries to the control plane: the name of the file without `.json`, and the path.
const CONTROL_PAGES: &[(&str, &str)] = &[
    ("status", "/status"),
    ("rejected", "/rejected"),
    ("rejected-joins", "/rejected-joins"),
    ("state", "/state"),
    ("workloads", "/workloads"),
    ("services", "/services"),
    ("routes", "/routes"),
    ("policies", "/policies"),
    ("certificates", "/certificates"),
    ("proxies", "/proxies"),
    ("changes", "/changes"),
    ("traffic", "/traffic"),
];
/// The queries to each sidecar: the name of the file, and the path.
const SIDECAR_PAGES: &[(&str, &str)] = &[
    ("config.json", "/config"),
    ("connections.json", "/connections"),
    ("ejected.json", "/ejected"),
    ("circuits.json", "/circuits"),
    ("metrics.txt", "/metrics"),
];
/// The maximum number of queried sidecars.
const MAX_SIDECARS: usize = 200;
/// The maximum total size of the files before compression, in bytes.
const MAX_UNCOMPRESSED_BYTES: usize = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  leno bug-report                             leno-bug-report-TIME.tar.gz in this directory
  leno bug-report --data /var/lib/leno --out /tmp/report.tar.gz
  kubectl -n leno-system exec deploy/leno-control -- \\
      /leno bug-report --data /var/lib/leno/control --out - > report.tar.gz

Unreachable parts are reported, and the rest is collected.

Exit codes: 0 complete; 1 no control plane responds, or the file cannot be written; 2 wrong usage.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_written_to_the_first_writable_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("missing");
        // The file below this one cannot be created, regardless of the test's privileges.
        let name = Path::new("missing/report.tar.gz");
        let writable = scratch.path().join("data");
        std::fs::create_dir_all(writable.join("missing")).unwrap();
        let (path, _) = create_in_first_writable(name, &[&missing, &writable]).unwrap();
        assert_eq!(path, writable.join(name));
        assert!(path.exists());
        let error = create_in_first_writable(name, &[&missing]).err().unwrap();
        assert!(format!("{error:#}").contains("use --out FILE"), "{error:#}");
    }
}
