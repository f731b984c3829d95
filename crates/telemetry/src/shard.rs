//! Counts the metrics of one thread in a shard, which only this thread writes, so that counting needs no
//! synchronization.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::exemplar::Exemplar;
use crate::names::{ConnectionSide, Count, Gauge};
use crate::outcome_table::OutcomeKey;
use crate::rule::{RuleLabels, RuleNumber};
use crate::series::{RequestLabels, RequestRecord, SeriesCells, SeriesId};
use crate::status::StatusClass;
use crate::telemetry::{ShardCells, Telemetry};
use crate::trace::{SpanId, TraceId};

/// The metrics of one thread. A shard may move to another thread but is never shared, so that counting is a
/// load and a store. The counts remain in [`Telemetry`] after the shard is dropped.
pub struct MetricsShard {
    telemetry: Arc<Telemetry>,
    number: u32,
    cells: Arc<ShardCells>,
    series: RefCell<ShardSeries>,
    /// The numbers of the rules that this shard has counted, cached from the telemetry.
    rules: RefCell<HashMap<RuleLabels, RuleNumber>>,
}

impl MetricsShard {
    /// Finds or creates the series with these labels. This compares text and may take a lock: call it once, and
    /// store the result with the configuration, connection or link.
    ///
    /// If the process has [`MAX_SERIES`](crate::MAX_SERIES) series, requests with new labels are counted in one
    /// overflow series for each direction.
    pub fn series_id(&self, labels: &RequestLabels) -> SeriesId {
        let mut series = self.series.borrow_mut();
        if let Some(id) = series.ids.get(labels) {
            return *id;
        }
        let admitted_labels = self.telemetry.admit_labels(labels);
        if admitted_labels != *labels {
            self.add(Count::SeriesOverflowed, 1);
        }
        if let Some(id) = series.ids.get(&admitted_labels) {
            return *id;
        }
        let index = u32::try_from(series.cells.len()).unwrap_or(u32::MAX);
        let shard = self.number;
        series.cells.push(self.telemetry.attach_series(&admitted_labels));
        series.ids.insert(admitted_labels, SeriesId { shard, index });
        SeriesId { shard, index }
    }

    /// Counts a completed request. `series` must be a series of this shard; series of other shards are ignored.
    pub fn record_request(&self, series: SeriesId, record: &RequestRecord) {
        debug_assert_eq!(series.shard, self.number, "a series belongs to its shard");
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.record_request(record);
        }
    }

    /// Counts an opened or rejected TCP connection; its record is added at its end. For `series` see
    /// [`record_request`](Self::record_request).
    pub fn count_opened(&self, series: SeriesId) {
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.count_opened();
        }
    }

    /// Counts the start of a stream; the record of its request is added at its end. For `series` see
    /// [`record_request`](Self::record_request).
    pub fn count_stream_opened(&self, series: SeriesId) {
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.count_stream_opened();
        }
    }

    /// Counts the end of a stream, together with the record of its request.
    pub fn count_stream_ended(&self, series: SeriesId) {
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.count_stream_ended();
        }
    }

    /// Counts a request that was allowed because `defaultPolicy` is `dry-run`, and would be denied otherwise. For
    /// `series` see [`record_request`](Self::record_request).
    pub fn count_dry_run_denial(&self, series: SeriesId, reason: &'static str) {
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.count_dry_run_denial(reason);
        }
    }

    /// Stores a traced request as an exemplar of its duration. For `series` see
    /// [`record_request`](Self::record_request).
    pub fn store_exemplar(
        &self,
        series: SeriesId,
        trace: TraceId,
        span: SpanId,
        duration: Duration,
        ended: SystemTime,
    ) {
        let own_series = self.series.borrow();
        let cells = own_series.cells.get(series.index as usize);
        if let Some(cells) = cells.filter(|_| series.shard == self.number) {
            cells.store_exemplar(&Exemplar { trace, span, duration, ended });
        }
    }

    /// Returns the number of a rule. This compares text and may take a lock: call it once, and store the number
    /// with the rule.
    ///
    /// If the process has [`MAX_RULES`](crate::MAX_RULES) rules, new rules share one number.
    pub fn rule_number(&self, labels: &RuleLabels) -> RuleNumber {
        let mut rules = self.rules.borrow_mut();
        if let Some(number) = rules.get(labels) {
            return *number;
        }
        let number = self.telemetry.rule_number(labels);
        if rules.len() < crate::MAX_RULES {
            rules.insert(labels.clone(), number);
        }
        number
    }

    /// Counts a match of a rule.
    pub fn count_match(&self, rule: RuleNumber) {
        self.cells.rules.add(rule);
    }

    /// Counts an opened connection, which is open until [`Self::count_connection_closed`].
    pub fn count_connection_opened(&self, side: ConnectionSide) {
        self.add(side.opened_counter(), 1);
        self.increment(side.open_gauge(), 1);
    }

    /// Counts a closed connection, which another shard may have opened.
    pub fn count_connection_closed(&self, side: ConnectionSide) {
        self.decrement(side.open_gauge(), 1);
    }

    /// Counts a connection that was rejected before any request.
    pub fn count_rejected(&self, reason: &'static str) {
        self.cells.rejected_connections.add(OutcomeKey {
            class: StatusClass::None,
            reason,
            grpc: None,
        });
    }

    /// Adds `amount` to a counter.
    pub fn add(&self, count: Count, amount: u64) {
        self.cells.counts[count as usize].add(amount);
    }

    /// Adds `amount` to a gauge.
    pub fn increment(&self, gauge: Gauge, amount: u64) {
        self.cells.gauges[gauge as usize].add(amount);
    }

    /// Subtracts `amount` from a gauge.
    pub fn decrement(&self, gauge: Gauge, amount: u64) {
        self.cells.gauges[gauge as usize].subtract(amount);
    }

    /// Returns the telemetry to which the shard belongs.
    #[must_use]
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }
}

impl Telemetry {
    /// Creates a shard for another thread. Shards are never removed: create one for each data thread and one for
    /// the control thread at their start.
    #[must_use]
    pub fn new_shard(self: &Arc<Self>) -> MetricsShard {
        let (number, cells) = self.register_shard();
        MetricsShard {
            telemetry: Arc::clone(self),
            number,
            cells,
            series: RefCell::default(),
            rules: RefCell::default(),
        }
    }
}

/// The series that this shard has counted, by their labels and by index.
#[derive(Default)]
struct ShardSeries {
    /// The counts, by the index in [`SeriesId`].
    cells: Vec<Arc<SeriesCells>>,
    ids: HashMap<RequestLabels, SeriesId>,
}

#[cfg(test)]
mod tests;
