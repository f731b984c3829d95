//! Series: requests that share their labels, counted together.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::cell::{Cell, cells};
use crate::exemplar::{Exemplar, ExemplarCell};
use crate::grpc::{CODES, GrpcStatus};
use crate::histogram::{Histogram, HistogramCells};
use crate::reading::{BUCKETS, bucket};
use crate::status::{CLASSES, StatusClass};
use crate::tally::{Ending, Tally};

/// What requests are told apart by. Every value must come from rules, services or verified
/// identities, never from what a client may invent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestLabels {
    /// `inbound` or `outbound`, as seen from the workload.
    pub direction: &'static str,
    /// The service that was called, `namespace/name`.
    pub service: String,
    /// Its port.
    pub port: u16,
    /// The route that decided, `namespace/name`; empty without one.
    pub route: String,
    /// The verified identity at the other end; empty without one.
    pub peer: String,
    /// What was spoken.
    pub protocol: &'static str,
}

impl RequestLabels {
    /// What is counted together when there are too many series: all of one direction.
    pub(crate) fn folded(&self) -> Self {
        Self {
            direction: match self.direction {
                "inbound" => "inbound",
                _ => "outbound",
            },
            service: FOLDED.to_owned(),
            port: 0,
            route: String::new(),
            peer: String::new(),
            protocol: "",
        }
    }
}

/// A series of one shard; good for that shard only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeriesId {
    pub(crate) shard: u32,
    pub(crate) index: u32,
}

/// How a request, or a byte stream, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The status of the response; 0 when there was none.
    pub status: u16,
    /// Why it failed, from the closed list; `None` when the application answered.
    pub reason: Option<&'static str>,
    /// The status that a gRPC call was answered with; `None` for anything else.
    pub grpc: Option<GrpcStatus>,
    /// From the first byte received to the last byte sent.
    pub duration: Duration,
    /// Bytes of bodies received from the client.
    pub bytes_in: u64,
    /// Bytes of bodies sent to the client.
    pub bytes_out: u64,
}

impl Outcome {
    /// Whether it was no success: it has a reason, a status of 500 or more, or a gRPC status that
    /// is [the server's fault](GrpcStatus::is_failure).
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.reason.is_some()
            || StatusClass::of(self.status) == StatusClass::Failed
            || self.grpc.is_some_and(GrpcStatus::is_failure)
    }
}

/// What a series counted, summed over all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesSummary {
    /// Its labels.
    pub labels: RequestLabels,
    /// How many requests ended.
    pub requests: u64,
    /// How many of them ended without a failure of the mesh, without a status of 500 or more, and
    /// without a gRPC status that is [the server's fault](GrpcStatus::is_failure).
    pub success: u64,
    /// Those that ended with a reason.
    pub failures: Vec<Failure>,
    /// Half of them took no longer than this.
    pub p50: Duration,
    /// 90 of a hundred took no longer than this.
    pub p90: Duration,
    /// 99 of a hundred took no longer than this.
    pub p99: Duration,
    /// Bytes of bodies received from clients.
    pub bytes_in: u64,
    /// Bytes of bodies sent to clients.
    pub bytes_out: u64,
    /// How long they took, to be merged with other series.
    pub durations: Histogram,
}

impl SeriesSummary {
    /// Failures come by code and reason; those of gRPC calls join the others.
    fn fail(&mut self, failure: Failure) {
        match self.failures.last_mut() {
            Some(last) if (last.code, last.reason) == (failure.code, failure.reason) => {
                last.requests += failure.requests;
            }
            _ => self.failures.push(failure),
        }
    }
}

/// How often requests of a series ended with one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class of the status that the client saw, such as `5xx`; `000` when it saw none.
    pub code: &'static str,
    /// The reason.
    pub reason: &'static str,
    /// How often.
    pub requests: u64,
}

/// What one shard counted of one series: about 2 KiB.
#[derive(Debug)]
pub(crate) struct SeriesCells {
    /// Requests without a reason, by class.
    answered: [Cell; CLASSES],
    /// The same of gRPC calls, by status as well; absent until the first of them.
    called: OnceLock<Box<[[Cell; CLASSES]; CODES]>>,
    bytes_in: Cell,
    bytes_out: Cell,
    /// TCP connections that began.
    opened: Cell,
    /// Streams of requests that began.
    streams_opened: Cell,
    /// Those of them that ended.
    streams_ended: Cell,
    failed: Tally,
    durations: HistogramCells,
    /// What was let in although policies deny it, by reason; absent until the first of it.
    audited: OnceLock<Box<Tally>>,
    /// A request of each bucket that can be looked up; absent until the first that is traced.
    exemplars: OnceLock<Box<[ExemplarCell; BUCKETS]>>,
}

