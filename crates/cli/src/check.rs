//! `leno check`: validates manifests, or checks a cluster, without running anything.

mod kubernetes;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use leno_registry::{FileSource, RejectedDocument, Warning, count_rejected_documents};
use serde::Serialize;

use crate::cluster::DetectedClusterArgs;
use crate::figures::format_count;
use crate::output;

/// Arguments of `leno check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// File or directory of YAML manifests; repeatable; required without --kubernetes
    #[arg(short, long = "file", value_name = "PATH", required_unless_present = "kubernetes")]
    file: Vec<PathBuf>,
    /// Check the cluster of the current kubeconfig context: its prerequisites for a mesh, or the health of the
    /// installed mesh
    #[arg(long, conflicts_with = "file")]
    kubernetes: bool,
    #[command(flatten)]
    cluster: DetectedClusterArgs,
    /// Treat warnings as errors
    #[arg(short = 'W', long)]
    strict_warnings: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: CheckFormat,
}

/// The output format of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum CheckFormat {
    /// One line per finding
    #[default]
    Text,
    /// JSON
    Json,
}

impl CheckArgs {
    /// Prints errors and warnings.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.kubernetes {
            return kubernetes::run(&self.cluster, self.output, self.strict_warnings);
        }
        let findings = CheckFindings::from_paths(self.file);
        match self.output {
            CheckFormat::Text => output::print_text(&findings.to_text())?,
            CheckFormat::Json => output::print_json(&findings)?,
        }
        let has_failed = !findings.ok || (self.strict_warnings && !findings.warnings.is_empty());
        Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The findings in the checked documents.
#[derive(Debug, Serialize)]
struct CheckFindings {
    /// True if a mesh would accept all documents, and there is at least one.
    ok: bool,
    /// The number of accepted objects.
    objects: usize,
    rejected: Vec<RejectedDocument>,
    warnings: Vec<Warning>,
}

impl CheckFindings {
    fn from_paths(paths: Vec<PathBuf>) -> Self {
        let mut source = FileSource::new(paths);
        let update = source.reload();
        let mut warnings = update.warnings;
        warnings.extend(source.lint_warnings());
        warnings.sort();
        warnings.dedup();
        Self {
            ok: update.rejected.is_empty() && update.object_count > 0,
            objects: update.object_count,
            rejected: update.rejected,
            warnings,
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut write_line = |kind: &str, finding: String| {
            writeln!(text, "{kind}: {finding}").expect("writing to a String never fails");
        };
        for rejected in &self.rejected {
            write_line("rejected", output::format_line(rejected));
        }
        for warning in &self.warnings {
            write_line("warning", output::format_line(warning));
        }
        let objects = format_count(self.objects, "object");
        let verdict = match (self.ok, self.objects) {
            (true, _) => "ok",
            (false, 0) if self.rejected.is_empty() => "nothing to check",
            (false, _) => "not ok",
        };
        text.push_str(&format!(
            "{verdict}: {objects}, {} rejected, {}\n",
            count_rejected_documents(&self.rejected),
            format_count(self.warnings.len(), "warning"),
        ));
        text
    }
}

const EXAMPLES: &str = "\
Examples:
  leno check -f mesh/
  leno check -f mesh.yaml -W -o json
  leno check --kubernetes
  leno check --kubernetes -n mesh --context staging -o json

Exit codes: 0 all objects are valid, or the cluster is healthy; 1 an object is rejected or a check fails,
there are no objects, or there are warnings with -W; 2 wrong usage.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_cannot_forge_output_lines() {
        let directory = tempfile::tempdir().unwrap();
        let name = "b\nrejected: all\u{1b}[2J.yaml";
        std::fs::write(directory.path().join(name), "kind: [\n").unwrap();
        let twice =
            "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 1}]}}\n";
        std::fs::write(directory.path().join("c\nd.yaml"), twice).unwrap();
        std::fs::write(directory.path().join("e\nf.yaml"), twice).unwrap();
        let text = CheckFindings::from_paths(vec![directory.path().to_owned()]).to_text();
        // Two rejections, a warning and the verdict.
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("b\\nrejected: all\\u{1b}[2J.yaml:"), "{text}");
        assert!(text.contains("c\\nd.yaml:1"), "{text}");
    }
}
