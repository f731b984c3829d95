//! A real OpenTelemetry Collector that prints the spans, metrics and records it was sent.

mod printed;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::program::Program;
use crate::{eventually, free_port, go_program};

pub use printed::{CollectedPoint, CollectedRecord};

/// A running collector.
pub struct Collector {
    _directory: TempDir,
    program: Program,
    /// Where it takes OTLP in HTTP.
    pub http: u16,
    /// Where it takes OTLP in gRPC.
    pub grpc: u16,
}

/// A span as a collector saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectedSpan {
    /// 32 digits.
    pub trace: String,
    /// 16 digits.
    pub id: String,
    /// 16 digits, or nothing.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// `Client` or `Server`.
    pub kind: String,
    /// All that was printed of it, attributes included.
    pub text: String,
}

impl Collector {
    /// Starts one, and waits until it takes spans.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let (http, grpc) = (free_port(), free_port());
        let configuration = format!(
            "receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{grpc}'}}, \
             http: {{endpoint: '127.0.0.1:{http}'}}}}}}}}\n\
             exporters: {{debug: {{verbosity: detailed}}}}\n\
             service: {{telemetry: {{metrics: {{level: none}}}}, pipelines: {{\
             traces: {{receivers: [otlp], exporters: [debug]}}, \
             metrics: {{receivers: [otlp], exporters: [debug]}}, \
             logs: {{receivers: [otlp], exporters: [debug]}}}}}}\n"
        );
        let file = directory.path().join("collector.yaml");
        std::fs::write(&file, configuration).expect("a configuration");
        let mut command = Command::new(go_program("otelcol"));
        command.arg("--config").arg(&file);
        let program = Program::start("the collector", &mut command);
        program.wait_for_line("Everything is ready", Duration::from_secs(90));
        Self { _directory: directory, program, http, grpc }
    }

    /// Where it takes OTLP in HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.http))
    }

    /// The spans of a trace, once there are so many.
    ///
    /// # Panics
    /// When there are not.
    #[must_use]
    pub fn spans(&self, trace: &str, count: usize) -> Vec<CollectedSpan> {
        let what = format!("{count} spans of trace {trace} are collected");
        let look = || Some(self.spans_now(trace)).filter(|spans| spans.len() >= count);
        eventually(&what, Duration::from_secs(90), look).0
    }

    /// The spans of a trace that it has printed so far.
    #[must_use]
    pub fn spans_now(&self, trace: &str) -> Vec<CollectedSpan> {
        let printed = self.program.printed();
        let resources = printed::resources(&printed, "ResourceSpans #");
        let blocks = resources.flat_map(|resource| resource.split("\nSpan #").skip(1));
        blocks.map(CollectedSpan::of).filter(|span| span.trace == trace).collect()
    }

    /// The newest point of each series of a workload, by its name and labels as `/metrics` writes
    /// them without those that are empty: `leno_links{side="upstream"}`. What it has printed so far.
    #[must_use]
    pub fn points_now(&self, workload: &str) -> BTreeMap<String, CollectedPoint> {
        let mut points = printed::points(&self.program.printed());
        points.retain(|point| point.workload == workload);
        points.into_iter().map(|point| (point.series.clone(), point)).collect()
    }

    /// The records of a trace that it has printed so far.
    #[must_use]
    pub fn records_now(&self, trace: &str) -> Vec<CollectedRecord> {
        let mut records = printed::records(&self.program.printed());
        records.retain(|record| record.trace == trace);
        records
    }
}

impl CollectedSpan {
    fn of(block: &str) -> Self {
        let mut span = Self { text: block.to_owned(), ..Self::default() };
        for line in block.lines() {
            let Some((key, value)) = line.split_once(": ") else { continue };
            let value = value.trim().to_owned();
            match key.trim() {
                "Trace ID" => span.trace = value,
                "ID" => span.id = value,
                "Parent ID" => span.parent = value,
                "Name" => span.name = value,
                "Kind" => span.kind = value,
                _ => {}
            }
        }
        span
    }

    /// The value of an attribute, as the collector prints it, such as `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let start = format!("-> {name}: ");
        self.text.lines().find_map(|line| line.trim().strip_prefix(start.as_str()))
    }
}
