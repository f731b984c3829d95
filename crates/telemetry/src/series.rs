//! Counts requests by series: the requests that have the same labels. Each thread has its own counts of a series;
//! the totals are summed on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::cell::{SingleWriterCell, cell_array};
use crate::exemplar::{Exemplar, ExemplarCell};
use crate::grpc::{GrpcStatus, STATUS_COUNT};
use crate::histogram::{Histogram, HistogramCells};
use crate::metric_visitor::{EXPOSED_BUCKETS, exposed_bucket};
use crate::outcome_table::{OutcomeKey, OutcomeTable};
use crate::status::{CLASS_COUNT, StatusClass};

/// The labels of a request series. Values must come from rules, services or verified identities, never from
/// clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestLabels {
    /// `inbound` or `outbound`, relative to the workload.
    pub direction: &'static str,
    /// The destination service, `namespace/name`.
    pub service: String,
    /// The port of the destination service.
    pub port: u16,
    /// The matching route, `namespace/name`; empty without a route.
    pub route: String,
    /// The account of the verified peer, `namespace/name`; empty without mutual TLS.
    pub peer: String,
    /// The protocol: see the label `protocol` in `docs/metrics.md`.
    pub protocol: &'static str,
}

impl RequestLabels {
    /// Returns the labels of the overflow series of this direction.
    pub(crate) fn overflow_labels(&self) -> Self {
        Self {
            direction: match self.direction {
                "inbound" => "inbound",
                _ => "outbound",
            },
            service: OVERFLOW_SERVICE.to_owned(),
            port: 0,
            route: String::new(),
            peer: String::new(),
            protocol: "",
        }
    }
}

/// The ID of a series in one shard; valid only for this shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeriesId {
    /// The number of the shard.
    pub(crate) shard: u32,
    /// The position of the series in the shard.
    pub(crate) index: u32,
}

/// A completed request or byte stream: its outcome, duration and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRecord {
    /// The HTTP status of the response; 0 without a response.
    pub status: u16,
    /// The label of the failure reason; `None` if the application responded.
    pub reason: Option<&'static str>,
    /// The status of a gRPC call; `None` for other requests.
    pub grpc: Option<GrpcStatus>,
    /// The time from the first byte received to the last byte sent.
    pub duration: Duration,
    /// The number of body bytes received from the client.
    pub bytes_in: u64,
    /// The number of body bytes sent to the client.
    pub bytes_out: u64,
}

impl RequestRecord {
    /// True for a failure: it has a reason, a status of 500 or more, or a gRPC status that is [the server's
    /// fault](GrpcStatus::is_failure).
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.reason.is_some()
            || StatusClass::from_status(self.status) == StatusClass::ServerError
            || self.grpc.is_some_and(GrpcStatus::is_failure)
    }
}

/// A summary of a series over all shards, with successes and quantiles, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesSummary {
    /// The labels of the series.
    pub labels: RequestLabels,
    /// The number of completed requests.
    pub requests: u64,
    /// The number of completed requests without a failure of the mesh, without a status of 500 or more, and
    /// without a gRPC status that is [the server's fault](GrpcStatus::is_failure).
    pub success: u64,
    /// The number of requests of each failure reason and status class.
    pub failures: Vec<FailureCount>,
    /// The median duration.
    pub p50: Duration,
    /// The 90th percentile of the durations.
    pub p90: Duration,
    /// The 99th percentile of the durations.
    pub p99: Duration,
    /// Request body bytes received from clients.
    pub bytes_in: u64,
    /// Response body bytes sent to clients.
    pub bytes_out: u64,
    /// The histogram of the durations, which can be merged with those of other series.
    pub durations: Histogram,
}

impl SeriesSummary {
    /// Adds a failure. Failures must be added in order of code and reason; failures that differ only in their
    /// gRPC status are merged.
    fn add_failure(&mut self, failure: FailureCount) {
        match self.failures.last_mut() {
            Some(last) if (last.code, last.reason) == (failure.code, failure.reason) => {
                last.requests += failure.requests;
            }
            _ => self.failures.push(failure),
        }
    }
}

