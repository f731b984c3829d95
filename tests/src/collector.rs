//! A real OpenTelemetry Collector that prints the spans, metrics and log records it receives.

mod printed;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::program::TestProgram;
use crate::{eventually, free_port, go_program};

pub use printed::{CollectedPoint, CollectedRecord};

/// A running collector.
pub struct OtlpCollector {
    /// The directory of the configuration, deleted on drop.
    _directory: TempDir,
    program: TestProgram,
    /// The port for OTLP over HTTP.
    pub http: u16,
    /// The port for OTLP over gRPC.
    pub grpc: u16,
}

/// A span received by a collector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectedSpan {
    /// The trace ID: 32 hexadecimal digits.
    pub trace: String,
    /// The span ID: 16 hexadecimal digits.
    pub id: String,
    /// The ID of the parent span: 16 hexadecimal digits, or empty.
    pub parent: String,
    /// The name of the operation.
    pub name: String,
    /// `Client` or `Server`.
    pub kind: String,
    /// The complete printed text, including attributes.
    pub text: String,
}

impl OtlpCollector {
    /// Starts a collector and waits until it accepts spans.
    ///
    /// # Panics
    /// If the collector does not start.
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
        let config_file = directory.path().join("collector.yaml");
        std::fs::write(&config_file, configuration).expect("a configuration");
        let mut command = Command::new(go_program("otelcol"));
        command.arg("--config").arg(&config_file);
        let program = TestProgram::start("the collector", &mut command);
        program.wait_for_line("Everything is ready", Duration::from_secs(90));
        Self { _directory: directory, program, http, grpc }
    }

    /// Returns the address of the collector for OTLP over HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.http))
    }

    /// Waits for this number of spans of a trace and returns them.
    ///
    /// # Panics
    /// On timeout.
    #[must_use]
    pub fn wait_for_spans(&self, trace: &str, count: usize) -> Vec<CollectedSpan> {
        let condition = format!("{count} spans of trace {trace} are collected");
        let all_spans = || Some(self.spans_now(trace)).filter(|spans| spans.len() >= count);
        eventually(&condition, Duration::from_secs(90), all_spans).0
    }

    /// Returns the spans of a trace printed so far.
    #[must_use]
    pub fn spans_now(&self, trace: &str) -> Vec<CollectedSpan> {
        let printed_output = self.program.printed_output();
        let resources = printed::resource_blocks(&printed_output, "ResourceSpans #");
        let blocks = resources.flat_map(|resource| resource.split("\nSpan #").skip(1));
        blocks.map(CollectedSpan::from_block).filter(|span| span.trace == trace).collect()
    }

    /// Returns the latest printed point of each series of a workload, by name and labels as in `/metrics`,
    /// without empty labels: `leno_links{side="upstream"}`.
    #[must_use]
    pub fn points_now(&self, workload: &str) -> BTreeMap<String, CollectedPoint> {
        let mut points = printed::parse_points(&self.program.printed_output());
        points.retain(|point| point.workload == workload);
        points.into_iter().map(|point| (point.series.clone(), point)).collect()
    }

    /// Returns the log records of a trace printed so far.
    #[must_use]
    pub fn records_now(&self, trace: &str) -> Vec<CollectedRecord> {
        let mut records = printed::parse_records(&self.program.printed_output());
        records.retain(|record| record.trace == trace);
        records
    }
}

impl CollectedSpan {
    fn from_block(block: &str) -> Self {
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

    /// Returns the value of an attribute as printed, such as `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let line_prefix = format!("-> {name}: ");
        self.text.lines().find_map(|line| line.trim().strip_prefix(line_prefix.as_str()))
    }
}