impl SeriesCells {
    pub(crate) fn new() -> Self {
        Self {
            answered: cells(),
            called: OnceLock::new(),
            bytes_in: Cell::default(),
            bytes_out: Cell::default(),
            opened: Cell::default(),
            streams_opened: Cell::default(),
            streams_ended: Cell::default(),
            failed: Tally::new(),
            durations: HistogramCells::new(),
            audited: OnceLock::new(),
            exemplars: OnceLock::new(),
        }
    }

    pub(crate) fn exemplify(&self, exemplar: &Exemplar) {
        let cells = self.exemplars.get_or_init(Box::default);
        cells[bucket(exemplar.duration)].write(exemplar);
    }

    pub(crate) fn audit(&self, reason: &'static str) {
        let tally = self.audited.get_or_init(|| Box::new(Tally::new()));
        tally.add(Ending { class: StatusClass::None, reason, grpc: None });
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

    pub(crate) fn record(&self, outcome: &Outcome) {
        let class = StatusClass::of(outcome.status);
        match (outcome.reason, outcome.grpc) {
            (None, None) => self.answered[class as usize].add(1),
            (None, Some(status)) => {
                let called = self.called.get_or_init(|| Box::new([(); CODES].map(|()| cells())));
                called[usize::from(status.code())][class as usize].add(1);
            }
            (Some(reason), grpc) => self.failed.add(Ending { class, reason, grpc }),
        }
        self.bytes_in.add(outcome.bytes_in);
        self.bytes_out.add(outcome.bytes_out);
        self.durations.record(outcome.duration);
    }
}

/// What all shards counted of one series.
#[derive(Debug)]
pub(crate) struct SeriesTotals {
    pub(crate) labels: RequestLabels,
    pub(crate) requests: BTreeMap<Ending, u64>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// TCP connections that began.
    pub(crate) opened: u64,
    /// Streams of requests that began.
    pub(crate) streams_opened: u64,
    /// Those of them that ended.
    pub(crate) streams_ended: u64,
    pub(crate) durations: Histogram,
    pub(crate) audited: BTreeMap<&'static str, u64>,
    /// The newest of each bucket.
    pub(crate) exemplars: [Option<Exemplar>; BUCKETS],
}

impl SeriesTotals {
    pub(crate) fn sum(labels: RequestLabels, shards: &[Arc<SeriesCells>]) -> Self {
        let mut totals = Self {
            labels,
            requests: BTreeMap::new(),
            bytes_in: 0,
            bytes_out: 0,
            opened: 0,
            streams_opened: 0,
            streams_ended: 0,
            durations: Histogram::new(),
            audited: BTreeMap::new(),
            exemplars: [None; BUCKETS],
        };
        for cells in shards {
            totals.add(cells);
        }
        totals
    }

    fn add(&mut self, cells: &SeriesCells) {
        self.add_answered(&cells.answered, None);
        let called = cells.called.get().into_iter().flat_map(|called| called.iter());
        for (status, answered) in GrpcStatus::ALL.iter().zip(called) {
            self.add_answered(answered, Some(*status));
        }
        for (ending, count) in cells.failed.read() {
            *self.requests.entry(ending).or_default() += count;
        }
        self.bytes_in = self.bytes_in.saturating_add(cells.bytes_in.read());
        self.bytes_out = self.bytes_out.saturating_add(cells.bytes_out.read());
        self.opened = self.opened.saturating_add(cells.opened.read());
        self.streams_opened = self.streams_opened.saturating_add(cells.streams_opened.read());
        self.streams_ended = self.streams_ended.saturating_add(cells.streams_ended.read());
        cells.durations.add_to(&mut self.durations);
        for (ending, count) in cells.audited.get().into_iter().flat_map(|tally| tally.read()) {
            *self.audited.entry(ending.reason).or_default() += count;
        }
        let found = cells.exemplars.get().into_iter().flat_map(|found| found.iter());
        for (newest, cell) in self.exemplars.iter_mut().zip(found) {
            let ended = newest.map(|exemplar| exemplar.ended);
            *newest = cell.read().filter(|it| Some(it.ended) > ended).or(*newest);
        }
    }

    fn add_answered(&mut self, answered: &[Cell; CLASSES], grpc: Option<GrpcStatus>) {
        for (class, cell) in StatusClass::ALL.into_iter().zip(answered) {
            let count = cell.read();
            if count > 0 {
                *self.requests.entry(Ending { class, reason: "", grpc }).or_default() += count;
            }
        }
    }

    pub(crate) fn summary(self) -> SeriesSummary {
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
        for (ending, requests) in self.requests {
            let Ending { class, reason, .. } = ending;
            summary.requests += requests;
            if ending.is_success() {
                summary.success += requests;
            }
            if !reason.is_empty() {
                summary.fail(Failure { code: class.label(), reason, requests });
            }
        }
        summary
    }
}

/// How many series a process keeps: with all of them in use on one core about 4 MiB. Beyond,
/// requests are counted under the service `other`.
pub const SERIES_MAX: usize = 2048;

const FOLDED: &str = "other";