/// The number of requests of a series with one failure reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCount {
    /// The class of the status that the client received, such as `5xx`; `000` without a response.
    pub code: &'static str,
    /// The failure reason.
    pub reason: &'static str,
    /// The number of requests.
    pub requests: u64,
}

/// The counts of one series in one shard; about 2 KiB.
#[derive(Debug)]
pub(crate) struct SeriesCells {
    /// Requests without a failure reason, by class of status.
    responses: [SingleWriterCell; CLASS_COUNT],
    /// gRPC calls without a failure reason, by gRPC status and class; not allocated before the first call.
    grpc_responses: OnceLock<Box<[[SingleWriterCell; CLASS_COUNT]; STATUS_COUNT]>>,
    bytes_in: SingleWriterCell,
    bytes_out: SingleWriterCell,
    /// TCP connections that were opened or rejected.
    opened: SingleWriterCell,
    /// Opened streams of requests.
    streams_opened: SingleWriterCell,
    /// Completed streams of requests.
    streams_ended: SingleWriterCell,
    /// Requests with a failure reason, by outcome.
    failures_by_outcome: OutcomeTable,
    durations: HistogramCells,
    /// Traffic that a dry-run policy would deny, by reason; not allocated before the first denial.
    dry_run_denials: OnceLock<Box<OutcomeTable>>,
    /// An exemplar for each bucket; not allocated before the first traced request.
    exemplars: OnceLock<Box<[ExemplarCell; EXPOSED_BUCKETS]>>,
}

impl SeriesCells {
    pub(crate) fn new() -> Self {
        Self {
            responses: cell_array(),
            grpc_responses: OnceLock::new(),
            bytes_in: SingleWriterCell::default(),
            bytes_out: SingleWriterCell::default(),
            opened: SingleWriterCell::default(),
            streams_opened: SingleWriterCell::default(),
            streams_ended: SingleWriterCell::default(),
            failures_by_outcome: OutcomeTable::new(),
            durations: HistogramCells::new(),
            dry_run_denials: OnceLock::new(),
            exemplars: OnceLock::new(),
        }
    }

    pub(crate) fn store_exemplar(&self, exemplar: &Exemplar) {
        let cells = self.exemplars.get_or_init(Box::default);
        cells[exposed_bucket(exemplar.duration)].write(exemplar);
    }

    pub(crate) fn count_dry_run_denial(&self, reason: &'static str) {
        let denials = self.dry_run_denials.get_or_init(|| Box::new(OutcomeTable::new()));
        denials.add(OutcomeKey { class: StatusClass::None, reason, grpc: None });
    }

    pub(crate) fn count_opened(&self) {
        self.opened.add(1);
    }

    pub(crate) fn count_stream_opened(&self) {
        self.streams_opened.add(1);
    }

    pub(crate) fn count_stream_ended(&self) {
        self.streams_ended.add(1);
    }

    pub(crate) fn record_request(&self, record: &RequestRecord) {
        let class = StatusClass::from_status(record.status);
        match (record.reason, record.grpc) {
            (None, None) => self.responses[class as usize].add(1),
            (None, Some(status)) => {
                let grpc_responses = self
                    .grpc_responses
                    .get_or_init(|| Box::new([(); STATUS_COUNT].map(|()| cell_array())));
                grpc_responses[usize::from(status.code())][class as usize].add(1);
            }
            (Some(reason), grpc) => {
                self.failures_by_outcome.add(OutcomeKey { class, reason, grpc })
            }
        }
        self.bytes_in.add(record.bytes_in);
        self.bytes_out.add(record.bytes_out);
        self.durations.record(record.duration);
    }
}

/// All counts of a series, summed over all shards.
#[derive(Debug)]
pub(crate) struct SeriesTotals {
    pub(crate) labels: RequestLabels,
    /// The number of completed requests by outcome.
    pub(crate) requests: BTreeMap<OutcomeKey, u64>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// TCP connections that were opened or rejected.
    pub(crate) opened: u64,
    /// Opened streams of requests.
    pub(crate) streams_opened: u64,
    /// Completed streams of requests.
    pub(crate) streams_ended: u64,
    pub(crate) durations: Histogram,
    /// The traffic that a dry-run policy would deny, by reason.
    pub(crate) dry_run_denials: BTreeMap<&'static str, u64>,
    /// The newest exemplar of each bucket.
    pub(crate) exemplars: [Option<Exemplar>; EXPOSED_BUCKETS],
}

impl SeriesTotals {
    /// Sums the counts of a series over all shards.
    pub(crate) fn sum_shards(labels: RequestLabels, shards: &[Arc<SeriesCells>]) -> Self {
        let mut totals = Self {
            labels,
            requests: BTreeMap::new(),
            bytes_in: 0,
            bytes_out: 0,
            opened: 0,
            streams_opened: 0,
            streams_ended: 0,
            durations: Histogram::new(),
            dry_run_denials: BTreeMap::new(),
            exemplars: [None; EXPOSED_BUCKETS],
        };
        for cells in shards {
            totals.add_cells(cells);
        }
        totals
    }

    /// Adds the counts of one shard.
    fn add_cells(&mut self, cells: &SeriesCells) {
        self.add_responses(&cells.responses, None);
        let grpc_responses =
            cells.grpc_responses.get().into_iter().flat_map(|statuses| statuses.iter());
        for (status, responses) in GrpcStatus::ALL.iter().zip(grpc_responses) {
            self.add_responses(responses, Some(*status));
        }
        for (outcome, count) in cells.failures_by_outcome.read() {
            *self.requests.entry(outcome).or_default() += count;
        }
        self.bytes_in = self.bytes_in.saturating_add(cells.bytes_in.read());
        self.bytes_out = self.bytes_out.saturating_add(cells.bytes_out.read());
        self.opened = self.opened.saturating_add(cells.opened.read());
        self.streams_opened = self.streams_opened.saturating_add(cells.streams_opened.read());
        self.streams_ended = self.streams_ended.saturating_add(cells.streams_ended.read());
        cells.durations.add_to(&mut self.durations);
        for (outcome, count) in
            cells.dry_run_denials.get().into_iter().flat_map(|table| table.read())
        {
            *self.dry_run_denials.entry(outcome.reason).or_default() += count;
        }
        let exemplar_cells = cells.exemplars.get().into_iter().flat_map(|cells| cells.iter());
        for (newest, cell) in self.exemplars.iter_mut().zip(exemplar_cells) {
            let ended = newest.map(|exemplar| exemplar.ended);
            *newest = cell.read().filter(|exemplar| Some(exemplar.ended) > ended).or(*newest);
        }
    }

    /// Adds the requests without a failure reason, with this gRPC status.
    fn add_responses(
        &mut self,
        responses: &[SingleWriterCell; CLASS_COUNT],
        grpc: Option<GrpcStatus>,
    ) {
        for (class, cell) in StatusClass::ALL.into_iter().zip(responses) {
            let count = cell.read();
            if count > 0 {
                *self.requests.entry(OutcomeKey { class, reason: "", grpc }).or_default() += count;
            }
        }
    }

    /// Converts the totals to a summary with quantiles.
    pub(crate) fn into_summary(self) -> SeriesSummary {
        let mut summary = SeriesSummary {
            labels: self.labels,
            requests: 0,
            success: 0,
            failures: Vec::new(),
            p50: self.durations.quantile(0.50),
            p90: self.durations.quantile(0.90),
            p99: self.durations.quantile(0.99),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            durations: self.durations,
        };
        for (outcome, requests) in self.requests {
            let OutcomeKey { class, reason, .. } = outcome;
            summary.requests += requests;
            if outcome.is_success() {
                summary.success += requests;
            }
            if !reason.is_empty() {
                summary.add_failure(FailureCount { code: class.label(), reason, requests });
            }
        }
        summary
    }
}

/// The maximum number of series of a process, which take about 4 MiB per core if all are in use. Requests of
/// further series are counted under the service `other`.
pub const MAX_SERIES: usize = 2048;

/// The destination service of overflow series.
const OVERFLOW_SERVICE: &str = "other";
